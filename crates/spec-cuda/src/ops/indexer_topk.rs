//! Host side of `kernels/indexer_topk.cu`.
//!
//! Its designs: the largest of each group bounds what is worth a second look, as in
//! Dr. Top-k (Gaihre et al., 2021), and the k-th of what is left by digits, RadixSelect
//! (Alabi et al., 2012). Their answer depends on which thread comes first among equals;
//! here candidates stay in order of index.

use spec_core::ops::IndexerTopk;
use spec_core::ops::indexer_topk::{Buffers, Plan};
use spec_core::{DType, Error, Kernel, Result, Status, Stream, Supports, ViewMut};

use crate::Cuda;
use crate::archive::{Archive, archive};
use crate::args::Integers;
use crate::launch::{Function, Shape};

static KERNELS: Archive = archive!("indexer_topk");

const THREADS: u32 = 1024;
/// The most blocks that own a row.
const MAX_TEAM: u32 = 16;
/// Scores that another block is worth.
const PIECE: usize = 4096;
/// Shared memory that the kernels use before what depends on the plan.
const FIXED_SHARED: u32 = 28 * 1024;
/// Bytes of a group's maximum, of a group that is read again, and of a score that reaches
/// the bound; of the memory they get a third, a sixth and a half.
const GROUP: usize = 4;
const LISTED: usize = 4;
const CANDIDATE: usize = 8;
/// Counts of each are multiples of this, and a row may have so many vectors more than its
/// scores fill.
const STEP: usize = 16;

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
    groups: u32,
    listed: u32,
    candidates: u32,
    brain: u32,
}
const _: () = assert!(size_of::<Params>() == 104);

struct Prepared {
    cuda: Cuda,
    plan: Plan,
    function: Function,
    shape: Shape,
    team: Team,
}

/// The blocks that own a row, and what shared memory holds of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Team {
    blocks: u32,
    groups: u32,
    listed: u32,
    candidates: u32,
}

impl Team {
    /// For so many rows, with at most `most` blocks to a row, on a device with this
    /// many multiprocessors and as much shared memory for what depends on the plan.
    fn new(plan: &Plan, most: u32, multiprocessors: u32, memory: u32) -> Self {
        let (memory, cols) = (memory as usize, plan.scores.cols);
        let worth = cols.div_ceil(PIECE).max(1);
        let spread = (multiprocessors as usize / plan.scores.rows.max(1)).max(1);
        let blocks = worth.next_power_of_two().min(1 << spread.ilog2()).min(most as usize);
        // A group is a vector of 16 bytes, or more where those are too many.
        let vectors = (cols * plan.scores.dtype.size()).div_ceil(16) + 1;
        let most_groups = (vectors.div_ceil(blocks) + 1).next_multiple_of(STEP);
        let groups = (memory / 3 / GROUP / STEP * STEP).min(most_groups);
        let listed = (memory / 6 / LISTED / STEP * STEP).min(groups);
        let most_candidates = (cols.div_ceil(blocks) + STEP) * blocks;
        let candidates = (memory - groups * GROUP - listed * LISTED) / CANDIDATE;
        let candidates = candidates.min(most_candidates.next_multiple_of(STEP)) / STEP * STEP;
        Team {
            blocks: blocks as u32,
            groups: groups as u32,
            listed: listed as u32,
            candidates: candidates as u32,
        }
    }

    fn shape(self, rows: usize) -> Option<Shape> {
        let blocks = rows.checked_mul(self.blocks as usize)?;
        let blocks = u32::try_from(blocks).ok().filter(|&blocks| blocks < 1 << 31)?;
        let bytes = self.groups as usize * GROUP
            + self.listed as usize * LISTED
            + self.candidates as usize * CANDIDATE;
        let shape = Shape::new(blocks, THREADS).cluster(self.blocks);
        Some(shape.shared(FIXED_SHARED + bytes as u32))
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
        let mut chosen = team(if limits.clusters { MAX_TEAM } else { 1 });
        // More than 8 blocks are not portable: a device may not hold them.
        if chosen.blocks > 8 && !self.holds(&function, shape(chosen)?)? {
            chosen = team(8);
        }
        Ok(Box::new(Prepared {
            cuda: self.clone(),
            plan: plan.clone(),
            function,
            shape: shape(chosen)?,
            team: chosen,
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
            groups: self.team.groups,
            listed: self.team.listed,
            candidates: self.team.candidates,
            brain: u32::from(plan.scores.dtype == DType::BF16),
        };
        // SAFETY: `Params` is the kernel's, field by field; the buffers were
        // checked against the plan, and the kernel cuts lengths and starts, which
        // are data, to the plan's sizes.
        cuda.enqueue(stream, |queue| unsafe { queue.launch(&self.function, self.shape, &params) })
    }
}
