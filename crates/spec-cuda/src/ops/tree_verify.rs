//! Host side of `kernels/tree_verify.cu`.

#[cfg(test)]
use spec_conformance::launch_params::Header;
use spec_core::ops::TreeVerify;
use spec_core::ops::tree_verify::{Buffers, Plan};
use spec_core::{Kernel, Result, Stream, Supports, ViewMut, launch_params};

use crate::Cuda;
use crate::archive::{Archive, archive};
use crate::args::IntegerRows;
use crate::launch::{Function, Shape};

static KERNELS: Archive = archive!("tree_verify");

/// The smallest and the largest number of threads in a block; between them, one thread per node.
const THREADS: std::ops::RangeInclusive<usize> = 32..=256;
/// Bytes of shared memory per node.
const NODE: usize = 16;
/// Shared memory that the kernels use in addition to the nodes, in bytes.
const FIXED_SHARED: usize = 64;

launch_params! {
    /// What the kernels of `tree_verify` take.
    struct Params {
        /// The drafted token of each node, [batch, nodes].
        draft: IntegerRows,
        /// The token that the target model chose after each node, [batch, nodes].
        target: IntegerRows,
        /// The first child of each node, [batch, nodes], -1 for none.
        first_child: IntegerRows,
        /// The next sibling of each node, [batch, nodes], -1 for none.
        next_sibling: IntegerRows,
        /// Tokens that each request emits, then -1, [batch, max_depth + 1].
        tokens: IntegerRows,
        /// The nodes of the accepted path from the root on, then -1, [batch, max_depth + 1].
        path: IntegerRows,
        /// How many tokens each request emits, [batch].
        num_tokens: u64 as "i32*",
        /// One word of flags, or null.
        flags: u64 as "u32*",
        /// Requests.
        batch: u64,
        /// Nodes of a tree, its root included.
        nodes: u32,
        /// The most drafts on a path.
        max_depth: u32,
    }
}

#[cfg(test)]
pub(super) const HEADER: Header =
    Header { name: "tree_verify", includes: &["ids.cuh"], structs: &[Params::DESCRIPTION] };

struct Prepared {
    cuda: Cuda,
    plan: Plan,
    function: Function,
    shape: Shape,
}

// SAFETY: the kernel accesses only the memory that the plan describes, whatever the data.
unsafe impl Supports<TreeVerify> for Cuda {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<TreeVerify>>> {
        let bytes = plan.tree().saturating_mul(NODE);
        let staged = bytes <= self.limits().shared as usize - FIXED_SHARED;
        let name = if staged { "tree_verify_staged" } else { "tree_verify_any" };
        // If there are more requests than blocks, each block takes several requests.
        let blocks = plan.batch().min(1 << 30) as u32;
        let threads = plan.tree().next_multiple_of(32).clamp(*THREADS.start(), *THREADS.end());
        let shape = Shape::new(blocks, threads as u32);
        Ok(Box::new(Prepared {
            cuda: self.clone(),
            plan: plan.clone(),
            function: self.function(&KERNELS, name)?,
            shape: if staged { shape.shared(bytes as u32) } else { shape },
        }))
    }
}

// SAFETY: the kernel accesses only the memory that the plan describes, whatever the data.
unsafe impl Kernel<TreeVerify> for Prepared {
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
            draft: cuda.integer_rows(buffers.draft_tokens, &plan.draft_tokens)?,
            target: cuda.integer_rows(buffers.target_tokens, &plan.target_tokens)?,
            first_child: cuda.integer_rows(buffers.first_child, &plan.first_child)?,
            next_sibling: cuda.integer_rows(buffers.next_sibling, &plan.next_sibling)?,
            tokens: cuda.integer_rows(buffers.tokens, &plan.tokens)?,
            path: cuda.integer_rows(buffers.nodes, &plan.nodes)?,
            num_tokens: cuda.pointer(buffers.num_tokens)?,
            flags: cuda.pointer(buffers.flags)?,
            batch: plan.batch() as u64,
            nodes: plan.tree() as u32,
            max_depth: plan.max_depth as u32,
        };
        // SAFETY: `Params` has the layout of the kernel's struct; the buffers were
        // checked against the plan, and the kernel checks every child and sibling
        // index of the tree, which are data, against the plan's sizes.
        cuda.enqueue(stream, |queue| unsafe { queue.launch(&self.function, self.shape, &params) })
    }
}
