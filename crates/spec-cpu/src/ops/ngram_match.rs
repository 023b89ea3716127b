//! `ngram_match` on the CPU: the search of [`ngram`](super::ngram), with FastDeploy's rules for
//! the token budget.

use spec_core::flags::BAD_LENGTHS;
use spec_core::ngram::{Haystacks, draft_limit};
use spec_core::ops::NgramMatch;
use spec_core::ops::ngram_match::{Buffers, Plan};
use spec_core::{Kernel, Result, Route, Supports, ViewMut};

use super::ngram::{Budgeted, Drafting, Request, Token, counts, in_turns, ints, workspace_bytes};
use super::{by_int, kernel};
use crate::Cpu;
use crate::slices::{raise, slice_mut};

// SAFETY: `launch` works on checked slices of the workspace and the buffers.
unsafe impl Supports<NgramMatch> for Cpu {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<NgramMatch>>> {
        // SAFETY: as for the `impl`.
        Ok(unsafe {
            kernel::<NgramMatch, _>(plan.clone(), workspace_bytes(&plan.rows), launch, loops)
        })
    }
}

fn loops(plan: &Plan, route: &mut Route) {
    route.push("ngram_match", in_turns(plan.rows.batch));
}

fn launch(plan: &Plan, workspace: ViewMut<'_>, buffers: Buffers<'_>) -> Result<()> {
    by_int!(plan.rows.input_ids.dtype, run(plan, workspace, buffers))
}

/// The phase of a request.
enum Phase {
    /// The request's prompt is being encoded: the request has no drafts.
    Encoding,
    /// The request decodes one token in this step, and drafts.
    Decoding,
    /// The slot has no request, and no tokens in this step.
    Idle,
}

fn run<T: Token>(plan: &Plan, workspace: ViewMut<'_>, buffers: Buffers<'_>) -> Result<()> {
    let [prompt, starts, steps, max_dec] =
        ints([buffers.input_ids_len, buffers.prompt_lens, buffers.step_idx, buffers.max_dec_len])?;
    let draft_token_num = counts(buffers.draft_token_num)?;
    let (encoder, decoder) = (counts(buffers.seq_lens_encoder)?, counts(buffers.seq_lens_decoder)?);
    let this_time = slice_mut::<i32>(buffers.seq_lens_this_time)?;
    let batch = plan.rows.batch;
    let phase = |index: usize| match (encoder[index], decoder[index]) {
        (1.., _) => Phase::Encoding,
        (_, 1..) => Phase::Decoding,
        _ => Phase::Idle,
    };
    let left = (0..batch).filter(|&index| !matches!(phase(index), Phase::Idle)).count() as i64;
    let negative = (0..batch).any(|i| encoder[i].min(decoder[i]).min(this_time[i]) < 0);
    let drafting = Drafting {
        shapes: &plan.rows,
        max_ngram: plan.params.max_ngram_size,
        min_ngram: 1,
        threshold: i64::from(plan.params.token_threshold),
        input_ids: buffers.input_ids,
        generated: buffers.token_ids_all,
        draft_tokens: buffers.draft_tokens,
    };
    let request = |index: usize, _: i32| {
        if !matches!(phase(index), Phase::Decoding) {
            return (None, 0);
        }
        let haystacks = Haystacks::new(
            plan.rows.input_ids.cols,
            prompt.get(index),
            plan.rows.generated.cols,
            starts.get(index),
            steps.get(index),
        );
        let limit = i64::from(draft_token_num[index]);
        let limit = draft_limit(limit, max_dec.get(index), haystacks.step);
        (Some(Request { haystacks, limit, slot: 1 }), haystacks.flags)
    };
    let budget = |index: usize, now: i32| match phase(index) {
        Phase::Encoding => Budgeted { base: now, used: i64::from(now.max(0)), leaves: false },
        Phase::Decoding => Budgeted { base: 1, used: 1, leaves: true },
        Phase::Idle => Budgeted { base: 0, used: 0, leaves: false },
    };
    let flags = drafting.run::<T>(workspace, &mut this_time[..batch], left, request, budget)?;
    raise(buffers.flags, flags | if negative { BAD_LENGTHS } else { 0 })
}
