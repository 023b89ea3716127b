//! The distinct values of each request's top-k rows, ascending.
//!
//! For each request, the values of its `mtp_step` rows are merged into one row: each distinct
//! value once, in ascending order, then -1 to the end of the row. Negative
//! values in the input are padding and are dropped.
//!
//! `inverse` has the place of each index in its request's row of `unique`, -1 for padding. A caller
//! fetches what `unique` names once for a request, and each token of the request finds what it
//! attends to by `inverse`.
//!
//! Source: the top-k deduplication of SGLang's KV offload with multi-token
//! prediction.
//!
//! # Example
//! ```
//! use spec::ops::DeduplicateTopk;
//! use spec::ops::deduplicate_topk::Buffers;
//! use spec::{DType, Handle, TensorDesc};
//!
//! // One request under multi-token prediction: the cache positions that each of its two
//! // tokens attends to.
//! let indices = [90, 12, -1, 7, 90, 12];
//! let params = DeduplicateTopk::new().mtp_step(2);
//! let tensors = params.tensors(1, 3).counts(TensorDesc::new(DType::I32, [1]));
//! let tensors = tensors.inverse(TensorDesc::new(DType::I32, [2, 3]));
//! let handle = Handle::cpu()?;
//! let deduplicate = handle.create(&params, &tensors)?;
//! let mut workspace = deduplicate.workspace(&handle)?;
//! let (mut unique, mut counts, mut inverse) = ([0i32; 6], [0i32], [0i32; 6]);
//! let buffers = Buffers::new(&indices, &mut unique).counts(&mut counts).inverse(&mut inverse);
//! deduplicate.call(&mut workspace, buffers)?;
//! assert_eq!((unique, counts), ([7, 12, 90, -1, -1, -1], [3]));
//! assert_eq!(inverse, [2, 1, -1, 0, 2, 1]);
//! # Ok::<(), spec::Error>(())
//! ```

use crate::check::{Checker, MAX_I32};
use crate::declare::operator;
use crate::{DType, Matrix, Operator, Result, TensorDesc};

operator! {
    /// The distinct values of each request's top-k rows, ascending.
    pub struct DeduplicateTopk = "deduplicate_topk";

    options {
        /// The number of rows of `indices` that belong to one request.
        optional mtp_step: usize [1..] = 1,
    }

    sizes {
        batch in 0..=MAX_I32,
        row = "mtp_step * k" in 0..=MAX_I32,
    }

    arguments by position {
        /// Candidates; negative values are padding. `batch` must fit an i32.
        required indices: in [I32] "[batch * mtp_step, k]",
        /// The distinct values of each request, ascending, then -1.
        required unique: out [I32] "[batch, mtp_step * k]",
        /// The number of distinct values of each request.
        optional counts: out [I32] "[batch]",
        /// Where each index stands in its request's row of `unique`; -1 for padding.
        optional inverse: out [I32] "[batch * mtp_step, k]",
    }
}

impl DeduplicateTopk {
    /// Packed descriptors for `batch` requests of `mtp_step` rows of `k` values.
    pub fn tensors(&self, batch: usize, k: usize) -> Tensors {
        Tensors::new(
            TensorDesc::new(DType::I32, [batch.saturating_mul(self.mtp_step), k]),
            TensorDesc::new(DType::I32, [batch, self.mtp_step.saturating_mul(k)]),
        )
    }
}

/// A validated call, from which a backend prepares a kernel.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Plan {
    /// The number of rows of a request.
    pub mtp_step: usize,
    /// The number of requests.
    pub batch: usize,
    /// Candidates.
    pub indices: Matrix,
    /// The distinct values to write.
    pub unique: Matrix,
    /// Whether counts are written.
    pub has_counts: bool,
    /// The places in `unique` to write, where `inverse` is given.
    pub inverse: Option<Matrix>,
}

impl Operator for DeduplicateTopk {
    type Plan = Plan;

    fn plan(&self, tensors: &Tensors) -> Result<Plan> {
        let (_, sizes) = Checker::declared(self, tensors)?;
        let batch = sizes.of("batch");
        let (indices, unique) = (tensors.indices.matrix(), tensors.unique.matrix());
        let has_counts = tensors.counts.is_some();
        let inverse = tensors.inverse.as_ref().map(TensorDesc::matrix);
        Ok(Plan { mtp_step: self.mtp_step, batch, indices, unique, has_counts, inverse })
    }
}
