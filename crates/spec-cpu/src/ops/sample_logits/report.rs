//! The reports that depend on a row's logits as given, without temperature, mask and filters.

use rayon::prelude::*;
use spec_core::exact;

use super::UNIT;
use super::cut::{EVERY_GROUP, total};
use super::row::{Logits, Scratch};
use crate::simd::{self, BLOCK, Float};
use crate::weights::{self, Scale, Steps};

/// The reports of a row that are asked for.
pub(super) struct Reported<'a> {
    pub(super) logprobs: Option<&'a mut [f32]>,
    pub(super) ranks: Option<&'a mut [i32]>,
    pub(super) top_tokens: Option<&'a mut [i32]>,
    pub(super) top_logprobs: Option<&'a mut [f32]>,
}

impl Reported<'_> {
    /// The reports of a row without tokens.
    pub(super) fn pad(self) {
        for logarithms in [self.logprobs, self.top_logprobs].into_iter().flatten() {
            logarithms.fill(f32::NEG_INFINITY);
        }
        if let Some(ranks) = self.ranks {
            ranks.fill(0);
        }
        if let Some(top_tokens) = self.top_tokens {
            top_tokens.fill(-1);
        }
    }
}

/// Writes the reports of a row and of the tokens drawn from it. `logits` has no mask.
pub(super) fn report<T: Float>(
    logits: &Logits<'_, T>,
    tokens: &[usize],
    scratch: &mut Scratch<'_>,
    reported: Reported<'_>,
) {
    logits.survey(scratch.maxima);
    let max = exact::from_sort_key(simd::max_key(scratch.maxima));
    if let Some(ranks) = reported.ranks {
        ranks.fill(0);
        for (rank, &token) in ranks.iter_mut().zip(tokens) {
            *rank = logits.rank(exact::sort_key(logits.logits[token].get()), scratch.maxima);
        }
    }
    // The weights are those of temperature 1. They are whole units, whose sum is the same in any
    // order.
    let scale = Scale::new(max, 1.0);
    let whole = if reported.logprobs.is_some() || reported.top_logprobs.is_some() {
        let chunks = logits.logits.par_chunks(logits.chunk * BLOCK).map(|chunk| {
            let (mut wide, mut steps) = ([0.0; BLOCK], Steps::new());
            let blocks = chunk.chunks(BLOCK);
            let sums = blocks.map(|block| {
                weights::sum(T::widen(block, &mut wide), &EVERY_GROUP, 0, scale, &mut steps)
            });
            total(sums)
        });
        (chunks.reduce(|| 0, u64::wrapping_add) as f64 * UNIT).ln()
    } else {
        0.0
    };
    let logprob = |token: usize| {
        let x = logits.logits[token].get();
        if x.is_nan() || x == f32::NEG_INFINITY {
            return f32::NEG_INFINITY;
        }
        let below = if x == max { 0.0 } else { f64::from(x - max) };
        (below - whole) as f32
    };
    if let Some(logprobs) = reported.logprobs {
        logprobs.fill(f32::NEG_INFINITY);
        for (to, &token) in logprobs.iter_mut().zip(tokens) {
            *to = logprob(token);
        }
    }
    let (mut top_tokens, mut top_logprobs) = (reported.top_tokens, reported.top_logprobs);
    if let Some(top_tokens) = &mut top_tokens {
        top_tokens.fill(-1);
    }
    if let Some(top_logprobs) = &mut top_logprobs {
        top_logprobs.fill(f32::NEG_INFINITY);
    }
    let lengths =
        [top_tokens.as_ref().map(|top| top.len()), top_logprobs.as_ref().map(|top| top.len())];
    let Some(top) = lengths.into_iter().flatten().max() else { return };
    for (i, entry) in logits.likeliest(top, scratch).enumerate() {
        if let Some(top_tokens) = &mut top_tokens {
            top_tokens[i] = entry.token() as i32;
        }
        if let Some(top_logprobs) = &mut top_logprobs {
            top_logprobs[i] = logprob(entry.token());
        }
    }
}
