//! Routing on the CPU: tokens in parallel, the experts of a token in vectors.
//!
//! A row's scores and sort keys are computed over whole vectors, and so is a bound that at least
//! `topk` keys reach. Only the few keys that reach the bound are sorted.

use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use half::{bf16, f16};
use multiversion::multiversion;
use rayon::prelude::*;
use spec_core::ops::TopkRouter;
use spec_core::ops::topk_router::{
    Buffers, GroupScore, MAX_EXPERTS, MAX_TOPK, Masked, Plan, REPLICA_HASH, Scoring, Select,
};
use spec_core::options::unknown;
use spec_core::{DType, Kernel, Matrix, Result, Route, Supports, View, ViewMut, exact, flags};

use super::{by_float, by_int, kernel};
use crate::Cpu;
use crate::simd::{self, Float};
use crate::slices::{Int, Rows, once, raise, rows_mut, shared, slice, slice_mut};

/// The numbers of lanes of [`lane_bound`]: for `topk` up to 8, and for a larger `topk`.
const FEW_LANES: usize = 16;
const MANY_LANES: usize = 64;
const _: () = assert!(MAX_TOPK <= MANY_LANES, "every pick has a lane");
/// The smallest number of tokens of a parallel task; smaller tasks cost more than they gain.
const MIN_TOKENS: usize = 16;
/// The size of a thread's arrays for models with at most this many experts. Clearing arrays for the
/// maximal number of experts takes longer than routing a few tokens.
const FEW_EXPERTS: usize = 1024;
/// The value of a pick without an expert.
const NO_EXPERT: u32 = u32::MAX;

// SAFETY: `launch` works on checked slices of the workspace and the buffers.
unsafe impl Supports<TopkRouter> for Cpu {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<TopkRouter>>> {
        // SAFETY: as for the `impl`.
        Ok(unsafe { kernel::<TopkRouter, _>(plan.clone(), 0, launch, loops) })
    }
}

fn loops(plan: &Plan, route: &mut Route) {
    let way = if plan.chosen.is_some() { "replay" } else { "select" };
    let room = if plan.experts() <= FEW_EXPERTS { FEW_EXPERTS } else { MAX_EXPERTS };
    let words = format!("{} tokens, at least {MIN_TOKENS} a task", plan.tokens());
    route.push(&format!("topk_router.{way}_{room}"), words);
}

fn launch(plan: &Plan, _: ViewMut<'_>, buffers: Buffers<'_>) -> Result<()> {
    by_float!(plan.x.dtype, run(plan, buffers))
}

fn run<T: Float>(plan: &Plan, buffers: Buffers<'_>) -> Result<()> {
    by_int!(plan.indices.dtype, run_into::<T>(plan, buffers))
}

fn run_into<T: Float, I: Int>(plan: &Plan, buffers: Buffers<'_>) -> Result<()> {
    match plan.weights.dtype {
        DType::F16 => run_weighing::<T, I, f16>(plan, buffers),
        DType::BF16 => run_weighing::<T, I, bf16>(plan, buffers),
        _ => run_weighing::<T, I, f32>(plan, buffers),
    }
}

fn run_weighing<T: Float, I: Int, W: Float>(plan: &Plan, buffers: Buffers<'_>) -> Result<()> {
    if plan.experts() <= FEW_EXPERTS {
        route_all::<T, I, W, FEW_EXPERTS>(plan, buffers)
    } else {
        route_all::<T, I, W, MAX_EXPERTS>(plan, buffers)
    }
}

fn route_all<T: Float, I: Int, W: Float, const N: usize>(
    plan: &Plan,
    buffers: Buffers<'_>,
) -> Result<()> {
    let tokens = plan.tokens();
    let wanted = buffers.num_tokens.map(slice::<i32>).transpose()?.map(|word| once(&word[0]));
    let live = wanted.map_or(tokens, |wanted| usize::try_from(wanted).unwrap_or(0).min(tokens));
    let cut = wanted.is_some_and(|wanted| usize::try_from(wanted) != Ok(live));
    let x = Rows::<T>::new(buffers.x, plan.x)?;
    let bias = Bias::new(buffers.bias, plan)?;
    let places = Places::new(&buffers, plan)?;
    let given = match (buffers.chosen, plan.chosen) {
        (Some(chosen), Some(matrix)) => Some(Rows::<i32>::new(chosen, matrix)?),
        _ => None,
    };
    let logical = match (buffers.logical, plan.logical) {
        (Some(logical), Some(matrix)) => {
            Some(Logical { rows: shared(slice_mut(logical)?), matrix })
        }
        _ => None,
    };
    let load = buffers.load.map(slice_mut::<i32>).transpose()?.map(shared);
    let weights = slice_mut::<W>(buffers.weights)?;
    let indices = slice_mut::<I>(buffers.indices)?;
    let topk = plan.params.topk;
    let mut raised = if cut { flags::BAD_LENGTHS } else { 0 };
    let biased = bias.is_given() && given.is_none();
    raised |= if live > 0 && biased && bias.has_non_finite() { flags::NON_FINITE } else { 0 };
    let raised = AtomicU32::new(raised);
    let route = |scratch: &mut Scratch<N>, token, weights: &mut [W], indices: &mut [I]| {
        let (mut picks, mut shares) = ([0; MAX_TOPK], [0.0; MAX_TOPK]);
        let (picks, shares) = (&mut picks[..topk], &mut shares[..topk]);
        let mut bits = match given {
            Some(given) => scratch.replay(plan, x.row(token), given.row(token), picks),
            None => scratch.select(plan, x.row(token), biased, picks),
        };
        weigh(plan, &scratch.scores, shares, picks);
        let (chosen, shared) = weights.split_at_mut(topk);
        for (weight, &share) in chosen.iter_mut().zip(shares.iter()) {
            *weight = W::round(share);
        }
        shared.fill(W::round(plan.params.shared_weight));
        if let Some(logical) = &logical {
            let experts = picks.iter().map(|pick| pick.cast_signed());
            logical.put(token, experts.chain(plan.experts() as i32..));
        }
        let (chosen, shared) = indices.split_at_mut(topk);
        for (index, &expert) in chosen.iter_mut().zip(picks.iter()) {
            let place = match &places {
                Some(places) if expert != NO_EXPERT => places.of(token, expert, &mut bits),
                _ => expert.cast_signed(),
            };
            *index = I::of(place);
            if let (Some(load), Ok(place)) = (load, usize::try_from(place)) {
                load[place].fetch_add(1, Ordering::Relaxed);
            }
        }
        for (index, expert) in shared.iter_mut().zip(plan.physical_experts()..) {
            *index = I::of(expert as i32);
        }
        if bits != 0 {
            raised.fetch_or(bits, Ordering::Relaxed);
        }
    };
    rows_mut(weights, plan.weights)
        .zip(rows_mut(indices, plan.indices))
        .enumerate()
        .with_min_len(MIN_TOKENS)
        .for_each_init(
            || Scratch::new(&bias),
            |scratch, (token, (weights, indices))| {
                if token < live {
                    route(scratch, token, weights, indices);
                } else {
                    weights.fill(W::round(0.0));
                    indices.fill(I::of(-1));
                    if let Some(logical) = &logical {
                        logical.put(token, std::iter::repeat(-1));
                    }
                }
            },
        );
    raise(buffers.flags, raised.into_inner())
}

/// The bias in its own type.
#[derive(Clone, Copy)]
enum Bias<'a> {
    Absent,
    F32(&'a [f32]),
    F16(&'a [f16]),
    BF16(&'a [bf16]),
}

impl<'a> Bias<'a> {
    fn new(view: Option<View<'a>>, plan: &Plan) -> Result<Self> {
        let Some(view) = view else { return Ok(Bias::Absent) };
        Ok(match plan.bias {
            Some(DType::F16) => Bias::F16(slice(view)?),
            Some(DType::BF16) => Bias::BF16(slice(view)?),
            _ => Bias::F32(slice(view)?),
        })
    }

    fn is_given(&self) -> bool {
        !matches!(self, Bias::Absent)
    }

    /// Whether an element is not finite.
    fn has_non_finite(&self) -> bool {
        match self {
            Bias::Absent => false,
            Bias::F32(bias) => simd::any_non_finite(bias),
            Bias::F16(bias) => bias.iter().any(|value| !value.is_finite()),
            Bias::BF16(bias) => bias.iter().any(|value| !value.is_finite()),
        }
    }

    fn widen(&self, into: &mut [f32]) {
        fn each<T: Float>(bias: &[T], into: &mut [f32]) {
            for (wide, value) in into.iter_mut().zip(bias) {
                *wide = value.get();
            }
        }
        match self {
            Bias::Absent => {}
            Bias::F32(bias) => each(bias, into),
            Bias::F16(bias) => each(bias, into),
            Bias::BF16(bias) => each(bias, into),
        }
    }
}

/// The experts before `replicas`, as an output. Threads write different rows of it.
struct Logical<'a> {
    rows: &'a [AtomicI32],
    matrix: Matrix,
}

impl Logical<'_> {
    /// Writes a token's row.
    fn put(&self, token: usize, experts: impl Iterator<Item = i32>) {
        let row = &self.rows[token * self.matrix.row_stride..][..self.matrix.cols];
        for (logical, expert) in row.iter().zip(experts) {
            logical.store(expert, Ordering::Relaxed);
        }
    }
}

/// The places (physical experts) of each expert's replicas on all devices.
struct Places<'a> {
    places: Rows<'a, i32>,
    counts: &'a [i32],
    physical: i32,
}

impl<'a> Places<'a> {
    fn new(buffers: &Buffers<'a>, plan: &Plan) -> Result<Option<Self>> {
        let given = (buffers.replicas, buffers.replica_counts, plan.replicas);
        let (Some(places), Some(counts), Some(matrix)) = given else { return Ok(None) };
        let physical = plan.physical_experts() as i32;
        Ok(Some(Places { places: Rows::new(places, matrix)?, counts: slice(counts)?, physical }))
    }

    /// The place of an expert for a token; -1, with a flag, for a place outside the range.
    fn of(&self, token: usize, expert: u32, bits: &mut u32) -> i32 {
        let places = self.places.row(expert as usize);
        let given = once(&self.counts[expert as usize]);
        let count = given.clamp(1, places.len() as i32);
        *bits |= if count == given { 0 } else { flags::BAD_LENGTHS };
        let turn = (token as u32).wrapping_mul(REPLICA_HASH) % count.cast_unsigned();
        let place = once(&places[turn as usize]);
        if (0..self.physical).contains(&place) {
            return place;
        }
        *bits |= flags::OUT_OF_RANGE;
        -1
    }
}

struct Scratch<const N: usize> {
    block: [f32; N],
    bias: [f32; N],
    scores: [f32; N],
    keys: [u32; N],
    candidates: [u64; N],
    groups: [u64; N],
}

impl<const N: usize> Scratch<N> {
    fn new(bias: &Bias<'_>) -> Self {
        let mut scratch = Scratch {
            block: [0.0; N],
            bias: [0.0; N],
            scores: [0.0; N],
            keys: [0; N],
            candidates: [0; N],
            groups: [0; N],
        };
        bias.widen(&mut scratch.bias);
        scratch
    }

    /// Scores a token's experts and selects its picks; returns flags.
    fn select<T: Float>(&mut self, plan: &Plan, x: &[T], has_bias: bool, picks: &mut [u32]) -> u32 {
        let Scratch { block, bias, scores, keys, candidates, groups } = self;
        let logits = T::widen(x, block);
        let scores = &mut scores[..x.len()];
        let bias = has_bias.then_some(&bias[..x.len()]);
        choose(plan, logits, bias, Work { scores, keys, candidates, groups }, picks);
        if simd_any_non_finite(logits) { flags::NON_FINITE } else { 0 }
    }

    /// Scores a token's experts and takes the picks that are given; returns flags.
    fn replay<T: Float>(&mut self, plan: &Plan, x: &[T], given: &[i32], picks: &mut [u32]) -> u32 {
        let logits = T::widen(x, &mut self.block);
        score(plan, logits, &mut self.scores[..x.len()]);
        let mut bits = if simd_any_non_finite(logits) { flags::NON_FINITE } else { 0 };
        for (pick, expert) in picks.iter_mut().zip(given) {
            let expert = once(expert);
            *pick = match u32::try_from(expert) {
                Ok(known) if (known as usize) < x.len() => known,
                _ => NO_EXPERT,
            };
            bits |= if *pick == NO_EXPERT && expert != -1 { flags::OUT_OF_RANGE } else { 0 };
        }
        bits
    }
}

/// The arrays in which a row is scored.
struct Work<'a> {
    scores: &'a mut [f32],
    keys: &'a mut [u32],
    candidates: &'a mut [u64],
    groups: &'a mut [u64],
}

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2"))]
fn simd_any_non_finite(values: &[f32]) -> bool {
    simd::any_non_finite(values)
}

/// Scores a row.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2"))]
fn score(plan: &Plan, logits: &[f32], scores: &mut [f32]) {
    score_with(plan, logits, scores);
}

#[inline(always)]
fn score_with(plan: &Plan, logits: &[f32], scores: &mut [f32]) {
    match plan.params.scoring {
        Scoring::Sigmoid => simd::sigmoid(logits, scores),
        Scoring::Softmax => simd::softmax(logits, scores),
        Scoring::SqrtSoftplus => simd::sqrt_softplus(logits, scores),
        other => unknown(other),
    }
}

/// Scores a row and picks its experts.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2"))]
fn choose(plan: &Plan, logits: &[f32], bias: Option<&[f32]>, work: Work<'_>, picks: &mut [u32]) {
    let Work { scores, keys, candidates, groups } = work;
    score_with(plan, logits, scores);
    let by = match plan.params.select {
        Select::Score => &*scores,
        Select::Logit => logits,
        other => unknown(other),
    };
    simd::choice_keys(logits, by, bias, &mut keys[..logits.len()]);
    if plan.params.groups > 1 {
        mask_groups(plan, keys, groups, candidates);
    }
    pick(logits.len(), keys, candidates, picks);
}

#[inline(always)]
fn mask_groups(plan: &Plan, keys: &mut [u32], groups: &mut [u64], order: &mut [u64]) {
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
        // Of equal keys, the lower index has the larger number.
        *group = u64::from(key) << 32 | u64::from(!(index as u32));
    }
    let least = nth_largest(groups, plan.params.topk_groups, order);
    let masked = match plan.params.masked {
        Masked::Zero => exact::sort_key(0.0),
        Masked::Excluded => 0,
        other => unknown(other),
    };
    for (group, keys) in groups.iter().zip(keys.chunks_mut(size)) {
        if *group < least {
            keys.fill(masked);
        }
    }
}

/// The `n`-th largest of distinct values, counted from 1. `order` has room for all values.
#[inline(always)]
fn nth_largest(values: &[u64], n: usize, order: &mut [u64]) -> u64 {
    if values.len() <= 16 {
        let larger = |value: u64| values.iter().filter(|&&other| other > value).count();
        return values.iter().copied().find(|&value| larger(value) == n - 1).unwrap_or(0);
    }
    let order = &mut order[..values.len()];
    order.copy_from_slice(values);
    *order.select_nth_unstable_by(n - 1, |a, b| b.cmp(a)).1
}

/// The indices of the largest keys, descending, the lower index first among equal keys. Key 0 is
/// below the key of every choice and marks an excluded expert.
///
/// The keys are distributed over at least `topk` lanes. The `topk`-th largest of the lanes' maxima
/// is a lower bound of the `topk`-th largest key. Usually only a few more than `topk` keys reach
/// the bound, and only these are sorted.
#[inline(always)]
fn pick(experts: usize, keys: &mut [u32], candidates: &mut [u64], picks: &mut [u32]) {
    let padded = experts.next_multiple_of(MANY_LANES);
    keys[experts..padded].fill(0);
    let least = if picks.len() <= FEW_LANES / 2 {
        lane_bound::<FEW_LANES>(&keys[..padded], picks.len())
    } else {
        lane_bound::<MANY_LANES>(&keys[..padded], picks.len())
    };
    let mut count = 0;
    for (index, &key) in keys[..experts].iter().enumerate() {
        // Of equal keys, the lower index has the larger number.
        candidates[count] = u64::from(key) << 32 | u64::from(!(index as u32));
        count += usize::from(key >= least);
    }
    let mut candidates = &mut candidates[..count];
    if count > MANY_LANES {
        candidates.select_nth_unstable_by(picks.len() - 1, |a, b| b.cmp(a));
        candidates = &mut candidates[..picks.len()];
    }
    candidates.sort_unstable_by(|a, b| b.cmp(a));
    for (pick, &candidate) in picks.iter_mut().zip(candidates.iter()) {
        *pick = !(candidate as u32);
    }
}

/// The `n`-th largest of the lanes' maxima, counted from 1.
#[inline(always)]
fn lane_bound<const LANES: usize>(keys: &[u32], n: usize) -> u32 {
    let mut lanes = [0; LANES];
    for keys in keys.as_chunks::<LANES>().0 {
        for (lane, &key) in lanes.iter_mut().zip(keys) {
            *lane = (*lane).max(key);
        }
    }
    // The n-th largest is the smallest lane that fewer than n lanes exceed.
    let mut bound = u32::MAX;
    for &lane in &lanes {
        let larger: u32 = lanes.iter().map(|&other| u32::from(other > lane)).sum();
        bound = bound.min(if (larger as usize) < n { lane } else { u32::MAX });
    }
    bound
}

fn weigh(plan: &Plan, scores: &[f32], weights: &mut [f32], picks: &[u32]) {
    for (weight, &expert) in weights.iter_mut().zip(picks) {
        *weight = if expert == NO_EXPERT { 0.0 } else { scores[expert as usize] };
    }
    let renormalize = plan.params.renormalize;
    let divisor = if renormalize { weights.iter().sum::<f32>() + 1e-20 } else { 1.0 };
    for (weight, &expert) in weights.iter_mut().zip(picks) {
        if expert == NO_EXPERT {
            continue;
        }
        // The division comes first: its quotient is at most 1, while a score times a large
        // scale could overflow.
        *weight = plan.params.scale * (*weight / divisor);
    }
}

/// The choice that a sort key stands for.
#[inline(always)]
fn choice(key: u32) -> f32 {
    f32::from_bits(if key >> 31 == 1 { key & 0x7FFF_FFFF } else { !key })
}
