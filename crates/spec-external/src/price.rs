//! What memory costs that the process has not used before.
//!
//! The system fills each page with zeros when it is first written. On a machine of its
//! own that takes a tenth to half of a second a GB. In a virtual machine that gives free
//! memory back to its host, the host has to find each page anew: two seconds a GB and
//! more, most of all for large pages. Keys that are sorted at once need three times their
//! size; in chunks, through files, little, and then chunks are the faster way.

use std::path::Path;
use std::time::Duration;

use crate::{Key, Source, os, process};

/// Seconds of the system's own time for a GB (10^9 bytes) that is read into fresh memory,
/// above which chunks are faster. Two cores of a Zen 4 in such a virtual machine, 10^8
/// random keys: 6.3 to 7.3 s of processor time at once (5.4 to 6.4 of the system's, 73 % of
/// all of it in `clear_page_erms`), 3.7 to 4.6 s in chunks within [`CHEAP`].
const DEAR: f64 = 1.2;
/// Bytes of keys between two looks at the price.
const STEP: usize = 32 << 20;
/// Memory for chunks where it is dear, at least: sorting in less is slower than what less
/// memory saves.
const CHEAP: u64 = 256 << 20;

/// Whether keys are read into memory for all of them, or in chunks after all.
pub(crate) struct Price {
    is_dear: fn(Duration, usize) -> bool,
    step: usize,
    /// Memory for chunks.
    chunks: u64,
    /// Bytes that have been read into memory where the price was asked last, and the
    /// system's own time until then.
    last: Option<(usize, Duration)>,
}

impl Price {
    /// `None` where chunks save nothing, or there is no room on disk for what they spill.
    pub(crate) fn new<K: Key>(source: &dyn Source<K>, memory: u64, temp: &Path) -> Option<Self> {
        // A line of text is two bytes at least, and a key eight at most.
        let keys = source.keys().map(|keys| keys.saturating_mul(K::SIZE as u64));
        let most = keys.or(source.bytes().map(|bytes| bytes.saturating_mul(4)))?;
        let chunks = CHEAP.max(most / 32);
        let saves = chunks < memory / 2 && most > 2 * CHEAP;
        let fits = || os::free_space(temp).is_some_and(|free| free / 2 > most);
        (saves && fits()).then(|| Price { is_dear, step: STEP, chunks, last: at(0) })
    }

    /// After which further bytes of keys to look again.
    pub(crate) fn step(&self) -> usize {
        self.step
    }

    /// So many bytes have been read: the memory to go on with in chunks, where that is
    /// the faster way.
    pub(crate) fn after(&mut self, bytes: usize) -> Option<u64> {
        let (now, before) = (at(bytes)?, self.last.replace(at(bytes)?)?);
        let taken = now.1.saturating_sub(before.1);
        (self.is_dear)(taken, now.0 - before.0).then_some(self.chunks)
    }

    /// Memory is as dear as it gets, in small steps.
    #[cfg(test)]
    pub(crate) fn dear(step: usize, chunks: u64) -> Self {
        Price { is_dear: |_, _| true, step, chunks, last: at(0) }
    }
}

fn at(bytes: usize) -> Option<(usize, Duration)> {
    process::system_time().map(|time| (bytes, time))
}

fn is_dear(taken: Duration, bytes: usize) -> bool {
    taken.as_secs_f64() > DEAR * bytes as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_dear_by_the_time_of_the_system() {
        assert!(!is_dear(Duration::from_millis(1100), 1_000_000_000));
        assert!(is_dear(Duration::from_millis(1300), 1_000_000_000));
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
