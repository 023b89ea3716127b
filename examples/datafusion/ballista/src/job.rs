//! What a client does: it plans, submits, checks and publishes.

use std::fs::File;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use ballista_core::execution_plans::execute_physical_plan;
use ballista_core::extension::{SessionConfigExt, SessionStateExt};
use clap::{Args, ValueEnum};
use datafusion::arrow::array::{Array, AsArray};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Int64Type, UInt64Type};
use datafusion::common::{DataFusionError, Result, ScalarValue, exec_datafusion_err, exec_err};
use datafusion::execution::{SendableRecordBatchStream, SessionState};
use datafusion::parquet::file::reader::{FileReader, SerializedFileReader};
use datafusion::physical_expr::expressions::Literal;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::{ExecutionPlan, displayable};
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext, col};
use datafusion_proto::protobuf::PhysicalPlanNode;
use futures::TryStreamExt;
use spec_datafusion::{Exchange, WriteExec, Written, distinct, split_points};

use crate::codec;
use crate::output::Output;

/// The number of keys of a range, if the number of ranges is not given.
const KEYS: u64 = 1 << 22;

#[derive(Args)]
pub struct Options {
    /// Parquet files, under names that all workers know.
    #[arg(required = true)]
    input: Vec<PathBuf>,
    /// The column of keys: u64, i64, u32 or i32, without nulls.
    #[arg(long, default_value = "key")]
    column: String,
    /// The folder of the output; it must not exist. Its parent must be visible to all workers.
    #[arg(long)]
    output: PathBuf,
    /// Also how often each key occurs, as a column `count`.
    #[arg(long)]
    counts: bool,
    /// The device of the operator, opened by each worker; `auto` is the best that the worker has.
    #[arg(long, default_value = "auto")]
    device: String,
    /// The number of ranges; without it, one for 4 million keys. The distinct keys of a range must fit in a worker's
    /// memory three times, for each of the ranges that the worker works on at once.
    #[arg(long)]
    ranges: Option<NonZeroUsize>,
    /// The number of parts that the input is read in.
    #[arg(long, default_value_t = NonZeroUsize::new(16).unwrap())]
    parts: NonZeroUsize,
    /// The URL of the scheduler.
    #[arg(long, default_value = "http://127.0.0.1:50050")]
    scheduler: String,
    /// Does only some of the steps, to measure them; writes no output.
    #[arg(long, hide = true)]
    only: Option<Only>,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Only {
    /// Reading and adding up.
    Sum,
    /// Reading and the exchange.
    Exchange,
    /// Reading, the exchange and `unique`.
    Unique,
    /// The engine's own `DISTINCT .. ORDER BY`.
    Engine,
}

/// The number of keys and their sum modulo 2^64.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Content {
    keys: u64,
    sum: u64,
}

pub async fn run(mut options: Options) -> Result<()> {
    for file in &mut options.input {
        let named = |error: std::io::Error| exec_datafusion_err!("{}: {error}", file.display());
        *file = file.canonicalize().map_err(named)?;
    }
    let start = Instant::now();
    let config = SessionConfig::new_with_ballista().with_target_partitions(options.parts.get());
    let state = SessionState::new_ballista_state(options.scheduler.clone())?;
    let engine = SessionContext::new_with_state(state);
    let column = format!("\"{}\"", options.column.replace('"', "\"\""));
    if options.only == Some(Only::Engine) {
        register(&engine, &options).await?;
        let sql = format!("SELECT DISTINCT {column} FROM keys ORDER BY {column}");
        let stream = engine.sql(&sql).await?.execute_stream().await?;
        let rows = stream.try_fold(0, async |rows, batch| Ok(rows + batch.num_rows())).await?;
        println!("{rows} distinct in {:.2} s", start.elapsed().as_secs_f64());
        return Ok(());
    }

    // Read once more, but by another way than the keys that become the output.
    register(&engine, &options).await?;
    let content = content(&engine, &column).await?;
    if options.only == Some(Only::Sum) {
        println!("{} keys in {:.2} s", content.keys, start.elapsed().as_secs_f64());
        return Ok(());
    }

    let output = match options.only {
        None => Some(Output::new(&options.output)?),
        Some(_) => None,
    };
    let plan = plan(&options, &config, output.as_ref()).await?;
    println!("{}", displayable(plan.as_ref()).indent(false));
    let stream = submit(&options, config, plan).await?;
    let batches = tokio::select! {
        batches = stream.try_collect::<Vec<_>>() => batches?,
        _ = tokio::signal::ctrl_c() => return exec_err!("interrupted"),
    };
    let took = start.elapsed().as_secs_f64();
    let Some(output) = output else {
        println!("{} keys in {took:.2} s", content.keys);
        return Ok(());
    };
    let mut written: Vec<Written> = batches.iter().flat_map(Written::rows).collect();
    written.sort_by_key(|written| written.first);
    check(&written, content)?;
    output.publish(&written)?;
    let count = written.iter().map(|written| written.distinct).sum::<u64>();
    let rate = content.keys as f64 / took / 1e6;
    println!("{} keys, {count} distinct, {} files", content.keys, written.len());
    println!("{took:.2} s, {rate:.2} million keys a second");
    Ok(())
}

async fn register(context: &SessionContext, options: &Options) -> Result<()> {
    let paths = options.input.iter().map(|path| {
        let path = path.to_str();
        path.ok_or_else(|| exec_datafusion_err!("the name of an input is not UTF-8"))
    });
    let paths = paths.collect::<Result<Vec<_>>>()?;
    let frame = context.read_parquet(paths, ParquetReadOptions::default()).await?;
    context.register_table("keys", frame.into_view())?;
    Ok(())
}

/// What the files hold, by the engine's own operators.
async fn content(engine: &SessionContext, column: &str) -> Result<Content> {
    let sql = format!("SELECT count({column}), sum({column}) FROM keys");
    let batches = engine.sql(&sql).await?.collect().await?;
    let [batch] = batches.as_slice() else {
        return exec_err!("the engine returned no sum");
    };
    let keys = cast(batch.column(0), &DataType::UInt64)?;
    let sum = batch.column(1);
    // The sum of no keys is null.
    let sum = match sum.data_type() {
        _ if sum.is_null(0) => 0,
        DataType::Int64 => sum.as_primitive::<Int64Type>().value(0) as u64,
        DataType::UInt64 => sum.as_primitive::<UInt64Type>().value(0),
        other => return exec_err!("the column is of no type of keys; its sum is {other}"),
    };
    Ok(Content { keys: keys.as_primitive::<UInt64Type>().value(0), sum })
}

/// The plan, or as much of it as is to be measured.
async fn plan(
    options: &Options,
    config: &SessionConfig,
    output: Option<&Output>,
) -> Result<Arc<dyn ExecutionPlan>> {
    let local = SessionContext::new_with_config(config.clone());
    register(&local, options).await?;
    let keys = local.table("keys").await?.select([col(format!("\"{}\"", options.column))])?;
    let scan = keys.create_physical_plan().await?;
    let ranges = match options.ranges {
        Some(ranges) => ranges.get(),
        None => {
            let mut rows = 0;
            for file in &options.input {
                let reader = SerializedFileReader::new(File::open(file)?)?;
                rows += reader.metadata().file_metadata().num_rows() as u64;
            }
            rows.div_ceil(KEYS).max(1) as usize
        }
    };
    let points = split_points(&options.input, &options.column, ranges)?;
    let plan = distinct(scan, &Exchange::RangeByHash(points), options.counts, &options.device)?;
    let drained = |plan: Arc<dyn ExecutionPlan>| -> Result<Arc<dyn ExecutionPlan>> {
        let nothing = Arc::new(Literal::new(ScalarValue::from(false)));
        Ok(Arc::new(FilterExec::try_new(nothing, plan)?))
    };
    match (output, options.only) {
        (Some(output), _) => Ok(Arc::new(WriteExec::try_new(plan, output.url()?)?)),
        (None, Some(Only::Exchange)) => drained(Arc::clone(plan.children()[0])),
        (None, _) => drained(plan),
    }
}

async fn submit(
    options: &Options,
    config: SessionConfig,
    plan: Arc<dyn ExecutionPlan>,
) -> Result<SendableRecordBatchStream, DataFusionError> {
    let session = uuid::Uuid::new_v4().to_string();
    let config = config.with_ballista_job_name("distinct keys");
    let ballista = config.ballista_config();
    let url = options.scheduler.clone();
    execute_physical_plan::<PhysicalPlanNode>(url, &ballista, plan, &*codec(), session, config)
        .await
}

/// Checks that the keys that were read for the output are those of the files, and that the ranges ascend.
fn check(written: &[Written], content: Content) -> Result<()> {
    let add = |number: fn(&Written) -> u64| {
        written.iter().fold(0u64, |sum, written| sum.wrapping_add(number(written)))
    };
    let read = Content { keys: add(|written| written.keys), sum: add(|written| written.sum) };
    if read != content {
        return exec_err!(
            "the input has {} keys with the sum {}, and {} keys with the sum {} arrived: a shuffle file was \
             damaged, or an input has changed",
            content.keys,
            content.sum,
            read.keys,
            read.sum
        );
    }
    match written.windows(2).find(|pair| pair[0].last >= pair[1].first) {
        Some(pair) => exec_err!("the ranges {} and {} overlap", pair[0].file, pair[1].file),
        None => Ok(()),
    }
}
