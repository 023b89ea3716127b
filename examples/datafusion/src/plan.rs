//! The plan around the operator.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef};
use datafusion::arrow::compute::{SortOptions, concat, sort};
use datafusion::common::{Result, ScalarValue, SplitPoint};
use datafusion::parquet::arrow::ProjectionMask;
use datafusion::parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use datafusion::physical_expr::{LexOrdering, PhysicalSortExpr, RangePartitioning};
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::{ExecutionPlan, Partitioning};

use crate::UniqueExec;
use crate::exec::key;

/// The number of row groups that [`split_points`] samples, and the keys that it reads of each.
const SAMPLED_GROUPS: usize = 64;
const SAMPLED_KEYS: usize = 8192;

/// How a plan brings equal keys to one partition.
#[derive(Clone, Debug, PartialEq)]
pub enum Exchange {
    /// By range, split at these keys: the output partitions, in order, are the
    /// distinct set.
    Range(Vec<SplitPoint>),
    /// By hash, into this number of partitions. Each partition is ascending, and a merge makes one
    /// stream of them.
    Hash(usize),
}

/// The plan that reduces `scan`, a plan of one column, to its distinct keys on
/// `device`.
///
/// # Errors
/// A plan error if `unique` does not take the column's type, or if split points do
/// not ascend.
pub fn distinct(
    scan: Arc<dyn ExecutionPlan>,
    exchange: Exchange,
    device: &str,
) -> Result<Arc<dyn ExecutionPlan>> {
    let key = key(&scan.schema());
    let ascending = LexOrdering::from([PhysicalSortExpr::new(
        Arc::clone(&key),
        SortOptions::new(false, false),
    )]);
    let partitioning = match &exchange {
        Exchange::Range(points) => {
            Partitioning::Range(RangePartitioning::try_new(ascending.clone(), points.clone())?)
        }
        Exchange::Hash(partitions) => Partitioning::Hash(vec![key], *partitions),
    };
    let exchanged = Arc::new(RepartitionExec::try_new(scan, partitioning)?);
    let unique = Arc::new(UniqueExec::try_new(exchanged, device)?);
    Ok(match exchange {
        Exchange::Range(_) => unique,
        Exchange::Hash(_) => Arc::new(SortPreservingMergeExec::new(ascending, unique)),
    })
}

/// Keys that split a column of Parquet files into at most `partitions` ranges
/// with about equal numbers of rows. The keys come from a sample: the start of up to 64
/// row groups, evenly spaced over all files.
///
/// With a bad sample the ranges are less balanced, but the result stays correct.
///
/// # Errors
/// If a file cannot be read or lacks the column.
pub fn split_points(files: &[PathBuf], column: &str, partitions: usize) -> Result<Vec<SplitPoint>> {
    let mut groups = Vec::new();
    for path in files {
        let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(path)?)?;
        groups.extend((0..reader.metadata().num_row_groups()).map(|group| (path, group)));
    }
    let step = groups.len().div_ceil(SAMPLED_GROUPS).max(1);
    let mut sample: Vec<ArrayRef> = Vec::new();
    for (path, group) in groups.into_iter().step_by(step) {
        let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(path)?)?;
        let mask = ProjectionMask::columns(reader.parquet_schema(), [column]);
        let reader = reader.with_projection(mask).with_row_groups(vec![group]);
        for batch in reader.with_batch_size(SAMPLED_KEYS).with_limit(SAMPLED_KEYS).build()? {
            let batch = batch?;
            let keys = batch.column_by_name(column).ok_or_else(|| {
                let path = path.display();
                datafusion::common::exec_datafusion_err!("{path} has no column {column}")
            })?;
            sample.push(Arc::clone(keys));
        }
    }
    if sample.is_empty() {
        return Ok(Vec::new());
    }
    let sample: Vec<&dyn Array> = sample.iter().map(AsRef::as_ref).collect();
    let sample = sort(&concat(&sample)?, None)?;
    let mut points = Vec::new();
    for part in 1..partitions {
        let point = ScalarValue::try_from_array(&sample, part * sample.len() / partitions)?;
        // If a key is so frequent that two split points fall on it, one is dropped: the key
        // fills a range alone.
        if !point.is_null() && points.last() != Some(&point) {
            points.push(point);
        }
    }
    Ok(points.into_iter().map(|point| SplitPoint::new(vec![point])).collect())
}
