//! Reads a source: several threads fill blocks from its parts.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};

use crate::watch::{Watch, lock, wait};
use crate::{Error, Key, Part, Result, Source};

/// The largest number of keys in a block, which one thread fills: 1 MiB of u64.
const BLOCK: usize = 128 * 1024;
/// A chunk has at least this many blocks for each thread, so that all threads finish at about the
/// same time.
const SHARES: usize = 4;

/// A source that is being read.
pub(crate) struct Feed<'a, K: Key> {
    source: &'a dyn Source<K>,
    watch: &'a Watch<'a>,
    threads: usize,
    parts: Mutex<Parts<'a, K>>,
    /// Notified when a part is given back.
    returned: Condvar,
    keys: AtomicU64,
    bytes: AtomicU64,
}

struct Parts<'a, K> {
    /// The index of the next part to open.
    next: usize,
    /// Parts that were begun, and given back before their end.
    begun: Vec<Box<dyn Part<K> + Send + 'a>>,
    /// The number of parts that threads hold at the moment.
    held: usize,
}

impl<'a, K: Key> Feed<'a, K> {
    pub(crate) fn new(source: &'a dyn Source<K>, threads: usize, watch: &'a Watch<'a>) -> Self {
        Feed {
            source,
            watch,
            threads,
            parts: Mutex::new(Parts { next: 0, begun: Vec::new(), held: 0 }),
            returned: Condvar::new(),
            keys: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        }
    }

    /// Keys read so far.
    pub(crate) fn keys(&self) -> u64 {
        self.keys.load(Ordering::Relaxed)
    }

    /// Bytes of input read so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The number of threads that read at the same time.
    pub(crate) fn threads(&self) -> usize {
        self.threads.min(self.source.parts()).max(1)
    }

    /// Takes a part to read from; waits while other threads hold all remaining parts. `None` at
    /// the end of the source.
    fn part(&self) -> Result<Option<Box<dyn Part<K> + Send + 'a>>> {
        let mut parts = lock(&self.parts);
        loop {
            self.watch.check()?;
            if let Some(part) = parts.begun.pop() {
                parts.held += 1;
                return Ok(Some(part));
            }
            if parts.next < self.source.parts() {
                let index = parts.next;
                parts.next += 1;
                parts.held += 1;
                drop(parts);
                return self.source.open(index).map(Some);
            }
            if parts.held == 0 {
                return Ok(None);
            }
            parts = wait(&self.returned, parts);
        }
    }

    /// Gives back a part that has more keys; `None` for a part that has ended.
    fn give(&self, part: Option<Box<dyn Part<K> + Send + 'a>>) {
        let mut parts = lock(&self.parts);
        parts.held -= 1;
        parts.begun.extend(part);
        self.returned.notify_all();
    }

    /// Fills a block and returns the number of keys, which is less than the block's length only
    /// at the end of the source.
    pub(crate) fn fill_block(&self, block: &mut [K]) -> Result<usize> {
        let mut filled = 0;
        while filled < block.len() {
            let Some(mut part) = self.part()? else { break };
            let mut is_over = false;
            while filled < block.len() && !is_over {
                let before = part.bytes();
                let count = part.read(&mut block[filled..])?;
                let bytes = part.bytes() - before;
                self.bytes.fetch_add(bytes, Ordering::Relaxed);
                self.watch.advance(bytes)?;
                filled += count;
                is_over = count == 0;
            }
            self.give((!is_over).then_some(part));
        }
        self.keys.fetch_add(filled as u64, Ordering::Relaxed);
        Ok(filled)
    }

    /// Whether the whole source has been read. May return false after the last key was read, if
    /// that key was also the last of its block.
    pub(crate) fn is_done(&self) -> bool {
        let parts = lock(&self.parts);
        parts.begun.is_empty() && parts.next >= self.source.parts()
    }

    /// Fills `keys` from its start with all threads, and returns the number of keys, which is less
    /// than the length of `keys` only at the end of the source.
    pub(crate) fn fill(&self, keys: &mut [K]) -> Result<usize> {
        let threads = self.threads();
        let block = (keys.len() / (threads * SHARES)).clamp(1024, BLOCK);
        let blocks = keys.len().div_ceil(block);
        let next = Mutex::new(keys.chunks_mut(block).enumerate());
        let short = Mutex::new(Vec::new());
        let total = AtomicUsize::new(0);
        let read = || {
            loop {
                let Some((index, block)) = lock(&next).next() else { return Ok(()) };
                let count = self.fill_block(block)?;
                total.fetch_add(count, Ordering::Relaxed);
                if count < block.len() {
                    lock(&short).push((index, count));
                    return Ok(());
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..threads {
                self.watch.spawn(scope, read);
            }
            self.watch.guard(read);
        });
        self.watch.check()?;
        // Blocks that no thread took are empty.
        let left = next.into_inner().map_or(0, |left| left.len());
        let handed = blocks - left;
        let mut short =
            short.into_inner().map_err(|_| Error::Poisoned("the list of short blocks"))?;
        short.sort_unstable();
        let total = total.into_inner();
        close_gaps(keys, block, handed, &short, total);
        Ok(total)
    }
}

/// Moves keys from the end into the gaps that short blocks leave, so that all `total` keys are at
/// the start. The order of keys does not matter.
fn close_gaps<K: Key>(
    keys: &mut [K],
    block: usize,
    handed: usize,
    short: &[(usize, usize)],
    total: usize,
) {
    // `from` is a range of keys behind `total` that are still to be moved, from the end on.
    let len = keys.len();
    let filled = |index: usize| {
        let whole = block.min(len - index * block);
        short.iter().find(|(at, _)| *at == index).map_or(whole, |(_, count)| *count)
    };
    let mut index = handed;
    let mut from = 0..0;
    for &(gap, count) in short {
        let start = gap * block + count;
        let end = (gap * block + block).min(len).min(total);
        for at in start..end.max(start) {
            while from.is_empty() {
                index -= 1;
                let first = (index * block).max(total);
                from = first..(index * block + filled(index)).max(first);
            }
            from.end -= 1;
            keys[at] = keys[from.end];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_closed_with_the_last_keys() {
        // Blocks of 4 keys: full, 1 key, full, empty, 2 keys, never taken.
        let x = u64::MAX;
        let mut keys = [1, 2, 3, 4, 5, x, x, x, 6, 7, 8, 9, x, x, x, x, 10, 11, x, x, x, x];
        close_gaps(&mut keys, 4, 5, &[(1, 1), (3, 0), (4, 2)], 11);
        let mut found = keys[..11].to_vec();
        found.sort_unstable();
        assert_eq!(found, (1..=11).collect::<Vec<_>>());
    }

    #[test]
    fn a_short_last_block_is_no_gap() {
        let mut keys = [1u32, 2, 3, 4, 5, 6];
        close_gaps(&mut keys, 4, 2, &[], 6);
        assert_eq!(keys, [1, 2, 3, 4, 5, 6]);
        let mut keys = [1u32, 2, 3, 4, 5, 0];
        close_gaps(&mut keys, 4, 2, &[(1, 1)], 5);
        assert_eq!(keys[..5], [1, 2, 3, 4, 5]);
    }
}
