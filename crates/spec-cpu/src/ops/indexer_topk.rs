//! The positions of the largest scores of each row, on the CPU: one pass over the scores.
//!
//! The pass finds the largest key ([`sort_key`](spec_core::exact::sort_key)) of each group of 16
//! scores. At least k scores reach the k-th largest of those keys. The scores that reach it are
//! gathered, from the groups that have such scores, and cut to the `k` best ([`select`]). For
//! random scores, with k a 64th of a row, 9/8 k scores are gathered.
//!
//! Rows are done in parallel. If there are fewer rows than threads, each row is split into pieces;
//! the best scores of the pieces are then cut to the best of the row. Values and slots of a row
//! follow as soon as its positions are written ([`Cache`]).
//!
//! With blocks of several scores, the scores of a row's blocks are computed first, into the scratch
//! of the row's share; with candidates, the covered columns are first copied there, one behind the
//! other. Either way, what is chosen are then entries of a row of f32. Blocks that are always chosen
//! lie at the ends of this row, and what is left of `k` is chosen between them.

use std::sync::atomic::{AtomicU32, Ordering};

use rayon::prelude::*;
use spec_core::ops::IndexerTopk;
use spec_core::ops::indexer_topk::{Blocks, Buffers, Candidates, Pages, Plan};
use spec_core::{Kernel, Result, Route, Supports, View, ViewMut, flags};

use super::{by_float, by_int, kernel};
use crate::Cpu;
use crate::select::{self, Reach};
use crate::simd::{self, BLOCK, Float, SMALL_GROUP as GROUP};
use crate::slices::{
    Int, Ints, Rows, Workspace, once, optional_shares_mut, raise, shares_mut, slice, slice_mut,
    workspace_size,
};

/// Minimal number of scores in a piece of a row.
const MIN_PIECE: usize = 1 << 16;

struct Prepared {
    plan: Plan,
    /// The number of pieces of a row.
    pieces: usize,
    /// The number of rows of a share. The rows of a share use the same scratch, one after the
    /// other.
    share: usize,
}

// SAFETY: `launch` works on checked slices of the workspace and the buffers.
unsafe impl Supports<IndexerTopk> for Cpu {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<IndexerTopk>>> {
        let rows = plan.scores.rows.max(1);
        let threads = rayon::current_num_threads();
        let pieces = (threads / rows).min(plan.items() / MIN_PIECE).max(1);
        // There are four times as many shares as threads, so that a thread that is done early
        // finds another share.
        let share = rows.div_ceil(4 * threads);
        let prepared = Prepared { plan: plan.clone(), pieces, share };
        let words = prepared.shares().saturating_mul(prepared.row());
        let size = workspace_size(&[words.saturating_mul(4)]);
        // SAFETY: as for the `impl`.
        Ok(unsafe { kernel::<IndexerTopk, _>(prepared, size, launch, loops) })
    }
}

impl Prepared {
    /// Maximal number of scores in a piece.
    fn piece(&self) -> usize {
        self.plan.items().div_ceil(self.pieces)
    }

    /// Room for the scores that are gathered from a piece: fewer than `k` groups have scores above
    /// the key that k scores reach, and at most `k` scores equal to it are taken. [`gather`]
    /// needs room for one more group.
    ///
    /// [`gather`]: select::gather
    fn gathered(&self) -> usize {
        self.piece().min(self.plan.k.saturating_mul(GROUP + 1) + 1)
    }

    /// u32 words of the scratch of a piece: [`Scratch`].
    fn scratch(&self) -> usize {
        2 * self.piece().div_ceil(GROUP) + 2 * self.gathered() + 1
    }

    /// u32 words to choose in a row: scratch for each piece, and room for the best scores of all
    /// pieces.
    fn choice(&self) -> usize {
        let best = if self.pieces > 1 { 2 * self.pieces * self.plan.k } else { 0 };
        self.pieces * self.scratch() + best
    }

    /// u32 words for a row: those to choose, and the scores of blocks, or the scores and the
    /// positions of covered columns.
    fn row(&self) -> usize {
        let blocks = if self.plan.blocks.pool > 1 { self.plan.items() } else { 0 };
        let columns = if self.plan.candidates.is_some() { 2 * self.plan.scores.cols } else { 0 };
        self.choice() + blocks + columns
    }

    /// The number of shares of rows.
    fn shares(&self) -> usize {
        self.plan.scores.rows.div_ceil(self.share)
    }
}

fn loops(prepared: &Prepared, route: &mut Route) {
    let Prepared { plan, pieces, share } = prepared;
    if *pieces > 1 {
        let words = format!("{} rows in {pieces} pieces each", plan.scores.rows);
        route.push("indexer_topk.pieces", words);
    } else {
        let words = format!("{} shares of {share} rows", prepared.shares());
        route.push("indexer_topk.rows", words);
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
    let flag_if = |flag: u32, condition: bool| {
        if condition {
            bits.fetch_or(flag, Ordering::Relaxed);
        }
    };
    let cache = Cache::new(plan, buffers.block_table, buffers.requests)?;
    let candidates = match (plan.candidates, buffers.candidates) {
        (Some(given), Some(view)) => Some((given, Rows::<i32>::new(view, given.matrix)?)),
        _ => None,
    };
    let shares = prepared.shares();
    let values = optional_shares_mut::<f32>(buffers.values, plan.values, *share, shares)?;
    let slots = plan.pages.map(|pages| pages.slots);
    let slots = optional_shares_mut::<i32>(buffers.slots, slots, *share, shares)?;
    let space = Workspace::new(workspace)?.take::<u32>(shares * prepared.row())?;
    shares_mut(indices, plan.indices, *share)
        .zip(values.zip(slots))
        .zip(space.par_chunks_mut(prepared.row()))
        .enumerate()
        .for_each(|(of, ((rows, (mut values, mut slots)), space))| {
            for (i, out) in rows.enumerate() {
                let row = of * share + i;
                let length = lengths.map(|lengths| lengths.get(row));
                let values = values.as_mut().and_then(Iterator::next);
                let (space, scratch) = space.split_at_mut(prepared.choice());
                let mut to = Output { prepared, space, indices: out, values };
                let (count, found) = match candidates {
                    Some((given, lists)) => {
                        let columns = Columns::new(given, scratch, plan.scores.cols);
                        to.best_columns(columns, lists.row(row), length, scores.row(row))
                    }
                    None => {
                        let start = starts.map(|starts| starts.get(row));
                        let (start, count, cut) = plan.range(length, start);
                        flag_if(flags::BAD_LENGTHS, cut);
                        to.best_blocks(&scores.row(row)[start..start + count], scratch)
                    }
                };
                bits.fetch_or(found, Ordering::Relaxed);
                if let (Some(cache), Some(slots)) =
                    (&cache, slots.as_mut().and_then(Iterator::next))
                {
                    bits.fetch_or(cache.write_slots(row, count, out, slots), Ordering::Relaxed);
                }
            }
        });
    raise(buffers.flags, bits.into_inner())
}

/// Where the results of a row go, and the scratch to choose them.
struct Output<'a, I> {
    prepared: &'a Prepared,
    space: &'a mut [u32],
    indices: &'a mut [I],
    values: Option<&'a mut [f32]>,
}

impl<I: Int> Output<'_, I> {
    /// Writes the best blocks of a row that covers `scores`. `pooled` has room for the scores of
    /// blocks. Returns the number of blocks, and flags.
    fn best_blocks<T: Float>(&mut self, scores: &[T], pooled: &mut [u32]) -> (usize, u32) {
        let plan = &self.prepared.plan;
        let pool = plan.blocks.pool;
        let (count, has_nan) = if pool == 1 {
            (scores.len(), self.best(plan.blocks, scores))
        } else {
            let pooled = &mut as_f32(pooled)[..scores.len().div_ceil(pool)];
            // With more than one thread for each row, threads share the work of a row.
            let is_shared = plan.scores.rows < rayon::current_num_threads();
            let at_once = if is_shared { MIN_PIECE } else { scores.len().max(1) };
            let at_once = at_once.next_multiple_of(BLOCK);
            let parts = scores.par_chunks(at_once).zip(pooled.par_chunks_mut(at_once / pool));
            let has_nan = parts.map(|(scores, pooled)| pool_scores(scores, pool, pooled));
            let has_nan = has_nan.reduce(|| false, |a, b| a | b);
            (pooled.len(), self.best(plan.blocks, pooled) || has_nan)
        };
        (count, if has_nan { flags::NON_FINITE } else { 0 })
    }

    /// Writes the positions of the best covered columns of a row. Returns a number that no position
    /// reaches, and flags.
    fn best_columns<T: Float>(
        &mut self,
        mut columns: Columns<'_>,
        candidates: &[i32],
        length: Option<i64>,
        scores: &[T],
    ) -> (usize, u32) {
        let mut bits = columns.collect(candidates, length.unwrap_or(i64::MAX), scores);
        bits |= if length.is_some_and(|length| length < 0) { flags::BAD_LENGTHS } else { 0 };
        let has_nan = self.best(self.prepared.plan.blocks, &columns.scores[..columns.count]);
        bits |= if has_nan { flags::NON_FINITE } else { 0 };
        for index in self.indices.iter_mut() {
            let position = position(index, columns.count).map(|column| columns.positions[column]);
            *index = I::of(position.unwrap_or(-1));
        }
        (1 << 31, bits)
    }

    /// Writes the indices and scores of those blocks of a row that are always chosen, and of the
    /// best of the others. `scores` has a score for each block. Returns whether a score is NaN.
    fn best<T: Float>(&mut self, blocks: Blocks, scores: &[T]) -> bool {
        let Output { prepared, space, indices, .. } = self;
        let (first, last) = blocks.forced_of(scores.len());
        let (between, behind) = (first..scores.len() - last, scores.len() - last..scores.len());
        let room = prepared.plan.room().min(between.len());
        let mut has_nan = any_nan(&scores[..first]) | any_nan(&scores[behind.clone()]);
        let (of_first, rest) = indices.split_at_mut(first);
        let (chosen, rest) = rest.split_at_mut(room);
        has_nan |= if room > 0 || blocks.forced() == 0 {
            choose(prepared, &scores[between], first, space, chosen)
        } else {
            any_nan(&scores[between])
        };
        let forced = of_first.iter_mut().zip(0..first);
        let (of_last, rest) = rest.split_at_mut(last);
        for (to, block) in forced.chain(of_last.iter_mut().zip(behind)) {
            *to = I::of(block as i32);
        }
        rest.fill(I::of(-1));
        if let Some(values) = &mut self.values {
            write_values(scores, self.indices, values);
        }
        has_nan
    }
}

/// The covered columns of a row with candidates.
struct Columns<'a> {
    given: Candidates,
    scores: &'a mut [f32],
    positions: &'a mut [i32],
    count: usize,
}

impl<'a> Columns<'a> {
    /// No columns yet, and scratch for `cols` of them.
    fn new(given: Candidates, scratch: &'a mut [u32], cols: usize) -> Self {
        let (scores, positions) = scratch.split_at_mut(cols);
        Columns { given, scores: as_f32(scores), positions: as_i32(positions), count: 0 }
    }

    /// Appends the covered columns of a row of `length` positions. Returns flags.
    fn collect<T: Float>(&mut self, candidates: &[i32], length: i64, scores: &[T]) -> u32 {
        let mut bits = 0;
        for (candidate, scores) in candidates.iter().zip(scores.chunks(self.given.block)) {
            let candidate = once(candidate);
            let (covered, is_bad) = self.given.covered(candidate, length);
            bits |= if is_bad { flags::OUT_OF_RANGE } else { 0 };
            let to = self.count..self.count + covered;
            for (to, from) in self.scores[to.clone()].iter_mut().zip(scores) {
                *to = from.get();
            }
            for (i, to) in self.positions[to].iter_mut().enumerate() {
                // Covered positions are below 2^31.
                *to = candidate * self.given.block as i32 + i as i32;
            }
            self.count += covered;
        }
        bits
    }
}

fn as_f32(words: &mut [u32]) -> &mut [f32] {
    let bytes = spec_core::dtype::as_bytes_mut(words);
    spec_core::dtype::from_bytes_mut(bytes).expect("f32 has the size and alignment of u32")
}

fn as_i32(words: &mut [u32]) -> &mut [i32] {
    let bytes = spec_core::dtype::as_bytes_mut(words);
    spec_core::dtype::from_bytes_mut(bytes).expect("i32 has the size and alignment of u32")
}

/// Writes the scores of blocks of `pool` scores. Returns whether a score is NaN.
fn pool_scores<T: Float>(scores: &[T], pool: usize, pooled: &mut [f32]) -> bool {
    let mut wide = [0.0; BLOCK];
    let mut has_nan = false;
    for (scores, pooled) in scores.chunks(BLOCK).zip(pooled.chunks_mut(BLOCK / pool)) {
        let values = T::widen(scores, &mut wide);
        has_nan |= simd::any_nan(values);
        simd::pool_maxima(values, pool, pooled);
    }
    has_nan
}

fn any_nan<T: Float>(scores: &[T]) -> bool {
    let mut wide = [0.0; BLOCK];
    scores.chunks(BLOCK).any(|scores| simd::any_nan(T::widen(scores, &mut wide)))
}

/// Writes the indices of the best scores of a row; the first score has the index `first`. As many
/// are chosen as `out` has room for, at least one. Returns whether a score is NaN.
fn choose<T: Float, I: Int>(
    prepared: &Prepared,
    scores: &[T],
    first: usize,
    space: &mut [u32],
    out: &mut [I],
) -> bool {
    let (pieces, k) = (prepared.pieces, out.len().max(1));
    let (pieces_scratch, best) = space.split_at_mut(pieces * prepared.scratch());
    if pieces == 1 {
        let mut scratch = Scratch::new(prepared, pieces_scratch);
        let has_nan = scratch.collect(k, scores, first);
        write(&scratch.keys[..*scratch.count as usize], scratch.indices, out);
        return has_nan;
    }
    let piece = scores.len().div_ceil(pieces);
    let has_nan =
        pieces_scratch.par_chunks_mut(prepared.scratch()).enumerate().map(|(i, scratch)| {
            let (from, to) = ((i * piece).min(scores.len()), ((i + 1) * piece).min(scores.len()));
            Scratch::new(prepared, scratch).collect(k, &scores[from..to], first + from)
        });
    let has_nan = has_nan.reduce(|| false, |a, b| a | b);
    // The best scores of each piece, one piece after another, still ascend by index.
    let (keys, indices) = best.split_at_mut(pieces * k);
    let mut count = 0;
    for scratch in pieces_scratch.chunks_mut(prepared.scratch()) {
        let scratch = Scratch::new(prepared, scratch);
        for (&key, &index) in scratch.keys[..*scratch.count as usize].iter().zip(&*scratch.indices)
        {
            if key > 0 {
                (keys[count], indices[count]) = (key, index);
                count += 1;
            }
        }
    }
    cut(k, &mut keys[..count]);
    write(&keys[..count], indices, out);
    has_nan
}

/// Sets all keys but the `k` best to 0.
fn cut(k: usize, keys: &mut [u32]) {
    let one = |_: &[u32], weights: &mut [u64]| weights.fill(1);
    if keys.len() > k
        && let Some(cut) = select::cut(keys, k as u64, one)
    {
        cut.drop_rest(keys);
    }
}

/// Writes the indices of all keys but 0, and -1 behind them.
fn write<I: Int>(keys: &[u32], indices: &[u32], out: &mut [I]) {
    let kept = keys.iter().zip(indices).filter(|(key, _)| **key > 0);
    let mut written = 0;
    for (to, (_, &index)) in out.iter_mut().zip(kept) {
        *to = I::of(index as i32);
        written += 1;
    }
    out[written..].fill(I::of(-1));
}

/// A position below `count` that a row has chosen; `None` behind the last one. Another thread may
/// overwrite the caller's `indices` during the call, so any number can be found there.
fn position<I: Int>(index: &I, count: usize) -> Option<usize> {
    usize::try_from(once(index).wide()).ok().filter(|&position| position < count)
}

/// Writes the scores of a row's positions.
fn write_values<T: Float, I: Int>(scores: &[T], indices: &[I], values: &mut [f32]) {
    for (value, index) in values.iter_mut().zip(indices) {
        let score = position(index, scores.len()).map(|position| scores[position].get());
        *value = score.filter(|score| !score.is_nan()).unwrap_or(f32::NEG_INFINITY);
    }
}

/// The paged cache that positions lie in.
struct Cache<'a> {
    pages: Pages,
    tables: Rows<'a, i32>,
    requests: Option<&'a [i32]>,
}

impl<'a> Cache<'a> {
    /// `None` where no slots are wanted.
    fn new(
        plan: &Plan,
        block_table: Option<View<'a>>,
        requests: Option<View<'a>>,
    ) -> Result<Option<Self>> {
        let (Some(pages), Some(block_table)) = (plan.pages, block_table) else {
            return Ok(None);
        };
        let tables = Rows::new(block_table, pages.block_table)?;
        let requests = requests.map(slice::<i32>).transpose()?;
        Ok(Some(Cache { pages, tables, requests }))
    }

    /// Writes the slots of a row's positions, which are all below `count`. Returns flags.
    fn write_slots<I: Int>(
        &self,
        row: usize,
        count: usize,
        indices: &[I],
        slots: &mut [i32],
    ) -> u32 {
        let request = match self.requests {
            Some(requests) => usize::try_from(once(&requests[row])).ok(),
            None => Some(row),
        };
        let Some(request) = request.filter(|&table| table < self.pages.block_table.rows) else {
            slots.fill(-1);
            return flags::BAD_LENGTHS;
        };
        let blocks = self.tables.row(request);
        let mut bits = 0;
        for (slot, index) in slots.iter_mut().zip(indices) {
            *slot = position(index, count).map_or(-1, |position| {
                let block = blocks.get(position / self.pages.block_size);
                let slot = block.and_then(|block| self.pages.slot(position, once(block)));
                bits |= if slot.is_none() { flags::OUT_OF_RANGE } else { 0 };
                slot.unwrap_or(-1)
            });
        }
        bits
    }
}

/// The scratch of a piece of a row.
struct Scratch<'a> {
    /// The largest key of each group.
    maxima: &'a mut [u32],
    /// A copy of `maxima`, to reorder.
    ranked: &'a mut [u32],
    /// The keys of the gathered scores; 0 for a score that is not among the best.
    keys: &'a mut [u32],
    /// The indices of the gathered scores.
    indices: &'a mut [u32],
    /// How many scores were gathered.
    count: &'a mut u32,
}

impl<'a> Scratch<'a> {
    fn new(prepared: &Prepared, words: &'a mut [u32]) -> Self {
        let (count, words) = words.split_first_mut().expect("a scratch has words");
        let groups = prepared.piece().div_ceil(GROUP);
        let (maxima, words) = words.split_at_mut(groups);
        let (ranked, words) = words.split_at_mut(groups);
        let (keys, indices) = words.split_at_mut(prepared.gathered());
        Scratch { maxima, ranked, keys, indices, count }
    }

    /// Finds the `k` best of a piece's scores, the first of which has the index `first`. Returns
    /// whether a score is NaN.
    fn collect<T: Float>(&mut self, k: usize, scores: &[T], first: usize) -> bool {
        let groups = scores.len().div_ceil(GROUP);
        let (maxima, ranked) = (&mut self.maxima[..groups], &mut self.ranked[..groups]);
        let mut wide = [0.0; BLOCK];
        let mut has_nan = false;
        for (scores, maxima) in scores.chunks(BLOCK).zip(maxima.chunks_mut(BLOCK / GROUP)) {
            let values = T::widen(scores, &mut wide);
            has_nan |= simd::any_nan(values);
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
        has_nan
    }
}
