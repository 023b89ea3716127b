//! `spec unique`: distinct keys of files of any size.

use std::io::{ErrorKind, IsTerminal};
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use bytesize::ByteSize;
use clap::Args;
use serde_json::json;
use spec::Handle;
#[cfg(feature = "parquet")]
use spec_external::columns::ParquetSink;
use spec_external::csv::CsvSink;
use spec_external::raw::RawSink;
use spec_external::text::TextSink;
use spec_external::{
    Discard, Distinct, Error as RunError, Key, Output, Phase, Sink, Source, Summary, process,
};

use super::byte_progress::{self, ByteProgress, Shown};
use super::formats::{Format, Formats, Type};
use super::{Error, Result, complain, output};

/// The exit code that a shell reports for a program that Ctrl-C ended.
const INTERRUPTED: i32 = 130;
/// Whether a signal is ending the program.
static ENDING: AtomicBool = AtomicBool::new(false);

/// Options of `spec unique`.
#[derive(Args)]
pub struct Options {
    /// Files to read; `-` is stdin; a file that is given twice counts twice
    #[arg(required = true, value_name = "FILE")]
    inputs: Vec<PathBuf>,
    /// The file to write; `-` is stdout
    ///
    /// To stdout keys are written as they come, and the summary goes to stderr.
    #[arg(short, long, value_name = "FILE", required_unless_present = "count_only")]
    output: Option<PathBuf>,
    /// Replace the output if it exists
    #[arg(long)]
    force: bool,
    /// Print how many distinct keys there are, and write nothing
    #[arg(long, conflicts_with_all = ["output", "counts", "force"])]
    count_only: bool,
    /// Write how often each key occurs beside it
    ///
    /// In raw files as a little-endian u64 after each key, in text behind a tab,
    /// in CSV and Parquet as a column `count`.
    #[arg(long)]
    counts: bool,
    #[command(flatten)]
    formats: Formats,
    /// Host memory that the program may take in all, such as 512MiB or 4GiB
    ///
    /// Without it, half of what is free: on the machine, and in the container
    /// (control group) and within the limits (ulimit) that the program runs in.
    /// More than those two leave is not taken, and stderr says so.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory: Option<ByteSize>,
    /// Memory of the GPU that the program may take
    ///
    /// Without it, three quarters of what the GPU has.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    device_memory: Option<ByteSize>,
    /// The folder for what does not fit in memory
    ///
    /// Without it, the one that the system names (TMPDIR).
    #[arg(long, value_name = "DIR")]
    temp: Option<PathBuf>,
    /// Threads that read, compute, merge and write; without it, one per core
    #[arg(long, value_name = "N", value_parser = parse_threads)]
    threads: Option<NonZeroUsize>,
    /// cpu, cuda, cuda:N, wgpu, wgpu:N, or auto for the best there is
    #[arg(long, default_value = "auto")]
    device: String,
    /// Print the summary as one JSON object
    #[arg(long)]
    json: bool,
    /// Print no summary in words and show no progress; bad lines and errors are said
    #[arg(long, short, conflicts_with = "progress")]
    quiet: bool,
    /// Say how far it is in lines on stderr where that is no terminal
    #[arg(long)]
    progress: bool,
}

fn parse_size(text: &str) -> Result<ByteSize, String> {
    let expected = "expected a number of bytes with a unit, such as 512MiB or 4GB";
    text.parse().map_err(|_| expected.to_owned())
}

fn parse_threads(text: &str) -> Result<NonZeroUsize, String> {
    // A larger number is a typing error.
    const MAX_THREADS: usize = 4096;
    let threads = text.parse().ok().filter(|threads| *threads <= MAX_THREADS);
    threads.and_then(NonZeroUsize::new).ok_or(format!("expected a number from 1 to {MAX_THREADS}"))
}

impl Options {
    /// The path of the output, if the output is a file.
    fn file(&self) -> Option<&Path> {
        self.output.as_deref().filter(|path| !is_stdout(path))
    }

    /// Whether keys go to stdout.
    fn to_stdout(&self) -> bool {
        self.output.as_deref().is_some_and(is_stdout)
    }
}

/// Whether a path means stdout.
fn is_stdout(path: &Path) -> bool {
    ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"].iter().any(|name| path == Path::new(name))
}

/// Runs the command.
pub fn run(options: &Options) -> Result<ExitCode> {
    // A signal ends the run; `process::end` then removes the files of the unfinished run.
    let ending = ctrlc::set_handler(|| {
        ENDING.store(true, Ordering::SeqCst);
        byte_progress::clear();
        process::end(INTERRUPTED);
    });
    ending.map_err(|error| {
        let why = match error {
            ctrlc::Error::System(error) => error.to_string(),
            other => other.to_string(),
        };
        Error::Message(format!("cannot start to listen to signals: {why}"))
    })?;
    process::report_large_files();
    process::open_many_files();
    #[cfg(feature = "parquet")]
    process::hide_caught_panics();
    if let Some(temp) = &options.temp {
        check_temp(temp)?;
    }
    start_threads(options.threads)?;
    let files = options.formats.files(&options.inputs)?;
    match options.formats.key(&files)? {
        Type::U64 => run_keys::<u64>(options, &files),
        Type::I64 => run_keys::<i64>(options, &files),
        Type::U32 => run_keys::<u32>(options, &files),
        Type::I32 => run_keys::<i32>(options, &files),
    }
}

/// Refuses a path of `--temp` that is no folder, at the start rather than after hours of work.
fn check_temp(folder: &Path) -> Result<()> {
    let bad = |why: String| Error::Message(format!("--temp {}: {why}", folder.display()));
    match std::fs::metadata(folder) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => Err(bad("is no folder".to_owned())),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Err(bad("there is no such folder".to_owned()))
        }
        Err(error) => Err(bad(error.to_string())),
    }
}

/// Starts the pool of threads on which the operator runs on the CPU.
fn start_threads(threads: Option<NonZeroUsize>) -> Result<()> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads.map_or(0, usize::from));
    pool.build_global().map_err(|error| {
        Error::Message(format!("cannot start threads: {error}; fewer (--threads) may do"))
    })
}

fn run_keys<K: Key>(options: &Options, files: &[PathBuf]) -> Result<ExitCode> {
    let Some(path) = &options.output else {
        return run_into(options, &options.formats.open::<K>(files)?, Discard);
    };
    let format = options.formats.output(path)?;
    let source = options.formats.open::<K>(files)?;
    let counts = options.counts;
    let output = match options.file() {
        Some(path) => Output::create(path, options.force, files)?,
        None if matches!(format, Format::Raw | Format::Parquet)
            && std::io::stdout().is_terminal() =>
        {
            let words = "stdout is a terminal, which shows text; name a file (-o), or make it text \
                         (--output-format text)";
            return Err(Error::Message(words.to_owned()));
        }
        None => Output::stdout(files)?,
    };
    match format {
        Format::Raw => run_into(options, &source, RawSink::new(output, counts)),
        Format::Text => run_into(options, &source, TextSink::new(output, counts)),
        Format::Csv => {
            let (name, delimiter) = (options.formats.name(), options.formats.delimiter());
            run_into(options, &source, CsvSink::new(output, name, delimiter, counts)?)
        }
        #[cfg(feature = "parquet")]
        Format::Parquet => {
            let sink = ParquetSink::new::<K>(output, options.formats.name(), counts)?;
            run_into(options, &source, sink)
        }
        #[cfg(not(feature = "parquet"))]
        Format::Parquet => Err(super::formats::left_out()),
    }
}

fn run_into<K: Key, T: Sink<K>>(
    options: &Options,
    source: &dyn Source<K>,
    sink: T,
) -> Result<ExitCode> {
    let handle = crate::open(&options.device)?;
    // The memory that the process already holds counts as part of the limit.
    let held = process::resident().unwrap_or(0);
    let mut unique = Distinct::default();
    let limit = match options.memory {
        Some(size) => within_limits(size.as_u64(), held),
        None => half_of_free(),
    };
    unique.memory = limit.saturating_sub(held);
    unique.device_memory = options.device_memory.map(|size| size.as_u64());
    unique.threads = options.threads;
    if let Some(temp) = &options.temp {
        unique.temp.clone_from(temp);
    }
    let shown = match (options.quiet, options.progress) {
        (true, _) => Shown::Nowhere,
        (false, true) => Shown::Lines,
        (false, false) => Shown::Bar,
    };
    let bar = ByteProgress::new(shown);
    let progress = |phase: Phase, done: u64, total: Option<u64>| {
        bar.set(phase.name(), done, total);
        ControlFlow::Continue(())
    };
    let result = unique.run(&handle, source, sink, &progress);
    bar.finish();
    if result.is_err() && ENDING.load(Ordering::SeqCst) {
        // The run failed because the signal handler removed its files, so the error is not
        // reported. This thread waits until the handler ends the program.
        loop {
            std::thread::park();
        }
    }
    let summary = result.map_err(|error| match error {
        RunError::Memory { least, .. } => too_little("--memory", limit, held, least),
        RunError::DeviceMemory { given, least } => too_little("--device-memory", given, 0, least),
        RunError::Io { error, .. }
            if options.to_stdout() && error.kind() == ErrorKind::BrokenPipe =>
        {
            Error::BrokenPipe
        }
        error => error.into(),
    })?;
    report(options, &summary, &handle)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the summary of a run: to stdout, or to stderr if the keys go to stdout. With
/// `--quiet`, only stderr gets a note of bad lines.
fn report(options: &Options, summary: &Summary, handle: &Handle) -> Result<()> {
    if options.count_only && !options.json {
        output::write(&format!("{}\n", summary.distinct))?;
    } else if !options.quiet || options.json {
        let text = if options.json {
            format!("{:#}\n", in_json(summary, handle))
        } else {
            in_words(summary)
        };
        if options.to_stdout() {
            complain(text.trim_end());
        } else {
            output::write(&text)?;
        }
    }
    // If no summary is printed, stderr still reports what was left out. Nulls and blank lines are
    // no fault of the input, so with `--quiet` only bad lines are reported.
    if (options.count_only || options.quiet) && !options.json {
        let good = if options.quiet { String::new() } else { nulls(summary) };
        let left_out = good + &bad_lines(summary);
        if !left_out.is_empty() {
            complain(left_out.trim_end());
        }
    }
    Ok(())
}

fn too_little(option: &str, limit: u64, held: u64, least: u64) -> Error {
    let (limit, all) = (ByteSize(limit), ByteSize(held + least));
    let takes = match held {
        0 => String::new(),
        held => format!("the program itself takes {}, and ", ByteSize(held)),
    };
    let both = if held > 0 { " for both" } else { "" };
    Error::Message(format!("{option} {limit} is too little: {takes}{all} is the least{both}"))
}

/// The smaller of two sizes: the memory that was asked for, and the memory that this process
/// holds or may still take within its limits (container, ulimit). The system would kill a
/// process that takes more.
fn within_limits(asked: u64, held: u64) -> u64 {
    let Some(left) = process::memory_left() else { return asked };
    // A sixteenth is left to the system, for page tables and for written files that are not on
    // disk yet.
    let max = held.saturating_add(left - left / 16);
    if asked <= max {
        return asked;
    }
    complain(&format!(
        "note: the limits of this process (its control group, ulimit) leave {} of --memory {}",
        ByteSize(max),
        ByteSize(asked)
    ));
    max
}

/// Half of the memory that this process may still take.
fn half_of_free() -> u64 {
    let mut system = sysinfo::System::new();
    system.refresh_memory();
    let free = system.available_memory();
    let left = process::memory_left().map_or(free, |left| left.min(free));
    // At least 64 MiB, the least that works, if so much is left.
    (left / 2).max(left.min(64 << 20))
}

fn in_json(summary: &Summary, handle: &Handle) -> serde_json::Value {
    let phases: Vec<_> = summary
        .phases
        .iter()
        .map(|phase| {
            json!({
                "phase": phase.phase.name(),
                "seconds": phase.elapsed.as_secs_f64(),
                "key_bytes": phase.keys,
                "bytes_read": phase.read,
                "bytes_written": phase.written,
            })
        })
        .collect();
    json!({
        "device": handle.device().to_string(),
        "keys": summary.keys,
        "distinct": summary.distinct,
        "duplicates": summary.duplicates(),
        "skipped_lines": summary.skipped.lines,
        "first_skipped": summary.skipped.first,
        "nulls": summary.skipped.nulls,
        "blank_lines": summary.skipped.blanks,
        "output_bytes": summary.output_bytes,
        "runs": summary.runs,
        "phases": phases,
        "seconds": summary.elapsed.as_secs_f64(),
        "peak_memory": process::peak(),
    })
}

fn in_words(summary: &Summary) -> String {
    let Summary { keys, distinct, .. } = *summary;
    let mut text = format!(
        "keys        {keys:>16}\ndistinct    {distinct:>16}\nduplicates  {:>16}\n",
        summary.duplicates()
    );
    if summary.runs > 0 {
        text += &format!("runs        {:>16}\n", summary.runs);
    }
    text += &(nulls(summary) + &bad_lines(summary));
    text += &format!(
        "\n{:<10} {:>10} {:>10} {:>12} {:>12}\n",
        "phase", "seconds", "GB/s", "GB read", "GB written"
    );
    let gigabytes = |bytes: u64| bytes as f64 / 1e9;
    for phase in &summary.phases {
        let seconds = phase.elapsed.as_secs_f64();
        let rate = match phase.keys {
            0 => String::new(),
            bytes => format!("{:.2}", gigabytes(bytes) / seconds),
        };
        text += &format!(
            "{:<10} {seconds:>10.3} {rate:>10} {:>12.3} {:>12.3}\n",
            phase.phase,
            gigabytes(phase.read),
            gigabytes(phase.written)
        );
    }
    text += &format!("{:<10} {:>10.3}\n", "total", summary.elapsed.as_secs_f64());
    if let Some(peak) = process::peak() {
        text += &format!("\npeak memory {:>13} MB\n", peak / 1_000_000);
    }
    text
}

/// Lines that say how many nulls and blank lines were left out; empty if there were none.
fn nulls(summary: &Summary) -> String {
    let line = |name: &str, count: u64| match count {
        0 => String::new(),
        count => format!("{name:<12}{count:>16}\n"),
    };
    line("nulls", summary.skipped.nulls) + &line("blank lines", summary.skipped.blanks)
}

/// A line that says how many lines were skipped because they hold no key, and which line was the
/// first; empty if no line was skipped.
fn bad_lines(summary: &Summary) -> String {
    let skipped = &summary.skipped;
    let first = skipped.first.as_deref().unwrap_or_default();
    match skipped.lines {
        0 => String::new(),
        lines => format!("bad lines   {lines:>16}, the first: {first}\n"),
    }
}
