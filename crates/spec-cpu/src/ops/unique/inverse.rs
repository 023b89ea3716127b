//! Where each key is among the distinct keys, which are written by then.
//!
//! Keys are looked up in batches, in three loops over a batch. The loads of one loop do not depend
//! on each other, so that the processor waits for the memory of many keys at once. Each thread takes
//! its own chunks of keys.

use rayon::prelude::*;
use spec_core::segments::{SPLITTER_BITS, Segments};
use spec_core::{DType, Element, Result, ViewMut};

use super::key::Key;
use super::ordered::CHUNK;
use crate::slices::{once, slice_mut};

/// Keys of a batch.
const BATCH: usize = 32;

/// The splitters of the largest number of segments, and one more bound.
const BOUNDS: usize = (1 << SPLITTER_BITS) + 1;

/// An entry of a table: 16 bits.
type Entry = [u8; 2];

/// Bytes of the tables for `n` keys.
pub(super) fn table_bytes(n: usize) -> usize {
    Segments::max_entries(n) * size_of::<Entry>()
}

/// A type of the inverse.
trait Place: Element {
    fn of(place: usize) -> Self;
}

impl Place for i64 {
    fn of(place: usize) -> Self {
        place as i64
    }
}

impl Place for i32 {
    fn of(place: usize) -> Self {
        place as i32
    }
}

/// Writes the place of each key among the distinct keys. `table` has room as
/// [`table_bytes`] says.
pub(super) fn find<K: Key>(
    keys: &[K],
    distinct: &[K],
    table: &mut [u8],
    inverse: ViewMut<'_>,
) -> Result<()> {
    match inverse.dtype() {
        DType::I32 => find_as::<K, i32>(keys, distinct, table, slice_mut(inverse)?),
        _ => find_as::<K, i64>(keys, distinct, table, slice_mut(inverse)?),
    }
    Ok(())
}

fn find_as<K: Key, P: Place>(keys: &[K], distinct: &[K], table: &mut [u8], inverse: &mut [P]) {
    if keys.is_empty() || distinct.is_empty() {
        return;
    }
    let segments = Segments::of(distinct.len());
    let (table, _) = table.as_chunks_mut();
    let Some(table) = table.get_mut(..segments.entries()) else { return };
    let mut bounds = [0; BOUNDS];
    let mut below = [0; BOUNDS];
    let root = Root::new(distinct, segments, &mut bounds, &mut below);
    root.fill(distinct, table);
    let guide = Guide { root, distinct, table };
    keys.par_chunks(CHUNK).zip(inverse.par_chunks_mut(CHUNK)).for_each(|(keys, inverse)| {
        for (keys, inverse) in keys.chunks(BATCH).zip(inverse.chunks_mut(BATCH)) {
            guide.find(keys, inverse);
        }
    });
}

/// The bucket, of `2^bits` in a range that starts at `low` and spans `span`, where a key is. Any
/// number below `2^bits` for a key outside.
#[inline(always)]
fn bucket_of(key: u64, low: u64, span: u64, bits: u32) -> usize {
    (key.wrapping_sub(low) << (span | 1).leading_zeros() >> (u64::BITS - bits)) as usize
}

/// The segments, and a table over their splitters.
#[derive(Clone, Copy)]
struct Root<'a> {
    segments: Segments,
    /// The number of distinct keys.
    count: usize,
    /// The splitters, and behind the last the key above all keys, which wraps.
    bounds: &'a [u64; BOUNDS],
    /// Splitters below each bucket of the whole range, and all of them.
    below: &'a [u16; BOUNDS],
    span: u64,
}

impl<'a> Root<'a> {
    fn new<K: Key>(
        distinct: &[K],
        segments: Segments,
        bounds: &'a mut [u64; BOUNDS],
        below: &'a mut [u16; BOUNDS],
    ) -> Self {
        let splitters = distinct.iter().step_by(1 << segments.shift);
        for (bound, key) in bounds.iter_mut().zip(splitters) {
            *bound = once(key).bits();
        }
        let last = distinct.last().map_or(0, |key| once(key).bits());
        bounds[segments.count] = last.wrapping_add(1);
        let low = bounds[0];
        let span = last.wrapping_sub(low);
        let mut next = 0;
        for (i, &splitter) in bounds[..segments.count].iter().enumerate() {
            let bucket = bucket_of(splitter, low, span, SPLITTER_BITS);
            while next <= bucket {
                below[next] = i as u16;
                next += 1;
            }
        }
        below[next..].fill(segments.count as u16);
        Root { segments, count: distinct.len(), bounds, below, span }
    }

    /// The segment where a key is.
    #[inline(always)]
    fn segment(&self, key: u64) -> usize {
        let bucket = bucket_of(key, self.bounds[0], self.span, SPLITTER_BITS);
        let mut low = usize::from(self.below[bucket]);
        let mut high = usize::from(self.below[bucket + 1]);
        while low < high {
            let middle = (low + high) / 2;
            if self.bounds[middle] <= key {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low.saturating_sub(1)
    }

    /// The bucket of a key in a segment.
    #[inline(always)]
    fn bucket(&self, segment: usize, key: u64) -> usize {
        let low = self.bounds[segment];
        let span = self.bounds[segment + 1].wrapping_sub(1).wrapping_sub(low);
        bucket_of(key, low, span, self.segments.bits)
    }

    /// The keys of a segment.
    #[inline(always)]
    fn len(&self, segment: usize) -> usize {
        (self.count - (segment << self.segments.shift)).min(1 << self.segments.shift)
    }

    /// Fills the tables of all segments.
    fn fill<K: Key>(&self, distinct: &[K], table: &mut [Entry]) {
        let Segments { shift, bits, coarse, .. } = self.segments;
        if bits == 0 {
            return;
        }
        let entry = |below: usize| ((below >> coarse) as u16).to_ne_bytes();
        let segments = distinct.par_chunks(1 << shift).zip(table.par_chunks_mut(1 << bits));
        segments.enumerate().for_each(|(segment, (keys, table))| {
            let mut next = 0;
            for (i, key) in keys.iter().enumerate() {
                let bucket = self.bucket(segment, once(key).bits());
                while next <= bucket {
                    table[next] = entry(i);
                    next += 1;
                }
            }
            table[next..].fill(entry(keys.len()));
        });
    }
}

/// What a lookup reads.
struct Guide<'a, K> {
    root: Root<'a>,
    distinct: &'a [K],
    table: &'a [Entry],
}

impl<K: Key> Guide<'_, K> {
    /// Writes the places of at most [`BATCH`] keys. A key that another program has changed may be
    /// absent, and tables that were filled while the distinct keys changed may say anything: each
    /// number is clamped to what exists.
    #[inline(always)]
    fn find<P: Place>(&self, keys: &[K], inverse: &mut [P]) {
        let Segments { shift, bits, coarse, .. } = self.root.segments;
        let mut batch = [(0u64, 0usize); BATCH];
        for ((of_key, segment), key) in batch.iter_mut().zip(keys) {
            *of_key = once(key).bits();
            *segment = self.root.segment(*of_key);
        }
        let mut ranges = [(0usize, 0usize); BATCH];
        for ((low, high), &(key, segment)) in ranges[..keys.len()].iter_mut().zip(&batch) {
            let len = self.root.len(segment);
            (*low, *high) = (0, len);
            if bits > 0 {
                let bucket = self.root.bucket(segment, key);
                let at = (segment << bits) + bucket;
                let below = |at: usize| usize::from(u16::from_ne_bytes(self.table[at])) << coarse;
                *low = below(at).min(len - 1);
                if bucket + 1 < 1 << bits {
                    *high = (below(at + 1) + (1 << coarse) - 1).min(len);
                }
            }
        }
        // The first key to compare with; the first distinct key where there is nothing to compare.
        let mut middles = [0u64; BATCH];
        for ((middle, &(low, high)), &(_, segment)) in
            middles[..keys.len()].iter_mut().zip(&ranges).zip(&batch)
        {
            let is_open = low + 1 < high;
            let at = if is_open { (segment << shift) + (low + high) / 2 } else { 0 };
            *middle = once(&self.distinct[at]).bits();
        }
        for (i, place) in inverse.iter_mut().enumerate() {
            let ((key, segment), (mut low, mut high)) = (batch[i], ranges[i]);
            let mut other = middles[i];
            while low + 1 < high {
                let middle = (low + high) / 2;
                if other <= key {
                    low = middle;
                } else {
                    high = middle;
                }
                // The next key to compare with, if there is one.
                let next = (segment << shift) + (low + high) / 2;
                other = self.distinct.get(next).map_or(0, |key| once(key).bits());
            }
            *place = P::of((segment << shift) + low);
        }
    }
}
