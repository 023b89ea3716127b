//! Writes keys as CSV.

use std::sync::Mutex;

use crate::text::TextSink;
use crate::watch::lock;
use crate::{Error, Key, Output, Place, Result, Sink};

/// The name of the column of counts, the same as in Parquet files.
const COUNT: &str = "count";

/// Writes a header and one key per line; with counts, a second column has the number of
/// occurrences of each key. [`read`](super::read) can read the file.
///
/// The header is written with the first keys, so that a stream gets nothing from a run that fails
/// before.
#[derive(Debug)]
pub struct CsvSink {
    /// The header, until it is written.
    header: Mutex<Option<Vec<u8>>>,
    records: TextSink,
}

impl CsvSink {
    /// Writes to `output` a column called `column`, and with counts a column called `count`.
    ///
    /// # Errors
    /// [`Error::Data`] where both columns would have the same name.
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
        let records = TextSink::between(output, counts, delimiter);
        Ok(CsvSink { header: Mutex::new(Some(header)), records })
    }

    /// Writes the header if it is not written yet.
    fn begin<K: Key>(&self) -> Result<()> {
        let header = lock(&self.header).take();
        header.map_or(Ok(()), |header| Sink::<K>::append(&self.records, header))
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
        Sink::<K>::counts(&self.records)
    }

    fn key_memory(&self) -> usize {
        Sink::<K>::key_memory(&self.records)
    }

    fn encode(&self, rank: u64, keys: &[K], counts: &[u64]) -> Result<Vec<u8>> {
        self.records.encode(rank, keys, counts)
    }

    fn append(&self, block: Vec<u8>) -> Result<()> {
        self.begin::<K>()?;
        Sink::<K>::append(&self.records, block)
    }

    fn finish(self, distinct: u64) -> Result<u64> {
        self.begin::<K>()?;
        Sink::<K>::finish(self.records, distinct)
    }
}
