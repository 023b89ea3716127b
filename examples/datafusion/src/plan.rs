//! The plan around the operator.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef};
use datafusion::arrow::compute::{SortOptions, concat, sort};
use datafusion::common::{Result, ScalarValue, SplitPoint};
use datafusion::parquet::arrow::ProjectionMask;
use datafusion::parquet::arrow::arrow_reader::{
    ParquetRecordBatchReaderBuilder, RowSelection, RowSelector,
};
use datafusion::physical_expr::{LexOrdering, PhysicalSortExpr, RangePartitioning};
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::{ExecutionPlan, Partitioning};

use crate::UniqueExec;
use crate::exec::key;
use crate::range::range_by_hash;

/// The number of row groups that [`split_points`] samples, and of keys that it reads of all of them.
const SAMPLED_GROUPS: usize = 64;
const SAMPLED_KEYS: usize = 1 << 19;
/// The keys are read in runs of this length, evenly spaced over a row group: sorted files are sampled
/// as evenly as others.
const RUN: usize = 64;

/// How a plan brings equal keys to one partition.
#[derive(Clone, Debug, PartialEq)]
pub enum Exchange {
    /// By range, split at these keys, by DataFusion's own range partitioning.
    Range(Vec<SplitPoint>),
    /// By the same ranges, by hash partitioning of a function of the key: for engines that shuffle by
    /// hash only.
    RangeByHash(Vec<SplitPoint>),
}

/// The plan that reduces `scan`, a plan of one column, to its distinct keys on
/// `device`, with counts if `has_counts`. Its partitions, in order, are the distinct set.
///
/// # Errors
/// A plan error if `unique` does not take the column's type, or if split points do
/// not ascend.
pub fn distinct(
    scan: Arc<dyn ExecutionPlan>,
    exchange: &Exchange,
    has_counts: bool,
    device: &str,
) -> Result<Arc<dyn ExecutionPlan>> {
    let key = key(&scan.schema());
    let partitioning = match exchange {
        Exchange::Range(points) => {
            let ascending = PhysicalSortExpr::new(key, SortOptions::new(false, false));
            let ascending = LexOrdering::from([ascending]);
            Partitioning::Range(RangePartitioning::try_new(ascending, points.clone())?)
        }
        Exchange::RangeByHash(points) => range_by_hash(key, &scan.schema(), points)?,
    };
    let exchanged = Arc::new(RepartitionExec::try_new(scan, partitioning)?);
    Ok(Arc::new(UniqueExec::try_new(exchanged, has_counts, device)?))
}

/// Keys that split a column of Parquet files into at most `partitions` ranges
/// with about equal numbers of rows. The keys come from a sample: short runs of keys in up to 64
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
    let runs = (SAMPLED_KEYS / RUN / groups.len().div_ceil(step).max(1)).max(1);
    let mut sample: Vec<ArrayRef> = Vec::new();
    for (path, group) in groups.into_iter().step_by(step) {
        let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(path)?)?;
        let rows = reader.metadata().row_group(group).num_rows() as usize;
        let stride = rows.div_ceil(runs).max(RUN);
        let selection = (0..rows).step_by(stride).flat_map(|start| {
            let (run, left) = (RUN.min(rows - start), stride.min(rows - start));
            [RowSelector::select(run), RowSelector::skip(left - run)]
        });
        let selection = RowSelection::from(selection.collect::<Vec<_>>());
        let mask = ProjectionMask::columns(reader.parquet_schema(), [column]);
        let reader = reader.with_projection(mask).with_row_groups(vec![group]);
        for batch in reader.with_row_selection(selection).build()? {
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
