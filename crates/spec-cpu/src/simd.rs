//! Loops that the compiler vectorises, compiled for several instruction sets.
//!
//! `multiversion` compiles a function once for each instruction set and picks one version at
//! run time. Functions that work on a whole block have versions. Functions so short
//! that picking a version would cost as much as their work are `inline(always)`, and their caller
//! has versions. The version does not change a result: all functions use only the single operations
//! that [`spec_core::exact`] allows, which every instruction set rounds in the same way.

use std::ops::Range;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use multiversion::multiversion;
use spec_core::{Element, exact};

/// Elements widened to f32 at a time.
pub(crate) const BLOCK: usize = 1024;

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
    /// The elements as f32: `source` itself if it is f32, else converted into `block`, which has
    /// at least as many elements.
    fn widen<'a>(source: &'a [Self], block: &'a mut [f32]) -> &'a [f32];
    /// One element as f32.
    fn get(self) -> f32;
    /// The nearest element to an f32.
    fn round(x: f32) -> Self;
}

impl Float for f32 {
    fn widen<'a>(source: &'a [f32], _block: &'a mut [f32]) -> &'a [f32] {
        source
    }

    fn get(self) -> f32 {
        self
    }

    fn round(x: f32) -> f32 {
        x
    }
}

impl Float for f16 {
    fn widen<'a>(source: &'a [f16], block: &'a mut [f32]) -> &'a [f32] {
        let block = &mut block[..source.len()];
        source.convert_to_f32_slice(block);
        block
    }

    fn get(self) -> f32 {
        self.to_f32()
    }

    fn round(x: f32) -> f16 {
        f16::from_f32(x)
    }
}

impl Float for bf16 {
    fn widen<'a>(source: &'a [bf16], block: &'a mut [f32]) -> &'a [f32] {
        let block = &mut block[..source.len()];
        widen_bf16(source, block);
        block
    }

    fn get(self) -> f32 {
        self.to_f32()
    }

    fn round(x: f32) -> bf16 {
        bf16::from_f32(x)
    }
}

/// Widens bf16, whose bits are the upper half of an f32.
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

/// The square root of softplus of each logit.
#[inline(always)]
pub(crate) fn sqrt_softplus(logits: &[f32], scores: &mut [f32]) {
    for (score, &x) in scores.iter_mut().zip(logits) {
        *score = exact::sqrt_softplus(x);
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

/// Sort keys of the choices: of `by` (scores or logits) plus bias. A NaN logit has the key of
/// negative infinity.
#[inline(always)]
pub(crate) fn choice_keys(logits: &[f32], by: &[f32], bias: Option<&[f32]>, keys: &mut [u32]) {
    let lowest = exact::sort_key(f32::NEG_INFINITY);
    match bias {
        Some(bias) => {
            for (((key, x), s), b) in keys.iter_mut().zip(logits).zip(by).zip(bias) {
                *key = if x.is_nan() { lowest } else { exact::sort_key(s + b) };
            }
        }
        None => {
            for ((key, x), &s) in keys.iter_mut().zip(logits).zip(by) {
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

/// The two largest keys. The second is 0 if there is only one key.
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

/// The bits of the residual `max(0, t - d)`; 0 if it is not finite.
#[inline(always)]
fn residual_bits(t: f32, d: f32) -> u32 {
    let difference = t - d;
    let finite = difference.to_bits() & EXPONENT != EXPONENT;
    if finite && difference > 0.0 { difference.to_bits() } else { 0 }
}

/// The bits of the largest residual, and whether any residual was not finite. Without
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

/// The bits of the largest residual of each group, and whether any residual was not finite. Without
/// `draft` the residual is the target itself.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2"))]
pub(crate) fn residual_maxima(target: &[f32], draft: Option<&[f32]>, maxima: &mut [u32]) -> bool {
    let mut bad = false;
    for (group, max) in maxima.iter_mut().enumerate() {
        let range = group * GROUP..target.len().min((group + 1) * GROUP);
        let target = &target[range.clone()];
        let mut largest = 0;
        match draft {
            Some(draft) => {
                for (&t, &d) in target.iter().zip(&draft[range]) {
                    largest = largest.max(residual_bits(t, d));
                    bad |= (t - d).to_bits() & EXPONENT == EXPONENT;
                }
            }
            None => {
                for &t in target {
                    largest = largest.max(residual_bits(t, 0.0));
                    bad |= t.to_bits() & EXPONENT == EXPONENT;
                }
            }
        }
        *max = largest;
    }
    bad
}

/// The slowness of the tokens of a group in the race of residuals; infinite for residuals below
/// `least`.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2"))]
pub(crate) fn residual_slowness(
    target: &[f32],
    draft: Option<&[f32]>,
    least: f32,
    slowness: &mut [f32],
) {
    for (i, (slowness, &t)) in slowness.iter_mut().zip(target).enumerate() {
        let residual = f32::from_bits(residual_bits(t, draft.map_or(0.0, |d| d[i])));
        let slow = exact::sampling::inverse(residual);
        *slowness = if residual >= least { slow } else { f32::INFINITY };
    }
}

/// The number of entries of a group, of which only the largest key is kept: see
/// [`select`](crate::select).
pub(crate) const GROUP: usize = 64;
/// The number of entries of a group for operators that keep a large part of a row.
pub(crate) const SMALL_GROUP: usize = 16;
/// The number of groups of a block.
pub(crate) const GROUPS: usize = BLOCK / GROUP;

/// The sort key of the largest of [`SMALL_GROUP`] values. NaN is ignored.
#[inline(always)]
fn largest_of_few(values: &[f32; SMALL_GROUP]) -> u32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let mut lanes = values.map(|x| larger(f32::NEG_INFINITY, x));
    let mut width = SMALL_GROUP;
    while width > 1 {
        width /= 2;
        for lane in 0..width {
            lanes[lane] = larger(lanes[lane], lanes[lane + width]);
        }
    }
    exact::sort_key(lanes[0])
}

/// Turns the bits of a float into an integer whose order is that of the floats, and back. NaN
/// is beyond the infinity of the same sign.
#[inline(always)]
fn ordered(bits: i32) -> i32 {
    bits ^ (bits >> 31 & i32::MAX)
}

/// The sort key of the largest of [`GROUP`] values. NaN is ignored. The function compares
/// integers, whose maximum the compiler may take in any order. For 64 values this is faster than
/// [`largest_of_few`], for 16 values it is slower.
#[inline(always)]
fn largest(values: &[f32; GROUP]) -> u32 {
    const INFINITY: i32 = EXPONENT as i32;
    let order = |x: &f32| ordered(x.to_bits() as i32);
    let largest = values.iter().fold(i32::MIN, |largest, x| largest.max(order(x)));
    if largest > INFINITY {
        // A NaN is among the values. Its sort key is the smallest of all.
        return values.iter().fold(0, |largest, &x| largest.max(exact::sort_key(x)));
    }
    exact::sort_key(f32::from_bits(ordered(largest) as u32))
}

/// The largest sort key of each group of `N` values, by `largest`. The last group may be shorter.
#[inline(always)]
fn maxima<const N: usize>(values: &[f32], maxima: &mut [u32], largest: impl Fn(&[f32; N]) -> u32) {
    let (groups, rest) = values.as_chunks::<N>();
    for (group, max) in groups.iter().zip(&mut *maxima) {
        *max = largest(group);
    }
    if let Some(max) = maxima.get_mut(groups.len()) {
        let mut padded = [f32::NEG_INFINITY; N];
        padded[..rest.len()].copy_from_slice(rest);
        *max = largest(&padded);
    }
}

/// [`maxima`] of [`GROUP`] values each.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2"))]
pub(crate) fn group_maxima(values: &[f32], keys: &mut [u32]) {
    maxima(values, keys, largest);
}

/// [`maxima`] of [`SMALL_GROUP`] values each.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2"))]
pub(crate) fn small_group_maxima(values: &[f32], keys: &mut [u32]) {
    maxima(values, keys, largest_of_few);
}

/// The largest value of each group of `pool` values, where `pool` is a power of two that divides
/// [`BLOCK`]; the last group may be shorter. NaN counts as negative infinity, and -0 as +0.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2"))]
pub(crate) fn pool_maxima(values: &[f32], pool: usize, maxima: &mut [f32]) {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    for (values, max) in values.chunks(pool).zip(maxima) {
        let mut lanes = [f32::NEG_INFINITY; 8];
        let (eights, rest) = values.as_chunks::<8>();
        for eight in eights {
            for (lane, &x) in lanes.iter_mut().zip(eight) {
                *lane = larger(*lane, x);
            }
        }
        for (lane, &x) in lanes.iter_mut().zip(rest) {
            *lane = larger(*lane, x);
        }
        *max = lanes.iter().fold(f32::NEG_INFINITY, |max, &lane| larger(max, lane)) + 0.0;
    }
}

/// Whether any value is NaN.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2"))]
pub(crate) fn any_nan(values: &[f32]) -> bool {
    values.iter().fold(false, |nan, x| nan | x.is_nan())
}

/// Whether any value is NaN or positive infinity.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2"))]
#[expect(clippy::neg_cmp_op_on_partial_ord, reason = "one comparison, which NaN fails too")]
pub(crate) fn any_without_order(values: &[f32]) -> bool {
    values.iter().fold(false, |bad, &x| bad | !(x < f32::INFINITY))
}

/// Copies the values whose bit in `words` is set; writes negative infinity for the others.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2"))]
pub(crate) fn allow(values: &[f32], words: &[i32], allowed: &mut [f32]) {
    for ((values, allowed), &word) in values.chunks(32).zip(allowed.chunks_mut(32)).zip(words) {
        for (bit, (&x, allowed)) in values.iter().zip(allowed).enumerate() {
            *allowed = if word >> bit & 1 == 1 { x } else { f32::NEG_INFINITY };
        }
    }
}

/// The sort keys of values.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2"))]
pub(crate) fn sort_keys(values: &[f32], keys: &mut [u32]) {
    for (key, &x) in keys.iter_mut().zip(values) {
        *key = exact::sort_key(x);
    }
}

/// The values of sort keys.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2"))]
pub(crate) fn from_sort_keys(keys: &[u32], values: &mut [f32]) {
    for (value, &key) in values.iter_mut().zip(keys) {
        *value = exact::from_sort_key(key);
    }
}

/// The sort key of a finite probability; 0, which is below every sort key, if `t` is not finite.
#[inline(always)]
fn finite_key(t: f32) -> u32 {
    if t.to_bits() & EXPONENT == EXPONENT { 0 } else { exact::sort_key(t) }
}

/// The sort key of the largest finite value (0 if there is none), and whether
/// any value was not finite.
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

/// Two tokens of a pattern: the last one, and the one `distance` tokens before it.
#[derive(Clone, Copy)]
pub(crate) struct Pair<T> {
    pub(crate) last: T,
    pub(crate) before: T,
    pub(crate) distance: usize,
}

/// Comparisons that are merged before a branch. Without branches between them the compiler uses
/// whole vectors.
const LANES: usize = 64;

impl<T: Copy + PartialEq> Pair<T> {
    /// The tokens at `ends`, and the tokens `distance` before them. `ends.start` is at least
    /// `distance`.
    fn sides<'a>(&self, haystack: &'a [T], ends: Range<usize>) -> (&'a [T], &'a [T]) {
        let before = ends.start - self.distance..ends.end - self.distance;
        (&haystack[ends], &haystack[before])
    }

    /// Whether any of the places has the pair.
    #[inline(always)]
    fn any(&self, lasts: &[T; LANES], befores: &[T; LANES]) -> bool {
        let pairs = lasts.iter().zip(befores);
        pairs.fold(false, |hit, (&t, &b)| hit | ((t == self.last) & (b == self.before)))
    }

    /// Whether two tokens are the pair.
    fn is(&self, (&t, &b): (&T, &T)) -> bool {
        t == self.last && b == self.before
    }
}

/// The first place in `ends` that has the pair.
#[inline(always)]
fn find_in<T: Copy + PartialEq>(
    haystack: &[T],
    ends: Range<usize>,
    pair: Pair<T>,
) -> Option<usize> {
    let mut at = ends.start;
    let (lasts, befores) = pair.sides(haystack, ends);
    let ((lasts, tail), (befores, before_tail)) = (lasts.as_chunks(), befores.as_chunks());
    for (lasts, befores) in lasts.iter().zip(befores) {
        if pair.any(lasts, befores) {
            return lasts.iter().zip(befores).position(|both| pair.is(both)).map(|i| at + i);
        }
        at += LANES;
    }
    tail.iter().zip(before_tail).position(|both| pair.is(both)).map(|i| at + i)
}

/// The last place in `ends` that has the pair.
#[inline(always)]
fn rfind_in<T: Copy + PartialEq>(
    haystack: &[T],
    ends: Range<usize>,
    pair: Pair<T>,
) -> Option<usize> {
    let (start, mut at) = (ends.start, ends.end);
    let (lasts, befores) = pair.sides(haystack, ends);
    let ((head, lasts), (before_head, befores)) = (lasts.as_rchunks(), befores.as_rchunks());
    for (lasts, befores) in lasts.iter().zip(befores).rev() {
        at -= LANES;
        if pair.any(lasts, befores) {
            return lasts.iter().zip(befores).rposition(|both| pair.is(both)).map(|i| at + i);
        }
    }
    head.iter().zip(before_head).rposition(|both| pair.is(both)).map(|i| start + i)
}

/// [`find_in`] and [`rfind_in`] for a type, in a version for each instruction set.
macro_rules! finders {
    ($find:ident, $rfind:ident, $ty:ty) => {
        #[doc = concat!("[`find_in`] for ", stringify!($ty), ".")]
        #[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2"))]
        pub(crate) fn $find(
            haystack: &[$ty],
            ends: Range<usize>,
            pair: Pair<$ty>,
        ) -> Option<usize> {
            find_in(haystack, ends, pair)
        }

        #[doc = concat!("[`rfind_in`] for ", stringify!($ty), ".")]
        #[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2"))]
        pub(crate) fn $rfind(
            haystack: &[$ty],
            ends: Range<usize>,
            pair: Pair<$ty>,
        ) -> Option<usize> {
            rfind_in(haystack, ends, pair)
        }
    };
}

finders!(find_i64, rfind_i64, i64);
finders!(find_i32, rfind_i32, i32);
finders!(find_u32, rfind_u32, u32);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maxima_are_of_sort_keys() {
        let odd = [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0, 0.0, -1e-45];
        let odd = odd.into_iter().chain([-f32::MAX, f32::from_bits(0x7F80_0001), -2.0, 3.5]);
        let odd: Vec<f32> = odd.collect();
        // The first rows have equal values except for one; the other rows are mixtures.
        let alike = odd.iter().flat_map(|&x| odd.iter().map(move |&y| (x, y)));
        let rows = alike.enumerate().map(|(at, (x, y))| {
            let mut values = vec![x; GROUP + 1 + at % GROUP];
            values[at % GROUP] = y;
            values
        });
        let mixed = (1..=BLOCK).map(|len| (0..len).map(|i| odd[i * i % 89 % odd.len()]).collect());
        for values in rows.chain(mixed) {
            let expected = |size| {
                let keys = |group: &[f32]| group.iter().map(|&x| exact::sort_key(x)).max().unwrap();
                values.chunks(size).map(keys).collect::<Vec<_>>()
            };
            let mut keys = vec![7; values.len().div_ceil(GROUP)];
            group_maxima(&values, &mut keys);
            assert_eq!(keys, expected(GROUP), "{values:?}");
            let mut keys = vec![7; values.len().div_ceil(SMALL_GROUP)];
            small_group_maxima(&values, &mut keys);
            assert_eq!(keys, expected(SMALL_GROUP), "{values:?}");
        }
    }
}
