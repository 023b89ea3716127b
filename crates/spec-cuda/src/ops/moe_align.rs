//! Host side of `kernels/moe_align.cu`. `moe_align_layout.rs` has what follows where
//! `sorted_tokens`, `block_limits` or `num_blocks` is asked for.
//!
//! The design is a counting sort. Within a warp, ballots find the lanes with equal experts,
//! which gives each pick its rank: the multisplit of Ashkiani et al. (2016). So the picks of
//! an expert keep their order. Other kernels for this task add to atomic counters, and their
//! order changes from run to run.

#[cfg(test)]
use spec_conformance::launch_params::Header;
use spec_core::ops::MoeAlign;
use spec_core::ops::moe_align::{Buffers, Plan};
use spec_core::{Kernel, Result, Stream, Supports, ViewMut, launch_params};

use crate::Cuda;
use crate::archive::{Archive, archive};
use crate::args::Integers;
use crate::kernel::{Function, Shape};
use crate::ops::moe_align_layout::{self, Layout};

static KERNELS: Archive = archive!("moe_align");

/// Threads of a block. The first of these numbers is used for which shared memory suffices.
const THREADS: [u32; 5] = [1024, 512, 256, 128, 64];
/// The largest number of picks per thread.
const MAX_TURNS: u32 = 8;
/// Shared memory that the kernels use in addition to the dynamic shared memory, in bytes.
const FIXED_SHARED: u32 = 512;
/// Up to `ONE_PICKS` picks, one launch of a cluster does everything. The cluster has a block for every
/// `PICKS` picks or every `PLACES` places of the output, whichever are more blocks. Times on an H100
/// with 256 experts, in microseconds, with 256, 512 and 1024 threads per block:
///
/// ```text
/// tokens, top 8   a cluster   two launches, blocks of 256 / 512 / 1024 threads
/// 256             5.4         5.7
/// 1024            6.3         5.7   6.2   8.3
/// 4096            8.3         8.1   6.8   8.4
/// 16384                       9.6   8.7   10.2
/// ```
const PICKS: usize = 256;
const PLACES: usize = 1 << 16;
const ONE_PICKS: usize = 2048;
/// The largest numbers of picks for which blocks have 256 threads or fewer, and 512 or fewer.
const FEWER: usize = 1 << 14;
const MANY: usize = 1 << 18;
/// The largest number of pairs of counts that each block sums by itself: 256 KiB.
const MAX_PAIRS: usize = 1 << 16;
/// Up to `FEW` picks, every warp ranks all picks. Blocks then have `FEW_THREADS` threads, and
/// there is a block for every `FEW_PLACES` places or every `FEW_EXPERTS` experts, whichever are
/// more blocks. On an H200 with 256 experts, this takes 2.2 us for 1 token and 2.8 us for 4
/// tokens; one block that counts takes 4.3 us for either.
const FEW: usize = 32;
const FEW_THREADS: u32 = 256;
const FEW_PLACES: usize = 1024;
const FEW_EXPERTS: usize = 64;

launch_params! {
    /// What the kernels of `moe_align` take.
    struct Params {
        /// The expert of each pick, [tokens, k].
        ids: Integers,
        /// Picks from one token's first to the next one's.
        stride: u64,
        /// The local expert of each expert, [experts], -1 for none; null: experts are local.
        map: u64 as "const i32*",
        /// Picks by local expert, [capacity]; the number of picks stands for none.
        sorted: u64 as "i32*",
        /// The local expert of each block of `sorted`, [capacity / block_size], -1 for none.
        block_experts: u64 as "i32*",
        /// Picks of each local expert, [locals].
        counts: u64 as "i32*",
        /// Where the run of each local expert starts in `sorted`, and the end, [locals + 1].
        offsets: u64 as "i32*",
        /// The end of the runs, one number.
        num_padded: u64 as "i32*",
        /// Where each pick is in `sorted`, [picks], -1 for nowhere; or null.
        inverse: u64 as "i32*",
        /// One word of flags, or null.
        flags: u64 as "u32*",
        /// Picks of each local expert in each block, [blocks, pairs], of two launches; in each block, then
        /// in all, [blocks + 1, locals], of three launches.
        workspace: u64 as "u32*",
        /// Picks of all tokens.
        picks: u32,
        /// Picks of a token; 0 where all picks lie one behind the other.
        k: u32,
        /// Experts.
        experts: u32,
        /// Local experts.
        locals: u32,
        /// Places of `sorted` that a run's length is a multiple of.
        block_size: u32,
        /// Places of `sorted`.
        capacity: u32,
        /// Picks of a thread, at most.
        turns: u32,
        /// Blocks that share the picks.
        blocks: u32,
        /// Pairs of counts in a row of the workspace, as words of 16 bits each, where no `moe_align_sum` is
        /// launched; else 0.
        pairs: u32,
        reserved: u32,
    }
}

#[cfg(test)]
pub(super) const HEADER: Header =
    Header { name: "moe_align", includes: &["common.cuh"], structs: &[Params::DESCRIPTION] };

/// The blocks that share the picks, the threads of a block, and the picks per thread (`turns`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Team {
    blocks: u32,
    threads: u32,
    turns: u32,
}

impl Team {
    /// A team of `blocks` blocks with the fewest turns that cover all picks.
    fn new(picks: usize, blocks: u32, threads: u32) -> Self {
        let turns = picks.div_ceil((blocks * threads) as usize).max(1);
        Team { blocks, threads, turns: turns.min(u32::MAX as usize) as u32 }
    }

    /// Size of the dynamic shared memory of a block in bytes: the arrays of `Shared` in the kernel.
    fn shared(self, locals: u32) -> u32 {
        let words = 4 * locals + 1 + 2 * self.turns.min(MAX_TURNS) * self.threads;
        let counters = locals.next_multiple_of(2) + self.threads / 32 * locals;
        (4 * words + 2 * counters).next_multiple_of(4)
    }

    fn shape(self, locals: u32) -> Shape {
        Shape::new(self.blocks, self.threads).shared(self.shared(locals))
    }
}

enum Launches {
    /// At most one pick per lane.
    Few(Function),
    /// One launch of a single block or a single cluster.
    One(Function),
    /// Two launches, or three with `sum`.
    Several { count: Function, sum: Option<Function>, place: Function },
}

/// Pairs of counts for so many local experts: at least one, so that 0 can stand for none.
fn pairs(locals: usize) -> usize {
    locals.div_ceil(2).max(1)
}

struct Prepared {
    cuda: Cuda,
    plan: Plan,
    launches: Launches,
    team: Team,
    layout: Option<Layout>,
}

// SAFETY: the kernels access only the memory that the plan describes, whatever the data.
unsafe impl Supports<MoeAlign> for Cuda {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<MoeAlign>>> {
        let (locals, picks) = (plan.params.local_experts, plan.picks());
        let limits = self.limits();
        let wanted = if picks <= FEWER {
            256
        } else if picks <= MANY {
            512
        } else {
            1024
        };
        let fits = |&threads: &u32| {
            let fullest = Team { blocks: 1, threads, turns: MAX_TURNS };
            threads <= wanted && fullest.shared(locals as u32) <= limits.shared - FIXED_SHARED
        };
        let threads = THREADS.into_iter().find(fits).unwrap_or(THREADS[THREADS.len() - 1]);
        let layout = plan.has_layout.then(|| Layout::new(self)).transpose()?;
        let prepared = |launches, team| {
            let (cuda, plan, layout) = (self.clone(), plan.clone(), layout.clone());
            Box::new(Prepared { cuda, plan, launches, team, layout })
        };
        if picks <= FEW {
            let blocks = plan.capacity.div_ceil(FEW_PLACES).max(locals.div_ceil(FEW_EXPERTS));
            let blocks = blocks.clamp(1, limits.multiprocessors as usize) as u32;
            let few = self.function(&KERNELS, "moe_align_few")?;
            return Ok(prepared(Launches::Few(few), Team::new(picks, blocks, FEW_THREADS)));
        }
        if picks <= ONE_PICKS {
            let one = self.function(&KERNELS, "moe_align_one")?;
            let wanted = picks.div_ceil(PICKS).max(plan.capacity.div_ceil(PLACES)).max(1);
            let wanted = wanted.next_power_of_two().min(16) as u32;
            let fullest = Team { blocks: wanted, threads, turns: MAX_TURNS }.shape(locals as u32);
            let team = Team::new(picks, self.cluster_at_most(&one, fullest, wanted)?, threads);
            if team.turns <= MAX_TURNS {
                return Ok(prepared(Launches::One(one), team));
            }
        }
        let spread = Team::new(picks, limits.multiprocessors, threads);
        let turns = spread.turns.min(MAX_TURNS);
        let blocks = picks.div_ceil((threads * turns) as usize) as u32;
        let sums = blocks as usize * pairs(locals) > MAX_PAIRS;
        let launches = Launches::Several {
            count: self.function(&KERNELS, "moe_align_count")?,
            sum: sums.then(|| self.function(&KERNELS, "moe_align_sum")).transpose()?,
            place: self.function(&KERNELS, "moe_align_place")?,
        };
        Ok(prepared(launches, Team { blocks, threads, turns }))
    }
}

// SAFETY: the kernels access only the memory that the plan describes, whatever the data.
unsafe impl Kernel<MoeAlign> for Prepared {
    fn workspace_size(&self) -> usize {
        match self.launches {
            Launches::Few(_) | Launches::One(_) => 0,
            Launches::Several { sum: None, .. } => {
                self.team.blocks as usize * pairs(self.plan.params.local_experts) * 4
            }
            // A row of counts per block, and a row of their sums.
            Launches::Several { sum: Some(_), .. } => {
                (self.team.blocks as usize + 1) * self.plan.params.local_experts * 4
            }
        }
    }

    unsafe fn launch(
        &self,
        workspace: ViewMut<'_>,
        buffers: Buffers<'_>,
        stream: Stream<'_>,
    ) -> Result<()> {
        let Prepared { cuda, plan, team, .. } = self;
        let packed = plan.topk_ids.rows <= 1 || plan.topk_ids.row_stride == plan.topk_ids.cols;
        let locals = plan.params.local_experts as u32;
        let params = Params {
            ids: cuda.integers(buffers.topk_ids, plan.topk_ids.dtype)?,
            stride: plan.topk_ids.row_stride as u64,
            map: cuda.pointer(buffers.expert_map)?,
            sorted: cuda.pointer(buffers.sorted_ids)?,
            block_experts: cuda.pointer(buffers.block_experts)?,
            counts: cuda.pointer(buffers.counts)?,
            offsets: cuda.pointer(buffers.offsets)?,
            num_padded: cuda.pointer(buffers.num_padded)?,
            inverse: cuda.pointer(buffers.inverse)?,
            flags: cuda.pointer(buffers.flags)?,
            workspace: cuda.workspace(workspace, self.workspace_size())?,
            picks: plan.picks() as u32,
            k: if packed { 0 } else { plan.topk_ids.cols as u32 },
            experts: plan.params.experts as u32,
            locals,
            block_size: plan.params.block_size as u32,
            capacity: plan.capacity as u32,
            turns: team.turns,
            blocks: team.blocks,
            pairs: match self.launches {
                Launches::Several { sum: None, .. } => pairs(locals as usize) as u32,
                _ => 0,
            },
            reserved: 0,
        };
        let shape = team.shape(locals);
        let more = moe_align_layout::Params {
            sorted: params.sorted,
            block_experts: params.block_experts,
            counts: params.counts,
            offsets: params.offsets,
            num_padded: params.num_padded,
            tokens: cuda.pointer(buffers.sorted_tokens)?,
            limits: cuda.pointer(buffers.block_limits)?,
            num_blocks: cuda.pointer(buffers.num_blocks)?,
            picks: params.picks,
            k: plan.topk_ids.cols as u32,
            locals,
            block_size: params.block_size,
            capacity: params.capacity,
            blocks: plan.blocks() as u32,
        };
        // SAFETY: `Params` has the layout of the kernels' struct; the buffers were
        // checked against the plan, and the kernels compare every expert, which is
        // data, with the plan's sizes before using it as an index.
        cuda.enqueue(stream, |queue| unsafe {
            match &self.launches {
                Launches::Few(few) => {
                    queue.launch(few, Shape::new(team.blocks, team.threads), &params)?;
                }
                Launches::One(one) => queue.launch(one, shape.cluster(team.blocks), &params)?,
                Launches::Several { count, sum: Some(sum), place } => {
                    queue.launch(count, shape, &params)?;
                    // One warp per local expert.
                    let sums = Shape::new(locals.div_ceil(8), 256);
                    queue.launch(sum, sums, &params)?;
                    queue.launch(place, shape, &params)?;
                }
                Launches::Several { count, sum: None, place } => {
                    queue.launch(count, shape, &params)?;
                    queue.launch_next(place, shape, &params)?;
                }
            }
            let Some(layout) = &self.layout else { return Ok(()) };
            layout.enqueue(queue, &more)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_memory_holds_a_team_for_any_number_of_experts() {
        let smallest = Team { blocks: 1, threads: THREADS[THREADS.len() - 1], turns: MAX_TURNS };
        assert!(smallest.shared(4096) + FIXED_SHARED <= 99 * 1024);
        assert_eq!(Team::new(0, 1, 1024).turns, 1);
        assert_eq!(Team::new(131_072, 16, 1024).turns, 8);
    }
}
