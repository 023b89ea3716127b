//! Host side of `kernels/indexer_topk_row.cu`: the kernel that does all of `indexer_topk` in rows
//! whose keys a block holds in registers, after `pool` where these are the scores of blocks.

#[cfg(test)]
use spec_conformance::launch_params::Header;
use spec_core::ops::IndexerTopk;
use spec_core::ops::indexer_topk::{Buffers, Pages, Plan};
use spec_core::{DType, Kernel, Result, Stream, ViewMut, launch_params};

use super::indexer_topk_blocks::{Arguments, Prologue, grid};
use crate::Cuda;
use crate::archive::{Archive, archive};
use crate::args::{IntegerRows, Integers, Rows};
use crate::kernel::{Function, Shape};

static KERNELS: Archive = archive!("indexer_topk_row");

launch_params! {
    /// The parameters of the kernels that keep the keys of a row in registers. `T` is the type of the
    /// scores.
    struct WholeRows<T> {
        /// Scores, [rows, cols].
        scores: Rows as "Rows<const T>",
        /// The number of scores, or of positions, of each row, [rows]; null: all.
        lengths: Integers,
        /// The column of the first score of each row, [rows]; null: column 0.
        starts: Integers,
        /// Candidates, [rows, cols / block], or null.
        candidates: Rows as "Rows<const i32>",
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
        /// How many of the first positions are always chosen.
        forced_first: u32,
        /// How many of the last positions are always chosen.
        forced_last: u32,
        /// The number of positions of a candidate.
        block: u32,
        /// 2^31 divided by the number of positions of a candidate, rounded up.
        per_block: u32,
        /// The last candidate whose positions an i32 holds.
        last_candidate: u32,
        /// The number of tables.
        tables: u32,
        /// The number of cache blocks of a table.
        blocks: u32,
        /// The number of positions in a cache block.
        block_size: u32,
    }

    /// The smallest and the largest number of threads of a block.
    const MIN_THREADS: u32 = 256;
    const MAX_THREADS: u32 = 1024;
    /// The largest number of columns of a row: 16 for each thread.
    const MAX_COLS: usize = 1 << 14;
}

#[cfg(test)]
pub(super) const HEADER: Header =
    Header { name: "indexer_topk_row", includes: &["ids.cuh"], structs: &[WholeRows::DESCRIPTION] };

/// Whether the registers of a block hold the keys of a row, or of its blocks.
pub(super) fn fits(plan: &Plan) -> bool {
    plan.items() <= MAX_COLS
}

/// The kernels of a plan that [`fits`].
pub(super) struct Prepared {
    cuda: Cuda,
    plan: Plan,
    prologue: Option<Prologue>,
    function: Function,
    shape: Shape,
}

/// The threads of a block. Where several blocks run on a multiprocessor, fewer threads with more
/// scores each are faster; where each has a multiprocessor alone, more threads are.
///
/// An earlier version of the kernel, which took a tenth longer than the present one, took these
/// times for a call on an H200 (`spec-bench indexer_topk --device cuda:0 --shape rows=64,cols=4096`
/// and so on, with other numbers in this function):
///
/// - 1024 rows of 4096 scores: 16.5 us with 256 threads, 21.0 us with 512 threads
/// - 1024 rows of 8192 scores: 30.5 us with 512 threads, 43.0 us with 1024 threads
/// - 64 rows of 4096 scores: 4.6 us with 512 threads, 5.6 us with 256 threads
fn threads(plan: &Plan, multiprocessors: u32) -> u32 {
    let is_alone = plan.scores.rows <= multiprocessors as usize;
    let items = if is_alone { 8 } else { 16 };
    let threads = plan.items().div_ceil(items).next_power_of_two() as u32;
    threads.clamp(MIN_THREADS, MAX_THREADS)
}

impl Prepared {
    pub(super) fn new(cuda: &Cuda, plan: &Plan) -> Result<Self> {
        // The kernel needs no other before it, except where its scores are those of blocks.
        let is_pooled = plan.blocks.pool > 1;
        let prologue = if is_pooled { Prologue::new(cuda, plan)? } else { None };
        let dtype = if prologue.is_some() { DType::F32 } else { plan.scores.dtype };
        let rows = plan.scores.rows;
        let threads = threads(plan, cuda.limits().multiprocessors);
        Ok(Prepared {
            function: cuda.function(&KERNELS, &format!("indexer_topk_row_{dtype}"))?,
            shape: Shape::new(grid(cuda, rows, rows)?, threads).shared(plan.k as u32 * 2),
            prologue,
            plan: plan.clone(),
            cuda: cuda.clone(),
        })
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
        let first = self.prologue.as_ref().map(|prologue| {
            let (notes, launch) = prologue.launch(plan, &given, workspace);
            given.scores = prologue.scores(notes);
            given.lengths = notes.counts();
            given.starts = Integers { data: 0, wide: 0 };
            launch
        });
        let block = plan.candidates.as_ref().map_or(1, |candidates| candidates.block as u32);
        let of_table = |size: fn(&Pages) -> usize| plan.pages.as_ref().map_or(0, size) as u32;
        let params = WholeRows {
            scores: given.scores,
            lengths: given.lengths,
            starts: given.starts,
            candidates: given.candidates,
            indices: given.indices,
            values: given.values,
            slots: given.slots,
            block_table: given.block_table,
            requests: given.requests,
            flags: given.flags,
            cols: plan.items() as u32,
            k: plan.k as u32,
            forced_first: plan.blocks.forced_first as u32,
            forced_last: plan.blocks.forced_last as u32,
            block,
            per_block: (1_u32 << 31).div_ceil(block),
            last_candidate: (1_u32 << 31) / block - 1,
            tables: of_table(|pages| pages.block_table.rows),
            blocks: of_table(|pages| pages.block_table.cols),
            block_size: of_table(|pages| pages.block_size),
        };
        // SAFETY: `Blocks` and `WholeRows` have the layouts of the kernels' structs; the buffers
        // were checked against the plan. Both kernels clamp lengths and starts, which are data, to
        // the plan's sizes. A block of threads has a row, registers for its columns, and shared
        // memory for the k that are chosen. It skips requests without a table and positions without
        // a block. The second kernel waits for the first (`follow`).
        cuda.enqueue(stream, |queue| unsafe {
            match first {
                Some((function, shape, blocks)) => {
                    queue.launch(function, shape, &blocks)?;
                    queue.launch_next(&self.function, self.shape, &params)
                }
                None => queue.launch(&self.function, self.shape, &params),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_divided_by_a_product() {
        for block in 1..=1024_u32 {
            let per_block = u64::from((1_u32 << 31).div_ceil(block));
            for column in 0..MAX_COLS as u32 {
                let place = ((u64::from(column) * per_block) >> 31) as u32;
                assert_eq!(place, column / block, "{column} of blocks of {block}");
            }
        }
    }
}
