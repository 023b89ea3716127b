//! Distinct keys on the CPU: partition by the top bits until pieces fit in
//! cache, sort each piece there, compact.
//!
//! ```text
//! keys       --scatter by the top bits that differ-->  buckets
//! a bucket   large: partitioned again, all threads
//!            small: LSD radix sort over just the bits that tell its keys apart,
//!                   one thread, in cache
//! sorted     --count distinct per chunk, prefix sum, write-->  unique, counts
//! ```
//!
//! Keys that ascend as they come are compacted where they lie.
//! Bits in which all keys of a bucket agree cost nothing. The output doubles as
//! scratch, so the workspace is one copy of the keys and a few histograms.

use rayon::prelude::*;
use spec_core::ops::Unique;
use spec_core::ops::unique::{Buffers, Plan};
use spec_core::{DType, Element, Kernel, Result, Stream, Supports, ViewMut};

use crate::Cpu;
use crate::slices::{Workspace, slice, slice_mut, workspace_size};

/// Bits of a partition's digit: as many targets as the TLB and L1 bear.
const SPLIT_BITS: u32 = 10;
const SPLITS: usize = 1 << SPLIT_BITS;
/// Keys of a piece that one thread sorts in cache (256 KiB of u64, and again
/// as much scratch).
const PIECE: usize = 32 * 1024;
/// Keys of a bucket above which all threads partition it further.
const LARGE: usize = 8 * PIECE;
/// Most bits of a digit of the sort in cache.
const DIGIT_BITS: u32 = 11;
const DIGITS: usize = 1 << DIGIT_BITS;
/// Most passes of the sort in cache: 15 bits of [`LARGE`] and the spare ones.
const PASSES: usize = 2;
/// Keys below which a comparison sort is faster than any radix.
const FEW: usize = 64;
/// Bits beyond log2 of a piece's length after which hardly any keys collide.
const SPARE_BITS: u32 = 4;
/// Keys of a chunk of the compaction.
const CHUNK: usize = 64 * 1024;

struct Prepared {
    plan: Plan,
    /// Parts that a partition reads in parallel.
    parts: usize,
}

// SAFETY: the kernel keeps within what the plan describes, whatever the data.
unsafe impl Supports<Unique> for Cpu {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<Unique>>> {
        let parts = (rayon::current_num_threads() * 2).min(plan.keys.len.div_ceil(PIECE)).max(1);
        Ok(Box::new(Prepared { plan: plan.clone(), parts }))
    }
}

impl Prepared {
    fn chunks(&self) -> usize {
        self.plan.keys.len.div_ceil(CHUNK)
    }
}

// SAFETY: as above.
unsafe impl Kernel<Unique> for Prepared {
    fn workspace_size(&self) -> usize {
        let keys = self.plan.keys.len * self.plan.keys.dtype.size();
        workspace_size(&[keys, (self.parts + 1) * SPLITS * 8, self.chunks() * 8])
    }

    unsafe fn launch(
        &self,
        workspace: ViewMut<'_>,
        buffers: Buffers<'_>,
        stream: Stream<'_>,
    ) -> Result<()> {
        stream.check_host()?;
        match self.plan.keys.dtype {
            DType::I32 => self.run::<i32>(workspace, buffers),
            DType::U32 => self.run::<u32>(workspace, buffers),
            DType::I64 => self.run::<i64>(workspace, buffers),
            _ => self.run::<u64>(workspace, buffers),
        }
    }
}

impl Prepared {
    fn run<K: Key>(&self, workspace: ViewMut<'_>, buffers: Buffers<'_>) -> Result<()> {
        let n = self.plan.keys.len;
        let keys = &slice::<K>(buffers.keys)?[..n];
        let unique = &mut slice_mut::<K>(buffers.unique)?[..n];
        let count = &mut slice_mut::<u64>(buffers.count)?[0];
        let counts = buffers.counts.map(slice_mut::<u64>).transpose()?;
        let mut workspace = Workspace::new(workspace)?;
        let sorted = workspace.take::<K>(n)?;
        let histograms = workspace.take::<u64>((self.parts + 1) * SPLITS)?;
        let offsets = workspace.take::<u64>(self.chunks())?;
        let counts = counts.map(|c| &mut c[..n]);
        *count = if ascend(keys) {
            compact(keys, unique, counts, offsets)
        } else {
            sort_into(keys, sorted, unique, histograms);
            compact(sorted, unique, counts, offsets)
        };
        Ok(())
    }
}

/// A key: an integer whose order is that of unsigned bits after one XOR.
trait Key: Element + Ord {
    /// The bits in ascending order of the keys.
    fn bits(self) -> u64;
}

impl Key for u64 {
    fn bits(self) -> u64 {
        self
    }
}

impl Key for i64 {
    fn bits(self) -> u64 {
        self as u64 ^ 1 << 63
    }
}

impl Key for u32 {
    fn bits(self) -> u64 {
        u64::from(self)
    }
}

impl Key for i32 {
    fn bits(self) -> u64 {
        u64::from(self as u32 ^ 1 << 31)
    }
}

/// The bits in which keys differ from `first`, as a mask.
fn spread<K: Key>(keys: &[K], first: K) -> u64 {
    keys.iter().fold(0, |mask, key| mask | (key.bits() ^ first.bits()))
}

/// [`spread`] over all threads.
fn par_spread<K: Key>(keys: &[K]) -> u64 {
    let Some(&first) = keys.first() else { return 0 };
    keys.par_chunks(CHUNK).map(|chunk| spread(chunk, first)).reduce(|| 0, |a, b| a | b)
}

/// Whether the keys are in order as they come, over all threads. Those that are
/// not are mostly found out after a few.
fn ascend<K: Key>(keys: &[K]) -> bool {
    let chunks = keys.len().div_ceil(CHUNK);
    // A chunk and the key after it, so that no border goes unseen.
    let chunk = |i: usize| &keys[i * CHUNK..keys.len().min((i + 1) * CHUNK + 1)];
    (0..chunks).into_par_iter().all(|i| chunk(i).is_sorted())
}

/// The digit below and including the highest bit of `mask`.
#[derive(Clone, Copy)]
struct Split {
    shift: u32,
}

impl Split {
    fn below(mask: u64) -> Self {
        Split { shift: (u64::BITS - mask.leading_zeros()).saturating_sub(SPLIT_BITS) }
    }

    fn of<K: Key>(self, key: K) -> usize {
        (key.bits() >> self.shift) as usize % SPLITS
    }
}

/// Sorts `keys` into `sorted`, with `scratch` as long.
fn sort_into<K: Key>(keys: &[K], sorted: &mut [K], scratch: &mut [K], histograms: &mut [u64]) {
    let mask = par_spread(keys);
    if keys.len() <= PIECE || mask == 0 {
        sorted.copy_from_slice(keys);
        return sort_piece(sorted, scratch, mask, false);
    }
    let split = Split::below(mask);
    partition(keys, sorted, split, histograms);
    sort_buckets(sorted, scratch, false, split, histograms);
}

/// A raw pointer that threads may share, to write where no other writes.
struct Shared<T>(*mut T);

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Shared<T> {}

// SAFETY: the pointer is only used for writes to positions that no two threads
// share, as `partition` explains.
unsafe impl<T: Send> Sync for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Shared<T> {}

impl<T> Shared<T> {
    /// Writes one element.
    ///
    /// # Safety
    /// `index` is in bounds and no other thread touches that element.
    unsafe fn write(self, index: usize, value: T) {
        // SAFETY: the caller's promise.
        unsafe { self.0.add(index).write(value) }
    }
}

/// Scatters `from` into `to` by digit, all threads. Afterwards the first
/// [`SPLITS`] words of `histograms` are where each bucket ends.
fn partition<K: Key>(from: &[K], to: &mut [K], split: Split, histograms: &mut [u64]) {
    assert_eq!(from.len(), to.len());
    let (ends, parts) = histograms.split_at_mut(SPLITS);
    let share = from.len().div_ceil(parts.len() / SPLITS).max(1);
    parts.fill(0);
    from.par_chunks(share).zip(parts.par_chunks_mut(SPLITS)).for_each(|(keys, histogram)| {
        for &key in keys {
            histogram[split.of(key)] += 1;
        }
    });
    let mut sum = 0;
    for digit in 0..SPLITS {
        for part in parts.chunks_mut(SPLITS) {
            sum += std::mem::replace(&mut part[digit], sum);
        }
        ends[digit] = sum;
    }
    let target = Shared(to.as_mut_ptr());
    from.par_chunks(share).zip(parts.par_chunks_mut(SPLITS)).for_each(|(keys, next)| {
        for &key in keys {
            let slot = &mut next[split.of(key)];
            // SAFETY: the prefix sum gives each part and digit a range of its
            // own, as long as the keys that the same loop counted, and all of
            // them together are `0..from.len()`, the length of `to`.
            unsafe { target.write(*slot as usize, key) };
            *slot += 1;
        }
    });
}

/// Sorts the buckets of a partition. They lie in `a`; the result must be in
/// `b` if `into_b`, else in `a`. The small ones side by side, then the large
/// ones, each with all threads.
fn sort_buckets<K: Key>(
    a: &mut [K],
    b: &mut [K],
    into_b: bool,
    split: Split,
    histograms: &mut [u64],
) {
    let mut ends = [0; SPLITS];
    ends.copy_from_slice(&histograms[..SPLITS]);
    small_buckets(a, b, 0, &ends, into_b);
    for range in large_buckets(&ends) {
        let (a, b) = (&mut a[range.clone()], &mut b[range]);
        // Below the lowest digit a bucket holds one key many times.
        let mask = if split.shift == 0 { 0 } else { par_spread(a) };
        if mask != 0 {
            let split = Split::below(mask);
            partition(a, b, split, histograms);
            sort_buckets(b, a, !into_b, split, histograms);
        } else if into_b {
            b.copy_from_slice(a);
        }
    }
}

fn large_buckets(ends: &[u64; SPLITS]) -> impl Iterator<Item = std::ops::Range<usize>> {
    let starts = std::iter::once(0).chain(ends.iter().copied());
    let ranges = starts.zip(ends).map(|(start, &end)| start as usize..end as usize);
    ranges.filter(|range| range.len() > LARGE)
}

/// Sorts the buckets of at most [`LARGE`] keys, halving the list between two
/// threads down to single buckets. `a` and `b` start at element `base`.
fn small_buckets<K: Key>(a: &mut [K], b: &mut [K], base: u64, ends: &[u64], into_b: bool) {
    if a.is_empty() {
        return;
    }
    if ends.len() == 1 {
        if a.len() <= LARGE {
            let mask = spread(a, a[0]);
            sort_piece(a, b, mask, into_b);
        }
        return;
    }
    let (left, right) = ends.split_at(ends.len() / 2);
    let middle = left[left.len() - 1];
    let at = (middle - base) as usize;
    let ((a, a_right), (b, b_right)) = (a.split_at_mut(at), b.split_at_mut(at));
    rayon::join(
        || small_buckets(a, b, base, left, into_b),
        || small_buckets(a_right, b_right, middle, right, into_b),
    );
}

/// Sorts a piece that lies in `a` on one thread; the result is in `b` if
/// `into_b`, else in `a`. The keys differ only in the bits of `mask`.
///
/// Digits are taken from the top bits that tell the keys apart, just enough of
/// them; what then still collides is sorted by comparison.
fn sort_piece<K: Key>(a: &mut [K], b: &mut [K], mask: u64, into_b: bool) {
    if mask == 0 || a.len() <= FEW {
        if mask != 0 {
            a.sort_unstable();
        }
        if into_b {
            b.copy_from_slice(a);
        }
        return;
    }
    let top = u64::BITS - mask.leading_zeros();
    let enough = (a.len().ilog2() + SPARE_BITS).min(PASSES as u32 * DIGIT_BITS).min(top);
    let passes = enough.div_ceil(DIGIT_BITS);
    let bits = enough.div_ceil(passes);
    let shift = top - enough;
    let mut slots = [[0u32; DIGITS]; PASSES];
    for &key in a.iter() {
        for (pass, slots) in slots.iter_mut().enumerate().take(passes as usize) {
            slots[digit(key, shift + pass as u32 * bits, bits)] += 1;
        }
    }
    let (mut from, mut to) = (a, b);
    let mut in_b = false;
    for (pass, slots) in slots.iter_mut().enumerate().take(passes as usize) {
        scatter(from, to, slots, shift + pass as u32 * bits, bits);
        std::mem::swap(&mut from, &mut to);
        in_b = !in_b;
    }
    let sorted = if in_b == into_b {
        from
    } else {
        to.copy_from_slice(from);
        to
    };
    if shift > 0 && mask & ((1 << shift) - 1) != 0 {
        sort_collisions(sorted, shift);
    }
}

#[inline(always)]
fn digit<K: Key>(key: K, shift: u32, bits: u32) -> usize {
    (key.bits() >> shift) as usize & ((1 << bits) - 1)
}

/// One stable pass of a counting sort, from the counts of its digits.
fn scatter<K: Key>(from: &[K], to: &mut [K], slots: &mut [u32; DIGITS], shift: u32, bits: u32) {
    let mut sum = 0;
    for slot in &mut slots[..1 << bits] {
        sum += std::mem::replace(slot, sum);
    }
    for &key in from {
        let slot = &mut slots[digit(key, shift, bits) % DIGITS];
        to[*slot as usize] = key;
        *slot += 1;
    }
}

/// Sorts the runs of keys that agree above `shift`.
fn sort_collisions<K: Key>(keys: &mut [K], shift: u32) {
    let mut start = 0;
    while start < keys.len() {
        let prefix = keys[start].bits() >> shift;
        let mut end = start + 1;
        let mut descends = false;
        while end < keys.len() && keys[end].bits() >> shift == prefix {
            descends |= keys[end] < keys[end - 1];
            end += 1;
        }
        if descends {
            keys[start..end].sort_unstable();
        }
        start = end;
    }
}

/// Writes each distinct key of `sorted` once, and its occurrences; returns how
/// many there are.
fn compact<K: Key>(
    sorted: &[K],
    unique: &mut [K],
    counts: Option<&mut [u64]>,
    offsets: &mut [u64],
) -> u64 {
    let before = |chunk: usize| chunk.checked_sub(1).map(|_| sorted[chunk * CHUNK - 1]);
    sorted.par_chunks(CHUNK).zip(offsets.par_iter_mut()).enumerate().for_each(
        |(index, (chunk, offset))| {
            let first = before(index).is_none_or(|key| key != chunk[0]);
            let changes = chunk.windows(2).map(|w| u64::from(w[0] != w[1])).sum::<u64>();
            *offset = u64::from(first) + changes;
        },
    );
    let mut total = 0;
    for offset in offsets.iter_mut() {
        total += std::mem::replace(offset, total);
    }
    let keys = Shared(unique.as_mut_ptr());
    let counts = counts.map(|counts| Shared(counts.as_mut_ptr()));
    sorted.par_chunks(CHUNK).zip(offsets.par_iter()).enumerate().for_each(
        |(index, (chunk, &offset))| {
            let mut out = Runs { keys, counts, at: offset as usize, start: None };
            let mut previous = before(index);
            for (i, &key) in chunk.iter().enumerate() {
                if previous != Some(key) {
                    // SAFETY: `offset` is the number of distinct keys before
                    // this chunk, and the chunk opens as many runs as it counted
                    // above, so the ranges of chunks are disjoint and end within
                    // `unique` and `counts`, which are as long as `sorted`.
                    unsafe { out.open(key, index * CHUNK + i) };
                    previous = Some(key);
                }
            }
            let end = index * CHUNK + chunk.len();
            let beyond = sorted[end..].partition_point(|&key| previous == Some(key));
            // SAFETY: as above.
            unsafe { out.close(end + beyond) };
        },
    );
    total
}

/// Where one chunk writes its runs of equal keys.
struct Runs<K> {
    keys: Shared<K>,
    counts: Option<Shared<u64>>,
    /// The slot of the next run.
    at: usize,
    /// Where the open run starts among the sorted keys.
    start: Option<usize>,
}

impl<K> Runs<K> {
    /// Ends the open run at `position` and opens one of `key` there.
    ///
    /// # Safety
    /// Slot `at` is in bounds and belongs to this chunk alone.
    unsafe fn open(&mut self, key: K, position: usize) {
        // SAFETY: the caller's promise, for the slot before and this one.
        unsafe {
            self.close(position);
            self.keys.write(self.at, key);
        }
        self.start = Some(position);
        self.at += 1;
    }

    /// Ends the open run, if there is one, at `position`.
    ///
    /// # Safety
    /// As for [`open`](Self::open).
    unsafe fn close(&mut self, position: usize) {
        if let (Some(counts), Some(start)) = (self.counts, self.start) {
            // SAFETY: the run was opened in slot `at - 1` by this chunk.
            unsafe { counts.write(self.at - 1, (position - start) as u64) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_key_out_of_order_is_seen_wherever_it_is() {
        let ascending: Vec<u64> = (0..3 * CHUNK as u64 + 5).map(|i| i / 3).collect();
        assert!(ascend(&ascending) && ascend(&ascending[..1]) && ascend::<u64>(&[]));
        let borders = (0..4).map(|chunk| chunk * CHUNK).chain([ascending.len() - 1]);
        for at in borders.flat_map(|at| [at.saturating_sub(1), at, at + 1]) {
            let mut keys = ascending.clone();
            let Some(key) = keys.get_mut(at) else { continue };
            *key = if at == 0 { u64::MAX } else { 0 };
            assert_eq!(ascend(&keys), keys.is_sorted(), "key {at}");
        }
    }
}
