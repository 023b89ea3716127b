//! The positions of the `k` best scores of each row, for sparse attention. `deduplicate_topk`
//! takes these positions.
//!
//! Row `r` covers the scores `starts[r] .. starts[r] + lengths[r]`. The `k` largest of them
//! are chosen, **ties to the lower index**, so that the set is the same for every
//! backend, grid, batch and repetition. `indices` has the chosen positions relative to the start
//! in **ascending order**, then -1. Where a row has at most `k` scores, all are chosen.
//!
//! The order of scores is that of [`crate::exact::sort_key`]: -0 equals 0, NaN counts as
//! negative infinity.
//!
//! `values` has the scores of the chosen positions. `slots` is for a paged cache, which keeps its
//! keys in blocks of `block_size` positions: it has the place in the cache of each chosen position.
//! `block_table` has the block of every `block_size` positions of a request. Position `i`, relative
//! to the start as in `indices`, is in slot `block_table[i / block_size] * block_size +
//! i % block_size`.
//!
//! ```text
//! block_size 4
//! block_table   7  2  5       positions 0 to 3 lie in block 7, 4 to 7 in block 2, 8 to 11 in block 5
//! indices       1  6  9 -1
//! slots        29 10 21 -1
//! ```
//!
//! # Blocks
//! With `pool` above 1, blocks of `pool` scores are chosen instead of single positions: the row's
//! range is cut from its start into `B = ceil(length / pool)` blocks, the last of which may be
//! shorter. The score of a block is its largest score, where NaN counts as negative infinity and a
//! zero as +0. `indices` has block numbers, `values` the scores of blocks. The first `f =
//! min(forced_first, B)` blocks and the last `min(forced_last, B - f)` are always chosen; then the
//! best of the others, until there are `min(k, B)`. For `slots`, a block number takes the place of a
//! position, so `block_size` counts blocks of scores. With `pool` 1, a block is a position: for
//! scores of blocks that the caller has, and for sinks and a window of positions.
//!
//! # Candidates
//! With `candidates`, only scores of some blocks of positions were computed: column `j` of `scores`
//! stands for position `candidates[j / b] * b + j % b`, where `b` is `candidate_block`. A column is
//! covered if its candidate is at least 0 and its position is below the row's length and below
//! 2^31. The `k` best covered columns are chosen, ties to the lower column. `indices` has their
//! positions in the order of the columns. Here `lengths` are numbers of positions, which `cols` does
//! not bound. -1 is no candidate. Candidates that repeat are columns that repeat.
//!
//! Sources: the indexer of DeepSeek-V3.2's sparse attention. After its ReLU, a row is
//! full of equal zeros, so kernels that break ties by chance choose another set
//! at each run. For slots, SGLang's `fast_topk_transform` and FlashInfer's
//! `top_k_page_table_transform`. For blocks and candidates, the two levels of DeepSeek-V4.1's
//! indexer; for blocks with forced ones, MiniMax-M3, NSA and MoBA.
//!
//! # Bad data
//! Flag 1: a NaN among the scores that a row covers; where it is chosen, its value is negative
//! infinity. Flag 2: a chosen position whose block is negative or beyond the columns of
//! `block_table`, or whose slot is 2^31 or more; its slot is -1. Flag 4: a start outside
//! `0 ..= cols`, or a length below 0 or beyond the end of the row; both are cut to their range,
//! the start first. Flag 4 also: a request outside `0 .. tables`; all slots of its row are -1.
//! With `candidates`: flag 2 for a candidate below -1 and for a position of 2^31 or more, both
//! whatever the length; flag 4 for a length below 0, which is cut to 0.
//! Flags for blocks and requests are only raised where `slots` is given.
//!
//! # Example
//! ```
//! use spec::ops::IndexerTopk;
//! use spec::ops::indexer_topk::Buffers;
//! use spec::{DType, Handle, TensorDesc};
//!
//! // Two queries over a cache of six positions; the first query sees only four of them.
//! let scores = [0.0f32, 3.0, 0.0, 0.5, 9.0, 9.0, 0.0, 0.0, 0.0, 0.0, 0.0, 7.0];
//! let lengths = [4, 6];
//! let params = IndexerTopk::new(3);
//! let tensors = params.tensors(DType::F32, 2, 6).lengths(TensorDesc::new(DType::I32, [2]));
//! let handle = Handle::cpu()?;
//! let best = handle.create(&params, &tensors)?;
//! let mut workspace = best.workspace(&handle)?;
//! let mut indices = [0i32; 6];
//! let buffers = Buffers::new(&scores, &mut indices).lengths(&lengths);
//! best.call(&mut workspace, buffers)?;
//! // Of equal scores the first are chosen.
//! assert_eq!(indices, [0, 1, 3, 0, 1, 5]);
//! # Ok::<(), spec::Error>(())
//! ```

use crate::check::{Checker, MAX_I32};
use crate::declare::operator;
use crate::{DType, Matrix, Operator, Result, TensorDesc, Vector};

/// The largest `k`.
pub const MAX_K: usize = 4096;

/// The largest `pool`, and the largest `candidate_block`.
pub const MAX_POOL: usize = 1024;

operator! {
    /// The positions of the `k` best scores of each row, for sparse attention. `deduplicate_topk`
    /// takes these positions.
    pub struct IndexerTopk = "indexer_topk";

    options {
        /// The number of positions to choose in each row.
        required k: usize [1..=MAX_K],
        /// The number of positions in a block of a paged cache.
        optional block_size: usize [1..=i32::MAX] = 1,
        /// The number of neighbouring scores of a block, of which the largest counts: a power of
        /// two. With 1, a block is a position.
        optional pool: usize [1..=MAX_POOL] = 1,
        /// How many of the first blocks are always chosen. Together with `forced_last` at most `k`.
        optional forced_first: usize [0..=k] = 0,
        /// How many of the last blocks are always chosen.
        optional forced_last: usize [0..=k] = 0,
        /// The number of positions of a candidate.
        optional candidate_block: usize [1..=MAX_POOL] = 1,
    }

    presence {
        candidates excludes starts, pool, forced_first, forced_last;
        requests, slots need block_table;
    }

    sizes {
        cols = "c * candidate_block" with candidates,
        cols in 0..=MAX_I32,
        tables = "rows" without requests,
        tables in 0..=MAX_I32,
        blocks in 0..=MAX_I32,
        c in 0..=MAX_I32,
    }

    arguments by position {
        /// The scores; larger is better.
        required scores: in [F32, F16, BF16] "[rows, cols]",
        /// How many scores each row covers; absent: all from the row's start on. With `candidates`,
        /// how many positions; absent: any number.
        optional lengths: in [I32, I64] "[rows]",
        /// The index of the first score that each row covers; absent: 0.
        optional starts: in [I32, I64] "[rows]",
        /// The blocks of `candidate_block` positions whose scores `scores` has, -1 for none.
        optional candidates: in [I32] "[rows, c]",
        /// The positions of the best scores, or the numbers of the best blocks, relative to the
        /// row's start, ascending, then -1. With `candidates`, positions in the order of columns.
        required indices: out [I32, U32, I64] "[rows, k]",
        /// The scores at the positions of `indices`; negative infinity for NaN and behind the last
        /// position.
        optional values: out [F32] "[rows, k]",
        /// The blocks of a paged cache that hold the positions of each request, `block_size`
        /// positions in each block.
        optional block_table: in [I32] "[tables, blocks]",
        /// The row of `block_table` for each row of scores; absent: row r of `block_table` for row
        /// r of scores.
        optional requests: in [I32] "[rows]",
        /// The slot in the paged cache of each position of `indices`; -1 for a position that the
        /// cache does not have, and behind the last position.
        optional slots: out [I32] "[rows, k]",
        /// Bits for bad data, OR-ed into the previous value; only the caller clears them. 1: a
        /// score is NaN. 2: a position without a block, or with a slot above 2^31 - 1, has slot -1,
        /// or a candidate that is below -1, or has a position above 2^31 - 1, is not covered. 4: a
        /// start or a length is out of range and was cut, or a request is, and its slots are -1.
        optional flags: inout [U32] "[1]",
    }
}

impl IndexerTopk {
    /// Packed descriptors for `rows` rows of `cols` scores of the type `dtype`, each row covered
    /// as a whole. Positions are i32, and no optional argument is given.
    pub fn tensors(&self, dtype: DType, rows: usize, cols: usize) -> Tensors {
        let indices = TensorDesc::new(DType::I32, [rows, self.k]);
        Tensors::new(TensorDesc::new(dtype, [rows, cols]), indices)
    }
}

/// A validated call, from which a backend prepares a kernel.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Plan {
    /// The number of positions to choose in each row.
    pub k: usize,
    /// The scores.
    pub scores: Matrix,
    /// The lengths, where given.
    pub lengths: Option<Vector>,
    /// The starts, where given.
    pub starts: Option<Vector>,
    /// How scores become blocks.
    pub blocks: Blocks,
    /// The candidates, where given.
    pub candidates: Option<Candidates>,
    /// The positions to write.
    pub indices: Matrix,
    /// The scores to write, where `values` is given.
    pub values: Option<Matrix>,
    /// The paged cache, where `slots` is given.
    pub pages: Option<Pages>,
}

/// How the scores of a row become blocks, and which blocks are always chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// The number of scores of a block.
    pub pool: usize,
    /// How many of the first blocks are always chosen.
    pub forced_first: usize,
    /// How many of the last blocks are always chosen.
    pub forced_last: usize,
}

impl Blocks {
    /// How many blocks are always chosen in a row that has enough of them.
    pub fn forced(&self) -> usize {
        self.forced_first + self.forced_last
    }

    /// How many of the first and of the last of `count` blocks are always chosen.
    pub fn forced_of(&self, count: usize) -> (usize, usize) {
        let first = self.forced_first.min(count);
        (first, self.forced_last.min(count - first))
    }
}

/// The candidates of a call: the blocks of positions whose scores were computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidates {
    /// The number of positions of a candidate.
    pub block: usize,
    /// The candidates of each row.
    pub matrix: Matrix,
}

impl Candidates {
    /// How many of a candidate's columns, from its first one on, are covered in a row of `length`
    /// positions, and whether the candidate sets flag 2.
    pub fn covered(&self, candidate: i32, length: i64) -> (usize, bool) {
        if candidate < 0 {
            return (0, candidate < -1);
        }
        let first = i64::from(candidate) * self.block as i64;
        let end = 1_i64 << 31;
        let covered = (length.min(end) - first).clamp(0, self.block as i64);
        (covered as usize, first + self.block as i64 > end)
    }
}

/// The paged cache of a call that computes slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pages {
    /// The number of positions in a block.
    pub block_size: usize,
    /// The blocks of each request.
    pub block_table: Matrix,
    /// Whether the argument `requests` names the request of each row.
    pub mapped: bool,
    /// The slots to write.
    pub slots: Matrix,
}

impl Pages {
    /// The slot of `position`, which is in `block`; `None` where the block is negative or the slot
    /// does not fit an i32.
    pub fn slot(&self, position: usize, block: i32) -> Option<i32> {
        let block = usize::try_from(block).ok()?;
        let slot = block.checked_mul(self.block_size)?.checked_add(position % self.block_size)?;
        i32::try_from(slot).ok()
    }
}

impl Plan {
    /// How many positions or blocks of a row are chosen by their scores: `k` less those that are
    /// always chosen.
    pub fn room(&self) -> usize {
        self.k - self.blocks.forced()
    }

    /// The largest number of positions, blocks or columns of a row that can be chosen.
    pub fn items(&self) -> usize {
        self.scores.cols.div_ceil(self.blocks.pool)
    }

    /// The range of scores that a row covers, from the row's length and start: the cut start, the
    /// cut length, and whether either was cut.
    pub fn range(&self, length: Option<i64>, start: Option<i64>) -> (usize, usize, bool) {
        let cut = |value: i64, max: usize| value.clamp(0, max as i64) as usize;
        let cols = self.scores.cols;
        let first = start.map_or(0, |start| cut(start, cols));
        let count = length.map_or(cols - first, |length| cut(length, cols - first));
        let whole = start.is_none_or(|start| start == first as i64)
            && length.is_none_or(|length| length == count as i64);
        (first, count, !whole)
    }
}

impl Operator for IndexerTopk {
    type Plan = Plan;

    fn plan(&self, t: &Tensors) -> Result<Plan> {
        let (c, _) = Checker::declared(self, t)?;
        let &IndexerTopk { k, pool, forced_first, forced_last, .. } = self;
        c.param(pool.is_power_of_two(), "pool", pool, "a power of two")?;
        let rest = k - forced_first;
        let expected = format!("at most {rest}, k less forced_first");
        c.param(forced_last <= rest, "forced_last", forced_last, expected)?;
        let block = self.candidate_block;
        let pages = |(table, slots): (&TensorDesc, &TensorDesc)| Pages {
            block_size: self.block_size,
            block_table: table.matrix(),
            mapped: t.requests.is_some(),
            slots: slots.matrix(),
        };
        Ok(Plan {
            k,
            scores: t.scores.matrix(),
            lengths: t.lengths.as_ref().map(TensorDesc::vector),
            starts: t.starts.as_ref().map(TensorDesc::vector),
            blocks: Blocks { pool, forced_first, forced_last },
            candidates: t.candidates.map(|desc| Candidates { block, matrix: desc.matrix() }),
            indices: t.indices.matrix(),
            values: t.values.as_ref().map(TensorDesc::matrix),
            pages: t.block_table.as_ref().zip(t.slots.as_ref()).map(pages),
        })
    }
}
