//! Host side of `kernels/topk_router.cu`.

use spec_core::ops::TopkRouter;
use spec_core::ops::topk_router::{Buffers, GroupScore, Masked, Plan, Scoring, Select};
use spec_core::{DType, Kernel, Result, Stream, Supports, ViewMut};

use crate::Cuda;
use crate::archive::{Archive, archive};
use crate::args::Rows;
use crate::launch::{Function, Shape};

static KERNELS: Archive = archive!("topk_router");

const WARP: usize = 32;
/// Most threads of a block, and blocks a multiprocessor, for any shape: a warp a
/// token, the rest of the tokens in turn.
const ANY: (u32, u32) = (128, 8);
/// Shared memory that a block has without asking for more.
const SHARED: usize = 48 << 10;
/// The same where there is a quick route. At 65536 tokens of 256 experts on an
/// H100, f32: 48.7 us with 3 blocks a multiprocessor, 45.1 with 4, 45.2 with 5.
const QUICK: (u32, u32) = (256, 4);
/// Experts of the quick routes, plain and with every option.
fn quick_experts(scoring: Scoring, extended: bool) -> &'static [usize] {
    match (scoring, extended) {
        (Scoring::Sigmoid | Scoring::Softmax, false) => &[128, 256, 384, 512],
        (Scoring::Sigmoid, true) => &[128, 256, 384],
        (Scoring::Softmax, true) => &[128, 512],
        (Scoring::SqrtSoftplus, _) => &[256, 384],
    }
}
/// The most picks of a quick route: a lane holds one.
const QUICK_TOPK: usize = WARP;
/// The quick route reads 16 bytes at a time.
const ALIGNMENT: u64 = 16;
/// Lanes of a token of the grouped route, and blocks a multiprocessor, where tokens are few
/// and where they are many.
const FEW: (usize, u32) = (32, 4);
const MANY: (usize, u32) = (8, 5);
const GROUPED_THREADS: u32 = 128;
/// Tokens that `FEW` is the faster for. On an H200, f32: 1024 tokens 2.76 us, 2.82 with `MANY`;
/// 2048 tokens 3.31 us, 2.86.
const FEW_TOKENS: usize = 1024;

/// What every kernel takes.
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
    scoring: u32,
    group_max: u32,
    excluded: u32,
    renormalize: u32,
    scale: f32,
    reserved: u32,
}
const _: () = assert!(size_of::<Params>() == 112);

/// What the kernels take besides that know every option.
#[repr(C)]
#[derive(Clone, Copy)]
struct Options {
    num_tokens: u64,
    replicas: Rows,
    replica_counts: u64,
    load: u64,
    bias_type: u32,
    wide_indices: u32,
    shared_experts: u32,
    shared_weight: f32,
    physical: u32,
    most: u32,
    by_logit: u32,
    chunk: u32,
    words: u32,
    reserved: u32,
}
const _: () = assert!(size_of::<Options>() == 80);

#[repr(C)]
#[derive(Clone, Copy)]
struct Extended {
    common: Params,
    options: Options,
}

/// A kernel that was made for a plan.
struct Launch {
    function: Function,
    shape: Shape,
    /// Whether it takes [`Extended`].
    extended: bool,
}

struct Prepared {
    cuda: Cuda,
    plan: Plan,
    any: Launch,
    /// For rows that are aligned.
    quick: Option<Launch>,
}

/// Whether a plan has options that the plain kernels know nothing of.
fn is_extended(plan: &Plan) -> bool {
    plan.params.scoring == Scoring::SqrtSoftplus
        || plan.bias.is_some_and(|bias| bias != DType::F32)
        || plan.indices.dtype == DType::I64
        || plan.params.shared_experts > 0
        || plan.has_num_tokens
        || plan.replicas.is_some()
        || plan.has_load
}

/// Whether the quick route takes such a plan, given that `x` is aligned: the
/// kernel relies on every condition.
fn has_quick_route(plan: &Plan) -> bool {
    let params = &plan.params;
    // Strides in bytes and tokens are 32 bits wide there.
    let narrow = |stride: usize, size: usize| stride.saturating_mul(size) < 1 << 32;
    let size = plan.x.dtype.size();
    quick_experts(params.scoring, is_extended(plan)).contains(&plan.experts())
        && params.select == Select::Score
        && WARP.is_multiple_of(params.groups)
        && params.topk <= QUICK_TOPK.min(plan.group_size() * params.topk_groups)
        && !(params.scoring == Scoring::Softmax && plan.bias.is_some())
        && (plan.x.row_stride * size).is_multiple_of(ALIGNMENT as usize)
        && plan.tokens() < 1 << 31
        && narrow(plan.x.row_stride, size)
        && narrow(plan.weights.row_stride, 4)
        && narrow(plan.indices.row_stride, 4)
}

/// Whether the grouped route takes a plan with a quick route: the kernel knows these numbers.
fn has_grouped_route(plan: &Plan) -> bool {
    let params = &plan.params;
    !is_extended(plan)
        && params.scoring == Scoring::Sigmoid
        && (plan.experts(), params.groups, params.topk_groups, params.topk) == (256, 8, 4, 8)
}

/// Neighbouring experts that a lane of the kernel for any shape heads.
fn chunk(plan: &Plan) -> usize {
    plan.experts().div_ceil(WARP)
}

/// Words of shared memory of its warps: a key for each of 32 chunks, then one for each
/// group where some are masked.
fn words(plan: &Plan) -> usize {
    let Plan { params, .. } = plan;
    let groups = if params.topk_groups < params.groups { params.groups } else { 0 };
    chunk(plan) * WARP + groups
}

// SAFETY: the kernel keeps within what the plan describes, whatever the data.
unsafe impl Supports<TopkRouter> for Cuda {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<TopkRouter>>> {
        let dtype = plan.x.dtype.name();
        // Without a row there may still be a `num_tokens` to flag.
        let least = usize::from(plan.has_num_tokens);
        let shape = |(threads, blocks): (u32, u32), lanes: usize| {
            let tokens_a_block = threads as usize / lanes;
            let most = (self.limits().multiprocessors * blocks) as usize;
            let wanted = plan.tokens().div_ceil(tokens_a_block).clamp(least, most);
            Shape::new(wanted as u32, threads)
        };
        let bytes = words(plan) * 4;
        let warps = (SHARED / bytes).min(ANY.0 as usize / WARP);
        let any = Launch {
            function: self.function(&KERNELS, &format!("topk_router_any_{dtype}"))?,
            shape: shape(((warps * WARP) as u32, ANY.1), WARP).shared((warps * bytes) as u32),
            extended: true,
        };
        let quick = if !has_quick_route(plan) {
            None
        } else if has_grouped_route(plan) {
            let (lanes, blocks) = if plan.tokens() <= FEW_TOKENS { FEW } else { MANY };
            let function =
                self.function(&KERNELS, &format!("topk_router_grouped_{lanes}_{dtype}"))?;
            Some(Launch {
                function,
                shape: shape((GROUPED_THREADS, blocks), lanes),
                extended: false,
            })
        } else {
            let scoring = match plan.params.scoring {
                Scoring::Sigmoid => "sigmoid",
                Scoring::Softmax => "softmax",
                Scoring::SqrtSoftplus => "sqrt_softplus",
            };
            let extended = is_extended(plan);
            let kind = if extended { "extended_" } else { "" };
            let name = format!("topk_router_{scoring}_{}_{kind}{dtype}", plan.experts());
            let function = self.function(&KERNELS, &name)?;
            Some(Launch { function, shape: shape(QUICK, WARP), extended })
        };
        Ok(Box::new(Prepared { cuda: self.clone(), plan: plan.clone(), any, quick }))
    }
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
        let Prepared { cuda, plan, any, quick } = self;
        let given = &plan.params;
        let common = Params {
            x: cuda.rows(buffers.x, &plan.x)?,
            bias: cuda.pointer(buffers.bias)?,
            weights: cuda.rows(buffers.weights, &plan.weights)?,
            indices: cuda.rows(buffers.indices, &plan.indices)?,
            flags: cuda.pointer(buffers.flags)?,
            tokens: plan.tokens() as u64,
            experts: plan.experts() as u32,
            groups: given.groups as u32,
            topk_groups: given.topk_groups as u32,
            topk: given.topk as u32,
            scoring: match given.scoring {
                Scoring::Sigmoid => 0,
                Scoring::Softmax => 1,
                Scoring::SqrtSoftplus => 2,
            },
            group_max: u32::from(given.group_score == GroupScore::Max),
            excluded: u32::from(given.masked == Masked::Excluded),
            renormalize: u32::from(given.renormalize),
            scale: given.scale,
            reserved: 0,
        };
        let aligned = common.x.data.is_multiple_of(ALIGNMENT);
        let launch = quick.as_ref().filter(|_| aligned).unwrap_or(any);
        let &Launch { ref function, shape, extended } = launch;
        if !extended {
            // SAFETY: `Params` is the kernel's, field by field; the buffers were
            // checked against the plan, which bounds every index the kernel makes.
            return cuda.enqueue(stream, |queue| unsafe { queue.launch(function, shape, &common) });
        }
        let replicas = Rows {
            data: cuda.pointer(buffers.replicas)?,
            stride: plan.replicas.map_or(0, |matrix| matrix.row_stride as u64),
        };
        let options = Options {
            num_tokens: cuda.pointer(buffers.num_tokens)?,
            replicas,
            replica_counts: cuda.pointer(buffers.replica_counts)?,
            load: cuda.pointer(buffers.load)?,
            bias_type: match plan.bias {
                Some(DType::F16) => 1,
                Some(DType::BF16) => 2,
                _ => 0,
            },
            wide_indices: u32::from(plan.indices.dtype == DType::I64),
            shared_experts: given.shared_experts as u32,
            shared_weight: given.shared_weight,
            physical: plan.physical_experts() as u32,
            most: plan.replicas.map_or(0, |matrix| matrix.cols as u32),
            by_logit: u32::from(given.select == Select::Logit),
            chunk: chunk(plan) as u32,
            words: words(plan) as u32,
            reserved: 0,
        };
        let params = Extended { common, options };
        // SAFETY: as above, of `Extended`.
        cuda.enqueue(stream, |queue| unsafe { queue.launch(function, shape, &params) })
    }
}
