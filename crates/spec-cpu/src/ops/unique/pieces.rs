//! Pieces sorted side by side, and their distinct keys placed one after another.
//!
//! ```text
//! workers    --claim pieces in their order, sort each where it lies-->  sorted pieces
//! any worker --whose turn is come: all before it are counted-->  unique, counts
//! ```
//!
//! Nobody waits: a piece that is sorted before one in front of it stays where it
//! is, and whoever finishes that one places both. It mostly is in cache still.

use std::sync::{Mutex, MutexGuard, PoisonError};

use rayon::prelude::*;

use super::PIECE;
use super::key::Key;
use super::piece;

/// Most pieces of one round of workers.
const ROUND: usize = 512;

/// The results, as far as they are written.
pub(super) struct Output<'a, K> {
    pub(super) keys: &'a mut [K],
    pub(super) counts: Option<&'a mut [u64]>,
    /// How many keys are written.
    pub(super) count: usize,
}

impl<K: Key> Output<'_, K> {
    /// What is not written yet.
    pub(super) fn rest(&mut self) -> Rest<'_, K> {
        let counts = self.counts.as_deref_mut().map(|counts| &mut counts[self.count..]);
        Rest { keys: &mut self.keys[self.count..], counts, taken: 0 }
    }
}

/// Slots of the results, handed out from the front.
pub(super) struct Rest<'a, K> {
    keys: &'a mut [K],
    counts: Option<&'a mut [u64]>,
    taken: usize,
}

impl<'a, K: Key> Rest<'a, K> {
    /// The next so many slots.
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

/// Pieces in their order: which are claimed, sorted, placed.
struct Line<'a, K> {
    /// Keys that nobody has claimed.
    keys: &'a mut [K],
    /// Where their buckets end among all, and where the first starts.
    ends: &'a [u64],
    start: usize,
    /// Most keys of a piece of several buckets.
    most: usize,
    /// Pieces that are claimed.
    claimed: usize,
    /// Sorted pieces, and how many distinct keys each has.
    sorted: [Option<(&'a [K], usize)>; ROUND],
    placed: usize,
    rest: Rest<'a, K>,
}

impl<'a, K: Key> Line<'a, K> {
    /// The next piece, and its number: a bucket, or several small ones.
    fn claim(&mut self) -> Option<(usize, &'a mut [K])> {
        if self.claimed == ROUND {
            return None;
        }
        let (&first, _) = self.ends.split_first()?;
        let most = (first as usize).max(self.start + self.most);
        let buckets = self.ends.iter().take_while(|end| **end as usize <= most).count();
        let (own, ends) = self.ends.split_at(buckets);
        let end = own[buckets - 1] as usize;
        let (piece, keys) = std::mem::take(&mut self.keys).split_at_mut(end - self.start);
        (self.keys, self.ends, self.start) = (keys, ends, end);
        self.claimed += 1;
        Some((self.claimed - 1, piece))
    }

    /// The next piece to write, and where to.
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

/// Sorts the buckets of `keys`, of which the first starts at `start` and each ends
/// where `ends` says, and writes their distinct keys. Returns how many buckets were
/// enough for a round. None is longer than `length`, the keys of scratch for each
/// worker.
pub(super) fn settle<K: Key>(
    keys: &mut [K],
    start: usize,
    ends: &[u64],
    (scratch, length): (&mut [K], usize),
    output: &mut Output<'_, K>,
) -> usize {
    let counted = output.counts.is_some();
    let sorted = [const { None }; ROUND];
    let (most, rest) = (PIECE.min(length), output.rest());
    let line = Line { keys, ends, start, most, claimed: 0, sorted, placed: 0, rest };
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
