//! Keys from the values of Arrow arrays.

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Date32Type, Date64Type, DurationMicrosecondType, DurationMillisecondType,
    DurationNanosecondType, DurationSecondType, Int8Type, Int16Type, Int32Type, Int64Type,
    Time32MillisecondType, Time32SecondType, Time64MicrosecondType, Time64NanosecondType,
    TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType,
    TimestampSecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef, ArrowPrimitiveType};
use arrow_buffer::NullBuffer;
use arrow_schema::{ArrowError, DataType, TimeUnit};
use arrow_select::take::take;
use spec::dtype::{as_bytes, as_bytes_mut};
use spec::{DType, Element};

use crate::Key;

/// Milliseconds in a day.
const DAY: i64 = 86_400_000;

/// The key type of an Arrow type; `None` for a type without keys.
pub(super) fn key_type(data_type: &DataType) -> Option<DType> {
    Some(match data_type {
        DataType::UInt64 => DType::U64,
        DataType::Int64 | DataType::Time64(_) | DataType::Timestamp(..) | DataType::Duration(_) => {
            DType::I64
        }
        DataType::UInt32 | DataType::UInt16 | DataType::UInt8 => DType::U32,
        DataType::Int32
        | DataType::Int16
        | DataType::Int8
        | DataType::Date32
        | DataType::Date64
        | DataType::Time32(_) => DType::I32,
        DataType::Dictionary(_, words) if !matches!(**words, DataType::Dictionary(..)) => {
            return key_type(words);
        }
        _ => return None,
    })
}

/// Whether an Arrow type is text or bytes, or words that are.
pub(super) fn is_text(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(_, words) => is_text(words),
        other => other.is_binary() || other.is_string(),
    }
}

/// A column of a record batch.
pub(super) struct Values {
    array: ArrayRef,
    /// The nulls of the structures that the column is in.
    outside: Option<NullBuffer>,
}

/// The reason why values are no keys.
pub(super) enum Bad {
    /// The file is damaged.
    Damaged(ArrowError),
    /// A value that is no key, and why.
    Value(String),
}

impl Values {
    /// The column in `array` that `path` leads to, by the indices of the columns of structures.
    pub(super) fn find(mut array: ArrayRef, path: &[usize]) -> Self {
        let mut outside = None;
        for &index in path {
            let structure = array.as_struct();
            outside = NullBuffer::union(outside.as_ref(), structure.nulls());
            let column = structure.column(index).clone();
            array = column;
        }
        Values { array, outside }
    }

    pub(super) fn len(&self) -> usize {
        self.array.len()
    }

    /// Writes the keys of `count` values from index `at` on to the start of `keys`. Returns the
    /// number of keys; the other values are null.
    pub(super) fn read<K: Key>(
        &self,
        at: usize,
        count: usize,
        keys: &mut [K],
    ) -> Result<usize, Bad> {
        let mut array = self.array.slice(at, count);
        if let Some(words) = array.as_any_dictionary_opt() {
            array = take(words.values(), words.keys(), None).map_err(Bad::Damaged)?;
        }
        let outside = self.outside.as_ref().map(|nulls| nulls.slice(at, count));
        let nulls = NullBuffer::union(outside.as_ref(), array.nulls());
        let nulls = nulls.filter(|nulls| nulls.null_count() > 0);
        let keys = &mut keys[..count];
        copy(&array, nulls.as_ref(), keys).map_err(Bad::Value)?;
        Ok(nulls.map_or(count, |nulls| keep(keys, &nulls)))
    }
}

/// Moves the keys that are not null to the front. Returns their number.
fn keep<K: Key>(keys: &mut [K], nulls: &NullBuffer) -> usize {
    let mut kept = 0;
    for index in 0..keys.len() {
        keys[kept] = keys[index];
        kept += usize::from(nulls.is_valid(index));
    }
    kept
}

/// Copies all values, of which those that are null may be any. `K` is the [`key_type`] of the array.
fn copy<K: Key>(
    array: &ArrayRef,
    nulls: Option<&NullBuffer>,
    keys: &mut [K],
) -> Result<(), String> {
    match array.data_type() {
        DataType::UInt64 => same::<UInt64Type, K>(array, keys),
        DataType::Int64 => same::<Int64Type, K>(array, keys),
        DataType::UInt32 => same::<UInt32Type, K>(array, keys),
        DataType::Int32 => same::<Int32Type, K>(array, keys),
        DataType::Date32 => same::<Date32Type, K>(array, keys),
        DataType::Time32(TimeUnit::Millisecond) => same::<Time32MillisecondType, K>(array, keys),
        DataType::Time64(TimeUnit::Microsecond) => same::<Time64MicrosecondType, K>(array, keys),
        DataType::Time64(_) => same::<Time64NanosecondType, K>(array, keys),
        DataType::Timestamp(TimeUnit::Millisecond, _) => {
            same::<TimestampMillisecondType, K>(array, keys);
        }
        DataType::Timestamp(TimeUnit::Microsecond, _) => {
            same::<TimestampMicrosecondType, K>(array, keys);
        }
        DataType::Timestamp(TimeUnit::Nanosecond, _) => {
            same::<TimestampNanosecondType, K>(array, keys);
        }
        DataType::Duration(unit) => match unit {
            TimeUnit::Second => same::<DurationSecondType, K>(array, keys),
            TimeUnit::Millisecond => same::<DurationMillisecondType, K>(array, keys),
            TimeUnit::Microsecond => same::<DurationMicrosecondType, K>(array, keys),
            TimeUnit::Nanosecond => same::<DurationNanosecondType, K>(array, keys),
        },
        DataType::UInt16 => return each::<UInt16Type, K>(array, nulls, keys, "", Some),
        DataType::UInt8 => return each::<UInt8Type, K>(array, nulls, keys, "", Some),
        DataType::Int16 => return each::<Int16Type, K>(array, nulls, keys, "", Some),
        DataType::Int8 => return each::<Int8Type, K>(array, nulls, keys, "", Some),
        // Parquet has dates of days alone, and no times of seconds.
        DataType::Date64 => {
            let days = |value| (value % DAY == 0).then_some(value / DAY);
            return each::<Date64Type, K>(array, nulls, keys, "is no date of whole days", days);
        }
        DataType::Time32(_) => {
            return each::<Time32SecondType, K>(array, nulls, keys, TOO_LATE, milliseconds);
        }
        _ => return each::<TimestampSecondType, K>(array, nulls, keys, TOO_LATE, milliseconds),
    }
    Ok(())
}

/// The reason why seconds are no key.
const TOO_LATE: &str = "is too many seconds for a number of milliseconds";

fn milliseconds(seconds: i64) -> Option<i64> {
    seconds.checked_mul(1000)
}

fn same<T: ArrowPrimitiveType<Native: Element>, K: Key>(array: &ArrayRef, keys: &mut [K]) {
    as_bytes_mut(keys).copy_from_slice(as_bytes(array.as_primitive::<T>().values()));
}

/// Converts each value that is not null. `what` says of a value without a key why it has none.
fn each<T: ArrowPrimitiveType<Native: Into<i64>>, K: Key>(
    array: &ArrayRef,
    nulls: Option<&NullBuffer>,
    keys: &mut [K],
    what: &str,
    convert: impl Fn(i64) -> Option<i64>,
) -> Result<(), String> {
    let values = array.as_primitive::<T>().values();
    for (index, (key, &value)) in keys.iter_mut().zip(values).enumerate() {
        if nulls.is_some_and(|nulls| nulls.is_null(index)) {
            continue;
        }
        let value: i64 = value.into();
        let number = convert(value);
        let found =
            number.and_then(|number| K::from_sign_magnitude(number < 0, number.unsigned_abs()));
        *key = found.ok_or_else(|| format!("{value}, which {what}"))?;
    }
    Ok(())
}
