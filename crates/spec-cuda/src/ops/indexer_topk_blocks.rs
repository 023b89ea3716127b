//! Host side of `kernels/indexer_topk_blocks.cu`: the kernels of `indexer_topk` that run before a
//! row is chosen from.

#[cfg(test)]
use spec_conformance::launch_params::Header;
use spec_core::ops::indexer_topk::{Buffers, Plan};
use spec_core::{DType, Error, Matrix, Result, Status, Vector, launch_params};

use crate::Cuda;
use crate::archive::{Archive, archive};
use crate::args::{IntegerRows, Integers, Rows};
use crate::kernel::{Function, Shape};

static KERNELS: Archive = archive!("indexer_topk_blocks");

/// Columns that a block of threads copies, about.
const COLUMNS: usize = 4096;
/// Parts of the workspace begin at multiples of this number of bytes.
const ALIGNMENT: usize = 256;

launch_params! {
    /// The parameters of the kernels that run before a row is chosen from. `T` is the type of the
    /// scores.
    pub(super) struct Blocks<T> {
        /// Scores, [rows, cols].
        scores: Rows as "Rows<const T>",
        /// The number of scores, or of positions, of each row, [rows]; null: all.
        lengths: Integers,
        /// The column of the first score of each row, [rows]; null: column 0.
        starts: Integers,
        /// Candidates, [rows, c], or null.
        candidates: Rows as "Rows<const i32>",
        /// The starts and the lengths of the rows to choose from, without the blocks that are always
        /// chosen, and the numbers of blocks or of covered columns, [3, rows].
        notes: u64 as "u32*",
        /// The scores of blocks or of covered columns, [rows, width], or null.
        pooled: u64 as "float*",
        /// The positions of covered columns, [rows, width], or null.
        positions: u64 as "i32*",
        /// One word of flags, or null.
        flags: u64 as "u32*",
        /// The number of rows.
        rows: u32,
        /// The number of columns of `scores`.
        cols: u32,
        /// The number of scores from one row of `pooled` to the next.
        width: u32,
        /// The number of thread blocks for each row.
        parts: u32,
        /// The number of scores of a block.
        pool: u32,
        /// How many of the first blocks are always chosen.
        forced_first: u32,
        /// How many of the last blocks are always chosen.
        forced_last: u32,
        /// The number of candidates of a row.
        c: u32,
        /// The number of positions of a candidate.
        block: u32,
        reserved: u32,
    }

    /// Threads of a block.
    const THREADS: u32 = 256;
    /// Vectors of 16 bytes that a thread pools.
    const VECTORS: usize = 8;
}

#[cfg(test)]
pub(super) const HEADER: Header =
    Header { name: "indexer_topk_blocks", includes: &["ids.cuh"], structs: &[Blocks::DESCRIPTION] };

/// The arguments of a call, as kernels take them.
pub(super) struct Arguments {
    pub(super) scores: Rows,
    pub(super) lengths: Integers,
    pub(super) starts: Integers,
    pub(super) candidates: Rows,
    pub(super) indices: IntegerRows,
    pub(super) values: Rows,
    pub(super) slots: Rows,
    /// The table and the requests are absent unless slots are asked for.
    pub(super) block_table: Rows,
    pub(super) requests: u64,
    pub(super) flags: u64,
}

impl Arguments {
    pub(super) fn new(cuda: &Cuda, plan: &Plan, buffers: Buffers<'_>) -> Result<Self> {
        let dtype = |vector: Option<Vector>| vector.map_or(DType::I32, |vector| vector.dtype);
        let mut arguments = Arguments {
            scores: cuda.rows(buffers.scores, &plan.scores)?,
            lengths: cuda.integers(buffers.lengths, dtype(plan.lengths))?,
            starts: cuda.integers(buffers.starts, dtype(plan.starts))?,
            candidates: Rows::ABSENT,
            indices: cuda.integer_rows(buffers.indices, &plan.indices)?,
            values: Rows::ABSENT,
            slots: Rows::ABSENT,
            block_table: Rows::ABSENT,
            requests: 0,
            flags: cuda.pointer(buffers.flags)?,
        };
        if let Some(candidates) = &plan.candidates {
            arguments.candidates = cuda.rows(buffers.candidates, &candidates.matrix)?;
        }
        if let Some(values) = &plan.values {
            arguments.values = cuda.rows(buffers.values, values)?;
        }
        if let Some(pages) = &plan.pages {
            arguments.slots = cuda.rows(buffers.slots, &pages.slots)?;
            arguments.block_table = cuda.rows(buffers.block_table, &pages.block_table)?;
            arguments.requests = cuda.pointer(buffers.requests)?;
        }
        Ok(arguments)
    }
}

/// What the kernel before the choice leaves in the workspace.
#[derive(Clone, Copy)]
pub(super) struct Notes {
    /// The starts, lengths and numbers of blocks of the rows, and the positions of covered columns.
    pub(super) notes: u64,
    pub(super) positions: u64,
    pooled: u64,
    rows: usize,
}

impl Notes {
    fn vector(self, place: usize) -> Integers {
        Integers { data: self.notes + (place * self.rows * 4) as u64, wide: 0 }
    }

    /// Where the scores between the blocks that are always chosen begin.
    pub(super) fn starts(self) -> Integers {
        self.vector(0)
    }

    /// How many scores are between the blocks that are always chosen.
    pub(super) fn lengths(self) -> Integers {
        self.vector(1)
    }

    /// The numbers of blocks or of covered columns.
    pub(super) fn counts(self) -> Integers {
        self.vector(2)
    }
}

/// The kernel before the choice.
pub(super) struct Prologue {
    function: Function,
    shape: Shape,
    parts: usize,
    /// Scores of a row in the workspace; 0 if the caller's scores are chosen from.
    width: usize,
    has_positions: bool,
}

impl Prologue {
    /// `None` where each score of a row stands for a position that is chosen by its score.
    pub(super) fn new(cuda: &Cuda, plan: &Plan) -> Result<Option<Self>> {
        let (rows, cols, dtype) = (plan.scores.rows, plan.scores.cols, plan.scores.dtype);
        let blocks = plan.blocks;
        let has_positions = plan.candidates.is_some();
        if !has_positions && blocks.pool == 1 && blocks.forced() == 0 {
            return Ok(None);
        }
        let (name, parts) = match plan.candidates {
            Some(_) => (format!("indexer_topk_compact_{dtype}"), cols.div_ceil(COLUMNS)),
            // Where no score decides, scores are still looked at for NaN.
            None if blocks.pool > 1 || plan.room() == 0 => {
                let of_block = THREADS as usize * VECTORS * 16 / dtype.size();
                (format!("indexer_topk_pool_{dtype}"), cols.div_ceil(of_block))
            }
            None => ("indexer_topk_ranges".to_owned(), 0),
        };
        let is_copied = parts > 0 || cols == 0;
        let parts = parts.max(1);
        let blocks_of_grid = if name == "indexer_topk_ranges" {
            rows.div_ceil(THREADS as usize)
        } else {
            rows.saturating_mul(parts)
        };
        Ok(Some(Prologue {
            function: cuda.function(&KERNELS, &name)?,
            shape: Shape::new(grid(cuda, rows, blocks_of_grid)?, THREADS),
            parts,
            width: if is_copied { plan.items().next_multiple_of(4) } else { 0 },
            has_positions,
        }))
    }

    /// Whether the scores to choose from are in the workspace.
    pub(super) fn is_copied(&self) -> bool {
        self.width > 0
    }

    /// The plan of what the next kernel chooses from.
    pub(super) fn chosen_from(&self, plan: &Plan) -> Plan {
        let mut chosen = plan.clone();
        let noted = Vector { dtype: DType::I32, len: plan.scores.rows };
        (chosen.lengths, chosen.starts) = (Some(noted), Some(noted));
        if self.is_copied() {
            let (rows, cols) = (plan.scores.rows, plan.items());
            chosen.scores = Matrix { dtype: DType::F32, rows, cols, row_stride: self.width };
            chosen.blocks.pool = 1;
        }
        chosen
    }

    /// Bytes of the notes, of the scores and of the positions.
    fn sizes(&self, rows: usize) -> [usize; 3] {
        let scores = rows.saturating_mul(self.width).saturating_mul(4);
        let positions = if self.has_positions { scores } else { 0 };
        [rows * 12, scores, positions].map(|bytes| bytes.div_ceil(ALIGNMENT) * ALIGNMENT)
    }

    pub(super) fn workspace_size(&self, rows: usize) -> usize {
        self.sizes(rows).iter().fold(0, |sum, &size| sum.saturating_add(size))
    }

    /// The parts of a workspace, and the kernel that fills them, with its parameters.
    pub(super) fn launch(
        &self,
        plan: &Plan,
        arguments: &Arguments,
        workspace: u64,
    ) -> (Notes, (&Function, Shape, Blocks)) {
        let rows = plan.scores.rows;
        let [notes, scores, _] = self.sizes(rows).map(|size| size as u64);
        let positions = if self.has_positions { workspace + notes + scores } else { 0 };
        let pooled = if self.is_copied() { workspace + notes } else { 0 };
        let given = plan.candidates.as_ref();
        let params = Blocks {
            scores: arguments.scores,
            lengths: arguments.lengths,
            starts: arguments.starts,
            candidates: arguments.candidates,
            notes: workspace,
            pooled,
            positions,
            flags: arguments.flags,
            rows: rows as u32,
            cols: plan.scores.cols as u32,
            width: self.width as u32,
            parts: self.parts as u32,
            pool: plan.blocks.pool as u32,
            forced_first: plan.blocks.forced_first as u32,
            forced_last: plan.blocks.forced_last as u32,
            c: given.map_or(0, |candidates| candidates.matrix.cols as u32),
            block: given.map_or(1, |candidates| candidates.block as u32),
            reserved: 0,
        };
        let notes = Notes { notes: workspace, positions, pooled, rows };
        (notes, (&self.function, self.shape, params))
    }

    /// The scores in the workspace.
    pub(super) fn scores(&self, notes: Notes) -> Rows {
        Rows { data: notes.pooled, stride: self.width as u64 }
    }
}

/// `blocks` as the size of a grid, for a launch over `rows` rows.
pub(super) fn grid(cuda: &Cuda, rows: usize, blocks: usize) -> Result<u32> {
    let size = u32::try_from(blocks).ok().filter(|&blocks| blocks < 1 << 31);
    size.ok_or_else(|| {
        let words = format!("{rows} rows are more than a grid holds");
        Error::device(cuda.device(), Status::NotImplemented, words)
    })
}
