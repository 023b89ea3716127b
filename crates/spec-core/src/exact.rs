//! Arithmetic that gives the same bits on every backend.
//!
//! An expert or a token is an integer, and the integers of a CPU, a GPU and a shader must
//! agree, although their compilers may fuse, reorder and approximate floating-point operations.
//! So every computation that decides such an integer is defined here by operations that all
//! devices do exactly: integer arithmetic, and single `f32` additions, subtractions and
//! multiplications, each rounded to nearest even, never fused, and never with a
//! subnormal result that matters. A port replays the same operations in the
//! same order; where its language may contract `a * b + c`, the port must prevent
//! the contraction.

/// [`exp`] returns 0 for arguments below this one, because the exact result would be subnormal.
pub const EXP_MIN: f32 = -87.0;

const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// 1.5 * 2^23: adding it leaves the nearest integer in the low mantissa bits.
const ROUND: f32 = 12_582_912.0;
/// ln 2 in two parts; the first has 9 significant bits, so that its product
/// with any exponent is exact.
const LN2_HIGH: f32 = 355.0 / 512.0;
const LN2_LOW: f32 = -2.121_944_4e-4;

/// e^t for t <= 0 with a relative error below 2.6e-7; 0 below [`EXP_MIN`] and
/// for NaN.
///
/// `exp` is not monotone: of the 1.1 * 10^9 f32 in `EXP_MIN..=0`, 2983 have a value one ulp
/// below that of the f32 before them. Order tokens and experts by [`sort_key`] of the argument,
/// never by `exp`. A monotone version would need more than f32 for its last product and sum,
/// several operations more for each element on every backend, and would change the tokens and
/// experts that were published with this version.
#[inline(always)]
pub fn exp(t: f32) -> f32 {
    let (rest, exponent) = reduce(if t > EXP_MIN { t } else { EXP_MIN });
    let scaled = expand(rest, exponent, 1.0);
    if t >= EXP_MIN { scaled } else { 0.0 }
}

/// The first half of [`exp`]: writes t as n ln 2 + rest. Returns the rest, and n shifted to
/// the exponent bits of a float.
#[inline(always)]
fn reduce(t: f32) -> (f32, u32) {
    let shifted = t * LOG2_E + ROUND;
    let n = shifted - ROUND;
    let rest = (t - n * LN2_HIGH) - n * LN2_LOW;
    // `shifted` holds n in its low bits: move it into the exponent field.
    (rest, shifted.to_bits() << 23)
}

/// The second half of [`exp`]: e^rest, with `exponent` added to its exponent bits, times
/// `unit`, a power of two. `unit` changes the exponent of the result and no other bit.
#[inline(always)]
fn expand(rest: f32, exponent: u32, unit: f32) -> f32 {
    let p = unit * (1.0 / 720.0);
    let p = p * rest + unit * (1.0 / 120.0);
    let p = p * rest + unit * (1.0 / 24.0);
    let p = p * rest + unit * (1.0 / 6.0);
    let p = p * rest + unit * 0.5;
    let p = p * rest + unit;
    let p = p * rest + unit;
    f32::from_bits(p.to_bits().wrapping_add(exponent))
}

/// 1 / d for 1 <= d <= 2, by three Newton steps instead of a division.
#[inline(always)]
pub const fn reciprocal(d: f32) -> f32 {
    let m = d * 0.5;
    let y = 48.0 / 17.0 - m * (32.0 / 17.0);
    let y = y * (2.0 - m * y);
    let y = y * (2.0 - m * y);
    let y = y * (2.0 - m * y);
    y * 0.5
}

/// The logistic function 1 / (1 + e^-x), with a relative error below 4e-7; 0 for NaN and for
/// x below [`EXP_MIN`].
///
/// The function is not monotone: 1.5 % of the f32 above `EXP_MIN` have a value below that of
/// some smaller f32, by up to 5 ulps for negative x (a product of two rounded
/// factors) and up to 2 for positive x. So of two logits that are this close, a router can
/// prefer the lower. A monotone version has the costs given at [`exp`]. A router that
/// must follow the order of the logits chooses experts by logit
/// ([`Select::Logit`](crate::ops::topk_router::Select::Logit)).
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    let e = exp(-x.abs());
    let r = reciprocal(1.0 + e);
    if x > 0.0 {
        r
    } else if x <= 0.0 {
        e * r
    } else {
        0.0
    }
}

/// ln(1 + e) for 0 <= e <= 1, by a polynomial in e.
#[inline(always)]
pub(crate) const fn ln_1p(e: f32) -> f32 {
    let p = 0.005_364_822_7;
    let p = p * e - 0.030_065_786;
    let p = p * e + 0.079_204_52;
    let p = p * e - 0.137_538_02;
    let p = p * e + 0.191_536_55;
    let p = p * e - 0.248_571_63;
    let p = p * e + 0.333_213_24;
    let p = p * e - 0.499_996_48;
    let p = p * e + 1.0;
    p * e
}

/// The square root of ln(1 + e^x), with a relative error below 2.6e-7; 0 for NaN and for x below
/// [`EXP_MIN`]. Positive infinity has the value of the largest finite f32.
///
/// The square root is the correctly rounded one of IEEE 754, which is a single operation on CPUs
/// and in CUDA. Where a language promises less accuracy, a port computes it with integers.
///
/// The function is not monotone: 0.9 % of the f32 in `EXP_MIN..0` and 4 % of those in `0..32`
/// have a value below that of some smaller f32, by at most 2 ulps. The causes are [`exp`] and
/// the roundings of the polynomial. From 32 on, the value is the square root of x, which is
/// monotone. Rounding the logarithm to fewer bits would hide most of these cases, but would
/// cost every backend further operations and make the scores less accurate. A router that must
/// follow the order of the logits chooses experts by logit
/// ([`Select::Logit`](crate::ops::topk_router::Select::Logit)).
#[inline(always)]
pub fn sqrt_softplus(x: f32) -> f32 {
    let x = if x > f32::MAX { f32::MAX } else { x };
    let positive = if x > 0.0 { x } else { 0.0 };
    // For NaN, `positive` and `exp` are both 0, and so is the result.
    (positive + ln_1p(exp(-x.abs()))).sqrt()
}

/// The number, or a zero of its sign where it is subnormal.
///
/// Some devices take subnormal numbers as zeros. An operation whose operands and result go through
/// this function can have the same bits there. A port must watch products that are little below the
/// smallest normal number, and are rounded up to it: some devices make zeros of them.
#[inline(always)]
pub const fn flushed(x: f32) -> f32 {
    let bits = x.to_bits();
    if bits & 0x7F80_0000 == 0 { f32::from_bits(bits & 0x8000_0000) } else { x }
}

/// The steps of a row's softmax, each a function of its own, so that every backend can spread
/// them over its threads. Weights are summed as integers, so the order of summation is free.
pub mod softmax {
    use super::{exp, reciprocal};

    /// The weight e^(x - max) of an element: 1 at the maximum, 0 for NaN, and 0 for every element
    /// of a row whose maximum is negative infinity.
    #[inline(always)]
    pub fn weight(x: f32, max: f32) -> f32 {
        // In a row of negative infinities, x - max is NaN, for which `exp` returns 0.
        if x == max && max > f32::NEG_INFINITY { 1.0 } else { exp(x - max) }
    }

    /// A weight as an integer in units of 2^-31, rounded down.
    #[inline(always)]
    pub fn fixed(weight: f32) -> u32 {
        (weight * 2_147_483_648.0) as u32
    }

    /// The factor that turns weights into scores, scaled by 2^24 as [`score`] expects. `sum` is the
    /// sum of [`fixed`] over the row; the factor of a sum of 0 is 0.
    #[inline(always)]
    pub fn factor(sum: u64) -> f32 {
        factor_of(sum, 31)
    }

    /// [`factor`] for weights in units of 2^-`unit`.
    #[inline(always)]
    pub(super) fn factor_of(sum: u64, unit: i32) -> f32 {
        if sum == 0 {
            return 0.0;
        }
        // sum = mantissa * 2^k with 1 <= mantissa < 2, rounded to nearest even.
        let bits = (sum as f32).to_bits();
        let exponent = (bits >> 23) as i32 - 127;
        let mantissa = f32::from_bits((bits & 0x007F_FFFF) | 0x3F80_0000);
        let scale = f32::from_bits(((127 + unit + 24 - exponent) as u32) << 23);
        reciprocal(mantissa) * scale
    }

    /// The score of an element: its weight times the row's [`factor`]; 0 where the score would be
    /// subnormal.
    #[inline(always)]
    pub fn score(weight: f32, factor: f32) -> f32 {
        const SMALLEST: f32 = f32::MIN_POSITIVE * 16_777_216.0;
        let scaled = weight * factor;
        if scaled < SMALLEST { 0.0 } else { scaled * (1.0 / 16_777_216.0) }
    }
}

/// The steps of a softmax at a temperature, each a function of its own as in [`softmax`].
/// [`fixed_probability`] turns these weights into integers in units of 2^-40.
pub mod sampling {
    use super::{exp, expand, reciprocal, reduce, softmax};

    /// An argument for which [`exp`] is less than one unit of [`fixed_probability`].
    ///
    /// [`fixed_probability`]: super::fixed_probability
    const NO_UNIT: f32 = -29.0;

    /// 1 / temperature, for a temperature above 0, which is first cut to 2^-100 .. 2^100.
    #[inline(always)]
    pub fn inverse(temperature: f32) -> f32 {
        const MIN: f32 = f32::from_bits((127 - 100) << 23);
        const MAX: f32 = f32::from_bits((127 + 100) << 23);
        // NaN is not above MIN, so a temperature of NaN becomes MIN.
        let raised = if temperature > MIN { temperature } else { MIN };
        let bits = if raised < MAX { raised } else { MAX }.to_bits();
        let mantissa = f32::from_bits((bits & 0x007F_FFFF) | 0x3F80_0000);
        reciprocal(mantissa) * f32::from_bits((254 - (bits >> 23)) << 23)
    }

    /// The weight e^((x - max) * inverse): 1 at the maximum (infinite or not), 0 for NaN.
    #[inline(always)]
    pub fn weight(x: f32, max: f32, inverse: f32) -> f32 {
        let below = (x - max) * inverse;
        if x == max { 1.0 } else { exp(below) }
    }

    /// The first half of [`weight`], for a finite `max` that x does not exceed. Loops that take
    /// this half for many tokens and then [`units`] for all of them vectorise.
    #[inline(always)]
    pub fn reduced(x: f32, max: f32, inverse: f32) -> (f32, u32) {
        let below = (x - max) * inverse;
        // NaN is not above NO_UNIT, so NaN becomes NO_UNIT.
        reduce(if below > NO_UNIT { below } else { NO_UNIT })
    }

    /// The second half of [`weight`]: the weight in units of 2^-40. The value is exact, except
    /// that weights below one unit may have any value from 0 up to 1. Rounded down to an integer,
    /// it is [`fixed_probability`](super::fixed_probability) of the weight.
    #[inline(always)]
    pub fn units((rest, exponent): (f32, u32)) -> f32 {
        expand(rest, exponent, 1_099_511_627_776.0)
    }

    /// The factor by which a token takes longer in the race than the row's likeliest token would
    /// with the same noise. This is the reciprocal of [`weight`], computed by a separate call of
    /// [`exp`]. For a token whose weight is at least one unit of
    /// [`fixed_probability`](super::fixed_probability), the argument of that call is at most 28.
    #[inline(always)]
    pub fn slowness(x: f32, max: f32, inverse: f32) -> f32 {
        if x == max { 1.0 } else { exp(-((x - max) * inverse)) }
    }

    /// The factor that turns weights into shares of their sum, as [`softmax::score`] expects.
    /// `sum` is the sum of [`fixed_probability`](super::fixed_probability) over the weights; the
    /// factor of a sum of 0 is 0.
    #[inline(always)]
    pub fn factor(sum: u64) -> f32 {
        softmax::factor_of(sum, 40)
    }
}

/// An unsigned integer whose order is that of the floats. -0 has the key of 0, and NaN has
/// the key of negative infinity.
#[inline(always)]
pub fn sort_key(value: f32) -> u32 {
    let value = if value.is_nan() { f32::NEG_INFINITY } else { value + 0.0 };
    let bits = value.to_bits();
    if bits >> 31 == 1 { !bits } else { bits | 0x8000_0000 }
}

/// The float whose [`sort_key`] is `key`; NaN for a key below that of negative infinity.
#[inline(always)]
pub fn from_sort_key(key: u32) -> f32 {
    f32::from_bits(if key >> 31 == 1 { key & 0x7FFF_FFFF } else { !key })
}

/// Whether rejection sampling accepts a draft token: u < min(1, target / draft), computed
/// without the division. `draft` and `target` are the token's probabilities under the draft and
/// the target model, and `u` is a uniform draw. A value that is not finite rejects the token.
#[inline(always)]
pub fn accepts(target: f32, draft: f32, u: f32) -> bool {
    let floor = if draft > 1e-10 { draft } else { 1e-10 };
    let finite = target.is_finite() && draft.is_finite() && u.is_finite();
    finite && (target >= floor || u * floor < target)
}

/// A probability as an integer in units of 2^-40, rounded down. Values above 1 count as 1, NaN
/// and negative values as 0.
#[inline(always)]
pub fn fixed_probability(residual: f32) -> u64 {
    // The cast turns NaN and negative values into 0.
    if residual >= 1.0 { 1 << 40 } else { (residual * 1_099_511_627_776.0) as u64 }
}

/// The largest vocabulary for which a sum of [`fixed_probability`] cannot overflow.
pub const MAX_SAMPLED_VOCAB: usize = (1 << 24) - 1;

/// An exponential variate of rate 1 from the odd number n below 2^`bits`: -ln(1 - n / 2^`bits`),
/// with a relative error below 5e-7 (4.0e-7 was the largest error of 64 million variates).
///
/// The race between tokens ([`crate::race`]) uses these variates as noise. Most races are won
/// with noise near 0, so small variates must have the same relative accuracy as large ones:
/// n / 2^`bits` is never rounded to a multiple of a fixed unit.
#[inline(always)]
pub const fn exponential(n: u64, bits: u32) -> f32 {
    const LN_2: f32 = std::f32::consts::LN_2;
    let below_half = n < 1 << (bits - 1);
    // n itself, or 2^bits - n where n / 2^bits is above a half: exact either way.
    let distance = if below_half { n } else { n.wrapping_neg() & (u64::MAX >> (64 - bits)) };
    // The 24 leading bits are what a float holds without rounding. `distance`, cut to them, is
    // m * 2^(length - 1) with 1 <= m < 2.
    let length = 64 - distance.leading_zeros();
    let m = f32::from_bits(((distance << (64 - length)) >> 40) as u32 & 0x007F_FFFF | 0x3F80_0000);
    let exponent = length as i32 - 1 - bits as i32;
    if below_half {
        let z = m * f32::from_bits(((127 + exponent) as u32) << 23);
        ln_1p(z * (2.0 * reciprocal(2.0 * (1.0 - z))))
    } else {
        -exponent as f32 * LN_2 - ln_1p(m - 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_accurate() {
        let mut worst: f64 = 0.0;
        for i in 0..870_000 {
            let t = -(i as f32) * 1e-4;
            let exact = f64::from(t).exp();
            worst = worst.max((f64::from(exp(t)) / exact - 1.0).abs());
        }
        assert!(worst < 2.6e-7, "relative error {worst:e}");
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-87.5), 0.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(f32::NAN), 0.0);
        assert!(exp(EXP_MIN) >= f32::MIN_POSITIVE);
    }

    #[test]
    fn subnormal_numbers_are_flushed() {
        let smallest = f32::MIN_POSITIVE;
        for x in [0.0, -0.0, smallest, -smallest, 1.5, f32::INFINITY, f32::NEG_INFINITY] {
            assert_eq!(flushed(x).to_bits(), x.to_bits());
        }
        let largest = f32::from_bits(smallest.to_bits() - 1);
        for x in [1e-40, largest, f32::from_bits(1)] {
            assert_eq!(flushed(x).to_bits(), 0);
            assert_eq!(flushed(-x).to_bits(), (-0.0_f32).to_bits());
        }
        assert!(flushed(f32::NAN).is_nan());
    }

    #[test]
    fn sigmoid_is_accurate() {
        let mut worst: f64 = 0.0;
        for i in -860_000..860_000 {
            let x = i as f32 * 1e-4;
            let exact = 1.0 / (1.0 + (-f64::from(x)).exp());
            worst = worst.max((f64::from(sigmoid(x)) / exact - 1.0).abs());
        }
        assert!(worst < 5e-7, "relative error {worst:e}");
        assert_eq!(sigmoid(0.0), 0.5);
        assert_eq!(sigmoid(-0.0), 0.5);
        assert_eq!(sigmoid(f32::INFINITY), 1.0);
        assert_eq!(sigmoid(f32::NEG_INFINITY), 0.0);
        assert_eq!(sigmoid(f32::NAN), 0.0);
    }

    #[test]
    fn sqrt_softplus_is_accurate() {
        let mut worst: f64 = 0.0;
        for i in -860_000..2_000_000 {
            let x = f64::from(i as f32 * 1e-4);
            let exact = (x.max(0.0) + (-x.abs()).exp().ln_1p()).sqrt();
            worst = worst.max((f64::from(sqrt_softplus(x as f32)) / exact - 1.0).abs());
        }
        assert!(worst < 2.6e-7, "relative error {worst:e}");
        assert_eq!(sqrt_softplus(f32::MAX), f32::MAX.sqrt());
        assert_eq!(sqrt_softplus(f32::INFINITY), f32::MAX.sqrt());
        assert_eq!(sqrt_softplus(f32::NEG_INFINITY), 0.0);
        assert_eq!(sqrt_softplus(-87.5), 0.0);
        assert_eq!(sqrt_softplus(f32::NAN), 0.0);
        assert_eq!(sqrt_softplus(0.0), sqrt_softplus(-0.0));
    }

    #[test]
    fn softmax_scores_add_up_to_one() {
        let row: Vec<f32> = (0..1024).map(|i| ((i * 37) % 101) as f32 * 0.1).collect();
        let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum = row.iter().map(|&x| u64::from(softmax::fixed(softmax::weight(x, max)))).sum();
        let factor = softmax::factor(sum);
        let total: f64 =
            row.iter().map(|&x| f64::from(softmax::score(softmax::weight(x, max), factor))).sum();
        assert!((total - 1.0).abs() < 2e-6, "{total}");
        assert_eq!(softmax::score(1.0, softmax::factor(1 << 31)), 1.0);
        assert_eq!(softmax::score(1.0, softmax::factor(1024 << 31)), 1.0 / 1024.0);
        assert_eq!(softmax::score(1.0, softmax::factor(0)), 0.0);
        assert_eq!(softmax::weight(f32::INFINITY, f32::INFINITY), 1.0);
        assert_eq!(softmax::weight(f32::NAN, 1.0), 0.0);
        assert_eq!(softmax::weight(f32::NEG_INFINITY, f32::NEG_INFINITY), 0.0);
    }

    #[test]
    fn temperatures_are_cut() {
        assert_eq!(sampling::inverse(1.0), 1.0);
        assert_eq!(sampling::inverse(0.5), 2.0);
        assert_eq!(sampling::inverse(1e-40), sampling::inverse(2f32.powi(-100)));
        assert_eq!(sampling::inverse(f32::INFINITY), 2f32.powi(-100));
        let mut worst: f64 = 0.0;
        for i in 1..20_000 {
            let t = i as f32 * 1.7e-3;
            worst = worst.max((f64::from(sampling::inverse(t)) * f64::from(t) - 1.0).abs());
        }
        assert!(worst < 2.5e-7, "relative error {worst:e}");
    }

    #[test]
    fn units_are_those_of_the_weight() {
        let far = [f32::NEG_INFINITY, f32::NAN, -f32::NAN, f32::MIN, -1e30, -1e-30, -0.0, 0.0];
        for (max, inverse) in [(0.0, 1.0), (7.25, 1.0 / 0.7), (-3e4, 1e-3), (f32::MAX, 1e-37)] {
            let near = (0..400_000).map(|i| max - i as f32 * 1e-4 / inverse);
            let edges = (0..64).map(|i| max + (-29.0 + i as f32 * 1e-6) / inverse);
            for x in far.into_iter().chain(near).chain(edges).filter(|x| x.is_nan() || *x <= max) {
                let units = sampling::units(sampling::reduced(x, max, inverse));
                let weight = fixed_probability(sampling::weight(x, max, inverse));
                assert!((0.0..=1_099_511_627_776.0).contains(&units), "{x:e} {max:e}: {units:e}");
                assert_eq!(units as u64, weight, "{x:e} {max:e} {inverse:e}");
            }
        }
    }

    #[test]
    fn shares_add_up_to_one() {
        let row: Vec<f32> = (0..1024).map(|i| ((i * 37) % 101) as f32 * 0.1).collect();
        let weights: Vec<f32> = row.iter().map(|&x| sampling::weight(x, 10.0, 0.7)).collect();
        let factor = sampling::factor(weights.iter().map(|&w| fixed_probability(w)).sum());
        let total: f64 = weights.iter().map(|&w| f64::from(softmax::score(w, factor))).sum();
        assert!((total - 1.0).abs() < 2e-6, "{total}");
        let (top, infinite) = (sampling::factor(1 << 40), f32::INFINITY);
        assert_eq!(softmax::score(sampling::weight(infinite, infinite, 1.0), top), 1.0);
        assert_eq!(sampling::weight(3.0, infinite, 1.0), 0.0);
        assert_eq!(sampling::weight(f32::NAN, 1.0, 1.0), 0.0);
    }

    #[test]
    fn sort_keys_order_as_floats() {
        let ascending = [f32::NEG_INFINITY, -2.0, -1e-40, 0.0, 1e-40, 2.0, f32::INFINITY];
        assert!(ascending.windows(2).all(|w| sort_key(w[0]) < sort_key(w[1])));
        assert_eq!(sort_key(-0.0), sort_key(0.0));
        assert_eq!(sort_key(f32::NAN), sort_key(f32::NEG_INFINITY));
        assert_eq!(sort_key(-f32::NAN), sort_key(f32::NEG_INFINITY));
        assert!(ascending.iter().all(|&x| from_sort_key(sort_key(x)) == x));
        assert!(from_sort_key(0).is_nan());
    }

    #[test]
    fn acceptance_is_strict_below_the_draft() {
        assert!(!accepts(0.25, 0.5, 0.5), "u * d = t rejects");
        assert!(accepts(0.25, 0.5, 0.499_999));
        assert!(accepts(0.5, 0.5, 0.999_999), "t = d accepts");
        assert!(accepts(1e-10, 0.0, 0.999_999), "d counts as 1e-10");
        assert!(!accepts(0.0, 0.0, 0.0));
        assert!(!accepts(f32::NAN, 0.5, 0.0) && !accepts(0.5, f32::INFINITY, 0.0));
    }

    #[test]
    fn fixed_probability_saturates() {
        assert_eq!(fixed_probability(1.0), 1 << 40);
        assert_eq!(fixed_probability(f32::INFINITY), 1 << 40);
        assert_eq!(fixed_probability(-1.0), 0);
        assert_eq!(fixed_probability(f32::NAN), 0);
        assert_eq!(fixed_probability(2f32.powi(-41)), 0);
    }
}
