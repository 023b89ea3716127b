//! Cuts a row to the tokens that `top_k` and `top_p` keep.

use spec_core::exact::sampling;

use super::row::{Logits, Scratch};
use super::{NO_UNIT, Options, UNIT};
use crate::select::{self, Reach};
use crate::simd::{self, BLOCK, Float, GROUPS};
use crate::weights::{self, Scale, Steps};

/// The entries of a row that `top_k` and `top_p` keep: the first entries in the order of step 4 of
/// the contract. Entries that `min_p` drops after the cut are still among them.
#[derive(Clone, Copy)]
pub(super) struct Kept {
    /// The key of the last entry that is kept.
    pub(super) key: u32,
    /// The token of the last entry that is kept.
    pub(super) token: usize,
    /// The number of gathered entries.
    taken: usize,
    /// The sum of the weights of all entries that race.
    pub(super) total: u64,
}

impl Kept {
    /// Whether an entry is kept.
    pub(super) fn keeps(&self, key: u32, token: usize) -> bool {
        key > self.key || (key == self.key && token <= self.token)
    }

    /// Writes the probabilities of the kept entries, which are still in `scratch`.
    pub(super) fn shares(&self, scale: Scale, scratch: &Scratch<'_>, probs: &mut [f32]) {
        probs.fill(0.0);
        let factor = sampling::factor(self.total);
        let (mut values, mut shares) = ([0.0; BLOCK], [0.0; BLOCK]);
        let [keys, indices] = [&*scratch.keys, &*scratch.indices].map(|all| &all[..self.taken]);
        for (keys, indices) in keys.chunks(BLOCK).zip(indices.chunks(BLOCK)) {
            simd::from_sort_keys(keys, &mut values);
            weights::shares(&values[..keys.len()], scale, factor, &mut shares);
            for (&index, &share) in indices.iter().zip(&shares) {
                probs[index as usize] = share;
            }
        }
    }
}

/// Cuts a row by `top_k` and `top_p`: gathers the entries that the two can keep, then drops those
/// that they do not keep. With `light_first`, `min_p` drops entries before.
pub(super) fn cut<T: Float>(
    logits: &Logits<'_, T>,
    options: &Options,
    light_first: bool,
    scale: Scale,
    scratch: &mut Scratch<'_>,
) -> Kept {
    let Options { top_k, top_p, floor, .. } = *options;
    let vocab = logits.logits.len();
    let some = (1..vocab).contains(&top_k);
    // The sum of all weights, of which `top_p` is a share, if it is known before the row is cut.
    let mut all = None;
    // Entries without weight need not be gathered: they are never drawn, they add nothing to the
    // sum for `top_p`, and `top_k` prefers every entry that has a weight.
    let mut reach = Reach { key: scale.reaches(NO_UNIT), ties: usize::MAX };
    if light_first {
        let least = floor as f64 * UNIT;
        reach.key = reach.key.max(scale.reaches(least.ln() as f32));
    } else if (1..=scratch.maxima.len()).contains(&top_k) {
        scratch.ranked.copy_from_slice(scratch.maxima);
        let key = select::reached_by(top_k, scratch.ranked);
        if key >= reach.key {
            reach = Reach { key, ties: top_k };
        }
    } else if !some {
        let sum = total(logits.sums(scale, scratch).iter().copied());
        // The entries below this weight together weigh at most as much as `top_p` cuts off, so
        // none of them is kept.
        let lightest = sum.saturating_sub(limit_of(top_p, sum)) as f64 / vocab as f64;
        reach.key = reach.key.max(scale.reaches((lightest * UNIT).ln() as f32));
        all = Some(sum);
    }
    let taken = logits.gather(reach, scratch);
    let Scratch { keys, indices, .. } = scratch;
    let (keys, indices) = (&mut keys[..taken], &indices[..taken]);
    let mut steps = Steps::new();
    if light_first {
        drop_light(keys, scale.at_least(floor));
    }
    if some && let Some(cut) = select::cut(keys, top_k as u64, count) {
        cut.drop_rest(keys);
    }
    if top_p < 1.0 {
        let sum = || total(keys.chunks(BLOCK).map(|keys| sum_of_keys(keys, scale, &mut steps)));
        let limit = limit_of(top_p, all.unwrap_or_else(sum));
        let cut = select::cut(keys, limit, |keys, weights| weigh_keys(keys, scale, weights));
        if let Some(cut) = cut {
            cut.drop_rest(keys);
        }
    }
    let keys = &keys[..];
    // The last entry of the order has the smallest key, and of equal keys the highest token.
    let mut last = (u32::MAX, 0);
    for (&key, &token) in keys.iter().zip(indices).filter(|(key, _)| **key > 0) {
        if key <= last.0 {
            last = (key, token as usize);
        }
    }
    let scale = scale.at_least(floor);
    let sums = keys.chunks(BLOCK).map(|keys| sum_of_keys(keys, scale, &mut steps));
    Kept { key: last.0, token: last.1, taken, total: total(sums) }
}

/// Group maxima that make [`weights::sum`] visit every group.
pub(super) const EVERY_GROUP: [u32; GROUPS] = [u32::MAX; GROUPS];

/// The share `top_p`, which is below 1, of a sum of weights. It is at least 1, so that the
/// likeliest token is kept.
fn limit_of(top_p: f32, sum: u64) -> u64 {
    // The product with a power of two is exact.
    let share = (f64::from(top_p) * 4_294_967_296.0) as u64;
    ((u128::from(share) * u128::from(sum)) >> 32).max(1) as u64
}

/// A weight of 1 for each key that was not dropped.
fn count(keys: &[u32], weights: &mut [u64]) {
    for (weight, &key) in weights.iter_mut().zip(keys) {
        *weight = u64::from(key > 0);
    }
}

/// The weight of each key of a block.
fn weigh_keys(keys: &[u32], scale: Scale, weights: &mut [u64]) {
    let mut values = [0.0; BLOCK];
    simd::from_sort_keys(keys, &mut values);
    weights::weigh(&values[..keys.len()], scale, weights);
}

/// The sum of the weights of a block of keys.
fn sum_of_keys(keys: &[u32], scale: Scale, steps: &mut Steps) -> u64 {
    let mut values = [0.0; BLOCK];
    simd::from_sort_keys(keys, &mut values);
    weights::sum(&values[..keys.len()], &EVERY_GROUP, 0, scale, steps)
}

/// Drops keys whose weight by `scale` is 0.
fn drop_light(keys: &mut [u32], scale: Scale) {
    let mut weights = [0; BLOCK];
    for keys in keys.chunks_mut(BLOCK) {
        weigh_keys(keys, scale, &mut weights);
        for (key, &weight) in keys.iter_mut().zip(&weights) {
            *key = if weight > 0 { *key } else { 0 };
        }
    }
}

/// The sum of the weights of blocks. It fits 64 bits: a weight is at most 2^40, and a row has
/// fewer than 2^24 logits. In a row that another thread changes the sum may wrap.
pub(super) fn total(sums: impl Iterator<Item = u64>) -> u64 {
    sums.fold(0, u64::wrapping_add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use spec_core::exact;

    use crate::simd::GROUP;

    #[test]
    fn groups_that_are_passed_over_have_no_weight() {
        let scale = Scale::new(3.0, 1.0 / 0.7);
        let mut values = [exact::from_sort_key(scale.reaches(NO_UNIT) - 1); GROUP];
        let sum = |values: &[f32]| weights::sum(values, &EVERY_GROUP, 0, scale, &mut Steps::new());
        assert_eq!(sum(&values), 0);
        values[7] = 3.0;
        assert_eq!(sum(&values), 1 << 40);
    }
}
