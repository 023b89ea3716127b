//! The common parts of random cases of `ngram_match` and `hybrid_mtp_ngram`.

use crate::Rng;
use crate::argument::Argument;
use crate::case::{Case, Recomposed, Rows, Subject};
use crate::tensor::{Data, Tensor, poison};
use spec_core::DType;

/// The shapes and dtypes of a random batch, and the alphabet that its tokens are drawn from.
/// The alphabet is small, so that patterns recur.
pub(super) struct Requests {
    pub(super) batch: usize,
    pub(super) input_cols: usize,
    pub(super) generated_cols: usize,
    pub(super) draft_cols: usize,
    token: DType,
    length: DType,
    alphabet: Vec<i64>,
    /// One length or count in `wild` is out of range.
    wild: usize,
    /// Whether an argument with one element per request has shape `[batch, 1]`, not `[batch]`.
    column: bool,
}

impl Requests {
    pub(super) fn random(rng: &mut Rng) -> Requests {
        let (batch, longest) = match rng.rare(100) {
            // Batches and rows so large that a backend shares the work among threads.
            true if rng.rare(400) => (rng.between(300, 500), 300),
            true if rng.chance(2) => (rng.between(1000, 1300), 24),
            true => (rng.between(1, 3), 9000),
            false if rng.chance(8) => (rng.size(48), rng.pick(&[24, 500])),
            false => (rng.size(12), 150),
        };
        let letters = rng.pick(&[1, 2, 3, 5, 40, 5000]);
        // 64-bit tokens, some of which are negative and some of which differ only in their high
        // 32 bits.
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

    /// The draft rows before the call, filled with poison to show which slots the call writes.
    pub(super) fn drafts(&self) -> Tensor {
        let data = poison(self.token, self.batch * self.draft_cols);
        Tensor::matrix(data, self.batch, self.draft_cols)
    }

    /// One length per request, from `high / 2` to `high`; one length in `wild` is 0 or out of
    /// range.
    pub(super) fn lengths(&self, rng: &mut Rng, high: usize) -> Tensor {
        let lengths = (0..self.batch).map(|_| match rng.chance(self.wild) {
            false => rng.between(high / 2, high) as i64,
            true => rng.pick(&[0, -1, i64::MIN, i64::MAX, i64::from(i32::MAX), high as i64 + 1]),
        });
        // As i32, `i64::MAX` becomes -1, which is still out of range, and `i64::MIN` becomes 0.
        let lengths = lengths.collect();
        per_request(Rng::integers(self.length, lengths), self.column)
    }

    /// One count per request, drawn by `count`; one count in `wild` is out of range.
    pub(super) fn counts(&self, rng: &mut Rng, count: impl Fn(&mut Rng) -> i32) -> Tensor {
        let counts: Vec<i32> = (0..self.batch)
            .map(|_| match rng.chance(self.wild) {
                false => count(rng),
                true => rng.pick(&[-1, i32::MIN, i32::MAX, 1 << 20]),
            })
            .collect();
        per_request(counts, self.column)
    }

    /// A token budget: larger than any batch needs, or from 0 to more than this batch asks for.
    pub(super) fn threshold(&self, rng: &mut Rng) -> i32 {
        if rng.chance(3) { 1 << 20 } else { rng.below(6 * self.batch + 10) as i32 }
    }
}

/// One element per request, of shape `[batch]`, or `[batch, 1]` if `column`.
pub(super) fn per_request(data: impl Into<Data>, column: bool) -> Tensor {
    let tensor = Tensor::vector(data);
    let rows = tensor.rows();
    if column { Tensor { shape: vec![rows, 1], ..tensor } } else { tensor }
}

/// The batch of `case` with idle requests appended, which must not change the results of the
/// other requests.
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

/// Checks that random cases draft in some cases, and that some have bad data.
#[cfg(test)]
pub(super) fn check_coverage<O: Subject>() {
    use crate::tests::{balanced, flags, integers, results, share};
    let runs = results::<O>(300);
    assert_eq!(flags(&runs), 4);
    let written = |(case, results): &(Case<O>, Vec<Argument>)| {
        let name = "draft_tokens";
        let (before, after) = (integers(&case.arguments, name), integers(results, name));
        (!before.is_empty()).then(|| before != after)
    };
    balanced(share(runs.iter().filter_map(written)), "cases with drafts");
    let good = runs.iter().map(|(_, results)| integers(results, "flags")[0] & 0xFF == 0);
    balanced(share(good), "cases without bad data");
}
