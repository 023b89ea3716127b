//! Host side of `kernels/topk_router.cu`, `topk_router_flat.cu`, `topk_router_grouped.cu` and
//! `topk_router_load.cu`.

#[cfg(test)]
use spec_conformance::launch_params::Header;
use spec_core::launch_params::Field;
use spec_core::ops::TopkRouter;
use spec_core::ops::topk_router::{Buffers, GroupScore, Masked, Plan, Scoring, Select};
use spec_core::options::unknown;
use spec_core::{DType, Kernel, Matrix, Result, Stream, Supports, ViewMut, launch_params};

use crate::Cuda;
use crate::archive::{Archive, archive};
use crate::args::Rows;
use crate::kernel::{Function, Shape};
use crate::shape;
use spec_core::launch_params::float_code;

static KERNELS: Archive = archive!("topk_router");
static FLAT: Archive = archive!("topk_router_flat");
static GROUPED: Archive = archive!("topk_router_grouped");
static LOAD: Archive = archive!("topk_router_load");

const WARP: usize = shape::WARP as usize;
/// For the kernel that takes any shape: the largest number of threads in a block, and blocks
/// per multiprocessor. Each warp takes one token at a time.
const GENERAL: (u32, u32) = (GENERAL_THREADS, 8);
/// Shared memory that a block may use without opting in for more, in bytes.
const SHARED: usize = 48 << 10;
/// For the quick route: threads of a block, and blocks per multiprocessor. With 65536 tokens and
/// 256 experts on an H100, f32: 48.7 us with 3 blocks per multiprocessor, 45.1 with 4, 45.2
/// with 5.
const QUICK: (u32, u32) = (QUICK_THREADS, 4);
/// The numbers of experts for which there is a quick route, with plain options or with all options
/// (`extended`).
fn quick_experts(scoring: Scoring, extended: bool) -> &'static [usize] {
    match (scoring, extended) {
        // With 512 experts and sigmoid, the flat route is faster: 9.8 us instead of 11.2 for 4096
        // tokens with topk 10 on an H100, 3.8 us instead of 4.5 for 64.
        (Scoring::Sigmoid, _) => &[128, 256, 384],
        (Scoring::Softmax, false) => &[128, 256, 512],
        (Scoring::Softmax, true) => &[128, 512],
        (Scoring::SqrtSoftplus, _) => &[256, 384],
        _ => &[],
    }
}
/// The largest number of picks of the quick route: each lane holds one pick.
const QUICK_TOPK: usize = WARP;
/// The quick route reads 16 bytes at a time.
const ALIGNMENT: u64 = 16;
/// For the flat route: the largest number of picks.
const FLAT_TOPK: usize = 16;
/// The numbers of experts that the kernels of the flat route are made for at most, each with its blocks
/// per multiprocessor. With 4096 tokens and 896 experts on an H100, f32: 12.2 us with 8 blocks per
/// multiprocessor, 12.1 with 6, 11.3 with 4, whose registers hold a lane's experts without spilling.
const FLAT_EXPERTS: [(usize, u32); 2] = [(256, 8), (1024, 4)];
/// Words of shared memory that a warp of the flat route needs for candidates.
const FLAT_WORDS: usize = 7 * WARP;
/// From so many tokens on, a kernel of its own counts the load. It has a block of `LOAD_THREADS` threads
/// for every `LOAD_PICKS` picks, but at most `LOAD_BLOCKS`, since each block adds to each place. With 256
/// experts and 288 places on an H100, 512 tokens take 4.3 us if the routing kernel adds to the load
/// and 5.8 us with a kernel of its own, 4096 tokens 10.7 us and 7.5 us.
const LOAD_TOKENS: usize = 2048;
const LOAD_PICKS: usize = 1024;
const LOAD_BLOCKS: usize = 32;
/// The largest number of picks that the kernel counts.
const MAX_LOAD_PICKS: usize = 1 << 31;
/// For the grouped route: lanes per token, and blocks per multiprocessor, with one token and with
/// four tokens in a warp at a time.
const ONE_TOKEN: (usize, u32) = (32, 4);
const FOUR_TOKENS: (usize, u32) = (8, 5);
/// The largest number of tokens for which `ONE_TOKEN` is faster than `FOUR_TOKENS`. On an H200, f32:
/// 1024 tokens take 2.76 us with `ONE_TOKEN` and 2.82 us with `FOUR_TOKENS`, 2048 tokens 3.31 us and
/// 2.86 us.
const MAX_ONE_TOKEN: usize = 1024;
/// The smallest number of tokens for which there is a grouped route with all options (`extended`).
const EXTENDED_TOKENS: usize = 128;

launch_params! {
    /// The parameters of every kernel of `topk_router`.
    struct Params {
        /// Logits, [tokens, experts] of type `x_type`.
        x: Rows as "Rows<const void>",
        /// The bias of each expert, [experts] of f32 or of `bias_type`, or null.
        bias: u64 as "const float*",
        /// The weights of the picks, [tokens, topk + shared_experts].
        weights: Rows as "Rows<float>",
        /// The places of the picks, [tokens, topk + shared_experts].
        indices: Rows as "Rows<i32>",
        /// One word of flags, or null.
        flags: u64 as "u32*",
        /// The number of tokens.
        tokens: u64,
        /// The number of experts.
        experts: u32,
        /// The number of groups of experts.
        groups: u32,
        /// The number of groups that are kept.
        topk_groups: u32,
        /// The number of picks of a token.
        topk: u32,
        /// The scoring function: `SIGMOID`, `SOFTMAX` or `SQRT_SOFTPLUS`.
        scoring: u32,
        /// 1 if a group's score is its largest choice, 0 if it is the sum of the two largest.
        group_max: u32,
        /// 1 if experts of dropped groups are excluded, 0 if their choice is 0.0.
        excluded: u32,
        /// 1 if the weights of a token are normalized to a sum of `scale`, else 0.
        renormalize: u32,
        /// The factor of every weight.
        scale: f32,
        /// The type of the logits: `F32`, `F16` or `BF16`.
        x_type: u32,
    }

    /// Codes of scoring functions: the logistic function, softmax over the row, and the square root of
    /// softplus.
    const SIGMOID: u32 = 0;
    const SOFTMAX: u32 = 1;
    const SQRT_SOFTPLUS: u32 = 2;
    /// The largest number of threads of a block of the kernel for any shape.
    const GENERAL_THREADS: u32 = 128;
    /// Threads of a block of the quick, the grouped and the flat route.
    const QUICK_THREADS: u32 = 256;
    const GROUPED_THREADS: u32 = 128;
    const FLAT_THREADS: u32 = 128;
    /// Threads of a block of the kernel that counts the load.
    const LOAD_THREADS: u32 = 1024;
}

launch_params! {
    /// Additional parameters of the kernels with options. An absent option is null or 0.
    struct Options {
        /// The number of rows that are tokens, one number; null: all rows.
        num_tokens: u64 as "const i32*",
        /// The places of each expert's replicas, [experts, max_replicas], or null.
        replicas: Rows as "Rows<const i32>",
        /// The number of replicas of each expert, [experts].
        replica_counts: u64 as "const i32*",
        /// The load: the number of picks of each place is added to it, [physical], or null.
        load: u64 as "i32*",
        /// The type of the bias: `F32`, `F16` or `BF16`.
        bias_type: u32,
        /// 1 if `indices` has 64 bits, 0 if it has 32.
        wide_indices: u32,
        /// The number of columns of shared experts, after the picks.
        shared_experts: u32,
        /// The weight of every shared expert.
        shared_weight: f32,
        /// The number of places of experts; without replicas, the number of experts.
        physical: u32,
        /// The number of columns of `replicas`.
        max_replicas: u32,
        /// topk_router_general: 1 if experts are chosen by their logit, 0 by their score.
        by_logit: u32,
        /// topk_router_general: the number of neighbouring experts in a lane's chunk.
        chunk: u32,
        /// topk_router_general and topk_router_flat: words of shared memory for each warp.
        words: u32,
        reserved: u32,
    }
}

launch_params! {
    /// Additional parameters of the kernel for any shape.
    struct Replay {
        /// The given experts, [tokens, topk], or null.
        chosen: Rows as "Rows<const i32>",
        /// The picked experts before `replicas` turns them into places, [tokens, topk +
        /// shared_experts], or null.
        logical: Rows as "Rows<i32>",
        /// The type of the weights: `F32`, `F16` or `BF16`.
        weights_type: u32,
        reserved: u32,
    }
}

impl Field for Params {
    const DEVICE: &'static str = "Params";
}

impl Field for Options {
    const DEVICE: &'static str = "Options";
}

launch_params! {
    /// The parameters of the kernels with options.
    struct Extended {
        common: Params,
        options: Options,
    }
}

impl Field for Extended {
    const DEVICE: &'static str = "Extended";
}

impl Field for Replay {
    const DEVICE: &'static str = "Replay";
}

launch_params! {
    /// The parameters of the kernel for any shape.
    struct Replayed {
        extended: Extended,
        replay: Replay,
    }
}

#[cfg(test)]
pub(super) const HEADER: Header = Header {
    name: "topk_router",
    includes: &["params/shared.cuh"],
    structs: &[
        Params::DESCRIPTION,
        Options::DESCRIPTION,
        Extended::DESCRIPTION,
        Replay::DESCRIPTION,
        Replayed::DESCRIPTION,
    ],
};

/// What a kernel takes: [`Params`], [`Extended`] or [`Replayed`].
#[derive(Clone, Copy)]
enum Takes {
    Params,
    Extended,
    Replayed,
}

/// A kernel that was chosen for a plan, and its launch shape.
struct Launch {
    function: Function,
    shape: Shape,
    takes: Takes,
    /// Words of shared memory per warp, where the kernel has dynamic shared memory.
    words: u32,
}

struct Prepared {
    cuda: Cuda,
    plan: Plan,
    general: Launch,
    /// The quick, the grouped or the flat route, if the plan has one. Its rows must be aligned.
    quick: Option<Launch>,
    /// What counts the load after the routing kernel, if that kernel does not.
    load: Option<(Function, Shape)>,
}

/// Whether a plan gives or records experts or has weights of 16 bits. The kernel for any shape does
/// all of this, so that the other kernels stay as quick as they are without it.
fn is_replay(plan: &Plan) -> bool {
    plan.chosen.is_some() || plan.logical.is_some() || plan.weights.dtype != DType::F32
}

/// Whether a plan has options that the plain kernels do not support.
fn is_extended(plan: &Plan) -> bool {
    plan.params.scoring == Scoring::SqrtSoftplus
        || plan.bias.is_some_and(|bias| bias != DType::F32)
        || plan.indices.dtype == DType::I64
        || plan.params.shared_experts > 0
        || plan.has_num_tokens
        || plan.replicas.is_some()
        || plan.has_load
}

/// Whether the quick route supports a plan, provided that `x` is aligned. The
/// kernel relies on every condition here.
fn has_quick_route(plan: &Plan) -> bool {
    let params = &plan.params;
    // The quick kernels count tokens, and strides in bytes, with 32 bits.
    let narrow = |stride: usize, size: usize| stride.saturating_mul(size) < 1 << 32;
    let size = plan.x.dtype.size();
    !is_replay(plan)
        && quick_experts(params.scoring, is_extended(plan)).contains(&plan.experts())
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

/// Whether the grouped route supports a plan that has a quick route. The grouped kernels are
/// compiled for these numbers only.
fn has_grouped_route(plan: &Plan) -> bool {
    let params = &plan.params;
    (!is_extended(plan) || plan.tokens() >= EXTENDED_TOKENS)
        && params.scoring == Scoring::Sigmoid
        && (plan.experts(), params.groups, params.topk_groups, params.topk) == (256, 8, 4, 8)
        && plan.x.dtype != DType::F16
}

/// The number of experts that a kernel of the flat route is made for, and its blocks per
/// multiprocessor, if the flat route supports a plan, provided that `x` is aligned. The kernel relies
/// on every condition here.
fn flat_route(plan: &Plan) -> Option<(usize, u32)> {
    let params = &plan.params;
    let suits = !is_replay(plan)
        && matches!(params.scoring, Scoring::Sigmoid | Scoring::SqrtSoftplus)
        && params.select == Select::Score
        && params.topk_groups == params.groups
        && params.topk <= FLAT_TOPK
        && (plan.experts() * plan.x.dtype.size()).is_multiple_of(ALIGNMENT as usize)
        && (plan.x.row_stride * plan.x.dtype.size()).is_multiple_of(ALIGNMENT as usize)
        && plan.tokens() < 1 << 31;
    FLAT_EXPERTS.into_iter().find(|&(max, _)| suits && plan.experts() <= max)
}

/// Consecutive experts per lane in the kernel for any shape.
fn chunk(plan: &Plan) -> usize {
    plan.experts().div_ceil(WARP)
}

/// Words of shared memory per warp of the kernel for any shape: a key for each expert in 32
/// chunks, and a key for each group if some groups are masked.
fn words(plan: &Plan) -> usize {
    let Plan { params, .. } = plan;
    let groups = if params.topk_groups < params.groups { params.groups } else { 0 };
    chunk(plan) * WARP + groups
}

// SAFETY: the kernels access only the memory that the plan describes, whatever the data.
unsafe impl Supports<TopkRouter> for Cuda {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<TopkRouter>>> {
        let dtype = plan.x.dtype.name();
        // Even with no rows, a block must check `num_tokens`, which may have to be flagged.
        let least = usize::from(plan.has_num_tokens);
        let shape = |(threads, blocks): (u32, u32), lanes: usize| {
            let tokens_a_block = threads as usize / lanes;
            let max = (self.limits().multiprocessors * blocks) as usize;
            let wanted = plan.tokens().div_ceil(tokens_a_block).clamp(least, max);
            Shape::new(wanted as u32, threads)
        };
        let bytes = words(plan) * 4;
        let warps = (SHARED / bytes).min(GENERAL.0 as usize / WARP);
        let general = Launch {
            function: self.function(&KERNELS, "topk_router_general")?,
            shape: shape(((warps * WARP) as u32, GENERAL.1), WARP).shared((warps * bytes) as u32),
            takes: Takes::Replayed,
            words: words(plan) as u32,
        };
        let extended = is_extended(plan);
        let takes = if extended { Takes::Extended } else { Takes::Params };
        let kind = if extended { "_extended" } else { "" };
        let flat = |(max, blocks): (usize, u32)| -> Result<Launch> {
            let words = words(plan).max(FLAT_WORDS);
            let bytes = (max + FLAT_THREADS as usize / WARP * words) * 4;
            Ok(Launch {
                function: self.function(&FLAT, &format!("topk_router_flat_{max}"))?,
                shape: shape((FLAT_THREADS, blocks), WARP).shared(bytes as u32),
                takes: Takes::Extended,
                words: words as u32,
            })
        };
        let quick = if !has_quick_route(plan) {
            flat_route(plan).map(flat).transpose()?
        } else if has_grouped_route(plan) {
            let one = plan.tokens() <= MAX_ONE_TOKEN && !extended;
            let (lanes, blocks) = if one { ONE_TOKEN } else { FOUR_TOKENS };
            let archive = if extended { &GROUPED } else { &KERNELS };
            let name = format!("topk_router_grouped_{lanes}{kind}_{dtype}");
            let function = self.function(archive, &name)?;
            let shape = shape((GROUPED_THREADS, blocks), lanes);
            Some(Launch { function, shape, takes, words: 0 })
        } else {
            let scoring = plan.params.scoring.name();
            let name = format!("topk_router_{scoring}_{}{kind}", plan.experts());
            let function = self.function(&KERNELS, &name)?;
            Some(Launch { function, shape: shape(QUICK, WARP), takes, words: 0 })
        };
        let has_load_kernel = plan.has_load
            && plan.tokens() >= LOAD_TOKENS
            && plan.tokens().saturating_mul(plan.params.topk) <= MAX_LOAD_PICKS
            && plan.physical_experts() * 4 <= SHARED;
        let load = has_load_kernel.then(|| {
            let blocks = (plan.tokens() * plan.params.topk).div_ceil(LOAD_PICKS).min(LOAD_BLOCKS);
            let shape = Shape::new(blocks as u32, LOAD_THREADS);
            let function = self.function(&LOAD, "topk_router_load")?;
            Ok((function, shape.shared(plan.physical_experts() as u32 * 4)))
        });
        let load = load.transpose()?;
        Ok(Box::new(Prepared { cuda: self.clone(), plan: plan.clone(), general, quick, load }))
    }
}

// SAFETY: the kernels access only the memory that the plan describes, whatever the data.
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
        let Prepared { cuda, plan, general, quick, load } = self;
        let given = &plan.params;
        let common = Params {
            x: cuda.rows(buffers.x, &plan.x)?,
            // Where experts are given, no bias is used.
            bias: if plan.chosen.is_some() { 0 } else { cuda.pointer(buffers.bias)? },
            weights: cuda.rows(buffers.weights, &plan.weights)?,
            indices: cuda.rows(buffers.indices, &plan.indices)?,
            flags: cuda.pointer(buffers.flags)?,
            tokens: plan.tokens() as u64,
            experts: plan.experts() as u32,
            groups: given.groups as u32,
            topk_groups: given.topk_groups as u32,
            topk: given.topk as u32,
            scoring: match given.scoring {
                Scoring::Sigmoid => SIGMOID,
                Scoring::Softmax => SOFTMAX,
                Scoring::SqrtSoftplus => SQRT_SOFTPLUS,
                other => unknown(other),
            },
            group_max: u32::from(given.group_score == GroupScore::Max),
            excluded: u32::from(given.masked == Masked::Excluded),
            renormalize: u32::from(given.renormalize),
            scale: given.scale,
            x_type: float_code(plan.x.dtype),
        };
        let aligned = common.x.data.is_multiple_of(ALIGNMENT);
        let launch = quick.as_ref().filter(|_| aligned).unwrap_or(general);
        let &Launch { ref function, shape, takes, words } = launch;
        if matches!(takes, Takes::Params) {
            // SAFETY: `Params` has the layout of the kernel's struct; the buffers were checked
            // against the plan, which bounds every index that the kernel computes.
            return cuda.enqueue(stream, |queue| unsafe { queue.launch(function, shape, &common) });
        }
        let stride = |matrix: Option<Matrix>| matrix.map_or(0, |matrix| matrix.row_stride as u64);
        let replicas =
            Rows { data: cuda.pointer(buffers.replicas)?, stride: stride(plan.replicas) };
        let load_pointer = cuda.pointer(buffers.load)?;
        let options = Options {
            num_tokens: cuda.pointer(buffers.num_tokens)?,
            replicas,
            replica_counts: cuda.pointer(buffers.replica_counts)?,
            load: if load.is_some() { 0 } else { load_pointer },
            bias_type: float_code(plan.bias.unwrap_or(DType::F32)),
            wide_indices: u32::from(plan.indices.dtype == DType::I64),
            shared_experts: given.shared_experts as u32,
            shared_weight: given.shared_weight,
            physical: plan.physical_experts() as u32,
            max_replicas: plan.replicas.map_or(0, |matrix| matrix.cols as u32),
            by_logit: u32::from(given.select == Select::Logit),
            chunk: chunk(plan) as u32,
            words,
            reserved: 0,
        };
        let extended = Extended { common, options };
        let counted = Extended { common, options: Options { load: load_pointer, ..options } };
        let replay = Replay {
            chosen: Rows { data: cuda.pointer(buffers.chosen)?, stride: stride(plan.chosen) },
            logical: Rows { data: cuda.pointer(buffers.logical)?, stride: stride(plan.logical) },
            weights_type: float_code(plan.weights.dtype),
            reserved: 0,
        };
        let params = Replayed { extended, replay };
        // SAFETY: `Replayed` and `Extended` have the layout of the kernels' structs; the buffers
        // were checked against the plan, which bounds every index that the kernels compute. The
        // kernel that counts the load compares every place with the number of places.
        cuda.enqueue(stream, |queue| unsafe {
            match takes {
                Takes::Replayed => queue.launch(function, shape, &params)?,
                _ => queue.launch(function, shape, &extended)?,
            }
            let Some((function, shape)) = load else { return Ok(()) };
            queue.launch_next(function, *shape, &counted)
        })
    }
}

#[cfg(test)]
mod tests {
    use spec_core::DType;
    use spec_core::ops::topk_router::preset;

    use super::super::routes::route;
    use crate::limits::Limits;

    /// The kernels and launch shapes that an H100 takes for calls of an engine.
    #[test]
    fn an_h100_takes_the_kernels_that_were_tuned_for_it() {
        let router = |preset: &preset::Preset, dtype, tokens| {
            route(Limits::H100, &preset.router(), &preset.tensors(dtype, tokens))
        };
        let calls = [
            (
                router(&preset::DEEPSEEK_V3, DType::F32, 1),
                "topk_router_grouped_32_f32 (1 block of 128 threads)",
            ),
            (
                router(&preset::DEEPSEEK_V3, DType::BF16, 4096),
                "topk_router_grouped_8_bf16 (256 blocks of 128 threads)",
            ),
            (
                router(&preset::KIMI_K2, DType::F32, 64),
                "topk_router_sigmoid_384 (8 blocks of 256 threads)",
            ),
            (
                router(&preset::GLM_4_5, DType::F32, 64),
                "topk_router_flat_256 (16 blocks of 128 threads)",
            ),
            (
                router(&preset::QWEN3, DType::BF16, 64),
                "topk_router_softmax_128 (8 blocks of 256 threads)",
            ),
            (
                router(&preset::MIXTRAL, DType::F32, 64),
                "topk_router_general (16 blocks of 128 threads)",
            ),
        ];
        for (given, expected) in calls {
            assert_eq!(given, expected);
        }
    }
}
