//! Computes the distinct keys of Parquet files in three ways, which must agree: by DataFusion
//! with spec's operator in its plan, by DataFusion alone, and by spec alone.

use std::fs::File;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use clap::Parser;
use cpu_time::ProcessTime;
use datafusion::arrow::array::{AsArray, RecordBatch};
use datafusion::arrow::compute::concat_batches;
use datafusion::arrow::datatypes::{DataType, UInt64Type};
use datafusion::common::{Result, exec_datafusion_err, exec_err};
use datafusion::physical_plan::{
    ExecutionPlan, collect_partitioned, displayable, execute_stream_partitioned,
};
use datafusion::prelude::{DataFrame, ParquetReadOptions, SessionConfig, SessionContext, col};
use futures::TryStreamExt;
use spec::ops::Unique;
use spec::ops::unique::Buffers;
use spec::{DType, Handle};
use spec_datafusion::{Exchange, Shape, UNFINISHED, WriteExec, distinct, make, split_points};
use url::Url;

/// Distinct 64-bit keys of Parquet files, by a DataFusion plan with spec's
/// `unique` in it.
#[derive(Parser)]
struct Options {
    /// Parquet files; without any, files of random keys are made first.
    input: Vec<PathBuf>,
    /// The column of keys: u64, i64, u32 or i32, without nulls.
    #[arg(long, default_value = "key")]
    column: String,
    /// Where the distinct keys go, one Parquet file a range; without it they
    /// are dropped after they were compared.
    #[arg(long)]
    output: Option<PathBuf>,
    /// Ranges, and threads that read.
    #[arg(long, default_value_t = cores())]
    partitions: NonZeroUsize,
    /// The device of the operator, if it was built with others than `cpu`.
    #[arg(long, default_value = "cpu")]
    device: String,
    /// Shuffle the same ranges by hash partitioning, as an engine without range partitioning does.
    #[arg(long)]
    hash: bool,
    /// How many random keys to make, over four files.
    #[arg(long, default_value_t = 20_000_000)]
    keys: u64,
    /// How many bits of them differ: few bits make many duplicates.
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u32).range(1..=64))]
    bits: u32,
    /// Runs of each way; the fastest counts.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
}

fn cores() -> NonZeroUsize {
    available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

fn main() -> ExitCode {
    let options = Options::parse();
    let threads = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let result = threads.map_err(Into::into).and_then(|threads| threads.block_on(run(options)));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(mut options: Options) -> Result<()> {
    let made = tempfile::tempdir()?;
    if options.input.is_empty() {
        options.input = make(made.path(), options.keys, Shape::Random(options.bits))?;
    }
    let partitions = options.partitions.get();
    let config = SessionConfig::new().with_target_partitions(partitions);
    let context = SessionContext::new_with_config(config);
    let table = table(&context, &options).await?;

    let points = split_points(&options.input, &options.column, partitions)?;
    let exchange =
        if options.hash { Exchange::RangeByHash(points) } else { Exchange::Range(points) };
    // A plan can be executed only once, because its scan hands out each file once.
    let plan = || async {
        let scan = table.clone().create_physical_plan().await?;
        distinct(scan, &exchange, false, &options.device)
    };
    let ((ours, executed), took) = fastest(options.runs, || async {
        let plan = plan().await?;
        Ok((batches(&context, Arc::clone(&plan)).await?, plan))
    })
    .await?;
    let schema = executed.schema();
    let ours = concat_batches(&schema, &ours)?;
    println!("{}", displayable(executed.as_ref()).indent(false));
    let keys = keys_read(&executed);
    println!("{keys} keys, {} distinct, {partitions} partitions", ours.num_rows());
    println!("{:<40} {:>8} {:>10} {:>18}", "", "seconds", "Mkeys/s", "core s/10^9 keys");
    // Times the steps below the operator. Each time includes all steps before.
    let (_, reading) = fastest(options.runs, || async {
        drain(&context, table.clone().create_physical_plan().await?).await
    })
    .await?;
    row("reading", keys, reading);
    let (_, shuffled) = fastest(options.runs, || async {
        let plan = plan().await?;
        drain(&context, Arc::clone(plan.children()[0])).await
    })
    .await?;
    row("reading and shuffling", keys, shuffled);
    row("DataFusion with spec's unique", keys, took);

    let column = format!("\"{}\"", options.column.replace('"', "\"\""));
    let sql = format!("SELECT DISTINCT {column} FROM keys ORDER BY {column}");
    let (theirs, took) = fastest(options.runs, || {
        let (context, sql) = (&context, &sql);
        async move { context.sql(sql).await?.collect().await }
    })
    .await?;
    row("DataFusion alone, DISTINCT .. ORDER BY", keys, took);
    let theirs = concat_batches(&schema, &theirs)?;
    if ours.column(0) != theirs.column(0) {
        return exec_err!("DataFusion's own DISTINCT differs");
    }

    if *schema.field(0).data_type() == DataType::UInt64 {
        let scan = table.clone().create_physical_plan().await?;
        let all = concat_batches(&schema, &batches(&context, scan).await?)?;
        let (alone, took) = single(&options, all.column(0).as_primitive::<UInt64Type>().values())?;
        row("spec alone, keys in memory", keys, took);
        if ours.column(0).as_primitive::<UInt64Type>().values()[..] != alone[..] {
            return exec_err!("spec on a single machine differs");
        }
    }
    println!("all results are equal");

    if let Some(output) = &options.output {
        std::fs::create_dir_all(output)?;
        let mark = output.join(UNFINISHED);
        File::create(&mark)?;
        let folder = Url::from_directory_path(output.canonicalize()?)
            .map_err(|()| exec_datafusion_err!("--output is no folder"))?;
        let start = Cost::start();
        drain(&context, Arc::new(WriteExec::try_new(plan().await?, folder)?)).await?;
        std::fs::remove_file(mark)?;
        row("the plan again, written to Parquet", keys, Cost::since(start));
    }
    Ok(())
}

/// The column of keys; also registers the files as the table `keys`.
async fn table(context: &SessionContext, options: &Options) -> Result<DataFrame> {
    let paths = options.input.iter().map(|path| {
        let path = path.to_str();
        path.ok_or_else(|| exec_datafusion_err!("the name of an input is not UTF-8"))
    });
    let paths = paths.collect::<Result<Vec<_>>>()?;
    let frame = context.read_parquet(paths, ParquetReadOptions::default()).await?;
    context.register_table("keys", frame.clone().into_view())?;
    frame.select([col(format!("\"{}\"", options.column))])
}

async fn batches(
    context: &SessionContext,
    plan: Arc<dyn ExecutionPlan>,
) -> Result<Vec<RecordBatch>> {
    // Collects partition after partition, so that ranges stay in order.
    let parts = collect_partitioned(plan, context.task_ctx()).await?;
    Ok(parts.into_iter().flatten().collect())
}

/// Executes a plan and drops its output, to measure the time.
async fn drain(context: &SessionContext, plan: Arc<dyn ExecutionPlan>) -> Result<()> {
    let streams = execute_stream_partitioned(plan, context.task_ctx())?;
    let mut partitions = tokio::task::JoinSet::new();
    for stream in streams {
        partitions.spawn(stream.try_for_each(async |_| Ok(())));
    }
    partitions.join_all().await.into_iter().collect()
}

/// The cost of a run: wall time, and CPU time of all cores together. The CPU time
/// hardly depends on the number of cores and on other programs.
#[derive(Clone, Copy, Default)]
struct Cost {
    wall: Duration,
    cores: Duration,
}

impl Cost {
    fn start() -> (Instant, ProcessTime) {
        (Instant::now(), ProcessTime::now())
    }

    fn since((wall, cores): (Instant, ProcessTime)) -> Self {
        Cost { wall: wall.elapsed(), cores: cores.elapsed() }
    }
}

async fn fastest<T, F: Future<Output = Result<T>>>(
    runs: u32,
    mut call: impl FnMut() -> F,
) -> Result<(T, Cost)> {
    let mut best: Option<(T, Cost)> = None;
    for _ in 0..runs {
        let start = Cost::start();
        let result = call().await?;
        let cost = Cost::since(start);
        if best.as_ref().is_none_or(|(_, least)| cost.wall < least.wall) {
            best = Some((result, cost));
        }
    }
    best.ok_or_else(|| exec_datafusion_err!("--runs is 0"))
}

/// The number of keys that the operator read, over all partitions.
fn keys_read(plan: &Arc<dyn ExecutionPlan>) -> u64 {
    let metrics = plan.metrics().unwrap_or_default();
    metrics.sum_by_name("keys_read").map_or(0, |value| value.as_usize() as u64)
}

/// One call of `unique` over all keys, without DataFusion.
fn single(options: &Options, keys: &[u64]) -> Result<(Vec<u64>, Cost)> {
    let call = || -> spec::Result<(Vec<u64>, Cost)> {
        let handle: Handle = options.device.parse()?;
        let operator =
            handle.create(&Unique::new(), &Unique::new().tensors(DType::U64, keys.len()))?;
        let mut workspace = operator.workspace(&handle)?;
        let keys = handle.upload(keys)?;
        let mut unique = handle.allocate::<u64>(keys.len())?;
        let mut count = handle.allocate::<u64>(1)?;
        let mut best: Option<Cost> = None;
        for _ in 0..options.runs {
            let start = Cost::start();
            let buffers = Buffers::new(&keys, &mut unique, &mut count);
            operator.call(&mut workspace, buffers)?;
            handle.synchronize()?;
            let cost = Cost::since(start);
            best = Some(best.filter(|least| least.wall < cost.wall).unwrap_or(cost));
        }
        let mut unique = unique.to_vec()?;
        unique.truncate(count.to_vec()?[0] as usize);
        Ok((unique, best.unwrap_or_default()))
    };
    call().map_err(|error| exec_datafusion_err!("{error}"))
}

fn row(what: &str, keys: u64, cost: Cost) {
    let (wall, cores) = (cost.wall.as_secs_f64(), cost.cores.as_secs_f64());
    let (rate, work) = (keys as f64 / wall / 1e6, cores * 1e9 / keys.max(1) as f64);
    println!("{what:<40} {wall:>8.3} {rate:>10.1} {work:>18.1}");
}
