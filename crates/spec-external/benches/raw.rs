//! Times the pipeline on raw u64 keys, and each of its parts alone, in one run on
//! one file: `cargo bench -p spec-external --bench raw`.
//!
//! `-- --keys N` chooses the size (default 2^27, 1 GiB), `--folder DIR` the disk,
//! `--threads N` the threads, `--bits N` how many bits of a key vary.
//!
//! Every result is compared with a sort. "Cached" means that the file's pages
//! are in memory, "cold" that the system was asked to drop them. Writing ends
//! when the data is on the disk.

use std::fs::File;
use std::num::NonZeroUsize;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::fs::{Advice, fadvise};
use spec::cpu::Cpu;
use spec::dtype::{as_bytes, as_bytes_mut};
use spec::ops::Unique as Operator;
use spec::ops::unique::Buffers;
use spec::{Backend, DType, Descriptor};
use spec_external::raw::{self, RawSink};
use spec_external::{Distinct, Output, Summary};

/// The number of rounds in which the pipeline and its steps are timed in turn.
const ROUNDS: usize = 5;

type Error = Box<dyn std::error::Error>;

struct Bench {
    keys: usize,
    bits: u32,
    folder: PathBuf,
    threads: usize,
}

fn main() -> Result<(), Error> {
    let cores = std::thread::available_parallelism()?.get();
    let mut bench = Bench { keys: 1 << 27, bits: 64, folder: std::env::temp_dir(), threads: cores };
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    while let Some(argument) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{argument}: a value is missing"))?;
        match argument.as_str() {
            "--keys" => bench.keys = value.parse()?,
            "--bits" => bench.bits = value.parse()?,
            "--folder" => bench.folder = value.into(),
            "--threads" => bench.threads = value.parse()?,
            _ => return Err(format!("{argument} is no option").into()),
        }
    }
    let folder = bench.folder.join(format!("spec-bench-{}", std::process::id()));
    std::fs::create_dir(&folder)?;
    let result = bench.run(&folder);
    std::fs::remove_dir_all(&folder)?;
    result
}

impl Bench {
    fn run(&self, folder: &Path) -> Result<(), Error> {
        let (input, output) = (folder.join("keys.bin"), folder.join("distinct.bin"));
        let mut keys = self.random();
        std::fs::write(&input, as_bytes(&keys))?;
        let file = File::open(&input)?;
        file.sync_all()?;
        let bytes = keys.len() * 8;
        println!(
            "{} keys, {} bits vary, {:.3} GB, {} threads",
            keys.len(),
            self.bits,
            bytes as f64 / 1e9,
            self.threads
        );
        println!("\n| alone | seconds | GB/s |\n|---|---|---|");
        let row = |name: &str, seconds: f64, bytes: usize| {
            println!("| {name} | {seconds:.3} | {:.2} |", bytes as f64 / 1e9 / seconds);
            seconds
        };
        drop_pages(&file)?;
        row("read, cold", self.read(&file, &mut keys)?, bytes);
        let read = row("read, cached", self.read(&file, &mut keys)?, bytes);
        row("read through a mapping, cached", self.read_mapped(&file, &mut keys)?, bytes);
        drop_pages(&file)?;
        row("read through a mapping, cold", self.read_mapped(&file, &mut keys)?, bytes);
        let (distinct, unique) = unique_in_memory(&keys)?;
        row("unique in memory that was used before", unique, bytes);
        let write = row("write and sync", self.write(&output, &distinct)?, distinct.len() * 8);
        std::fs::remove_file(&output)?;
        drop(keys);
        let mut expected = vec![0u64; self.keys];
        self.read(&file, &mut expected)?;
        expected.sort_unstable();
        expected.dedup();
        assert!(expected == distinct, "the operator is wrong");
        drop(distinct);
        self.beside_plain(&input, &output, folder, read + unique + write)?;
        println!("\n| pipeline | phase | seconds | GB/s of keys | GB read | GB written |");
        println!("|---|---|---|---|---|---|");
        let limits =
            [("everything fits", bytes as u64 * 4), ("a tenth of the file", bytes as u64 / 10)];
        for (name, memory) in limits {
            for cached in [true, false] {
                if !cached {
                    drop_pages(&file)?;
                }
                let summary = self.pipeline(&input, &output, folder, memory)?;
                let name = format!("{name}, {}", if cached { "cached" } else { "cold" });
                print(&name, &summary);
                let mut found = vec![0u64; summary.distinct as usize];
                File::open(&output)?.read_exact_at(as_bytes_mut(&mut found), 0)?;
                assert!(found == expected, "{name}: the result is wrong");
                std::fs::remove_file(&output)?;
            }
        }
        Ok(())
    }

    /// For keys that fit into memory: times the pipeline, and in turn the same steps one after the
    /// other, each with all threads, also in fresh memory.
    fn beside_plain(
        &self,
        input: &Path,
        output: &Path,
        temp: &Path,
        parts: f64,
    ) -> Result<(), Error> {
        println!("\n| everything fits, cached | plain, seconds | pipeline, seconds | ratio |");
        println!("|---|---|---|---|");
        let mut ratios = Vec::new();
        for round in 1..=ROUNDS {
            let (mut plain, mut pipeline) = (0.0, 0.0);
            // The first of the two leaves the machine in another state, so each is first in turn.
            for turn in 0..2 {
                if (round + turn) % 2 == 0 {
                    plain = self.plain(input, output)?;
                } else {
                    let limit = self.keys as u64 * 32;
                    let summary = self.pipeline(input, output, temp, limit)?;
                    pipeline = summary.elapsed.as_secs_f64();
                }
                std::fs::remove_file(output)?;
            }
            ratios.push((pipeline / plain, pipeline));
            let ratio = pipeline / plain;
            println!("| round {round} | {plain:.3} | {pipeline:.3} | {ratio:.2} |");
        }
        ratios.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (ratio, pipeline) = ratios[ROUNDS / 2];
        println!("| median | | {pipeline:.3} | {ratio:.2} |");
        println!("| over the parts above, in used memory | | | {:.2} |", pipeline / parts);
        Ok(())
    }

    fn plain(&self, input: &Path, output: &Path) -> Result<f64, Error> {
        let start = Instant::now();
        let (cpu, n) = (Cpu::open(0)?, self.keys);
        let mut keys = cpu.allocate_bytes(n * 8)?;
        let target = keys.view_mut(DType::U64, n).host().ok_or("not in host memory")?;
        self.read(&File::open(input)?, target)?;
        let operator =
            Descriptor::create(&cpu, &Operator::new(), &Operator::new().tensors(DType::U64, n))?;
        let size = operator.workspace_size();
        let (mut workspace, mut unique) = (cpu.allocate_bytes(size)?, cpu.allocate_bytes(n * 8)?);
        let mut count = [0u64];
        operator.call(
            workspace.view_mut(DType::U8, size),
            Buffers::new(keys.view(DType::U64, n), unique.view_mut(DType::U64, n), &mut count),
        )?;
        let distinct = unique.view(DType::U64, count[0] as usize);
        self.write(output, distinct.host().ok_or("not in host memory")?)?;
        drop((keys, workspace, unique));
        Ok(start.elapsed().as_secs_f64())
    }

    fn random(&self) -> Vec<u64> {
        let mut state = 1u64;
        let next = || {
            state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mixed = (state ^ state >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
            (mixed ^ mixed >> 31) >> (64 - self.bits)
        };
        std::iter::repeat_with(next).take(self.keys).collect()
    }

    /// Reads the file: each thread reads one range of it, a mebibyte at a time.
    fn read(&self, file: &File, keys: &mut [u64]) -> Result<f64, Error> {
        let start = Instant::now();
        let share = keys.len().div_ceil(self.threads).max(1);
        std::thread::scope(|scope| {
            let workers: Vec<_> = keys
                .chunks_mut(share)
                .enumerate()
                .map(|(index, part)| {
                    scope.spawn(move || {
                        for (block, keys) in part.chunks_mut(1 << 17).enumerate() {
                            let at = (index * share + (block << 17)) as u64 * 8;
                            file.read_exact_at(as_bytes_mut(keys), at)?;
                        }
                        Ok::<_, std::io::Error>(())
                    })
                })
                .collect();
            workers.into_iter().try_for_each(|worker| worker.join().expect("reading"))
        })?;
        Ok(start.elapsed().as_secs_f64())
    }

    fn read_mapped(&self, file: &File, keys: &mut [u64]) -> Result<f64, Error> {
        let start = Instant::now();
        // SAFETY: the file is in a folder that this process has made, and no thread writes to it
        // while it is mapped.
        let map = unsafe { memmap2::Mmap::map(file)? };
        map.advise(memmap2::Advice::Sequential)?;
        let share = keys.len().div_ceil(self.threads).max(1);
        std::thread::scope(|scope| {
            for (part, from) in keys.chunks_mut(share).zip(map.chunks(share * 8)) {
                scope.spawn(move || as_bytes_mut(part).copy_from_slice(from));
            }
        });
        Ok(start.elapsed().as_secs_f64())
    }

    fn write(&self, path: &Path, keys: &[u64]) -> Result<f64, Error> {
        let start = Instant::now();
        let file = File::create(path)?;
        let share = keys.len().div_ceil(self.threads).max(1);
        std::thread::scope(|scope| {
            for (index, part) in keys.chunks(share).enumerate() {
                let file = &file;
                scope.spawn(move || {
                    for (block, keys) in part.chunks(1 << 17).enumerate() {
                        let at = (index * share + (block << 17)) as u64 * 8;
                        file.write_all_at(as_bytes(keys), at).expect("writing");
                    }
                });
            }
        });
        file.sync_all()?;
        Ok(start.elapsed().as_secs_f64())
    }

    fn pipeline(
        &self,
        input: &Path,
        output: &Path,
        temp: &Path,
        memory: u64,
    ) -> Result<Summary, Error> {
        let mut unique = Distinct::default();
        unique.memory = memory;
        unique.temp = temp.to_owned();
        unique.threads = NonZeroUsize::new(self.threads);
        let source = raw::open::<u64>(input)?;
        let sink = RawSink::new(Output::create(output, true, &[input])?, false);
        Ok(unique.run(&Cpu::open(0)?, &*source, sink, &())?)
    }
}

/// Times the operator alone, in buffers that have been used before, as in a server.
fn unique_in_memory(keys: &[u64]) -> Result<(Vec<u64>, f64), Error> {
    let cpu = Cpu::open(0)?;
    let operator = Descriptor::create(
        &cpu,
        &Operator::new(),
        &Operator::new().tensors(DType::U64, keys.len()),
    )?;
    let mut workspace = cpu.allocate_bytes(operator.workspace_size())?;
    let (mut distinct, mut count) = (vec![0u64; keys.len()], [0u64]);
    let mut seconds = f64::INFINITY;
    for _ in 0..2 {
        let start = Instant::now();
        operator.call(
            workspace.view_mut(DType::U8, operator.workspace_size()),
            Buffers::new(keys, &mut distinct, &mut count),
        )?;
        seconds = seconds.min(start.elapsed().as_secs_f64());
    }
    distinct.truncate(count[0] as usize);
    Ok((distinct, seconds))
}

fn drop_pages(file: &File) -> Result<(), Error> {
    file.sync_all()?;
    Ok(fadvise(file, 0, None, Advice::DontNeed)?)
}

fn print(name: &str, summary: &Summary) {
    for phase in &summary.phases {
        let seconds = phase.elapsed.as_secs_f64();
        let rate = match phase.keys {
            0 => String::new(),
            keys => format!("{:.2}", keys as f64 / 1e9 / seconds),
        };
        let (read, written) = (phase.read as f64 / 1e9, phase.written as f64 / 1e9);
        println!("| {name} | {} | {seconds:.3} | {rate} | {read:.2} | {written:.2} |", phase.phase);
    }
    println!("| {name} | total | {:.3} | | | |", summary.elapsed.as_secs_f64());
}
