//! A language model made of counts: the stand-in for an LLM.

use std::collections::HashMap;
use std::hash::Hash;
use std::ops::Range;

use super::decoding;

/// The weights of the counts after two tokens, after one token, and of the token alone. If a
/// context never occurred, the other counts get its weight.
const WEIGHTS: [f64; 3] = [0.5, 0.45, 0.05];

/// What followed each context, and how often.
struct Counts<C> {
    contexts: HashMap<C, Range<usize>>,
    /// Tokens with their share among what followed the context.
    shares: Vec<(i32, f64)>,
}

impl<C: Copy + Eq + Hash + Ord> Counts<C> {
    fn new(mut pairs: Vec<(C, i32)>) -> Self {
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

    fn after(&self, context: C) -> &[(i32, f64)] {
        self.contexts.get(&context).map_or(&[], |range| &self.shares[range.clone()])
    }
}

/// An interpolated trigram.
pub struct Model {
    unigram: Vec<f64>,
    bigram: Counts<i32>,
    trigram: Counts<[i32; 2]>,
}

impl Model {
    /// Counts the tokens of a text, all below `vocab`.
    pub fn new(text: &[i32], vocab: usize) -> Model {
        let mut unigram = vec![0.0; vocab];
        for token in text {
            unigram[*token as usize] += 1.0 / text.len() as f64;
        }
        let bigram = Counts::new(text.windows(2).map(|w| (w[0], w[1])).collect());
        let trigram = Counts::new(text.windows(3).map(|w| ([w[0], w[1]], w[2])).collect());
        Model { unigram, bigram, trigram }
    }
}

impl decoding::Model for Model {
    fn vocab(&self) -> usize {
        self.unigram.len()
    }

    /// Logarithms of probabilities.
    fn logits(&self, text: &[i32], row: &mut [f32]) {
        let &[.., before, last] = text else { unreachable!("a prompt has two tokens") };
        let [three, two, one] = WEIGHTS;
        let parts = [(three, self.trigram.after([before, last])), (two, self.bigram.after(last))];
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
