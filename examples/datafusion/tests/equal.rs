//! Compares the plan's result with a set in memory and with DataFusion's own DISTINCT.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use datafusion::arrow::array::{
    ArrayRef, ArrowPrimitiveType, AsArray, PrimitiveArray, RecordBatch, StringArray, UInt64Array,
};
use datafusion::arrow::compute::{cast, concat_batches};
use datafusion::arrow::datatypes::{Int32Type, Int64Type, UInt32Type, UInt64Type};
use datafusion::common::{DataFusionError, Result, ScalarValue, SplitPoint};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, collect_partitioned};
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext, col};
use datafusion_proto::bytes::{
    physical_plan_from_bytes_with_extension_codec, physical_plan_to_bytes_with_extension_codec,
};
use spec_datafusion::{
    Codec, Exchange, Shape, UNFINISHED, UniqueExec, WriteExec, Written, distinct, make,
    split_points,
};

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 ^ self.0 >> 29
    }
}

fn keys(n: usize, bits: u32) -> Vec<u64> {
    let mut random = Random(u64::from(bits) << 32 | n as u64);
    (0..n).map(|_| random.next() >> (64 - bits)).collect()
}

fn write(path: &Path, column: ArrayRef) -> PathBuf {
    let batch = RecordBatch::try_from_iter_with_nullable([("key", column, true)]).unwrap();
    let mut writer =
        ArrowWriter::try_new(File::create(path).unwrap(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    path.to_path_buf()
}

/// Writes `keys` to three files.
fn files<T: ArrowPrimitiveType>(folder: &Path, keys: &[T::Native]) -> Vec<PathBuf> {
    let parts = keys.chunks(keys.len().div_ceil(3).max(1)).chain(keys.is_empty().then_some(keys));
    let parts = parts.enumerate().map(|(index, part)| {
        let column = PrimitiveArray::<T>::from_iter_values(part.iter().copied());
        write(&folder.join(format!("{index}.parquet")), Arc::new(column))
    });
    parts.collect()
}

/// A scan of the column of keys, which can be executed only once.
async fn scan(context: &SessionContext, files: &[PathBuf]) -> Result<Arc<dyn ExecutionPlan>> {
    let paths = files.iter().map(|path| path.to_str().unwrap()).collect::<Vec<_>>();
    let frame = context.read_parquet(paths, ParquetReadOptions::default()).await?;
    context.deregister_table("keys")?;
    context.register_table("keys", frame.clone().into_view())?;
    frame.select([col("key")])?.create_physical_plan().await
}

/// The keys of each output partition.
async fn run<T: ArrowPrimitiveType>(
    context: &SessionContext,
    plan: Arc<dyn ExecutionPlan>,
) -> Result<Vec<Vec<T::Native>>> {
    let schema = plan.schema();
    let parts = collect_partitioned(plan, context.task_ctx()).await?;
    let parts = parts.iter().map(|part| {
        let part = concat_batches(&schema, part)?;
        Ok(part.column(0).as_primitive::<T>().values().to_vec())
    });
    parts.collect()
}

fn context() -> SessionContext {
    SessionContext::new_with_config(SessionConfig::new().with_target_partitions(3))
}

/// Checks that all ways to compute the distinct set of `keys` agree.
async fn agree<T: ArrowPrimitiveType<Native: Ord>>(keys: &[T::Native]) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let files = files::<T>(folder.path(), keys);
    let context = context();
    let scanned = || scan(&context, &files);
    scanned().await?;
    let expected = keys.iter().copied().collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>();

    let own = context.sql("SELECT DISTINCT key FROM keys ORDER BY key").await?;
    let own = run::<T>(&context, own.create_physical_plan().await?).await?.concat();
    assert_eq!(own, expected, "DataFusion's own");

    let points = split_points(&files, "key", 4)?;
    let exchanges = [Exchange::Range(points.clone()), Exchange::RangeByHash(points.clone())];
    for exchange in exchanges {
        let plan = distinct(scanned().await?, &exchange, false, "cpu")?;
        let parts = run::<T>(&context, plan).await?;
        // The partitions are in order, so concatenating them gives the set.
        assert_eq!(parts.concat(), expected, "{exchange:?}");
        ranges::<T>(&parts, &points);

        let plan = distinct(scanned().await?, &exchange, false, "cpu")?;
        let bytes = physical_plan_to_bytes_with_extension_codec(plan, &Codec::default())?;
        let elsewhere = SessionContext::new();
        let plan = physical_plan_from_bytes_with_extension_codec(
            &bytes,
            &elsewhere.task_ctx(),
            &Codec::default(),
        )?;
        let parts = run::<T>(&elsewhere, plan).await?;
        assert_eq!(parts.concat(), expected, "serialised, then executed elsewhere");
        ranges::<T>(&parts, &points);
    }

    let counts = counts(&context, scanned().await?, &Exchange::RangeByHash(points)).await?;
    let mut occurrences = BTreeMap::new();
    for &key in keys {
        *occurrences.entry(key).or_insert(0u64) += 1;
    }
    assert_eq!(counts, occurrences.into_values().collect::<Vec<_>>(), "counts");
    Ok(())
}

/// Checks that partition `i` holds keys of range `i` alone.
fn ranges<T: ArrowPrimitiveType<Native: Ord>>(parts: &[Vec<T::Native>], points: &[SplitPoint]) {
    assert_eq!(parts.len(), points.len() + 1);
    let points: Vec<T::Native> = points
        .iter()
        .map(|point| point.values()[0].to_array().unwrap().as_primitive::<T>().value(0))
        .collect();
    for (range, part) in parts.iter().enumerate() {
        for key in part {
            assert!(range == 0 || points[range - 1] <= *key, "{key:?} is too small for {range}");
            assert!(
                range == points.len() || *key < points[range],
                "{key:?} is too large for {range}"
            );
        }
    }
}

/// The counts of the distinct keys of `scan`, in the order of the keys.
async fn counts(
    context: &SessionContext,
    scan: Arc<dyn ExecutionPlan>,
    exchange: &Exchange,
) -> Result<Vec<u64>> {
    let plan = distinct(scan, exchange, true, "cpu")?;
    let parts = collect_partitioned(plan, context.task_ctx()).await?;
    let counts = parts.iter().flatten().map(|batch| {
        let counts = batch.column_by_name("count").unwrap();
        counts.as_primitive::<UInt64Type>().values().to_vec()
    });
    Ok(counts.flatten().collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn equals_datafusion_and_a_set_in_memory() -> Result<()> {
    agree::<UInt64Type>(&keys(300_000, 64)).await?;
    agree::<UInt64Type>(&keys(300_000, 16)).await?;
    let signed: Vec<i64> = keys(100_000, 64).into_iter().map(|key| key as i64 >> 40).collect();
    agree::<Int64Type>(&signed).await?;
    agree::<UInt32Type>(&keys(100_000, 32).into_iter().map(|key| key as u32).collect::<Vec<_>>())
        .await?;
    agree::<Int32Type>(&keys(100_000, 32).into_iter().map(|key| key as i32).collect::<Vec<_>>())
        .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_key_few_keys_and_none() -> Result<()> {
    agree::<UInt64Type>(&vec![7; 100_000]).await?;
    agree::<UInt64Type>(&[u64::MAX, 0, u64::MAX]).await?;
    agree::<Int64Type>(&[i64::MIN, i64::MAX, 0, -1]).await?;
    agree::<UInt64Type>(&[]).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranges_hold_about_as_many_keys_each() -> Result<()> {
    let folder = tempfile::tempdir()?;
    // Nine tenths of the keys are below 2^16: ranges of equal width would put them in one.
    let mut all = keys(270_000, 16);
    all.extend(keys(30_000, 64));
    let files = files::<UInt64Type>(folder.path(), &all);
    let points = split_points(&files, "key", 4)?;
    let points: Vec<u64> = points
        .iter()
        .map(|point| match point.values() {
            [ScalarValue::UInt64(Some(key))] => *key,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(points.len(), 3);
    for range in 0..4usize {
        let low = range.checked_sub(1).map_or(0, |before| points[before]);
        let high = points.get(range).copied();
        let held = all.iter().filter(|&&key| key >= low && high.is_none_or(|high| key < high));
        let held = held.count();
        assert!((37_500..150_000).contains(&held), "range {range}: {held} of {}", all.len());
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_follows_the_distinct_keys_and_ends_in_an_error() -> Result<()> {
    let folder = tempfile::tempdir()?;
    // 16 MB of keys in a pool of 8 MB: the keys fit if duplicates are dropped early.
    let pool = RuntimeEnvBuilder::new().with_memory_limit(8 << 20, 1.0).build_arc()?;
    let context =
        SessionContext::new_with_config_rt(SessionConfig::new().with_target_partitions(1), pool);
    let few = keys(2_000_000, 12);
    let files = files::<UInt64Type>(folder.path(), &few);
    let plan = UniqueExec::try_new(one(scan(&context, &files).await?), false, "cpu")?;
    let parts = run::<UInt64Type>(&context, Arc::new(plan)).await?;
    assert_eq!(parts, [(0..1 << 12).collect::<Vec<u64>>()]);

    let folder = tempfile::tempdir()?;
    let many = self::files::<UInt64Type>(folder.path(), &keys(2_000_000, 64));
    let scan = scan(&context, &many).await?;
    let plan = UniqueExec::try_new(one(scan), false, "cpu")?;
    let error = run::<UInt64Type>(&context, Arc::new(plan)).await.unwrap_err();
    assert!(matches!(error.find_root(), DataFusionError::ResourcesExhausted(_)), "{error}");
    Ok(())
}

/// A plan with all of `scan` in one partition.
fn one(scan: Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
    use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
    assert!(scan.output_partitioning().partition_count() > 0);
    Arc::new(CoalescePartitionsExec::new(scan))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_input_is_named() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let context = context();
    let nulls = UInt64Array::from(vec![Some(3), None, Some(1)]);
    let nulls = write(&folder.path().join("nulls.parquet"), Arc::new(nulls));
    let whole = Exchange::RangeByHash(Vec::new());
    let plan = distinct(scan(&context, &[nulls]).await?, &whole, false, "cpu")?;
    let error = run::<UInt64Type>(&context, plan).await.unwrap_err().to_string();
    assert!(error.contains("column key has nulls"), "{error}");

    let words =
        cast(&StringArray::from(vec!["a", "b"]), &datafusion::arrow::datatypes::DataType::Utf8)?;
    let words = write(&folder.path().join("words.parquet"), words);
    let words = vec![words];
    let context = self::context();
    let error = distinct(scan(&context, &words).await?, &whole, false, "cpu").unwrap_err();
    assert!(error.to_string().contains("key is Utf8"), "{error}");
    let error = split_points(&words, "missing", 2).unwrap_err().to_string();
    assert!(error.contains("words.parquet has no column missing"), "{error}");

    let numbers = files::<UInt64Type>(folder.path(), &[1, 2, 3]);
    let context = self::context();
    let scan = scan(&context, &numbers).await?;
    let descending =
        [5u64, 4].map(|key| SplitPoint::new(vec![ScalarValue::UInt64(Some(key))])).to_vec();
    for exchange in [Exchange::Range(descending.clone()), Exchange::RangeByHash(descending)] {
        assert!(distinct(Arc::clone(&scan), &exchange, false, "cpu").is_err());
    }
    let nowhere = distinct(scan, &whole, false, "cuda:99")?;
    assert!(run::<UInt64Type>(&context, nowhere).await.is_err());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counts_survive_early_calls() -> Result<()> {
    // More keys than are collected before the first call of the operator, in one partition.
    let folder = tempfile::tempdir()?;
    let all = keys(9_000_000, 18);
    let files = files::<UInt64Type>(folder.path(), &all);
    let context = context();
    let scan = scan(&context, &files).await?;
    let counts = counts(&context, scan, &Exchange::RangeByHash(Vec::new())).await?;
    let mut occurrences = vec![0u64; 1 << 18];
    all.iter().for_each(|&key| occurrences[key as usize] += 1);
    occurrences.retain(|&count| count > 0);
    assert_eq!(counts, occurrences);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sorted_and_skewed_files_make_balanced_ranges() -> Result<()> {
    for shape in [Shape::Sorted, Shape::Skewed] {
        let folder = tempfile::tempdir()?;
        let files = make(folder.path(), 400_000, shape)?;
        let context = context();
        let scan = scan(&context, &files).await?;
        let points = split_points(&files, "key", 10)?;
        let plan = distinct(scan, &Exchange::RangeByHash(points.clone()), false, "cpu")?;
        let exchange = Arc::clone(plan.children()[0]);
        let parts = run::<UInt64Type>(&context, exchange).await?;
        assert_eq!(parts.iter().map(Vec::len).sum::<usize>(), 400_000);
        ranges::<UInt64Type>(&parts, &points);
        // One key in eight is 7 where they are skewed; no range needs to be much larger.
        let largest = parts.iter().map(Vec::len).max().unwrap_or(0);
        assert!(largest < 80_000, "{shape:?}: {largest} of 400000 keys are in one of 10 ranges");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_range_becomes_a_file() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let all: Vec<i64> = keys(100_000, 64).into_iter().map(|key| key as i64 >> 45).collect();
    let files = files::<Int64Type>(folder.path(), &all);
    let context = context();
    let scan = scan(&context, &files).await?;
    let exchange = Exchange::RangeByHash(split_points(&files, "key", 5)?);
    let plan = distinct(scan, &exchange, false, "cpu")?;
    let output = tempfile::tempdir()?;
    File::create(output.path().join(UNFINISHED))?;
    let plan = WriteExec::try_new(plan, format!("file://{}/", output.path().display()))?;
    let rows = collect_partitioned(Arc::new(plan), context.task_ctx()).await?;
    let rows: Vec<Written> = rows.iter().flatten().flat_map(Written::rows).collect();
    assert_eq!(rows.len(), 5);
    assert_eq!(rows.iter().map(|row| row.keys).sum::<u64>(), 100_000);
    let sum = rows.iter().fold(0u64, |sum, row| sum.wrapping_add(row.sum));
    assert_eq!(sum, all.iter().fold(0u64, |sum, &key| sum.wrapping_add(key as u64)));
    assert!(rows.is_sorted_by(|a, b| a.last < b.first && a.file < b.file));

    let mut written = Vec::new();
    for row in &rows {
        let path = output.path().join(&row.file);
        let frame =
            context.read_parquet(path.to_str().unwrap(), ParquetReadOptions::default()).await?;
        for batch in frame.collect().await? {
            written.extend_from_slice(batch.column(0).as_primitive::<Int64Type>().values());
        }
    }
    let expected = all.into_iter().collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>();
    assert_eq!(written, expected);
    Ok(())
}
