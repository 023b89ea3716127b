//! Writes each partition to a Parquet file of its own.

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::array::{
    ArrayRef, ArrowPrimitiveType, AsArray, RecordBatch, StringArray, UInt64Array,
};
use datafusion::arrow::datatypes::{
    DataType, Field, Int32Type, Int64Type, Schema, UInt32Type, UInt64Type,
};
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, exec_err, internal_datafusion_err, plan_err};
use datafusion::datasource::listing::ListingTableUrl;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::object_store::buffered::BufWriter;
use datafusion::object_store::{ObjectStore, ObjectStoreExt};
use datafusion::parquet::arrow::AsyncArrowWriter;
use datafusion::parquet::file::properties::WriterProperties;
use datafusion::parquet::schema::types::ColumnPath;
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    ChildrenPropertiesMode, DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties,
    Partitioning, PlanProperties, ReplaceChildrenOptions,
};
use futures::{StreamExt, stream};

use crate::UniqueExec;
use crate::exec::{KEYS_READ, Key, SUM_READ};

/// Writes each partition of a [`UniqueExec`] to a Parquet file of its own and returns a row about each
/// file, [`Written`].
///
/// The name of a file is the rank of its first key, 16 hexadecimal digits, so names ascend as ranges do. An empty
/// partition gets no file. The folder must hold a file named [`UNFINISHED`]. A file appears when it is complete; a task that is executed a second time
/// replaces the file by the same one.
#[derive(Debug)]
pub struct WriteExec {
    input: Arc<dyn ExecutionPlan>,
    folder: String,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

/// The file that marks a folder as one that [`WriteExec`] may write to.
pub const UNFINISHED: &str = "_unfinished";

/// What [`WriteExec`] says about a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Written {
    /// The name of the file in the folder.
    pub file: String,
    /// The number of keys that were read for this file, before duplicates were dropped.
    pub keys: u64,
    /// The sum of those keys modulo 2^64.
    pub sum: u64,
    /// The number of distinct keys in the file.
    pub distinct: u64,
    /// The ranks of the first and of the last key.
    pub first: u64,
    pub last: u64,
}

const NUMBERS: [&str; 5] = ["keys", "sum", "distinct", "first", "last"];

impl Written {
    fn schema() -> Schema {
        let file = Field::new("file", DataType::Utf8, false);
        let numbers = NUMBERS.map(|name| Field::new(name, DataType::UInt64, false));
        Schema::new([vec![file], numbers.to_vec()].concat())
    }

    /// The rows of a batch of [`WriteExec`]'s output.
    pub fn rows(batch: &RecordBatch) -> Vec<Written> {
        let number = |column: usize, row: usize| {
            batch.column(column).as_primitive::<UInt64Type>().value(row)
        };
        let written = (0..batch.num_rows()).map(|row| Written {
            file: batch.column(0).as_string::<i32>().value(row).to_owned(),
            keys: number(1, row),
            sum: number(2, row),
            distinct: number(3, row),
            first: number(4, row),
            last: number(5, row),
        });
        written.collect()
    }

    fn batch(self) -> Result<RecordBatch> {
        let mut columns: Vec<ArrayRef> = vec![Arc::new(StringArray::from(vec![self.file]))];
        for number in [self.keys, self.sum, self.distinct, self.first, self.last] {
            columns.push(Arc::new(UInt64Array::from(vec![number])));
        }
        Ok(RecordBatch::try_new(Arc::new(Written::schema()), columns)?)
    }
}

impl WriteExec {
    /// Writes the partitions of `input`, a [`UniqueExec`], to `folder`, a URL of an object store that
    /// every executing process can reach (`file:///shared/out/`).
    ///
    /// # Errors
    /// A plan error if `input` is another operator.
    pub fn try_new(input: Arc<dyn ExecutionPlan>, folder: impl Into<String>) -> Result<Self> {
        if !input.is::<UniqueExec>() {
            return plan_err!("WriteExec writes the output of UniqueExec, not of {}", input.name());
        }
        let partitions = input.output_partitioning().partition_count();
        let properties = PlanProperties::new(
            EquivalenceProperties::new(Arc::new(Written::schema())),
            Partitioning::UnknownPartitioning(partitions),
            EmissionType::Final,
            Boundedness::Bounded,
        );
        let metrics = ExecutionPlanMetricsSet::new();
        Ok(WriteExec { input, folder: folder.into(), properties: Arc::new(properties), metrics })
    }

    /// The URL of the folder.
    pub fn folder(&self) -> &str {
        &self.folder
    }
}

impl DisplayAs for WriteExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WriteExec: folder={}", self.folder)
    }
}

impl ExecutionPlan for WriteExec {
    fn name(&self) -> &str {
        "WriteExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn replace_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        match (children.pop(), children.pop()) {
            (Some(input), None) => Ok(Arc::new(WriteExec::try_new(input, self.folder.as_str())?)),
            _ => plan_err!("WriteExec has one child"),
        }
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let mode = ChildrenPropertiesMode::Recompute;
        self.replace_children(children, ReplaceChildrenOptions::new(mode))
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let input = Arc::clone(&self.input);
        let stream = input.execute(partition, Arc::clone(&context))?;
        let folder = ListingTableUrl::parse(&self.folder)?;
        let baseline = BaselineMetrics::new(&self.metrics, partition);
        let written = async move {
            let mut written = match input.schema().field(0).data_type() {
                DataType::Int32 => write::<Int32Type>(stream, &folder, &context).await,
                DataType::UInt32 => write::<UInt32Type>(stream, &folder, &context).await,
                DataType::Int64 => write::<Int64Type>(stream, &folder, &context).await,
                _ => write::<UInt64Type>(stream, &folder, &context).await,
            }?;
            if let Some(written) = &mut written {
                let read = read(&input.metrics().unwrap_or_default(), partition);
                [written.keys, written.sum] = read;
                baseline.record_output(1);
            }
            written.map(Written::batch).transpose()
        };
        let batches = stream::once(written).filter_map(|batch| async { batch.transpose() });
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), batches)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}

/// What a partition of the [`UniqueExec`] below has read: the number of keys and their sum.
fn read(metrics: &MetricsSet, partition: usize) -> [u64; 2] {
    [KEYS_READ, SUM_READ].map(|name| {
        let of_partition = metrics
            .iter()
            .find(|metric| metric.partition() == Some(partition) && metric.value().name() == name);
        of_partition.map_or(0, |metric| metric.value().as_usize() as u64)
    })
}

/// Writes a partition, unless it is empty.
async fn write<T: ArrowPrimitiveType<Native: Key>>(
    mut stream: SendableRecordBatchStream,
    folder: &ListingTableUrl,
    context: &TaskContext,
) -> Result<Option<Written>> {
    let Some(mut batch) = stream.next().await.transpose()? else {
        return Ok(None);
    };
    let keys = |batch: &RecordBatch| batch.column(0).as_primitive::<T>().values().clone();
    let missing = || internal_datafusion_err!("UniqueExec returned a batch without rows");
    let first = keys(&batch).first().ok_or_else(missing)?.rank();
    let file = format!("{first:016x}.parquet");
    let store = context.runtime_env().object_store(folder.object_store())?;
    let buffer = context.session_config().options().execution.objectstore_writer_buffer_size;
    wanted(&store, folder).await?;
    let path = folder.prefix().clone().join(file.as_str());
    let sink = BufWriter::with_capacity(Arc::clone(&store), path, buffer);
    // Distinct keys gain nothing from a dictionary.
    let column = ColumnPath::from(vec![batch.schema_ref().field(0).name().clone()]);
    let options = WriterProperties::builder().set_column_dictionary_enabled(column, false).build();
    let mut writer = AsyncArrowWriter::try_new(sink, batch.schema(), Some(options))?;
    let last = loop {
        writer.write(&batch).await?;
        match stream.next().await.transpose()? {
            Some(next) => batch = next,
            None => break keys(&batch).last().ok_or_else(missing)?.rank(),
        }
    };
    wanted(&store, folder).await?;
    let distinct = writer.close().await?.file_metadata().num_rows() as u64;
    Ok(Some(Written { file, keys: 0, sum: 0, distinct, first, last }))
}

/// A task can outlive its job, whose client has then removed the folder. A store would make the folder again, so the
/// task must end before it writes.
async fn wanted(store: &Arc<dyn ObjectStore>, folder: &ListingTableUrl) -> Result<()> {
    match store.head(&folder.prefix().clone().join(UNFINISHED)).await {
        Ok(_) => Ok(()),
        Err(_) => exec_err!("{folder} has no file {UNFINISHED}: nobody waits for this output"),
    }
}
