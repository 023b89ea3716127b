//! An exchange by range for engines that shuffle by hash only.
//!
//! The engine sends a row to partition `hash(place) % ranges`. The function
//! `range_place` replaces a key by the `place` of its range, and the places are
//! chosen such that range `i` goes to partition `i`.

use std::sync::{Arc, LazyLock};

use datafusion::arrow::array::{
    Array, ArrayRef, ArrowPrimitiveType, AsArray, RecordBatch, UInt64Array,
};
use datafusion::arrow::datatypes::{
    DataType, Field, Int32Type, Int64Type, Schema, UInt32Type, UInt64Type,
};
use datafusion::common::{Result, ScalarValue, SplitPoint, exec_err, plan_err};
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use datafusion::physical_expr::expressions::{Column, Literal};
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use datafusion::physical_plan::Partitioning;
use datafusion::physical_plan::metrics::Time;
use datafusion::physical_plan::repartition::BatchPartitioner;

/// `range_place(key, points, places)`: `places[i]` for a key that `i` of the ascending `points`
/// do not exceed.
///
/// Points and places are arguments, so that an engine can send a call to a process that knows
/// the function by its name alone.
#[derive(Debug, PartialEq, Eq, Hash)]
struct RangePlace {
    signature: Signature,
}

/// The function `range_place`, which every process that executes a plan with
/// [`Exchange::RangeByHash`](crate::Exchange::RangeByHash) must know.
pub fn range_place() -> Arc<ScalarUDF> {
    static FUNCTION: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| {
        let signature = Signature::any(3, Volatility::Immutable);
        Arc::new(ScalarUDF::new_from_impl(RangePlace { signature }))
    });
    Arc::clone(&FUNCTION)
}

impl ScalarUDFImpl for RangePlace {
    fn name(&self) -> &str {
        "range_place"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::UInt64)
    }

    fn invoke_with_args(&self, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [keys, points, places] = call.args.as_slice() else {
            return exec_err!("range_place takes keys, points and places");
        };
        let keys = keys.to_array(call.number_rows)?;
        let (points, places) = (list(points)?, list(places)?);
        let places = places.as_primitive::<UInt64Type>().values();
        if points.data_type() != keys.data_type() || places.len() != points.len() + 1 {
            return exec_err!("range_place needs points of the keys' type, and one place more");
        }
        let placed = match keys.data_type() {
            DataType::Int32 => place::<Int32Type>(&keys, &points, places),
            DataType::UInt32 => place::<UInt32Type>(&keys, &points, places),
            DataType::Int64 => place::<Int64Type>(&keys, &points, places),
            DataType::UInt64 => place::<UInt64Type>(&keys, &points, places),
            other => return exec_err!("range_place takes no keys of type {other}"),
        };
        Ok(ColumnarValue::Array(Arc::new(placed)))
    }
}

/// The elements of a literal list.
fn list(value: &ColumnarValue) -> Result<ArrayRef> {
    match value {
        ColumnarValue::Scalar(ScalarValue::List(list)) if list.len() == 1 => Ok(list.value(0)),
        other => exec_err!("range_place takes a literal list, not {other:?}"),
    }
}

fn place<T: ArrowPrimitiveType<Native: Ord>>(
    keys: &dyn Array,
    points: &dyn Array,
    places: &[u64],
) -> UInt64Array {
    let points = points.as_primitive::<T>().values();
    let range = |key: &T::Native| points.partition_point(|point| point <= key);
    keys.as_primitive::<T>().values().iter().map(|key| places[range(key)]).collect()
}

/// Hash partitioning of which partition `i` holds the keys of range `i`; the ranges are split at
/// `points`.
///
/// # Errors
/// A plan error if the points do not ascend or are not of the type of `key`.
pub fn range_by_hash(
    key: Arc<dyn PhysicalExpr>,
    schema: &Schema,
    points: &[SplitPoint],
) -> Result<Partitioning> {
    let points: Vec<_> = points.iter().flat_map(|point| point.values()).cloned().collect();
    let kind = key.data_type(schema)?;
    if let Some(point) = points.iter().find(|point| point.data_type() != kind) {
        return plan_err!("the split point {point} is of another type than the keys, {kind}");
    }
    if !points.is_sorted_by(|a, b| a.partial_cmp(b).is_some_and(|order| order.is_lt())) {
        return plan_err!("the split points of ranges must ascend");
    }
    let ranges = points.len() + 1;
    let places: Vec<_> = places(ranges)?.into_iter().map(ScalarValue::from).collect();
    let literal = |values: &[ScalarValue], kind: &DataType| -> Arc<dyn PhysicalExpr> {
        let list = ScalarValue::new_list(values, kind, true);
        Arc::new(Literal::new(ScalarValue::List(list)))
    };
    let arguments = vec![key, literal(&points, &kind), literal(&places, &DataType::UInt64)];
    let options = Arc::new(ConfigOptions::default());
    let place = ScalarFunctionExpr::try_new(range_place(), arguments, schema, options)?;
    Ok(Partitioning::Hash(vec![Arc::new(place)], ranges))
}

/// For each of `ranges` partitions a number that the engine's hash sends there. DataFusion's own
/// partitioner finds them.
fn places(ranges: usize) -> Result<Vec<u64>> {
    let schema = Arc::new(Schema::new(vec![Field::new("place", DataType::UInt64, false)]));
    let column: Arc<dyn PhysicalExpr> = Arc::new(Column::new("place", 0));
    let mut partitioner =
        BatchPartitioner::new_hash_partitioner(vec![column], ranges, Time::new())?;
    let mut places = vec![None; ranges];
    let mut start = 0;
    while places.contains(&None) {
        let candidates = Arc::new(UInt64Array::from_iter_values(start..start + ranges as u64));
        let batch = RecordBatch::try_new(Arc::clone(&schema), vec![candidates])?;
        partitioner.partition(batch, |partition, batch| {
            let place = batch.column(0).as_primitive::<UInt64Type>().value(0);
            places[partition].get_or_insert(place);
            Ok(())
        })?;
        start += ranges as u64;
    }
    Ok(places.into_iter().flatten().collect())
}
