//! Host side of `kernels/tree_verify.cu`.

use spec_core::ops::TreeVerify;
use spec_core::ops::tree_verify::{Buffers, Plan};
use spec_core::{Kernel, Matrix, Result, Stream, Supports, ViewMut};

use crate::Cuda;
use crate::archive::{Archive, archive};
use crate::args::Located;
use crate::launch::{Function, Shape};

static KERNELS: Archive = archive!("tree_verify");

/// Threads of a block: a node each, as far as that goes.
const THREADS: std::ops::RangeInclusive<usize> = 32..=256;
/// Bytes of shared memory a node.
const NODE: usize = 16;
/// Shared memory that the kernels use beside the tree.
const FIXED_SHARED: usize = 64;

/// Rows of integers of either width.
#[repr(C)]
#[derive(Clone, Copy)]
struct IntegerRows {
    data: u64,
    stride: u64,
    wide: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    draft: IntegerRows,
    target: IntegerRows,
    first_child: IntegerRows,
    next_sibling: IntegerRows,
    tokens: IntegerRows,
    path: IntegerRows,
    num_tokens: u64,
    flags: u64,
    batch: u64,
    nodes: u32,
    max_depth: u32,
}
const _: () = assert!(size_of::<Params>() == 176);

struct Prepared {
    cuda: Cuda,
    plan: Plan,
    function: Function,
    shape: Shape,
}

// SAFETY: the kernel keeps within what the plan describes, whatever the data.
unsafe impl Supports<TreeVerify> for Cuda {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<TreeVerify>>> {
        let bytes = plan.tree().saturating_mul(NODE);
        let staged = bytes <= self.limits().shared as usize - FIXED_SHARED;
        let name = if staged { "tree_verify_staged" } else { "tree_verify_any" };
        // Blocks take more requests each where the grid cannot hold them all.
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

// SAFETY: as above.
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
            draft: rows(cuda, buffers.draft_tokens, &plan.draft_tokens)?,
            target: rows(cuda, buffers.target_tokens, &plan.target_tokens)?,
            first_child: rows(cuda, buffers.first_child, &plan.first_child)?,
            next_sibling: rows(cuda, buffers.next_sibling, &plan.next_sibling)?,
            tokens: rows(cuda, buffers.tokens, &plan.tokens)?,
            path: rows(cuda, buffers.nodes, &plan.nodes)?,
            num_tokens: cuda.pointer(buffers.num_tokens)?,
            flags: cuda.pointer(buffers.flags)?,
            batch: plan.batch() as u64,
            nodes: plan.tree() as u32,
            max_depth: plan.max_depth as u32,
        };
        // SAFETY: `Params` is the kernel's, field by field; the buffers were
        // checked against the plan, and the kernel checks every pointer of the
        // tree, which is data, against the plan's sizes.
        cuda.enqueue(stream, |queue| unsafe { queue.launch(&self.function, self.shape, &params) })
    }
}

fn rows(cuda: &Cuda, argument: impl Located, matrix: &Matrix) -> Result<IntegerRows> {
    let (stride, wide) = (matrix.row_stride as u64, u64::from(matrix.dtype.size() == 8));
    Ok(IntegerRows { data: cuda.pointer(argument)?, stride, wide })
}
