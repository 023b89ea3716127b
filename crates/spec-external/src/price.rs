//! The price, in time, of memory that the process has not used before.
//!
//! The system fills each page with zeros when it is first written. On a physical machine this
//! takes a tenth to half of a second for a GB. A virtual machine may give free memory back to its
//! host, which then has to find each page again: this takes two seconds and more for a GB, and is
//! worst for large pages. Sorting all keys at once needs three times their size. Sorting them in
//! chunks, through files, needs little memory, and is the faster way in such a virtual machine.

use std::path::Path;
use std::time::Duration;

use crate::{Key, Source, os, process};

/// The system's own time, in seconds, for reading a GB (10^9 bytes) into fresh memory, above
/// which chunks are faster. Measured with 10^8 random keys on two cores of a Zen 4 in such a
/// virtual machine: 6.3 to 7.3 s of processor time at once (of which 5.4 to 6.4 s are the system's,
/// 73 % of the whole in `clear_page_erms`), 3.7 to 4.6 s in chunks within [`MIN_CHUNK_MEMORY`].
const EXPENSIVE: f64 = 1.2;
/// The number of bytes of keys after which the price is asked again.
const STEP: usize = 32 << 20;
/// The smallest memory for chunks where memory is expensive, in bytes. With less memory, sorting
/// loses more time than the memory saves.
const MIN_CHUNK_MEMORY: u64 = 256 << 20;

/// Decides, while keys are read, whether they are sorted all at once or in chunks.
pub(crate) struct Price {
    is_expensive: fn(Duration, usize) -> bool,
    step: usize,
    /// Bytes of memory for chunks.
    chunks: u64,
    /// The number of bytes that had been read when the price was last asked, and the system's own
    /// time until then.
    last: Option<(usize, Duration)>,
}

impl Price {
    /// `None` where chunks would save nothing, or the disk has no room for their runs.
    pub(crate) fn new<K: Key>(source: &dyn Source<K>, memory: u64, temp: &Path) -> Option<Self> {
        // A key of at most 8 bytes takes at least 2 bytes of text, so keys have at most four times
        // the bytes of the source.
        let keys = source.keys().map(|keys| keys.saturating_mul(K::SIZE as u64));
        let key_bytes = keys.or(source.bytes().map(|bytes| bytes.saturating_mul(4)))?;
        let chunks = MIN_CHUNK_MEMORY.max(key_bytes / 32);
        let saves = chunks < memory / 2 && key_bytes > 2 * MIN_CHUNK_MEMORY;
        let fits = || os::free_space(temp).is_some_and(|free| free / 2 > key_bytes);
        (saves && fits()).then(|| Price { is_expensive, step: STEP, chunks, last: at(0) })
    }

    /// The number of further bytes of keys after which to call [`after`](Self::after).
    pub(crate) fn step(&self) -> usize {
        self.step
    }

    /// Called when `bytes` bytes have been read in all. If chunks are the faster way, returns the
    /// memory limit for them.
    pub(crate) fn after(&mut self, bytes: usize) -> Option<u64> {
        let (now, before) = (at(bytes)?, self.last.replace(at(bytes)?)?);
        let taken = now.1.saturating_sub(before.1);
        (self.is_expensive)(taken, now.0 - before.0).then_some(self.chunks)
    }

    /// For tests: memory is always expensive, and the price is asked after every `step` bytes.
    #[cfg(test)]
    pub(crate) fn always_expensive(step: usize, chunks: u64) -> Self {
        Price { is_expensive: |_, _| true, step, chunks, last: at(0) }
    }
}

fn at(bytes: usize) -> Option<(usize, Duration)> {
    process::system_time().map(|time| (bytes, time))
}

fn is_expensive(taken: Duration, bytes: usize) -> bool {
    taken.as_secs_f64() > EXPENSIVE * bytes as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_expensive_by_the_time_of_the_system() {
        assert!(!is_expensive(Duration::from_millis(1100), 1_000_000_000));
        assert!(is_expensive(Duration::from_millis(1300), 1_000_000_000));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_system_counts_its_own_time() {
        let before = process::system_time().unwrap();
        let start = std::time::Instant::now();
        while process::system_time().unwrap() == before {
            assert!(start.elapsed() < Duration::from_secs(60), "no time passes");
        }
    }
}
