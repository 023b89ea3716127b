//! Routing on the CPU: tokens in parallel, each row in vectors.
//!
//! A row's scores and sort keys are computed over whole vectors. The `topk`
//! picks then look at one maximum per chunk of 32 keys, not at all keys again.

use std::sync::atomic::{AtomicBool, Ordering};

use rayon::prelude::*;
use spec_core::ops::TopkRouter;
use spec_core::ops::topk_router::{Buffers, GroupScore, MAX_EXPERTS, Masked, Plan, Scoring};
use spec_core::{Kernel, Result, Stream, Supports, ViewMut, exact, flags};

use super::by_float;
use crate::simd::{self, BLOCK, Block, Float};
use crate::slices::{Rows, raise, rows_mut, slice, slice_mut};
use crate::{Cpu, check_stream};

/// Keys whose maximum is kept together.
const CHUNK: usize = 32;
const CHUNKS: usize = MAX_EXPERTS / CHUNK;
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
    maxima: [u32; CHUNKS],
    groups: [u64; MAX_EXPERTS],
}

impl Default for Scratch {
    fn default() -> Self {
        Scratch {
            block: [0.0; BLOCK],
            scores: [0.0; MAX_EXPERTS],
            keys: [0; MAX_EXPERTS],
            maxima: [0; CHUNKS],
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
        let experts = x.len();
        let logits = T::widen(x, &mut self.block);
        let scores = &mut self.scores[..experts];
        match plan.params.scoring {
            Scoring::Sigmoid => simd::sigmoid(logits, scores),
            Scoring::Softmax => simd::softmax(logits, scores),
        }
        simd::choice_keys(logits, scores, bias, &mut self.keys[..experts]);
        let non_finite = simd::any_non_finite(logits);
        if plan.params.groups > 1 {
            self.mask_groups(plan);
        }
        self.pick(experts, indices);
        self.weigh(plan, weights, indices);
        non_finite
    }

    fn mask_groups(&mut self, plan: &Plan) {
        let (count, size) = (plan.params.groups, plan.group_size());
        let keys = &mut self.keys[..count * size];
        let groups = &mut self.groups[..count];
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
        let kept = plan.params.topk_groups;
        let mut order = [0; MAX_EXPERTS];
        let order = &mut order[..count];
        order.copy_from_slice(groups);
        let (_, &mut least, _) = order.select_nth_unstable_by(kept - 1, |a, b| b.cmp(a));
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

    /// The largest keys, descending, the lower index first among equals. Key 0
    /// is below every choice and marks what is taken or excluded.
    fn pick(&mut self, experts: usize, indices: &mut [i32]) {
        let padded = experts.next_multiple_of(CHUNK);
        self.keys[experts..padded].fill(0);
        let (chunks, _) = self.keys[..padded].as_chunks_mut::<CHUNK>();
        let maxima = &mut self.maxima[..chunks.len()];
        for (max, chunk) in maxima.iter_mut().zip(chunks.iter()) {
            *max = simd::max_key(chunk);
        }
        for index in indices {
            let best = simd::max_key(maxima);
            let at = maxima.iter().position(|&max| max == best).unwrap_or(0);
            let chunk = &mut chunks[at];
            let lane = chunk.iter().position(|&key| key == best).unwrap_or(0);
            *index = (at * CHUNK + lane) as i32;
            chunk[lane] = 0;
            maxima[at] = simd::max_key(chunk);
        }
    }

    fn weigh(&self, plan: &Plan, weights: &mut [f32], indices: &[i32]) {
        for (weight, &index) in weights.iter_mut().zip(indices) {
            *weight = self.scores[index as usize];
        }
        let mut factor = plan.params.scale;
        if plan.params.renormalize {
            factor /= weights.iter().sum::<f32>() + 1e-20;
        }
        for weight in weights {
            *weight *= factor;
        }
    }
}

/// The choice that a sort key stands for.
fn choice(key: u32) -> f32 {
    f32::from_bits(if key >> 31 == 1 { key & 0x7FFF_FFFF } else { !key })
}
