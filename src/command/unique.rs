//! `spec unique`: distinct keys of files of any size.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use bytesize::ByteSize;
use clap::Args;
use serde_json::json;
use spec::Handle;
#[cfg(feature = "parquet")]
use spec::external::columns::ParquetSink;
use spec::external::raw::RawSink;
use spec::external::text::TextSink;
use spec::external::{
    self, Discard, Error as RunError, Key, Output, Phase, Sink, Source, Summary, Unique,
};

use super::formats::{Format, Formats, Type};
use super::output::{self, ByteProgress};
use super::{Error, Result};

/// The shell's code for a program that a signal ended.
const INTERRUPTED: i32 = 130;
/// Whether a signal is ending the program.
static ENDING: AtomicBool = AtomicBool::new(false);

/// Options of `spec unique`.
#[derive(Args)]
pub struct Options {
    /// Files to read; `-` is stdin
    #[arg(required = true, value_name = "FILE")]
    inputs: Vec<PathBuf>,
    /// The file to write
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
    /// in Parquet as a column `count`.
    #[arg(long)]
    counts: bool,
    #[command(flatten)]
    formats: Formats,
    /// Host memory that the program may take in all, such as 512MiB or 4GiB
    ///
    /// Without it, half of what is free.
    #[arg(long, value_name = "SIZE")]
    memory: Option<ByteSize>,
    /// Memory of the GPU that the program may take
    ///
    /// Without it, three quarters of what the GPU has.
    #[arg(long, value_name = "SIZE")]
    device_memory: Option<ByteSize>,
    /// The folder for what does not fit in memory
    ///
    /// Without it, the one that the system names (TMPDIR).
    #[arg(long, value_name = "DIR")]
    temp: Option<PathBuf>,
    /// Threads that read, merge and write; without it, one a core
    #[arg(long, value_name = "N")]
    threads: Option<std::num::NonZeroUsize>,
    /// cpu, cuda, cuda:N, wgpu, wgpu:N, or auto for the best there is
    #[arg(long, default_value = "auto")]
    device: String,
    /// Print the summary as one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(options: &Options) -> Result<ExitCode> {
    // Nothing of an unfinished run survives a signal.
    let ending = ctrlc::set_handler(|| {
        ENDING.store(true, Ordering::SeqCst);
        external::abandon();
        std::process::exit(INTERRUPTED);
    });
    ending.map_err(|error| Error::Message(format!("cannot listen to signals: {error}")))?;
    match options.formats.key(&options.inputs)? {
        Type::U64 => run_keys::<u64>(options),
        Type::I64 => run_keys::<i64>(options),
        Type::U32 => run_keys::<u32>(options),
        Type::I32 => run_keys::<i32>(options),
    }
}

fn run_keys<K: Key>(options: &Options) -> Result<ExitCode> {
    let source = options.formats.open::<K>(&options.inputs)?;
    let Some(path) = &options.output else { return run_into(options, &source, Discard) };
    let counts = options.counts;
    let output = Output::create(path, options.force, &options.inputs)?;
    match options.formats.output() {
        Format::Raw => run_into(options, &source, RawSink::new(output, counts)),
        Format::Text => run_into(options, &source, TextSink::new(output, counts)),
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
    let handle: Handle = options.device.parse()?;
    // What the process holds by now counts too.
    let held = resident();
    let mut unique = Unique::default();
    let limit = options.memory.map_or_else(half_of_free, |size| size.as_u64());
    unique.memory = limit.saturating_sub(held);
    unique.device_memory = options.device_memory.map(|size| size.as_u64());
    unique.threads = options.threads;
    if let Some(temp) = &options.temp {
        unique.temp.clone_from(temp);
    }
    let bar = ByteProgress::new();
    let progress = |phase: Phase, done: u64, total: Option<u64>| {
        bar.set(phase.name(), done, total);
        ControlFlow::Continue(())
    };
    let result = unique.run(&handle, source, sink, &progress);
    bar.finish();
    if result.is_err() && ENDING.load(Ordering::SeqCst) {
        // Its files were taken from it: no error of its own. The handler's exit
        // ends this thread with the program.
        loop {
            std::thread::park();
        }
    }
    let summary = result.map_err(|error| match error {
        RunError::Memory { least, .. } => too_little(limit, held, least),
        error => error.into(),
    })?;
    if options.json {
        output::write_json(&in_json(&summary, &handle))?;
    } else if options.count_only {
        output::write(&format!("{}\n", summary.distinct))?;
    } else {
        output::write(&in_words(&summary))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn too_little(limit: u64, held: u64, least: u64) -> Error {
    let (limit, held, least) = (ByteSize(limit), ByteSize(held), ByteSize(held + least));
    Error::Message(format!(
        "--memory {limit} is too little: the program itself takes {held}, and {least} is the least \
         for both"
    ))
}

impl From<RunError> for Error {
    fn from(error: RunError) -> Self {
        match error {
            RunError::Device(error) => Error::Operator(error),
            error => Error::Message(error.to_string()),
        }
    }
}

/// Bytes of memory that this process holds, where the system says so.
fn resident() -> u64 {
    status("VmRSS:").unwrap_or(0)
}

/// The most bytes of memory that this process ever held, where the system says so.
fn peak() -> Option<u64> {
    status("VmHWM:")
}

/// A line of what Linux says of this process, in bytes.
fn status(name: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kib << 10)
}

fn half_of_free() -> u64 {
    let mut system = sysinfo::System::new();
    system.refresh_memory();
    (system.available_memory() / 2).max(64 << 20)
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
        "output_bytes": summary.output_bytes,
        "runs": summary.runs,
        "phases": phases,
        "seconds": summary.elapsed.as_secs_f64(),
        "peak_memory": peak(),
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
    if let Some(peak) = peak() {
        text += &format!("\npeak memory {:>16}\n", ByteSize(peak).to_string());
    }
    text
}
