//! Pieces sorted in parallel, and their distinct keys written one piece after another.
//!
//! ```text
//! workers    --claim pieces in their order, sort each in place-->  sorted pieces
//! any worker --writes the next piece, once all pieces before it are counted-->  unique, counts
//! ```
//!
//! No worker waits. A sorted piece stays where it is until all pieces before it are sorted; the
//! worker that sorts the last of those writes all pieces that are ready. They mostly are in cache
//! still.

use std::sync::{Mutex, MutexGuard, PoisonError};

use rayon::prelude::*;

use super::PIECE;
use super::key::Key;
use super::piece;

/// Maximal pieces of one call of [`settle`].
const ROUND: usize = 512;

/// The outputs of the operator.
pub(super) struct Output<'a, K> {
    pub(super) keys: &'a mut [K],
    pub(super) counts: Option<&'a mut [u64]>,
    /// How many distinct keys are written.
    pub(super) count: usize,
}

impl<K: Key> Output<'_, K> {
    /// The slots that no result is written to yet.
    pub(super) fn rest(&mut self) -> Rest<'_, K> {
        let counts = self.counts.as_deref_mut().map(|counts| &mut counts[self.count..]);
        Rest { keys: &mut self.keys[self.count..], counts, taken: 0 }
    }
}

/// Slots of the outputs, handed out from the front.
pub(super) struct Rest<'a, K> {
    keys: &'a mut [K],
    counts: Option<&'a mut [u64]>,
    taken: usize,
}

impl<'a, K: Key> Rest<'a, K> {
    /// The next `len` slots.
    pub(super) fn take(&mut self, len: usize) -> (&'a mut [K], Option<&'a mut [u64]>) {
        let (keys, rest) = std::mem::take(&mut self.keys).split_at_mut(len);
        self.keys = rest;
        let counts = self.counts.take().map(|counts| {
            let (counts, rest) = counts.split_at_mut(len);
            self.counts = Some(rest);
            counts
        });
        self.taken += len;
        (keys, counts)
    }
}

/// The pieces in their order, and how many of them are claimed, sorted and placed.
struct Line<'a, K> {
    /// The keys that no worker has claimed.
    keys: &'a mut [K],
    /// Where the buckets of those keys end, counted from the first bucket of the partition.
    ends: &'a [u64],
    /// Where the first of those buckets starts.
    start: usize,
    /// Maximal keys of a piece that is made of several buckets.
    max: usize,
    /// How many pieces are claimed.
    claimed: usize,
    /// Sorted pieces that are not placed yet, and how many distinct keys each has.
    sorted: [Option<(&'a [K], usize)>; ROUND],
    /// How many pieces are placed.
    placed: usize,
    rest: Rest<'a, K>,
}

impl<'a, K: Key> Line<'a, K> {
    /// Claims the next piece (a bucket, or several small ones), and returns it with its number.
    fn claim(&mut self) -> Option<(usize, &'a mut [K])> {
        if self.claimed == ROUND {
            return None;
        }
        let (&first, _) = self.ends.split_first()?;
        let max = (first as usize).max(self.start + self.max);
        let buckets = self.ends.iter().take_while(|end| **end as usize <= max).count();
        let (own, ends) = self.ends.split_at(buckets);
        let end = own[buckets - 1] as usize;
        let (piece, keys) = std::mem::take(&mut self.keys).split_at_mut(end - self.start);
        (self.keys, self.ends, self.start) = (keys, ends, end);
        self.claimed += 1;
        Some((self.claimed - 1, piece))
    }

    /// The next piece to write, and the slots that it is written to.
    fn place(&mut self) -> Option<Placed<'a, K>> {
        let (from, distinct) = self.sorted.get_mut(self.placed)?.take()?;
        let (keys, counts) = self.rest.take(distinct);
        self.placed += 1;
        Some(Placed { from, keys, counts })
    }
}

struct Placed<'a, K> {
    from: &'a [K],
    keys: &'a mut [K],
    counts: Option<&'a mut [u64]>,
}

/// Sorts buckets and writes their distinct keys. The first bucket starts at `start`, and each ends
/// at its entry of `ends`; `keys` starts with the first bucket. No bucket is longer than `length`,
/// the keys of a worker's scratch. Returns how many buckets were done: at most [`ROUND`] pieces.
pub(super) fn settle<K: Key>(
    keys: &mut [K],
    start: usize,
    ends: &[u64],
    (scratch, length): (&mut [K], usize),
    output: &mut Output<'_, K>,
) -> usize {
    let counted = output.counts.is_some();
    let sorted = [const { None }; ROUND];
    let (max, rest) = (PIECE.min(length), output.rest());
    let line = Line { keys, ends, start, max, claimed: 0, sorted, placed: 0, rest };
    let line = Mutex::new(line);
    scratch.par_chunks_mut(length).for_each(|scratch| {
        loop {
            let Some((number, piece)) = hold(&line).claim() else { break };
            let (left, distinct) =
                if piece.is_empty() { (0, 0) } else { piece::sort(piece, scratch, counted) };
            hold(&line).sorted[number] = Some((&*piece.split_at_mut(left).0, distinct));
            loop {
                let Some(placed) = hold(&line).place() else { break };
                let Placed { from, keys, counts } = placed;
                if from.len() == keys.len() && counts.is_none() {
                    keys.copy_from_slice(from);
                } else {
                    write(from.iter().copied(), keys, counts);
                }
            }
        }
    });
    let line = line.into_inner().unwrap_or_else(PoisonError::into_inner);
    let (left, taken) = (line.ends.len(), line.rest.taken);
    output.count += taken;
    ends.len() - left
}

fn hold<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes the distinct ones of sorted keys to the front of `keys`, and how often each occurs
/// to `counts`. Stops where either is full.
pub(super) fn write<K: Key>(
    from: impl ExactSizeIterator<Item = K>,
    keys: &mut [K],
    counts: Option<&mut [u64]>,
) {
    let mut from = from.peekable();
    let Some(&first) = from.peek() else { return };
    let mut previous = first;
    let mut at = 0;
    match counts {
        None => {
            for key in from {
                at += usize::from(key != previous);
                let Some(slot) = keys.get_mut(at) else { return };
                *slot = key;
                previous = key;
            }
        }
        Some(counts) => {
            let mut count = 0;
            for key in from {
                let new = key != previous;
                at += usize::from(new);
                count = if new { 1 } else { count + 1 };
                let (Some(slot), Some(counts)) = (keys.get_mut(at), counts.get_mut(at)) else {
                    return;
                };
                (*slot, *counts) = (key, count);
                previous = key;
            }
        }
    }
}
