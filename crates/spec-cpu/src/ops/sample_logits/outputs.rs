//! The outputs of a call, split between workers.

use std::ops::Range;

use spec_core::ops::sample_logits::{Buffers, Plan};
use spec_core::{DType, Element, Matrix, Result, ViewMut};

use super::report::Reported;
use super::row::Scratch;
use super::{Drawn, Prepared};
use crate::slices::{Int, slice_mut};

/// The same bits as unsigned integers, in which a place and a token are put together.
fn unsigned(winners: &mut [i64]) -> &mut [u64] {
    // `from_bytes_mut` succeeds: size and alignment of both types are the same.
    let bytes = spec_core::dtype::as_bytes_mut(winners);
    spec_core::dtype::from_bytes_mut(bytes).unwrap_or_default()
}

/// The output `winners` as unsigned integers, whichever of its two dtypes it has.
fn winners_of(view: ViewMut<'_>) -> Result<&mut [u64]> {
    match view.dtype() {
        DType::U64 => slice_mut(view),
        _ => slice_mut(view).map(unsigned),
    }
}

/// The rows and the scratch memory of consecutive workers.
///
/// A struct that is split by hand, because parallel iterators over twelve outputs, eleven of which
/// may be absent, would be compiled once for each combination of outputs.
pub(super) struct WorkerRange<'a, I> {
    pub(super) workers: Range<usize>,
    pub(super) scratch: Scratch<'a>,
    pub(super) outputs: Outputs<'a, I>,
}

impl<I> WorkerRange<'_, I> {
    /// Splits the range of two or more workers into two halves. Each worker has `each` rows.
    pub(super) fn split(self, p: &Prepared, each: usize) -> (Self, Option<Self>) {
        let Range { start, end } = self.workers;
        let half = (end - start) / 2;
        if half == 0 {
            return (self, None);
        }
        let sizes = [p.plan.vocab(), p.blocks(), p.groups(), p.columns()];
        let scratch = self.scratch.split(half, sizes);
        let outputs = self.outputs.split(half * each);
        let range = |workers, scratch, outputs| WorkerRange { workers, scratch, outputs };
        (
            range(start..start + half, scratch.0, outputs.0),
            Some(range(start + half..end, scratch.1, outputs.1)),
        )
    }
}

/// Consecutive rows of all outputs.
pub(super) struct Outputs<'a, I> {
    tokens: Part<'a, I>,
    probs: Part<'a, f32>,
    logprobs: Part<'a, f32>,
    processed: Part<'a, f32>,
    ranks: Part<'a, i32>,
    top_tokens: Part<'a, i32>,
    top_logprobs: Part<'a, f32>,
    pub(super) row_flags: Part<'a, u32>,
    winners: Part<'a, u64>,
    kept_tokens: Part<'a, i32>,
    kept_counts: Part<'a, i32>,
    largest: Part<'a, f32>,
}

/// One row of all outputs.
pub(super) struct OutputRow<'a, I> {
    pub(super) tokens: Option<&'a mut [I]>,
    pub(super) drawn: Drawn<'a>,
    pub(super) reported: Reported<'a>,
    pub(super) columns: ColumnOutputs<'a>,
}

/// One row of the outputs that only rows by columns have.
pub(super) struct ColumnOutputs<'a> {
    pub(super) winner: Option<&'a mut [u64; 1]>,
    pub(super) kept_tokens: Option<&'a mut [i32]>,
    pub(super) kept_count: Option<&'a mut [i32; 1]>,
    pub(super) largest: Option<&'a mut [f32; 1]>,
}

impl<I: Int> OutputRow<'_, I> {
    /// The outputs of a row that is padding.
    pub(super) fn pad(self) {
        if let Some(tokens) = self.tokens {
            tokens.fill(I::of(-1));
        }
        let Drawn { probs, logprobs } = self.drawn;
        if let Some(probs) = probs {
            probs.fill(0.0);
        }
        if let Some(logprobs) = logprobs {
            logprobs.fill(f32::NEG_INFINITY);
        }
        self.reported.pad();
        self.columns.pad();
    }
}

impl<'a, I: Element> Outputs<'a, I> {
    pub(super) fn new(plan: &Plan, buffers: Buffers<'a>) -> Result<Self> {
        Ok(Outputs {
            tokens: Part::new(Some(buffers.tokens), Some(plan.tokens))?,
            probs: Part::new(buffers.probs, plan.probs)?,
            logprobs: Part::new(buffers.logprobs, plan.logprobs)?,
            processed: Part::new(buffers.processed_logprobs, plan.processed_logprobs)?,
            ranks: Part::new(buffers.ranks, plan.ranks)?,
            top_tokens: Part::new(buffers.top_tokens, plan.top_tokens)?,
            top_logprobs: Part::new(buffers.top_logprobs, plan.top_logprobs)?,
            row_flags: Part::of_vector(buffers.row_flags.map(slice_mut).transpose()?),
            winners: Part::of_vector(buffers.winners.map(winners_of).transpose()?),
            kept_tokens: Part::new(buffers.kept_tokens, plan.kept_tokens)?,
            kept_counts: Part::of_vector(buffers.kept_counts.map(slice_mut).transpose()?),
            largest: Part::of_vector(buffers.largest.map(slice_mut).transpose()?),
        })
    }
}

impl<I> Outputs<'_, I> {
    /// Splits the rows into the first `rows` rows and the remaining rows.
    fn split(self, rows: usize) -> (Self, Self) {
        let (tokens, tokens_behind) = self.tokens.split(rows);
        let (probs, probs_behind) = self.probs.split(rows);
        let (logprobs, logprobs_behind) = self.logprobs.split(rows);
        let (processed, processed_behind) = self.processed.split(rows);
        let (ranks, ranks_behind) = self.ranks.split(rows);
        let (top_tokens, top_tokens_behind) = self.top_tokens.split(rows);
        let (top_logprobs, top_logprobs_behind) = self.top_logprobs.split(rows);
        let (row_flags, row_flags_behind) = self.row_flags.split(rows);
        let (winners, winners_behind) = self.winners.split(rows);
        let (kept_tokens, kept_tokens_behind) = self.kept_tokens.split(rows);
        let (kept_counts, kept_counts_behind) = self.kept_counts.split(rows);
        let (largest, largest_behind) = self.largest.split(rows);
        (
            Outputs {
                tokens,
                probs,
                logprobs,
                processed,
                ranks,
                top_tokens,
                top_logprobs,
                row_flags,
                winners,
                kept_tokens,
                kept_counts,
                largest,
            },
            Outputs {
                tokens: tokens_behind,
                probs: probs_behind,
                logprobs: logprobs_behind,
                processed: processed_behind,
                ranks: ranks_behind,
                top_tokens: top_tokens_behind,
                top_logprobs: top_logprobs_behind,
                row_flags: row_flags_behind,
                winners: winners_behind,
                kept_tokens: kept_tokens_behind,
                kept_counts: kept_counts_behind,
                largest: largest_behind,
            },
        )
    }

    pub(super) fn row(&mut self, row: usize) -> OutputRow<'_, I> {
        OutputRow {
            tokens: self.tokens.row(row),
            drawn: Drawn { probs: self.probs.row(row), logprobs: self.processed.row(row) },
            reported: Reported {
                logprobs: self.logprobs.row(row),
                ranks: self.ranks.row(row),
                top_tokens: self.top_tokens.row(row),
                top_logprobs: self.top_logprobs.row(row),
            },
            columns: ColumnOutputs {
                winner: self.winners.element(row),
                kept_tokens: self.kept_tokens.row(row),
                kept_count: self.kept_counts.element(row),
                largest: self.largest.element(row),
            },
        }
    }
}

/// Consecutive rows of one output; without data if the caller did not ask for the output.
pub(super) struct Part<'a, U> {
    data: Option<&'a mut [U]>,
    stride: usize,
    cols: usize,
}

impl<'a, U> Part<'a, U> {
    fn new(view: Option<ViewMut<'a>>, matrix: Option<Matrix>) -> Result<Self>
    where
        U: Element,
    {
        Ok(match (view, matrix) {
            (Some(view), Some(matrix)) => {
                Part { data: Some(slice_mut(view)?), stride: matrix.row_stride, cols: matrix.cols }
            }
            _ => Part { data: None, stride: 0, cols: 0 },
        })
    }

    /// A vector, each element of which is a row.
    fn of_vector(data: Option<&'a mut [U]>) -> Self {
        Part { data, stride: 1, cols: 1 }
    }

    /// Splits the rows into the first `rows` rows and the remaining rows.
    fn split(self, rows: usize) -> (Self, Self) {
        let Part { data, stride, cols } = self;
        // The memory may end right after the last row, without the gap to a next row.
        let halves = data.map(|data| data.split_at_mut(data.len().min(rows * stride)));
        let (data, behind) = halves.unzip();
        (Part { data, stride, cols }, Part { data: behind, stride, cols })
    }

    pub(super) fn row(&mut self, row: usize) -> Option<&mut [U]> {
        self.data.as_mut().map(|data| &mut data[row * self.stride..][..self.cols])
    }

    /// The element of a vector.
    fn element(&mut self, row: usize) -> Option<&mut [U; 1]> {
        self.row(row)?.first_chunk_mut()
    }
}
