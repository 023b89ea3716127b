//! Mixture-of-experts routing: a team of threads per token.

use bytemuck::{Pod, Zeroable};
#[cfg(test)]
use spec_conformance::launch_params::Header;
use spec_core::launch_params;
use spec_core::ops::TopkRouter;
use spec_core::ops::topk_router::{Buffers, GroupScore, Masked, Plan, Scoring, Select};
use spec_core::options::unknown;
use spec_core::{DType, Kernel, Result, Status, Stream, Supports, ViewMut, exact};

use crate::Wgpu;
use crate::shader::Access::{Read, Write};
use crate::shader::{Program, Shader, shader};
use spec_core::launch_params::float_code;

pub(super) static SHADER: Shader = shader!("topk_router");

/// Threads of a team where subgroups are not used.
const LANES: u32 = 32;
/// The largest number of threads of a workgroup.
const MAX_THREADS: u32 = 256;
/// 32-bit words of workgroup memory for the reductions of teams without subgroups, one word per
/// reduction. With `POOL`, 16 KiB.
const TEAM_WORDS: u32 = 4096 - POOL;
/// Reductions per token, in addition to two per pick: `SLOTS` always, and `GROUP_SLOTS` more to
/// select among many groups. The number of picks is rounded up to one of `PICKS`, so that few
/// pipelines are compiled.
const SLOTS: u32 = 3;
const GROUP_SLOTS: u32 = 32 + 1 + 13;
const PICKS: [u32; 2] = [32, 64];

/// With fewer lanes, a thread would need too many iterations to find the kept groups of more than
/// `MANY_GROUPS` groups: see the rules in [`super`].
const FEW_LANES: u32 = 16;

/// The largest number of tokens per dispatch where keys are kept in the workspace.
const STORED_TOKENS: u64 = 1024;

/// How a token's threads and their memory are laid out.
struct Shape {
    subgroups: bool,
    lanes: u32,
    teams: u32,
    /// The number of lanes that share a group.
    parts: u32,
    /// 32-bit words of memory of a team.
    words: u32,
    /// Whether these words are in the workspace instead of workgroup memory.
    stored: bool,
    /// The largest number of reductions of a team.
    slots: u32,
}

impl Shape {
    fn of(gpu: &Wgpu, plan: &Plan) -> Self {
        let (groups, topk) = (plan.params.groups as u32, plan.params.topk as u32);
        let enough = |&lanes: &u32| lanes >= FEW_LANES || groups <= MANY_GROUPS;
        let subgroup = gpu.0.subgroup.filter(enough);
        let lanes = subgroup.unwrap_or(LANES);
        let parts = (lanes / groups).max(1);
        let group_words = if groups > 1 { 2 * groups * parts } else { 0 };
        let words = plan.experts() as u32 + group_words + 2 * topk;
        let stored = words > POOL;
        let group_slots = if groups > MANY_GROUPS { GROUP_SLOTS } else { 0 };
        let slots = SLOTS + 2 * PICKS[usize::from(topk > PICKS[0])] + group_slots;
        // The number of teams is a power of two, so that few pipelines serve all shapes.
        let room = if subgroup.is_some() { u32::MAX } else { TEAM_WORDS / slots };
        let max_teams = if stored { 1 } else { (MAX_THREADS / lanes).min(POOL / words).min(room) };
        let teams = 1 << max_teams.max(1).ilog2();
        Shape { subgroups: subgroup.is_some(), lanes, teams, parts, words, stored, slots }
    }
}

launch_params! {
    /// What the shaders of `topk_router` take.
    struct Params: Pod, Zeroable {
        /// Tokens of the window.
        tokens: u32,
        /// Experts.
        experts: u32,
        /// Logits from one row to the next.
        x_stride: u32,
        /// Weights from one row to the next.
        weights_stride: u32,
        /// Indices from one row to the next.
        indices_stride: u32,
        /// 1 where `bias` is there, else 0.
        has_bias: u32,
        /// The type of the bias: `F32`, `F16` or `BF16`.
        bias_type: u32,
        /// 1 where `flags` is there, else 0.
        has_flags: u32,
        /// 1 where experts are chosen by their logit, 0 by their score.
        by_logit: u32,
        /// Groups of experts.
        groups: u32,
        /// Experts of a group.
        group_size: u32,
        /// Groups that are kept.
        topk_groups: u32,
        /// 1 where a group's score is the sum of its two largest choices, 0 where it is the largest.
        top2_sum: u32,
        /// Lanes that share a group, whose key is found from as many parts.
        parts: u32,
        /// The key of an expert whose group is not kept.
        masked_key: u32,
        /// Picks of a token.
        topk: u32,
        /// 1 where the weights of a token add up to `scale`, else 0.
        renormalize: u32,
        /// What every weight is multiplied by.
        scale: f32,
        /// Words of memory of a team.
        team_words: u32,
        /// Columns behind the picks.
        shared_experts: u32,
        /// The weight in each of them.
        shared_weight: f32,
        /// Places of experts; without replicas, experts. Indices below this are picks.
        physical: u32,
        /// 1 where indices take two words, else 0.
        wide: u32,
        /// Rows of the whole call, at most 2^31.
        all_tokens: u32,
        /// Which of those is the first here, at most 2^31.
        first: u32,
        /// The same modulo 2^32.
        first_wrapped: u32,
        /// 1 where `num_tokens` is there, else 0.
        has_num_tokens: u32,
        /// 1 where `replicas` is there, else 0.
        has_replicas: u32,
        /// Replicas from one expert to the next.
        replicas_stride: u32,
        /// Columns of `replicas`.
        max_replicas: u32,
        /// 1 where `load` is there, else 0.
        has_load: u32,
        /// The type of the weights: `F32`, `F16` or `BF16`.
        weights_type: u32,
        /// Given experts from one row to the next.
        given_stride: u32,
        /// 1 where `logical` is there, else 0.
        has_logical: u32,
        /// Elements of `logical` from one row to the next.
        logical_stride: u32,
    }

    /// Codes of scoring functions: the logistic function, softmax over the row, and the square root of
    /// softplus.
    const SIGMOID: u32 = 0;
    const SOFTMAX: u32 = 1;
    const SQRT_SOFTPLUS: u32 = 2;
    /// 32-bit words of workgroup memory for the keys of experts and groups of all teams.
    const POOL: u32 = 3328;
    /// Ranking groups takes a number of iterations that grows with the square of their number. Above
    /// this number of groups, the kept groups are therefore found from the bits of their keys.
    const MANY_GROUPS: u32 = 256;
    /// The number of columns of tokens that a workgroup of `place` handles.
    const PLACED: u64 = 256;
}

#[cfg(test)]
pub(super) const HEADER: Header =
    Header { name: "topk_router", includes: &["bound"], structs: &[Params::DESCRIPTION] };

struct Router {
    gpu: Wgpu,
    plan: Plan,
    main: Program,
    /// The pass that replaces experts by their places, counts picks and writes `logical`, if the
    /// plan asks for any of these.
    place: Option<Program>,
    shape: Shape,
    /// The largest number of tokens whose rows fit one binding each and whose keys fit the
    /// workspace.
    window: u64,
}

// SAFETY: the kernel keeps within the buffers and the workspace of the plan, whatever the data.
unsafe impl Supports<TopkRouter> for Wgpu {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<TopkRouter>>> {
        let shape = Shape::of(self, plan);
        let scoring = match plan.params.scoring {
            Scoring::Sigmoid => SIGMOID,
            Scoring::Softmax => SOFTMAX,
            Scoring::SqrtSoftplus => SQRT_SOFTPLUS,
            other => unknown(other),
        };
        let constants = [
            ("LANES", shape.lanes),
            ("TEAMS", shape.teams),
            ("THREADS", shape.lanes * shape.teams),
            ("SLOTS", shape.slots),
            ("TEAM_WORDS", shape.slots * shape.teams),
            ("DTYPE", float_code(plan.x.dtype)),
            ("SCORING", scoring),
            ("IN_STORAGE", u32::from(shape.stored)),
        ];
        let bindings = [Read, Read, Write, Write, Write, Read, Write];
        let program = |entry, bindings: &[_]| {
            if shape.subgroups {
                self.subgroup_program(&SHADER, entry, bindings, &constants)
            } else {
                self.program(&SHADER, entry, bindings, &constants)
            }
        };
        let entry = if plan.chosen.is_some() { "replay" } else { "main" };
        let main = program(entry, &bindings)?;
        let placed = plan.replicas.is_some() || plan.has_load || plan.logical.is_some();
        let place = placed.then(|| program("place", &[Read, Read, Write, Write, Write, Write]));
        let place = place.transpose()?;
        let matrices = [&plan.x, &plan.weights, &plan.indices];
        let optional = plan.chosen.iter().chain(&plan.logical);
        let windows = matrices.into_iter().chain(optional).map(|m| self.window_of_rows(m, 1));
        let window = windows.min().unwrap_or(u64::MAX);
        let stored = self.window(4) / u64::from(shape.words);
        let window = if shape.stored { window.min(STORED_TOKENS).min(stored) } else { window };
        // The bias, the replica counts, the places and the load are each bound as a whole.
        let places =
            plan.replicas.map_or(0, |matrix| matrix.rows * matrix.row_stride.max(matrix.cols));
        let load = if plan.has_load { plan.physical_experts() } else { 0 };
        let largest = plan.experts().max(places).max(load) as u64;
        if window == 0 || largest > self.window(4) {
            let words = "topk_router: a row of logits, the places of experts or their load is \
                         more than a binding holds";
            return Err(self.error(Status::NotImplemented, words));
        }
        Ok(Box::new(Router { gpu: self.clone(), plan: plan.clone(), main, place, shape, window }))
    }
}

impl Router {
    fn parameters(&self, start: u64, tokens: u64, has_flags: bool) -> Params {
        let Plan { params, x, chosen, weights, indices, logical, replicas, .. } = &self.plan;
        // `num_tokens` is always less than 2^31.
        let cut = |rows: u64| rows.min(1 << 31) as u32;
        Params {
            tokens: tokens as u32,
            experts: x.cols as u32,
            x_stride: x.row_stride as u32,
            weights_stride: weights.row_stride as u32,
            indices_stride: indices.row_stride as u32,
            has_bias: u32::from(self.plan.bias.is_some()),
            bias_type: self.plan.bias.map_or(0, float_code),
            has_flags: u32::from(has_flags),
            by_logit: u32::from(params.select == Select::Logit),
            groups: params.groups as u32,
            group_size: self.plan.group_size() as u32,
            topk_groups: params.topk_groups as u32,
            top2_sum: u32::from(params.group_score == GroupScore::Top2Sum),
            parts: self.shape.parts,
            masked_key: match params.masked {
                Masked::Zero => exact::sort_key(0.0),
                Masked::Excluded => 0,
                other => unknown(other),
            },
            topk: params.topk as u32,
            renormalize: u32::from(params.renormalize),
            scale: params.scale,
            team_words: self.shape.words,
            shared_experts: params.shared_experts as u32,
            shared_weight: params.shared_weight,
            physical: self.plan.physical_experts() as u32,
            wide: u32::from(indices.dtype == DType::I64),
            all_tokens: cut(self.plan.tokens() as u64),
            first: cut(start),
            first_wrapped: start as u32,
            has_num_tokens: u32::from(self.plan.has_num_tokens),
            has_replicas: u32::from(replicas.is_some()),
            replicas_stride: replicas.map_or(0, |matrix| matrix.row_stride as u32),
            max_replicas: replicas.map_or(1, |matrix| matrix.cols as u32),
            has_load: u32::from(self.plan.has_load),
            weights_type: float_code(weights.dtype),
            given_stride: chosen.map_or(0, |matrix| matrix.row_stride as u32),
            has_logical: u32::from(logical.is_some()),
            logical_stride: logical.map_or(0, |matrix| matrix.row_stride as u32),
        }
    }
}

// SAFETY: as for `Supports` above.
unsafe impl Kernel<TopkRouter> for Router {
    fn workspace_size(&self) -> usize {
        if !self.shape.stored {
            return 0;
        }
        self.plan.tokens().min(self.window as usize) * self.shape.words as usize * 4
    }

    unsafe fn launch(
        &self,
        workspace: ViewMut<'_>,
        buffers: Buffers<'_>,
        stream: Stream<'_>,
    ) -> Result<()> {
        let gpu = &self.gpu;
        let plan = &self.plan;
        let x = gpu.region(&buffers.x)?;
        let bias = gpu.optional(&buffers.bias)?;
        let given = gpu.optional(&buffers.chosen)?;
        let num_tokens = gpu.optional(&buffers.num_tokens)?;
        let replicas = gpu.optional(&buffers.replicas)?;
        let replica_counts = gpu.optional(&buffers.replica_counts)?;
        let weights = gpu.region_mut(buffers.weights)?;
        let indices = gpu.region_mut(buffers.indices)?;
        let logical = gpu.optional_mut(buffers.logical)?;
        let load = gpu.optional_mut(buffers.load)?;
        let flags = gpu.optional_mut(buffers.flags)?;
        let workspace = gpu.region_of_workspace(workspace)?;
        let all = plan.tokens() as u64;
        gpu.record("topk_router", stream, |r| {
            let mut start = 0;
            // Even a call without rows must flag a bad `num_tokens`.
            while start < all || (start == 0 && plan.has_num_tokens) {
                let tokens = self.window.min(all - start);
                let picks = indices.rows(&plan.indices, start, tokens);
                // Where experts are given, no bias is used.
                let bias_or_given =
                    plan.chosen.map_or(bias, |matrix| given.rows(&matrix, start, tokens));
                let parameters = self.parameters(start, tokens, flags.bytes > 0);
                let regions = [
                    x.rows(&plan.x, start, tokens),
                    bias_or_given,
                    weights.rows(&plan.weights, start, tokens),
                    picks,
                    flags,
                    num_tokens,
                    workspace,
                ];
                let groups = tokens.div_ceil(u64::from(self.shape.teams)).max(1);
                r.dispatch(&self.main, &regions, &parameters, groups)?;
                if let Some(place) = &self.place {
                    let logical =
                        plan.logical.map_or(logical, |matrix| logical.rows(&matrix, start, tokens));
                    let regions = [replicas, replica_counts, load, picks, flags, logical];
                    let shared =
                        if plan.logical.is_some() { plan.params.shared_experts } else { 0 };
                    let columns = (plan.params.topk + shared) as u64;
                    let groups = (tokens * columns).div_ceil(PLACED);
                    r.dispatch(place, &regions, &parameters, groups)?;
                }
                start += tokens.max(1);
            }
            Ok(())
        })
    }
}
