//! Host side of `kernels/moe_align_layout.cu`: the token of each place and how far each block is
//! filled. Its kernel runs after those of `kernels/moe_align.cu`, and has an archive of its own, so
//! that a call without these outputs runs the same machine code as before they existed.

#[cfg(test)]
use spec_conformance::launch_params::Header;
use spec_core::ops::moe_align::Plan;
use spec_core::{Result, launch_params};

use crate::Cuda;
use crate::archive::{Archive, archive};
use crate::launch::{Function, Queue, Shape};
use crate::ops::moe_align;

static KERNELS: Archive = archive!("moe_align_layout");

const THREADS: u32 = 256;

launch_params! {
    /// The parameters of the kernel `moe_align_layout`.
    struct Params {
        /// The picks, sorted by local expert, [capacity]; the number of picks stands for no pick.
        sorted: u64 as "const u32*",
        /// The local expert of each block of `sorted`, [blocks], -1 for none.
        block_experts: u64 as "const u32*",
        /// The number of picks of each local expert, [locals].
        counts: u64 as "const u32*",
        /// The start of each local expert's run in `sorted`, and the end of the last run, [locals +
        /// 1].
        offsets: u64 as "const u32*",
        /// The end of the last run, one number.
        num_padded: u64 as "const u32*",
        /// The token of each place, [capacity], -1 for none; or null.
        tokens: u64 as "i32*",
        /// The end of the picks in each block, [blocks], 0 after the last run; or null.
        limits: u64 as "i32*",
        /// The number of blocks that belong to a run, one number; or null.
        num_blocks: u64 as "u32*",
        /// The number of picks of all tokens.
        picks: u32,
        /// The number of picks of a token.
        k: u32,
        /// The number of local experts.
        locals: u32,
        /// The number of places of a block.
        block_size: u32,
        /// The number of places of `sorted`.
        capacity: u32,
        /// The number of blocks of `sorted`.
        blocks: u32,
    }
}

#[cfg(test)]
pub(super) const HEADER: Header =
    Header { name: "moe_align_layout", includes: &["common.cuh"], structs: &[Params::DESCRIPTION] };

/// Says more of the layout.
#[derive(Clone)]
pub(super) struct Layout {
    function: Function,
    k: u32,
    blocks: u32,
}

impl Layout {
    pub(super) fn new(cuda: &Cuda, plan: &Plan) -> Result<Self> {
        let function = cuda.function(&KERNELS, "moe_align_layout")?;
        Ok(Layout { function, k: plan.topk_ids.cols as u32, blocks: plan.blocks() as u32 })
    }

    /// # Safety
    /// The addresses in `params` are those of the plan's buffers, `outputs` are those of
    /// `sorted_tokens`, `block_limits` and `num_blocks`, each of which may be null.
    pub(super) unsafe fn enqueue(
        &self,
        queue: &Queue<'_>,
        params: &moe_align::Params,
        [tokens, limits, num_blocks]: [u64; 3],
    ) -> Result<()> {
        let moe_align::Params { sorted, block_experts, counts, offsets, num_padded, .. } = *params;
        let moe_align::Params { picks, locals, block_size, capacity, .. } = *params;
        let params = Params {
            sorted,
            block_experts,
            counts,
            offsets,
            num_padded,
            tokens,
            limits,
            num_blocks,
            picks,
            k: self.k,
            locals,
            block_size,
            capacity,
            blocks: self.blocks,
        };
        // At least one block, for `num_blocks`.
        let blocks = capacity.div_ceil(THREADS).max(1);
        // SAFETY: the caller promised that the addresses are valid, and the kernel compares each
        // expert, which is data, with the number of local experts.
        unsafe { queue.launch(&self.function, Shape::new(blocks, THREADS), &params) }
    }
}
