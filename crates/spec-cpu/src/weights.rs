//! Weights of logits, and sums of them: a sampler's integers, in units of 2^-40.
//!
//! A sum of so many bits is exact in any order. Its terms are added up as two parts
//! that fit 32 bits, since vectors of those are twice as long as of 64, and no vector
//! below AVX-512 makes integers of 64 bits from floats: 0.9 ns an entry where a term of
//! 64 bits takes 2.6 (AVX2, a Zen 3 core, rows of 128256).

use multiversion::multiversion;
use spec_core::exact::{self, sampling, softmax};

use crate::simd::GROUP;

/// The least weight that counts; lighter ones are 0.
#[derive(Clone, Copy)]
pub(crate) struct Least(f32);

impl Least {
    /// Of any weight.
    pub(crate) const ANY: Self = Least(0.0);

    /// Of so many units, as [`exact::fixed_probability`] gives them.
    fn of_units(units: u64) -> Self {
        // Exact: the units of a float that was cut, of at most 2^40.
        Least(units as f32 * (1.0 / 1_099_511_627_776.0))
    }
}

/// [`exact::fixed_probability`] in two parts: in units of 2^-16, and what is left of it
/// in units of 2^-40.
#[inline(always)]
pub(crate) fn fixed(weight: f32, least: Least) -> [u32; 2] {
    let weight = if weight >= least.0 { weight } else { 0.0 };
    let units = if weight < 1.0 { weight } else { 1.0 } * 65_536.0;
    // SAFETY: what counts is not below 0 and no NaN; so this is 0 to 65536, and the rest
    // below 2^24.
    unsafe {
        let high = units.to_int_unchecked::<i32>();
        // Exact: the fraction of a float, and a power of two.
        let low = ((units - high as f32) * 16_777_216.0).to_int_unchecked::<i32>();
        [high as u32, low as u32]
    }
}

/// The sum of what [`fixed`] gives of at most [`GROUP`] weights, so that no part overflows.
#[inline(always)]
pub(crate) fn sum_fixed(weights: impl Iterator<Item = f32>, least: Least) -> u64 {
    // Two sums, which a fold over pairs would not leave to the vectoriser.
    let (mut high, mut low) = (0, 0);
    for weight in weights {
        let parts = fixed(weight, least);
        high += parts[0];
        low += parts[1];
    }
    (u64::from(high) << 24) + u64::from(low)
}

/// What turns the logits of a row into weights.
#[derive(Clone, Copy)]
pub(crate) struct Scale {
    /// The largest logit.
    max: f32,
    inverse: f32,
    least: Least,
}

impl Scale {
    pub(crate) fn new(max: f32, inverse: f32) -> Self {
        Scale { max, inverse, least: Least::ANY }
    }

    /// Where weights of fewer than `floor` units count as 0.
    pub(crate) fn at_least(self, floor: u64) -> Self {
        Scale { least: Least::of_units(floor), ..self }
    }

    /// A key below which no entry has a weight as large as e^`log`: for at most 0.
    pub(crate) fn reaches(self, log: f32) -> u32 {
        // Apart by more than the roundings here and in `exp`, which is not monotone.
        exact::sort_key(self.max + (log - 1e-3) / self.inverse)
    }

    #[inline(always)]
    fn weight(self, x: f32) -> f32 {
        sampling::weight(x, self.max, self.inverse)
    }
}

/// The weight of each value.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2"))]
pub(crate) fn weigh(values: &[f32], scale: Scale, weights: &mut [u64]) {
    for (weight, &x) in weights.iter_mut().zip(values) {
        let [high, low] = fixed(scale.weight(x), scale.least);
        *weight = (u64::from(high) << 24) + u64::from(low);
    }
}

/// The sum of the weights of a block, given the largest key of each group: those below
/// `from` are passed over.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2"))]
pub(crate) fn sum(values: &[f32], maxima: &[u32], from: u32, scale: Scale) -> u64 {
    let mut sum = 0;
    for (values, &largest) in values.chunks(GROUP).zip(maxima) {
        if largest >= from {
            sum += sum_fixed(values.iter().map(|&x| scale.weight(x)), scale.least);
        }
    }
    sum
}

/// What each value has of the sum that `factor` is of.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2"))]
pub(crate) fn shares(values: &[f32], scale: Scale, factor: f32, shares: &mut [f32]) {
    for (share, &x) in shares.iter_mut().zip(values) {
        let weight = scale.weight(x);
        let counts = fixed(weight, scale.least) != [0, 0];
        *share = if counts { softmax::score(weight, factor) } else { 0.0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_the_probabilities_in_units() {
        let edges = [0.0, 1e-45, 9.094_947e-13, 9.094_946e-13, 0.5, 1.0 - 6e-8, 1.0, 1.5];
        let odd = [-0.0, -1.0, -1e30, 1e30, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
        let some = (0..100_000).map(|i| exact::exp(-(i as f32) * 4e-4));
        for weight in edges.into_iter().chain(odd).chain(some) {
            let [high, low] = fixed(weight, Least::ANY);
            let units = (u64::from(high) << 24) + u64::from(low);
            assert_eq!(units, exact::fixed_probability(weight), "{weight:e}");
        }
    }

    #[test]
    fn sums_of_groups_do_not_overflow() {
        let just_below = f32::from_bits(1.0f32.to_bits() - 1);
        let units = exact::fixed_probability(just_below);
        assert_eq!(sum_fixed([just_below; GROUP].into_iter(), Least::ANY), GROUP as u64 * units);
        assert_eq!(sum_fixed([1.0; GROUP].into_iter(), Least::ANY), (GROUP as u64) << 40);
    }

    #[test]
    fn what_does_not_reach_a_key_weighs_less() {
        for max in [-300.0, -1.0, 0.0, 1e-30, 7.25, 3e4, f32::MAX, f32::INFINITY] {
            for inverse in [7.9e-31, 0.5, 1.0, 1.0 / 0.7, 1e3, 1.2e30] {
                let scale = Scale::new(max, inverse);
                for log in [-28.0f32, -20.5, -3.0, -0.01] {
                    let below = exact::from_sort_key(scale.reaches(log) - 1);
                    let weight = sampling::weight(below, max, inverse);
                    assert!(weight < log.exp(), "{max:e} {inverse:e} {log}: {weight:e}");
                }
            }
        }
    }

    #[test]
    fn light_weights_do_not_count() {
        let scale = Scale::new(0.0, 1.0);
        let values = [0.0, -0.5, -1.0, -1.5, f32::NAN, f32::NEG_INFINITY];
        for min_p in [0.0, 0.2, exact::exp(-1.0), 0.5, 1.0, 2.0] {
            let floor = exact::fixed_probability(min_p);
            let mut weights = [0; 6];
            weigh(&values, scale.at_least(floor), &mut weights);
            for (&x, &weight) in values.iter().zip(&weights) {
                let units = exact::fixed_probability(sampling::weight(x, 0.0, 1.0));
                assert_eq!(weight, if units >= floor { units } else { 0 }, "{x} {min_p}");
            }
            let total = sum(&values, &[u32::MAX], 1, scale.at_least(floor));
            assert_eq!(total, weights.iter().sum());
        }
    }
}
