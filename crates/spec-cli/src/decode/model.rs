//! Language models made of counts: the stand-in for LLMs.

use std::collections::HashMap;
use std::hash::Hash;
use std::ops::Range;

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
}

impl Model {
    /// Counts the tokens of a text, all below `vocab`.
    pub fn new(text: &[u32], vocab: usize) -> Model {
        let mut unigram = vec![0.0; vocab];
        for token in text {
            unigram[*token as usize] += 1.0 / text.len() as f64;
        }
        let bigram = Counts::new(text.windows(2).map(|w| (w[0], w[1])).collect());
        let trigram = Counts::new(text.windows(3).map(|w| ([w[0], w[1]], w[2])).collect());
        Model { unigram, bigram, trigram }
    }

    /// The size of the vocabulary.
    pub fn vocab(&self) -> usize {
        self.unigram.len()
    }

    /// The target model's logits after two tokens: logarithms of probabilities.
    pub fn target(&self, context: [u32; 2], row: &mut [f32]) {
        self.mix(TARGET, context, row);
    }

    /// The draft model's logits; it sees the last token only.
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
        for (to, from) in row.iter_mut().zip(mixed) {
            *to = from.ln() as f32;
        }
    }
}
