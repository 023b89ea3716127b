//! Mixture-of-experts routing: a team of threads a token.

use spec_core::ops::TopkRouter;
use spec_core::ops::topk_router::{Buffers, GroupScore, MAX_TOPK, Masked, Plan, Scoring};
use spec_core::{Kernel, Result, Status, Stream, Supports, ViewMut, exact};

use super::float_code;
use crate::Wgpu;
use crate::memory::Region;
use crate::shader::{Access, Program, Shader, shader};

pub(super) static SHADER: Shader = shader!("topk_router");

/// Threads of a team where subgroups have no say.
const LANES: u32 = 32;
/// Threads of a workgroup, at most.
const MAX_THREADS: u32 = 256;
/// Words of workgroup memory for keys and groups, as the shader has it, and the
/// most reductions of a token, each of which takes teams without subgroups a
/// word: together below 16 KiB.
const POOL: u32 = 3328;
const SLOTS: u32 = 3 + 2 * MAX_TOPK as u32;

/// With fewer lanes, ranking more groups than this would take a thread too many
/// turns: see the rules in [`super`].
const FEW_LANES: u32 = 16;
const MANY_GROUPS: u32 = 256;

/// How a token's threads and their memory are laid out.
struct Shape {
    subgroups: bool,
    lanes: u32,
    teams: u32,
    /// Lanes that share a group.
    parts: u32,
    /// Words of workgroup memory of a team.
    words: u32,
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
        // Powers of two, so that few pipelines serve all shapes.
        let most = (MAX_THREADS / lanes).min(POOL / words).max(1);
        let teams = 1 << most.ilog2();
        Shape { subgroups: subgroup.is_some(), lanes, teams, parts, words }
    }
}

struct Router {
    gpu: Wgpu,
    plan: Plan,
    main: Program,
    shape: Shape,
    /// Tokens whose rows fit one binding each.
    window: u64,
}

impl Supports<TopkRouter> for Wgpu {
    fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<TopkRouter>>> {
        let shape = Shape::of(self, plan);
        let constants = [
            ("LANES", shape.lanes),
            ("TEAMS", shape.teams),
            ("THREADS", shape.lanes * shape.teams),
            ("SLOTS", SLOTS),
            ("TEAM_WORDS", SLOTS * shape.teams),
            ("DTYPE", float_code(plan.x.dtype)),
            ("SOFTMAX", u32::from(plan.params.scoring == Scoring::Softmax)),
        ];
        let (read, write) = (Access::Read, Access::Write);
        let bindings = [read, read, write, write, write];
        let main = if shape.subgroups {
            self.subgroup_program(&SHADER, "main", &bindings, &constants)?
        } else {
            self.program(&SHADER, "main", &bindings, &constants)?
        };
        let window = self
            .window_of_rows(&plan.x, 1)
            .min(self.window_of_rows(&plan.weights, 1))
            .min(self.window_of_rows(&plan.indices, 1));
        if window == 0 {
            let words = "topk_router: one row of logits is more than a binding holds";
            return Err(self.error(Status::NotImplemented, words));
        }
        Ok(Box::new(Router { gpu: self.clone(), plan: plan.clone(), main, shape, window }))
    }
}

impl Router {
    fn parameters(&self, tokens: u64, has_flags: bool) -> [u32; 18] {
        let Plan { params, x, has_bias, weights, indices } = &self.plan;
        let group_size = self.plan.group_size() as u32;
        [
            tokens as u32,
            x.cols as u32,
            x.row_stride as u32,
            weights.row_stride as u32,
            indices.row_stride as u32,
            u32::from(*has_bias),
            u32::from(has_flags),
            params.groups as u32,
            group_size,
            (1u32 << 20).div_ceil(group_size),
            params.topk_groups as u32,
            u32::from(params.group_score == GroupScore::Top2Sum),
            self.shape.parts,
            match params.masked {
                Masked::Zero => exact::sort_key(0.0),
                Masked::Excluded => 0,
            },
            params.topk as u32,
            u32::from(params.renormalize),
            params.scale.to_bits(),
            self.shape.words,
        ]
    }
}

impl Kernel<TopkRouter> for Router {
    fn workspace_size(&self) -> usize {
        0
    }

    fn launch(&self, _: ViewMut<'_>, buffers: Buffers<'_>, stream: Stream<'_>) -> Result<()> {
        let gpu = &self.gpu;
        let nothing = Ok(Region::nothing());
        let x = gpu.region(&buffers.x)?;
        let bias = buffers.bias.as_ref().map_or(nothing, |b| gpu.region(b))?;
        let weights = gpu.region_mut(buffers.weights)?;
        let indices = gpu.region_mut(buffers.indices)?;
        let flags = buffers.flags.map_or(Ok(Region::nothing()), |f| gpu.region_mut(f))?;
        let all = self.plan.tokens() as u64;
        gpu.record("topk_router", stream, |r| {
            let mut start = 0;
            while start < all {
                let tokens = self.window.min(all - start);
                let regions = [
                    x.rows(&self.plan.x, start, tokens),
                    bias,
                    weights.rows(&self.plan.weights, start, tokens),
                    indices.rows(&self.plan.indices, start, tokens),
                    flags,
                ];
                let parameters = self.parameters(tokens, flags.bytes > 0);
                let groups = tokens.div_ceil(u64::from(self.shape.teams));
                r.dispatch(&self.main, &regions, &parameters, groups)?;
                start += tokens;
            }
            Ok(())
        })
    }
}
