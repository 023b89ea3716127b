//! `adjust_logits` on the CPU: shares of the rows in parallel. Each share has a hash table of the
//! tokens whose logits the current row adjusts.

mod dry;
mod think;

use std::sync::atomic::{AtomicU32, Ordering};

use rayon::prelude::*;
use spec_core::exact::{self, sampling};
use spec_core::flags::{BAD_LENGTHS, OUT_OF_RANGE};
use spec_core::ngram::cut;
use spec_core::ops::AdjustLogits;
use spec_core::ops::adjust_logits::{Buffers, Plan};
use spec_core::{DType, Kernel, Matrix, Result, Route, Supports, View, ViewMut};

use super::{by_float, by_int, kernel};
use crate::Cpu;
use crate::simd::Float;
use crate::slices::{
    Int, Ints, Rows, Workspace, once, optional_shares_mut, raise, shares_mut, slice, slice_mut,
    workspace_size,
};
use dry::{Dry, DryArguments};
use think::ThinkArguments;

// SAFETY: `launch` works on checked slices of the workspace and the buffers.
unsafe impl Supports<AdjustLogits> for Cpu {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<AdjustLogits>>> {
        let sizes = Sizes::new(plan, rayon::current_num_threads() * 4);
        let size = workspace_size(&[sizes.shares.saturating_mul(sizes.words()).saturating_mul(4)]);
        // SAFETY: as for the `impl`.
        Ok(unsafe { kernel::<AdjustLogits, _>((plan.clone(), sizes), size, launch, loops) })
    }
}

/// The sizes of the parts of the workspace.
#[derive(Clone, Copy)]
struct Sizes {
    /// The number of shares of the rows, each with a table and room for the path to a row.
    shares: usize,
    /// The largest number of tokens in the table of a row.
    touched: usize,
    /// The number of slots of a table, a power of two that leaves at least one slot empty.
    slots: usize,
    /// The largest number of drafts on the path to a row.
    path: usize,
}

/// Words of a slot: the token's column, its logit, how often it was generated, its marks.
const SLOT: usize = 4;
/// The column of an empty slot. There are fewer than 2^31 columns.
const EMPTY: u32 = u32::MAX;
/// A mark: the token is in the text.
const IN_TEXT: u32 = 1;
/// A mark: the token may not come next.
const FORBIDDEN: u32 = 2;
/// The bit from which on the marks have the length of the longest sequence that the token would
/// repeat, where DRY penalises the token; else 0.
const MATCH_SHIFT: u32 = 8;

impl Sizes {
    fn new(plan: &Plan, workers: usize) -> Sizes {
        let touched = plan.touched();
        Sizes {
            shares: workers.min(plan.rows()),
            touched,
            slots: touched.saturating_mul(2).saturating_add(1).next_power_of_two(),
            path: plan.draft_tokens.map_or(0, |drafts| drafts.len),
        }
    }

    /// Words of a table, of the list of its taken slots, and of a path.
    fn words(&self) -> usize {
        let lists = self.touched.saturating_add(self.path);
        self.slots.saturating_mul(SLOT).saturating_add(lists)
    }
}

fn loops((plan, sizes): &(Plan, Sizes), route: &mut Route) {
    if plan.rows() > 0 {
        let rows = plan.rows().div_ceil(sizes.shares);
        let words = format!("{} shares of {rows} rows, {} slots each", sizes.shares, sizes.slots);
        route.push("adjust_logits", words);
    }
}

fn launch(prepared: &(Plan, Sizes), workspace: ViewMut<'_>, buffers: Buffers<'_>) -> Result<()> {
    by_float!(prepared.0.logits.dtype, by_token(prepared, workspace, buffers))
}

fn by_token<F: Float>(
    prepared: &(Plan, Sizes),
    workspace: ViewMut<'_>,
    buffers: Buffers<'_>,
) -> Result<()> {
    by_int!(prepared.0.tokens.dtype, run::<F>(prepared, workspace, buffers))
}

fn ints(view: Option<View<'_>>) -> Result<Option<Ints<'_>>> {
    view.map(Ints::new).transpose()
}

fn floats(view: Option<View<'_>>) -> Result<Option<&[f32]>> {
    view.map(slice).transpose()
}

fn run<F: Float, T: Int>(
    (plan, sizes): &(Plan, Sizes),
    workspace: ViewMut<'_>,
    buffers: Buffers<'_>,
) -> Result<()> {
    if plan.rows() == 0 {
        return Ok(());
    }
    let given = Given::<T> {
        plan,
        texts: Rows::new(buffers.tokens, plan.tokens)?,
        prompt_lengths: Ints::new(buffers.prompt_lengths)?,
        lengths: Ints::new(buffers.lengths)?,
        requests: ints(buffers.requests)?,
        drafts: ints(buffers.draft_tokens)?.zip(ints(buffers.parents)?),
        bias: ints(buffers.bias_offsets)?
            .zip(ints(buffers.bias_tokens)?)
            .zip(floats(buffers.bias_values)?),
        repetition: floats(buffers.repetition)?,
        frequency: floats(buffers.frequency)?,
        presence: floats(buffers.presence)?,
        min_tokens: ints(buffers.min_tokens)?.zip(ints(buffers.stop_tokens)?),
        words: ints(buffers.bad_offsets)?
            .zip(ints(buffers.word_offsets)?)
            .zip(ints(buffers.word_tokens)?),
        no_repeat_ngram: ints(buffers.no_repeat_ngram)?,
        dry: DryArguments::new(&buffers)?,
        think: ThinkArguments::new(&buffers)?,
    };
    let words = Workspace::new(workspace)?.take::<u32>(sizes.shares * sizes.words())?;
    let logits = slice_mut::<F>(buffers.logits)?;
    let bits = AtomicU32::new(0);
    let share = plan.rows().div_ceil(sizes.shares);
    let column = Matrix { dtype: DType::I32, rows: plan.rows(), cols: 1, row_stride: 1 };
    let column = plan.think.map(|_| column);
    let forced = optional_shares_mut::<i32>(buffers.forced, column, share, sizes.shares)?;
    shares_mut(logits, plan.logits, share)
        .zip(words.par_chunks_mut(sizes.words()))
        .zip(forced)
        .enumerate()
        .for_each(|(index, ((rows, words), mut forced))| {
            let (slots, rest) = words.split_at_mut(sizes.slots * SLOT);
            let (taken, path) = rest.split_at_mut(sizes.touched);
            // The contents of the workspace are unspecified.
            slots.chunks_exact_mut(SLOT).for_each(|slot| slot[0] = EMPTY);
            let mut flags = 0;
            for (row, logits) in rows.enumerate() {
                let (first, vocab) = (plan.first_token() as i64, plan.vocab() as i64);
                let table = Table { slots, taken, len: 0, logits, first, vocab, flags: &mut flags };
                let token = given.adjust(index * share + row, table, path);
                if let Some([forced]) = forced.as_mut().and_then(Iterator::next) {
                    *forced = token;
                }
            }
            if flags != 0 {
                bits.fetch_or(flags, Ordering::Relaxed);
            }
        });
    raise(buffers.flags, bits.into_inner())
}

/// A hash table of the tokens whose logits a row adjusts.
struct Table<'t, F> {
    slots: &'t mut [u32],
    /// The indices of the taken slots. Their order does not matter.
    taken: &'t mut [u32],
    len: usize,
    logits: &'t mut [F],
    /// The token of the first column, and the number of tokens of the vocabulary.
    first: i64,
    vocab: i64,
    flags: &'t mut u32,
}

impl<F: Float> Table<'_, F> {
    /// The slot of a token, taken if the token has none yet; `None` for a token without a column,
    /// and a flag if the token is outside the vocabulary.
    fn slot(&mut self, token: i64) -> Option<&mut [u32]> {
        if !(0..self.vocab).contains(&token) {
            *self.flags |= OUT_OF_RANGE;
            return None;
        }
        let column = usize::try_from(token - self.first).ok()?;
        let &logit = self.logits.get(column)?;
        let token = column as u32;
        let mask = self.slots.len() / SLOT - 1;
        // Fibonacci hashing with linear probing.
        let mut at = (token.wrapping_mul(0x9E37_79B1) >> 7) as usize & mask;
        loop {
            match self.slots[at * SLOT] {
                found if found == token => break,
                EMPTY => {
                    // The list of taken slots is full only if another thread changes a text during
                    // the call.
                    *self.taken.get_mut(self.len)? = at as u32;
                    self.len += 1;
                    let x = exact::flushed(logit.get()).to_bits();
                    self.slots[at * SLOT..][..SLOT].copy_from_slice(&[token, x, 0, 0]);
                    break;
                }
                _ => at = (at + 1) & mask,
            }
        }
        Some(&mut self.slots[at * SLOT..][..SLOT])
    }

    fn mark(&mut self, token: i64, mark: u32) {
        if let Some(slot) = self.slot(token) {
            slot[3] |= mark;
        }
    }

    /// Raises the length of the longest sequence that a token would repeat to `count`.
    fn match_of(&mut self, token: i64, count: usize) {
        if let Some(slot) = self.slot(token) {
            let marks = slot[3] & ((1 << MATCH_SHIFT) - 1);
            slot[3] = marks | (slot[3] >> MATCH_SHIFT).max(count as u32) << MATCH_SHIFT;
        }
    }

    /// Applies steps 2 to 8 of the contract to each token of the table, and empties the table.
    fn finish(mut self, penalties: Penalties) {
        let Penalties { repetition, frequency, presence, dry } = penalties;
        let inverse = repetition.map(sampling::inverse);
        for &at in &self.taken[..self.len] {
            let slot = &mut self.slots[at as usize * SLOT..][..SLOT];
            let (mut x, count, marks) = (f32::from_bits(slot[1]), slot[2], slot[3]);
            if let (Some(r), Some(inverse), true) = (repetition, inverse, marks & IN_TEXT != 0) {
                x = exact::flushed(x * if x > 0.0 { inverse } else { r });
            }
            if let (Some(f), true) = (frequency, count > 0) {
                x = exact::flushed(x - exact::flushed(f * count as f32));
            }
            if let (Some(p), true) = (presence, count > 0) {
                x = exact::flushed(x - p);
            }
            if let (Some(dry), count @ 1..) = (dry, marks >> MATCH_SHIFT) {
                x = dry.adjusted(x, count);
            }
            if marks & FORBIDDEN != 0 {
                x = f32::NEG_INFINITY;
            }
            self.logits[slot[0] as usize] = F::round(x);
            slot[0] = EMPTY;
        }
        self.len = 0;
    }
}

/// The penalties of a request that are on.
#[derive(Clone, Copy)]
struct Penalties {
    repetition: Option<f32>,
    frequency: Option<f32>,
    presence: Option<f32>,
    dry: Option<Dry>,
}

/// All arguments except for the logits.
struct Given<'a, T> {
    plan: &'a Plan,
    texts: Rows<'a, T>,
    prompt_lengths: Ints<'a>,
    lengths: Ints<'a>,
    requests: Option<Ints<'a>>,
    drafts: Option<(Ints<'a>, Ints<'a>)>,
    bias: Option<((Ints<'a>, Ints<'a>), &'a [f32])>,
    repetition: Option<&'a [f32]>,
    frequency: Option<&'a [f32]>,
    presence: Option<&'a [f32]>,
    min_tokens: Option<(Ints<'a>, Ints<'a>)>,
    words: Option<((Ints<'a>, Ints<'a>), Ints<'a>)>,
    no_repeat_ngram: Option<Ints<'a>>,
    dry: Option<DryArguments<'a>>,
    think: Option<ThinkArguments<'a>>,
}

/// The text of a row: the text of its request, then the drafts on the path to the row.
struct Text<'t, T> {
    tokens: &'t [T],
    /// The number of tokens of the prompt.
    prompt: usize,
    /// The rows of the drafts, the last draft first.
    path: &'t [u32],
    drafts: Option<Ints<'t>>,
}

impl<T: Int> Text<'_, T> {
    fn len(&self) -> usize {
        self.tokens.len() + self.path.len()
    }

    fn at(&self, index: usize) -> i64 {
        match (self.tokens.get(index), &self.drafts) {
            (Some(token), _) => once(token).wide(),
            (None, Some(drafts)) => {
                let row = self.path[self.path.len() - 1 - (index - self.tokens.len())];
                drafts.get(row as usize)
            }
            // Not reached with an index within the text: a text without drafts has no more tokens.
            (None, None) => -1,
        }
    }

    /// Whether the `count` tokens before `end` equal the last `count` tokens of the text, which
    /// has at least that many. The last tokens, which differ most often, are compared first.
    fn repeats(&self, end: usize, count: usize) -> bool {
        let len = self.len();
        (1..=count).all(|back| self.at(end - back) == self.at(len - back))
    }

    /// How many of the tokens before `end` equal the last tokens of the text, up to `max`, which
    /// is at most `end`.
    fn repeated(&self, end: usize, max: usize) -> usize {
        let len = self.len();
        (1..=max).take_while(|back| self.at(end - back) == self.at(len - back)).count()
    }
}

/// Where a part of a list of `len` elements starts and ends, by two offsets; `None` where the
/// offsets descend or leave the list.
fn part(offsets: &Ints<'_>, at: usize, len: usize) -> Option<std::ops::Range<usize>> {
    let start = usize::try_from(offsets.get(at)).ok()?;
    let end = usize::try_from(offsets.get(at + 1)).ok()?;
    (start <= end && end <= len).then_some(start..end)
}

/// A request's penalty; `None` if it is `none`, the value for no penalty, or not finite or not above
/// `least`.
fn penalty(
    penalties: Option<&[f32]>,
    request: usize,
    none: f32,
    least: f32,
    flags: &mut u32,
) -> Option<f32> {
    let penalty = exact::flushed(once(&penalties?[request]));
    if !penalty.is_finite() || penalty <= least {
        *flags |= BAD_LENGTHS;
        return None;
    }
    (penalty != none).then_some(penalty)
}

impl<T: Int> Given<'_, T> {
    /// Adjusts a row, and returns the token that the row must take, -1 for none.
    fn adjust<F: Float>(&self, row: usize, mut table: Table<'_, F>, path: &mut [u32]) -> i32 {
        let request = self.requests.as_ref().map_or(row as i64, |requests| requests.get(row));
        let known = usize::try_from(request).ok().filter(|&at| at < self.plan.requests());
        let Some(request) = known else {
            *table.flags |= if request == -1 { 0 } else { BAD_LENGTHS };
            return think::NONE;
        };
        let text = self.text(row, request, path, table.flags);
        let forced = match &self.think {
            Some(think) => think.forced(request, &text, self.plan.vocab(), table.flags),
            None => think::NONE,
        };
        self.bias(request, &mut table);
        let all = f32::NEG_INFINITY;
        let penalties = Penalties {
            repetition: penalty(self.repetition, request, 1.0, 0.0, table.flags),
            frequency: penalty(self.frequency, request, 0.0, all, table.flags),
            presence: penalty(self.presence, request, 0.0, all, table.flags),
            dry: self.dry.as_ref().and_then(|dry| dry.of(request, table.flags)),
        };
        let counts = u32::from(penalties.frequency.is_some() || penalties.presence.is_some());
        let (first, mark) = match penalties.repetition {
            Some(_) => (0, IN_TEXT),
            None if counts > 0 => (text.prompt, 0),
            None => (text.len(), 0),
        };
        for index in first..text.len() {
            if let Some(slot) = table.slot(text.at(index)) {
                slot[2] += if index >= text.prompt { counts } else { 0 };
                slot[3] |= mark;
            }
        }
        if let (Some(arguments), Some(dry)) = (&self.dry, penalties.dry) {
            arguments.matches(request, dry, &text, |token, count| table.match_of(token, count));
        }
        self.stops(request, text.len() - text.prompt, &mut table);
        self.words(request, &text, &mut table);
        let n = self.no_repeat_ngram.as_ref().map_or(0, |n| n.get(request).max(0)) as usize;
        if n > 0 {
            for end in n - 1..text.len().max(n - 1) {
                if text.repeats(end, n - 1) {
                    table.mark(text.at(end), FORBIDDEN);
                }
            }
        }
        table.finish(penalties);
        forced
    }

    fn text<'t>(
        &'t self,
        row: usize,
        request: usize,
        path: &'t mut [u32],
        flags: &mut u32,
    ) -> Text<'t, T> {
        let mut clamp = |given: i64, max: usize| {
            let kept = cut(given, max);
            *flags |= if kept as i64 == given { 0 } else { BAD_LENGTHS };
            kept
        };
        let length = clamp(self.lengths.get(request), self.plan.tokens.cols);
        let prompt = clamp(self.prompt_lengths.get(request), length);
        let depth = match &self.drafts {
            Some((_, parents)) => climb(row, parents, path).unwrap_or_else(|| {
                *flags |= BAD_LENGTHS;
                0
            }),
            None => 0,
        };
        Text {
            tokens: &self.texts.row(request)[..length],
            prompt,
            path: &path[..depth],
            drafts: self.drafts.map(|(tokens, _)| tokens),
        }
    }

    fn bias<F: Float>(&self, request: usize, table: &mut Table<'_, F>) {
        let Some(((offsets, tokens), values)) = &self.bias else { return };
        let Some(part) = part(offsets, request, values.len()) else {
            *table.flags |= BAD_LENGTHS;
            return;
        };
        for at in part {
            if let Some(slot) = table.slot(tokens.get(at)) {
                let x = f32::from_bits(slot[1]) + exact::flushed(values[at]);
                slot[1] = exact::flushed(x).to_bits();
            }
        }
    }

    fn stops<F: Float>(&self, request: usize, generated: usize, table: &mut Table<'_, F>) {
        let (Some((min_tokens, stops)), Some(matrix)) = (&self.min_tokens, self.plan.stop_tokens)
        else {
            return;
        };
        if generated as i64 >= min_tokens.get(request) {
            return;
        }
        for column in 0..matrix.cols {
            let token = stops.get(request * matrix.row_stride + column);
            if token != -1 {
                table.mark(token, FORBIDDEN);
            }
        }
    }

    fn words<F: Float>(&self, request: usize, text: &Text<'_, T>, table: &mut Table<'_, F>) {
        let (Some(((bad, offsets), tokens)), Some(words)) = (&self.words, self.plan.words) else {
            return;
        };
        let Some(of_request) = part(bad, request, words.count) else {
            *table.flags |= BAD_LENGTHS;
            return;
        };
        let before = if self.plan.params.bad_words_in_prompt { 0 } else { text.prompt };
        let searched = text.len() - before;
        for word in of_request {
            let part = part(offsets, word, words.tokens).filter(|part| !part.is_empty());
            let Some(part) = part else {
                *table.flags |= BAD_LENGTHS;
                continue;
            };
            let (others, last) = (part.len() - 1, part.end - 1);
            let same = |back| tokens.get(last - back) == text.at(text.len() - back);
            if others <= searched && (1..=others).all(same) {
                table.mark(tokens.get(last), FORBIDDEN);
            }
        }
    }
}

/// Writes the rows of the drafts on the path to `row`, starting with `row` itself. Returns the
/// number of drafts; `None` for a parent outside the rows, or a cycle.
fn climb(row: usize, parents: &Ints<'_>, path: &mut [u32]) -> Option<usize> {
    let (mut at, mut depth) = (row, 0);
    loop {
        let parent = parents.get(at);
        if parent == -1 {
            return Some(depth);
        }
        // A path without a cycle has fewer drafts than there are rows.
        let rows = path.len();
        *path.get_mut(depth)? = at as u32;
        depth += 1;
        at = usize::try_from(parent).ok().filter(|&parent| parent < rows)?;
    }
}
