//! A column of Parquet or Arrow files, and distinct keys as a Parquet file.
//!
//! A column is u64, i64, u32 or i32 (or narrower integers, read as the 32-bit
//! type of their sign), without nulls: a null is no key, and neither dropping it
//! nor giving it a number is ours to decide, so the first one found is an error
//! that names the column. Arrow files are those of the IPC file format, which
//! Feather version 2 is too.

mod arrow;
mod parquet;
mod parquet_sink;
mod reader;

use std::fs::File;
use std::path::Path;

use spec_core::DType;

use crate::{Error, Key, Place, Result, Source, os};

pub use parquet_sink::ParquetSink;

/// What a file starts with.
enum Format {
    Parquet,
    Arrow,
}

/// Opens column `column` of a file, whose type must be `K`.
///
/// # Errors
/// [`Error::Io`] where it cannot be read, [`Error::Data`] where it is neither a
/// Parquet nor an Arrow file, lacks the column, or has it with another type.
pub fn open<'a, K: Key>(path: &Path, column: &str) -> Result<Box<dyn Source<K> + 'a>> {
    let (file, format) = recognise(path)?;
    let (found, source): (DType, Box<dyn Source<K> + 'a>) = match format {
        Format::Parquet => {
            let source = parquet::ParquetColumn::open(path, file, column)?;
            (source.dtype(), Box::new(source))
        }
        Format::Arrow => {
            let source = arrow::ArrowColumn::open(path, file, column)?;
            (source.dtype(), Box::new(source))
        }
    };
    if found != K::DTYPE {
        let message = format!("column {column} is {}, not {}", name(found), K::NAME);
        return Err(Error::data(path, Place::Whole, message));
    }
    Ok(source)
}

/// The type of column `column`: u64, i64, u32 or i32.
///
/// # Errors
/// As [`open`], and [`Error::Data`] where it is none of these.
pub fn dtype(path: &Path, column: &str) -> Result<DType> {
    let (file, format) = recognise(path)?;
    match format {
        Format::Parquet => Ok(parquet::ParquetColumn::open(path, file, column)?.dtype()),
        Format::Arrow => Ok(arrow::ArrowColumn::open(path, file, column)?.dtype()),
    }
}

fn recognise(path: &Path) -> Result<(File, Format)> {
    let failed = |error| Error::io("read", path, error);
    let file = File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if metadata.is_dir() {
        return Err(failed(std::io::ErrorKind::IsADirectory.into()));
    }
    if !metadata.is_file() {
        let message = "is no regular file; a Parquet or Arrow file cannot be read from a pipe";
        return Err(Error::data(path, Place::Whole, message));
    }
    let mut magic = [0; 6];
    os::read_full(&file, &mut magic, 0).map_err(failed)?;
    match &magic {
        [b'P', b'A', b'R', b'1', ..] => Ok((file, Format::Parquet)),
        b"ARROW1" => Ok((file, Format::Arrow)),
        _ => Err(Error::data(path, Place::Whole, "is neither a Parquet nor an Arrow file")),
    }
}

fn name(dtype: DType) -> &'static str {
    match dtype {
        DType::U64 => u64::NAME,
        DType::I64 => i64::NAME,
        DType::U32 => u32::NAME,
        _ => i32::NAME,
    }
}

/// The column is not in the file.
fn missing<'a>(path: &Path, column: &str, there: impl Iterator<Item = &'a str>) -> Error {
    const SHOWN: usize = 20;
    let mut names: Vec<&str> = there.take(SHOWN + 1).collect();
    if names.len() > SHOWN {
        names[SHOWN] = "..";
    }
    let message = format!("has no column {column}; it has {}", names.join(", "));
    Error::data(path, Place::Whole, message)
}

/// The column is of a type that is none of a key's.
fn no_key_type(path: &Path, column: &str, what: &str) -> Error {
    let message = format!("column {column} is {what}; it must be u64, i64, u32 or i32");
    Error::data(path, Place::Whole, message)
}

/// The column has nulls.
fn nulls(path: &Path, column: &str, count: u64) -> Error {
    let nulls = if count == 1 { "a null" } else { "nulls" };
    let message = format!("column {column} has {nulls} ({count} seen), and a null is no key");
    Error::data(path, Place::Whole, message)
}
