//! Writes keys as lines.

use super::parse::{DIGITS, write};
use crate::{Key, Output, Result, Sink};

/// Writes one key per line; with counts, a tab and the key's number of occurrences follow.
#[derive(Debug)]
pub struct TextSink {
    output: Output,
    counts: bool,
    /// The byte between a key and its count.
    between: u8,
}

impl TextSink {
    /// Writes to `output`.
    pub fn new(output: Output, counts: bool) -> Self {
        TextSink { output, counts, between: b'\t' }
    }

    /// Writes to `output`, with the byte `between` between a key and its count.
    #[cfg(feature = "csv")]
    pub(crate) fn between(output: Output, counts: bool, between: u8) -> Self {
        TextSink { output, counts, between }
    }
}

impl<K: Key> Sink<K> for TextSink {
    type Encoded = Vec<u8>;

    fn counts(&self) -> bool {
        self.counts
    }

    fn key_memory(&self) -> usize {
        (DIGITS + 1) * if self.counts { 2 } else { 1 }
    }

    fn encode(&self, _rank: u64, keys: &[K], counts: &[u64]) -> Result<Vec<u8>> {
        let mut text = Vec::with_capacity(keys.len() * Sink::<K>::key_memory(self));
        if self.counts {
            for (&key, &count) in keys.iter().zip(counts) {
                write(key, &mut text);
                text.push(self.between);
                write(count, &mut text);
                text.push(b'\n');
            }
        } else {
            for &key in keys {
                write(key, &mut text);
                text.push(b'\n');
            }
        }
        Ok(text)
    }

    fn append(&self, block: Vec<u8>) -> Result<()> {
        self.output.append(&block)
    }

    fn finish(self, _distinct: u64) -> Result<u64> {
        self.output.commit()
    }
}
