//! Host side of `kernels/indexer_topk.cu`, and of `kernels/indexer_topk_gather.cu`, which follows
//! where values or slots are asked for. The kernels of `kernels/indexer_topk_blocks.cu` come first
//! where not each score of a row stands for a position. Rows whose keys a block holds in
//! shared memory have a kernel of their own: [`indexer_topk_row`](whole_row).
//!
//! The maxima of groups of a part of the row give a bound for the scores that are worth listing, as
//! in Dr. Top-k (Gaihre et al., 2021). By digits, candidates are the scores above a rising bound, as
//! in WarpSelect (Johnson, Douze and Jégou, 2017) and GridSelect (Zhang et al., 2023), and
//! RadixSelect (Alabi et al., 2012) finds the k-th largest candidate. In those papers the answer
//! depends on which thread comes first among equal scores; here the first of equal scores are found
//! by their index, so the answer is always the same.

#[cfg(test)]
use spec_conformance::launch_params::Header;
use spec_core::ops::IndexerTopk;
use spec_core::ops::indexer_topk::{Buffers, Pages, Plan};
use spec_core::{DType, Kernel, Result, Stream, Supports, ViewMut, launch_params};

use super::indexer_topk_blocks::{Arguments, Notes, Prologue, grid};
use super::indexer_topk_row as whole_row;
use crate::Cuda;
use crate::archive::{Archive, archive};
use crate::args::{IntegerRows, Integers, Rows};
use crate::kernel::{Function, Shape};
use crate::shape::WARP;

static KERNELS: Archive = archive!("indexer_topk");
static GATHER: Archive = archive!("indexer_topk_gather");

/// Threads of a block by digits. The first of these numbers is used for which shared memory
/// suffices.
const THREADS: [u32; 3] = [MAX_THREADS, 512, 256];
/// Unused candidate entries at the edges of the first and the last vector.
const EDGES: usize = 16;
/// Scores of a row for which an additional block is worthwhile.
const PIECE: usize = 4096;
/// Shared memory that the kernels use for any plan, in bytes. The shared memory for candidates,
/// `CANDIDATE` bytes each, comes in addition.
const FIXED_SHARED: u32 = 28 * 1024;
const CANDIDATE: usize = 8;
/// Threads of a block by a bound in a launch in which multiprocessors have two blocks each.
const PAIR_THREADS: u32 = 256;
/// Shared memory of a multiprocessor that each block takes in addition to its own.
const RESERVED_SHARED: u32 = 1024;
/// More than 8 blocks are only worthwhile for a row with more vectors than that; otherwise
/// communication costs more than the additional blocks save.
const WIDE_VECTORS: usize = 1 << 16;
/// Vectors that a warp reads at once. The piece of a block begins at a multiple of this number.
const CHUNK: usize = 32;
/// The smallest number of columns, and of scores in all rows, for which a bound is worthwhile. A
/// bound is worthwhile for a row of `LONG_COLS` columns in any case.
const BOUND_COLS: usize = 1 << 13;
const BOUND_SCORES: usize = 1 << 20;
const LONG_COLS: usize = 1 << 17;
/// The largest number of scores that a list has room for, so that 16 bits hold a count of them.
const MAX_LISTED: usize = 1 << 14;
/// The words of a listed score and its bit.
const LISTED_WORDS: usize = 2;

launch_params! {
    /// The parameters of the kernels of `indexer_topk`.
    struct Params {
        /// Scores, [rows, cols] of f32, or of f16 or bf16.
        scores: Rows as "Rows<const void>",
        /// The number of scores of each row, [rows]; null: all from `starts` on.
        lengths: Integers,
        /// The column of the first score of each row, [rows]; null: column 0.
        starts: Integers,
        /// The positions of the k largest scores, counted from `starts`, followed by -1, [rows, k].
        indices: IntegerRows,
        /// One word of flags, or null.
        flags: u64 as "u32*",
        /// The number of columns of `scores`.
        cols: u32,
        /// The number of wanted scores of each row.
        k: u32,
        /// The number of candidates for which dynamic shared memory has room, a multiple of 16. If
        /// there is not room for all scores of a piece, there is room for more than k candidates
        /// and a tile.
        capacity: u32,
        /// By a bound: the number of words of the bitmap with one bit for each score of a piece, a
        /// multiple of 4.
        words: u32,
        /// By a bound: the number of scores for which the list of each block has room, a multiple
        /// of 4. There is room for more than k scores, or for all scores.
        candidates: u32,
        /// 1 if scores of 16 bits are bf16, else 0.
        brain: u32,
    }

    /// The largest number of threads of a block by digits.
    const MAX_THREADS: u32 = 1024;
    /// By digits: scores of a tile that a thread holds while its scores of the next tile are loaded. The
    /// two tiles of a block are 64 KB of f32, twice what is needed to hide the latency of memory.
    const OF_THREAD: usize = 8;
    /// The largest number of threads of a block by a bound. In a task of few instructions, a warp spends
    /// as much time on finding its part as on working on it, so few warps with many scores each are
    /// faster.
    const BOUND_THREADS: u32 = 512;
    /// By a bound: scores of a tile that a thread has in registers, one for each bit of a word.
    const OF_TILE: usize = 32;
    /// By a bound: words of each thread that are in flight to shared memory at any time.
    const STAGED_WORDS: usize = 32;
}

launch_params! {
    /// The parameters of the kernels that gather values and slots. `T` is the type of the scores.
    struct Gather<T> {
        /// Scores, [rows, cols].
        scores: Rows as "Rows<const T>",
        /// The column of the first score of each row, [rows]; null: column 0.
        starts: Integers,
        /// The chosen positions, counted from `starts`, followed by -1, [rows, k].
        indices: IntegerRows,
        /// The scores at the chosen positions, [rows, k], or null.
        values: Rows as "Rows<float>",
        /// The slots of the chosen positions, [rows, k], or null.
        slots: Rows as "Rows<i32>",
        /// The cache blocks of each request, [tables, blocks].
        block_table: Rows as "Rows<const i32>",
        /// The request of each row, which is the number of its table, [rows]; null: row i has table
        /// i.
        requests: u64 as "const i32*",
        /// One word of flags, or null.
        flags: u64 as "u32*",
        /// The number of columns of `scores`.
        cols: u32,
        /// The number of positions of a row.
        k: u32,
        /// The number of thread blocks for each row.
        parts: u32,
        /// The number of tables.
        tables: u32,
        /// The number of cache blocks of a table.
        blocks: u32,
        /// The number of positions in a cache block.
        block_size: u32,
        /// To finish: what the first kernel noted of each row, [3, rows]; see `Blocks`.
        notes: u64 as "const u32*",
        /// To finish: the position of each score, in rows as those of `scores`; null: the index of
        /// the score.
        positions: u64 as "const i32*",
        /// To finish: the number of rows.
        rows: u32,
        /// To finish: how many of the first blocks are always chosen.
        forced_first: u32,
        /// To finish: how many of the last blocks are always chosen.
        forced_last: u32,
        /// To finish: how many of the other blocks are chosen, if there are enough.
        room: u32,
    }

    /// The largest number of threads of a block.
    const GATHER_THREADS: u32 = 256;
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
    /// The kernel before the choice, where not each score of a row stands for a position.
    prologue: Option<Prologue>,
    /// The kernel that chooses; `None` if no score decides.
    choice: Option<Choice>,
    /// The kernel that gathers values and slots, if any are asked for; or the one that also finishes
    /// the indices.
    gather: Option<(Function, Shape)>,
}

struct Choice {
    function: Function,
    shape: Shape,
    team: Team,
}

/// The blocks that own a row, and the sizes of the arrays in the shared memory of each block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Team {
    blocks: u32,
    threads: u32,
    /// Candidates, by digits or if the data of a row turn out not to suit a bound.
    capacity: u32,
    /// By a bound: the words of a bitmap with one bit per score, and the scores that are listed.
    /// Both are 0 by digits.
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

    /// The team that selects by a bound; `None` if rows are too short for their k, if a bound is
    /// not worthwhile, or if shared memory does not suffice.
    fn by_bound(plan: &Plan, max_blocks: u32, multiprocessors: u32, memory: u32) -> Option<Self> {
        let (rows, cols) = (plan.scores.rows, plan.scores.cols);
        let worthwhile = cols >= LONG_COLS || rows.saturating_mul(cols) >= BOUND_SCORES;
        if cols < BOUND_COLS || !worthwhile {
            return None;
        }
        // Clusters of more than two blocks leave some multiprocessors idle, because the number of
        // multiprocessors in a part of the device is not always a multiple of the cluster.
        let spare = |blocks: u32| if blocks > 2 { multiprocessors / 4 } else { 0 };
        let fits = |&blocks: &u32| {
            rows.saturating_mul(blocks as usize) <= (multiprocessors - spare(blocks)) as usize
        };
        let max_blocks =
            if vectors_of(plan) >= WIDE_VECTORS { max_blocks } else { max_blocks.min(8) };
        let teams = [16, 8, 4, 2].into_iter().filter(|&blocks| blocks <= max_blocks);
        let blocks = teams.into_iter().find(fits).unwrap_or(1);
        // While a block waits at a barrier, another block on the same multiprocessor can run.
        let half = ((memory + FIXED_SHARED) / 2 - RESERVED_SHARED).checked_sub(FIXED_SHARED);
        let pair = half
            .filter(|_| rows > multiprocessors as usize && blocks <= PAIR_THREADS / WARP)
            .and_then(|half| Self::of_blocks(plan, blocks, PAIR_THREADS, half));
        pair.or_else(|| Self::of_blocks(plan, blocks, BOUND_THREADS, memory))
    }

    /// The team of so many blocks and threads that selects by a bound.
    fn of_blocks(plan: &Plan, blocks: u32, threads: u32, memory: u32) -> Option<Self> {
        let k = plan.k;
        let of_vector = 16 / plan.scores.dtype.size();
        let tile = OF_TILE / of_vector * threads as usize;
        let vectors = vectors_of(plan);
        let of_piece = vectors.div_ceil(CHUNK).div_ceil(blocks as usize) * CHUNK;
        let tiles = of_piece.div_ceil(tile);
        // The condition of `Sample` in the kernel: the tiles have enough groups for a bound.
        if 4 * first_rank(k, tiles) > 3 * (vectors / tiles).min(blocks as usize * tile) {
            return None;
        }
        let words = of_piece * of_vector / 32;
        // Tiles on their way to shared memory, and then the keys that all blocks have listed.
        let staged = STAGED_WORDS * threads as usize;
        let room = (memory as usize / 4).checked_sub(words + staged)? / LISTED_WORDS;
        let enough = (plan.scores.cols + EDGES).next_multiple_of(4);
        let candidates = room.min(MAX_LISTED).min(enough) / 4 * 4;
        let bytes = 4 * (words + staged + LISTED_WORDS * candidates);
        let least = k + threads as usize * OF_THREAD + EDGES;
        let capacity = bytes.div_ceil(CANDIDATE).max(least).next_multiple_of(EDGES);
        // About so many scores of a piece are above the first bound.
        let expected = first_rank(k, tiles * blocks as usize) * tiles;
        let needed = (k + k / 4 + 512).max(expected + expected / 2).min(enough);
        let holds = candidates >= needed && capacity * CANDIDATE <= memory as usize;
        holds.then_some(Team {
            blocks,
            threads,
            capacity: capacity as u32,
            words: words as u32,
            candidates: candidates as u32,
        })
    }

    fn kernel(self, dtype: DType) -> &'static str {
        match (self.words > 0, dtype) {
            (false, DType::F32) => "indexer_topk_digits_f32",
            (false, _) => "indexer_topk_digits_half",
            (true, DType::F32) => "indexer_topk_bound_f32",
            (true, _) => "indexer_topk_bound_half",
        }
    }

    fn shape(self, blocks: u32) -> Shape {
        let shape = Shape::new(blocks, self.threads).cluster(self.blocks);
        shape.shared(FIXED_SHARED + self.capacity * CANDIDATE as u32)
    }
}

/// The largest number of vectors of a row, which may begin and end anywhere in a vector.
fn vectors_of(plan: &Plan) -> usize {
    let of_vector = 16 / plan.scores.dtype.size();
    (plan.scores.cols + 2 * (of_vector - 1)) / of_vector
}

/// The rank of the first bound: `first_rank` of the kernel.
fn first_rank(k: usize, tiles: usize) -> usize {
    let mean = k / tiles;
    if tiles == 1 { k } else { mean + mean / 8 + 40 }
}

/// The number of blocks that gather for a row, and the threads of each.
fn gather_blocks(plan: &Plan) -> [u32; 2] {
    let threads = (plan.k as u32).next_multiple_of(32).min(GATHER_THREADS);
    [(plan.k as u32).div_ceil(threads), threads]
}

impl Cuda {
    /// The kernel that chooses among the scores of `plan`.
    fn choice(&self, plan: &Plan) -> Result<Choice> {
        let rows = plan.scores.rows;
        let limits = self.limits();
        let memory = limits.shared - FIXED_SHARED;
        // The teams choose among all scores: `k` is what the blocks that are always chosen leave.
        let mut plan = plan.clone();
        plan.k = plan.room();
        let (function, shape, team) = self.within_clusters(|max| {
            let team = Team::by_bound(&plan, max, limits.multiprocessors, memory)
                .unwrap_or_else(|| Team::by_digits(&plan, max, limits.multiprocessors, memory));
            let function = self.function(&KERNELS, team.kernel(plan.scores.dtype))?;
            let blocks = grid(self, rows, rows.saturating_mul(team.blocks as usize))?;
            Ok((function, team.shape(blocks), team))
        })?;
        Ok(Choice { function, shape, team })
    }
}

// SAFETY: the kernels access only the memory that the plan describes, whatever the data.
unsafe impl Supports<IndexerTopk> for Cuda {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<IndexerTopk>>> {
        if whole_row::fits(plan) {
            return Ok(Box::new(whole_row::Prepared::new(self, plan)?));
        }
        let prologue = Prologue::new(self, plan)?;
        let chosen = prologue.as_ref().map_or_else(|| plan.clone(), |p| p.chosen_from(plan));
        let choice = (plan.room() > 0).then(|| self.choice(&chosen)).transpose()?;
        let is_finished = plan.candidates.is_some() || plan.blocks.forced() > 0;
        let is_gathered = plan.values.is_some() || plan.pages.is_some();
        let gather = (is_gathered || is_finished).then(|| {
            let kernel = if is_finished { "finish" } else { "gather" };
            let name = format!("indexer_topk_{kernel}_{}", chosen.scores.dtype);
            let [parts, threads] = gather_blocks(plan);
            let rows = plan.scores.rows;
            let blocks = grid(self, rows, rows.saturating_mul(parts as usize))?;
            Ok((self.function(&GATHER, &name)?, Shape::new(blocks, threads)))
        });
        let (gather, plan) = (gather.transpose()?, plan.clone());
        let cuda = self.clone();
        Ok(Box::new(Prepared { cuda, plan, prologue, choice, gather }))
    }
}

impl Prepared {
    /// The parameters of the kernel that gathers or finishes. The scores and the starts of `given`
    /// are those that were chosen from, and `notes` what the kernel before the choice left.
    fn gather_params(&self, given: &Arguments, notes: Option<Notes>, cols: usize) -> Gather {
        let plan = &self.plan;
        let of_table = |size: fn(&Pages) -> usize| plan.pages.as_ref().map_or(0, size) as u32;
        Gather {
            scores: given.scores,
            starts: given.starts,
            indices: given.indices,
            values: given.values,
            slots: given.slots,
            block_table: given.block_table,
            requests: given.requests,
            flags: given.flags,
            cols: cols as u32,
            k: plan.k as u32,
            parts: gather_blocks(plan)[0],
            tables: of_table(|pages| pages.block_table.rows),
            blocks: of_table(|pages| pages.block_table.cols),
            block_size: of_table(|pages| pages.block_size),
            notes: notes.map_or(0, |notes| notes.notes),
            positions: notes.map_or(0, |notes| notes.positions),
            rows: plan.scores.rows as u32,
            forced_first: plan.blocks.forced_first as u32,
            forced_last: plan.blocks.forced_last as u32,
            room: plan.room() as u32,
        }
    }

    /// The parameters of a team that chooses among `cols` scores.
    fn team_params(&self, team: &Team, given: &Arguments, cols: usize) -> Params {
        let plan = &self.plan;
        let mut indices = given.indices;
        // Blocks that are always chosen come first.
        indices.data += (plan.blocks.forced_first * plan.indices.dtype.size()) as u64;
        let is_copied = self.prologue.as_ref().is_some_and(Prologue::is_copied);
        Params {
            scores: given.scores,
            lengths: given.lengths,
            starts: given.starts,
            indices,
            flags: given.flags,
            cols: cols as u32,
            k: plan.room() as u32,
            capacity: team.capacity,
            words: team.words,
            candidates: team.candidates,
            brain: u32::from(plan.scores.dtype == DType::BF16 && !is_copied),
        }
    }
}

// SAFETY: the kernels access only the memory that the plan describes, whatever the data.
unsafe impl Kernel<IndexerTopk> for Prepared {
    fn workspace_size(&self) -> usize {
        let rows = self.plan.scores.rows;
        self.prologue.as_ref().map_or(0, |prologue| prologue.workspace_size(rows))
    }

    unsafe fn launch(
        &self,
        workspace: ViewMut<'_>,
        buffers: Buffers<'_>,
        stream: Stream<'_>,
    ) -> Result<()> {
        let Prepared { cuda, plan, .. } = self;
        let mut given = Arguments::new(cuda, plan, buffers)?;
        let workspace = cuda.workspace(workspace, self.workspace_size())?;
        let first = self.prologue.as_ref().map(|p| (p, p.launch(plan, &given, workspace)));
        let mut notes = None;
        // The scores to choose from, and how many a row has at most.
        let mut cols = plan.scores.cols;
        if let Some((prologue, (written, _))) = &first {
            notes = Some(*written);
            if prologue.is_copied() {
                (given.scores, cols) = (prologue.scores(*written), plan.items());
            }
            (given.starts, given.lengths) = (written.starts(), written.lengths());
        }
        let gathered = self.gather_params(&given, notes, cols);
        // SAFETY: `Blocks`, `Params` and `Gather` have the layouts of the kernels' structs;
        // the buffers were checked against the plan. The first kernel and the one that chooses clamp
        // lengths and starts, which are data, to the plan's sizes, and a candidate has at most as
        // many covered columns as columns. The last kernel's blocks cover `rows` times `k` outputs;
        // it skips positions beyond a row, requests without a table and positions without a block.
        // Each kernel waits for the one before it (`follow`).
        cuda.enqueue(stream, |queue| unsafe {
            if let Some((_, (_, (function, shape, params)))) = &first {
                queue.launch(function, *shape, params)?;
            }
            if let Some(Choice { function, shape, team }) = &self.choice {
                let params = self.team_params(team, &given, cols);
                match first {
                    Some(_) => queue.launch_next(function, *shape, &params)?,
                    None => queue.launch(function, *shape, &params)?,
                }
            }
            match &self.gather {
                Some((gather, shape)) => queue.launch_next(gather, *shape, &gathered),
                None => Ok(()),
            }
        })
    }
}

#[cfg(test)]
mod routes;
#[cfg(test)]
mod tests {
    use spec_core::Operator;

    use super::*;

    fn plan(dtype: DType, rows: usize, cols: usize, k: usize) -> Plan {
        let operator = IndexerTopk::new(k);
        operator.plan(&operator.tensors(dtype, rows, cols)).expect("a plan")
    }

    #[test]
    fn a_team_by_a_bound_has_room_and_fits_every_device() {
        let shapes = [1, 3, 16, 64, 132, 1024].into_iter().flat_map(|rows| {
            [1000, 8192, 100_003, 1 << 17, 1 << 20, 1 << 24].map(move |cols| (rows, cols))
        });
        for (rows, cols) in shapes {
            for (dtype, k) in [(DType::F32, 1), (DType::F32, 2048), (DType::BF16, 4096)] {
                for (max_blocks, memory) in [(1, 71 << 10), (8, 71 << 10), (16, 199 << 10)] {
                    let plan = plan(dtype, rows, cols, k);
                    let Some(team) = Team::by_bound(&plan, max_blocks, 132, memory) else {
                        continue;
                    };
                    let what = format!("{dtype}, {rows} x {cols}, k {k}: {team:?}");
                    let staged = STAGED_WORDS as u32 * team.threads;
                    let bytes = 4 * (team.words + staged + LISTED_WORDS as u32 * team.candidates);
                    assert!(bytes <= team.capacity * CANDIDATE as u32, "{what}");
                    assert!(team.capacity * CANDIDATE as u32 <= memory, "{what}");
                    assert!(team.words * 32 * team.blocks >= cols as u32, "{what}");
                    assert_eq!((team.words % 4, team.candidates % 4), (0, 0), "{what}");
                    assert!(team.candidates as usize >= (k + 16).min(cols + 16), "{what}");
                    assert!(team.candidates < 1 << 15, "{what}");
                    // Each block has a warp for each block of the team.
                    assert!(team.blocks <= max_blocks.min(team.threads / WARP), "{what}");
                }
            }
        }
    }

    #[test]
    fn teams_by_a_bound_fill_the_device() {
        let blocks = |rows, cols| {
            let team = Team::by_bound(&plan(DType::F32, rows, cols, 2048), 16, 132, 199 << 10);
            team.map(|team| team.blocks)
        };
        assert_eq!(blocks(1, 1 << 16), None);
        assert_eq!(blocks(1, 1 << 17), Some(8));
        assert_eq!(blocks(8, 1 << 17), Some(8));
        assert_eq!(blocks(16, 1 << 17), Some(4));
        assert_eq!(blocks(64, 1 << 17), Some(2));
        assert_eq!(blocks(64, 1 << 20), Some(2));
        assert_eq!(blocks(1, 1 << 20), Some(16));
        assert_eq!(blocks(132, 1 << 17), Some(1));
        // A row of this length is selected by a bound, whatever k. Random cases have such rows.
        for (dtype, k) in [(DType::F32, 1), (DType::F32, 4096), (DType::F16, 1), (DType::F16, 4096)]
        {
            let team = Team::by_bound(&plan(dtype, 4, 1 << 17, k), 16, 132, 199 << 10);
            assert!(team.is_some(), "{dtype}, k {k}");
        }
        // Two blocks run on each multiprocessor.
        let team = Team::by_bound(&plan(DType::F32, 1024, 8192, 512), 16, 132, 199 << 10);
        let team = team.expect("a team");
        assert_eq!((team.blocks, team.threads), (1, PAIR_THREADS));
        let bytes = FIXED_SHARED + team.capacity * CANDIDATE as u32 + RESERVED_SHARED;
        assert!(2 * bytes <= 228 << 10);
    }
}
