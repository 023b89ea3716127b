//! Host side of `kernels/topk_router.cu`.

use spec_core::ops::TopkRouter;
use spec_core::ops::topk_router::{Buffers, GroupScore, Masked, Plan, Scoring};
use spec_core::{Kernel, Result, Stream, Supports, ViewMut};

use crate::Cuda;
use crate::archive::{Archive, archive};
use crate::args::Rows;
use crate::launch::{Function, Shape};

static KERNELS: Archive = archive!("topk_router");

const WARP: usize = 32;
/// Threads of a block, and blocks a multiprocessor, for any shape: a warp a
/// token, the rest of the tokens in turn.
const ANY: (u32, u32) = (128, 8);
/// The same where there is a quick route. At 65536 tokens of 256 experts on an
/// H100, f32: 48.7 us with 3 blocks a multiprocessor, 45.1 with 4, 45.2 with 5.
const QUICK: (u32, u32) = (256, 4);
/// Experts of the quick routes.
const QUICK_EXPERTS: [usize; 4] = [128, 256, 384, 512];
/// The quick route reads 16 bytes at a time.
const ALIGNMENT: u64 = 16;

#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    x: Rows,
    bias: u64,
    weights: Rows,
    indices: Rows,
    flags: u64,
    tokens: u64,
    experts: u32,
    groups: u32,
    topk_groups: u32,
    topk: u32,
    softmax: u32,
    group_max: u32,
    excluded: u32,
    renormalize: u32,
    scale: f32,
    reserved: u32,
}
const _: () = assert!(size_of::<Params>() == 112);

struct Prepared {
    cuda: Cuda,
    plan: Plan,
    any: (Function, Shape),
    /// For rows that are aligned.
    quick: Option<(Function, Shape)>,
}

/// Whether the quick route takes such a plan, given that `x` is aligned: the
/// kernel relies on every condition.
fn has_quick_route(plan: &Plan) -> bool {
    let params = &plan.params;
    // Strides in bytes and tokens are 32 bits wide there.
    let narrow = |stride: usize, size: usize| stride.saturating_mul(size) < 1 << 32;
    let size = plan.x.dtype.size();
    QUICK_EXPERTS.contains(&plan.experts())
        && WARP.is_multiple_of(params.groups)
        && params.topk <= plan.group_size() * params.topk_groups
        && !(params.scoring == Scoring::Softmax && plan.has_bias)
        && (plan.x.row_stride * size).is_multiple_of(ALIGNMENT as usize)
        && plan.tokens() < 1 << 31
        && narrow(plan.x.row_stride, size)
        && narrow(plan.weights.row_stride, 4)
        && narrow(plan.indices.row_stride, 4)
}

impl Supports<TopkRouter> for Cuda {
    fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<TopkRouter>>> {
        let dtype = plan.x.dtype.name();
        let shape = |(threads, blocks): (u32, u32)| {
            let tokens_a_block = threads as usize / WARP;
            let most = (self.limits().multiprocessors * blocks) as usize;
            Shape::new(plan.tokens().div_ceil(tokens_a_block).min(most) as u32, threads)
        };
        let experts = plan.experts().next_power_of_two().max(256);
        let any = self.function(&KERNELS, &format!("topk_router_any_{experts}_{dtype}"))?;
        let quick = if has_quick_route(plan) {
            let scoring = match plan.params.scoring {
                Scoring::Sigmoid => "sigmoid",
                Scoring::Softmax => "softmax",
            };
            let name = format!("topk_router_{scoring}_{}_{dtype}", plan.experts());
            Some((self.function(&KERNELS, &name)?, shape(QUICK)))
        } else {
            None
        };
        let any = (any, shape(ANY));
        Ok(Box::new(Prepared { cuda: self.clone(), plan: plan.clone(), any, quick }))
    }
}

impl Kernel<TopkRouter> for Prepared {
    fn workspace_size(&self) -> usize {
        0
    }

    fn launch(&self, _: ViewMut<'_>, buffers: Buffers<'_>, stream: Stream<'_>) -> Result<()> {
        let Prepared { cuda, plan, any, quick } = self;
        let options = &plan.params;
        let params = Params {
            x: cuda.rows(buffers.x, &plan.x)?,
            bias: cuda.pointer(buffers.bias)?,
            weights: cuda.rows(buffers.weights, &plan.weights)?,
            indices: cuda.rows(buffers.indices, &plan.indices)?,
            flags: cuda.pointer(buffers.flags)?,
            tokens: plan.tokens() as u64,
            experts: plan.experts() as u32,
            groups: options.groups as u32,
            topk_groups: options.topk_groups as u32,
            topk: options.topk as u32,
            softmax: u32::from(options.scoring == Scoring::Softmax),
            group_max: u32::from(options.group_score == GroupScore::Max),
            excluded: u32::from(options.masked == Masked::Excluded),
            renormalize: u32::from(options.renormalize),
            scale: options.scale,
            reserved: 0,
        };
        let aligned = params.x.data.is_multiple_of(ALIGNMENT);
        let (function, shape) = quick.as_ref().filter(|_| aligned).unwrap_or(any);
        // SAFETY: `Params` is the kernel's, field by field; the buffers were
        // checked against the plan, which bounds every index the kernel makes.
        unsafe { cuda.queue(stream)?.launch(function, *shape, &params) }
    }
}
