//! What cases of `ngram_match` and `hybrid_mtp_ngram` have in common.

use crate::Rng;
use crate::case::{Argument, Case, Recomposed, Rows, Subject};
use crate::tensor::{Data, Tensor, poison};
use spec_core::DType;

/// Tokens drawn from a small alphabet, so that patterns recur, and lengths
/// that mostly fit.
pub(super) struct Requests {
    pub(super) batch: usize,
    pub(super) input_cols: usize,
    pub(super) generated_cols: usize,
    pub(super) draft_cols: usize,
    token: DType,
    length: DType,
    alphabet: Vec<i64>,
    /// One length in so many is wild.
    wild: usize,
    /// Whether what is one a request comes as a column.
    column: bool,
}

impl Requests {
    pub(super) fn random(rng: &mut Rng) -> Requests {
        let (batch, longest) = match rng.rare(100) {
            // More than is looked at before other threads are asked.
            true if rng.rare(400) => (rng.between(300, 500), 300),
            true if rng.chance(2) => (rng.between(1000, 1300), 24),
            true => (rng.between(1, 3), 9000),
            false if rng.chance(8) => (rng.size(48), rng.pick(&[24, 500])),
            false => (rng.size(12), 150),
        };
        let letters = rng.pick(&[1, 2, 3, 5, 40, 5000]);
        // Tokens that differ in their high halves only, or are negative.
        let high = rng.chance(4);
        let alphabet =
            (0..letters).map(|i| if high { ((i % 7) - 3) << 32 | (i / 7) } else { i }).collect();
        Requests {
            batch,
            input_cols: rng.size(longest),
            generated_cols: rng.size(longest),
            draft_cols: rng.size(20),
            token: rng.token_dtype(),
            length: rng.int_dtype(),
            alphabet,
            wild: rng.pick(&[12, 1_000_000]),
            column: rng.chance(3),
        }
    }

    pub(super) fn tokens(&self, rng: &mut Rng, cols: usize) -> Tensor {
        let tokens = (0..self.batch * cols).map(|_| rng.pick(&self.alphabet)).collect();
        Tensor::matrix(Rng::integers(self.token, tokens), self.batch, cols)
    }

    /// Drafts as they are before the call: poison shows which slots are written.
    pub(super) fn drafts(&self) -> Tensor {
        let data = poison(self.token, self.batch * self.draft_cols);
        Tensor::matrix(data, self.batch, self.draft_cols)
    }

    /// One length a request, from 0 to `high`, a few of them wild.
    pub(super) fn lengths(&self, rng: &mut Rng, high: usize) -> Tensor {
        let lengths = (0..self.batch).map(|_| match rng.chance(self.wild) {
            false => rng.between(high / 2, high) as i64,
            true => rng.pick(&[0, -1, i64::MIN, i64::MAX, i64::from(i32::MAX), high as i64 + 1]),
        });
        // In i32 the wildest become -1 and 0, which are still bad enough.
        let lengths = lengths.collect();
        per_request(Rng::integers(self.length, lengths), self.column)
    }

    /// One count a request, drawn by `count`, a few of them wild.
    pub(super) fn counts(&self, rng: &mut Rng, count: impl Fn(&mut Rng) -> i32) -> Tensor {
        let counts: Vec<i32> = (0..self.batch)
            .map(|_| match rng.chance(self.wild) {
                false => count(rng),
                true => rng.pick(&[-1, i32::MIN, i32::MAX, 1 << 20]),
            })
            .collect();
        per_request(counts, self.column)
    }

    /// A token budget: endless, or anything about what the batch asks for.
    pub(super) fn threshold(&self, rng: &mut Rng) -> i32 {
        if rng.chance(3) { 1 << 20 } else { rng.below(6 * self.batch + 10) as i32 }
    }
}

/// One element a request, as `[batch]` or as `[batch, 1]`.
pub(super) fn per_request(data: impl Into<Data>, column: bool) -> Tensor {
    let tensor = Tensor::vector(data);
    let rows = tensor.rows();
    if column { Tensor { shape: vec![rows, 1], ..tensor } } else { tensor }
}

/// Idle requests behind the others, which must change nothing.
pub(super) fn with_idle_requests<O: Subject>(case: &Case<O>, rng: &mut Rng) -> Recomposed<O> {
    let batch = case.get("draft_tokens").map_or(0, Tensor::rows);
    let idle = rng.between(1, 5);
    let case = case.map(|Argument { name, tensor, .. }| {
        if *name == "flags" {
            return tensor.clone();
        }
        let (cols, mut shape) = (tensor.cols(), tensor.shape.clone());
        shape[0] += idle;
        let mut data = zeros(tensor.data.dtype(), shape[0] * cols);
        data.splice(0, &tensor.data, 0..tensor.data.len());
        Tensor { data, shape }
    });
    let rows = Rows::Of((0..batch).collect());
    Recomposed { case, rows: vec![("draft_tokens", rows.clone()), ("seq_lens_this_time", rows)] }
}

fn zeros(dtype: DType, len: usize) -> Data {
    Rng::integers(dtype, vec![0; len])
}
