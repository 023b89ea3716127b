//! The n-gram search that both drafting operators share.
//!
//! One pass over a haystack serves every pattern length: find the last token
//! with vectors, extend backwards, keep the longest match and the leftmost
//! among those. Long haystacks are split over threads; a full-length match
//! stops every piece to its right.

use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::prelude::*;
use spec_core::ngram::{self, Haystacks, Rows as Shapes, granted};
use spec_core::{Element, Result, View, ViewMut};

use crate::simd;
use crate::slices::{Ints, Rows, Workspace, slice, slice_mut, workspace_size};

/// Tokens of a parallel piece.
const PIECE: usize = 16 * 1024;

/// Tokens of a whole batch that are searched faster than threads are woken: each
/// request's share of them is tried first, on the calling thread.
const FEW: usize = 64 * 1024;
/// Stands for a request whose share did not settle its search.
const OPEN: u64 = u64::MAX;

/// A token type.
pub(super) trait Token: Element + PartialEq {
    /// The first index at or after `from` that holds `token`.
    fn find(haystack: &[Self], from: usize, token: Self) -> Option<usize>;
}

impl Token for i64 {
    fn find(haystack: &[i64], from: usize, token: i64) -> Option<usize> {
        simd::find_i64(haystack, from, token)
    }
}

impl Token for i32 {
    fn find(haystack: &[i32], from: usize, token: i32) -> Option<usize> {
        simd::find_i32(haystack, from, token)
    }
}

/// A match: how long, and where the tokens after it start.
#[derive(Clone, Copy, Default)]
struct Match {
    len: usize,
    next: usize,
}

impl Match {
    /// The longer match, the leftmost among equals.
    fn better(self, other: Match) -> Match {
        let wins = other.len > self.len || (other.len == self.len && other.next < self.next);
        if wins { other } else { self }
    }
}

/// The longest suffix of `pattern`, up to `longest` tokens, that occurs in
/// `haystack` with a token after it.
fn search<T: Token>(haystack: &[T], pattern: &[T], longest: usize) -> Match {
    let starts = haystack.len().saturating_sub(1);
    if starts <= PIECE {
        return search_piece(haystack, 0, starts, pattern, longest, &AtomicUsize::new(usize::MAX));
    }
    let full = AtomicUsize::new(usize::MAX);
    (0..starts.div_ceil(PIECE))
        .into_par_iter()
        .map(|piece| {
            let from = piece * PIECE;
            let to = starts.min(from + PIECE);
            search_piece(haystack, from, to, pattern, longest, &full)
        })
        .reduce(Match::default, Match::better)
}

/// Matches that end in `from..to`. `full` is the leftmost end of a match of
/// full length known so far, by any thread.
fn search_piece<T: Token>(
    haystack: &[T],
    from: usize,
    to: usize,
    pattern: &[T],
    longest: usize,
    full: &AtomicUsize,
) -> Match {
    let mut best = Match::default();
    if full.load(Ordering::Relaxed) < from {
        return best;
    }
    let Some((&last, before)) = pattern.split_last() else { return best };
    let mut at = from;
    while let Some(end) = T::find(&haystack[..to], at, last) {
        let len = 1 + haystack[..end]
            .iter()
            .rev()
            .zip(before.iter().rev())
            .take(longest - 1)
            .take_while(|(a, b)| a == b)
            .count();
        best = best.better(Match { len, next: end + 1 });
        if len == longest {
            full.fetch_min(end, Ordering::Relaxed);
            break;
        }
        at = end + 1;
    }
    best
}

/// What a request is to draft, found before the budget is known.
pub(super) struct Request {
    /// Haystacks, cut to what fits.
    pub(super) haystacks: Haystacks,
    /// The most it may draft.
    pub(super) limit: i64,
    /// The slot of its first draft.
    pub(super) slot: usize,
}

/// How a request enters the budget.
pub(super) struct Budgeted {
    /// What becomes of `seq_lens_this_time` before any drafts.
    pub(super) base: i32,
    /// Tokens it uses without drafts.
    pub(super) used: i64,
    /// Whether it counted in `left`, which it now leaves.
    pub(super) leaves: bool,
}

/// The two rows of tokens and the buffers that both operators have.
pub(super) struct Drafting<'a> {
    pub(super) shapes: &'a Shapes,
    pub(super) max_ngram: usize,
    pub(super) min_ngram: usize,
    pub(super) threshold: i64,
    pub(super) input_ids: View<'a>,
    pub(super) generated: View<'a>,
    pub(super) draft_tokens: ViewMut<'a>,
}

/// Bytes of workspace: two words a request.
pub(super) fn workspace_bytes(shapes: &Shapes) -> usize {
    workspace_size(&[shapes.batch.saturating_mul(2 * 8)])
}

/// Marks a candidate that lies among the generated tokens.
const GENERATED: u64 = 1 << 63;

impl Drafting<'_> {
    /// Searches in parallel, shares out the budget in request order, writes
    /// drafts and `this_time`. From a request's index and its `this_time`,
    /// `request` says what it may draft (`None`: nothing, whatever the budget)
    /// and `budget` how it counts. Returns flags.
    pub(super) fn run<T: Token>(
        self,
        workspace: ViewMut<'_>,
        this_time: &mut [i32],
        left: i64,
        request: impl Fn(usize, i32) -> (Option<Request>, u32) + Sync,
        budget: impl Fn(usize, i32) -> Budgeted,
    ) -> Result<u32> {
        let Shapes { batch, input_ids, generated, draft_tokens, .. } = *self.shapes;
        let found = Workspace::new(workspace)?.take::<u64>(batch * 2)?;
        let prompts = Rows::<T>::new(self.input_ids, input_ids)?;
        let generated_rows = Rows::<T>::new(self.generated, generated)?;
        let now: &[i32] = this_time;
        let share = FEW / batch.max(1);
        let settle = |index: usize, found: &mut [u64], within: usize| {
            let (request, flags) = request(index, now[index]);
            let (mut wanted, mut source, mut cut) = (0, 0, 0);
            if let Some(Request { haystacks, limit, slot }) = request {
                let prompt = prompts.row(index);
                let generated = &generated_rows.row(index)[haystacks.start..];
                match self.find(prompt, generated, haystacks, within) {
                    Some((from, candidates)) => {
                        let room = draft_tokens.cols.saturating_sub(slot);
                        let (count, bits) = ngram::wanted(limit, candidates, room);
                        (wanted, source, cut) = (count as u64, from, bits);
                    }
                    None => wanted = OPEN,
                }
            }
            found.copy_from_slice(&[wanted, source]);
            flags | cut
        };
        let mut flags = 0;
        for (index, found) in found.chunks_mut(2).enumerate() {
            flags |= settle(index, found, share);
        }
        if found.iter().step_by(2).any(|&wanted| wanted == OPEN) {
            flags |= found
                .par_chunks_mut(2)
                .enumerate()
                .filter(|(_, found)| found[0] == OPEN)
                .map(|(index, found)| settle(index, found, usize::MAX))
                .reduce(|| 0, |a, b| a | b);
        }
        let drafts = slice_mut::<T>(self.draft_tokens)?;
        let (mut used, mut left, mut wanted_before) = (0i64, left, 0i64);
        for (index, found) in found.chunks(2).enumerate() {
            let budgeted = budget(index, this_time[index]);
            used += budgeted.used;
            left -= i64::from(budgeted.leaves);
            let wanted = found[0] as usize;
            let count = granted(wanted, wanted_before, used + left, self.threshold);
            wanted_before += wanted as i64;
            this_time[index] = budgeted.base;
            if count > 0 {
                let from = (found[1] & !GENERATED) as usize;
                let row = if found[1] & GENERATED == 0 { prompts } else { generated_rows };
                let slot = budgeted.base as usize;
                let at = index * draft_tokens.row_stride + slot;
                drafts[at..at + count].copy_from_slice(&row.row(index)[from..from + count]);
                this_time[index] += count as i32;
            }
        }
        Ok(flags)
    }

    /// Where the candidates start, and how many there are; `None` if that takes
    /// more than the first `within` tokens.
    fn find<T: Token>(
        &self,
        prompt: &[T],
        generated: &[T],
        cut: Haystacks,
        within: usize,
    ) -> Option<(u64, usize)> {
        let longest = self.max_ngram.min(cut.step);
        if longest < self.min_ngram {
            return Some((0, 0));
        }
        let pattern = &generated[..=cut.step];
        let in_prompt = search(&prompt[..cut.prompt.min(within)], pattern, longest);
        let mut best = (in_prompt.next as u64, cut.prompt - in_prompt.next);
        let mut len = in_prompt.len;
        if len < longest {
            if cut.prompt + cut.step > within {
                return None;
            }
            let after = search(&generated[..cut.step], pattern, longest);
            if after.len > len {
                best = ((cut.start + after.next) as u64 | GENERATED, cut.step - after.next);
                len = after.len;
            }
        }
        Some(if len < self.min_ngram { (0, 0) } else { best })
    }
}

/// The lengths of both operators as integers.
pub(super) fn ints<'a, const N: usize>(views: [View<'a>; N]) -> Result<[Ints<'a>; N]> {
    let mut ints = [Ints::I32(&[]); N];
    for (ints, view) in ints.iter_mut().zip(views) {
        *ints = Ints::new(view)?;
    }
    Ok(ints)
}

/// A per-request count to read.
pub(super) fn counts(view: View<'_>) -> Result<&[i32]> {
    slice(view)
}
