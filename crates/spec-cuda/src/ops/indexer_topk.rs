//! Host side of `kernels/indexer_topk.cu`, and of `kernels/indexer_topk_gather.cu`, which follows
//! where values or slots are asked for.
//!
//! The design has three parts. The largest score of each group bounds which groups are
//! worth a second look, as in Dr. Top-k (Gaihre et al., 2021). Candidates are the scores above
//! a rising bound, as in WarpSelect (Johnson, Douze and Jégou, 2017) and GridSelect (Zhang et
//! al., 2023). RadixSelect (Alabi et al., 2012) finds the k-th largest candidate by digits. In
//! those papers the answer depends on which thread comes first among equal scores; here
//! candidates stay in order of index, so the answer is always the same.

#[cfg(test)]
use spec_conformance::launch_params::Header;
use spec_core::ops::IndexerTopk;
use spec_core::ops::indexer_topk::{Buffers, Pages, Plan};
use spec_core::{
    DType, Error, Kernel, Matrix, Result, Status, Stream, Supports, ViewMut, launch_params,
};

use crate::Cuda;
use crate::archive::{Archive, archive};
use crate::args::{IntegerRows, Integers, Rows};
use crate::launch::{Function, Shape};

static KERNELS: Archive = archive!("indexer_topk");
static GATHER: Archive = archive!("indexer_topk_gather");

/// The largest number of threads of a block that gathers.
const GATHER_THREADS: u32 = 256;

/// Threads of a block by digits. The first of these numbers is used for which shared memory
/// suffices.
const THREADS: [u32; 3] = [1024, 512, 256];
/// Scores that each thread takes of a tile.
const OF_THREAD: usize = 8;
/// Unused candidate entries at the edges of the first and the last vector.
const EDGES: usize = 16;
/// Scores of a row for which an additional block is worthwhile.
const PIECE: usize = 4096;
/// Shared memory that the kernels use for any plan, in bytes. The shared memory for candidates,
/// `CANDIDATE` bytes each, comes in addition.
const FIXED_SHARED: u32 = 28 * 1024;
const CANDIDATE: usize = 8;
/// Threads of a block by groups, and the number of vectors that the threads of a block hold in
/// registers. More than 8 blocks are only worthwhile if each block has more vectors than that;
/// otherwise communication costs more than the additional blocks save.
const GROUPS_THREADS: u32 = 512;
const TILE: usize = 8 * GROUPS_THREADS as usize;
/// The smallest number of columns, and of scores in all rows, for which groups are worthwhile.
/// Times on an H200 in microseconds, f32, k 2048 unless noted: by digits and by groups, for random
/// scores, for scores of which half are 0, and for descending scores. (With a `by_groups` that
/// returns `None` at once, `spec bench indexer_topk --device cuda:0 --shape
/// rows=64,cols=131072,k=2048,scores=relu` times digits. A separate program timed descending
/// scores.)
///
/// ```text
/// rows x columns      random           zeros            descending
/// 1 x 2^20            48.4   24.3
/// 8 x 2^17            30.8   15.1      31.8   21.7      30.5   37.0
/// 16 x 2^17           40.6   18.9      41.6   32.3      39.5   40.7
/// 64 x 2^17           49.4   28.1      46.1   55.0      44.0   50.0
/// 64 x 2^20           196    103       170    103       164    144
/// 64 x 2^15           20.2   15.3      20.1   21.1      18.9   26.6
/// 128 x 2^15, k 512   34.2   16.3      34.9   30.6      32.8   26.4
/// 1024 x 2^13, k 512  106    63.6      106    117       101    147
/// 256 x 2^17          142    78.1      124    193       119    118
/// ```
const GROUPS_COLS: usize = 1 << 13;
const GROUPS_SCORES: usize = 1 << 20;
/// Groups are not used for a row of a single block with more columns than the first number and
/// fewer than the second: there a plateau of equal scores would cost more than twice as much as
/// random scores.
const PLATEAU_COLS: [usize; 2] = [1 << 16, 1 << 18];
/// The piece of a block begins at a multiple of this number of vectors.
const LINE: usize = 8;
/// How rows are divided into groups. A row should have `GROUPS_OF_ONE` groups for each of its k
/// scores, and at least `LEAST_GROUPS`. To reach these numbers, a group may shrink from
/// 2^`LINE_FOLD` pairs of vectors to one pair; to fit shared memory, a group may grow to
/// 2^`MAX_FOLD` pairs. A row needs at least `ENOUGH_OF_ONE` pairs, and groups, for each of its k
/// scores.
const GROUPS_OF_ONE: usize = 4;
const LEAST_GROUPS: usize = 8192;
const LINE_FOLD: u32 = 2;
const MAX_FOLD: u32 = 4;
const ENOUGH_OF_ONE: usize = 2;

launch_params! {
    /// What the kernels of `indexer_topk` take.
    struct Params {
        /// Scores, [rows, cols] of f32, or of f16 or bf16.
        scores: Rows as "Rows<const void>",
        /// The number of scores of each row, [rows]; null: all from `starts` on.
        lengths: Integers,
        /// The column of the first score of each row, [rows]; null: column 0.
        starts: Integers,
        /// Positions of the k largest scores, counted from `starts`, then -1, [rows, k].
        indices: IntegerRows,
        /// One word of flags, or null.
        flags: u64 as "u32*",
        /// Scores of a row.
        cols: u32,
        /// How many scores are asked for.
        k: u32,
        /// How many candidates dynamic shared memory has room for, a multiple of 16. If there is
        /// less room than the scores of a piece need, there is room for more than k and a tile.
        capacity: u32,
        /// By groups: how many maxima of groups dynamic shared memory has room for, a multiple of
        /// 4.
        groups: u32,
        /// By groups: how many groups that are read again there is room for, a multiple of 4.
        listed: u32,
        /// By groups: the words of the bitmap with one bit for each score, a multiple of 4.
        words: u32,
        /// By groups: how many scores that reach the bound there is room for, a multiple of 4.
        candidates: u32,
        /// 1 if scores of 16 bits are bf16, else 0.
        brain: u32,
    }
}

launch_params! {
    /// What the kernels take that gather values and slots. `T` is the type of the scores.
    struct Gather<T> {
        /// Scores, [rows, cols].
        scores: Rows as "Rows<const T>",
        /// The column of the first score of each row, [rows]; null: column 0.
        starts: Integers,
        /// The chosen positions, counted from `starts`, then -1, [rows, k].
        indices: IntegerRows,
        /// The scores at these positions, [rows, k], or null.
        values: Rows as "Rows<float>",
        /// The slots of these positions, [rows, k], or null.
        slots: Rows as "Rows<i32>",
        /// The cache blocks of each request, [tables, blocks].
        block_table: Rows as "Rows<const i32>",
        /// The request of each row, and so its table, [rows]; null: row i has table i.
        requests: u64 as "const i32*",
        /// One word of flags, or null.
        flags: u64 as "u32*",
        /// Scores of a row.
        cols: u32,
        /// Positions of a row.
        k: u32,
        /// Thread blocks for each row.
        parts: u32,
        /// Tables.
        tables: u32,
        /// Cache blocks of a table.
        blocks: u32,
        /// Positions in a cache block.
        block_size: u32,
    }
}

#[cfg(test)]
pub(super) const HEADER: Header =
    Header { name: "indexer_topk", includes: &["ids.cuh"], structs: &[Params::DESCRIPTION] };

#[cfg(test)]
pub(super) const GATHER_HEADER: Header =
    Header { name: "indexer_topk_gather", includes: &["ids.cuh"], structs: &[Gather::DESCRIPTION] };

struct Prepared {
    cuda: Cuda,
    plan: Plan,
    function: Function,
    shape: Shape,
    team: Team,
    /// The kernel that gathers values and slots, if any are asked for.
    gather: Option<(Function, Shape)>,
}

/// The blocks that own a row, and the sizes of the arrays in the shared memory of each block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Team {
    blocks: u32,
    threads: u32,
    /// Candidates, by digits or if the data of a row turn out not to suit groups.
    capacity: u32,
    /// By groups: the number of groups, the groups that are read again, the words of a bitmap
    /// with one bit per score, and the scores that reach the bound. All four are 0 by digits.
    groups: u32,
    listed: u32,
    words: u32,
    candidates: u32,
}

impl Team {
    /// The team that selects by digits, with at most `max_blocks` blocks per row, on a device with
    /// this many multiprocessors and `memory` bytes of shared memory for candidates.
    fn by_digits(plan: &Plan, max_blocks: u32, multiprocessors: u32, memory: u32) -> Self {
        let limit = memory as usize / CANDIDATE / EDGES * EDGES;
        let enough = |threads: u32| plan.k + threads as usize * OF_THREAD + EDGES;
        let fits = |&threads: &u32| enough(threads) <= limit;
        let threads = THREADS.into_iter().find(fits).unwrap_or(THREADS[THREADS.len() - 1]);
        // Each thread of the kernel reads a coarse bin of another block, so the number of blocks
        // is limited by the number of threads.
        let max_blocks = max_blocks.min(threads / 64);
        let worth = plan.scores.cols.div_ceil(PIECE).max(1);
        let spread = (multiprocessors as usize / plan.scores.rows.max(1)).max(1);
        let blocks = worth.next_power_of_two().min(1 << spread.ilog2()).min(max_blocks as usize);
        let piece = plan.scores.cols.div_ceil(blocks) + 2 * EDGES;
        let capacity = piece.next_multiple_of(EDGES).min(limit);
        Team { blocks: blocks as u32, threads, capacity: capacity as u32, ..Team::default() }
    }

    /// The team that selects by groups; `None` if rows have too few groups, if groups are not
    /// worthwhile, or if shared memory does not suffice.
    fn by_groups(plan: &Plan, max_blocks: u32, multiprocessors: u32, memory: u32) -> Option<Self> {
        let (cols, k) = (plan.scores.cols, plan.k);
        let of_vector = 16 / plan.scores.dtype.size();
        // A row may begin and end anywhere in a vector.
        let vectors = (cols + 2 * (of_vector - 1)) / of_vector;
        if vectors / 2 < ENOUGH_OF_ONE * k {
            return None;
        }
        // Clusters of more than two blocks leave some multiprocessors idle, because the number of
        // multiprocessors in a part of the device is not always a multiple of the cluster.
        let spare = |blocks: u32| if blocks > 2 { multiprocessors / 4 } else { 0 };
        let fits = |&blocks: &u32| {
            plan.scores.rows.saturating_mul(blocks as usize)
                <= (multiprocessors - spare(blocks)) as usize
        };
        let max_blocks = if vectors >= 16 * TILE { max_blocks } else { max_blocks.min(8) };
        let teams = [16, 8, 4, 2].into_iter().filter(|&blocks| blocks <= max_blocks);
        let blocks = teams.into_iter().find(fits).unwrap_or(1);
        let [above, below] = PLATEAU_COLS;
        if cols < GROUPS_COLS
            || plan.scores.rows.saturating_mul(cols) < GROUPS_SCORES
            || (blocks == 1 && cols > above && cols < below)
        {
            return None;
        }
        let of_piece = ((vectors.div_ceil(LINE) - 1) / blocks as usize + 1) * LINE;
        let wanted = LEAST_GROUPS.max(GROUPS_OF_ONE * k);
        let least_fold = (0..LINE_FOLD).find(|fold| vectors >> (fold + 2) < wanted);
        (least_fold.unwrap_or(LINE_FOLD)..=MAX_FOLD).find_map(|fold| {
            let groups = (((of_piece - 1) >> (fold + 1)) + 1).next_multiple_of(4);
            // Groups above the bound, groups at the bound, and groups that one step adds to the
            // list.
            let listed = groups.min(2 * k + 2048).next_multiple_of(4);
            let words = (of_piece * of_vector / 32 + 1).next_multiple_of(4);
            let first = groups + words + listed / 2;
            // At the end the first block collects the scores of all blocks in the same memory.
            let room = memory as usize / 4;
            let max_candidates = (room.checked_sub(first)? / 2).min(room / 4);
            let candidates = max_candidates.min(4 * k + 2048).min(cols + EDGES) / 4 * 4;
            let bytes = 4 * first.max(2 * candidates) + CANDIDATE * candidates;
            let least = k + GROUPS_THREADS as usize * OF_THREAD + EDGES;
            let capacity = (bytes / CANDIDATE).max(least).next_multiple_of(EDGES);
            let holds = candidates >= (k + k / 4 + 512).min(cols)
                && vectors >> (fold + 1) >= ENOUGH_OF_ONE * k
                && groups <= 1 << 16
                && capacity * CANDIDATE <= memory as usize;
            holds.then_some(Team {
                blocks,
                threads: GROUPS_THREADS,
                capacity: capacity as u32,
                groups: groups as u32,
                listed: listed as u32,
                words: words as u32,
                candidates: candidates as u32,
            })
        })
    }

    fn kernel(self, dtype: DType) -> &'static str {
        match (self.groups > 0, dtype) {
            (false, DType::F32) => "indexer_topk_digits_f32",
            (false, _) => "indexer_topk_digits_half",
            (true, DType::F32) => "indexer_topk_groups_f32",
            (true, _) => "indexer_topk_groups_half",
        }
    }

    fn shape(self, rows: usize) -> Option<Shape> {
        let blocks = rows.checked_mul(self.blocks as usize)?;
        let blocks = u32::try_from(blocks).ok().filter(|&blocks| blocks < 1 << 31)?;
        let shape = Shape::new(blocks, self.threads).cluster(self.blocks);
        Some(shape.shared(FIXED_SHARED + self.capacity * CANDIDATE as u32))
    }
}

/// The number of blocks that gather for a row, and the threads of each.
fn gather_blocks(plan: &Plan) -> [u32; 2] {
    let threads = (plan.k as u32).next_multiple_of(32).min(GATHER_THREADS);
    [(plan.k as u32).div_ceil(threads), threads]
}

fn gather_shape(plan: &Plan) -> Option<Shape> {
    let [parts, threads] = gather_blocks(plan);
    let blocks = u32::try_from(plan.scores.rows).ok()?.checked_mul(parts)?;
    (blocks < 1 << 31).then(|| Shape::new(blocks, threads))
}

// SAFETY: the kernels access only the memory that the plan describes, whatever the data.
unsafe impl Supports<IndexerTopk> for Cuda {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<IndexerTopk>>> {
        let limits = self.limits();
        let memory = limits.shared - FIXED_SHARED;
        let too_many = || {
            let words = format!("{} rows are more than a grid holds", plan.scores.rows);
            Error::device(self.device(), Status::NotImplemented, words)
        };
        let shape = |team: Team| team.shape(plan.scores.rows).ok_or_else(too_many);
        let (function, shape, team) = self.within_clusters(|max| {
            let team = Team::by_groups(plan, max, limits.multiprocessors, memory)
                .unwrap_or_else(|| Team::by_digits(plan, max, limits.multiprocessors, memory));
            let function = self.function(&KERNELS, team.kernel(plan.scores.dtype))?;
            Ok((function, shape(team)?, team))
        })?;
        let gather = (plan.values.is_some() || plan.pages.is_some()).then(|| {
            let name = format!("indexer_topk_gather_{}", plan.scores.dtype);
            let shape = gather_shape(plan).ok_or_else(too_many)?;
            Ok((self.function(&GATHER, &name)?, shape))
        });
        let gather = gather.transpose()?;
        let plan = plan.clone();
        Ok(Box::new(Prepared { cuda: self.clone(), plan, function, shape, team, gather }))
    }
}

// SAFETY: the kernels access only the memory that the plan describes, whatever the data.
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
        let scores = cuda.rows(buffers.scores, &plan.scores)?;
        let starts = cuda.integers(buffers.starts, dtype(&plan.starts))?;
        let indices = cuda.integer_rows(buffers.indices, &plan.indices)?;
        let flags = cuda.pointer(buffers.flags)?;
        let params = Params {
            scores,
            lengths: cuda.integers(buffers.lengths, dtype(&plan.lengths))?,
            starts,
            indices,
            flags,
            cols: plan.scores.cols as u32,
            k: plan.k as u32,
            capacity: self.team.capacity,
            groups: self.team.groups,
            listed: self.team.listed,
            words: self.team.words,
            candidates: self.team.candidates,
            brain: u32::from(plan.scores.dtype == DType::BF16),
        };
        let Some((gather, gather_shape)) = &self.gather else {
            // SAFETY: `Params` has the layout of the kernel's struct; the buffers were
            // checked against the plan, and the kernel clamps lengths and starts, which
            // are data, to the plan's sizes.
            return cuda.enqueue(stream, |queue| unsafe {
                queue.launch(&self.function, self.shape, &params)
            });
        };
        let rows = |argument, matrix: Option<Matrix>| match matrix {
            Some(matrix) => cuda.rows(argument, &matrix),
            None => Ok(Rows::ABSENT),
        };
        // The kernel reads the table and the requests only if slots are asked for.
        let (table, requests) = match plan.pages {
            Some(pages) => {
                let table = buffers.block_table;
                (cuda.rows(table, &pages.block_table)?, cuda.pointer(buffers.requests)?)
            }
            None => (Rows::ABSENT, 0),
        };
        let of_table = |size: fn(&Pages) -> usize| plan.pages.as_ref().map_or(0, size) as u32;
        let gathered = Gather {
            scores,
            starts,
            indices,
            values: rows(buffers.values, plan.values)?,
            slots: rows(buffers.slots, plan.pages.map(|pages| pages.slots))?,
            block_table: table,
            requests,
            flags,
            cols: plan.scores.cols as u32,
            k: plan.k as u32,
            parts: gather_blocks(plan)[0],
            tables: of_table(|pages| pages.block_table.rows),
            blocks: of_table(|pages| pages.block_table.cols),
            block_size: of_table(|pages| pages.block_size),
        };
        // SAFETY: as above for the kernel that chooses. `Gather` has the layout of the struct of
        // the kernel that gathers, whose blocks cover `rows` times `k` outputs. That kernel skips
        // positions beyond a row, requests without a table and positions without a block.
        cuda.enqueue(stream, |queue| unsafe {
            queue.launch(&self.function, self.shape, &params)?;
            queue.launch(gather, *gather_shape, &gathered)
        })
    }
}
