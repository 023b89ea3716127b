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
const THREADS: [u32; 5] = [MAX_THREADS, 512, 256, 128, 64];
/// The largest number of picks per thread.
const MAX_STEPS: u32 = 8;
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
const SMALL_PICKS: usize = 1 << 14;
const MEDIUM_PICKS: usize = 1 << 18;
/// The largest number of pairs of counts that each block sums by itself: 256 KiB.
const MAX_PAIRS: usize = 1 << 16;
/// Up to `WARP_PICKS` picks, every warp ranks all picks. Blocks then have `WARP_THREADS` threads, and
/// there is a block for every `WARP_PLACES` places or every `WARP_EXPERTS` experts, whichever are
/// more blocks. On an H200 with 256 experts, this takes 2.2 us for 1 token and 2.8 us for 4
/// tokens; one block that counts takes 4.3 us for either.
const WARP_PICKS: usize = 32;
const WARP_THREADS: u32 = 256;
const WARP_PLACES: usize = 1024;
const WARP_EXPERTS: usize = 64;

launch_params! {
    /// The parameters of the kernels of `moe_align`.
    struct Params {
        /// The expert of each pick, [tokens, k].
        ids: Integers,
        /// The distance between the first picks of neighbouring tokens.
        stride: u64,
        /// The local expert of each expert, [experts], -1 for none; null: all experts are local.
        map: u64 as "const i32*",
        /// The picks, sorted by local expert, [capacity]; the number of picks stands for no pick.
        sorted: u64 as "i32*",
        /// The local expert of each block of `sorted`, [capacity / block_size], -1 for none.
        block_experts: u64 as "i32*",
        /// The number of picks of each local expert, [locals].
        counts: u64 as "i32*",
        /// The start of each local expert's run in `sorted`, and the end of the last run, [locals +
        /// 1].
        offsets: u64 as "i32*",
        /// The end of the last run, one number.
        num_padded: u64 as "i32*",
        /// The index of each pick in `sorted`, [picks], -1 for none; or null.
        inverse: u64 as "i32*",
        /// One word of flags, or null.
        flags: u64 as "u32*",
        /// With two launches, the picks of each local expert in each block, [blocks, pairs]; with
        /// three launches, the picks of each local expert in each block, then in all blocks,
        /// [blocks + 1, locals].
        workspace: u64 as "u32*",
        /// The number of picks of all tokens.
        picks: u32,
        /// The number of picks of a token; 0 if all picks are contiguous.
        k: u32,
        /// The number of experts.
        experts: u32,
        /// The number of local experts.
        locals: u32,
        /// The length of a run is a multiple of this number.
        block_size: u32,
        /// The number of places of `sorted`.
        capacity: u32,
        /// The largest number of picks of a thread.
        steps: u32,
        /// The number of blocks that divide the picks.
        blocks: u32,
        /// The number of pairs of 16-bit counts in a row of the workspace, if `moe_align_sum` is
        /// not launched; else 0.
        pairs: u32,
        reserved: u32,
    }

    /// The largest number of threads of a block.
    const MAX_THREADS: u32 = 1024;
}

#[cfg(test)]
pub(super) const HEADER: Header =
    Header { name: "moe_align", includes: &["common.cuh"], structs: &[Params::DESCRIPTION] };

/// The number of blocks that divide the picks, of threads of a block, and of picks per thread
/// (`steps`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Team {
    blocks: u32,
    threads: u32,
    steps: u32,
}

impl Team {
    /// A team of `blocks` blocks with the fewest steps that cover all picks.
    fn new(picks: usize, blocks: u32, threads: u32) -> Self {
        let steps = picks.div_ceil((blocks * threads) as usize).max(1);
        Team { blocks, threads, steps: steps.min(u32::MAX as usize) as u32 }
    }

    /// Size of the dynamic shared memory of a block in bytes: the arrays of `Shared` in the kernel.
    fn shared(self, locals: u32) -> u32 {
        let words = 4 * locals + 1 + 2 * self.steps.min(MAX_STEPS) * self.threads;
        let counters = locals.next_multiple_of(2) + self.threads / 32 * locals;
        (4 * words + 2 * counters).next_multiple_of(4)
    }

    fn shape(self, locals: u32) -> Shape {
        Shape::new(self.blocks, self.threads).shared(self.shared(locals))
    }
}

enum Launches {
    /// Every warp ranks all picks, at most one pick per lane.
    SingleWarp(Function),
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
        let wanted = if picks <= SMALL_PICKS {
            256
        } else if picks <= MEDIUM_PICKS {
            512
        } else {
            1024
        };
        let fits = |&threads: &u32| {
            let fullest = Team { blocks: 1, threads, steps: MAX_STEPS };
            threads <= wanted && fullest.shared(locals as u32) <= limits.shared - FIXED_SHARED
        };
        let threads = THREADS.into_iter().find(fits).unwrap_or(THREADS[THREADS.len() - 1]);
        let layout = plan.has_layout.then(|| Layout::new(self)).transpose()?;
        let prepared = |launches, team| {
            let (cuda, plan, layout) = (self.clone(), plan.clone(), layout.clone());
            Box::new(Prepared { cuda, plan, launches, team, layout })
        };
        if picks <= WARP_PICKS {
            let blocks = plan.capacity.div_ceil(WARP_PLACES).max(locals.div_ceil(WARP_EXPERTS));
            let blocks = blocks.clamp(1, limits.multiprocessors as usize) as u32;
            let function = self.function(&KERNELS, "moe_align_single_warp")?;
            let team = Team::new(picks, blocks, WARP_THREADS);
            return Ok(prepared(Launches::SingleWarp(function), team));
        }
        if picks <= ONE_PICKS {
            let one = self.function(&KERNELS, "moe_align_one")?;
            let wanted = picks.div_ceil(PICKS).max(plan.capacity.div_ceil(PLACES)).max(1);
            let wanted = wanted.next_power_of_two().min(16) as u32;
            let fullest = Team { blocks: wanted, threads, steps: MAX_STEPS }.shape(locals as u32);
            let team = Team::new(picks, self.cluster_at_most(&one, fullest, wanted)?, threads);
            if team.steps <= MAX_STEPS {
                return Ok(prepared(Launches::One(one), team));
            }
        }
        let spread = Team::new(picks, limits.multiprocessors, threads);
        let steps = spread.steps.min(MAX_STEPS);
        let blocks = picks.div_ceil((threads * steps) as usize) as u32;
        let sums = blocks as usize * pairs(locals) > MAX_PAIRS;
        let launches = Launches::Several {
            count: self.function(&KERNELS, "moe_align_count")?,
            sum: sums.then(|| self.function(&KERNELS, "moe_align_sum")).transpose()?,
            place: self.function(&KERNELS, "moe_align_place")?,
        };
        Ok(prepared(launches, Team { blocks, threads, steps }))
    }
}

// SAFETY: the kernels access only the memory that the plan describes, whatever the data.
unsafe impl Kernel<MoeAlign> for Prepared {
    fn workspace_size(&self) -> usize {
        match self.launches {
            Launches::SingleWarp(_) | Launches::One(_) => 0,
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
            steps: team.steps,
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
                Launches::SingleWarp(function) => {
                    queue.launch(function, Shape::new(team.blocks, team.threads), &params)?;
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
    use spec_core::DType;

    use super::super::routes::route;
    use super::*;
    use crate::limits::Limits;

    #[test]
    fn the_smallest_memory_holds_a_team_for_any_number_of_experts() {
        let smallest = Team { blocks: 1, threads: THREADS[THREADS.len() - 1], steps: MAX_STEPS };
        assert!(smallest.shared(4096) + FIXED_SHARED <= 99 * 1024);
        assert_eq!(Team::new(0, 1, 1024).steps, 1);
        assert_eq!(Team::new(131_072, 16, 1024).steps, 8);
    }

    /// The kernels and launch shapes that an H100 takes for calls of an engine.
    #[test]
    fn an_h100_takes_the_kernels_that_were_tuned_for_it() {
        let align = |tokens| {
            let operator = MoeAlign::new(256, 64);
            route(Limits::H100, &operator, &operator.tensors(DType::I32, tokens, 8))
        };
        let calls = [
            (align(1), "moe_align_single_warp (16 blocks of 256 threads)"),
            (align(64), "moe_align_one (2 blocks of 256 threads in clusters of 2)"),
            (
                align(1 << 16),
                "moe_align_count (128 blocks of 1024 threads), \
                 moe_align_place (128 blocks of 1024 threads)",
            ),
        ];
        for (given, expected) in calls {
            assert_eq!(given, expected);
        }
    }
}
