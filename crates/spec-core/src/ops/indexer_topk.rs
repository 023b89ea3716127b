//! The positions of the `k` best scores of each row, for sparse attention: what
//! `deduplicate_topk` is fed with.
//!
//! Row `r` covers the scores `starts[r] .. starts[r] + lengths[r]`. Its `k` largest
//! are chosen, **ties to the lower index**, so that the set is the same for every
//! backend, grid, batch and repeat; their positions relative to the start follow in
//! **ascending order**, then -1. Where a row has at most `k` scores it is all of them.
//!
//! Scores order as [`crate::exact::sort_key`] has them: -0 equals 0, NaN counts as
//! negative infinity.
//!
//! Source: the indexer of DeepSeek-V3.2's sparse attention, after whose ReLU a row is
//! full of equal zeros, where kernels that break ties by chance choose another set
//! each time.
//!
//! # Bad data
//! Flag 1: a NaN among the scores that a row covers. Flag 4: a start outside of
//! `0 ..= cols`, or a length below 0 or beyond the end of the row; it is cut to that,
//! the start first.
//!
//! # Example
//! ```
//! use spec::ops::IndexerTopk;
//! use spec::ops::indexer_topk::Buffers;
//! use spec::{DType, Handle, TensorDesc};
//!
//! // Two queries over one cache of six positions; the first sees but four of them.
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

use crate::check::Checker;
use crate::declare::operator;
use crate::{DType, Matrix, Operator, Result, Status, TensorDesc, Vector};

/// The largest `k`.
pub const MAX_K: usize = 4096;

operator! {
    /// The positions of the `k` best scores of each row, for sparse attention: what
    /// `deduplicate_topk` is fed with.
    pub struct IndexerTopk = "indexer_topk";

    options {
        /// Positions of a row, 1 to [`MAX_K`].
        required k: usize,
    }

    arguments by position {
        /// The scores, of which the larger is the better.
        required scores: in [F32, F16, BF16] "[rows, cols]",
        /// How many scores each row covers; absent: all from its start on.
        optional lengths: in [I32, I64] "[rows]",
        /// The first score that each row covers; absent: 0.
        optional starts: in [I32, I64] "[rows]",
        /// Positions of the best, relative to the row's start, ascending, then -1.
        required indices: out [I32, U32, I64] "[rows, k]",
        /// Bits of bad data, OR-ed into what is there: 1 a NaN, 4 a start or length
        /// that was cut.
        optional flags: inout [U32] "[1]",
    }
}

impl IndexerTopk {
    /// Packed descriptors for `rows` whole rows of `cols` scores of this type: i32
    /// positions, no lengths, starts or flags.
    pub fn tensors(&self, dtype: DType, rows: usize, cols: usize) -> Tensors {
        let indices = TensorDesc::new(DType::I32, [rows, self.k]);
        Tensors::new(TensorDesc::new(dtype, [rows, cols]), indices)
    }
}

/// A validated call: what a backend makes ready.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Plan {
    /// Positions of a row.
    pub k: usize,
    /// The scores.
    pub scores: Matrix,
    /// Lengths, where given.
    pub lengths: Option<Vector>,
    /// Starts, where given.
    pub starts: Option<Vector>,
    /// Positions out.
    pub indices: Matrix,
}

impl Plan {
    /// What a row covers, given its length and start: the start, the length, and
    /// whether either was cut.
    pub fn range(&self, length: Option<i64>, start: Option<i64>) -> (usize, usize, bool) {
        let cut = |value: i64, most: usize| value.clamp(0, most as i64) as usize;
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
        let c = Checker::of::<Self>();
        let scores = c.matrix(arg::scores, &t.scores)?;
        if i32::try_from(scores.cols).is_err() {
            let value = format!("{:?}", t.scores.shape());
            let expected = "columns that an i32 counts";
            return Err(c.error(Status::BadTensorShape, "scores", value, expected));
        }
        c.param((1..=MAX_K).contains(&self.k), "k", self.k, format!("1 to {MAX_K}"))?;
        let rows = scores.rows;
        let lengths = t.lengths.as_ref().map(|desc| c.vector_of(arg::lengths, desc, rows));
        let starts = t.starts.as_ref().map(|desc| c.vector_of(arg::starts, desc, rows));
        let (lengths, starts) = (lengths.transpose()?, starts.transpose()?);
        let indices = c.matrix_of(arg::indices, &t.indices, [rows, self.k])?;
        if let Some(flags) = &t.flags {
            c.vector_of(arg::flags, flags, 1)?;
        }
        Ok(Plan { k: self.k, scores, lengths, starts, indices })
    }
}
