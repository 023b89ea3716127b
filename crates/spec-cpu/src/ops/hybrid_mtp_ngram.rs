//! `hybrid_mtp_ngram` on the CPU: the search of [`ngram`](super::ngram) adds drafts behind those
//! of a multi-token prediction head.

use spec_core::flags::BAD_LENGTHS;
use spec_core::ngram::{Haystacks, draft_limit};
use spec_core::ops::HybridMtpNgram;
use spec_core::ops::hybrid_mtp_ngram::{Buffers, Plan};
use spec_core::{Kernel, Result, Route, Supports, ViewMut};

use super::ngram::{Budgeted, Drafting, Request, Token, counts, in_turns, ints, workspace_bytes};
use super::{by_int, kernel};
use crate::Cpu;
use crate::slices::{raise, slice_mut};

// SAFETY: `launch` works on checked slices of the workspace and the buffers.
unsafe impl Supports<HybridMtpNgram> for Cpu {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<HybridMtpNgram>>> {
        // SAFETY: as for the `impl`.
        Ok(unsafe {
            kernel::<HybridMtpNgram, _>(plan.clone(), workspace_bytes(&plan.rows), launch, loops)
        })
    }
}

fn loops(plan: &Plan, route: &mut Route) {
    route.push("hybrid_mtp_ngram", in_turns(plan.rows.batch));
}

fn launch(plan: &Plan, workspace: ViewMut<'_>, buffers: Buffers<'_>) -> Result<()> {
    by_int!(plan.rows.input_ids.dtype, run(plan, workspace, buffers))
}

fn run<T: Token>(plan: &Plan, workspace: ViewMut<'_>, buffers: Buffers<'_>) -> Result<()> {
    let [prompt, steps, max_dec] =
        ints([buffers.input_ids_len, buffers.step_idx, buffers.max_dec_len])?;
    let decoder = counts(buffers.seq_lens_decoder)?;
    let batch = plan.rows.batch;
    let this_time = &mut slice_mut::<i32>(buffers.seq_lens_this_time)?[..batch];
    let left = decoder[..batch].iter().filter(|&&length| length > 0).count() as i64;
    let negative = (0..batch).any(|i| decoder[i].min(this_time[i]) < 0);
    let drafting = Drafting {
        shapes: &plan.rows,
        max_ngram: plan.params.max_ngram_size,
        min_ngram: plan.params.min_ngram_size,
        threshold: i64::from(plan.params.token_threshold),
        input_ids: buffers.input_ids,
        generated: buffers.pre_ids,
        draft_tokens: buffers.draft_tokens,
    };
    // The haystacks of a request, and how many more tokens it may draft; `have` is its
    // `seq_lens_this_time`.
    let limit = |index: usize, have: i32| {
        let haystacks = Haystacks::new(
            plan.rows.input_ids.cols,
            prompt.get(index),
            plan.rows.generated.cols,
            0,
            steps.get(index),
        );
        let own = plan.params.max_draft_tokens as i64 - i64::from(have) + 1;
        (haystacks, draft_limit(own, max_dec.get(index), haystacks.step))
    };
    let request = |index: usize, have: i32| {
        if have <= 0 {
            return (None, 0);
        }
        let (haystacks, limit) = limit(index, have);
        let request = Request { haystacks, limit, slot: have as usize };
        ((limit > 0).then_some(request), haystacks.flags)
    };
    let budget = |index: usize, have: i32| Budgeted {
        base: have,
        used: i64::from(have.max(0)),
        leaves: have > 0 && limit(index, have).1 > 0,
    };
    let flags = drafting.run::<T>(workspace, this_time, left, request, budget)?;
    raise(buffers.flags, flags | if negative { BAD_LENGTHS } else { 0 })
}
