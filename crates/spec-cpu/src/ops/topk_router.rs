//! Routing on the CPU: tokens in parallel, each row in vectors.
//!
//! A row's scores and sort keys are computed over whole vectors. The picks sort
//! the few keys that reach a bound, which again whole vectors find.

use std::sync::atomic::{AtomicBool, Ordering};

use multiversion::multiversion;
use rayon::prelude::*;
use spec_core::ops::TopkRouter;
use spec_core::ops::topk_router::{Buffers, GroupScore, MAX_EXPERTS, Masked, Plan, Scoring};
use spec_core::{Kernel, Result, Stream, Supports, ViewMut, exact, flags};

use super::by_float;
use crate::simd::{self, BLOCK, Block, Float};
use crate::slices::{Rows, raise, rows_mut, slice, slice_mut};
use crate::{Cpu, check_stream};

/// Lanes that bound the picks, for `topk` up to 8 and up to 32.
const FEW_LANES: usize = 16;
const MANY_LANES: usize = 64;
/// Tokens below which splitting further costs more than it gains.
const MIN_TOKENS: usize = 16;
const _: () = assert!(MAX_EXPERTS <= BLOCK, "a row is widened at once");

struct Prepared(Plan);

impl Supports<TopkRouter> for Cpu {
    fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<TopkRouter>>> {
        Ok(Box::new(Prepared(plan.clone())))
    }
}

impl Kernel<TopkRouter> for Prepared {
    fn workspace_size(&self) -> usize {
        0
    }

    fn launch(&self, _: ViewMut<'_>, buffers: Buffers<'_>, stream: Stream<'_>) -> Result<()> {
        check_stream(stream)?;
        by_float!(self.0.x.dtype, run(&self.0, buffers))
    }
}

fn run<T: Float>(plan: &Plan, buffers: Buffers<'_>) -> Result<()> {
    let x = Rows::<T>::new(buffers.x, plan.x)?;
    // A buffer may be longer than its descriptor says.
    let bias = buffers.bias.map(slice::<f32>).transpose()?.map(|bias| &bias[..plan.experts()]);
    let weights = slice_mut::<f32>(buffers.weights)?;
    let indices = slice_mut::<i32>(buffers.indices)?;
    let non_finite = AtomicBool::new(plan.tokens() > 0 && bias.is_some_and(simd::any_non_finite));
    rows_mut(weights, plan.weights)
        .zip(rows_mut(indices, plan.indices))
        .enumerate()
        .with_min_len(MIN_TOKENS)
        .for_each_init(Scratch::default, |scratch, (token, (weights, indices))| {
            if scratch.route(plan, x.row(token), bias, weights, indices) {
                non_finite.store(true, Ordering::Relaxed);
            }
        });
    let bits = if non_finite.into_inner() { flags::NON_FINITE } else { 0 };
    raise(buffers.flags, bits)
}

struct Scratch {
    block: Block,
    scores: [f32; MAX_EXPERTS],
    keys: [u32; MAX_EXPERTS],
    candidates: [u64; MAX_EXPERTS],
    groups: [u64; MAX_EXPERTS],
}

impl Default for Scratch {
    fn default() -> Self {
        Scratch {
            block: [0.0; BLOCK],
            scores: [0.0; MAX_EXPERTS],
            keys: [0; MAX_EXPERTS],
            candidates: [0; MAX_EXPERTS],
            groups: [0; MAX_EXPERTS],
        }
    }
}

impl Scratch {
    /// Routes one token; tells whether a logit was not finite.
    fn route<T: Float>(
        &mut self,
        plan: &Plan,
        x: &[T],
        bias: Option<&[f32]>,
        weights: &mut [f32],
        indices: &mut [i32],
    ) -> bool {
        let Scratch { block, scores, keys, candidates, groups } = self;
        let logits = T::widen(x, block);
        let scores = &mut scores[..x.len()];
        choose(plan, logits, bias, Work { scores, keys, candidates, groups }, indices);
        weigh(plan, scores, weights, indices);
        simd_any_non_finite(logits)
    }
}

/// The arrays that a row is worked in.
struct Work<'a> {
    scores: &'a mut [f32],
    keys: &'a mut [u32; MAX_EXPERTS],
    candidates: &'a mut [u64; MAX_EXPERTS],
    groups: &'a mut [u64; MAX_EXPERTS],
}

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2"))]
fn simd_any_non_finite(values: &[f32]) -> bool {
    simd::any_non_finite(values)
}

/// Scores a row and picks its experts.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2"))]
fn choose(plan: &Plan, logits: &[f32], bias: Option<&[f32]>, work: Work<'_>, indices: &mut [i32]) {
    let Work { scores, keys, candidates, groups } = work;
    match plan.params.scoring {
        Scoring::Sigmoid => simd::sigmoid(logits, scores),
        Scoring::Softmax => simd::softmax(logits, scores),
    }
    simd::choice_keys(logits, scores, bias, &mut keys[..logits.len()]);
    if plan.params.groups > 1 {
        mask_groups(plan, keys, groups);
    }
    pick(logits.len(), keys, candidates, indices);
}

#[inline(always)]
fn mask_groups(plan: &Plan, keys: &mut [u32; MAX_EXPERTS], groups: &mut [u64; MAX_EXPERTS]) {
    let (count, size) = (plan.params.groups, plan.group_size());
    let keys = &mut keys[..count * size];
    let groups = &mut groups[..count];
    for (index, (group, keys)) in groups.iter_mut().zip(keys.chunks(size)).enumerate() {
        let key = match plan.params.group_score {
            GroupScore::Top2Sum if size > 1 => {
                let (first, second) = simd::two_max_keys(keys);
                exact::sort_key(choice(first) + choice(second))
            }
            _ => simd::max_key(keys),
        };
        // Equal keys: the lower index is the larger composite.
        *group = u64::from(key) << 32 | u64::from(!(index as u32));
    }
    let least = nth_largest(groups, plan.params.topk_groups);
    let masked = match plan.params.masked {
        Masked::Zero => exact::sort_key(0.0),
        Masked::Excluded => 0,
    };
    for (group, keys) in groups.iter().zip(keys.chunks_mut(size)) {
        if *group < least {
            keys.fill(masked);
        }
    }
}

/// The `n`-th largest of distinct values, counted from 1.
#[inline(always)]
fn nth_largest(values: &[u64], n: usize) -> u64 {
    if values.len() <= 16 {
        let larger = |value: u64| values.iter().filter(|&&other| other > value).count();
        return values.iter().copied().find(|&value| larger(value) == n - 1).unwrap_or(0);
    }
    let mut order = [0; MAX_EXPERTS];
    let order = &mut order[..values.len()];
    order.copy_from_slice(values);
    *order.select_nth_unstable_by(n - 1, |a, b| b.cmp(a)).1
}

/// The largest keys, descending, the lower index first among equals. Key 0 is
/// below every choice and marks what is excluded.
///
/// As many lanes as there are picks each have a largest key, so the `topk`-th
/// largest of those bounds the `topk`-th largest of all from below. What reaches
/// it is usually little more than `topk` keys, and those are sorted.
#[inline(always)]
fn pick(
    experts: usize,
    keys: &mut [u32; MAX_EXPERTS],
    candidates: &mut [u64; MAX_EXPERTS],
    indices: &mut [i32],
) {
    let padded = experts.next_multiple_of(MANY_LANES);
    keys[experts..padded].fill(0);
    let least = if indices.len() <= FEW_LANES / 2 {
        lane_bound::<FEW_LANES>(&keys[..padded], indices.len())
    } else {
        lane_bound::<MANY_LANES>(&keys[..padded], indices.len())
    };
    let mut count = 0;
    for (index, &key) in keys[..experts].iter().enumerate() {
        // Equal keys: the lower index is the larger composite.
        candidates[count] = u64::from(key) << 32 | u64::from(!(index as u32));
        count += usize::from(key >= least);
    }
    let mut candidates = &mut candidates[..count];
    if count > MANY_LANES {
        candidates.select_nth_unstable_by(indices.len() - 1, |a, b| b.cmp(a));
        candidates = &mut candidates[..indices.len()];
    }
    candidates.sort_unstable_by(|a, b| b.cmp(a));
    for (index, &candidate) in indices.iter_mut().zip(candidates.iter()) {
        *index = !(candidate as u32) as i32;
    }
}

/// The `n`-th largest, counted from 1, of the largest keys of each lane.
#[inline(always)]
fn lane_bound<const LANES: usize>(keys: &[u32], n: usize) -> u32 {
    let mut lanes = [0; LANES];
    for keys in keys.as_chunks::<LANES>().0 {
        for (lane, &key) in lanes.iter_mut().zip(keys) {
            *lane = (*lane).max(key);
        }
    }
    // The n-th largest is the least of those that fewer than n exceed.
    let mut bound = u32::MAX;
    for &lane in &lanes {
        let larger: u32 = lanes.iter().map(|&other| u32::from(other > lane)).sum();
        bound = bound.min(if (larger as usize) < n { lane } else { u32::MAX });
    }
    bound
}

fn weigh(plan: &Plan, scores: &[f32], weights: &mut [f32], indices: &[i32]) {
    for (weight, &index) in weights.iter_mut().zip(indices) {
        *weight = scores[index as usize];
    }
    let renormalize = plan.params.renormalize;
    let divisor = if renormalize { weights.iter().sum::<f32>() + 1e-20 } else { 1.0 };
    for weight in weights {
        // The scale first: dividing it by a tiny sum could overflow.
        *weight = plan.params.scale * *weight / divisor;
    }
}

/// The choice that a sort key stands for.
#[inline(always)]
fn choice(key: u32) -> f32 {
    f32::from_bits(if key >> 31 == 1 { key & 0x7FFF_FFFF } else { !key })
}
