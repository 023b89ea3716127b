//! `adjust_logits` by its definition: makes the text of each row as a list, then applies all steps
//! to every token of the vocabulary.

use half::{bf16, f16};
use spec_core::exact::{self, sampling};
use spec_core::flags::{BAD_LENGTHS, OUT_OF_RANGE};
use spec_core::ops::adjust_logits::{Buffers, MAX_MATCH, Plan};
use spec_core::{DType, Element, Result, View};

use crate::host::{ints, raise, slice, slice_mut, tokens};

/// Adjusts every row.
pub(crate) fn run(plan: &Plan, buffers: Buffers<'_>) -> Result<()> {
    match plan.logits.dtype {
        DType::F16 => run_on(plan, buffers, f16::to_f32, f16::from_f32),
        DType::BF16 => run_on(plan, buffers, bf16::to_f32, bf16::from_f32),
        _ => run_on(plan, buffers, |x: f32| x, |x| x),
    }
}

/// All arguments except for the logits, as packed 64-bit integers and floats.
struct Given<'p> {
    plan: &'p Plan,
    tokens: Vec<i64>,
    prompt_lengths: Vec<i64>,
    lengths: Vec<i64>,
    requests: Option<Vec<i64>>,
    drafts: Option<(Vec<i64>, Vec<i64>)>,
    bias: Option<(Vec<i64>, Vec<i64>, Vec<f32>)>,
    repetition: Option<Vec<f32>>,
    frequency: Option<Vec<f32>>,
    presence: Option<Vec<f32>>,
    min_tokens: Option<(Vec<i64>, Vec<i64>)>,
    words: Option<(Vec<i64>, Vec<i64>, Vec<i64>)>,
    no_repeat_ngram: Option<Vec<i64>>,
    dry: Option<Dry>,
    think: Option<Think>,
}

/// The arguments of DRY.
struct Dry {
    multiplier: Vec<f32>,
    base: Vec<f32>,
    allowed: Vec<i64>,
    range: Option<Vec<i64>>,
    breakers: Vec<i64>,
}

/// The arguments of thinking budgets.
struct Think {
    budget: Vec<i64>,
    start: Vec<i64>,
    end: Vec<i64>,
    forced: Vec<i64>,
}

fn run_on<T: Element>(
    plan: &Plan,
    b: Buffers<'_>,
    wide: impl Fn(T) -> f32,
    narrow: impl Fn(f32) -> T,
) -> Result<()> {
    let list = |view: Option<View<'_>>| -> Result<Option<Vec<i64>>> {
        view.map(|view| Ok(ints(view)?.into_owned())).transpose()
    };
    let floats = |view: Option<View<'_>>| -> Result<Option<Vec<f32>>> {
        view.map(|view| Ok(slice::<f32>(view)?.to_vec())).transpose()
    };
    let stops = match (b.stop_tokens, &plan.stop_tokens) {
        (Some(view), Some(matrix)) => Some(tokens(view, matrix)?.into_owned()),
        _ => None,
    };
    let given = Given {
        plan,
        tokens: tokens(b.tokens, &plan.tokens)?.into_owned(),
        prompt_lengths: ints(b.prompt_lengths)?.into_owned(),
        lengths: ints(b.lengths)?.into_owned(),
        requests: list(b.requests)?,
        drafts: list(b.draft_tokens)?.zip(list(b.parents)?),
        bias: (list(b.bias_offsets)?.zip(list(b.bias_tokens)?))
            .zip(floats(b.bias_values)?)
            .map(|((offsets, tokens), values)| (offsets, tokens, values)),
        repetition: floats(b.repetition)?,
        frequency: floats(b.frequency)?,
        presence: floats(b.presence)?,
        min_tokens: list(b.min_tokens)?.zip(stops),
        words: (list(b.bad_offsets)?.zip(list(b.word_offsets)?))
            .zip(list(b.word_tokens)?)
            .map(|((bad, offsets), tokens)| (bad, offsets, tokens)),
        no_repeat_ngram: list(b.no_repeat_ngram)?,
        dry: match (floats(b.dry_multiplier)?, floats(b.dry_base)?, list(b.dry_allowed_length)?) {
            (Some(multiplier), Some(base), Some(allowed)) => {
                let (range, breakers) = (list(b.dry_range)?, list(b.dry_breakers)?);
                Some(Dry {
                    multiplier,
                    base,
                    allowed,
                    range,
                    breakers: breakers.unwrap_or_default(),
                })
            }
            _ => None,
        },
        think: match (list(b.think_budget)?, list(b.think_start)?, list(b.think_end)?) {
            (Some(budget), Some(start), Some(end)) => {
                let forced = list(b.think_forced)?.unwrap_or_default();
                Some(Think { budget, start, end, forced })
            }
            _ => None,
        },
    };
    let mut forced = b.forced.map(slice_mut::<i32>).transpose()?;
    let logits = slice_mut::<T>(b.logits)?;
    let mut flags = 0;
    for row in 0..plan.rows() {
        let logits = &mut logits[row * plan.logits.row_stride..][..plan.columns()];
        for (column, touches) in given.touches(row, &mut flags).into_iter().enumerate() {
            if !touches.is_empty() {
                let given = exact::flushed(wide(logits[column]));
                logits[column] = narrow(touches.iter().fold(given, Touch::apply));
            }
        }
        if let Some(forced) = &mut forced {
            forced[row] = given.forced(row, &mut flags);
        }
    }
    raise(b.flags, flags)
}

/// The change that one step makes to a logit.
enum Touch {
    Add(f32),
    Divide(f32),
    SubtractTimes(f32, usize),
    Subtract(f32),
    /// The penalty of DRY.
    SubtractOrForbid(f32),
    Forbid,
}

impl Touch {
    fn apply(x: f32, touch: &Touch) -> f32 {
        // Rust's numbers keep what is subnormal.
        let flushed = exact::flushed;
        match *touch {
            Touch::Add(value) => flushed(x + flushed(value)),
            Touch::Divide(by) if x > 0.0 => flushed(x * sampling::inverse(by)),
            Touch::Divide(by) => flushed(x * by),
            Touch::SubtractTimes(value, count) => flushed(x - flushed(value * count as f32)),
            Touch::Subtract(value) => flushed(x - value),
            Touch::SubtractOrForbid(value) if value < f32::INFINITY => flushed(x - value),
            Touch::SubtractOrForbid(_) => f32::NEG_INFINITY,
            Touch::Forbid => f32::NEG_INFINITY,
        }
    }
}

/// The changes of each column's token, in order.
struct Touches<'f> {
    of_columns: Vec<Vec<Touch>>,
    /// The token of the first column, and the number of tokens of the vocabulary.
    first: i64,
    vocab: i64,
    flags: &'f mut u32,
}

impl Touches<'_> {
    fn add(&mut self, token: i64, touch: Touch) {
        if token < 0 || token >= self.vocab {
            *self.flags |= OUT_OF_RANGE;
        } else if token >= self.first && token < self.first + self.of_columns.len() as i64 {
            self.of_columns[(token - self.first) as usize].push(touch);
        }
    }
}

/// The part of a list between two offsets; `None` where the offsets descend or leave the list.
fn part<'l, T>(list: &'l [T], offsets: &[i64], at: usize) -> Option<&'l [T]> {
    list.get(usize::try_from(offsets[at]).ok()?..usize::try_from(offsets[at + 1]).ok()?)
}

/// The number of occurrences of each distinct token of a text, in the order of the tokens.
fn counts(text: &[i64]) -> std::collections::BTreeMap<i64, usize> {
    let mut counts = std::collections::BTreeMap::new();
    text.iter().for_each(|&token| *counts.entry(token).or_default() += 1);
    counts
}

impl Given<'_> {
    fn touches(&self, row: usize, flags: &mut u32) -> Vec<Vec<Touch>> {
        let of_columns = (0..self.plan.columns()).map(|_| Vec::new()).collect();
        let Some(request) = self.request(row, flags) else { return of_columns };
        let (text, prompt) = self.text(row, request, flags);
        let generated = &text[prompt..];
        let (first, vocab) = (self.plan.first_token() as i64, self.plan.vocab() as i64);
        let mut to = Touches { of_columns, first, vocab, flags };
        self.bias(request, &mut to);
        if let Some(r) = self.penalty(&self.repetition, request, 1.0, |r| r > 0.0, &mut to) {
            counts(&text).keys().for_each(|&token| to.add(token, Touch::Divide(r)));
        }
        if let Some(f) = self.penalty(&self.frequency, request, 0.0, |_| true, &mut to) {
            let counts = counts(generated);
            counts.iter().for_each(|(&token, &n)| to.add(token, Touch::SubtractTimes(f, n)));
        }
        if let Some(p) = self.penalty(&self.presence, request, 0.0, |_| true, &mut to) {
            counts(generated).keys().for_each(|&token| to.add(token, Touch::Subtract(p)));
        }
        self.dry(request, &text, &mut to);
        if let (Some((min_tokens, all)), Some(stops)) = (&self.min_tokens, self.plan.stop_tokens)
            && (generated.len() as i64) < min_tokens[request]
        {
            let stops = &all[request * stops.cols..][..stops.cols];
            let stops = stops.iter().filter(|&&token| token != -1);
            stops.for_each(|&token| to.add(token, Touch::Forbid));
        }
        let searched = if self.plan.params.bad_words_in_prompt { &text[..] } else { generated };
        self.words(request, searched, &mut to);
        let n = self.no_repeat_ngram.as_ref().map_or(0, |n| n[request].max(0)) as usize;
        if n > 0 {
            let before = text.len().checked_sub(n - 1).map_or(&[][..], |start| &text[start..]);
            for window in text.windows(n).filter(|window| window[..n - 1] == *before) {
                to.add(window[n - 1], Touch::Forbid);
            }
        }
        to.of_columns
    }

    /// The request of a row, if there is one.
    fn request(&self, row: usize, flags: &mut u32) -> Option<usize> {
        let request = self.requests.as_ref().map_or(row as i64, |requests| requests[row]);
        let known = usize::try_from(request).ok().filter(|&r| r < self.plan.requests());
        *flags |= if known.is_some() || request == -1 { 0 } else { BAD_LENGTHS };
        known
    }

    fn dry(&self, request: usize, text: &[i64], to: &mut Touches<'_>) {
        let Some(dry) = &self.dry else { return };
        let (multiplier, base) = (exact::flushed(dry.multiplier[request]), dry.base[request]);
        if multiplier == 0.0 {
            return;
        }
        if !multiplier.is_finite() || multiplier < 0.0 || !base.is_finite() || base < 1.0 {
            *to.flags |= BAD_LENGTHS;
            return;
        }
        let range = match &dry.range {
            Some(range) if range[request] > 0 => (range[request] as usize).min(text.len()),
            _ => text.len(),
        };
        let read = &text[text.len() - range..];
        let mut longest = std::collections::BTreeMap::<i64, usize>::new();
        for (at, &token) in read.iter().enumerate() {
            let is_repeated = |n: &usize| {
                let before = &read[at - n..at];
                read.ends_with(before) && !before.iter().any(|token| dry.breakers.contains(token))
            };
            let count = (0..=at.min(MAX_MATCH)).rev().find(is_repeated).unwrap_or(0);
            let longest = longest.entry(token).or_default();
            *longest = count.max(*longest);
        }
        let allowed = dry.allowed[request].max(0) as usize;
        for (token, count) in longest {
            if count >= allowed.max(1) && !dry.breakers.contains(&token) {
                let power = (allowed..count).fold(1.0f32, |power, _| power * base);
                to.add(token, Touch::SubtractOrForbid(multiplier * power));
            }
        }
    }

    /// The token that a row must take; -1 for none.
    fn forced(&self, row: usize, flags: &mut u32) -> i32 {
        let due = self.request(row, flags).and_then(|request| {
            let (text, prompt) = self.text(row, request, flags);
            self.think.as_ref()?.due(request, &text, prompt)
        });
        match due {
            Some(token) if token >= 0 && token < self.plan.vocab() as i64 => token as i32,
            Some(_) => {
                *flags |= OUT_OF_RANGE;
                -1
            }
            None => -1,
        }
    }

    /// The text of a row, with its drafts, and the length of the prompt.
    fn text(&self, row: usize, request: usize, flags: &mut u32) -> (Vec<i64>, usize) {
        let mut cut = |given: i64, max: usize| {
            let kept = given.clamp(0, max as i64);
            *flags |= if kept == given { 0 } else { BAD_LENGTHS };
            kept as usize
        };
        let max_len = self.plan.tokens.cols;
        let length = cut(self.lengths[request], max_len);
        let prompt = cut(self.prompt_lengths[request], length);
        let mut text = self.tokens[request * max_len..][..length].to_vec();
        let Some((draft_tokens, parents)) = &self.drafts else { return (text, prompt) };
        let (mut path, mut at) = (Vec::new(), row);
        while parents[at] != -1 {
            path.push(draft_tokens[at]);
            let parent = usize::try_from(parents[at]).ok().filter(|&parent| parent < parents.len());
            match parent {
                Some(parent) if path.len() <= parents.len() => at = parent,
                _ => {
                    *flags |= BAD_LENGTHS;
                    return (text, prompt);
                }
            }
        }
        text.extend(path.iter().rev());
        (text, prompt)
    }

    fn bias(&self, request: usize, to: &mut Touches<'_>) {
        let Some((offsets, tokens, values)) = &self.bias else { return };
        match part(tokens, offsets, request).zip(part(values, offsets, request)) {
            Some((tokens, values)) => tokens
                .iter()
                .zip(values)
                .for_each(|(&token, &value)| to.add(token, Touch::Add(value))),
            None => *to.flags |= BAD_LENGTHS,
        }
    }

    /// A request's penalty; `None` if it is `none`, the value for no penalty, or not finite or not
    /// valid.
    fn penalty(
        &self,
        penalties: &Option<Vec<f32>>,
        request: usize,
        none: f32,
        is_valid: impl Fn(f32) -> bool,
        to: &mut Touches<'_>,
    ) -> Option<f32> {
        let penalty = exact::flushed(penalties.as_ref()?[request]);
        if !penalty.is_finite() || !is_valid(penalty) {
            *to.flags |= BAD_LENGTHS;
            return None;
        }
        (penalty != none).then_some(penalty)
    }

    fn words(&self, request: usize, searched: &[i64], to: &mut Touches<'_>) {
        let Some((bad, offsets, tokens)) = &self.words else { return };
        let words: Vec<usize> = (0..offsets.len() - 1).collect();
        let Some(words) = part(&words, bad, request) else {
            *to.flags |= BAD_LENGTHS;
            return;
        };
        for &word in words {
            match part(tokens, offsets, word).and_then(<[i64]>::split_last) {
                Some((&last, others)) if searched.ends_with(others) => {
                    to.add(last, Touch::Forbid);
                }
                Some(_) => {}
                None => *to.flags |= BAD_LENGTHS,
            }
        }
    }
}

impl Think {
    /// The token that ends the thinking of a text, where one is due.
    fn due(&self, request: usize, text: &[i64], prompt: usize) -> Option<i64> {
        let budget = self.budget[request];
        if budget < 0 || self.end.is_empty() {
            return None;
        }
        let ends = |list: &[i64]| -> Vec<usize> {
            (0..=text.len()).filter(|&end| text[..end].ends_with(list)).collect()
        };
        let start = if self.start.is_empty() { prompt } else { *ends(&self.start).last()? };
        let past = usize::try_from((text.len() - start) as i64 - budget).ok()?;
        let taken = (0..=past.min(self.forced.len()))
            .filter(|&count| text.ends_with(&self.forced[..count]))
            .max()?;
        let last = text.len() - taken;
        let is_over = [&self.end, &self.forced]
            .iter()
            .any(|list| ends(list).iter().any(|&end| end > start && end <= last));
        if is_over { None } else { self.forced.get(taken).copied() }
    }
}
