//! A column of an Arrow IPC file, record batches by several threads.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef, ArrowPrimitiveType};
use arrow_ipc::reader::{FileReader, FileReaderBuilder, read_footer_length};
use arrow_schema::{ArrowError, DataType};
use spec_core::dtype::{as_bytes, as_bytes_mut};
use spec_core::{DType, Element};

use super::reader::Shared;
use super::{missing, no_key_type, nulls};
use crate::{Error, Key, Part, Place, Result, Source};

/// Bytes of record batches that a part has at least, if the file has as many.
const PART: u64 = 16 << 20;
/// The end of a file: the footer's length and the magic word.
const TAIL: u64 = 10;

/// One column of an Arrow file.
pub(super) struct ArrowColumn {
    path: PathBuf,
    name: String,
    file: Shared,
    /// Its index in the file.
    column: usize,
    dtype: DType,
    /// Bytes of each record batch, all columns of it.
    batches: Vec<u64>,
    /// The record batches of each part.
    parts: Vec<Range<usize>>,
}

impl ArrowColumn {
    pub(super) fn open(path: &Path, file: File, name: &str) -> Result<Self> {
        let file = Shared::new(file).map_err(|error| Error::io("read", path, error))?;
        let reader = FileReaderBuilder::new().build(file.clone());
        let schema = reader.map_err(|error| failed(path, error))?.schema();
        let names = || schema.fields().iter().map(|field| field.name().as_str());
        let found = names().position(|there| there == name);
        let column = found.ok_or_else(|| missing(path, name, names()))?;
        let dtype = match schema.field(column).data_type() {
            DataType::UInt64 => DType::U64,
            DataType::Int64 => DType::I64,
            DataType::UInt32 | DataType::UInt16 | DataType::UInt8 => DType::U32,
            DataType::Int32 | DataType::Int16 | DataType::Int8 => DType::I32,
            other => return Err(no_key_type(path, name, &other.to_string())),
        };
        let batches = batches(path, file.clone())?;
        let (mut parts, mut start, mut gathered) = (Vec::new(), 0, 0);
        for (index, bytes) in batches.iter().enumerate() {
            gathered += bytes;
            if gathered >= PART || index + 1 == batches.len() {
                parts.push(start..index + 1);
                (start, gathered) = (index + 1, 0);
            }
        }
        let (path, name) = (path.to_owned(), name.to_owned());
        Ok(ArrowColumn { path, name, file, column, dtype, batches, parts })
    }

    pub(super) fn dtype(&self) -> DType {
        self.dtype
    }
}

/// Bytes of each record batch, from the footer.
fn batches(path: &Path, mut file: Shared) -> Result<Vec<u64>> {
    let failed = |error| Error::io("read", path, error);
    let mut tail = [0; TAIL as usize];
    file.seek(SeekFrom::End(-(TAIL as i64))).map_err(failed)?;
    file.read_exact(&mut tail).map_err(failed)?;
    let length = read_footer_length(tail).map_err(|error| self::failed(path, error))?;
    let start = file.size().checked_sub(TAIL + length as u64);
    let start = start.ok_or_else(|| damaged(path, "its footer is longer than the file"))?;
    file.seek(SeekFrom::Start(start)).map_err(failed)?;
    let mut footer = vec![0; length];
    file.read_exact(&mut footer).map_err(failed)?;
    let footer =
        arrow_ipc::root_as_footer(&footer).map_err(|error| damaged(path, &error.to_string()))?;
    let blocks = footer.recordBatches().map(|blocks| blocks.iter().collect::<Vec<_>>());
    let bytes = blocks.unwrap_or_default().into_iter().map(|block| {
        (block.metaDataLength().max(0) as u64).saturating_add(block.bodyLength().max(0) as u64)
    });
    Ok(bytes.collect())
}

/// An operating system's refusal, or the file's fault.
fn failed(path: &Path, error: ArrowError) -> Error {
    use std::io::ErrorKind::{InvalidInput, UnexpectedEof};
    match error {
        // A length or an offset in the file that leads out of it.
        ArrowError::IoError(_, error) if matches!(error.kind(), InvalidInput | UnexpectedEof) => {
            damaged(path, "it ends early")
        }
        ArrowError::IoError(_, error) => Error::io("read", path, error),
        other => damaged(path, &other.to_string()),
    }
}

fn damaged(path: &Path, what: &str) -> Error {
    Error::data(path, Place::Whole, format!("is no Arrow file that can be read: {what}"))
}

impl<K: Key> Source<K> for ArrowColumn {
    /// The footer does not say.
    fn keys(&self) -> Option<u64> {
        None
    }

    fn bytes(&self) -> Option<u64> {
        Some(self.batches.iter().sum())
    }

    fn parts(&self) -> usize {
        self.parts.len()
    }

    /// A record batch, packed and unpacked.
    fn part_memory(&self) -> usize {
        2 * self.batches.iter().copied().max().unwrap_or(0) as usize
    }

    fn open(&self, part: usize) -> Result<Box<dyn Part<K> + Send + '_>> {
        let batches = self.parts[part].clone();
        let reader = FileReaderBuilder::new().with_projection(vec![self.column]);
        let mut reader =
            reader.build(self.file.clone()).map_err(|error| failed(&self.path, error))?;
        reader.set_index(batches.start).map_err(|error| failed(&self.path, error))?;
        Ok(Box::new(Batches { column: self, reader, batches, array: None, at: 0, bytes: 0 }))
    }
}

/// A part: record batches one after the other.
struct Batches<'a> {
    column: &'a ArrowColumn,
    reader: FileReader<Shared>,
    /// Those that have not been started.
    batches: Range<usize>,
    /// The one that is being read.
    array: Option<ArrayRef>,
    /// Keys of it that have been read.
    at: usize,
    bytes: u64,
}

impl<K: Key> Part<K> for Batches<'_> {
    fn read(&mut self, keys: &mut [K]) -> Result<usize> {
        let file = self.column;
        loop {
            if let Some(array) = &self.array {
                let count = keys.len().min(array.len() - self.at);
                if count > 0 {
                    copy(array, self.at, &mut keys[..count]);
                    self.at += count;
                    return Ok(count);
                }
            }
            let Some(index) = self.batches.next() else { return Ok(0) };
            let batch = self.reader.next().unwrap_or_else(|| {
                Err(ArrowError::IpcError("a record batch is missing".to_owned()))
            });
            let batch = batch.map_err(|error| failed(&file.path, error))?;
            let array = batch.column(0);
            if array.null_count() > 0 {
                return Err(nulls(&file.path, &file.name, array.null_count() as u64));
            }
            self.bytes += file.batches[index];
            (self.array, self.at) = (Some(array.clone()), 0);
        }
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Copies `keys.len()` values from `at` on; the caller has matched `K` to the
/// type of the column.
fn copy<K: Key>(array: &ArrayRef, at: usize, keys: &mut [K]) {
    match array.data_type() {
        DataType::UInt64 => same::<UInt64Type, K>(array, at, keys),
        DataType::Int64 => same::<Int64Type, K>(array, at, keys),
        DataType::UInt32 => same::<UInt32Type, K>(array, at, keys),
        DataType::Int32 => same::<Int32Type, K>(array, at, keys),
        DataType::UInt16 => widened::<UInt16Type, K>(array, at, keys),
        DataType::UInt8 => widened::<UInt8Type, K>(array, at, keys),
        DataType::Int16 => widened::<Int16Type, K>(array, at, keys),
        _ => widened::<Int8Type, K>(array, at, keys),
    }
}

fn same<T: ArrowPrimitiveType<Native: Element>, K: Key>(
    array: &ArrayRef,
    at: usize,
    keys: &mut [K],
) {
    let values = &array.as_primitive::<T>().values()[at..at + keys.len()];
    as_bytes_mut(keys).copy_from_slice(as_bytes(values));
}

fn widened<T: ArrowPrimitiveType<Native: Into<i64>>, K: Key>(
    array: &ArrayRef,
    at: usize,
    keys: &mut [K],
) {
    let values = &array.as_primitive::<T>().values()[at..at + keys.len()];
    for (key, &value) in keys.iter_mut().zip(values) {
        let value: i64 = value.into();
        let widened = K::from_sign_magnitude(value < 0, value.unsigned_abs());
        *key = widened.expect("a narrower type's value fits a wider one of its sign");
    }
}
