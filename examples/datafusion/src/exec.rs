//! The physical operator.

use std::fmt;
use std::sync::{Arc, OnceLock};

use datafusion::arrow::array::{
    ArrayRef, ArrowPrimitiveType, AsArray, PrimitiveArray, RecordBatch,
};
use datafusion::arrow::compute::SortOptions;
use datafusion::arrow::datatypes::{
    DataType, Int32Type, Int64Type, SchemaRef, UInt32Type, UInt64Type,
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

use crate::distinct::{Distinct, external};

/// The distinct keys of each partition, ascending, by spec's `unique`.
///
/// Input and output are one column of u64, i64, u32 or i32 without nulls. Equal
/// keys must come in one partition ([`Distribution::KeyPartitioned`]); otherwise a
/// key comes out once per partition. After duplicates are dropped, a partition must
/// fit in the memory pool three times.
#[derive(Debug)]
pub struct UniqueExec {
    input: Arc<dyn ExecutionPlan>,
    device: String,
    handle: OnceLock<Handle>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl UniqueExec {
    /// The operator over `input`, on `device`: `cpu`, `cuda:0`, `wgpu:0`, or `auto`
    /// for the best device of the executing machine. The device is opened when the
    /// plan is executed, so the machine that plans needs no such device.
    ///
    /// # Errors
    /// A plan error if `input` is not one column of a type that `unique` takes.
    pub fn try_new(input: Arc<dyn ExecutionPlan>, device: impl Into<String>) -> Result<Self> {
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

    fn handle(&self) -> Result<Handle> {
        if let Some(handle) = self.handle.get() {
            return Ok(handle.clone());
        }
        let opened: Handle = self.device.parse().map_err(external)?;
        Ok(self.handle.get_or_init(|| opened).clone())
    }
}

/// The one column of `schema`.
pub fn key(schema: &SchemaRef) -> Arc<dyn PhysicalExpr> {
    Arc::new(Column::new(schema.field(0).name(), 0))
}

impl DisplayAs for UniqueExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let schema = self.input.schema();
        write!(f, "UniqueExec: key={}, device={}", schema.field(0).name(), self.device)
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
            (Some(input), None) => Ok(Arc::new(UniqueExec::try_new(input, self.device.as_str())?)),
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
        T: ArrowPrimitiveType<Native: Element>,
    {
        let schema = self.schema();
        let reservation =
            MemoryConsumer::new(format!("UniqueExec[{partition}]")).register(context.memory_pool());
        let set = Distinct::<T::Native>::new(self.handle()?, reservation);
        let input = self.input.execute(partition, Arc::clone(context))?;
        let baseline = BaselineMetrics::new(&self.metrics, partition);
        let keys_read = MetricBuilder::new(&self.metrics).counter("keys_read", partition);
        let rows = context.session_config().batch_size();
        let batches = {
            let schema = Arc::clone(&schema);
            async move {
                let set = collect::<T>(set, input, &baseline, &keys_read).await?;
                let (keys, reservation) = set.finish();
                baseline.record_output(keys.len());
                let keys = PrimitiveArray::<T>::new(keys.into(), None);
                let starts = (0..keys.len()).step_by(rows.max(1));
                Ok::<_, DataFusionError>(stream::iter(starts).map(move |start| {
                    let _held = &reservation;
                    let part = keys.slice(start, rows.min(keys.len() - start));
                    Ok(RecordBatch::try_new(Arc::clone(&schema), vec![Arc::new(part) as ArrayRef])?)
                }))
            }
        };
        let batches = stream::once(batches).try_flatten();
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, batches)))
    }
}

/// The distinct keys of a whole partition.
async fn collect<T>(
    mut set: Distinct<T::Native>,
    mut input: SendableRecordBatchStream,
    baseline: &BaselineMetrics,
    keys_read: &Count,
) -> Result<Distinct<T::Native>>
where
    T: ArrowPrimitiveType<Native: Element>,
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
        if !set.has_room(keys.len()) {
            set = settle(set, baseline).await?;
            set.reserve(keys.len())?;
        }
        set.extend(keys);
    }
    settle(set, baseline).await
}

/// Calls the operator on a thread that may block.
async fn settle<K: Element>(
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
