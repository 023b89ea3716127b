//! Reads a column of a CSV file, and writes keys as a CSV file.
//!
//! The first record names the columns. Fields may be quoted, as in RFC 4180; in
//! a field that does not begin with a quote, a quote is an ordinary character.
//! A line ends with a newline, or with a carriage return and a newline. A field of the column is a
//! decimal number, as in [text](crate::text).
//!
//! A blank line is skipped and counted ([`Skipped`](crate::Skipped)) in a table of several columns.
//! In a table of one column it is a record whose field is empty, as other programs write a null.

mod column;
mod file;
mod grammar;
mod machine;
mod sink;
mod stream;
mod window;

use crate::input::Data;
use crate::{Input, Key, Result, Source};

pub use sink::CsvSink;

/// The options of reading a file.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Options {
    /// The byte between fields, by default a comma. It must not be a quote, a carriage return or a
    /// newline.
    pub delimiter: u8,
    /// Leaves out, and counts ([`Skipped`](crate::Skipped)), records that have no key in the
    /// column, more or fewer fields than the header, or a quote where quotes are not allowed.
    pub lenient: bool,
    /// Leaves out, and counts, records whose field in the column is empty.
    pub skip_nulls: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { delimiter: b',', lenient: false, skip_nulls: false }
    }
}

/// Reads the column `column` of an input. All threads read a regular file, each a share of it. A
/// stream is read from its start, and parsed by all threads.
///
/// # Errors
/// [`Error::Io`](crate::Error::Io) where the input cannot be read,
/// [`Error::Data`](crate::Error::Data) where it has no such column, or two.
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
