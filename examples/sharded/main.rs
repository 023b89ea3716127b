//! Sampling where each rank has some columns of the logits, as in tensor parallelism:
//!
//! ```text
//! cargo run --release --example sharded --features nccl -- [--world 2] [--vocab 128256]
//!     [--rows 1,16,32,64,256,1024] [--check 100000] [--steps 500]
//! cargo run --release --example sharded -- --device cpu --world 3 --vocab 9999
//!     --check 3000 --steps 5
//! ```
//!
//! Each rank is a thread with a GPU of its own, and NCCL connects them. With `--device`, the ranks
//! share that device and exchange in host memory, which needs neither NCCL nor a GPU.
//!
//! Two ways give each rank the token of every row:
//!
//! ```text
//! gather:   all-gather ─> copy ─> sample_logits
//!           the logits    to      of the whole
//!           of all ranks  rows    rows
//!
//! winners:  sample_logits ─> all-reduce MAX ─> sample_logits ─> all-reduce MIN
//!           `largest`        4 bytes per row   with `maxima`:   8 bytes per row
//!           of the rank                        `winners`
//! ```
//!
//! By NCCL, each way is one CUDA graph per rank. The program prints the microseconds of a step, the
//! mean of `--steps`. It then compares the tokens of at least `--check` rows, half of them bf16 and
//! half f32, by each way and on each rank, with the tokens that the rank alone draws from the whole
//! rows. It exits with 1 if a token differs, and with 2 if it cannot run.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use rayon::prelude::*;
use spec::ops::SampleLogits;
use spec::ops::sample_logits::Buffers;
use spec::{Buffer, DType, Element, Handle, Ready, Result, TensorDesc, bf16};

#[cfg(feature = "nccl")]
mod nccl;
mod threads;

/// The most steps that a rank enqueues before it waits: a full queue of the driver blocks a thread.
const QUEUED: usize = 100;

/// What ranks do together. Work is enqueued on the queue of the rank's handle, as operators are.
trait Communicator {
    /// A captured step.
    type Graph;

    /// Replaces each number by the largest that a rank has in its place.
    fn all_reduce_max(&self, numbers: &mut Buffer<f32>) -> Result<()>;

    /// Replaces each number by the smallest that a rank has in its place.
    fn all_reduce_min(&self, numbers: &mut Buffer<i64>) -> Result<()>;

    /// Writes the `part` of each rank to `parts`, in the order of the ranks.
    fn all_gather<T: Element>(&self, part: &Buffer<T>, parts: &mut Buffer<T>) -> Result<()>;

    /// Copies `[ranks, rows, columns]` to `[rows, ranks * columns]`.
    fn copy_to_rows<T: Element>(
        &self,
        parts: &Buffer<T>,
        rows: usize,
        whole: &mut Buffer<T>,
    ) -> Result<()>;

    /// Waits for the work of this rank, and then until every rank waits.
    fn wait(&self) -> Result<()>;

    /// Captures the work that `step` enqueues, where the device has graphs.
    fn capture(&self, step: &mut dyn FnMut() -> Result<()>) -> Result<Self::Graph>;

    /// Enqueues the captured work; without graphs, calls `step`.
    fn replay(&self, graph: &Self::Graph, step: &mut dyn FnMut() -> Result<()>) -> Result<()>;
}

#[derive(Clone, Copy)]
enum Way {
    Gather,
    Winners,
}

/// A rank's columns of some rows, and the operators and memory of both ways.
struct Shard<'a, C, T: Element> {
    ranks: &'a C,
    rows: usize,
    vocab: usize,
    /// The tokens of the rank's columns.
    own: Range<usize>,
    logits: Buffer<T>,
    parts: Buffer<T>,
    whole: Buffer<T>,
    positions: Buffer<i64>,
    temperature: Buffer<f32>,
    seeds: Buffer<u64>,
    /// The largest logit of each row: among the rank's columns, then among all columns.
    maxima: Buffer<f32>,
    /// The time of each row's winner and its token: of the rank, then of all ranks.
    winners: Buffer<i64>,
    tokens: Buffer<i32>,
    no_tokens: Buffer<i32>,
    find_largest: Ready<SampleLogits>,
    draw_own: Ready<SampleLogits>,
    draw_whole: Ready<SampleLogits>,
    round: fn(f32) -> T,
}

impl<'a, C: Communicator, T: Element> Shard<'a, C, T> {
    fn new(rank: &'a Rank<'_, C>, rows: usize, round: fn(f32) -> T) -> Result<Self> {
        let (handle, vocab) = (&rank.handle, rank.options.vocab);
        let columns = vocab / rank.options.world;
        let own = rank.number * columns..(rank.number + 1) * columns;
        let of_rows = |dtype| TensorDesc::new(dtype, [rows]);
        let tensors = |columns| {
            let mut tensors = SampleLogits::new().tensors(rows, columns);
            tensors.logits = TensorDesc::new(T::DTYPE, [rows, columns]);
            tensors
        };
        let mut largest = tensors(columns).largest(of_rows(DType::F32));
        largest.tokens = TensorDesc::new(DType::I32, [rows, 0]);
        let winners = tensors(columns).maxima(of_rows(DType::F32)).winners(of_rows(DType::I64));
        let sample = SampleLogits::new().first_token(own.start as i32);
        // Every eighth row takes its likeliest token.
        let temperature = (0..rows).map(|row| if row % 8 == 7 { 0.0 } else { 0.8 });
        Ok(Shard {
            ranks: &rank.ranks,
            rows,
            vocab,
            own,
            logits: handle.allocate(rows * columns)?,
            parts: handle.allocate(rows * vocab)?,
            whole: handle.allocate(rows * vocab)?,
            positions: handle.allocate(rows)?,
            temperature: handle.upload(&temperature.collect::<Vec<_>>())?,
            seeds: handle.allocate(rows)?,
            maxima: handle.allocate(rows)?,
            winners: handle.allocate(rows)?,
            tokens: handle.allocate(rows)?,
            no_tokens: handle.allocate(0)?,
            find_largest: Ready::new(handle, &sample, &largest)?,
            draw_own: Ready::new(handle, &sample, &winners)?,
            draw_whole: Ready::new(handle, &SampleLogits::new(), &tensors(vocab))?,
            round,
        })
    }

    /// Writes the rows of a batch: other rows for each number.
    fn fill(&mut self, batch: usize) -> Result<()> {
        let texts = (self.first_text(batch)..).take(self.rows);
        self.positions.write(&texts.clone().map(|text| 3 * text as i64).collect::<Vec<_>>())?;
        self.seeds.write(&texts.map(|text| hash(text as u64)).collect::<Vec<_>>())?;
        self.logits.write(&self.logits_of(batch, self.own.clone()))
    }

    /// The number of a batch's first row, among the rows of all batches and sizes.
    fn first_text(&self, batch: usize) -> usize {
        (self.rows << 20) + batch * self.rows
    }

    /// Some columns of a batch's rows.
    fn logits_of(&self, batch: usize, tokens: Range<usize>) -> Vec<T> {
        let (first, round) = (self.first_text(batch), self.round);
        let mut logits = vec![T::default(); self.rows * tokens.len()];
        logits.par_chunks_mut(tokens.len()).enumerate().for_each(|(row, logits)| {
            let text = first + row;
            for (logit, token) in logits.iter_mut().zip(tokens.clone()) {
                *logit = round(normal((text << 24 | token) as u64));
            }
        });
        logits
    }

    /// Enqueues a step, after which each rank has the tokens of all rows.
    fn enqueue(&mut self, way: Way) -> Result<()> {
        match way {
            // The parts of a single row are the row.
            Way::Gather if self.rows == 1 => {
                self.ranks.all_gather(&self.logits, &mut self.whole)?;
            }
            Way::Gather => {
                self.ranks.all_gather(&self.logits, &mut self.parts)?;
                self.ranks.copy_to_rows(&self.parts, self.rows, &mut self.whole)?;
            }
            Way::Winners => return self.find_winners(),
        }
        self.draw_whole()
    }

    fn find_winners(&mut self) -> Result<()> {
        let Shard { ranks, logits, positions, temperature, seeds, maxima, winners, .. } = self;
        let of = |tokens| Buffers::new(&*logits, &*positions, &*temperature, &*seeds, tokens);
        self.find_largest.call(of(&mut self.no_tokens).largest(&mut *maxima))?;
        ranks.all_reduce_max(maxima)?;
        self.draw_own.call(of(&mut self.tokens).maxima(&*maxima).winners(&mut *winners))?;
        ranks.all_reduce_min(winners)
    }

    fn draw_whole(&mut self) -> Result<()> {
        let Shard { whole, positions, temperature, seeds, tokens, .. } = self;
        self.draw_whole.call(Buffers::new(&*whole, &*positions, &*temperature, &*seeds, tokens))
    }

    /// The tokens that a step has left.
    fn tokens(&self, way: Way) -> Result<Vec<i32>> {
        match way {
            Way::Gather => self.tokens.to_vec(),
            // Tokens are the low words.
            Way::Winners => Ok(self.winners.to_vec()?.iter().map(|&one| one as i32).collect()),
        }
    }

    /// The tokens of a batch that this rank draws alone.
    fn alone(&mut self, batch: usize) -> Result<Vec<i32>> {
        self.whole.write(&self.logits_of(batch, 0..self.vocab))?;
        self.draw_whole()?;
        self.tokens.to_vec()
    }
}

/// A hash of 64 bits.
fn hash(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Nearly normal numbers with a standard deviation of 2.5: sums of four fractions.
fn normal(number: u64) -> f32 {
    let bits = hash(number);
    let sum: u64 = (0..4).map(|part| bits >> (16 * part) & 0xFFFF).sum();
    (sum as f32 / 65536.0 - 2.0) * 4.33
}

struct Rank<'a, C> {
    number: usize,
    handle: Handle,
    ranks: C,
    options: &'a Options,
}

impl<C: Communicator> Rank<'_, C> {
    /// Times and compares both ways. Returns how many tokens differ from those of the rank alone.
    fn measure<T: Element>(&self, rows: usize, round: fn(f32) -> T) -> Result<usize> {
        let Rank { ranks, options, .. } = self;
        let mut shard = Shard::new(self, rows, round)?;
        shard.fill(0)?;
        // A GPU that allocates or frees memory may wait for another GPU, whose work may wait for
        // this rank. So ranks allocate and free while none has work.
        ranks.wait()?;
        let (mut times, mut graphs) = ([0.0; 2], Vec::new());
        for way in [Way::Gather, Way::Winners] {
            let graph = ranks.capture(&mut || shard.enqueue(way))?;
            ranks.replay(&graph, &mut || shard.enqueue(way))?;
            let mut time = Duration::ZERO;
            for done in (0..options.steps).step_by(QUEUED) {
                ranks.wait()?;
                let start = Instant::now();
                for _ in done..options.steps.min(done + QUEUED) {
                    ranks.replay(&graph, &mut || shard.enqueue(way))?;
                }
                self.handle.synchronize()?;
                time += start.elapsed();
            }
            times[way as usize] = time.as_secs_f64() * 1e6 / options.steps as f64;
            graphs.push((way, graph));
        }
        let (batches, mut wrong) = (options.batches(), 0);
        for batch in 0..batches {
            shard.fill(batch)?;
            let mut made = Vec::new();
            for (way, graph) in &graphs {
                ranks.replay(graph, &mut || shard.enqueue(*way))?;
                made.extend(shard.tokens(*way)?);
            }
            // `made` has the tokens of one way, then of the other.
            let alone = shard.alone(batch)?;
            wrong += made.iter().zip(alone.iter().cycle()).filter(|(a, b)| a != b).count();
        }
        if self.number == 0 {
            let [gather, winners] = times.map(|time| format!("{time:.1}"));
            let (name, checked) = (T::DTYPE, batches * rows);
            println!("{rows:5}  {name:4}  {gather:>9}  {winners:>10}  {checked:12}");
        }
        // Memory and graphs are freed after this.
        ranks.wait()?;
        Ok(wrong)
    }
}

struct Options {
    world: usize,
    rows: Vec<usize>,
    vocab: usize,
    check: usize,
    steps: usize,
    /// The device that ranks share; none: a GPU for each rank, and NCCL.
    device: Option<String>,
}

impl Options {
    fn read(mut words: impl Iterator<Item = String>) -> Result<Self, Box<dyn std::error::Error>> {
        let (rows, check) = (vec![1, 16, 32, 64, 256, 1024], 100_000);
        let mut options =
            Options { world: 2, rows, vocab: 128_256, check, steps: 500, device: None };
        while let Some(word) = words.next() {
            let value = words.next().ok_or_else(|| format!("{word} needs a value"))?;
            match &*word {
                "--world" => options.world = value.parse()?,
                "--rows" => {
                    let rows = value.split(',').map(str::parse);
                    options.rows = rows.collect::<Result<_, _>>()?;
                }
                "--vocab" => options.vocab = value.parse()?,
                "--check" => options.check = value.parse()?,
                "--steps" => options.steps = value.parse()?,
                "--device" => options.device = Some(value),
                _ => return Err(format!("there is no option {word}").into()),
            }
        }
        let Options { world, rows, vocab, steps, .. } = &options;
        if *vocab == 0 || vocab.checked_rem(*world) != Some(0) {
            return Err("--vocab must be a multiple of --world, as ranks have equal parts".into());
        }
        if rows.contains(&0) || *steps == 0 {
            return Err("--rows and --steps are at least 1".into());
        }
        Ok(options)
    }

    /// How many batches of each number of rows, in each type, are compared.
    fn batches(&self) -> usize {
        self.check.div_ceil(2 * self.rows.iter().sum::<usize>()).max(1)
    }
}

/// Runs each rank in a thread. Returns how many tokens are wrong on all ranks together.
fn run<C: Communicator>(
    options: &Options,
    join: impl Fn(usize) -> Result<(Handle, C)> + Sync,
) -> usize {
    let work = |number| -> Result<usize> {
        let (handle, ranks) = join(number)?;
        let (rank, mut wrong) = (Rank { number, handle, ranks, options }, 0);
        for &rows in &options.rows {
            wrong +=
                rank.measure(rows, bf16::from_f32)? + rank.measure::<f32>(rows, |logit| logit)?;
        }
        Ok(wrong)
    };
    let rank = |number| match catch_unwind(AssertUnwindSafe(|| work(number))) {
        Ok(Ok(wrong)) => wrong,
        failed => {
            if let Ok(Err(error)) = failed {
                eprintln!("rank {number}: {error}");
            }
            // The other ranks wait for this one.
            std::process::exit(2)
        }
    };
    println!(" rows  type  gather us  winners us  rows checked");
    thread::scope(|scope| {
        let rank = &rank;
        let spawn = |number| scope.spawn(move || rank(number));
        let threads: Vec<_> = (0..options.world).map(spawn).collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).sum()
    })
}

fn main() -> ExitCode {
    let options = Options::read(std::env::args().skip(1));
    let wrong = options.and_then(|options| match &options.device {
        Some(device) => Ok(threads::run(&options, device)?),
        #[cfg(feature = "nccl")]
        None => Ok(nccl::run(&options)?),
        #[cfg(not(feature = "nccl"))]
        None => Err("built without NCCL: add `--features nccl`, or run with `--device cpu`".into()),
    });
    match wrong {
        Ok(0) => {
            println!("all tokens are those of one device");
            ExitCode::SUCCESS
        }
        Ok(wrong) => {
            println!("{wrong} tokens are not those of one device");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shards begin within a group of 64 tokens, whose noise ranks must share.
    #[test]
    fn ranks_draw_the_tokens_of_whole_rows() {
        for (world, vocab) in [(1, 130), (2, 600), (3, 999), (5, 20)] {
            let rows = vec![1, 9, 32];
            let options = Options { world, rows, vocab, check: 500, steps: 1, device: None };
            assert_eq!(threads::run(&options, "cpu"), Ok(0), "{world} ranks, {vocab} tokens");
        }
    }
}
