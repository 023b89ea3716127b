//! One number a line.
//!
//! Decimal, with a sign if need be, and spaces or tabs around it; lines end with a
//! newline, or a carriage return and a newline, the last one perhaps with neither.
//! Everything else (a blank line, a second number, a number that the type does not have, more than 4096
//! bytes) is an error that names file, line and column, or is left out and
//! counted where [`Options::lenient`] says so.

pub(crate) mod bad;
mod file;
pub(crate) mod parse;
mod sink;
mod stream;

use std::path::Path;

use crate::input::Data;
use crate::{Input, Key, Result, Source};

pub use sink::TextSink;

/// How lines are read.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Options {
    /// Lines at the start that are not looked at: a header.
    pub skip_lines: u64,
    /// Leaves out lines that are no key, and counts them
    /// ([`Skipped`](crate::Skipped)).
    pub lenient: bool,
}

/// Opens a file of lines, every one a key.
///
/// # Errors
/// [`Error::Io`](crate::Error::Io) where it cannot be read.
pub fn open<K: Key>(path: &Path) -> Result<Box<dyn Source<K>>> {
    read(Input::open(path)?, Options::default())
}

/// Reads lines: of a regular file all threads read a share; a stream is read
/// from its start, and parsed by all threads.
///
/// # Errors
/// [`Error::Io`](crate::Error::Io) where it cannot be read.
pub fn read<K: Key>(input: Input, options: Options) -> Result<Box<dyn Source<K>>> {
    let Input { name, data, memory, .. } = input;
    Ok(match data {
        Data::File(file, bytes) => Box::new(file::TextFile::new(&name, file, bytes, options)?),
        Data::Stream(reader) => Box::new(stream::TextStream::new(&name, reader, memory, options)),
    })
}
