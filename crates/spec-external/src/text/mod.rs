//! One number a line.
//!
//! Decimal, with a sign if need be; lines end with a newline, or a carriage
//! return and a newline, the last one perhaps with neither. Everything else (a
//! blank line, a space, a number that the type does not have) is an error that
//! names file, line and column.

mod file;
mod parse;
mod sink;
mod stream;

use std::fs::File;
use std::path::Path;

use crate::{Error, Key, Result, Source};

pub use sink::TextSink;
pub use stream::TextStream;

/// Opens a file of lines: of a regular one all threads read a share; anything
/// else, such as a pipe, is read from its start, and parsed by all threads.
///
/// # Errors
/// [`Error::Io`] where it cannot be read.
pub fn open<'a, K: Key>(path: &Path) -> Result<Box<dyn Source<K> + 'a>> {
    let failed = |error| Error::io("read", path, error);
    let file = File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if metadata.is_dir() {
        return Err(failed(std::io::ErrorKind::IsADirectory.into()));
    }
    if !metadata.is_file() {
        return Ok(Box::new(TextStream::new(path, file)));
    }
    Ok(Box::new(file::TextFile::new(path, file, metadata.len())))
}
