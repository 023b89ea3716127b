//! The text format: one number per line.
//!
//! A number is decimal, with an optional sign, and may have spaces or tabs around it. A line ends
//! with a newline, or with a carriage return and a newline; the last line may have no end.
//! A byte order mark at the start is no part of the first line.
//!
//! Every other line (a blank line, a second number, a number that is out of the type's range, more
//! than 4096 bytes, spaces and leading zeros included) is an error that names file, line and column.
//! With [`Options::lenient`], such lines are left out and counted instead.

pub(crate) mod bad;
mod file;
pub(crate) mod parse;
mod sink;
mod stream;

use std::path::Path;

use crate::content::MARK;
use crate::input::Data;
use crate::{Error, Input, Key, Place, Result, Source};

pub use sink::TextSink;

/// The options of reading lines.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Options {
    /// The number of lines at the start that are skipped, such as a header.
    pub skip_lines: u64,
    /// Leaves out lines that are not keys, and counts them
    /// ([`Skipped`](crate::Skipped)).
    pub lenient: bool,
}

/// Opens a file of lines, each of which is a key.
///
/// # Errors
/// [`Error::Io`] where it cannot be read.
pub fn open<K: Key>(path: &Path) -> Result<Box<dyn Source<K>>> {
    read(Input::open(path)?, Options::default())
}

/// Reads the lines of an input. All threads read a regular file, each a share of it. A stream is
/// read from its start, and parsed by all threads.
///
/// # Errors
/// [`Error::Io`] where it cannot be read.
pub fn read<K: Key>(input: Input, options: Options) -> Result<Box<dyn Source<K>>> {
    let Input { name, data, memory, head } = input;
    let mark = if head.starts_with(MARK) { MARK.len() } else { 0 };
    Ok(match data {
        Data::File(file, bytes) => {
            Box::new(file::TextFile::new(&name, file, bytes, mark as u64, options)?)
        }
        Data::Stream(mut reader) => {
            reader
                .read_exact(&mut [0; MARK.len()][..mark])
                .map_err(|error| Error::io("read", &name, error))?;
            Box::new(stream::TextStream::new(&name, reader, memory, mark as u64, options))
        }
    })
}

/// A place in a line, before the first of which there are `mark` bytes.
fn in_line(line: u64, column: u64, mark: u64) -> Place {
    Place::Line { line, column: if line == 1 { column + mark } else { column } }
}
