//! Files of made keys.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, RecordBatch, UInt64Array};
use datafusion::common::Result;
use datafusion::parquet::arrow::ArrowWriter;

/// How made keys are distributed and in which order they come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Keys of which this many bits differ, in random order: few bits make many duplicates.
    Random(u32),
    /// Ascending keys, each twice.
    Sorted,
    /// Three in four keys are below 2^16, and one in eight is 7.
    Skewed,
}

/// Makes four Parquet files with a column `key` of `keys` u64 keys in all, the same ones on every call.
///
/// # Errors
/// If a file cannot be written.
pub fn make(folder: &Path, keys: u64, shape: Shape) -> Result<Vec<PathBuf>> {
    const FILES: u64 = 4;
    let mut state = 1u64;
    let mut random = || {
        // The generator SplitMix64.
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (state ^ state >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    };
    let mut key = |index: u64| match shape {
        Shape::Random(bits) => random() >> (u64::BITS - bits),
        Shape::Sorted => (index / 2).wrapping_mul(u64::MAX / keys.max(1)),
        Shape::Skewed => match random() {
            key if index.is_multiple_of(8) => key,
            _ if index % 8 == 1 => 7,
            key if index % 8 == 2 => key >> 32,
            key => key >> 48,
        },
    };
    let mut paths = Vec::new();
    let mut index = 0;
    for file in 0..FILES {
        let mut left = keys / FILES + u64::from(file < keys % FILES);
        let path = folder.join(format!("keys-{file}.parquet"));
        let empty = UInt64Array::from(Vec::<u64>::new());
        let schema = RecordBatch::try_from_iter([("key", Arc::new(empty) as ArrayRef)])?.schema();
        let mut writer = ArrowWriter::try_new(File::create(&path)?, schema, None)?;
        while left > 0 {
            let some = left.min(1 << 16);
            let keys: UInt64Array = (index..index + some).map(&mut key).collect::<Vec<_>>().into();
            writer.write(&RecordBatch::try_from_iter([("key", Arc::new(keys) as ArrayRef)])?)?;
            left -= some;
            index += some;
        }
        writer.close()?;
        paths.push(path);
    }
    Ok(paths)
}
