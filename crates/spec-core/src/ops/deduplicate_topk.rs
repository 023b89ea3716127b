//! The distinct values of each request's top-k rows, ascending.
//!
//! For each request the values of its `mtp_step` rows are merged: each distinct
//! value once, in ascending order, then -1 to the end of the row. Negative
//! input is padding and is dropped.
//!
//! Source: the top-k deduplication of SGLang's KV offload with multi-token
//! prediction.

use crate::check::{Access, Checker, arguments};
use crate::{DType, Device, Matrix, Operator, Result, Status, TensorDesc};

/// The parameters of `deduplicate_topk`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeduplicateTopk {
    /// Rows of `indices` that belong to one request.
    pub mtp_step: usize,
}

impl DeduplicateTopk {
    /// Packed descriptors for `batch` requests of `mtp_step` rows of `k`.
    pub fn tensors(&self, batch: usize, k: usize) -> Tensors {
        Tensors {
            indices: TensorDesc::new(DType::I32, [batch.saturating_mul(self.mtp_step), k]),
            unique: TensorDesc::new(DType::I32, [batch, self.mtp_step.saturating_mul(k)]),
            counts: None,
        }
    }
}

arguments! {
    /// The arguments of `deduplicate_topk`.
    {
        /// Candidates `[batch * mtp_step, k]`, i32; negative ones are padding.
        indices: I,
        /// Distinct values `[batch, mtp_step * k]`, i32, ascending, then -1.
        unique: O,
        /// How many distinct values `[batch]`, i32.
        counts: Option<O>,
    }
}

/// What was validated.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Rows of a request.
    pub mtp_step: usize,
    /// Requests.
    pub batch: usize,
    /// Candidates.
    pub indices: Matrix,
    /// Distinct values out.
    pub unique: Matrix,
    /// Whether counts are written.
    pub has_counts: bool,
}

impl Operator for DeduplicateTopk {
    const NAME: &'static str = "deduplicate_topk";
    type Tensors = Tensors;
    type Buffers<'a> = Buffers<'a>;
    type Plan = Plan;

    fn plan(&self, tensors: &Tensors) -> Result<Plan> {
        let c = Checker::new(Self::NAME);
        let i32s = [DType::I32];
        let step = self.mtp_step;
        let words = "[batch * mtp_step, k]";
        let indices = c.matrix("indices", &tensors.indices, &i32s, Access::Read, words)?;
        c.param(step >= 1, "mtp_step", step, "at least 1")?;
        let row = step.checked_mul(indices.cols).filter(|&row| i32::try_from(row).is_ok());
        let (true, Some(row)) = (indices.rows.is_multiple_of(step), row) else {
            let value = format!("{:?}", tensors.indices.shape());
            let expected =
                format!("{words} with mtp_step {step} and mtp_step * k that fits an i32");
            return Err(c.error(Status::BadTensorShape, "indices", value, expected));
        };
        let batch = indices.rows / step;
        let words = "[batch, mtp_step * k]";
        let unique =
            c.matrix_of("unique", &tensors.unique, &i32s, Access::Write, [batch, row], words)?;
        if let Some(counts) = &tensors.counts {
            c.vector_of("counts", counts, &i32s, batch, "[batch]")?;
        }
        let has_counts = tensors.counts.is_some();
        Ok(Plan { mtp_step: step, batch, indices, unique, has_counts })
    }

    fn fit(tensors: &Tensors, buffers: &mut Buffers<'_>, device: Device) -> Result<()> {
        fit_buffers(Self::NAME, tensors, buffers, device)
    }
}
