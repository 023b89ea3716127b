//! A column of a CSV file, and such files of keys.
//!
//! The first record names the columns. Fields may be quoted, as RFC 4180 has it; a
//! quote inside a field that does not begin with one is a character like any other.
//! Lines end with a newline, or a carriage return and a newline; blank lines are
//! skipped. A field of the column is a decimal number, as in [text](crate::text).

mod column;
mod file;
mod grammar;
mod machine;
mod sink;
mod stream;

use crate::input::Data;
use crate::{Input, Key, Result, Source};

pub use sink::CsvSink;

/// How a file is read.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Options {
    /// The byte between fields: a comma. No quote, carriage return or newline.
    pub delimiter: u8,
    /// Leaves out records that have no key in the column, more or fewer fields than
    /// the header, or a quote where none may be, and counts them
    /// ([`Skipped`](crate::Skipped)).
    pub lenient: bool,
    /// Leaves out records whose field is empty, and counts them.
    pub skip_nulls: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { delimiter: b',', lenient: false, skip_nulls: false }
    }
}

/// Reads column `column`: of a regular file all threads read a share; a stream is read
/// from its start, and parsed by all threads.
///
/// # Errors
/// [`Error::Io`](crate::Error::Io) where it cannot be read,
/// [`Error::Data`](crate::Error::Data) where the column is missing or there twice.
pub fn read<K: Key>(input: Input, column: &str, options: Options) -> Result<Box<dyn Source<K>>> {
    let Input { name, data, memory, .. } = input;
    Ok(match data {
        Data::File(file, bytes) => {
            Box::new(file::CsvFile::new(&name, file, bytes, column, options)?)
        }
        Data::Stream(reader) => {
            Box::new(stream::CsvStream::new(&name, reader, memory, column, options)?)
        }
    })
}
