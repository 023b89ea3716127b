//! The weights of logits for sampling, and their sums: integers in units of 2^-40.
//!
//! A sum of integers is exact in any order. A weight is added up as two parts of 32 bits each:
//! a vector has twice as many lanes of 32 bits as of 64, and no vector instruction below AVX-512
//! converts floats to integers of 64 bits.
//!
//! A weight takes a chain of some 25 operations, each of which waits for the one before it. A
//! processor overlaps only few such chains. [`sum`] therefore takes a whole block of logits through
//! the first third of the chain, then through the next third: the iterations of each loop are
//! independent.

use multiversion::multiversion;
use spec_core::exact::{self, sampling, softmax};

use crate::simd::{BLOCK, GROUP};

/// The smallest weight that counts. Every smaller weight counts as 0.
#[derive(Clone, Copy)]
pub(crate) struct Least(f32);

impl Least {
    /// Every weight counts.
    pub(crate) const ANY: Self = Least(0.0);

    /// Weights of `units` and more count, in the units of [`exact::fixed_probability`].
    fn of_units(units: u64) -> Self {
        // The conversion is exact: the units were made from a float by rounding down, so a float
        // holds them; there are at most 2^40.
        Least(units as f32 * (1.0 / 1_099_511_627_776.0))
    }
}

/// [`exact::fixed_probability`] of a weight in two parts: the whole units of 2^-16, and the
/// remainder in units of 2^-40.
#[inline(always)]
pub(crate) fn fixed(weight: f32, least: Least) -> [u32; 2] {
    let weight = if weight >= least.0 { weight } else { 0.0 };
    let units = if weight < 1.0 { weight } else { 1.0 } * 65_536.0;
    // SAFETY: `weight` is at least 0 and no NaN, since NaN fails the comparison with `least`. So
    // `units` is from 0 to 65536, and the remainder is below 2^24.
    unsafe {
        let high = units.to_int_unchecked::<i32>();
        // The low part is exact: the fraction of a float, times a power of two.
        let low = ((units - high as f32) * 16_777_216.0).to_int_unchecked::<i32>();
        [high as u32, low as u32]
    }
}

/// How the logits of a row become weights: `e^((logit - max) * inverse)`.
#[derive(Clone, Copy)]
pub(crate) struct Scale {
    /// The largest logit of the row.
    max: f32,
    /// 1 / temperature.
    inverse: f32,
    least: Least,
}

impl Scale {
    pub(crate) fn new(max: f32, inverse: f32) -> Self {
        Scale { max, inverse, least: Least::ANY }
    }

    /// The same scale, on which weights of fewer than `floor` units count as 0.
    pub(crate) fn at_least(self, floor: u64) -> Self {
        Scale { least: Least::of_units(floor), ..self }
    }

    /// A sort key such that every logit with a smaller key has a weight below e^`log`. `log` is
    /// at most 0.
    pub(crate) fn reaches(self, log: f32) -> u32 {
        // 1e-3 is more than the rounding errors of this line and of `exp`, which is not monotone.
        exact::sort_key(self.max + (log - 1e-3) / self.inverse)
    }

    /// The largest logit of the row.
    pub(crate) fn max(self) -> f32 {
        self.max
    }

    /// The weight of a logit.
    #[inline(always)]
    pub(crate) fn weight(self, x: f32) -> f32 {
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

/// The slowness of each value in the race; infinite where its weight does not count.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2"))]
pub(crate) fn slowness(values: &[f32], scale: Scale, slowness: &mut [f32]) {
    for (slowness, &x) in slowness.iter_mut().zip(values) {
        let counts = fixed(scale.weight(x), scale.least) != [0, 0];
        let slow = sampling::slowness(x, scale.max, scale.inverse);
        *slowness = if counts { slow } else { f32::INFINITY };
    }
}

/// Intermediate results of [`sum`] between its loops over a block.
pub(crate) struct Steps {
    /// After the first loop, the remainders of `sampling::reduced`; after the second loop, weights.
    rests: [f32; BLOCK],
    exponents: [u32; BLOCK],
}

impl Steps {
    pub(crate) fn new() -> Self {
        Steps { rests: [0.0; BLOCK], exponents: [0; BLOCK] }
    }

    /// Computes the first half of the weights of a group, and stores the results from index `at`
    /// on.
    #[inline(always)]
    fn reduce(&mut self, at: usize, values: &[f32; GROUP], scale: Scale) {
        let rests = self.rests[at..].iter_mut().zip(&mut self.exponents[at..]);
        for ((rest, exponent), &x) in rests.zip(values) {
            (*rest, *exponent) = sampling::reduced(x, scale.max, scale.inverse);
        }
    }
}

/// The sum of the weights of a block. `maxima` are the largest sort keys of the block's groups;
/// groups whose largest key is below `from` are skipped.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2"))]
pub(crate) fn sum(
    values: &[f32],
    maxima: &[u32],
    from: u32,
    scale: Scale,
    steps: &mut Steps,
) -> u64 {
    if scale.max.is_infinite() {
        // Only the infinite logits have a weight, which is 1: next to infinity, finite logits have
        // the weight 0.
        return (values.iter().filter(|&&x| x == scale.max).count() as u64) << 40;
    }
    let mut taken = 0;
    let (groups, rest) = values.as_chunks();
    for (values, _) in groups.iter().zip(maxima).filter(|&(_, &largest)| largest >= from) {
        steps.reduce(taken, values, scale);
        taken += GROUP;
    }
    if !rest.is_empty() && maxima[groups.len()] >= from {
        let mut padded = [f32::NEG_INFINITY; GROUP];
        padded[..rest.len()].copy_from_slice(rest);
        steps.reduce(taken, &padded, scale);
        taken += GROUP;
    }
    let units = &mut steps.rests[..taken];
    for (units, &exponent) in units.iter_mut().zip(&steps.exponents) {
        *units = sampling::units((*units, exponent));
    }
    if scale.least.0 > 0.0 {
        let least = scale.least.0 * 1_099_511_627_776.0;
        for units in &mut *units {
            *units = if *units >= least { *units } else { 0.0 };
        }
    }
    // SAFETY: `units` are whole groups, and at most a block. Each is 0, or `sampling::units` of a
    // logit of at most `scale.max`, the row's largest logit, so from 0 to 2^40. (A logit
    // that another thread has raised since the largest one was found may give any float; the
    // conversion then gives some integer, and no address depends on the sum.)
    unsafe { sum_units(units) }
}

/// The sum of the integer parts of some numbers.
///
/// # Safety
/// There are at most [`BLOCK`] numbers, a multiple of [`GROUP`]. Each is from 0 to 2^41.
#[inline(always)]
unsafe fn sum_units(units: &[f32]) -> u64 {
    const LANES: usize = 32;
    /// 2^47. A lane adds up at most `BLOCK / LANES` numbers, so that its sum stays below 2^48:
    /// in that range a float is a multiple of 2^24.
    const BASE: f32 = 140_737_488_355_328.0;
    const { assert!(BLOCK / LANES <= 1 << 5 && GROUP.is_multiple_of(LANES)) };
    let (mut high, mut low) = ([BASE; LANES], [0i32; LANES]);
    for units in units.as_chunks::<LANES>().0 {
        for ((high, low), &units) in high.iter_mut().zip(&mut low).zip(units) {
            let next = *high + units;
            // Both subtractions are exact. `next - *high` is a multiple of 2^24 and at most
            // 2^23 away from `units`: it is 0 if `units` is below 2^23; from there on `units`
            // is a whole number.
            let rest = units - (next - *high);
            *high = next;
            // SAFETY: `rest` is between -2^23 and 2^23 and is not NaN, as shown above for numbers
            // from 0 to 2^41, which the caller promises.
            *low = low.wrapping_add(unsafe { rest.to_int_unchecked::<i32>() });
        }
    }
    let sums = high.iter().zip(low).map(|(high, low)| {
        // From 2^47 to 2^48, consecutive floats differ by 2^24 and their bits by 1.
        (i64::from(high.to_bits().wrapping_sub(BASE.to_bits())) << 24) + i64::from(low)
    });
    sums.sum::<i64>() as u64
}

/// The share of each value in the sum of weights that `factor` was made from
/// ([`sampling::factor`]).
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
            let scale = scale.at_least(floor);
            let total = sum(&values, &[u32::MAX], 1, scale, &mut Steps::new());
            assert_eq!(total, weights.iter().sum());
        }
    }

    #[test]
    fn sums_are_those_of_the_weights() {
        let mut steps = Steps::new();
        let rows: [fn(usize) -> f32; 5] = [
            |_| 0.0,
            |i| -(i as f32) * 0.03,
            |i| if i % 3 == 0 { -6e-8 } else { -11.784 - (i as f32) * 1e-5 },
            |i| if i % 5 == 0 { f32::NAN } else { f32::NEG_INFINITY },
            |i| -((i * 7919 % 4096) as f32) * 0.01,
        ];
        for (row, len) in rows.iter().flat_map(|row| [1, 63, 64, 65, 1000, BLOCK].map(|n| (row, n)))
        {
            for (max, inverse, floor) in [(0.0, 1.0, 0), (3.5, 1.25, 0), (1.0, 0.5, 1 << 20)] {
                let values: Vec<f32> = (0..len).map(|i| max + row(i)).collect();
                let scale = Scale::new(max, inverse).at_least(floor);
                let mut weights = vec![0; len];
                weigh(&values, scale, &mut weights);
                let every = [u32::MAX; BLOCK / GROUP];
                assert_eq!(sum(&values, &every, 0, scale, &mut steps), weights.iter().sum());
                // Without the second group.
                let mut some = every;
                some[1] = 6;
                let left = weights.iter().take(GROUP).chain(weights.iter().skip(2 * GROUP));
                assert_eq!(sum(&values, &some, 7, scale, &mut steps), left.sum());
            }
        }
    }

    #[test]
    fn beside_infinity_nothing_weighs_anything() {
        let values = [f32::INFINITY, 3.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
        let scale = Scale::new(f32::INFINITY, 0.5);
        assert_eq!(sum(&values, &[u32::MAX], 0, scale, &mut Steps::new()), 2 << 40);
    }
}
