//! One scatter of keys into buckets by a digit, over all threads.
//!
//! ```text
//! sample     --where most keys are, which keys come often-->  the digit, heavy keys
//! keys       --count digits-->  where each part's range of each bucket starts and ends
//! keys       --a cache line at a time-->  buckets; of a heavy key one occurrence
//! ```
//!
//! Each part of the keys has a cache line of its own for each bucket. A key is written to that
//! line, and the line goes to memory when it is full. If each key went to its bucket directly,
//! there would be more places to write to than the first-level cache and the translation cache
//! hold.

use rayon::prelude::*;
use spec_core::dtype;

use super::key::Key;
use crate::slices::once;

/// Which bucket a key is in: the bits of the key's image above `shift`, minus `base`. Images below
/// the first bucket go there; images beyond the last bucket go to the last.
///
/// The image is the key itself. If keys are crowded near the smallest one (`crowded`), the image
/// is the key's distance from `low` as a floating-point number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Split {
    crowded: bool,
    low: u64,
    shift: u32,
    base: u64,
    last: u64,
}

impl Split {
    /// Buckets for keys that are spread like a sorted sample: `few` buckets, or `max` if some of
    /// the few would be much fuller than others.
    pub(super) fn like<K: Key>(sample: &[K], few: usize, max: usize) -> Self {
        let (low, high) = (sample[0].bits(), sample[sample.len() - 1].bits());
        let even = Split::even(low, high, few);
        let fullest = even.fullest::<K, false>(sample);
        if fullest <= sample.len() / 8 {
            return even;
        }
        let even = Split::even(low, high, max);
        let crowded = Split::of_images(true, low, high, max);
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

    /// How many distinct keys of a sorted sample are in its fullest bucket.
    fn fullest<K: Key, const CROWDED: bool>(self, sample: &[K]) -> usize {
        let bucket = |key: &K| self.of::<K, CROWDED>(*key);
        let buckets = sample.chunk_by(|a, b| bucket(a) == bucket(b));
        buckets.map(|keys| keys.chunk_by(|a, b| a == b).count()).max().unwrap_or(0)
    }
}

/// The distance of key bits from `low`, as the bits of a floating-point number. These bits ascend
/// with the distance, and each doubling of the distance has equally many of them: near `low`
/// they tell more keys apart.
#[inline(always)]
fn distance(low: u64, bits: u64) -> u64 {
    (bits.saturating_sub(low) as f64).to_bits()
}

/// The tables and lines of a partition's parts: carved from the workspace.
pub(super) struct Books<'a, K> {
    /// Parts of the keys that are read side by side.
    pub(super) count: usize,
    /// [`part_words`] for each part.
    pub(super) parts: &'a mut [u64],
    /// For each part, a line of keys for each bucket.
    pub(super) lines: &'a mut [K],
}

/// u64 words of a [`Part`]: whole cache lines, so that no two threads write to one.
pub(super) fn part_words(buckets: usize) -> usize {
    (2 * buckets + buckets.div_ceil(8)).next_multiple_of(8)
}

/// The tables of one part of the keys, with an entry for each bucket.
struct Part<'a> {
    /// At first how many keys of the part belong to the bucket, then where the next of them
    /// goes.
    next: &'a mut [u64],
    /// At first how many keys of the part are dropped, then where the part's range of the
    /// bucket ends.
    ends: &'a mut [u64],
    /// How far the bucket's line is filled.
    filled: &'a mut [u8],
}

impl<'a> Part<'a> {
    fn new(words: &'a mut [u64], buckets: usize) -> Self {
        let (next, words) = words.split_at_mut(buckets);
        let (ends, words) = words.split_at_mut(buckets);
        Part { next, ends, filled: &mut dtype::as_bytes_mut(words)[..buckets] }
    }
}

/// The tables of one partition, with an entry for each bucket.
pub(super) struct Level<'a, K> {
    /// Where each bucket ends.
    pub(super) ends: &'a mut [u64],
    /// The bucket's heavy key: a key that comes often, of which one occurrence is kept. A bucket
    /// without such a key has some key of another bucket here, as a rule.
    pub(super) heavy: &'a mut [K],
    /// How often the heavy key occurs.
    pub(super) dropped: &'a mut [u64],
}

/// Where a partition's keys go: memory to which all threads write, each to its own ranges.
#[derive(Clone, Copy)]
struct Target<K> {
    start: *mut K,
    /// Keys before the first whole cache line.
    lead: usize,
}

// SAFETY: the pointer is only used for writes to ranges that no two threads share, which the
// caller of `Target::flush` vouches for.
unsafe impl<K: Send> Sync for Target<K> {}
// SAFETY: as for `Sync`.
unsafe impl<K: Send> Send for Target<K> {}

impl<K: Key> Target<K> {
    fn new(keys: &mut [K]) -> Self {
        let start = keys.as_mut_ptr();
        Target { start, lead: start.addr() % 64 / size_of::<K>() }
    }

    /// The slot that a key at `index` has in its cache line.
    #[inline(always)]
    fn slot(self, index: u64) -> usize {
        (index as usize + self.lead) % K::LINE
    }

    /// Writes the keys of a bucket's line from `next` on, and moves `next` behind them. Keys
    /// beyond `end` are left out: there are any only if another thread has changed the keys
    /// since they were counted.
    ///
    /// # Safety
    /// The range from `next` to `end` is within the target, and no other thread uses it until
    /// this one has called [`fence`].
    #[inline(always)]
    unsafe fn flush(self, line: &[K], next: &mut u64, end: u64) {
        let (slot, room) = (self.slot(*next), (end - *next) as usize);
        // SAFETY: the caller's promise: at most `room` keys are written. A line in the
        // workspace that is written whole is a cache line in the target too: its slot is 0.
        unsafe {
            let to = self.start.add(*next as usize);
            if slot == 0 && line.len() == K::LINE && room >= K::LINE {
                write_line(to, line);
                *next += K::LINE as u64;
            } else if room > 0 {
                let line = &line[slot..];
                let len = line.len().min(room);
                to.copy_from_nonoverlapping(line.as_ptr(), len);
                *next += len as u64;
            }
        }
    }
}

/// Writes a cache line of keys past the caches, where the processor can: nobody reads the
/// line soon.
///
/// # Safety
/// `to` is aligned to a cache line and valid for writing a cache line, `keys` fill exactly one
/// cache line, and the thread calls [`fence`] before another thread reads the line.
#[inline(always)]
unsafe fn write_line<K: Key>(to: *mut K, keys: &[K]) {
    debug_assert_eq!(size_of_val(keys), 64);
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's promise: four vectors are a line. These instructions are part of
    // every x86-64.
    unsafe {
        use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
        let to = to.cast::<__m128i>();
        let from = keys.as_ptr().cast::<__m128i>();
        for vector in 0..4 {
            _mm_stream_si128(to.add(vector), _mm_loadu_si128(from.add(vector)));
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: the caller's promise.
    unsafe {
        to.copy_from_nonoverlapping(keys.as_ptr(), keys.len());
    }
}

/// Orders writes past the caches before later writes of this thread.
fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a fence accesses no memory, and every x86-64 processor has the instruction.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

/// How often a heavy key occurs in the sample, at least.
const OFTEN: usize = 8;

/// Finds the heavy keys of a sorted sample: for each bucket the most frequent key, if it occurs
/// [`OFTEN`]. Returns whether there are any.
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

/// Scatters `from` into `to` by digit, on all threads. With `drop`, one occurrence of each heavy
/// key is kept, and the others are dropped. Returns how many keys `to` then holds.
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
    let words = part_words(buckets);
    let parts = &mut books.parts[..books.count * words];
    parts.fill(0);
    let heavy = &*level.heavy;
    from.par_chunks(share).zip(parts.par_chunks_mut(words)).for_each(|(keys, part)| {
        count::<K, DROP, CROWDED>(keys, split, heavy, &mut Part::new(part, buckets));
    });
    let kept = assign::<K, DROP>(parts, to, level);
    let heavy = &*level.heavy;
    let target = Target::new(to);
    let lines = books.lines.par_chunks_mut(K::LINE * buckets);
    let parts = parts.par_chunks_mut(words);
    from.par_chunks(share).zip(parts).zip(lines).for_each(|((keys, part), lines)| {
        // SAFETY: `assign` gives each part and bucket a range of `to` that is its own.
        unsafe {
            let part = Part::new(part, buckets);
            scatter::<K, DROP, CROWDED>(keys, split, heavy, part, lines, target);
        }
    });
    kept
}

/// Counts the keys of a part by bucket, and apart from them those that are dropped.
fn count<K: Key, const DROP: bool, const CROWDED: bool>(
    keys: &[K],
    split: Split,
    heavy: &[K],
    part: &mut Part<'_>,
) {
    for key in keys {
        let key = once(key);
        let digit = split.of::<K, CROWDED>(key);
        if DROP {
            let is = u64::from(key == heavy[digit]);
            part.next[digit] += 1 - is;
            part.ends[digit] += is;
        } else {
            part.next[digit] += 1;
        }
    }
}

/// Gives each part its range of each bucket, from the counts of all parts. Buckets follow one
/// another, and within a bucket the parts; behind them comes the heavy key if it was dropped.
/// Returns how many keys there are in all.
fn assign<K: Key, const DROP: bool>(
    parts: &mut [u64],
    to: &mut [K],
    level: &mut Level<'_, K>,
) -> usize {
    let buckets = level.ends.len();
    let mut sum = 0;
    for digit in 0..buckets {
        let mut dropped = 0;
        for part in parts.chunks_mut(part_words(buckets)) {
            let Part { next, ends, .. } = Part::new(part, buckets);
            dropped += ends[digit];
            sum += std::mem::replace(&mut next[digit], sum);
            ends[digit] = sum;
        }
        level.dropped[digit] = dropped;
        if DROP && dropped > 0 {
            to[sum as usize] = level.heavy[digit];
            sum += 1;
        }
        level.ends[digit] = sum;
    }
    // Of each dropped key one is kept, so that no range ends behind the target.
    assert!(sum <= to.len() as u64);
    sum as usize
}

/// Writes the keys of a part to its ranges, through a line of each bucket. Another thread may
/// have changed the keys since they were counted: each key is taken for what it is now, and a
/// range that is full takes no more.
///
/// # Safety
/// The part's ranges, from `next` to `ends`, are within the target, and no other thread uses
/// them before this function returns.
unsafe fn scatter<K: Key, const DROP: bool, const CROWDED: bool>(
    keys: &[K],
    split: Split,
    heavy: &[K],
    part: Part<'_>,
    lines: &mut [K],
    target: Target<K>,
) {
    let Part { next, ends, filled } = part;
    // A line is filled from the slot on that its first key has in the target.
    for (filled, &next) in filled.iter_mut().zip(&*next) {
        *filled = target.slot(next) as u8;
    }
    for key in keys {
        let key = once(key);
        let digit = split.of::<K, CROWDED>(key);
        let line = &mut lines[digit * K::LINE..][..K::LINE];
        let mut slot = usize::from(filled[digit]);
        // A full line is flushed when its next key comes, not when it fills up: the
        // processor could not read at once what it has just written.
        if slot == K::LINE {
            // SAFETY: the caller's promise.
            unsafe { target.flush(line, &mut next[digit], ends[digit]) };
            slot = 0;
        }
        line[slot] = key;
        let keep = !DROP || key != heavy[digit];
        filled[digit] = slot as u8 + u8::from(keep);
    }
    let ranges = next.iter_mut().zip(ends);
    for ((line, &filled), (next, &mut end)) in lines.chunks(K::LINE).zip(&*filled).zip(ranges) {
        // SAFETY: the caller's promise.
        unsafe { target.flush(&line[..usize::from(filled)], next, end) };
    }
    fence();
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUCKETS: usize = 16;
    const KEYS: usize = 1000;
    const PARTS: usize = 2;
    /// What the target and the memory around it hold at first. No key has these bits.
    const POISON: u64 = 0x5A5A_5A5A_5A5A_5A5A;

    /// Counts keys, replaces them by others, and scatters those: each part's keys must go to the
    /// part's own ranges, as many as were counted at most.
    fn change<K: Key + std::fmt::Debug, const DROP: bool>(counted: &[K], scattered: &[K]) {
        let poison = K::of(POISON >> (64 - 8 * size_of::<K>()));
        let split = Split::even(0, u64::MAX >> (64 - 8 * size_of::<K>()), BUCKETS);
        let (mut ends, mut dropped) = ([0; BUCKETS], [0; BUCKETS]);
        let mut heavy = [counted[0]; BUCKETS];
        let words = part_words(BUCKETS);
        let mut parts = vec![0; PARTS * words];
        let share = KEYS.div_ceil(PARTS);
        for (keys, part) in counted.chunks(share).zip(parts.chunks_mut(words)) {
            count::<K, DROP, false>(keys, split, &heavy, &mut Part::new(part, BUCKETS));
        }
        let mut memory = [poison; KEYS + 128];
        // Not at the start of a cache line.
        let around = 61..61 + KEYS;
        let target = Target::new(&mut memory[around.clone()]);
        let mut level = Level { ends: &mut ends, heavy: &mut heavy, dropped: &mut dropped };
        let mut all = [poison; KEYS];
        let kept = assign::<K, DROP>(&mut parts, &mut all, &mut level);
        assert!(kept <= KEYS);
        let mut allowed = vec![false; memory.len()];
        let mut lines = vec![poison; BUCKETS * K::LINE];
        for (keys, words) in scattered.chunks(share).zip(parts.chunks_mut(words)) {
            let part = Part::new(words, BUCKETS);
            for (&next, &end) in part.next.iter().zip(&*part.ends) {
                allowed[around.start + next as usize..around.start + end as usize].fill(true);
            }
            // SAFETY: `assign` gave the ranges of a target of as many keys.
            unsafe { scatter::<K, DROP, false>(keys, split, &heavy, part, &mut lines, target) };
            for (at, (key, allowed)) in memory.iter().zip(&allowed).enumerate() {
                assert!(*allowed || *key == poison, "{key:?} at {at}, which is in no range");
            }
        }
    }

    fn change_all<K: Key + std::fmt::Debug>() {
        let hash = |i: u64| (i + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23);
        let keys = |f: &dyn Fn(usize) -> u64| -> Vec<K> {
            (0..KEYS).map(|i| K::of(f(i) >> (64 - 8 * size_of::<K>()))).collect()
        };
        let sets = [
            keys(&|_| 1 << 60),
            keys(&|_| u64::MAX),
            keys(&|i| hash(hash(i as u64))),
            keys(&|i| (i as u64) << 53),
            keys(&|i| u64::MAX - ((i as u64) << 53)),
            keys(&|i| if i % 3 == 0 { u64::MAX } else { hash(i as u64) }),
        ];
        for (counted, scattered) in sets.iter().flat_map(|a| sets.iter().map(move |b| (a, b))) {
            change::<K, false>(counted, scattered);
            change::<K, true>(counted, scattered);
        }
    }

    #[test]
    fn keys_that_change_after_they_were_counted_stay_in_their_ranges() {
        change_all::<u64>();
        change_all::<i64>();
        change_all::<u32>();
        change_all::<i32>();
    }
}
