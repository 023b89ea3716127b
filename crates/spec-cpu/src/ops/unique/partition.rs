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
use spec_core::dtype;

use super::key::Key;

/// Which bucket a key is in: the bits of its image above `shift`, less `base`; what is
/// below or beyond goes to the first and the last bucket.
///
/// The image is the key itself, or its distance from `low` as a floating-point number,
/// where keys are the more crowded the nearer they are to that.
#[derive(Clone, Copy, Debug)]
pub(super) struct Split {
    crowded: bool,
    low: u64,
    shift: u32,
    base: u64,
    last: u64,
}

impl Split {
    /// Buckets for keys that are spread like a sorted sample: as many as `few`, or
    /// `most` if some of them would be much fuller than others.
    pub(super) fn like<K: Key>(sample: &[K], few: usize, most: usize) -> Self {
        let (low, high) = (sample[0].bits(), sample[sample.len() - 1].bits());
        let even = Split::even(low, high, few);
        let fullest = even.fullest::<K, false>(sample);
        if fullest <= sample.len() / 8 {
            return even;
        }
        let even = Split::even(low, high, most);
        let crowded = Split::of_images(true, low, high, most);
        let gain = crowded.fullest::<K, true>(sample) < even.fullest::<K, false>(sample) / 2;
        if gain { crowded } else { even }
    }

    /// Buckets of equal width for keys from `low` to `high`.
    pub(super) fn even(low: u64, high: u64, buckets: usize) -> Self {
        Split::of_images(false, low, high, buckets)
    }

    fn of_images(crowded: bool, low: u64, high: u64, buckets: usize) -> Self {
        let last = buckets as u64 - 1;
        let from = if crowded { distance(0, 1) } else { low };
        let to = if crowded { distance(low, high).max(from) } else { high };
        let mut shift = (u64::BITS - (to - from).leading_zeros()).saturating_sub(buckets.ilog2());
        if (to >> shift) - (from >> shift) > last {
            shift += 1;
        }
        Split { crowded, low, shift, base: from >> shift, last }
    }

    /// How many buckets there are.
    pub(super) fn buckets(self) -> usize {
        self.last as usize + 1
    }

    #[inline(always)]
    fn of<K: Key, const CROWDED: bool>(self, key: K) -> usize {
        let image = if CROWDED { distance(self.low, key.bits()) } else { key.bits() };
        (image >> self.shift).saturating_sub(self.base).min(self.last) as usize
    }

    /// Keys of a sorted sample in its fullest bucket, but for equal ones.
    fn fullest<K: Key, const CROWDED: bool>(self, sample: &[K]) -> usize {
        let bucket = |key: &K| self.of::<K, CROWDED>(*key);
        let buckets = sample.chunk_by(|a, b| bucket(a) == bucket(b));
        buckets.map(|keys| keys.chunk_by(|a, b| a == b).count()).max().unwrap_or(0)
    }
}

/// How far key bits are above `low`, as the bits of a floating-point number: they ascend
/// as it does, and have as many for the first half of a range as for the second.
#[inline(always)]
fn distance(low: u64, bits: u64) -> u64 {
    (bits.saturating_sub(low) as f64).to_bits()
}

/// Where a partition keeps its books: carved from the workspace.
pub(super) struct Books<'a, K> {
    /// Parts of the keys that are read side by side.
    pub(super) count: usize,
    /// For each part, where its next line of each bucket goes, and how full it is.
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
    if split.crowded {
        find_heavy_as::<K, true>(sample, split, heavy)
    } else {
        find_heavy_as::<K, false>(sample, split, heavy)
    }
}

fn find_heavy_as<K: Key, const CROWDED: bool>(sample: &[K], split: Split, heavy: &mut [K]) -> bool {
    let (Some(&first), Some(&last)) = (sample.first(), sample.last()) else { return false };
    heavy.fill(first);
    heavy[split.of::<K, CROWDED>(first)] = last;
    let mut best = (usize::MAX, 0);
    for run in sample.chunk_by(|a, b| a == b) {
        let digit = split.of::<K, CROWDED>(run[0]);
        if run.len() >= OFTEN && (digit != best.0 || run.len() > best.1) {
            best = (digit, run.len());
            heavy[digit] = run[0];
        }
    }
    best.1 > 0
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
    match (drop, split.crowded) {
        (false, false) => partition_as::<K, false, false>(from, to, split, level, books),
        (false, true) => partition_as::<K, false, true>(from, to, split, level, books),
        (true, false) => partition_as::<K, true, false>(from, to, split, level, books),
        (true, true) => partition_as::<K, true, true>(from, to, split, level, books),
    }
}

fn partition_as<K: Key, const DROP: bool, const CROWDED: bool>(
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
            let digit = split.of::<K, CROWDED>(key);
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
        // Where the keys of each line go, and how far it is filled: from the slot on that
        // its first one has in `to`.
        let (next, filled) = part.split_at_mut(buckets);
        let filled = &mut dtype::as_bytes_mut(filled)[..buckets];
        for (filled, &next) in filled.iter_mut().zip(&*next) {
            *filled = ((next as usize + lead) % K::LINE) as u8;
        }
        let flush = |line: &[K], next: &mut u64| {
            let slot = (*next as usize + lead) % K::LINE;
            // SAFETY: the prefix sum gives each part and digit a range of its
            // own, as long as the keys that the same loop counted, and all of
            // them together are no more than `from`, as long as `to`; these are
            // the next ones of them. A whole line is one in `to`, too, as `lead`
            // has it.
            unsafe {
                if line.len() - slot == K::LINE {
                    target.write_line(*next as usize, line);
                } else {
                    target.write(*next as usize, &line[slot..]);
                }
            }
            *next += (line.len() - slot) as u64;
        };
        for &key in keys {
            let digit = split.of::<K, CROWDED>(key);
            let line = &mut lines[digit * K::LINE..][..K::LINE];
            let mut slot = usize::from(filled[digit]);
            // Only now: what was written just before cannot be read at once.
            if slot == K::LINE {
                flush(line, &mut next[digit]);
                slot = 0;
            }
            line[slot] = key;
            let keep = !DROP || key != heavy[digit];
            filled[digit] = slot as u8 + u8::from(keep);
        }
        for ((line, &filled), next) in lines.chunks(K::LINE).zip(&*filled).zip(next) {
            flush(&line[..usize::from(filled)], next);
        }
        fence();
    });
    sum as usize
}
