//! Loops shaped for the vectoriser, in versions for what the processor has.
//!
//! `multiversion` compiles a function several times and picks at run time: a
//! function here that works on a whole block, or its caller where the pick would
//! cost as much as the work (those are `inline(always)`). None of that changes a
//! result: they use the single operations that [`spec_core::exact`] allows, which
//! every instruction set rounds alike.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use multiversion::multiversion;
use spec_core::{Element, exact};

/// Elements widened to f32 at a time.
pub(crate) const BLOCK: usize = 1024;

/// A block of f32, for widening into.
pub(crate) type Block = [f32; BLOCK];

/// The widest vectors the processor has, by name.
pub(crate) fn level() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw") {
            return "avx512";
        }
        if is_x86_feature_detected!("avx2") {
            return "avx2";
        }
    }
    "baseline"
}

/// A floating-point element, read as f32.
pub(crate) trait Float: Element {
    /// At most [`BLOCK`] elements as f32: themselves, or converted in `block`.
    fn widen<'a>(source: &'a [Self], block: &'a mut Block) -> &'a [f32];
    /// One element as f32.
    fn get(self) -> f32;
}

impl Float for f32 {
    fn widen<'a>(source: &'a [f32], _block: &'a mut Block) -> &'a [f32] {
        source
    }

    fn get(self) -> f32 {
        self
    }
}

impl Float for f16 {
    fn widen<'a>(source: &'a [f16], block: &'a mut Block) -> &'a [f32] {
        let block = &mut block[..source.len()];
        source.convert_to_f32_slice(block);
        block
    }

    fn get(self) -> f32 {
        self.to_f32()
    }
}

impl Float for bf16 {
    fn widen<'a>(source: &'a [bf16], block: &'a mut Block) -> &'a [f32] {
        let block = &mut block[..source.len()];
        widen_bf16(source, block);
        block
    }

    fn get(self) -> f32 {
        self.to_f32()
    }
}

/// The upper half of an f32, bits and all.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2"))]
fn widen_bf16(source: &[bf16], block: &mut [f32]) {
    for (wide, narrow) in block.iter_mut().zip(source) {
        *wide = f32::from_bits(u32::from(narrow.to_bits()) << 16);
    }
}

const EXPONENT: u32 = 0x7F80_0000;

/// Whether any element is NaN or infinite.
#[inline(always)]
pub(crate) fn any_non_finite(values: &[f32]) -> bool {
    values.iter().fold(false, |bad, v| bad | (v.to_bits() & EXPONENT == EXPONENT))
}

/// The logistic function of each logit.
#[inline(always)]
pub(crate) fn sigmoid(logits: &[f32], scores: &mut [f32]) {
    for (score, &x) in scores.iter_mut().zip(logits) {
        *score = exact::sigmoid(x);
    }
}

/// Softmax of one row by the rules of [`exact::softmax`].
#[inline(always)]
pub(crate) fn softmax(logits: &[f32], scores: &mut [f32]) {
    let mut max = f32::NEG_INFINITY;
    for &x in logits {
        max = if x > max { x } else { max };
    }
    let mut sum = 0;
    for (score, &x) in scores.iter_mut().zip(logits) {
        *score = exact::softmax::weight(x, max);
        sum += u64::from(exact::softmax::fixed(*score));
    }
    let factor = exact::softmax::factor(sum);
    for score in scores {
        *score = exact::softmax::score(*score, factor);
    }
}

/// Sort keys of the choices: score plus bias, negative infinity for a NaN logit.
#[inline(always)]
pub(crate) fn choice_keys(logits: &[f32], scores: &[f32], bias: Option<&[f32]>, keys: &mut [u32]) {
    let lowest = exact::sort_key(f32::NEG_INFINITY);
    match bias {
        Some(bias) => {
            for (((key, x), s), b) in keys.iter_mut().zip(logits).zip(scores).zip(bias) {
                *key = if x.is_nan() { lowest } else { exact::sort_key(s + b) };
            }
        }
        None => {
            for ((key, x), &s) in keys.iter_mut().zip(logits).zip(scores) {
                *key = if x.is_nan() { lowest } else { exact::sort_key(s) };
            }
        }
    }
}

/// The largest key of a non-empty slice.
#[inline(always)]
pub(crate) fn max_key(keys: &[u32]) -> u32 {
    keys.iter().fold(0, |max, &key| max.max(key))
}

/// The largest key, and the largest of the others (0 where there are none).
#[inline(always)]
pub(crate) fn two_max_keys(keys: &[u32]) -> (u32, u32) {
    let max = keys.iter().fold(0, |max, &key| max.max(key));
    let (mut equal, mut below) = (0, 0);
    for &key in keys {
        equal += u32::from(key == max);
        below = below.max(if key == max { 0 } else { key });
    }
    (max, if equal > 1 { max } else { below })
}

/// Bits of the residual `max(0, t - d)`; 0 where it is not finite.
#[inline(always)]
fn residual_bits(t: f32, d: f32) -> u32 {
    let difference = t - d;
    let finite = difference.to_bits() & EXPONENT != EXPONENT;
    if finite && difference > 0.0 { difference.to_bits() } else { 0 }
}

/// The bits of the largest residual, and whether any was not finite. Without
/// `draft` the residual is the target itself.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2"))]
pub(crate) fn max_residual(target: &[f32], draft: Option<&[f32]>) -> (u32, bool) {
    let (mut max, mut bad) = (0, false);
    match draft {
        Some(draft) => {
            for (&t, &d) in target.iter().zip(draft) {
                max = max.max(residual_bits(t, d));
                bad |= (t - d).to_bits() & EXPONENT == EXPONENT;
            }
        }
        None => {
            for &t in target {
                max = max.max(residual_bits(t, 0.0));
                bad |= t.to_bits() & EXPONENT == EXPONENT;
            }
        }
    }
    (max, bad)
}

/// The first index whose residual has these bits.
pub(crate) fn find_residual(target: &[f32], draft: Option<&[f32]>, bits: u32) -> Option<usize> {
    (0..target.len()).find(|&i| residual_bits(target[i], draft.map_or(0.0, |d| d[i])) == bits)
}

/// [`exact::fixed_probability`] of a residual, by one shift: conversions from
/// float to 64-bit integer do not vectorise below AVX-512.
#[inline(always)]
fn fixed_residual(t: f32, d: f32) -> u64 {
    const ONE: u32 = 0x3F80_0000;
    let bits = residual_bits(t, d).min(ONE);
    // 1.m * 2^(e - 127) in units of 2^-40 is (1.m * 2^40) >> (127 - e).
    let significand = u64::from(bits & 0x007F_FFFF | 0x0080_0000) << 17;
    significand >> (127 - (bits >> 23)).min(63)
}

/// The sum of residuals in units of 2^-40, and whether any was not finite.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2"))]
pub(crate) fn sum_residual(target: &[f32], draft: Option<&[f32]>) -> (u64, bool) {
    let (mut sum, mut bad) = (0, false);
    match draft {
        Some(draft) => {
            for (&t, &d) in target.iter().zip(draft) {
                sum += fixed_residual(t, d);
                bad |= (t - d).to_bits() & EXPONENT == EXPONENT;
            }
        }
        None => {
            for &t in target {
                sum += fixed_residual(t, 0.0);
                bad |= t.to_bits() & EXPONENT == EXPONENT;
            }
        }
    }
    (sum, bad)
}

/// The first index at which the running sum, starting from `sum`, exceeds
/// `threshold`, or the sum at the end.
pub(crate) fn find_sum(
    target: &[f32],
    draft: Option<&[f32]>,
    mut sum: u64,
    threshold: u64,
) -> Result<usize, u64> {
    for (i, &t) in target.iter().enumerate() {
        sum += fixed_residual(t, draft.map_or(0.0, |d| d[i]));
        if sum > threshold {
            return Ok(i);
        }
    }
    Err(sum)
}

/// A sort key for finite probabilities; 0, below all of them, for others.
#[inline(always)]
fn finite_key(t: f32) -> u32 {
    if t.to_bits() & EXPONENT == EXPONENT { 0 } else { exact::sort_key(t) }
}

/// The sort key of the largest finite value (0 if there is none), and whether
/// any was not finite.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2"))]
pub(crate) fn max_finite(values: &[f32]) -> (u32, bool) {
    let (mut max, mut bad) = (0, false);
    for &v in values {
        max = max.max(finite_key(v));
        bad |= v.to_bits() & EXPONENT == EXPONENT;
    }
    (max, bad)
}

/// The first index whose [`max_finite`] key is `key`.
pub(crate) fn find_finite(values: &[f32], key: u32) -> Option<usize> {
    values.iter().position(|&v| finite_key(v) == key)
}

/// The first index at or after `from` that holds `token`.
///
/// Sixteen comparisons are merged before one branch, which is what lets the
/// compiler use whole vectors.
#[inline(always)]
fn find_in<T: Copy + PartialEq>(haystack: &[T], from: usize, token: T) -> Option<usize> {
    const LANES: usize = 64;
    let mut at = from;
    let (chunks, tail) = haystack[from..].as_chunks::<LANES>();
    for chunk in chunks {
        if chunk.iter().fold(false, |hit, &t| hit | (t == token)) {
            return chunk.iter().position(|&t| t == token).map(|i| at + i);
        }
        at += LANES;
    }
    tail.iter().position(|&t| t == token).map(|i| at + i)
}

/// [`find_in`] for 8-byte tokens.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2"))]
pub(crate) fn find_i64(haystack: &[i64], from: usize, token: i64) -> Option<usize> {
    find_in(haystack, from, token)
}

/// [`find_in`] for 4-byte tokens.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2"))]
pub(crate) fn find_i32(haystack: &[i32], from: usize, token: i32) -> Option<usize> {
    find_in(haystack, from, token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn residuals_are_fixed_as_the_contract_says() {
        let exponents = (0..64).map(|e| 2f32.powi(-e));
        let values = exponents.flat_map(|p| [p, p * 1.999_999_9, p * 1.3]);
        for r in values.chain([0.0, 1e-40, f32::MAX, -1.0, f32::NAN, f32::INFINITY]) {
            let finite = if r.is_finite() { r } else { 0.0 };
            assert_eq!(fixed_residual(r, 0.0), exact::fixed_probability(finite), "{r}");
        }
    }
}
