//! Distinct keys on several machines: [Apache Ballista] moves the data, spec's `unique` reduces each range.
//!
//! The scheduler and the workers are Ballista's own, with the operators of `spec-datafusion` linked in.
//!
//! [Apache Ballista]: https://datafusion.apache.org/ballista

mod job;
mod output;
mod submit;

use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use ballista_core::error::BallistaError;
use ballista_core::registry::BallistaFunctionRegistry;
use ballista_core::serde::BallistaPhysicalExtensionCodec;
use ballista_executor::executor_process::{ExecutorProcessConfig, start_executor_process};
use ballista_scheduler::cluster::BallistaCluster;
use ballista_scheduler::config::SchedulerConfig;
use ballista_scheduler::scheduler_process::start_server;
use clap::{Parser, ValueEnum};
use datafusion_proto::physical_plan::PhysicalExtensionCodec;
use spec_datafusion::{Codec, Shape, make, range_place};
use tracing_subscriber::EnvFilter;

/// Distinct keys of Parquet files, on several machines.
#[derive(Parser)]
#[command(version)]
enum Command {
    /// Starts the scheduler. The options are Ballista's.
    Scheduler(ballista_scheduler::config::Config),
    /// Starts a worker, on any machine that sees the inputs and the output under the same names. The
    /// options are Ballista's.
    Worker(ballista_executor::config::Config),
    /// Writes the distinct keys of Parquet files, one file a range.
    Unique(job::Options),
    /// Makes four Parquet files of keys in a folder.
    Make {
        folder: PathBuf,
        #[arg(long, default_value_t = 20_000_000)]
        keys: u64,
        #[arg(long, default_value = "random")]
        shape: MadeShape,
    },
    /// Prints the keys of an output, range after range, raw, as `spec unique` writes them; with counts, each
    /// key is followed by its count.
    Print { folder: PathBuf },
}

#[derive(Clone, Copy, ValueEnum)]
enum MadeShape {
    /// Random 64-bit keys, all different.
    Random,
    /// Random 24-bit keys.
    Few,
    /// Ascending keys, each twice.
    Sorted,
    /// Most keys are small, and one of them is frequent.
    Skewed,
}

#[tokio::main]
async fn main() -> ExitCode {
    let result = match Command::parse() {
        Command::Scheduler(options) => {
            scheduler(options).await.map_err(BallistaError::into_datafusion)
        }
        Command::Worker(options) => worker(options).await.map_err(BallistaError::into_datafusion),
        Command::Unique(options) => {
            log("off");
            job::run(options).await
        }
        Command::Make { folder, keys, shape } => {
            let shape = match shape {
                MadeShape::Random => Shape::Random(64),
                MadeShape::Few => Shape::Random(24),
                MadeShape::Sorted => Shape::Sorted,
                MadeShape::Skewed => Shape::Skewed,
            };
            let folder_made = std::fs::create_dir_all(&folder).map_err(Into::into);
            folder_made.and_then(|()| make(&folder, keys, shape)).map(|_| ())
        }
        Command::Print { folder } => {
            let mut stdout = BufWriter::new(std::io::stdout().lock());
            output::print(&folder, &mut stdout).and_then(|()| Ok(stdout.flush()?))
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", sentence(&error.to_string()));
            ExitCode::FAILURE
        }
    }
}

/// An engine's error in one line, without its backtrace.
fn sentence(error: &str) -> String {
    let error = error.split("\n\nbacktrace:").next().unwrap_or(error);
    error.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The codec of every process of a cluster.
fn codec() -> Arc<dyn PhysicalExtensionCodec> {
    Arc::new(Codec::around(Arc::new(BallistaPhysicalExtensionCodec::default())))
}

/// Logs to stderr what `RUST_LOG` says, else `level`.
fn log(level: &str) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
}

async fn scheduler(options: ballista_scheduler::config::Config) -> Result<(), BallistaError> {
    log(&options.log_level_setting);
    let address = format!("{}:{}", options.bind_host, options.bind_port);
    let address = address
        .parse()
        .map_err(|_| BallistaError::Configuration(format!("{address} is no address")))?;
    let mut config = SchedulerConfig::try_from(options)?;
    config.override_physical_codec = Some(codec());
    let cluster = BallistaCluster::new_from_config(&config).await?;
    start_server(cluster, address, Arc::new(config)).await
}

async fn worker(options: ballista_executor::config::Config) -> Result<(), BallistaError> {
    log(&options.log_level_setting);
    let mut config = ExecutorProcessConfig::try_from(options)?;
    config.override_physical_codec = Some(codec());
    let mut functions = BallistaFunctionRegistry::default();
    functions.scalar_functions.insert(range_place().name().to_owned(), range_place());
    config.override_function_registry = Some(Arc::new(functions));
    start_executor_process(Arc::new(config)).await
}
