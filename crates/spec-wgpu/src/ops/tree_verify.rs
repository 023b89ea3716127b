//! Walks down trees of drafts: one workgroup per request.

use bytemuck::{Pod, Zeroable};
#[cfg(test)]
use spec_conformance::launch_params::Header;
use spec_core::launch_params;
use spec_core::ops::TreeVerify;
use spec_core::ops::tree_verify::{Buffers, Plan};
use spec_core::{Kernel, Result, Status, Stream, Supports, ViewMut};

use super::Layout;
use crate::Wgpu;
use crate::memory::Region;
use crate::shader::Access::{Read, Write};
use crate::shader::{Program, Shader, shader};

pub(super) static SHADER: Shader = shader!("tree_verify");

/// The largest number of nodes that one thread looks at, and the largest depth that 64 threads pad:
/// see the rules in [`super`].
const MAX_NODES: usize = 60_000;
const MAX_DEPTH: usize = MAX_NODES * 64;

launch_params! {
    /// What the shader of `tree_verify` takes.
    struct Params: Pod, Zeroable {
        /// Nodes of a tree, its root included.
        nodes: u32,
        /// The most drafts on a path.
        max_depth: u32,
        /// 1 where `flags` is there, else 0.
        has_flags: u32,
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
}

#[cfg(test)]
pub(super) const HEADER: Header =
    Header { name: "tree_verify", includes: &["bound"], structs: &[Params::DESCRIPTION] };

struct Verifier {
    gpu: Wgpu,
    plan: Plan,
    main: Program,
    /// The largest number of requests whose rows fit one binding each.
    window: u64,
}

// SAFETY: the kernel keeps within the buffers and the workspace of the plan, whatever the data.
unsafe impl Supports<TreeVerify> for Wgpu {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<TreeVerify>>> {
        let bindings = [Read, Read, Read, Read, Write, Write, Write, Write];
        let main = self.program(&SHADER, "main", &bindings, &[])?;
        let rows = [
            &plan.draft_tokens,
            &plan.target_tokens,
            &plan.first_child,
            &plan.next_sibling,
            &plan.tokens,
            &plan.nodes,
        ];
        let window = rows.map(|rows| self.window_of_rows(rows, 1));
        let window = window.into_iter().min().unwrap_or(0);
        if window == 0 || plan.tree() > MAX_NODES || plan.max_depth > MAX_DEPTH {
            let words = format!(
                "tree_verify: {} nodes to a depth of {} are more than one thread's work, \
                 {MAX_NODES} to {MAX_DEPTH}",
                plan.tree(),
                plan.max_depth,
            );
            return Err(self.error(Status::NotImplemented, words));
        }
        Ok(Box::new(Verifier { gpu: self.clone(), plan: plan.clone(), main, window }))
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
        let first_child = gpu.region(&buffers.first_child)?;
        let next_sibling = gpu.region(&buffers.next_sibling)?;
        let tokens = gpu.region_mut(buffers.tokens)?;
        let path = gpu.region_mut(buffers.nodes)?;
        let num_tokens = gpu.region_mut(buffers.num_tokens)?;
        let flags = buffers.flags.map_or(Ok(Region::nothing()), |flags| gpu.region_mut(flags))?;
        let params = Params {
            nodes: plan.tree() as u32,
            max_depth: plan.max_depth as u32,
            has_flags: u32::from(flags.bytes > 0),
            draft: Layout::of(&plan.draft_tokens),
            target: Layout::of(&plan.target_tokens),
            first_child: Layout::of(&plan.first_child),
            next_sibling: Layout::of(&plan.next_sibling),
            tokens: Layout::of(&plan.tokens),
            path: Layout::of(&plan.nodes),
        };
        let batch = plan.batch() as u64;
        gpu.record("tree_verify", stream, |r| {
            let mut start = 0;
            while start < batch {
                let requests = self.window.min(batch - start);
                let regions = [
                    draft.rows(&plan.draft_tokens, start, requests),
                    target.rows(&plan.target_tokens, start, requests),
                    first_child.rows(&plan.first_child, start, requests),
                    next_sibling.rows(&plan.next_sibling, start, requests),
                    tokens.rows(&plan.tokens, start, requests),
                    path.rows(&plan.nodes, start, requests),
                    num_tokens.elements(start, requests),
                    flags,
                ];
                r.dispatch(&self.main, &regions, &params, requests)?;
                start += requests;
            }
            Ok(())
        })
    }
}
