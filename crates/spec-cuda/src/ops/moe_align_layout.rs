//! Host side of `kernels/moe_align_layout.cu`: the token of each place and how far each block is
//! filled. Its kernel runs after those of `kernels/moe_align.cu`, and has an archive of its own, so
//! that a call without these outputs runs the same machine code as before they existed.

#[cfg(test)]
use spec_conformance::launch_params::Header;
use spec_core::{Result, launch_params};

use crate::Cuda;
use crate::archive::{Archive, archive};
use crate::kernel::{Function, Queue, Shape};

static KERNELS: Archive = archive!("moe_align_layout");

launch_params! {
    /// The parameters of the kernel `moe_align_layout`.
    pub(super) struct Params {
        /// The picks, sorted by local expert, [capacity]; the number of picks stands for no pick.
        pub(super) sorted: u64 as "const u32*",
        /// The local expert of each block of `sorted`, [blocks], -1 for none.
        pub(super) block_experts: u64 as "const u32*",
        /// The number of picks of each local expert, [locals].
        pub(super) counts: u64 as "const u32*",
        /// The start of each local expert's run in `sorted`, and the end of the last run, [locals +
        /// 1].
        pub(super) offsets: u64 as "const u32*",
        /// The end of the last run, one number.
        pub(super) num_padded: u64 as "const u32*",
        /// The token of each place, [capacity], -1 for none; or null.
        pub(super) tokens: u64 as "i32*",
        /// The end of the picks in each block, [blocks], 0 after the last run; or null.
        pub(super) limits: u64 as "i32*",
        /// The number of blocks that belong to a run, one number; or null.
        pub(super) num_blocks: u64 as "u32*",
        /// The number of picks of all tokens.
        pub(super) picks: u32,
        /// The number of picks of a token.
        pub(super) k: u32,
        /// The number of local experts.
        pub(super) locals: u32,
        /// The number of places of a block.
        pub(super) block_size: u32,
        /// The number of places of `sorted`.
        pub(super) capacity: u32,
        /// The number of blocks of `sorted`.
        pub(super) blocks: u32,
    }

    /// Threads of a block.
    const THREADS: u32 = 256;
}

#[cfg(test)]
pub(super) const HEADER: Header =
    Header { name: "moe_align_layout", includes: &["common.cuh"], structs: &[Params::DESCRIPTION] };

/// Says more of the layout.
#[derive(Clone)]
pub(super) struct Layout(Function);

impl Layout {
    pub(super) fn new(cuda: &Cuda) -> Result<Self> {
        Ok(Layout(cuda.function(&KERNELS, "moe_align_layout")?))
    }

    /// # Safety
    /// The addresses in `params` are those of the plan's buffers; `tokens`, `limits` and
    /// `num_blocks` may be null.
    pub(super) unsafe fn enqueue(&self, queue: &Queue<'_>, params: &Params) -> Result<()> {
        // At least one block, for `num_blocks`.
        let blocks = params.capacity.div_ceil(THREADS).max(1);
        // SAFETY: the caller promised that the addresses are valid, and the kernel compares each
        // expert, which is data, with the number of local experts.
        unsafe { queue.launch(&self.0, Shape::new(blocks, THREADS), params) }
    }
}
