//! The n-gram search that three drafting operators share, and the token budget that two of
//! them share.
//!
//! One pass over a haystack serves every pattern length: find the pattern's last token
//! with vectors, compare backwards from there, keep the longest match, and among the longest
//! the leftmost (or rightmost). Once a match of some length is known, the pass looks only for
//! longer matches: for places that have the last token, and, further back, the token that only a
//! longer match needs. Long haystacks are split over threads. A match of full length stops the
//! search of all pieces behind it.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::prelude::*;
use spec_core::ngram::{self, Haystacks, Rows as Shapes, granted};
use spec_core::ops::prompt_lookup::Occurrence;
use spec_core::options::unknown;
use spec_core::{Element, Result, View, ViewMut};

use crate::simd::{self, Pair};
use crate::slices::{Ints, Rows, Workspace, once, slice, slice_mut, workspace_size};

/// The number of tokens in a piece of a haystack. One thread searches a piece.
pub(super) const PIECE: usize = 16 * 1024;

/// The number of tokens that one thread searches in the time it takes to wake the others. Each
/// request has an equal share of this number, and the calling thread searches the shares first.
pub(super) const FEW: usize = 64 * 1024;
/// Marks a request whose search was not finished within its share.
const OPEN: u64 = u64::MAX;

/// A token type.
pub(super) trait Token: Element + PartialEq {
    /// The value for no token: -1.
    const NONE: Self;

    /// The token as 64 bits, which [`from_bits`](Self::from_bits) turns back into the token.
    fn bits(self) -> u64;

    /// The token whose [`bits`](Self::bits) these are.
    fn from_bits(bits: u64) -> Self;

    /// The first place in `ends` that has the pair.
    fn find(haystack: &[Self], ends: Range<usize>, pair: Pair<Self>) -> Option<usize>;

    /// The last place in `ends` that has the pair.
    fn rfind(haystack: &[Self], ends: Range<usize>, pair: Pair<Self>) -> Option<usize>;
}

macro_rules! token {
    ($ty:ty, $none:expr, $find:ident, $rfind:ident) => {
        impl Token for $ty {
            const NONE: $ty = $none;

            fn bits(self) -> u64 {
                self as u64
            }

            fn from_bits(bits: u64) -> $ty {
                bits as $ty
            }

            fn find(haystack: &[$ty], ends: Range<usize>, pair: Pair<$ty>) -> Option<usize> {
                simd::$find(haystack, ends, pair)
            }

            fn rfind(haystack: &[$ty], ends: Range<usize>, pair: Pair<$ty>) -> Option<usize> {
                simd::$rfind(haystack, ends, pair)
            }
        }
    };
}

token!(i64, -1, find_i64, rfind_i64);
token!(i32, -1, find_i32, rfind_i32);
token!(u32, u32::MAX, find_u32, rfind_u32);

/// A match: its length (0 for no match), and where the tokens after it start.
#[derive(Clone, Copy, Default)]
pub(super) struct Match {
    pub(super) len: usize,
    pub(super) next: usize,
}

/// The patterns of a search: the last n tokens of `tokens`, for n from `shortest` to `longest`.
#[derive(Clone, Copy)]
pub(super) struct Pattern<'a, T> {
    pub(super) tokens: &'a [T],
    pub(super) shortest: usize,
    pub(super) longest: usize,
    pub(super) which: Occurrence,
}

impl<T: Token> Pattern<'_, T> {
    /// The best match in `haystack` whose last token is at a place in `ends`.
    pub(super) fn search(&self, haystack: &[T], ends: Range<usize>) -> Match {
        if ends.len() <= PIECE {
            return self.search_alone(haystack, ends);
        }
        let full = AtomicUsize::new(usize::MAX);
        let pieces = ends.len().div_ceil(PIECE);
        (0..pieces)
            .into_par_iter()
            .map(|turn| {
                // The pieces near the preferred end of the haystack come first.
                let piece = if self.is_last() { pieces - 1 - turn } else { turn };
                let from = ends.start + piece * PIECE;
                self.search_piece(haystack, from..ends.end.min(from + PIECE), &full)
            })
            .reduce(Match::default, |a, b| self.better(a, b))
    }

    /// As [`search`](Self::search), on this thread.
    pub(super) fn search_alone(&self, haystack: &[T], ends: Range<usize>) -> Match {
        self.search_piece(haystack, ends, &AtomicUsize::new(usize::MAX))
    }

    /// As [`search`](Self::search), on this thread. `full` is the best
    /// [`rank`](Self::rank) of a match of full length known so far, by any thread.
    fn search_piece(&self, haystack: &[T], mut ends: Range<usize>, full: &AtomicUsize) -> Match {
        let mut best = Match::default();
        let nothing_longer = self.longest < self.shortest || ends.is_empty();
        if nothing_longer || full.load(Ordering::Relaxed) < self.rank(self.preferred(&ends)) {
            return best;
        }
        let pattern = &self.tokens[self.tokens.len() - self.longest..];
        let last = pattern[self.longest - 1];
        // Only matches longer than this can become the result.
        let mut beaten = self.shortest - 1;
        loop {
            ends.start = ends.start.max(beaten);
            if ends.is_empty() {
                return best;
            }
            let before = pattern[self.longest - 1 - beaten];
            let pair = Pair { last, before, distance: beaten };
            let found = if self.is_last() {
                T::rfind(haystack, ends.clone(), pair)
            } else {
                T::find(haystack, ends.clone(), pair)
            };
            let Some(end) = found else { return best };
            let pairs = haystack[..=end].iter().rev().zip(pattern.iter().rev());
            let len = pairs.take_while(|(a, b)| a == b).count();
            if len > beaten {
                beaten = len;
                best = Match { len, next: end + 1 };
            }
            if len == self.longest {
                full.fetch_min(self.rank(end), Ordering::Relaxed);
                return best;
            }
            if self.is_last() {
                ends.end = end;
            } else {
                ends.start = end + 1;
            }
        }
    }

    /// Whether the last occurrence is preferred to the first.
    fn is_last(&self) -> bool {
        match self.which {
            Occurrence::First => false,
            Occurrence::Last => true,
            other => unknown(other),
        }
    }

    /// A number for a place; a preferred place has a smaller number.
    fn rank(&self, place: usize) -> usize {
        if self.is_last() { usize::MAX - place } else { place }
    }

    /// The preferred place of a range that is not empty.
    fn preferred(&self, ends: &Range<usize>) -> usize {
        if self.is_last() { ends.end - 1 } else { ends.start }
    }

    /// The longer of two matches; of two with equal lengths, the preferred one.
    fn better(&self, a: Match, b: Match) -> Match {
        let wins = b.len > a.len || (b.len == a.len && self.rank(b.next) < self.rank(a.next));
        if wins { b } else { a }
    }
}

/// What a request may draft, apart from the token budget.
pub(super) struct Request {
    /// Haystacks, cut to the lengths of their rows.
    pub(super) haystacks: Haystacks,
    /// The largest number of tokens that the request may draft.
    pub(super) limit: i64,
    /// The slot of the request's first draft.
    pub(super) slot: usize,
}

/// How a request enters the budget.
pub(super) struct Budgeted {
    /// The request's `seq_lens_this_time` without drafts.
    pub(super) base: i32,
    /// The number of tokens of the budget that the request uses without drafts.
    pub(super) used: i64,
    /// Whether `left` counts the request as one that is still to come.
    pub(super) leaves: bool,
}

/// Parameters and buffers that `ngram_match` and `hybrid_mtp_ngram` have in common.
pub(super) struct Drafting<'a> {
    pub(super) shapes: &'a Shapes,
    pub(super) max_ngram: usize,
    pub(super) min_ngram: usize,
    pub(super) threshold: i64,
    pub(super) input_ids: View<'a>,
    pub(super) generated: View<'a>,
    pub(super) draft_tokens: ViewMut<'a>,
}

/// Bytes of workspace: two words for each request.
pub(super) fn workspace_bytes(shapes: &Shapes) -> usize {
    workspace_size(&[shapes.batch.saturating_mul(2 * 8)])
}

/// How the requests of a batch are searched, in words.
pub(super) fn in_turns(batch: usize) -> String {
    let share = FEW / batch.max(1);
    format!("{batch} requests: {share} tokens of each on one thread, the rest on all")
}

/// Marks an index of candidates as an index of the generated tokens, not of the prompt.
const GENERATED: u64 = 1 << 63;

impl Drafting<'_> {
    /// Searches in parallel, shares out the budget in request order, and writes drafts and
    /// `this_time`. `left` is the number of requests for each of which the budget keeps a token.
    /// `request` and `budget` take a request's index and its `this_time`: `request` returns the
    /// limits of its drafts (`None` for no drafts) and flags, `budget` returns how it counts in the
    /// budget. Returns all flags.
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
            let (request, flags) = request(index, once(&now[index]));
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
            let Budgeted { base, used: own, leaves } = budget(index, once(&this_time[index]));
            used += own;
            left -= i64::from(leaves);
            let wanted = found[0] as usize;
            let count = granted(wanted, wanted_before, used + left, self.threshold);
            wanted_before += wanted as i64;
            // `wanted` fits the row behind the slot that the search found. Another thread may
            // have changed the slot since.
            let slot = usize::try_from(base).unwrap_or(usize::MAX);
            let count = count.min(draft_tokens.cols.saturating_sub(slot));
            this_time[index] = base;
            if count > 0 {
                let from = (found[1] & !GENERATED) as usize;
                let row = if found[1] & GENERATED == 0 { prompts } else { generated_rows };
                let at = index * draft_tokens.row_stride + slot;
                drafts[at..at + count].copy_from_slice(&row.row(index)[from..from + count]);
                this_time[index] = base + count as i32;
            }
        }
        Ok(flags)
    }

    /// Where the candidates start, as an index that may be marked [`GENERATED`], and the number of
    /// candidates; `None` if the search needs more than the first `within` tokens.
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
        let pattern = Pattern {
            tokens: &generated[..=cut.step],
            shortest: self.min_ngram,
            longest,
            which: Occurrence::First,
        };
        let tokens = &prompt[..cut.prompt.min(within)];
        let in_prompt = pattern.search(tokens, 0..tokens.len().saturating_sub(1));
        let mut best = match in_prompt {
            Match { len: 0, .. } => (0, 0),
            Match { next, .. } => (next as u64, cut.prompt - next),
        };
        if in_prompt.len < longest {
            if cut.prompt + cut.step > within {
                return None;
            }
            let shortest = self.min_ngram.max(in_prompt.len + 1);
            let pattern = Pattern { shortest, ..pattern };
            let after = pattern.search(&generated[..cut.step], 0..cut.step.saturating_sub(1));
            if after.len > 0 {
                best = ((cut.start + after.next) as u64 | GENERATED, cut.step - after.next);
            }
        }
        Some(best)
    }
}

/// Views of lengths or steps as integers.
pub(super) fn ints<'a, const N: usize>(views: [View<'a>; N]) -> Result<[Ints<'a>; N]> {
    let mut ints = [Ints::I32(&[]); N];
    for (ints, view) in ints.iter_mut().zip(views) {
        *ints = Ints::new(view)?;
    }
    Ok(ints)
}

/// A view of i32 counts, one for each request.
pub(super) fn counts(view: View<'_>) -> Result<&[i32]> {
    slice(view)
}
