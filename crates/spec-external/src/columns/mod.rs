//! Reads a column of Parquet or Arrow files, and writes distinct keys as a Parquet file.
//!
//! A column is u64, i64, u32 or i32. Narrower integers are read as the 32-bit type of their sign, and
//! Arrow's dictionaries of integers as their integers.
//!
//! Dates and times are integers too, the same whether a table is a Parquet or an Arrow file. A date
//! is its number of days since 1970-01-01, in 32 bits. A time or a timestamp counts the unit of its
//! column: milliseconds, microseconds or nanoseconds. Arrow's seconds, which Parquet does not have,
//! are milliseconds. A duration counts the unit of its column, seconds included.
//!
//! The name of a column in a structure is the names that lead to it, with dots between them:
//! `user.id`. A name must be of one column alone: if a file has two columns `id`, or a column
//! `user.id` beside a structure `user` with an `id`, neither can be read.
//!
//! A null is not a key, and only the caller can decide whether to drop it: the first null is an
//! error that names the column, unless [`Options::skip_nulls`] is set. A column is null where its
//! structure is null.
//!
//! Arrow files are files of the IPC file format, which includes Feather version 2. Parquet's pages
//! may be compressed with Snappy, gzip, zstd, LZ4 or not at all; if a page has a checksum, it is
//! checked.
//!
//! A damaged file may claim any length. Lengths are compared with the size of the file before
//! memory is allocated, and a panic of the crates that read such files becomes an error.

mod arrow;
mod arrow_values;
mod pages;
mod parquet;
mod parquet_sink;
mod reader;
mod thrift;

use std::path::{Path, PathBuf};

use spec::DType;

use crate::caught::catch;
use crate::input::Data;
use crate::{Content, Error, Input, Key, Place, Result, Source};

pub use parquet_sink::ParquetSink;

/// The options of reading a column.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Options {
    /// Leaves out nulls and counts them ([`Skipped`](crate::Skipped)).
    pub skip_nulls: bool,
}

/// Opens the column `column` of a file, whose type must be `K`.
///
/// # Errors
/// [`Error::Io`] where the file cannot be read, [`Error::Data`] where it is neither a
/// Parquet nor an Arrow file, lacks the column, or has it with another type.
pub fn open<K: Key>(path: &Path, column: &str) -> Result<Box<dyn Source<K>>> {
    open_with(path, column, Options::default())
}

/// As [`open`], with options.
///
/// # Errors
/// As [`open`].
pub fn open_with<K: Key>(
    path: &Path,
    column: &str,
    options: Options,
) -> Result<Box<dyn Source<K>>> {
    let (found, source): (DType, Box<dyn Source<K>>) = match recognise(path, column, options)? {
        Column::Parquet(source) => (source.dtype(), source),
        Column::Arrow(source) => (source.dtype(), source),
    };
    if found != K::DTYPE {
        let message = format!("column {column} is {}, not {}", name(found), K::NAME);
        return Err(Error::data(path, Place::Whole, message));
    }
    Ok(source)
}

/// The key type of the column `column`: u64, i64, u32 or i32.
///
/// # Errors
/// As [`open`], and [`Error::Data`] where the column has another type.
pub fn dtype(path: &Path, column: &str) -> Result<DType> {
    Ok(match recognise(path, column, Options { skip_nulls: true })? {
        Column::Parquet(source) => source.dtype(),
        Column::Arrow(source) => source.dtype(),
    })
}

/// The Parquet and Arrow files of a folder and of the folders in it, in the order
/// of their paths. The extension decides. Names that begin with a dot or an
/// underscore are left out, since they mark files that are not data.
///
/// # Errors
/// [`Error::Io`] where a folder cannot be read, [`Error::Data`] where there is
/// no such file.
pub fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let failed = |error| Error::io("read", &folder, error);
        for entry in folder.read_dir().map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let (path, name) = (entry.path(), entry.file_name());
            if matches!(name.as_encoded_bytes().first(), Some(b'.' | b'_')) {
                continue;
            }
            let extension = path.extension().and_then(|extension| extension.to_str());
            let is_named =
                matches!(extension, Some("parquet" | "pq" | "arrow" | "feather" | "ipc"));
            // Links to folders are not followed, because they may lead back.
            if entry.file_type().map_err(failed)?.is_dir() {
                folders.push(path);
            } else if is_named && path.is_file() {
                files.push(path);
            }
        }
    }
    if files.is_empty() {
        let message = "has no Parquet or Arrow file (*.parquet, *.arrow) in it";
        return Err(Error::data(folder, Place::Whole, message));
    }
    files.sort();
    Ok(files)
}

enum Column {
    Parquet(Box<parquet::ParquetColumn>),
    Arrow(Box<arrow::ArrowColumn>),
}

fn recognise(path: &Path, column: &str, options: Options) -> Result<Column> {
    let input = Input::open(path)?;
    let content = input.content();
    let Data::File(file, _) = input.data else {
        let message = "is no regular file; a Parquet or Arrow file cannot be read from a pipe";
        return Err(Error::data(path, Place::Whole, message));
    };
    match content {
        Content::Parquet => {
            let open = || parquet::ParquetColumn::open(path, file, column, options);
            Ok(Column::Parquet(Box::new(parquet::guarded(path, open)?)))
        }
        Content::Arrow => {
            let open = || arrow::ArrowColumn::open(path, file, column, options);
            Ok(Column::Arrow(Box::new(arrow::guarded(path, open)?)))
        }
        Content::Unknown => {
            Err(Error::data(path, Place::Whole, "is neither a Parquet nor an Arrow file"))
        }
        other => {
            let message = format!("is neither a Parquet nor an Arrow file, but {}", other.name());
            Err(Error::data(path, Place::Whole, message))
        }
    }
}

/// Runs work that reads a file; a panic becomes an error that the file is damaged.
fn guarded<T>(
    path: &Path,
    damaged: fn(&Path, &str) -> Error,
    work: impl FnOnce() -> Result<T>,
) -> Result<T> {
    catch(work).unwrap_or_else(|words| Err(damaged(path, &words)))
}

fn name(dtype: DType) -> &'static str {
    match dtype {
        DType::U64 => u64::NAME,
        DType::I64 => i64::NAME,
        DType::U32 => u32::NAME,
        _ => i32::NAME,
    }
}

/// The error for a column whose type is not a key type.
fn no_key_type(path: &Path, column: &str, what: &str) -> Error {
    let message =
        format!("column {column} is {what}; it must be u64, i64, u32, i32, a date or a time");
    Error::data(path, Place::Whole, message)
}

/// The error for a column of text or bytes.
fn no_text(path: &Path, column: &str) -> Error {
    let message = format!(
        "column {column} is text, and keys are numbers: hashes of 64 bits would make one of two \
         texts that have the same, without a word. Number the texts first, or find the distinct \
         ones with DuckDB, polars or sort -u"
    );
    Error::data(path, Place::Whole, message)
}

/// The error for a column with nulls.
fn nulls(path: &Path, column: &str, count: u64) -> Error {
    let nulls = if count == 1 { "a null" } else { "nulls" };
    let message =
        format!("column {column} has {nulls} ({count} seen), and a null is no key (--skip-nulls)");
    Error::data(path, Place::Whole, message)
}
