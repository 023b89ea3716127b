//! Host side of `kernels/indexer_topk.cu`.
//!
//! Its designs: candidates above a bound that rises, as WarpSelect (Johnson, Douze and
//! Jégou, 2017) and GridSelect (Zhang et al., 2023) keep them; the k-th of them by
//! digits, RadixSelect (Alabi et al., 2012). Their answer depends on which thread comes
//! first among equals; here candidates stay in order of index.

use spec_core::ops::IndexerTopk;
use spec_core::ops::indexer_topk::{Buffers, Plan};
use spec_core::{DType, Error, Kernel, Result, Status, Stream, Supports, ViewMut};

use crate::Cuda;
use crate::archive::{Archive, archive};
use crate::args::Integers;
use crate::launch::{Function, Shape};

static KERNELS: Archive = archive!("indexer_topk");

/// Threads of a block: the most for which its memory suffices.
const THREADS: [u32; 3] = [1024, 512, 256];
/// Scores of a thread in a tile.
const OF_THREAD: usize = 8;
/// Entries of two vectors' edges, which are candidates in name only.
const EDGES: usize = 16;
/// Scores that another block is worth.
const PIECE: usize = 4096;
/// Shared memory that the kernels use before the candidates, of 8 bytes each, and as
/// much as they may.
const FIXED_SHARED: u32 = 28 * 1024;
const CANDIDATE: usize = 8;

#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    scores: u64,
    stride: u64,
    lengths: Integers,
    starts: Integers,
    indices: u64,
    indices_stride: u64,
    indices_wide: u64,
    flags: u64,
    cols: u32,
    k: u32,
    capacity: u32,
    brain: u32,
}
const _: () = assert!(size_of::<Params>() == 96);

struct Prepared {
    cuda: Cuda,
    plan: Plan,
    function: Function,
    shape: Shape,
    capacity: u32,
}

/// The blocks that own a row, and the candidates of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Team {
    blocks: u32,
    threads: u32,
    capacity: u32,
}

impl Team {
    /// For so many rows, with at most `most` blocks to a row, on a device with this
    /// many multiprocessors and as much shared memory for candidates.
    fn new(plan: &Plan, most: u32, multiprocessors: u32, memory: u32) -> Self {
        let limit = memory as usize / CANDIDATE / EDGES * EDGES;
        let enough = |threads: u32| plan.k + threads as usize * OF_THREAD + EDGES;
        let fits = |&threads: &u32| enough(threads) <= limit;
        let threads = THREADS.into_iter().find(fits).unwrap_or(THREADS[THREADS.len() - 1]);
        // The kernel gives each thread a coarse bin of another block.
        let most = most.min(threads / 64);
        let worth = plan.scores.cols.div_ceil(PIECE).max(1);
        let spread = (multiprocessors as usize / plan.scores.rows.max(1)).max(1);
        let blocks = worth.next_power_of_two().min(1 << spread.ilog2()).min(most as usize);
        let piece = plan.scores.cols.div_ceil(blocks) + 2 * EDGES;
        let capacity = piece.next_multiple_of(EDGES).min(limit);
        Team { blocks: blocks as u32, threads, capacity: capacity as u32 }
    }

    fn shape(self, rows: usize) -> Option<Shape> {
        let blocks = rows.checked_mul(self.blocks as usize)?;
        let blocks = u32::try_from(blocks).ok().filter(|&blocks| blocks < 1 << 31)?;
        let shape = Shape::new(blocks, self.threads).cluster(self.blocks);
        Some(shape.shared(FIXED_SHARED + self.capacity * CANDIDATE as u32))
    }
}

// SAFETY: the kernel keeps within what the plan describes, whatever the data.
unsafe impl Supports<IndexerTopk> for Cuda {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<IndexerTopk>>> {
        let name = match plan.scores.dtype {
            DType::F32 => "indexer_topk_f32",
            _ => "indexer_topk_half",
        };
        let function = self.function(&KERNELS, name)?;
        let limits = self.limits();
        let team =
            |most| Team::new(plan, most, limits.multiprocessors, limits.shared - FIXED_SHARED);
        let shape = |team: Team| {
            team.shape(plan.scores.rows).ok_or_else(|| {
                let words = format!("{} rows are more than a grid holds", plan.scores.rows);
                Error::device(self.device(), Status::NotImplemented, words)
            })
        };
        let mut chosen = team(if limits.clusters { 16 } else { 1 });
        // More than 8 blocks are not portable: a device may not hold them.
        if chosen.blocks > 8 && !self.holds(&function, shape(chosen)?)? {
            chosen = team(8);
        }
        Ok(Box::new(Prepared {
            cuda: self.clone(),
            plan: plan.clone(),
            function,
            shape: shape(chosen)?,
            capacity: chosen.capacity,
        }))
    }
}

// SAFETY: as above.
unsafe impl Kernel<IndexerTopk> for Prepared {
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
        let dtype = |vector: &Option<spec_core::Vector>| vector.map_or(DType::I32, |v| v.dtype);
        let params = Params {
            scores: cuda.pointer(buffers.scores)?,
            stride: plan.scores.row_stride as u64,
            lengths: cuda.integers(buffers.lengths, dtype(&plan.lengths))?,
            starts: cuda.integers(buffers.starts, dtype(&plan.starts))?,
            indices: cuda.pointer(buffers.indices)?,
            indices_stride: plan.indices.row_stride as u64,
            indices_wide: u64::from(plan.indices.dtype.size() == 8),
            flags: cuda.pointer(buffers.flags)?,
            cols: plan.scores.cols as u32,
            k: plan.k as u32,
            capacity: self.capacity,
            brain: u32::from(plan.scores.dtype == DType::BF16),
        };
        // SAFETY: `Params` is the kernel's, field by field; the buffers were
        // checked against the plan, and the kernel cuts lengths and starts, which
        // are data, to the plan's sizes.
        cuda.enqueue(stream, |queue| unsafe { queue.launch(&self.function, self.shape, &params) })
    }
}
