//! Language models made of counts: the stand-in for LLMs.

use std::collections::HashMap;
use std::hash::Hash;
use std::ops::Range;

use spec::exact;
use spec::philox::{Draw, Purpose};

/// How much the target trusts the counts after two tokens, after one, and of
/// the token alone. Where a context never occurred the others share its part.
const TARGET: [f64; 3] = [0.5, 0.45, 0.05];
/// As above, for the draft, which sees one token only.
const DRAFT: [f64; 3] = [0.0, 0.95, 0.05];

/// What followed each context, and how often.
struct Counts<C> {
    contexts: HashMap<C, Range<usize>>,
    /// Tokens with their share among what followed the context.
    shares: Vec<(u32, f64)>,
}

impl<C: Copy + Eq + Hash + Ord> Counts<C> {
    fn new(mut pairs: Vec<(C, u32)>) -> Self {
        pairs.sort_unstable();
        let mut contexts = HashMap::new();
        let mut shares = Vec::new();
        for same_context in pairs.chunk_by(|a, b| a.0 == b.0) {
            let start = shares.len();
            for same_token in same_context.chunk_by(|a, b| a.1 == b.1) {
                let share = same_token.len() as f64 / same_context.len() as f64;
                shares.push((same_token[0].1, share));
            }
            contexts.insert(same_context[0].0, start..shares.len());
        }
        Counts { contexts, shares }
    }

    fn after(&self, context: C) -> &[(u32, f64)] {
        self.contexts.get(&context).map_or(&[], |range| &self.shares[range.clone()])
    }
}

/// The target and the draft model, both from counts of one text.
pub struct Model {
    unigram: Vec<f64>,
    bigram: Counts<u32>,
    trigram: Counts<[u32; 2]>,
    /// The reciprocal of the temperature; 1 for a temperature of 0, where only
    /// the largest probability counts.
    exponent: f64,
}

impl Model {
    /// Counts the tokens of a text, all below `vocab`; probabilities are
    /// raised to the power of 1 / `temperature`.
    pub fn new(text: &[u32], vocab: usize, temperature: f64) -> Model {
        let mut unigram = vec![0.0; vocab];
        for token in text {
            unigram[*token as usize] += 1.0 / text.len() as f64;
        }
        let bigram = Counts::new(text.windows(2).map(|w| (w[0], w[1])).collect());
        let trigram = Counts::new(text.windows(3).map(|w| ([w[0], w[1]], w[2])).collect());
        let exponent = if temperature == 0.0 { 1.0 } else { temperature.recip() };
        Model { unigram, bigram, trigram, exponent }
    }

    /// The size of the vocabulary.
    pub fn vocab(&self) -> usize {
        self.unigram.len()
    }

    /// The target model's probabilities after two tokens.
    pub fn target(&self, context: [u32; 2], row: &mut [f32]) {
        self.mix(TARGET, context, row);
    }

    /// The draft model's probabilities; it sees the last token only.
    pub fn draft(&self, context: [u32; 2], row: &mut [f32]) {
        self.mix(DRAFT, context, row);
    }

    fn mix(&self, [three, two, one]: [f64; 3], context: [u32; 2], row: &mut [f32]) {
        let parts = [(three, self.trigram.after(context)), (two, self.bigram.after(context[1]))];
        let parts =
            parts.map(|(weight, after)| (if after.is_empty() { 0.0 } else { weight }, after));
        let whole = one + parts[0].0 + parts[1].0;
        let mut mixed: Vec<f64> = self.unigram.iter().map(|share| share * one / whole).collect();
        for (weight, after) in parts {
            for (token, share) in after {
                mixed[*token as usize] += share * weight / whole;
            }
        }
        self.heat(&mut mixed);
        for (to, from) in row.iter_mut().zip(mixed) {
            *to = from as f32;
        }
    }

    fn heat(&self, row: &mut [f64]) {
        if self.exponent == 1.0 {
            return;
        }
        let max = row.iter().copied().fold(0.0, f64::max);
        for p in row.iter_mut() {
            *p = (*p / max).powf(self.exponent);
        }
        let sum: f64 = row.iter().sum();
        for p in row {
            *p /= sum;
        }
    }
}

/// The largest probability's token, the lowest among equals.
pub fn argmax(row: &[f32]) -> u32 {
    let mut best = 0;
    for (token, p) in row.iter().enumerate() {
        if *p > row[best] {
            best = token;
        }
    }
    best as u32
}

/// Draws the token at a position of the text with the integers that
/// `rejection_sample` draws with, and for a purpose that is none of its own.
pub fn sample(row: &[f32], seed: u64, position: i64) -> u32 {
    let bits = Draw::at(seed, position, Purpose::Sample).bits();
    let total = row.iter().map(|p| exact::fixed_probability(*p)).sum();
    let threshold = exact::sample_threshold(bits, total);
    let mut sum = 0;
    for (token, p) in row.iter().enumerate() {
        sum += exact::fixed_probability(*p);
        if sum > threshold {
            return token as u32;
        }
    }
    argmax(row)
}
