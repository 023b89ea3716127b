//! `draft_tree` on wgpu: requests rank their candidates, one workgroup shares the budget out, then
//! each node and each packed row has a thread. See the shader.

use bytemuck::{Pod, Zeroable};
#[cfg(test)]
use spec_conformance::launch_params::Header;
use spec_core::launch_params;
use spec_core::ops::DraftTree;
use spec_core::ops::draft_tree::{self, Buffers, Masks, Plan};
use spec_core::{DType, Error, Kernel, Matrix, Result, Status, Stream, Supports, ViewMut};

use super::ngram::{tokens_constant, words_of};
use crate::Wgpu;
use crate::shader::Access::{Read, Write};
use crate::shader::{Program, Shader, shader};

pub(super) static SHADER: Shader = shader!("draft_tree");

/// The largest number of requests among which the one workgroup of `allot` shares a budget: see the
/// rules in [`super`].
const MAX_REQUESTS: usize = 1 << 15;

const HAS_LINKS: u32 = HAS_FIRST_CHILD | HAS_NEXT_SIBLING | HAS_MASKS;
const HAS_PACKED: u32 = HAS_ROWS | HAS_ROW_REQUESTS | HAS_ROW_PARENTS;
const HAS_PACKED_INPUTS: u32 = HAS_ROW_TOKENS | HAS_ROW_POSITIONS;

struct Builder {
    gpu: Wgpu,
    plan: Plan,
    survive: Program,
    rank: Program,
    keep: Program,
    allot: Program,
    order: Program,
    nodes: Program,
    links: Program,
    pack: Program,
    pack_inputs: Program,
}

// SAFETY: the kernel keeps within the buffers and the workspace of the plan, whatever the data.
unsafe impl Supports<DraftTree> for Wgpu {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<DraftTree>>> {
        if !fit_bindings(self, plan) || plan.batch() > MAX_REQUESTS {
            return Err(too_large(self, plan));
        }
        let tokens = [tokens_constant(plan.candidates.dtype)];
        let program = |entry, bindings: &[_]| self.program(&SHADER, entry, bindings, &tokens);
        Ok(Box::new(Builder {
            gpu: self.clone(),
            plan: plan.clone(),
            survive: program("survive", &[Write, Read, Read, Read, Read, Read, Read, Write])?,
            rank: program("rank", &[Write])?,
            keep: program("keep", &[Write])?,
            allot: program("allot", &[Write, Read, Write, Write, Write])?,
            order: program("order", &[Write])?,
            nodes: program("nodes", &[Write, Read, Write, Write, Write, Write, Write])?,
            links: program("links", &[Write; 4])?,
            pack: program("pack", &[Write; 4])?,
            pack_inputs: program("pack_inputs", &[Write, Read, Read, Read, Write, Write])?,
        }))
    }
}

fn too_large(gpu: &Wgpu, plan: &Plan) -> Error {
    let words = format!(
        "draft_tree: {} requests with {} candidates each, or {} packed rows, are more than one \
         workgroup or bindings hold",
        plan.batch(),
        plan.c(),
        plan.cap.unwrap_or(0),
    );
    gpu.error(Status::NotImplemented, words)
}

/// Words of the workspace that a request has.
fn row_words(plan: &Plan) -> u64 {
    STATE + 3 * plan.c() as u64 + 3 * plan.n() as u64
}

fn workspace_words(plan: &Plan) -> u64 {
    HEAD + plan.batch() as u64 * row_words(plan)
}

/// Whether each argument fits a binding.
fn fit_bindings(gpu: &Wgpu, plan: &Plan) -> bool {
    let matrix = |matrix: &Matrix| matrix.rows as u64 <= gpu.window_of_rows(matrix, 1);
    let vector = |len: usize| len as u64 <= gpu.window(8);
    let nodes = plan.n() as u64;
    let masks = |masks: &Masks| {
        let last = (plan.batch() as u64).saturating_sub(1) * masks.batch_stride as u64;
        last + nodes * masks.row_stride as u64 + masks.words as u64 <= gpu.window(4)
    };
    let optional = [
        &plan.parents,
        &plan.shares,
        &plan.picked,
        &plan.draft_parents,
        &plan.first_child,
        &plan.next_sibling,
        &plan.depths,
        &plan.survivals,
    ];
    matrix(&plan.candidates)
        && matrix(&plan.drafts)
        && optional.into_iter().flatten().all(matrix)
        && plan.masks.iter().all(masks)
        && vector(plan.batch() + 1)
        && vector(plan.cap.unwrap_or(0))
        && workspace_words(plan) <= gpu.window(4)
}

impl Builder {
    fn params(&self, has: u32) -> Params {
        let plan = &self.plan;
        let stride = |matrix: Option<Matrix>| matrix.map_or(0, |m| m.row_stride as u32);
        Params {
            requests: plan.batch() as u32,
            row_words: row_words(plan) as u32,
            c: plan.c() as u32,
            n: plan.n() as u32,
            cap: plan.cap.unwrap_or(0) as u32,
            min_drafts: plan.min_drafts() as u32,
            // Adding 0 makes -0 to 0, so that the bits have the order of the numbers.
            min_survival: (plan.params.min_survival + 0.0).to_bits(),
            candidates_stride: plan.candidates.row_stride as u32,
            parents_stride: stride(plan.parents),
            parents_words: plan.parents.map_or(1, |parents| words_of(parents.dtype)),
            shares_stride: stride(plan.shares),
            count_words: words_of(plan.counts.unwrap_or(DType::I32)),
            start_words: words_of(plan.starts.unwrap_or(DType::I32)),
            drafts_stride: plan.drafts.row_stride as u32,
            picked_stride: stride(plan.picked),
            draft_parents_stride: stride(plan.draft_parents),
            survivals_stride: stride(plan.survivals),
            depths_stride: stride(plan.depths),
            first_child_stride: stride(plan.first_child),
            next_sibling_stride: stride(plan.next_sibling),
            masks_stride: plan.masks.map_or(0, |masks| masks.batch_stride as u32),
            mask_stride: plan.masks.map_or(0, |masks| masks.row_stride as u32),
            has,
        }
    }

    /// The bits of the arguments that are there.
    fn has(&self, b: &Buffers<'_>) -> u32 {
        let given = [
            (b.parents.is_some(), HAS_PARENTS),
            (b.shares.is_some(), HAS_SHARES),
            (b.counts.is_some(), HAS_COUNTS),
            (b.trust.is_some(), HAS_TRUST),
            (b.finished.is_some(), HAS_FINISHED),
            (b.budget.is_some(), HAS_BUDGET),
            (b.flags.is_some(), HAS_FLAGS),
            (self.plan.params.cumulative, CUMULATIVE),
            (b.picked.is_some(), HAS_PICKED),
            (b.draft_parents.is_some(), HAS_DRAFT_PARENTS),
            (b.survivals.is_some(), HAS_SURVIVALS),
            (b.depths.is_some(), HAS_DEPTHS),
            (b.first_child.is_some(), HAS_FIRST_CHILD),
            (b.next_sibling.is_some(), HAS_NEXT_SIBLING),
            (b.masks.is_some(), HAS_MASKS),
            (b.row_offsets.is_some(), HAS_ROW_OFFSETS),
            (b.rows.is_some(), HAS_ROWS),
            (b.row_requests.is_some(), HAS_ROW_REQUESTS),
            (b.row_parents.is_some(), HAS_ROW_PARENTS),
            (b.row_tokens.is_some(), HAS_ROW_TOKENS),
            (b.row_positions.is_some(), HAS_ROW_POSITIONS),
            (b.roots.is_some(), HAS_ROOTS),
            (self.plan.cap.is_some(), HAS_CAP),
        ];
        given.iter().filter(|(there, _)| *there).fold(0, |has, (_, bit)| has | bit)
    }
}

// SAFETY: as for `Supports` above.
unsafe impl Kernel<DraftTree> for Builder {
    fn workspace_size(&self) -> usize {
        workspace_words(&self.plan) as usize * 4
    }

    unsafe fn launch(
        &self,
        workspace: ViewMut<'_>,
        b: Buffers<'_>,
        stream: Stream<'_>,
    ) -> Result<()> {
        let Builder { gpu, plan, .. } = self;
        let has = self.has(&b);
        let params = self.params(has);
        let work = gpu.region_of_workspace(workspace)?;
        let candidates = gpu.region(&b.candidates)?;
        let [parents, shares] = [gpu.optional(&b.parents)?, gpu.optional(&b.shares)?];
        let [counts, trust] = [gpu.optional(&b.counts)?, gpu.optional(&b.trust)?];
        let [finished, budget] = [gpu.optional(&b.finished)?, gpu.optional(&b.budget)?];
        let [roots, starts] = [gpu.optional(&b.roots)?, gpu.optional(&b.starts)?];
        let [drafts, num_drafts] = [gpu.region_mut(b.drafts)?, gpu.region_mut(b.num_drafts)?];
        let [picked, survivals] = [gpu.optional_mut(b.picked)?, gpu.optional_mut(b.survivals)?];
        let draft_parents = gpu.optional_mut(b.draft_parents)?;
        let [depths, masks] = [gpu.optional_mut(b.depths)?, gpu.optional_mut(b.masks)?];
        let first_child = gpu.optional_mut(b.first_child)?;
        let next_sibling = gpu.optional_mut(b.next_sibling)?;
        let [row_offsets, rows] = [gpu.optional_mut(b.row_offsets)?, gpu.optional_mut(b.rows)?];
        let row_requests = gpu.optional_mut(b.row_requests)?;
        let row_parents = gpu.optional_mut(b.row_parents)?;
        let row_tokens = gpu.optional_mut(b.row_tokens)?;
        let row_positions = gpu.optional_mut(b.row_positions)?;
        let flags = gpu.optional_mut(b.flags)?;
        let (batch, c, n) = (plan.batch() as u64, plan.c() as u64, plan.n() as u64);
        let groups = |threads: u64| threads.div_ceil(ROW_THREADS);
        gpu.record("draft_tree", stream, |r| {
            let given = [work, candidates, parents, shares, counts, trust, finished, flags];
            r.dispatch(&self.survive, &given, &params, batch)?;
            r.dispatch(&self.rank, &[work], &params, groups(batch * c))?;
            r.dispatch(&self.keep, &[work], &params, groups(batch))?;
            let allotted = [work, budget, num_drafts, row_offsets, flags];
            r.dispatch(&self.allot, &allotted, &params, 1)?;
            r.dispatch(&self.order, &[work], &params, groups(batch * n))?;
            let nodes = groups(batch * (n + 1));
            let of_nodes = [work, candidates, drafts, picked, draft_parents, survivals, depths];
            r.dispatch(&self.nodes, &of_nodes, &params, nodes)?;
            if has & HAS_LINKS != 0 {
                let links = [work, first_child, next_sibling, masks];
                r.dispatch(&self.links, &links, &params, nodes)?;
            }
            let packed = groups(plan.cap.unwrap_or(0) as u64);
            if has & HAS_PACKED != 0 {
                let pack = [work, rows, row_requests, row_parents];
                r.dispatch(&self.pack, &pack, &params, packed)?;
            }
            if has & HAS_PACKED_INPUTS != 0 {
                let pack = [work, candidates, roots, starts, row_tokens, row_positions];
                r.dispatch(&self.pack_inputs, &pack, &params, packed)?;
            }
            Ok(())
        })
    }
}

launch_params! {
    /// What the shader of `draft_tree` takes.
    struct Params: Pod, Zeroable {
        /// The number of requests.
        requests: u32,
        /// Words of the workspace that a request has.
        row_words: u32,
        /// Columns of `candidates`.
        c: u32,
        /// Columns of `drafts`.
        n: u32,
        /// Packed rows that the outputs hold.
        cap: u32,
        /// Drafts of each request that come before all others.
        min_drafts: u32,
        /// The bits of the least survival of a draft.
        min_survival: u32,
        /// Elements from one row of `candidates` to the next.
        candidates_stride: u32,
        /// Elements from one row of `parents` to the next.
        parents_stride: u32,
        /// Words of an element of `parents`.
        parents_words: u32,
        /// Elements from one row of `shares` to the next.
        shares_stride: u32,
        /// Words of an element of `counts`.
        count_words: u32,
        /// Words of an element of `starts` and `row_positions`.
        start_words: u32,
        /// Elements from one row of `drafts` to the next.
        drafts_stride: u32,
        /// Elements from one row of `picked` to the next.
        picked_stride: u32,
        /// Elements from one row of `draft_parents` to the next.
        draft_parents_stride: u32,
        /// Elements from one row of `survivals` to the next.
        survivals_stride: u32,
        /// Elements from one row of `depths` to the next.
        depths_stride: u32,
        /// Elements from one row of `first_child` to the next.
        first_child_stride: u32,
        /// Elements from one row of `next_sibling` to the next.
        next_sibling_stride: u32,
        /// Words from the masks of one request to those of the next.
        masks_stride: u32,
        /// Words from the mask of one node to that of the next.
        mask_stride: u32,
        /// Which arguments are there: HAS_ bits.
        has: u32,
    }

    /// Threads of a workgroup, other than that of `allot`.
    const ROW_THREADS: u64 = 64;
    /// Words at the start of the workspace, whose first word is the number of rows of all requests.
    const HEAD: u64 = 4;
    /// Words of a request's state.
    const STATE: u64 = 6;
    /// The bits of 2^-100. A survival below 2^-100 counts as 0.
    const MIN_SURVIVAL: u32 = draft_tree::MIN_SURVIVAL.to_bits();
    /// Bits of `has`: the arguments that are there.
    const HAS_PARENTS: u32 = 1;
    const HAS_SHARES: u32 = 1 << 1;
    const HAS_COUNTS: u32 = 1 << 2;
    const HAS_TRUST: u32 = 1 << 3;
    const HAS_FINISHED: u32 = 1 << 4;
    const HAS_BUDGET: u32 = 1 << 5;
    const HAS_FLAGS: u32 = 1 << 6;
    /// Shares are of the whole way from the root.
    const CUMULATIVE: u32 = 1 << 7;
    /// More arguments that are there.
    const HAS_PICKED: u32 = 1 << 8;
    const HAS_DRAFT_PARENTS: u32 = 1 << 9;
    const HAS_SURVIVALS: u32 = 1 << 10;
    const HAS_DEPTHS: u32 = 1 << 11;
    const HAS_FIRST_CHILD: u32 = 1 << 12;
    const HAS_NEXT_SIBLING: u32 = 1 << 13;
    const HAS_MASKS: u32 = 1 << 14;
    const HAS_ROW_OFFSETS: u32 = 1 << 15;
    const HAS_ROWS: u32 = 1 << 16;
    const HAS_ROW_REQUESTS: u32 = 1 << 17;
    const HAS_ROW_PARENTS: u32 = 1 << 18;
    const HAS_ROW_TOKENS: u32 = 1 << 19;
    const HAS_ROW_POSITIONS: u32 = 1 << 20;
    const HAS_ROOTS: u32 = 1 << 21;
    /// Some output has packed rows.
    const HAS_CAP: u32 = 1 << 22;
}

#[cfg(test)]
pub(super) const HEADER: Header =
    Header { name: "draft_tree", includes: &["bound"], structs: &[Params::DESCRIPTION] };
