//! Writes keys as CSV.

use crate::text::TextSink;
use crate::{Error, Key, Output, Place, Result, Sink};

/// The name of the column of counts, the same as in Parquet files.
const COUNT: &str = "count";

/// Writes a header and one key per line; with counts, a second column has the number of
/// occurrences of each key. [`read`](super::read) can read the file.
#[derive(Debug)]
pub struct CsvSink(TextSink);

impl CsvSink {
    /// Writes to `output` a column called `column`, and with counts a column called `count`.
    ///
    /// # Errors
    /// [`Error::Data`] where both columns would have the same name; the errors of the output.
    pub fn new(output: Output, column: &str, delimiter: u8, counts: bool) -> Result<Self> {
        if counts && column == COUNT {
            let message = format!("keys and counts would both be a column called {COUNT}");
            return Err(Error::data(output.path(), Place::Whole, message));
        }
        let mut header = quoted(column, delimiter);
        if counts {
            header.push(delimiter);
            header.extend_from_slice(COUNT.as_bytes());
        }
        header.push(b'\n');
        output.append(&header)?;
        Ok(CsvSink(TextSink::between(output, counts, delimiter)))
    }
}

/// A field of the header, in quotes if it needs them.
fn quoted(name: &str, delimiter: u8) -> Vec<u8> {
    let is_special = |byte: &u8| *byte == delimiter || matches!(byte, b'"' | b'\r' | b'\n');
    // An empty name alone would be a blank line, and a byte order mark at the start would be
    // dropped.
    let is_odd = name.is_empty() || name.starts_with('\u{feff}');
    if !is_odd && !name.as_bytes().iter().any(is_special) {
        return name.as_bytes().to_vec();
    }
    format!("\"{}\"", name.replace('"', "\"\"")).into_bytes()
}

impl<K: Key> Sink<K> for CsvSink {
    type Encoded = Vec<u8>;

    fn counts(&self) -> bool {
        Sink::<K>::counts(&self.0)
    }

    fn key_memory(&self) -> usize {
        Sink::<K>::key_memory(&self.0)
    }

    fn encode(&self, rank: u64, keys: &[K], counts: &[u64]) -> Result<Vec<u8>> {
        self.0.encode(rank, keys, counts)
    }

    fn append(&self, block: Vec<u8>) -> Result<()> {
        Sink::<K>::append(&self.0, block)
    }

    fn finish(self, distinct: u64) -> Result<u64> {
        Sink::<K>::finish(self.0, distinct)
    }
}
