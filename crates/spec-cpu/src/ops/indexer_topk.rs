//! The best positions of rows on the CPU: one pass over the scores.
//!
//! A row is read for the largest key ([`sort_key`](spec_core::exact::sort_key)) of each group of 16 scores; the
//! k-th largest of those is one that k scores reach. What reaches it is gathered, of the
//! groups that have any, and cut to the `k` best ([`select`](crate::select)): for random
//! scores and k a 64th of them, 9 of 8 as many as are kept.
//!
//! Rows are done in parallel; where they are few, each in pieces, whose best are then
//! cut to the row's.

use std::sync::atomic::{AtomicU32, Ordering};

use rayon::prelude::*;
use spec_core::ops::IndexerTopk;
use spec_core::ops::indexer_topk::{Buffers, Plan};
use spec_core::{Kernel, Result, Supports, ViewMut, flags};

use super::{by_float, by_int, kernel};
use crate::Cpu;
use crate::select::{self, Reach};
use crate::simd::{self, BLOCK, Float, SMALL_GROUP as GROUP};
use crate::slices::{Int, Ints, Rows, Workspace, raise, shares_mut, slice_mut, workspace_size};

/// Scores of a piece, at least.
const MIN_PIECE: usize = 1 << 16;

struct Prepared {
    plan: Plan,
    /// Pieces of a row, and rows that share buffers one after the other.
    pieces: usize,
    share: usize,
}

// SAFETY: `launch` works on checked slices of the workspace and the buffers.
unsafe impl Supports<IndexerTopk> for Cpu {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<IndexerTopk>>> {
        let (rows, cols) = (plan.scores.rows.max(1), plan.scores.cols);
        let threads = rayon::current_num_threads();
        let pieces = (threads / rows).min(cols / MIN_PIECE).max(1);
        // Several times as many shares as threads, so that none waits for long.
        let share = rows.div_ceil(4 * threads);
        let prepared = Prepared { plan: plan.clone(), pieces, share };
        let words = prepared.shares().saturating_mul(prepared.row());
        let size = workspace_size(&[words.saturating_mul(4)]);
        // SAFETY: as for the `impl`.
        Ok(unsafe { kernel::<IndexerTopk, _>(prepared, size, launch) })
    }
}

impl Prepared {
    /// Scores of a piece, at most.
    fn piece(&self) -> usize {
        self.plan.scores.cols.div_ceil(self.pieces)
    }

    /// What is gathered of a piece, at most: fewer than `k` groups have more than the key
    /// that is reached, and so many ties are taken; and one entry more.
    fn gathered(&self) -> usize {
        self.piece().min(self.plan.k.saturating_mul(GROUP + 1) + 1)
    }

    /// Words that a piece is worked on with: [`Desk`].
    fn desk(&self) -> usize {
        2 * self.piece().div_ceil(GROUP) + 2 * self.gathered() + 1
    }

    /// Words for a row: a desk for each piece, and the best of all.
    fn row(&self) -> usize {
        let best = if self.pieces > 1 { 2 * self.pieces * self.plan.k } else { 0 };
        self.pieces * self.desk() + best
    }

    /// Buffers that are used at a time.
    fn shares(&self) -> usize {
        self.plan.scores.rows.div_ceil(self.share)
    }
}

fn launch(prepared: &Prepared, workspace: ViewMut<'_>, buffers: Buffers<'_>) -> Result<()> {
    by_float!(prepared.plan.scores.dtype, by_indices(prepared, workspace, buffers))
}

fn by_indices<T: Float>(
    prepared: &Prepared,
    workspace: ViewMut<'_>,
    buffers: Buffers<'_>,
) -> Result<()> {
    by_int!(prepared.plan.indices.dtype, run::<T>(prepared, workspace, buffers))
}

fn run<T: Float, I: Int>(
    prepared: &Prepared,
    workspace: ViewMut<'_>,
    buffers: Buffers<'_>,
) -> Result<()> {
    let Prepared { plan, share, .. } = prepared;
    let scores = Rows::<T>::new(buffers.scores, plan.scores)?;
    let lengths = buffers.lengths.map(Ints::new).transpose()?;
    let starts = buffers.starts.map(Ints::new).transpose()?;
    let indices = slice_mut::<I>(buffers.indices)?;
    let bits = AtomicU32::new(0);
    let tell = |flag: u32, there: bool| {
        if there {
            bits.fetch_or(flag, Ordering::Relaxed);
        }
    };
    let space = Workspace::new(workspace)?.take::<u32>(prepared.shares() * prepared.row())?;
    shares_mut(indices, plan.indices, *share)
        .zip(space.par_chunks_mut(prepared.row()))
        .enumerate()
        .for_each(|(of, (rows, space))| {
            for (i, out) in rows.enumerate() {
                let row = of * share + i;
                let length = lengths.map(|lengths| lengths.get(row));
                let (start, count, cut) = plan.range(length, starts.map(|starts| starts.get(row)));
                let scores = &scores.row(row)[start..start + count];
                tell(flags::BAD_LENGTHS, cut);
                tell(flags::NON_FINITE, choose(prepared, scores, space, out));
            }
        });
    raise(buffers.flags, bits.into_inner())
}

/// Writes the positions of the best of a row; returns whether a NaN was met.
fn choose<T: Float, I: Int>(
    prepared: &Prepared,
    scores: &[T],
    space: &mut [u32],
    out: &mut [I],
) -> bool {
    let (pieces, k) = (prepared.pieces, prepared.plan.k);
    let (desks, best) = space.split_at_mut(pieces * prepared.desk());
    if pieces == 1 {
        let mut desk = Desk::new(prepared, desks);
        let odd = desk.collect(k, scores, 0);
        write(&desk.keys[..*desk.count as usize], desk.indices, out);
        return odd;
    }
    let piece = scores.len().div_ceil(pieces);
    let odd = desks.par_chunks_mut(prepared.desk()).enumerate().map(|(i, desk)| {
        let (from, to) = ((i * piece).min(scores.len()), ((i + 1) * piece).min(scores.len()));
        Desk::new(prepared, desk).collect(k, &scores[from..to], from)
    });
    let odd = odd.reduce(|| false, |a, b| a | b);
    // The best of each piece one behind the other, still in order of index.
    let (keys, indices) = best.split_at_mut(pieces * k);
    let mut count = 0;
    for desk in desks.chunks_mut(prepared.desk()) {
        let desk = Desk::new(prepared, desk);
        for (&key, &index) in desk.keys[..*desk.count as usize].iter().zip(&*desk.indices) {
            if key > 0 {
                (keys[count], indices[count]) = (key, index);
                count += 1;
            }
        }
    }
    cut(k, &mut keys[..count]);
    write(&keys[..count], indices, out);
    odd
}

/// Drops all keys but the `k` best.
fn cut(k: usize, keys: &mut [u32]) {
    let one = |_: &[u32], weights: &mut [u64]| weights.fill(1);
    if keys.len() > k
        && let Some(cut) = select::cut(keys, k as u64, one)
    {
        cut.drop_rest(keys);
    }
}

/// Writes the indices of keys that were not dropped, and -1 behind them.
fn write<I: Int>(keys: &[u32], indices: &[u32], out: &mut [I]) {
    let kept = keys.iter().zip(indices).filter(|(key, _)| **key > 0);
    let mut written = 0;
    for (to, (_, &index)) in out.iter_mut().zip(kept) {
        *to = I::of(index as i32);
        written += 1;
    }
    out[written..].fill(I::of(-1));
}

/// What a piece of a row is worked on with.
struct Desk<'a> {
    /// The largest key of each group, and a copy to reorder.
    maxima: &'a mut [u32],
    ranked: &'a mut [u32],
    /// What was gathered, 0 for what is not among the best, and its indices.
    keys: &'a mut [u32],
    indices: &'a mut [u32],
    /// How much that is.
    count: &'a mut u32,
}

impl<'a> Desk<'a> {
    fn new(prepared: &Prepared, words: &'a mut [u32]) -> Self {
        let (count, words) = words.split_first_mut().expect("a desk has words");
        let groups = prepared.piece().div_ceil(GROUP);
        let (maxima, words) = words.split_at_mut(groups);
        let (ranked, words) = words.split_at_mut(groups);
        let (keys, indices) = words.split_at_mut(prepared.gathered());
        Desk { maxima, ranked, keys, indices, count }
    }

    /// Finds the `k` best of some scores, the first of which has the index `first`; returns
    /// whether one is NaN.
    fn collect<T: Float>(&mut self, k: usize, scores: &[T], first: usize) -> bool {
        let groups = scores.len().div_ceil(GROUP);
        let (maxima, ranked) = (&mut self.maxima[..groups], &mut self.ranked[..groups]);
        let mut wide = [0.0; BLOCK];
        let mut odd = false;
        for (scores, maxima) in scores.chunks(BLOCK).zip(maxima.chunks_mut(BLOCK / GROUP)) {
            let values = T::widen(scores, &mut wide);
            odd |= simd::any_nan(values);
            simd::small_group_maxima(values, maxima);
        }
        ranked.copy_from_slice(maxima);
        let reach = Reach { key: select::reached_by(k, ranked), ties: k };
        let group_keys = |group: usize, keys: &mut [u32; GROUP]| {
            let scores = &scores[group * GROUP..];
            let scores = &scores[..scores.len().min(GROUP)];
            simd::sort_keys(T::widen(scores, &mut wide), keys);
            scores.len()
        };
        let count = select::gather(reach, maxima, group_keys, self.keys, self.indices);
        *self.count = count as u32;
        cut(k, &mut self.keys[..count]);
        self.indices[..count].iter_mut().for_each(|index| *index += first as u32);
        odd
    }
}
