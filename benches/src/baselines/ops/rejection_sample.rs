//! Designs of `rejection_sample`.
//!
//! The write-up starts with one thread per request and ends with one block per request,
//! both for f32 probabilities, given uniform samples, and argmax recovery.

use spec_core::ops::RejectionSample;
use spec_core::ops::rejection_sample::{Acceptance, Buffers, Plan, Recovery};
use spec_core::{DType, Kernel, Result, Stream, ViewMut};
use spec_cuda::Cuda;
use spec_cuda::kernel::{Archive, Function, Integers, Rows, Shape};

use crate::baselines::{Design, Designs, Role, uncovered};

static KERNELS: Archive = archive!("rejection_sample");

impl Designs for RejectionSample {
    fn on_cuda(cuda: &Cuda) -> Vec<Design<Self>> {
        vec![
            Design::new("thread per request", Role::Baseline, cuda, thread),
            Design::new("block per request, warp reductions", Role::Seed, cuda, block),
        ]
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    target: Rows,
    draft: Rows,
    draft_ids: Integers,
    bonus_ids: Integers,
    offsets: Integers,
    uniform: u64,
    output: Rows,
    emitted: u64,
    accepted: u64,
    recovered: u64,
    bonus: u64,
    flags: u64,
    tokens: u64,
    batch: u32,
    vocab: u32,
    max_spec_len: u32,
    reserved: u32,
}
const _: () = assert!(size_of::<Params>() == 168);

struct Prepared {
    cuda: Cuda,
    plan: Plan,
    function: Function,
    shape: Shape,
}

/// Threads of a block in the design with one thread per request: few, so that the blocks spread
/// over the device.
const THREAD_THREADS: u32 = 32;
/// Threads of a block in the design with one block per request.
const BLOCK_THREADS: u32 = 1024;

fn thread(cuda: &Cuda, plan: &Plan) -> Result<Box<dyn Kernel<RejectionSample>>> {
    prepare(cuda, plan, "rejection_sample_thread", |batch| {
        Shape::new(batch.div_ceil(THREAD_THREADS), THREAD_THREADS)
    })
}

fn block(cuda: &Cuda, plan: &Plan) -> Result<Box<dyn Kernel<RejectionSample>>> {
    prepare(cuda, plan, "rejection_sample_block", |batch| Shape::new(batch, BLOCK_THREADS))
}

fn prepare(
    cuda: &Cuda,
    plan: &Plan,
    name: &str,
    shape: impl Fn(u32) -> Shape,
) -> Result<Box<dyn Kernel<RejectionSample>>> {
    let params = &plan.params;
    if params.acceptance == Acceptance::Greedy || params.recovery == Recovery::Sample {
        return Err(uncovered(cuda, "other than probabilistic acceptance and argmax recovery"));
    }
    if plan.target.dtype != DType::F32 {
        return Err(uncovered(cuda, format!("probabilities of {}", plan.target.dtype)));
    }
    if !plan.has_uniform_samples {
        return Err(uncovered(cuda, "draws that are not given"));
    }
    if plan.greedy.is_some() {
        return Err(uncovered(cuda, "batches of which some requests are greedy"));
    }
    if !plan.has_leading_zero() || plan.output.dtype != DType::I32 {
        return Err(uncovered(cuda, "offsets without a leading 0 and outputs other than i32"));
    }
    let Some(batch) = u32::try_from(plan.batch).ok().filter(|&batch| batch < 1 << 31) else {
        return Err(uncovered(cuda, format!("{} requests", plan.batch)));
    };
    let function = cuda.function(&KERNELS, name)?;
    let (cuda, plan) = (cuda.clone(), plan.clone());
    Ok(Box::new(Prepared { cuda, plan, function, shape: shape(batch) }))
}

// SAFETY: as above.
unsafe impl Kernel<RejectionSample> for Prepared {
    fn workspace_size(&self) -> usize {
        0
    }

    unsafe fn launch(
        &self,
        _: ViewMut<'_>,
        buffers: Buffers<'_>,
        stream: Stream<'_>,
    ) -> Result<()> {
        let Prepared { cuda, plan, .. } = self;
        let draft = match (buffers.draft_probs, &plan.draft) {
            (Some(view), Some(matrix)) => cuda.rows(view, matrix)?,
            _ => Rows { data: 0, stride: 0 },
        };
        let params = Params {
            target: cuda.rows(buffers.target_probs, &plan.target)?,
            draft,
            draft_ids: cuda.integers(buffers.draft_token_ids, plan.draft_token_ids.dtype)?,
            bonus_ids: cuda.integers(buffers.bonus_token_ids, plan.bonus_token_ids.dtype)?,
            offsets: cuda.integers(buffers.cu_num_draft, plan.cu_num_draft.dtype)?,
            uniform: cuda.pointer(buffers.uniform_samples)?,
            output: cuda.rows(buffers.output_token_ids, &plan.output)?,
            emitted: cuda.pointer(buffers.num_accepted)?,
            accepted: cuda.pointer(buffers.accepted_counts)?,
            recovered: cuda.pointer(buffers.recovered_counts)?,
            bonus: cuda.pointer(buffers.bonus_counts)?,
            flags: cuda.pointer(buffers.flags)?,
            tokens: plan.tokens() as u64,
            batch: plan.batch as u32,
            vocab: plan.vocab() as u32,
            max_spec_len: plan.params.max_spec_len as u32,
            reserved: 0,
        };
        // SAFETY: `Params` is the kernels', field by field; the buffers were
        // checked against the plan, and the kernels check offsets and tokens,
        // which are data, against the plan's sizes.
        cuda.enqueue(stream, |queue| unsafe { queue.launch(&self.function, self.shape, &params) })
    }
}
