//! Walks down trees of drafts: one workgroup per request.

use bytemuck::{Pod, Zeroable};
#[cfg(test)]
use spec_conformance::launch_params::Header;
use spec_core::launch_params;
use spec_core::ops::TreeVerify;
use spec_core::ops::tree_verify::{Buffers, LinkRows, Nodes, Plan};
use spec_core::{DType, Kernel, Result, Status, Stream, Supports, ViewMut};

use super::Layout;
use crate::Wgpu;
use crate::memory::Region;
use crate::shader::Access::{Read, Write};
use crate::shader::{Program, Shader, shader};

pub(super) static SHADER: Shader = shader!("tree_verify");

/// The largest number of nodes of a tree that one thread looks at, and the largest depth that all
/// threads walk and pad: see the rules in [`super`].
const MAX_NODES: usize = 60_000;
const MAX_DEPTH: usize = MAX_NODES * THREADS as usize;

launch_params! {
    /// What the shader of `tree_verify` takes.
    struct Params: Pod, Zeroable {
        /// Requests of the window.
        requests: u32,
        /// Nodes of a tree, its root included; the largest u32 where draft tokens are packed.
        nodes: u32,
        /// The most drafts on a path.
        max_depth: u32,
        /// Which optional arguments are there: HAS_ bits. PACKED_DRAFT where draft tokens are
        /// packed.
        has: u32,
        /// Packed rows.
        rows: u32,
        /// Words of an offset of rows.
        offset_words: u32,
        /// Words of an element of `draft_tokens`; then elements from one row to the next.
        draft: Layout,
        /// The same of `target_tokens`.
        target: Layout,
        /// The same of `first_child`.
        first_child: Layout,
        /// The same of `next_sibling`.
        next_sibling: Layout,
        /// The same of `tokens`.
        tokens: Layout,
        /// The same of `nodes`.
        path: Layout,
    }

    /// Threads of a workgroup.
    const THREADS: u64 = 64;
    /// Bits of `has`: the arguments that are there, and their form.
    const HAS_FLAGS: u32 = 1;
    const HAS_OFFSETS: u32 = 1 << 1;
    const PACKED_DRAFT: u32 = 1 << 2;
}

#[cfg(test)]
pub(super) const HEADER: Header =
    Header { name: "tree_verify", includes: &["bound"], structs: &[Params::DESCRIPTION] };

/// The passes of a call, one for each form of its arguments.
enum Passes {
    Trees { main: Program },
    PackedTrees { packed: Program, count: Program },
    Chains { chain: Program },
}

struct Verifier {
    gpu: Wgpu,
    plan: Plan,
    passes: Passes,
    /// The largest number of requests whose rows fit one binding each.
    window: u64,
}

// SAFETY: the kernel keeps within the buffers and the workspace of the plan, whatever the data.
unsafe impl Supports<TreeVerify> for Wgpu {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<TreeVerify>>> {
        let window = window(self, plan);
        let is_walkable = plan.links.is_none() || plan.max_nodes() <= MAX_NODES;
        if window == 0 || !is_walkable || plan.max_depth > MAX_DEPTH {
            let words = format!(
                "tree_verify: {} nodes to a depth of {} are more than bindings hold or one \
                 thread's work, {MAX_NODES} to {MAX_DEPTH}",
                plan.max_nodes(),
                plan.max_depth,
            );
            return Err(self.error(Status::NotImplemented, words));
        }
        let program = |entry, bindings: &[_]| self.program(&SHADER, entry, bindings, &[]);
        let passes = match (plan.links, plan.row_offsets) {
            (None, _) => {
                let bindings = [Read, Read, Write, Read, Write, Write, Read, Write];
                Passes::Chains { chain: program("chain", &bindings)? }
            }
            (Some(_), None) => {
                let bindings = [Read, Read, Read, Read, Write, Write, Write, Write];
                Passes::Trees { main: program("main", &bindings)? }
            }
            (Some(_), Some(_)) => {
                let bindings = [Read, Read, Read, Read, Write, Write, Read, Write];
                let count = program("count", &[Read, Write])?;
                Passes::PackedTrees { packed: program("packed", &bindings)?, count }
            }
        };
        Ok(Box::new(Verifier { gpu: self.clone(), plan: plan.clone(), passes, window }))
    }
}

/// The largest number of requests whose rows fit one binding each; 0 where packed rows, which are
/// bound whole, do not fit one.
fn window(gpu: &Wgpu, plan: &Plan) -> u64 {
    let nodes = |nodes: &Nodes| match nodes {
        Nodes::Rows(rows) => gpu.window_of_rows(rows, 1),
        Nodes::Packed(rows) if rows.len as u64 <= gpu.window(rows.dtype.size() as u64) => u64::MAX,
        Nodes::Packed(_) => 0,
    };
    let links = |links: Option<LinkRows>| match links {
        Some(LinkRows { first_child, next_sibling }) => {
            gpu.window_of_rows(&first_child, 1).min(gpu.window_of_rows(&next_sibling, 1))
        }
        None => u64::MAX,
    };
    // A request has an offset more than there are requests.
    let offsets = plan.row_offsets.map_or(u64::MAX, |dtype| gpu.window(dtype.size() as u64) - 1);
    nodes(&plan.draft_tokens)
        .min(nodes(&plan.target_tokens))
        .min(links(plan.links))
        .min(offsets)
        .min(gpu.window_of_rows(&plan.tokens, 1))
        .min(gpu.window_of_rows(&plan.nodes, 1))
}

/// The layout of nodes' tokens.
fn layout(nodes: &Nodes) -> Layout {
    Layout { words: words(nodes.dtype()), stride: nodes.row_stride() as u32 }
}

fn words(dtype: DType) -> u32 {
    (dtype.size() / 4) as u32
}

/// What `requests` requests from `start` on have of the nodes' tokens: packed rows are bound whole.
fn part<'a>(nodes: &Nodes, region: Region<'a>, start: u64, requests: u64) -> Region<'a> {
    match nodes {
        Nodes::Rows(rows) => region.rows(rows, start, requests),
        Nodes::Packed(_) => region,
    }
}

impl Verifier {
    fn params(&self, requests: u64, has_flags: bool) -> Params {
        let plan = &self.plan;
        let given = [
            (has_flags, HAS_FLAGS),
            (plan.row_offsets.is_some(), HAS_OFFSETS),
            (plan.draft_tokens.packed().is_some(), PACKED_DRAFT),
        ];
        let none = Layout { words: 1, stride: 0 };
        Params {
            requests: requests as u32,
            nodes: match plan.draft_tokens {
                Nodes::Rows(rows) => rows.cols as u32,
                Nodes::Packed(_) => u32::MAX,
            },
            max_depth: plan.max_depth as u32,
            has: given.iter().filter(|(there, _)| *there).fold(0, |has, (_, bit)| has | bit),
            rows: plan.target_tokens.packed().unwrap_or(0) as u32,
            offset_words: plan.row_offsets.map_or(1, words),
            draft: layout(&plan.draft_tokens),
            target: layout(&plan.target_tokens),
            first_child: plan.links.map_or(none, |links| Layout::of(&links.first_child)),
            next_sibling: plan.links.map_or(none, |links| Layout::of(&links.next_sibling)),
            tokens: Layout::of(&plan.tokens),
            path: Layout::of(&plan.nodes),
        }
    }
}

// SAFETY: as for `Supports` above.
unsafe impl Kernel<TreeVerify> for Verifier {
    fn workspace_size(&self) -> usize {
        0
    }

    unsafe fn launch(
        &self,
        _: ViewMut<'_>,
        buffers: Buffers<'_>,
        stream: Stream<'_>,
    ) -> Result<()> {
        let Verifier { gpu, plan, .. } = self;
        let draft = gpu.region(&buffers.draft_tokens)?;
        let target = gpu.region(&buffers.target_tokens)?;
        let first_child = gpu.optional(&buffers.first_child)?;
        let next_sibling = gpu.optional(&buffers.next_sibling)?;
        let row_offsets = gpu.optional(&buffers.row_offsets)?;
        let tokens = gpu.region_mut(buffers.tokens)?;
        let path = gpu.region_mut(buffers.nodes)?;
        let num_tokens = gpu.region_mut(buffers.num_tokens)?;
        let flags = gpu.optional_mut(buffers.flags)?;
        let batch = plan.batch as u64;
        gpu.record("tree_verify", stream, |r| {
            let mut start = 0;
            while start < batch {
                let requests = self.window.min(batch - start);
                let params = self.params(requests, flags.bytes > 0);
                let draft = part(&plan.draft_tokens, draft, start, requests);
                let target = part(&plan.target_tokens, target, start, requests);
                let tokens = tokens.rows(&plan.tokens, start, requests);
                let path = path.rows(&plan.nodes, start, requests);
                let num_tokens = num_tokens.elements(start, requests);
                let offsets = row_offsets.elements(start, requests + 1);
                let [first, next] = match plan.links {
                    Some(links) => [
                        first_child.rows(&links.first_child, start, requests),
                        next_sibling.rows(&links.next_sibling, start, requests),
                    ],
                    None => [Region::nothing(); 2],
                };
                match &self.passes {
                    Passes::Trees { main } => {
                        let regions = [draft, target, first, next, tokens, path, num_tokens, flags];
                        r.dispatch(main, &regions, &params, requests)?;
                    }
                    Passes::PackedTrees { packed, count } => {
                        let regions = [draft, target, first, next, tokens, path, offsets, flags];
                        r.dispatch(packed, &regions, &params, requests)?;
                        let groups = requests.div_ceil(THREADS);
                        r.dispatch(count, &[path, num_tokens], &params, groups)?;
                    }
                    Passes::Chains { chain } => {
                        let none = Region::nothing();
                        let regions =
                            [draft, target, num_tokens, none, tokens, path, offsets, flags];
                        r.dispatch(chain, &regions, &params, requests)?;
                    }
                }
                start += requests;
            }
            Ok(())
        })
    }
}
