//! Host side of `kernels/tree_verify.cu`.

#[cfg(test)]
use spec_conformance::launch_params::Header;
use spec_core::ops::TreeVerify;
use spec_core::ops::tree_verify::{Buffers, Nodes, Plan};
use spec_core::{DType, Kernel, Matrix, Result, Stream, Supports, View, ViewMut, launch_params};

use crate::Cuda;
use crate::archive::{Archive, archive};
use crate::args::{IntegerRows, Integers};
use crate::kernel::{Function, Shape};

static KERNELS: Archive = archive!("tree_verify");

/// The smallest and the largest number of threads in a block; between them, one thread per node.
const THREADS: std::ops::RangeInclusive<usize> = 32..=MAX_THREADS;
/// Shared memory that the kernels use in addition to the nodes, in bytes.
const FIXED_SHARED: usize = 64;

launch_params! {
    /// The parameters of the kernels of `tree_verify`.
    struct Params {
        /// The draft token of each node, [batch, nodes]; [rows] if `packed_draft`.
        draft: IntegerRows,
        /// The token that the target model chose after each node, [batch, nodes]; [rows] if there
        /// are `row_offsets`.
        target: IntegerRows,
        /// The first child of each node, [batch, nodes], -1 for none. Null for chains.
        first_child: IntegerRows,
        /// The next sibling of each node, [batch, nodes], -1 for none. Null for chains.
        next_sibling: IntegerRows,
        /// The first row of each request, followed by the end, [batch + 1], or null.
        row_offsets: Integers,
        /// The tokens that each request emits, followed by -1, [batch, max_depth + 1].
        tokens: IntegerRows,
        /// The nodes of the accepted path from the root on, followed by -1, [batch, max_depth + 1].
        path: IntegerRows,
        /// The number of tokens that each request emits, [batch].
        num_tokens: u64 as "i32*",
        /// One word of flags, or null.
        flags: u64 as "u32*",
        /// The number of requests.
        batch: u64,
        /// The number of packed rows.
        rows: u64,
        /// The number of nodes of a tree, including the root; the largest u32 if draft tokens are
        /// packed.
        nodes: u32,
        /// The largest number of drafts on a path.
        max_depth: u32,
        /// 1 if draft tokens are packed, else 0.
        packed_draft: u32,
        reserved: u32,
    }

    /// The largest number of threads of a block.
    const MAX_THREADS: usize = 256;
    /// Threads of a block that follows a chain: one warp, which looks at 32 nodes at a time.
    const CHAIN_THREADS: u32 = 32;
    /// Bytes of shared memory per node.
    const NODE: usize = 16;
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
        let nodes = plan.max_nodes();
        // If there are more requests than blocks, each block takes several requests.
        let blocks = plan.batch.min(1 << 30) as u32;
        let bytes = nodes.saturating_mul(NODE);
        let (name, shape) = if plan.links.is_none() {
            ("tree_verify_chain", Shape::new(blocks, CHAIN_THREADS))
        } else {
            let threads = nodes.next_multiple_of(32).clamp(*THREADS.start(), *THREADS.end());
            let shape = Shape::new(blocks, threads as u32);
            match bytes <= self.limits().shared as usize - FIXED_SHARED {
                true => ("tree_verify_staged", shape.shared(bytes as u32)),
                false => ("tree_verify_global", shape),
            }
        };
        let function = self.function(&KERNELS, name)?;
        Ok(Box::new(Prepared { cuda: self.clone(), plan: plan.clone(), function, shape }))
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
        let nodes = |view, nodes: &Nodes| {
            let Integers { data, wide } = cuda.integers(view, nodes.dtype())?;
            Ok(IntegerRows { data, stride: nodes.row_stride() as u64, wide })
        };
        let links = |view: Option<View<'_>>, rows: Option<Matrix>| match rows {
            Some(rows) => cuda.integer_rows(view, &rows),
            None => Ok(IntegerRows::ABSENT),
        };
        let params = Params {
            draft: nodes(buffers.draft_tokens, &plan.draft_tokens)?,
            target: nodes(buffers.target_tokens, &plan.target_tokens)?,
            first_child: links(buffers.first_child, plan.links.map(|links| links.first_child))?,
            next_sibling: links(buffers.next_sibling, plan.links.map(|links| links.next_sibling))?,
            row_offsets: cuda
                .integers(buffers.row_offsets, plan.row_offsets.unwrap_or(DType::I32))?,
            tokens: cuda.integer_rows(buffers.tokens, &plan.tokens)?,
            path: cuda.integer_rows(buffers.nodes, &plan.nodes)?,
            num_tokens: cuda.pointer(buffers.num_tokens)?,
            flags: cuda.pointer(buffers.flags)?,
            batch: plan.batch as u64,
            rows: plan.target_tokens.packed().unwrap_or(0) as u64,
            nodes: match plan.draft_tokens {
                Nodes::Rows(rows) => rows.cols as u32,
                Nodes::Packed(_) => u32::MAX,
            },
            max_depth: plan.max_depth as u32,
            packed_draft: u32::from(plan.draft_tokens.packed().is_some()),
            reserved: 0,
        };
        // SAFETY: `Params` has the layout of the kernel's struct; the buffers were
        // checked against the plan, and the kernel checks every child and sibling
        // index of the tree and every offset of rows, which are data, against the plan's sizes.
        cuda.enqueue(stream, |queue| unsafe { queue.launch(&self.function, self.shape, &params) })
    }
}
