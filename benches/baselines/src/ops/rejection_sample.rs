//! Designs of `rejection_sample`.

use spec_core::Result;
use spec_core::ops::RejectionSample;
use spec_core::ops::rejection_sample::{Buffers, Plan};
use spec_cpu::Cpu;
use spec_cuda::Cuda;

use crate::host::{floats, ints, raise, slice, slice_mut, unpack};
use crate::plain::Verification;
use crate::{Design, Designs, plain};

impl Designs for RejectionSample {
    fn on_cuda(_: &Cuda) -> Vec<Design<Self>> {
        Vec::new()
    }

    fn on_cpu(cpu: &Cpu) -> Vec<Design<Self>> {
        vec![Design::function("plain loop", cpu, run)]
    }
}

fn run(plan: &Plan, buffers: Buffers<'_>) -> Result<()> {
    let target = floats(buffers.target_probs, &plan.target)?;
    let draft = match (buffers.draft_probs, &plan.draft) {
        (Some(view), Some(matrix)) => Some(floats(view, matrix)?),
        _ => None,
    };
    let random = buffers.seed_offset.map(slice::<u64>).transpose()?.unwrap_or(&[0, 0]);
    let verified = plain::rejection_sample(&Verification {
        params: &plan.params,
        vocab: plan.vocab(),
        target: &target,
        draft: draft.as_deref(),
        ids: &ints(buffers.draft_token_ids)?,
        bonus: &ints(buffers.bonus_token_ids)?,
        offsets: &ints(buffers.cu_num_draft)?,
        uniform: buffers.uniform_samples.map(slice::<f32>).transpose()?,
        seed: random[0],
        offset: random[1],
    });
    unpack(slice_mut(buffers.output_token_ids)?, &plan.output, &verified.output);
    slice_mut(buffers.num_accepted)?.copy_from_slice(&verified.emitted);
    slice_mut(buffers.accepted_counts)?.copy_from_slice(&verified.accepted);
    slice_mut(buffers.recovered_counts)?.copy_from_slice(&verified.recovered);
    slice_mut(buffers.bonus_counts)?.copy_from_slice(&verified.bonus);
    raise(buffers.flags, verified.flags)
}
