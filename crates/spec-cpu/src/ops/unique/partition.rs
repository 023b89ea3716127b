//! One scatter of keys into buckets by a digit, over all threads.
//!
//! ```text
//! sample     --where most keys are, which of them come often-->  digits, heavy keys
//! keys       --count digits-->  where each part's share of each bucket starts
//! keys       --a line at a time-->  buckets, of a heavy key one occurrence
//! ```
//!
//! A key goes into a line of its bucket in cache first, and whole lines go to
//! memory: as many as there are buckets would be too many places to write to at a
//! time for the first cache and the translations of pages.

use rayon::prelude::*;

use super::key::Key;

/// Which bucket a key is in: its bits above `shift`, less `base`; what is below or
/// beyond goes to the first and the last bucket.
#[derive(Clone, Copy, Debug)]
pub(super) struct Split {
    shift: u32,
    base: u64,
    last: u64,
}

impl Split {
    /// At most `buckets` of them for keys from `low` to `high`, of equal width.
    pub(super) fn new(low: u64, high: u64, buckets: usize) -> Self {
        let last = buckets as u64 - 1;
        let mut shift = (u64::BITS - (high - low).leading_zeros()).saturating_sub(buckets.ilog2());
        if (high >> shift) - (low >> shift) > last {
            shift += 1;
        }
        Split { shift, base: low >> shift, last }
    }

    #[inline(always)]
    fn of<K: Key>(self, key: K) -> usize {
        (key.bits() >> self.shift).saturating_sub(self.base).min(self.last) as usize
    }
}

/// Where a partition keeps its books: carved from the workspace.
pub(super) struct Books<'a, K> {
    /// Parts of the keys that are read side by side.
    pub(super) count: usize,
    /// For each part, where its next key of each bucket goes, and where its
    /// first one went.
    pub(super) parts: &'a mut [u64],
    /// For each part, a line of keys for each bucket.
    pub(super) lines: &'a mut [K],
}

/// What is known of the buckets of one partition.
pub(super) struct Level<'a, K> {
    /// Where each bucket ends.
    pub(super) ends: &'a mut [u64],
    /// A key for each bucket that is dropped as it comes, but once: one that comes
    /// often, else any, of another bucket as a rule.
    pub(super) heavy: &'a mut [K],
    /// How often it was dropped.
    pub(super) dropped: &'a mut [u64],
}

/// A raw pointer that threads may share, to write where no other writes.
#[derive(Debug)]
struct Shared<T>(*mut T);

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Shared<T> {}

// SAFETY: the pointer is only used for writes to positions that no two threads
// share, as `scatter` explains.
unsafe impl<T: Send> Sync for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Shared<T> {}

impl<T: Copy> Shared<T> {
    /// Writes a cache line from `index` on, past the caches where that can be said:
    /// nobody reads it soon.
    ///
    /// # Safety
    /// As for [`write`](Self::write); the place is aligned to a line, `values` have as
    /// many bytes, and [`fence`] comes before another thread looks.
    #[inline(always)]
    unsafe fn write_line(self, index: usize, values: &[T]) {
        debug_assert_eq!(size_of_val(values), 64);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller's promise: four vectors are a line. They are part of every
        // x86-64.
        unsafe {
            use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
            let to = self.0.add(index).cast::<__m128i>();
            let from = values.as_ptr().cast::<__m128i>();
            for vector in 0..4 {
                _mm_stream_si128(to.add(vector), _mm_loadu_si128(from.add(vector)));
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        // SAFETY: the caller's promise.
        unsafe {
            self.write(index, values);
        }
    }

    /// Writes elements from `index` on.
    ///
    /// # Safety
    /// All of them are in bounds and no other thread touches them.
    #[inline(always)]
    unsafe fn write(self, index: usize, values: &[T]) {
        // SAFETY: the caller's promise; nobody else has the values for writing.
        unsafe {
            let to = self.0.add(index);
            to.copy_from_nonoverlapping(values.as_ptr(), values.len());
        }
    }
}

/// Orders what went past the caches before what this thread writes next.
fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a fence touches nothing, and every x86-64 has it.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

/// Occurrences in a sample of a key that is worth dropping.
const OFTEN: usize = 8;

/// The heavy keys of a sorted sample: at most one a bucket, the most frequent.
/// Whether there are any.
pub(super) fn find_heavy<K: Key>(sample: &[K], split: Split, heavy: &mut [K]) -> bool {
    let (Some(&first), Some(&last)) = (sample.first(), sample.last()) else { return false };
    let mut any = false;
    for (digit, heavy) in heavy.iter_mut().enumerate() {
        *heavy = if split.of(first) == digit { last } else { first };
    }
    let mut best = (usize::MAX, 0);
    for run in sample.chunk_by(|a, b| a == b) {
        let digit = split.of(run[0]);
        if run.len() >= OFTEN && (digit != best.0 || run.len() > best.1) {
            best = (digit, run.len());
            heavy[digit] = run[0];
            any = true;
        }
    }
    any
}

/// Scatters `from` into `to` by digit, all threads. Returns how many keys are
/// there then: all, or where `drop` says so one of the heavy keys each and the
/// others.
pub(super) fn partition<K: Key>(
    from: &[K],
    to: &mut [K],
    split: Split,
    drop: bool,
    level: &mut Level<'_, K>,
    books: &mut Books<'_, K>,
) -> usize {
    assert_eq!(from.len(), to.len());
    if drop {
        partition_as::<K, true>(from, to, split, level, books)
    } else {
        partition_as::<K, false>(from, to, split, level, books)
    }
}

fn partition_as<K: Key, const DROP: bool>(
    from: &[K],
    to: &mut [K],
    split: Split,
    level: &mut Level<'_, K>,
    books: &mut Books<'_, K>,
) -> usize {
    let buckets = level.ends.len();
    let share = from.len().div_ceil(books.count).max(1);
    let heavy = &*level.heavy;
    let parts = &mut books.parts[..books.count * 2 * buckets];
    parts.fill(0);
    from.par_chunks(share).zip(parts.par_chunks_mut(2 * buckets)).for_each(|(keys, part)| {
        let (kept, dropped) = part.split_at_mut(buckets);
        for &key in keys {
            let digit = split.of(key);
            if DROP {
                let is = u64::from(key == heavy[digit]);
                kept[digit] += 1 - is;
                dropped[digit] += is;
            } else {
                kept[digit] += 1;
            }
        }
    });
    let mut sum = 0;
    for digit in 0..buckets {
        let mut dropped = 0;
        for part in parts.chunks_mut(2 * buckets) {
            dropped += part[buckets + digit];
            part[buckets + digit] = sum;
            sum += std::mem::replace(&mut part[digit], sum);
        }
        level.dropped[digit] = dropped;
        if DROP && dropped > 0 {
            to[sum as usize] = level.heavy[digit];
            sum += 1;
        }
        level.ends[digit] = sum;
    }
    let target = Shared(to.as_mut_ptr());
    // Keys before the first whole line.
    let lead = to.as_ptr().addr() % 64 / size_of::<K>();
    let parts = parts.par_chunks_mut(2 * buckets);
    let lines = books.lines.par_chunks_mut(K::LINE * buckets);
    from.par_chunks(share).zip(parts).zip(lines).for_each(|((keys, part), lines)| {
        let (next, first) = part.split_at_mut(buckets);
        for &key in keys {
            let digit = split.of(key);
            let at = next[digit] as usize;
            let slot = (at + lead) % K::LINE;
            let line = &mut lines[digit * K::LINE..][..K::LINE];
            line[slot] = key;
            let keep = !DROP || key != heavy[digit];
            next[digit] += u64::from(keep);
            if slot == K::LINE - 1 && keep {
                let start = (first[digit] as usize).max((at + 1).saturating_sub(K::LINE));
                // SAFETY: the prefix sum gives each part and digit a range of its
                // own, as long as the keys that the same loop counted, and all of
                // them together are no more than `from`, as long as `to`; this is
                // what of the line lies in that range. A whole line is one in `to`,
                // too, as `lead` has it.
                unsafe {
                    if at - start == K::LINE - 1 {
                        target.write_line(start, line);
                    } else {
                        target.write(start, &line[slot + start - at..]);
                    }
                }
            }
        }
        fence();
        for (digit, line) in lines.chunks(K::LINE).enumerate() {
            let end = next[digit] as usize;
            let held = (end + lead) % K::LINE;
            let start = (first[digit] as usize).max(end.saturating_sub(held));
            // SAFETY: as above; these are the keys of a line that is not full.
            unsafe { target.write(start, &line[held + start - end..held]) };
        }
    });
    sum as usize
}
