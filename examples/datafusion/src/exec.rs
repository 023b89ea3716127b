//! The physical operator.

use std::fmt;
use std::sync::{Arc, OnceLock};

use datafusion::arrow::array::{
    ArrayRef, ArrowPrimitiveType, AsArray, PrimitiveArray, RecordBatch, UInt64Array,
};
use datafusion::arrow::compute::SortOptions;
use datafusion::arrow::datatypes::{
    DataType, Field, Int32Type, Int64Type, Schema, SchemaRef, UInt32Type, UInt64Type,
};
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DataFusionError, Result, exec_err, plan_err};
use datafusion::execution::memory_pool::MemoryConsumer;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, CardinalityEffect, EmissionType};
use datafusion::physical_plan::metrics::{
    BaselineMetrics, Count, ExecutionPlanMetricsSet, MetricBuilder, MetricsSet,
};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    ChildrenPropertiesMode, DisplayAs, DisplayFormatType, Distribution, ExecutionPlan,
    ExecutionPlanProperties, PlanProperties, ReplaceChildrenOptions,
};
use futures::{StreamExt, TryStreamExt, stream};
use spec::{Element, Handle};

use crate::distinct::{Counted, Distinct, external};

/// The metric of [`UniqueExec`] that counts the keys it has read.
pub const KEYS_READ: &str = "keys_read";
/// The metric of [`UniqueExec`] that adds up the keys it has read, modulo 2^64. The two metrics tell
/// whether an exchange has delivered what was put into it.
pub const SUM_READ: &str = "sum_read";

/// The distinct keys of each partition, ascending, by spec's `unique`.
///
/// The input is one column of u64, i64, u32 or i32 without nulls. The output is the same column and,
/// on request, a column `count` of u64: how often each key occurs in the input. Equal
/// keys must come in one partition ([`Distribution::KeyPartitioned`]); otherwise a
/// key comes out once per partition. After duplicates are dropped, a partition must
/// fit in the memory pool three times (with counts of 64-bit keys, four times).
#[derive(Debug)]
pub struct UniqueExec {
    input: Arc<dyn ExecutionPlan>,
    has_counts: bool,
    device: String,
    handle: OnceLock<Handle>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl UniqueExec {
    /// The operator over `input`, with counts if `has_counts`, on `device`: `cpu`, `cuda:0`, `wgpu:0`, or `auto`
    /// for the best device of the executing machine. The device is opened when the
    /// plan is executed, so the machine that plans needs no such device.
    ///
    /// # Errors
    /// A plan error if `input` is not one column of a type that `unique` takes.
    pub fn try_new(
        input: Arc<dyn ExecutionPlan>,
        has_counts: bool,
        device: impl Into<String>,
    ) -> Result<Self> {
        let schema = input.schema();
        let [field] = schema.fields().as_ref() else {
            return plan_err!("UniqueExec takes one column, got {}", schema.fields().len());
        };
        use DataType::{Int32, Int64, UInt32, UInt64};
        if !matches!(field.data_type(), UInt64 | Int64 | UInt32 | Int32) {
            return plan_err!(
                "UniqueExec takes a column of UInt64, Int64, UInt32 or Int32, and {} is {}",
                field.name(),
                field.data_type()
            );
        }
        let mut fields = vec![Arc::clone(field)];
        if has_counts {
            fields.push(Arc::new(Field::new("count", UInt64, false)));
        }
        let schema = Arc::new(Schema::new(fields));
        let ascending = PhysicalSortExpr::new(key(&schema), SortOptions::new(false, false));
        let properties = PlanProperties::new(
            EquivalenceProperties::new_with_orderings(schema, [[ascending]]),
            input.output_partitioning().clone(),
            EmissionType::Final,
            Boundedness::Bounded,
        );
        let metrics = ExecutionPlanMetricsSet::new();
        Ok(UniqueExec {
            input,
            has_counts,
            device: device.into(),
            handle: OnceLock::new(),
            properties: Arc::new(properties),
            metrics,
        })
    }

    /// The name of the device, as given to [`try_new`](Self::try_new).
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Whether the output has counts.
    pub fn has_counts(&self) -> bool {
        self.has_counts
    }

    fn handle(&self) -> Result<Handle> {
        if let Some(handle) = self.handle.get() {
            return Ok(handle.clone());
        }
        let opened: Handle = self.device.parse().map_err(external)?;
        Ok(self.handle.get_or_init(|| opened).clone())
    }
}

/// The first column of `schema`.
pub fn key(schema: &SchemaRef) -> Arc<dyn PhysicalExpr> {
    Arc::new(Column::new(schema.field(0).name(), 0))
}

impl DisplayAs for UniqueExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let schema = self.input.schema();
        let (key, counts) = (schema.field(0).name(), self.has_counts);
        write!(f, "UniqueExec: key={key}, counts={counts}, device={}", self.device)
    }
}

impl ExecutionPlan for UniqueExec {
    fn name(&self) -> &str {
        "UniqueExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn required_input_distribution(&self) -> Vec<Distribution> {
        vec![Distribution::KeyPartitioned(vec![key(&self.input.schema())])]
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
            (Some(input), None) => {
                Ok(Arc::new(UniqueExec::try_new(input, self.has_counts, self.device.as_str())?))
            }
            _ => plan_err!("UniqueExec has one child"),
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
        match self.schema().field(0).data_type() {
            DataType::Int32 => self.stream::<Int32Type>(partition, &context),
            DataType::UInt32 => self.stream::<UInt32Type>(partition, &context),
            DataType::Int64 => self.stream::<Int64Type>(partition, &context),
            _ => self.stream::<UInt64Type>(partition, &context),
        }
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::LowerEqual
    }
}

impl UniqueExec {
    fn stream<T>(
        &self,
        partition: usize,
        context: &Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream>
    where
        T: ArrowPrimitiveType<Native: Element + Key>,
    {
        let schema = self.schema();
        let reservation =
            MemoryConsumer::new(format!("UniqueExec[{partition}]")).register(context.memory_pool());
        let set = Distinct::<T::Native>::new(self.handle()?, reservation, self.has_counts);
        let input = self.input.execute(partition, Arc::clone(context))?;
        let baseline = BaselineMetrics::new(&self.metrics, partition);
        let read = [KEYS_READ, SUM_READ]
            .map(|name| MetricBuilder::new(&self.metrics).counter(name, partition));
        let rows = context.session_config().batch_size();
        let batches = {
            let schema = Arc::clone(&schema);
            async move {
                let set = collect::<T>(set, input, &baseline, &read).await?;
                let (Counted { keys, counts }, reservation) = set.finish();
                baseline.record_output(keys.len());
                let n = keys.len();
                let mut columns: Vec<ArrayRef> =
                    vec![Arc::new(PrimitiveArray::<T>::new(keys.into(), None))];
                if schema.fields().len() > 1 {
                    columns.push(Arc::new(UInt64Array::from(counts)));
                }
                let all = RecordBatch::try_new(schema, columns)?;
                let starts = (0..n).step_by(rows.max(1));
                Ok::<_, DataFusionError>(stream::iter(starts).map(move |start| {
                    let _held = &reservation;
                    Ok(all.slice(start, rows.min(n - start)))
                }))
            }
        };
        let batches = stream::once(batches).try_flatten();
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, batches)))
    }
}

/// A key's type.
pub trait Key: Copy + Ord {
    /// The key as a 64-bit number, negative numbers modulo 2^64, as SQL's `sum` adds it up.
    fn widened(self) -> u64;
    /// A number that orders as the key does.
    fn rank(self) -> u64;
}

macro_rules! keys {
    ($($key:ty, $wide:ty, $least:expr;)*) => {$(
        impl Key for $key {
            fn widened(self) -> u64 {
                <$wide>::from(self) as u64
            }

            fn rank(self) -> u64 {
                self.widened().wrapping_sub($least)
            }
        }
    )*};
}

keys! {
    u64, u64, 0;
    u32, u64, 0;
    i64, i64, i64::MIN as u64;
    i32, i64, i64::MIN as u64;
}

/// The distinct keys of a whole partition.
async fn collect<T>(
    mut set: Distinct<T::Native>,
    mut input: SendableRecordBatchStream,
    baseline: &BaselineMetrics,
    [keys_read, sum_read]: &[Count; 2],
) -> Result<Distinct<T::Native>>
where
    T: ArrowPrimitiveType<Native: Element + Key>,
{
    while let Some(batch) = input.next().await.transpose()? {
        let column = batch.column(0);
        if column.null_count() > 0 {
            let schema = batch.schema();
            let name = schema.field(0).name();
            return exec_err!("UniqueExec: column {name} has nulls; keep `{name} IS NOT NULL`");
        }
        let keys = column.as_primitive::<T>().values();
        keys_read.add(keys.len());
        let sum = keys.iter().fold(0u64, |sum, key| sum.wrapping_add(key.widened()));
        // The counter wraps, as the sum does.
        sum_read.add(sum as usize);
        if !set.has_room(keys.len()) {
            set = settle(set, baseline).await?;
            set.reserve(keys.len())?;
        }
        set.extend(keys);
    }
    settle(set, baseline).await
}

/// Calls the operator on a thread that may block.
async fn settle<K: Element + Ord>(
    mut set: Distinct<K>,
    baseline: &BaselineMetrics,
) -> Result<Distinct<K>> {
    let time = baseline.elapsed_compute().clone();
    let task = SpawnedTask::spawn_blocking(move || {
        let _timer = time.timer();
        set.settle()?;
        Ok(set)
    });
    task.join().await.map_err(|error| DataFusionError::External(Box::new(error)))?
}
