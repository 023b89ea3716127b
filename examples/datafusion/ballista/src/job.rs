//! What a client does: it plans, submits, checks and publishes.

use std::fs::File;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use ballista_core::extension::SessionConfigExt;
use clap::{Args, ValueEnum};
use datafusion::arrow::array::{Array, AsArray, RecordBatch};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Int64Type, UInt64Type};
use datafusion::common::{Result, ScalarValue, exec_datafusion_err, exec_err};
use datafusion::parquet::file::reader::{FileReader, SerializedFileReader};
use datafusion::physical_expr::expressions::Literal;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::{ExecutionPlan, displayable};
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext, col};
use spec_datafusion::{Exchange, WriteExec, Written, distinct, split_points};

use crate::output::{Output, absent};
use crate::submit::{self, Scheduler};

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
    #[command(flatten)]
    submit: submit::Options,
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
    // This context plans; the cluster executes.
    let context = SessionContext::new_with_config(config.clone());
    register(&context, &options).await?;
    let scheduler = Scheduler::new(&options.submit, config)?;

    if let Some(only) = options.only {
        let plan = part(&context, &options, only).await?;
        scheduler.execute(async || Ok((Arc::clone(&plan), ()))).await?;
        println!("{:.2} s", start.elapsed().as_secs_f64());
        return Ok(());
    }
    absent(&options.output)?;

    // Read once more, but by another way than the keys that become the output.
    let sums = sums(&context, &options).await?;
    let (batches, ()) = scheduler.execute(async || Ok((Arc::clone(&sums), ()))).await?;
    let content = Content::of(&batches)?;

    let plan = plan(&context, &options).await?;
    let write = async || {
        let output = Output::new(&options.output)?;
        let write: Arc<dyn ExecutionPlan> =
            Arc::new(WriteExec::try_new(Arc::clone(&plan), output.url()?)?);
        Ok((write, output))
    };
    println!("{}", displayable(plan.as_ref()).indent(false));
    let (batches, output) = scheduler.execute(write).await?;
    let took = start.elapsed().as_secs_f64();
    let mut written: Vec<Written> = batches.iter().flat_map(Written::rows).collect();
    written.sort_by_key(|written| written.first);
    // A task that the scheduler repeats after it has lost a worker replaces its file by the same one, and both of its
    // reports may arrive.
    written.dedup();
    check(&written, content)?;
    output.publish(&written)?;
    let count = written.iter().map(|written| written.distinct).sum::<u64>();
    let rate = content.keys as f64 / took / 1e6;
    println!("{} keys, {count} distinct, {} files", content.keys, written.len());
    println!("{took:.2} s, {rate:.2} million keys per second");
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

/// The name of the column, for SQL.
fn quoted(options: &Options) -> String {
    format!("\"{}\"", options.column.replace('"', "\"\""))
}

/// The plan that counts the keys and adds them up, of the engine's own operators.
async fn sums(context: &SessionContext, options: &Options) -> Result<Arc<dyn ExecutionPlan>> {
    let column = quoted(options);
    let sql = format!("SELECT count({column}), sum({column}) FROM keys");
    context.sql(&sql).await?.create_physical_plan().await
}

impl Content {
    /// What the plan of [`sums`] returns.
    fn of(batches: &[RecordBatch]) -> Result<Self> {
        let [batch] = batches else {
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
}

/// The plan that reads the keys and reduces each range to its distinct keys.
async fn plan(context: &SessionContext, options: &Options) -> Result<Arc<dyn ExecutionPlan>> {
    let keys = context.table("keys").await?.select([col(quoted(options))])?;
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
    distinct(scan, &Exchange::RangeByHash(points), options.counts, &options.device)
}

/// The plan of some of the steps, whose rows are dropped.
async fn part(
    context: &SessionContext,
    options: &Options,
    only: Only,
) -> Result<Arc<dyn ExecutionPlan>> {
    let plan = match only {
        Only::Sum => sums(context, options).await?,
        Only::Exchange => Arc::clone(plan(context, options).await?.children()[0]),
        Only::Unique => plan(context, options).await?,
        Only::Engine => {
            let column = quoted(options);
            let sql = format!("SELECT DISTINCT {column} FROM keys ORDER BY {column}");
            context.sql(&sql).await?.create_physical_plan().await?
        }
    };
    let nothing = Arc::new(Literal::new(ScalarValue::from(false)));
    Ok(Arc::new(FilterExec::try_new(nothing, plan)?))
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
