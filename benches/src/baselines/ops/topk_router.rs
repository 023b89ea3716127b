//! Designs of `topk_router`.
//!
//! The design is InfiniOp's `topkrouter`: one block per token sorts the scores, first by
//! warp and then by block. The kernel only supports 256 experts, 4 kept groups of 8, and
//! at most 8 picks.

use spec_core::ops::TopkRouter;
use spec_core::ops::topk_router::{Buffers, GroupScore, Masked, Plan, Scoring, Select};
use spec_core::{DType, Kernel, Result, Stream, ViewMut};
use spec_cuda::Cuda;
use spec_cuda::kernel::{Archive, Function, Rows, Shape};

use crate::baselines::{Design, Designs, Role, uncovered};

static KERNELS: Archive = archive!("topk_router");

impl Designs for TopkRouter {
    fn on_cuda(cuda: &Cuda) -> Vec<Design<Self>> {
        let name = "block per token, warp sorts, block radix sort";
        vec![Design::new(name, Role::Seed, cuda, prepare)]
    }
}

const THREADS: u32 = 256;

#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    x: Rows,
    bias: u64,
    weights: Rows,
    indices: Rows,
    flags: u64,
    topk: u32,
    scale: f32,
}
const _: () = assert!(size_of::<Params>() == 72);

struct Prepared {
    cuda: Cuda,
    plan: Plan,
    function: Function,
    shape: Shape,
}

fn prepare(cuda: &Cuda, plan: &Plan) -> Result<Box<dyn Kernel<TopkRouter>>> {
    let made_for = TopkRouter::new(plan.params.topk)
        .scoring(Scoring::Sigmoid)
        .select(Select::Score)
        .groups(8)
        .topk_groups(4)
        .group_score(GroupScore::Top2Sum)
        .masked(Masked::Zero)
        .renormalize(true)
        .scale(plan.params.scale)
        .shared_experts(0)
        .shared_weight(plan.params.shared_weight)
        .physical_experts(None);
    let plain = plan.indices.dtype != DType::I64
        && plan.bias.is_none_or(|bias| bias == DType::F32)
        && !plan.has_num_tokens
        && !plan.has_load;
    if !plain
        || plan.experts() != THREADS as usize
        || plan.params != made_for
        || plan.params.topk > 8
    {
        let words = "a router of other than 256 experts, sigmoid, 4 of 8 groups by their two \
                     largest, at most 8 picks with weights that add up";
        return Err(uncovered(cuda, words));
    }
    let Some(blocks) = u32::try_from(plan.tokens()).ok().filter(|&blocks| blocks < 1 << 31) else {
        return Err(uncovered(cuda, format!("{} tokens", plan.tokens())));
    };
    let function = cuda.function(&KERNELS, &format!("topk_router_{}", plan.x.dtype.name()))?;
    let (cuda, plan) = (cuda.clone(), plan.clone());
    Ok(Box::new(Prepared { cuda, plan, function, shape: Shape::new(blocks, THREADS) }))
}

// SAFETY: as above.
unsafe impl Kernel<TopkRouter> for Prepared {
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
        let params = Params {
            x: cuda.rows(buffers.x, &plan.x)?,
            bias: cuda.pointer(buffers.bias)?,
            weights: cuda.rows(buffers.weights, &plan.weights)?,
            indices: cuda.rows(buffers.indices, &plan.indices)?,
            flags: cuda.pointer(buffers.flags)?,
            topk: plan.params.topk as u32,
            scale: plan.params.scale,
        };
        // SAFETY: `Params` is the kernel's, field by field; the buffers were
        // checked against the plan, whose tokens are the blocks and whose experts
        // the threads.
        cuda.enqueue(stream, |queue| unsafe { queue.launch(&self.function, self.shape, &params) })
    }
}
