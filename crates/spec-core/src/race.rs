//! How a token is drawn: all tokens race, and the first to finish wins.
//!
//! A token's noise is an exponential variate of rate 1. The token finishes at the time noise /
//! weight, which is an exponential variate whose rate is the weight. Of independent exponential
//! variates, each is the least with a probability in proportion to its rate. So each token wins
//! with a probability in proportion to its weight, and no sum of the weights is needed. The order
//! in which the other tokens finish is a draw without replacement.
//!
//! # Noise belongs to a token
//! A token's noise depends on a seed, a position, a purpose and the token alone ([`Draw`]). Two
//! models that draw at the same seed and position therefore race with the same noise. Where
//! their probabilities are close, so are the times, and the models mostly draw the same token. A
//! draft model then agrees with its target nearly as often as rejection sampling would accept
//! its drafts, while the text is that of the target alone (Daliri, Musco and Suresh, 2024:
//! drafter-invariant speculative decoding).
//!
//! # Noise comes in groups
//! [`GROUP`] consecutive tokens are a group. The least of their variates is exponential with
//! rate [`GROUP`], and each token of the group is equally likely to have it. The exponential
//! distribution has no memory, so the difference between the noise of another token and the
//! least noise is again exponential with rate 1. So the noise of a group is drawn in this order:
//! the least noise, the token that has it, and for each other token the difference:
//!
//! | index of the block | meaning of its words |
//! |---|---|
//! | `g / 4` | word `g % 4` has the 32 high bits of the least noise of group `g` |
//! | 2^30 + `g` | word 0 has the 32 low bits of that noise; word 1 modulo 64 is the token that has it |
//! | 2^31 + `v / 4` | word `v % 4` gives the difference between the noise of token `v` and the least noise of its group |
//!
//! # So a row is read once
//! No token of a group finishes before the group's least noise divided by the group's largest
//! weight. The high bits alone bound the least noise from below, and one block has the high bits
//! of four groups. Of the 2,004 groups of a vocabulary of 128,256, some 8 to 41 have a bound below
//! the winner's time; only these groups need exact times.

use crate::exact;
use crate::philox::Draw;

/// The number of tokens in a group, whose noise is drawn together.
pub const GROUP: usize = 64;

/// Index of the first block with the low bits of a group's least noise.
pub const GROUP_BLOCKS: u32 = 1 << 30;
/// Index of the first block with the differences between tokens' noise and the least noise.
pub const TOKEN_BLOCKS: u32 = 1 << 31;

/// The factor that lowers a bound. 2^-16 is several times the sum of the relative errors of the
/// operations that a bound is made of.
pub const BOUND_SLACK: f32 = 1.0 - 1.0 / 65_536.0;

/// The least noise of a group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Least {
    /// The value of the noise.
    pub noise: f32,
    /// The token with this noise, counted from the first token of the group.
    pub lane: u32,
}

impl Least {
    /// The least noise from three random words: its high and low bits, and the word that chooses
    /// the token.
    #[inline(always)]
    pub const fn of(high: u32, low: u32, lane: u32) -> Self {
        let bits = (high as u64) << 32 | low as u64;
        // Division by a power of two is exact: the smallest variate is 2^-64.
        let noise = exact::exponential(bits | 1, 64) * (1.0 / GROUP as f32);
        Least { noise, lane: lane % GROUP as u32 }
    }

    /// The least noise of group `group`.
    #[inline(always)]
    pub const fn at(draw: Draw, group: u32) -> Self {
        let high = draw.block(group / 4)[(group % 4) as usize];
        let [low, lane, ..] = draw.block(GROUP_BLOCKS + group);
        Least::of(high, low, lane)
    }

    /// The noise of the group's token at `lane`. `word` is the random word for the difference
    /// between this token's noise and the least noise.
    #[inline(always)]
    pub const fn noise_of(self, lane: u32, word: u32) -> f32 {
        if lane == self.lane {
            self.noise
        } else {
            self.noise + exact::exponential(word as u64 * 2 + 1, 33)
        }
    }
}

/// The noise of one token: an exponential variate of rate 1. For many tokens of a group, call
/// [`Least::at`] once and [`Least::noise_of`] for each of them.
pub const fn noise(draw: Draw, token: u32) -> f32 {
    let word = draw.block(TOKEN_BLOCKS + token / 4)[(token % 4) as usize];
    Least::at(draw, token / GROUP as u32).noise_of(token % GROUP as u32, word)
}

/// A token's key in the order of finishing: the smaller key finishes first. Of equal times, the
/// lower token comes first. Times are positive, and positive floats have the order of their bits.
#[inline(always)]
pub const fn finish(time: f32, token: u32) -> u64 {
    (time.to_bits() as u64) << 32 | token as u64
}

/// A lower bound of the noise of every token of a group, from the high bits of the group's least
/// noise alone.
///
/// The least noise is -ln(1 - n / 2^64) / 64, and `high` has the 32 high bits of n. So n / 2^64 is
/// at least u = high / 2^32, and -ln(1 - u), which grows with u, bounds the variate from below. For
/// a small u, the first two terms of the logarithm's series are such a bound, since all terms are
/// positive. Otherwise, a logarithm with a relative error below 2^-18 is lowered by 2^-16.
/// [`Least::noise`] is below the true value by a relative error of at most 1e-6. The difference
/// between a token's noise and the least noise is not negative, so the rounded sum of the two is
/// never below the least noise.
#[inline(always)]
pub const fn noise_bound(high: u32) -> f32 {
    const UNIT: f32 = 1.0 / 4_294_967_296.0;
    let u = high as f32 * UNIT;
    // 1 - u = m * 2^-k, from the integer 2^32 - high, so that no bits are lost for u near 1.
    let rest = (high.wrapping_neg() as f32 * UNIT).to_bits();
    let m = f32::from_bits(rest & 0x007F_FFFF | 0x3F80_0000);
    let k = (127 - (rest >> 23) as i32) as f32;
    let logarithm = k * std::f32::consts::LN_2 - exact::ln_1p(m - 1.0);
    let variate = if u < 0.125 { u + 0.5 * u * u } else { logarithm };
    variate * (BOUND_SLACK / GROUP as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected bits come from an independent implementation.
    const EXPONENTIAL_33: [(u64, u32); 6] = [
        (1, 788_529_152),
        (85_721, 925_330_614),
        (2_018_229, 964_060_435),
        (4_294_967_295, 1_060_205_080),
        (4_294_967_297, 1_060_205_081),
        (8_589_934_591, 1_102_511_529),
    ];

    #[test]
    fn exponentials_are_these_bits() {
        for (n, bits) in EXPONENTIAL_33 {
            assert_eq!(exact::exponential(n, 33).to_bits(), bits, "{n}");
        }
        assert_eq!(exact::exponential(1, 64).to_bits(), 528_482_304);
        assert_eq!(exact::exponential(1_073, 64).to_bits(), 612_769_792);
    }

    /// Tests 20 million numbers. Of 33 bits, the whole range in steps, and its ends one by one; of
    /// 64 bits, numbers of every magnitude, counted from either end.
    #[test]
    fn exponentials_are_accurate() {
        let mut worst = 0f64;
        let mut look = |n: u64, bits: u32| {
            let unit = (-f64::from(bits)).exp2();
            let above = n.wrapping_neg() & (u64::MAX >> (64 - bits));
            let exact =
                if n < above { -(-(n as f64 * unit)).ln_1p() } else { -(above as f64 * unit).ln() };
            worst = worst.max((f64::from(exact::exponential(n, bits)) / exact - 1.0).abs());
        };
        for n in (1..1u64 << 33).step_by(1_022 * 2).chain((1..1 << 16).step_by(2)) {
            look(n | 1, 33);
            look((1 << 33) - (n | 1), 33);
        }
        for shift in 0..63 {
            for n in (1..20_000u64).map(|n| n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> shift | 1) {
                look(n, 64);
                look(n.wrapping_neg(), 64);
            }
        }
        assert!(worst < 5e-7, "relative error {worst:e}");
    }

    /// For every high word, the bound is below the least noise that any low word gives.
    #[test]
    fn noise_is_above_its_bound() {
        let ends = (0..1 << 20).chain(u32::MAX - (1 << 20)..=u32::MAX);
        for high in (0..u32::MAX).step_by(8191).chain(ends) {
            for low in [0, 1, u32::MAX] {
                let least = Least::of(high, low, 0).noise;
                let bound = noise_bound(high);
                assert!(bound <= least, "{high}, {low}: {bound:e} above {least:e}");
                // The bound must not be far below either, or groups would be computed for nothing.
                // The ends of the range are left out, where the low bits change the noise most.
                let known = (1 << 8..u32::MAX - (1 << 8)).contains(&high);
                assert!(!known || bound > 0.99 * least, "{high}: {bound:e}, {least:e}");
            }
        }
    }
}
