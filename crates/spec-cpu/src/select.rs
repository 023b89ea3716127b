//! Where a row is cut, without sorting it: the primitive under top-k and top-p.
//!
//! Keys ([`spec_core::exact::sort_key`]) are ordered descending, the lower index
//! first among equals, and kept while the weights before them add up to less than
//! a limit. Weights of 1 keep the `limit` largest (top-k); probabilities in whole
//! units keep the likeliest that add up to it (top-p). Weights are integers that
//! depend on the key alone, so a histogram finds the cut, digit by digit:
//!
//! ```text
//! weight by the first 12 bits   | . . : : | # # : . .     the digit in which the
//!                                   cut ----^             sum passes the limit
//! by the next 10 bits, of keys that begin so, and by the last 10
//! ```
//!
//! A key of 0 is below every number's: an entry that was dropped.

use crate::simd::BLOCK;

/// Where a row is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    /// Larger keys stay, smaller ones do not.
    pub(crate) key: u32,
    /// How many entries of that key stay, in ascending index: at least one.
    pub(crate) ties: usize,
    /// How many there are of it.
    pub(crate) tied: usize,
}

/// Bits of the digits, first to last.
const DIGITS: [u32; 3] = [12, 10, 10];
const MOST: usize = 1 << DIGITS[0];

/// The cut of `keys` at `limit`, at least 1; `None` where all weights together do
/// not reach it, and all stay. `weigh` gives the weights of at most [`BLOCK`] keys:
/// the same for equal keys, and 0 for key 0.
pub(crate) fn cut(keys: &[u32], limit: u64, weigh: impl Fn(&[u32], &mut [u64])) -> Option<Cut> {
    let mut weights = [0; BLOCK];
    let mut above = 0;
    // What is known of the key: its bits from `shift` up.
    let (mut prefix, mut shift) = (0, 32);
    let mut tied = 0;
    for bits in DIGITS {
        let low = shift - bits;
        let begins = |key: u32| u64::from(key) >> shift == u64::from(prefix);
        let mut sums = [0u64; MOST];
        for block in keys.chunks(BLOCK) {
            if !block.iter().fold(false, |any, &key| any | begins(key)) {
                continue;
            }
            let weights = &mut weights[..block.len()];
            weigh(block, weights);
            for (&key, &weight) in block.iter().zip(&*weights) {
                if begins(key) {
                    sums[(key >> low) as usize % (1 << bits)] += weight;
                }
            }
        }
        let digit = (0..1 << bits).rev().find(|&digit| {
            let through = above + sums[digit];
            let reached = through >= limit;
            if !reached {
                above = through;
            }
            reached
        })?;
        tied = sums[digit];
        prefix = ((u64::from(prefix) << bits) as u32) | digit as u32;
        shift = low;
    }
    let mut weight = [0];
    weigh(&[prefix], &mut weight);
    // The digit's weight reached the limit, so a key of it weighs something.
    let weight = weight[0].max(1);
    let ties = (limit - above).div_ceil(weight);
    Some(Cut { key: prefix, ties: ties as usize, tied: (tied / weight) as usize })
}

impl Cut {
    /// Drops what does not stay: its key becomes 0.
    pub(crate) fn drop_rest(&self, keys: &mut [u32]) {
        for key in keys.iter_mut() {
            *key = if *key >= self.key { *key } else { 0 };
        }
        if self.ties == self.tied {
            return;
        }
        let ties = keys.iter_mut().filter(|key| **key == self.key);
        ties.skip(self.ties).for_each(|key| *key = 0);
    }
}

/// A key that at least `k` entries reach, given the largest key of each of some
/// groups of entries: the k-th largest of those, which `maxima` lends its memory
/// to find. 1, which every entry reaches, where there are fewer groups.
pub(crate) fn reached_by(k: usize, maxima: &mut [u32]) -> u32 {
    match k.checked_sub(1) {
        Some(last) if k <= maxima.len() => {
            let (_, key, _) = maxima.select_nth_unstable_by(last, |a, b| b.cmp(a));
            (*key).max(1)
        }
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By sorting.
    fn sorted(keys: &[u32], limit: u64, weight: impl Fn(u32) -> u64) -> Vec<u32> {
        let mut order: Vec<usize> = (0..keys.len()).collect();
        order.sort_by_key(|&i| std::cmp::Reverse(keys[i]));
        let mut kept = vec![0; keys.len()];
        let mut before = 0;
        for i in order {
            if before < limit {
                kept[i] = keys[i];
            }
            before += weight(keys[i]);
        }
        kept
    }

    #[test]
    fn cuts_are_those_of_a_sorted_row() {
        let mut state = 7u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state >> 33
        };
        for case in 0..400 {
            let n = 1 + next() as usize % 3000;
            // All bits, few distinct keys, or keys that share their first digits.
            let (mask, base) = [(u32::MAX, 1), (7, 5), (0x3FF, 0x8000_0000), (0, 9)][case % 4];
            let keys: Vec<u32> =
                (0..n).map(|_| ((next() as u32).wrapping_mul(3) & mask) | base).collect();
            let one = |key: u32| u64::from(key > 0);
            let by_key = |key: u32| u64::from(key >> 7) + u64::from(key > 0);
            let weights: [&dyn Fn(u32) -> u64; 2] = [&one, &by_key];
            for weight in weights {
                let total: u64 = keys.iter().map(|&key| weight(key)).sum();
                let limit = 1 + next() % (total + total / 8 + 1);
                let mut kept = keys.clone();
                let found = cut(&keys, limit, |keys, weights| {
                    for (to, &key) in weights.iter_mut().zip(keys) {
                        *to = weight(key);
                    }
                });
                assert_eq!(found.is_none(), total < limit);
                if let Some(cut) = found {
                    cut.drop_rest(&mut kept);
                }
                assert_eq!(kept, sorted(&keys, limit, weight), "case {case}, limit {limit}");
            }
        }
    }

    #[test]
    fn enough_entries_reach_the_bound() {
        let mut maxima = [5, 9, 7, 9, 1];
        assert_eq!(reached_by(2, &mut maxima), 9);
        assert_eq!(reached_by(4, &mut maxima), 5);
        assert_eq!(reached_by(6, &mut maxima), 1);
    }
}
