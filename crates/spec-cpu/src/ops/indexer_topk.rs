//! The best positions of rows on the CPU: one pass over the scores.
//!
//! What can still be among the `k` best of a row lies in order of index in a buffer.
//! When it is full, the `k` best of it stay, and from then on only what is above the
//! last of them goes in: an equal score that comes later loses to it. Scores are
//! compared a vector at a time, and hardly any vector has one that goes in.
//!
//! Rows are done in parallel; where they are few, each in pieces, whose best are then
//! cut to the row's.

use std::sync::atomic::{AtomicU32, Ordering};

use rayon::prelude::*;
use spec_core::ops::IndexerTopk;
use spec_core::ops::indexer_topk::{Buffers, Plan};
use spec_core::{Kernel, Result, Stream, Supports, ViewMut, exact, flags};

use super::{by_float, by_int};
use crate::Cpu;
use crate::simd::{BLOCK, Float};
use crate::slices::{Int, Ints, Rows, Workspace, raise, slice_mut, workspace_size};

/// Room beside the `k` best, so that a buffer fills rarely.
const ROOM: usize = 16 * 1024;
/// Scores of a piece, at least.
const MIN_PIECE: usize = 1 << 16;
/// Scores that are compared at once.
const GROUP: usize = 16;

struct Prepared {
    plan: Plan,
    /// Pieces of a row, and rows that share buffers one after the other.
    pieces: usize,
    share: usize,
}

// SAFETY: the kernel keeps within what the plan describes, whatever the data.
unsafe impl Supports<IndexerTopk> for Cpu {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<IndexerTopk>>> {
        let (rows, cols) = (plan.scores.rows.max(1), plan.scores.cols);
        let threads = rayon::current_num_threads();
        let pieces = (threads / rows).min(cols / MIN_PIECE).max(1);
        // Several times as many shares as threads, so that none waits for long.
        let share = rows.div_ceil(4 * threads);
        Ok(Box::new(Prepared { plan: plan.clone(), pieces, share }))
    }
}

impl Prepared {
    /// Words of a buffer.
    fn room(&self) -> usize {
        self.plan.k + ROOM.min(self.plan.scores.cols).next_multiple_of(BLOCK) + BLOCK
    }

    /// Buffers that are used at a time.
    fn shares(&self) -> usize {
        self.plan.scores.rows.div_ceil(self.share)
    }
}

// SAFETY: as above.
unsafe impl Kernel<IndexerTopk> for Prepared {
    fn workspace_size(&self) -> usize {
        // What is kept, and as much to select in.
        let words = 2usize.saturating_mul(self.shares() * self.pieces).saturating_mul(self.room());
        workspace_size(&[words.saturating_mul(8)])
    }

    unsafe fn launch(
        &self,
        workspace: ViewMut<'_>,
        buffers: Buffers<'_>,
        stream: Stream<'_>,
    ) -> Result<()> {
        stream.check_host()?;
        by_float!(self.plan.scores.dtype, by_indices(self, workspace, buffers))
    }
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
    let Prepared { plan, pieces, share } = prepared;
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
    let room = 2 * pieces * prepared.room();
    let space = Workspace::new(workspace)?.take::<u64>(prepared.shares() * room)?;
    let step = plan.indices.row_stride.max(plan.k) * share;
    let used = match plan.indices.rows {
        0 => 0,
        rows => (rows - 1) * plan.indices.row_stride + plan.k,
    };
    indices[..used].par_chunks_mut(step).zip(space.par_chunks_mut(room)).enumerate().for_each(
        |(of, (rows, space))| {
            for (i, out) in rows.chunks_mut(plan.indices.row_stride.max(plan.k)).enumerate() {
                let row = of * share + i;
                let length = lengths.map(|lengths| lengths.get(row));
                let (start, count, cut) = plan.range(length, starts.map(|starts| starts.get(row)));
                let scores = &scores.row(row)[start..start + count];
                tell(flags::BAD_LENGTHS, cut);
                tell(flags::NON_FINITE, choose(plan.k, *pieces, scores, space, &mut out[..plan.k]));
            }
        },
    );
    raise(buffers.flags, bits.into_inner())
}

/// Writes the positions of the best of a row; returns whether a NaN was met.
fn choose<T: Float, I: Int>(
    k: usize,
    pieces: usize,
    scores: &[T],
    space: &mut [u64],
    out: &mut [I],
) -> bool {
    let (kept, spare) = space.split_at_mut(space.len() / 2);
    let room = kept.len() / pieces;
    let piece = scores.len().div_ceil(pieces);
    let collect = |(i, (kept, spare)): (usize, (&mut [u64], &mut [u64]))| {
        let (from, to) = ((i * piece).min(scores.len()), ((i + 1) * piece).min(scores.len()));
        // The last word is for how many there are.
        let (count, kept) = kept.split_last_mut()?;
        let mut best = Best { k, kept, spare, count: 0, bound: None, odd: false };
        best.collect(&scores[from..to], from);
        *count = best.count as u64;
        Some(best.odd)
    };
    let buffers = kept.par_chunks_mut(room).zip(spare.par_chunks_mut(room)).enumerate();
    let odd = buffers.filter_map(collect).reduce(|| false, |a, b| a | b);
    // One behind the other, still in order of index.
    let mut count = 0;
    for piece in 0..pieces {
        let (from, held) = (piece * room, kept[(piece + 1) * room - 1] as usize);
        kept.copy_within(from..from + held, count);
        count += held;
    }
    if count > k {
        count = cut(k, &mut kept[..count], spare).0;
    }
    for (to, &entry) in out.iter_mut().zip(&kept[..count]) {
        *to = I::of(index_of(entry));
    }
    out[count..].fill(I::of(-1));
    odd
}

/// A score and its index: the larger the better, and no two are equal.
fn entry(score: f32, index: usize) -> u64 {
    u64::from(exact::sort_key(score)) << 32 | u64::from(!(index as u32))
}

fn index_of(entry: u64) -> i32 {
    !(entry as u32) as i32
}

/// Leaves the `k` best of more entries, in their order: how many, and the last of them.
fn cut(k: usize, entries: &mut [u64], spare: &mut [u64]) -> (usize, u64) {
    let spare = &mut spare[..entries.len()];
    spare.copy_from_slice(entries);
    let (_, &mut last, _) = spare.select_nth_unstable_by(k - 1, |a, b| b.cmp(a));
    let mut count = 0;
    for i in 0..entries.len() {
        let entry = entries[i];
        entries[count] = entry;
        count += usize::from(entry >= last);
    }
    (k, last)
}

/// The best of a piece so far.
struct Best<'a> {
    k: usize,
    kept: &'a mut [u64],
    spare: &'a mut [u64],
    count: usize,
    /// What a score must exceed, once there were more than `k`.
    bound: Option<f32>,
    odd: bool,
}

impl Best<'_> {
    fn collect<T: Float>(&mut self, scores: &[T], first: usize) {
        let mut block = [0.0; BLOCK];
        for (i, scores) in scores.chunks(BLOCK).enumerate() {
            let at = first + i * BLOCK;
            if self.count + scores.len() > self.kept.len() {
                let (count, last) = cut(self.k, &mut self.kept[..self.count], self.spare);
                self.count = count;
                self.bound = Some(score_of(last));
            }
            let scores = T::widen(scores, &mut block);
            match self.bound {
                None => scores.iter().enumerate().for_each(|(j, &x)| self.push(x, at + j)),
                Some(bound) => self.filter(scores, at, bound),
            }
        }
    }

    fn push(&mut self, score: f32, index: usize) {
        self.odd |= score.is_nan();
        self.kept[self.count] = entry(score, index);
        self.count += 1;
    }

    /// Takes what exceeds the bound.
    fn filter(&mut self, scores: &[f32], at: usize, bound: f32) {
        let mut odd = false;
        let (kept, count) = (&mut *self.kept, &mut self.count);
        each_above(scores, bound, |j, score| {
            if score.is_nan() {
                odd = true;
            } else {
                kept[*count] = entry(score, at + j);
                *count += 1;
            }
        });
        self.odd |= odd;
    }
}

/// The score of an entry, as a float that orders alike.
fn score_of(entry: u64) -> f32 {
    let key = (entry >> 32) as u32;
    f32::from_bits(if key >> 31 == 1 { key & 0x7FFF_FFFF } else { !key })
}

/// Calls `visit` with what exceeds `bound`, and with NaN.
#[inline(always)]
fn each_above(scores: &[f32], bound: f32, mut visit: impl FnMut(usize, f32)) {
    for (group, scores) in scores.chunks(GROUP).enumerate() {
        if any_above(scores, bound) {
            for (j, &score) in scores.iter().enumerate() {
                if score > bound || score.is_nan() {
                    visit(group * GROUP + j, score);
                }
            }
        }
    }
}

#[inline(always)]
fn any_above(scores: &[f32], bound: f32) -> bool {
    scores.iter().fold(false, |any, &score| any | (score > bound) | score.is_nan())
}
