//! Columns of Arrow files.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use arrow_array::types::Int8Type;
use arrow_array::{
    Array, ArrayRef, Date32Array, Date64Array, DictionaryArray, DurationSecondArray, Int8Array,
    Int32Array, Int64Array, RecordBatch, StringArray, Time32SecondArray, Time64NanosecondArray,
    TimestampMillisecondArray, TimestampSecondArray, UInt16Array, UInt32Array, UInt64Array,
};
use arrow_buffer::NullBuffer;
use arrow_ipc::CompressionType;
use arrow_ipc::writer::{FileWriter, IpcWriteOptions};
use arrow_schema::DataType;
use spec::DType;
use spec_conformance::Rng;
use spec_external::Place;
use spec_external::columns;

use super::{about, random_keys, read, sorted};

fn file(path: &Path, packed: Option<CompressionType>, batches: Vec<Vec<(&str, ArrayRef)>>) {
    let batches: Vec<_> = batches
        .into_iter()
        .map(|columns| {
            let columns = columns.into_iter().map(|(name, column)| (name, column, true));
            RecordBatch::try_from_iter_with_nullable(columns).unwrap()
        })
        .collect();
    let options = IpcWriteOptions::default().try_with_compression(packed).unwrap();
    let schema = batches[0].schema();
    let file = File::create(path).unwrap();
    let mut writer = FileWriter::try_new_with_options(file, &schema, options).unwrap();
    for batch in &batches {
        writer.write(batch).unwrap();
    }
    writer.finish().unwrap();
}

#[test]
fn record_batches_share_out_among_parts() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys.arrow");
    let keys: Vec<u64> = random_keys(1, 3_000_000);
    for packed in [None, Some(CompressionType::LZ4_FRAME), Some(CompressionType::ZSTD)] {
        let batches = keys.chunks(300_000).map(|keys| {
            let names: ArrayRef = Arc::new(StringArray::from(vec!["x"; keys.len()]));
            let keys: ArrayRef = Arc::new(UInt64Array::from(keys.to_vec()));
            vec![("name", names), ("key", keys)]
        });
        file(&path, packed, batches.collect());
        assert_eq!(columns::dtype(&path, "key").unwrap(), DType::U64);
        let source = columns::open::<u64>(&path, "key").unwrap();
        assert!(packed.is_some() || source.parts() > 1, "{} parts", source.parts());
        let (found, bytes) = read(&*source).unwrap();
        assert!(sorted(found) == sorted(keys.clone()), "{packed:?}");
        assert_eq!(Some(bytes), source.bytes());
    }
}

#[test]
fn every_type_of_key_and_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("types.arrow");
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("u64", Arc::new(UInt64Array::from(vec![u64::MAX, 1]))),
        ("i64", Arc::new(Int64Array::from(vec![i64::MIN, 1]))),
        ("u32", Arc::new(UInt32Array::from(vec![u32::MAX, 1]))),
        ("i32", Arc::new(Int32Array::from(vec![i32::MIN, 1]))),
        ("u16", Arc::new(UInt16Array::from(vec![u16::MAX, 1]))),
        ("i8", Arc::new(Int8Array::from(vec![i8::MIN, 1]))),
        ("text", Arc::new(StringArray::from(vec!["a", "b"]))),
        ("nulls", Arc::new(Int64Array::from(vec![None, Some(1)]))),
        ("time", Arc::new(Time64NanosecondArray::from(vec![-5, 7]))),
        ("stamp", Arc::new(TimestampMillisecondArray::from(vec![-5, 7]).with_timezone("+01:00"))),
        ("long", Arc::new(DurationSecondArray::from(vec![-5, 7]))),
        ("day", Arc::new(Date32Array::from(vec![-5, 7]))),
    ];
    file(&path, None, vec![columns]);
    let open = columns::open::<u64>;
    assert_eq!(read(&*open(&path, "u64").unwrap()).unwrap().0, [u64::MAX, 1]);
    let signed = columns::open::<i64>(&path, "i64").unwrap();
    assert_eq!(read(&*signed).unwrap().0, [i64::MIN, 1]);
    for (name, first) in [("u32", u32::MAX), ("u16", u32::from(u16::MAX))] {
        assert_eq!(columns::dtype(&path, name).unwrap(), DType::U32);
        let keys = read(&*columns::open::<u32>(&path, name).unwrap()).unwrap().0;
        assert_eq!(keys, [first, 1]);
    }
    for (name, first) in [("i32", i32::MIN), ("i8", i32::from(i8::MIN))] {
        assert_eq!(columns::dtype(&path, name).unwrap(), DType::I32);
        let keys = read(&*columns::open::<i32>(&path, name).unwrap()).unwrap().0;
        assert_eq!(keys, [first, 1]);
    }
    let (_, message) = about(&path, open(&path, "i64"));
    assert_eq!(message, "column i64 is i64, not u64");
    let (_, message) = about(&path, columns::dtype(&path, "text"));
    assert!(message.starts_with("column text is text, and keys are numbers: hashes"), "{message}");
    let (_, message) = about(&path, columns::dtype(&path, "key"));
    assert!(message.starts_with("has no column key; it has u64, i64, u32"), "{message}");
    let nulls = columns::open::<i64>(&path, "nulls").unwrap();
    let (_, message) = about(&path, read(&*nulls));
    assert_eq!(message, "column nulls has a null (1 seen), and a null is no key (--skip-nulls)");
    let mut options = columns::Options::default();
    options.skip_nulls = true;
    let nulls = columns::open_with::<i64>(&path, "nulls", options).unwrap();
    assert_eq!(read(&*nulls).unwrap().0, [1]);
    assert_eq!(nulls.skipped().unwrap().nulls, 1);
    // Dates and times as they are stored.
    for name in ["time", "stamp", "long"] {
        assert_eq!(columns::dtype(&path, name).unwrap(), DType::I64, "{name}");
        let keys = read(&*columns::open::<i64>(&path, name).unwrap()).unwrap().0;
        assert_eq!(keys, [-5, 7], "{name}");
    }
    let days = read(&*columns::open::<i32>(&path, "day").unwrap()).unwrap().0;
    assert_eq!(days, [-5, 7]);
}

/// A dictionary may have words that are no key, null or not used, and be of a column of text.
#[test]
fn words_that_are_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("words.arrow");
    let numbers = Int64Array::from(vec![Some(7), None, Some(-7), Some(5)]);
    let words = |keys: Vec<Option<i8>>| -> ArrayRef {
        Arc::new(DictionaryArray::new(Int8Array::from(keys), Arc::new(numbers.clone())))
    };
    let texts: DictionaryArray<Int8Type> = vec!["a", "b", "a", "a"].into_iter().collect();
    let days = Date64Array::from(vec![DAY, 5]);
    let days: ArrayRef =
        Arc::new(DictionaryArray::new(Int8Array::from(vec![0; 4]), Arc::new(days)));
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("text", Arc::new(texts)),
        ("nulls", words(vec![Some(0), Some(1), None, Some(2)])),
        ("key", words(vec![Some(0), Some(2), Some(2), Some(0)])),
        ("day", days),
    ];
    for packed in [None, Some(CompressionType::ZSTD)] {
        file(&path, packed, vec![columns.clone()]);
        let key = columns::open::<i64>(&path, "key").unwrap();
        assert_eq!(read(&*key).unwrap().0, [7, -7, -7, 7]);
        let (_, message) = about(&path, columns::dtype(&path, "text"));
        assert!(message.starts_with("column text is text, and keys are numbers"), "{message}");
        let nulls = columns::open::<i64>(&path, "nulls").unwrap();
        let (_, message) = about(&path, read(&*nulls));
        assert_eq!(message, "column nulls has nulls (2 seen), and a null is no key (--skip-nulls)");
        let mut options = columns::Options::default();
        options.skip_nulls = true;
        let nulls = columns::open_with::<i64>(&path, "nulls", options).unwrap();
        assert_eq!(read(&*nulls).unwrap().0, [7, -7]);
        assert_eq!(nulls.skipped().unwrap().nulls, 2);
        let day = columns::open::<i32>(&path, "day").unwrap();
        assert_eq!(read(&*day).unwrap().0, [1; 4]);
    }
}

/// Milliseconds in a day.
const DAY: i64 = 86_400_000;

#[test]
fn dates_and_seconds_that_are_no_key() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("late.arrow");
    let day = |value| -> ArrayRef { Arc::new(Date64Array::from(vec![DAY, value])) };
    let second = |value| -> ArrayRef { Arc::new(TimestampSecondArray::from(vec![0, value])) };
    let good = [
        (day(i64::from(i32::MIN) * DAY), i64::from(i32::MIN)),
        (day(i64::from(i32::MAX) * DAY), i64::from(i32::MAX)),
        (second(i64::MAX / 1000), i64::MAX / 1000 * 1000),
        (second(i64::MIN / 1000), i64::MIN / 1000 * 1000),
    ];
    for (column, last) in good {
        let is_day = *column.data_type() == DataType::Date64;
        file(&path, None, vec![vec![("key", column)]]);
        let found = if is_day {
            read(&*columns::open::<i32>(&path, "key").unwrap()).unwrap().0[1].into()
        } else {
            read(&*columns::open::<i64>(&path, "key").unwrap()).unwrap().0[1]
        };
        assert_eq!(found, last);
    }
    let (no_date, too_late) =
        ("is no date of whole days", "is too many seconds for a number of milliseconds");
    let clock: ArrayRef = Arc::new(Time32SecondArray::from(vec![0, 3_000_000]));
    let bad = [
        (day(5), 5, no_date),
        (day(-1), -1, no_date),
        (day((i64::from(i32::MAX) + 1) * DAY), (i64::from(i32::MAX) + 1) * DAY, no_date),
        (second(i64::MAX / 1000 + 1), i64::MAX / 1000 + 1, too_late),
        (clock, 3_000_000, too_late),
    ];
    for (column, value, why) in bad {
        file(&path, None, vec![vec![("key", column)]]);
        let result = match columns::dtype(&path, "key").unwrap() {
            DType::I32 => read(&*columns::open::<i32>(&path, "key").unwrap()).map(drop),
            _ => read(&*columns::open::<i64>(&path, "key").unwrap()).map(drop),
        };
        let (_, message) = about(&path, result);
        assert_eq!(message, format!("column key holds {value}, which {why}"));
    }
    // What a null holds does not matter.
    let nulls = NullBuffer::from(vec![true, false]);
    let days = Date64Array::new(vec![DAY, 5].into(), Some(nulls));
    file(&path, None, vec![vec![("key", Arc::new(days))]]);
    let mut options = columns::Options::default();
    options.skip_nulls = true;
    let days = columns::open_with::<i32>(&path, "key", options).unwrap();
    assert_eq!(read(&*days).unwrap().0, [1]);
}

#[test]
fn damaged_files_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("damaged.arrow");
    let keys: ArrayRef = Arc::new(UInt64Array::from(random_keys(2, 3000)));
    file(&path, None, vec![vec![("key", Arc::clone(&keys))], vec![("key", keys)]]);
    let whole = fs::read(&path).unwrap();
    for length in [6, 8, 9, 16, 100, whole.len() / 2, whole.len() - 1] {
        fs::write(&path, &whole[..length]).unwrap();
        let (place, _) = about(&path, columns::open::<u64>(&path, "key"));
        assert_eq!(place, Place::Whole);
    }
    // Any byte may be wrong: the result is an error or other keys, but no panic and no abort.
    let mut random = Rng::new(7, "damage");
    let mut failed = 0;
    for round in 0..600 {
        let mut damaged = whole.clone();
        // Mostly bytes of the footer and of the heads of batches, which hold the lengths.
        let from = [0, whole.len() - 500, 400][round % 3];
        let len = [whole.len(), 500, 400][round % 3];
        for _ in 0..=round % 2 {
            damaged[from + random.below(len)] = random.next() as u8;
        }
        fs::write(&path, damaged).unwrap();
        failed += i32::from(columns::open::<u64>(&path, "key").and_then(|s| read(&*s)).is_err());
    }
    // Most damage hits keys and cannot be noticed.
    assert!(failed > 50, "{failed}");
}

/// The unpacked length that a packed column claims may be wrong.
#[test]
fn a_length_that_cannot_be_is_not_believed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("packed.arrow");
    let keys: ArrayRef = Arc::new(UInt64Array::from(vec![7; 3000]));
    for packed in [CompressionType::LZ4_FRAME, CompressionType::ZSTD] {
        file(&path, Some(packed), vec![vec![("key", Arc::clone(&keys))]]);
        let whole = fs::read(&path).unwrap();
        let length = 24_000u64.to_le_bytes();
        let at = whole.windows(8).position(|bytes| bytes == length).unwrap();
        for wrong in [u64::MAX / 2, 6_600_000_000_000_000_000, 1 << 44, 24_001, 1, 0] {
            let mut damaged = whole.clone();
            damaged[at..at + 8].copy_from_slice(&wrong.to_le_bytes());
            fs::write(&path, damaged).unwrap();
            let source = columns::open::<u64>(&path, "key").unwrap();
            let (_, message) = about(&path, read(&*source));
            assert!(message.starts_with("is no Arrow file that can be read: "), "{message}");
        }
    }
}
