//! Samples tokens from logits: temperature, top-k, top-p, min-p, an allowed-token mask and a seed
//! for each request.
//!
//! 1. `x` is the logit in f32. NaN counts as negative infinity, and so does the logit of a
//!    token that the mask does not allow. `m` is the row's largest `x`. Where `m`
//!    is negative infinity, the row's token is the lowest token that the mask allows, or 0 if it
//!    allows none.
//! 2. At temperature 0, the row's token is the lowest one whose `x` is `m`.
//! 3. Otherwise the weight of a token is `w = e^((x - m) / temperature)`, by
//!    [`crate::exact::sampling`], and `q` is `w` in whole units of 2^-40.
//! 4. Tokens are ordered by [`crate::exact::sort_key`] of `x`, descending, the
//!    lower index first among equals. (Not by `w`: `exp` is not monotone in its
//!    last bit.)
//! 5. With [`min_p_first`](SampleLogits::min_p_first), tokens with
//!    `q < min_p * 2^40` are dropped now.
//! 6. Exactly the first `top_k` tokens of the order are kept.
//! 7. `S` is the sum of `q` over these tokens. In order, each token is kept while the sum of `q`
//!    over the tokens before it is below `top_p * S`. The first token is always kept.
//! 8. Without `min_p_first`, tokens with `q < min_p * 2^40` are dropped now.
//! 9. The remaining tokens whose `q` is not 0 race ([`crate::race`]): a token finishes at its noise
//!    times `e^((m - x) / temperature)`. `tokens` has the first token to finish, or the first `n`
//!    in the order of finishing, the lower index first among equal times. Where fewer than `n`
//!    tokens remain, -1 follows.
//!
//! A token wins with a probability in proportion to its weight; [`crate::race`] says why, and
//! `docs/race.md` in the repository shows why drafts that race with the same noise agree.
//! The first `n` tokens to finish are `n` draws without replacement, for the siblings of a draft
//! tree for instance. At temperature 0, `tokens` has the first `n` tokens of the order of step 4
//! whose `x` is not negative infinity. A row that step 1 ends has its one token.
//!
//! Noise, order and integer sums are the same bits on every backend, and so are tokens and
//! `probs`. [`rejection_sample`](super::rejection_sample) takes `probs` unchanged. Only `top_p`,
//! `probs` and `processed_logprobs` need a sum of weights.
//!
//! # Random numbers
//! The noise is [`crate::race::noise`] of the request's seed at the row's position, for
//! [`Purpose::Sample`](crate::philox::Purpose::Sample). The same seed and position
//! give the same token from the same logits in any row of any batch, and mostly the same token
//! from logits that are nearly the same. So a draft model that samples with its request's seed
//! agrees with its target about as often as rejection sampling would accept its drafts.
//!
//! # What can be reported
//! * `logprobs`: the natural logarithm of each token's probability by the logits as given, without
//!   temperature, mask and filters.
//! * `processed_logprobs`: the natural logarithm of each token's share of the distribution that it
//!   was drawn from. In a row that step 1 or 2 ends, it is 0 for the first token and negative
//!   infinity for other tokens.
//! * `ranks`: how many logits of the row, as given, are at least as large as the token's.
//! * `top_tokens`: the likeliest tokens by the logits as given, the lower index first among equals.
//! * `top_logprobs`: the value of `logprobs` for each of `top_tokens`, which it needs.
//!
//! In all reports NaN counts as negative infinity. Several logits of positive infinity have equal
//! shares. Where `tokens` has -1, the rank is 0 and the logarithms are negative infinity.
//!
//! # Padding
//! A request of -1 is padding, as captured graphs have it: nothing of its row is looked at, and the
//! row sets no flag. The row has no token: `tokens` and `top_tokens` are -1, `ranks` and `probs` 0,
//! logarithms negative infinity.
//!
//! # Bad data
//! Flag 1: a logit that is NaN or positive infinity, whether the mask allows its token or not
//! (logits of positive infinity share the whole weight of the row); or a row without any token to
//! choose.
//!
//! Flag 4: a temperature that is negative or NaN, or a request outside the arrays, both
//! of which count as temperature 0; a `top_p` of NaN, which keeps the first token only; a
//! `min_p` of NaN, which counts as 1. A row that step 1 or 2 ends raises no flag for data that only
//! later steps read. `row_flags` says which bits each row has set.
//!
//! The first token of a row that is no padding is always inside the vocabulary.
//!
//! Sources: Holtzman et al. (2020) for top-p; Nguyen et al. (2024) for min-p;
//! transformers' logits processors and vLLM's sampler for the order of top-p and min-p.
//!
//! # Example
//! Two requests in one call: one at temperature 0, and one that draws among its two
//! likeliest tokens.
//!
//! ```
//! use spec::ops::SampleLogits;
//! use spec::ops::sample_logits::Buffers;
//! use spec::{DType, Handle, TensorDesc};
//!
//! let logits = [
//!     0.5f32, 2.0, -1.0, 1.0, // request 0
//!     3.0, -4.0, 2.5, 0.0, // request 1
//! ];
//! let (temperature, top_k, seeds) = ([0.0f32, 0.8], [0i32, 2], [7u64, 8]);
//! // The texts have 17 and 203 tokens, so the next tokens have these positions.
//! let positions = [17i64, 203];
//!
//! let params = SampleLogits::transformers();
//! let tensors = params
//!     .tensors(2, 4)
//!     .top_k(TensorDesc::new(DType::I32, [2]))
//!     .probs(TensorDesc::new(DType::F32, [2, 4]));
//! let handle = Handle::cpu()?;
//! let sample = handle.create(&params, &tensors)?;
//! let mut workspace = sample.workspace(&handle)?;
//! let (mut tokens, mut probs) = ([0i32; 2], [0f32; 8]);
//! let buffers = Buffers::new(&logits, &positions, &temperature, &seeds, &mut tokens)
//!     .top_k(&top_k)
//!     .probs(&mut probs);
//! sample.call(&mut workspace, buffers)?;
//! assert!(tokens[0] == 1 && [0, 2].contains(&tokens[1]));
//! // The two tokens that top-k keeps have the weights 1 and e^(-0.5 / 0.8) = 0.5353.
//! assert_eq!(probs[..4], [0.0, 1.0, 0.0, 0.0]);
//! assert!((probs[4] - 1.0 / 1.5353).abs() < 1e-4 && probs[5] == 0.0 && probs[7] == 0.0);
//! # Ok::<(), spec::Error>(())
//! ```

use crate::check::Checker;
use crate::declare::operator;
use crate::exact::MAX_SAMPLED_VOCAB;
use crate::{DType, Matrix, Operator, Result, Status, TensorDesc, Vector};

/// The largest number of tokens that a row draws.
pub const MAX_DRAWS: usize = 64;
/// The largest number of likeliest tokens that a row reports.
pub const MAX_TOP: usize = 256;

operator! {
    /// Samples tokens from logits: temperature, top-k, top-p, min-p, an allowed-token mask and a
    /// seed for each request.
    ///
    /// ```
    /// use spec::ops::SampleLogits;
    /// use spec::{DType, Operator, TensorDesc};
    ///
    /// // Four rows, each the row of another request, with top-k and top-p.
    /// let operator = SampleLogits::default();
    /// let four = |dtype| TensorDesc::new(dtype, [4]);
    /// let tensors = operator.tensors(4, 128_256).top_k(four(DType::I32)).top_p(four(DType::F32));
    /// let plan = operator.plan(&tensors)?;
    /// assert_eq!((plan.rows(), plan.vocab()), (4, 128_256));
    /// # Ok::<(), spec::Error>(())
    /// ```
    pub struct SampleLogits = "sample_logits";

    options {
        /// Whether `min_p` drops tokens before `top_k` and `top_p` count them, as
        /// in vLLM, or after, as in transformers.
        optional min_p_first: bool = false,
    }

    sizes {
        vocab in 1..=MAX_SAMPLED_VOCAB,
        requests = "rows" without requests,
        n in 1..=MAX_DRAWS,
        top in 1..=MAX_TOP,
    }

    arguments by position {
        /// Logits, as the model gives them.
        required logits: in [F32, F16, BF16] "[rows, vocab]",
        /// The position in its own text of the token that each row decides; the
        /// first token of a prompt has position 0.
        required positions: in [I64, I32] "[rows]",
        /// The temperature of each request; 0 takes the likeliest token. Cut to
        /// 2^-100 .. 2^100.
        required temperature: in [F32] "[requests]",
        /// The seed of each request's random numbers.
        required seeds: in [U64] "[requests]",
        /// How many of the likeliest tokens each request keeps; 0 or less, or
        /// more than the vocabulary has, keeps all.
        optional top_k: in [I32] "[requests]",
        /// The share of probability that the kept tokens must reach, the likeliest first; 1 or
        /// more keeps all, 0 or less keeps only the likeliest.
        optional top_p: in [F32] "[requests]",
        /// The share of the likeliest token's probability below which tokens are
        /// dropped; 0 or less drops none.
        optional min_p: in [F32] "[requests]",
        /// The request of each row; -1: padding. Absent: row r is request r.
        optional requests: in [I32, U32, I64] "[rows]",
        /// Bit `v % 32` of word `v / 32` is set where a row may choose token `v`.
        optional mask: in [I32] "[rows, ceil(vocab / 32)]",
        /// The tokens chosen: one for each row, or the first `n`, at most 64, in the order in
        /// which they finish, then -1.
        required tokens: out [I32, U32, I64] "[rows] or [rows, n]",
        /// The distribution that each row's tokens were drawn from, exact to the bit; where no
        /// token was drawn, 1 at the token that was chosen and 0 elsewhere.
        optional probs: out [F32] "[rows, vocab]",
        /// The natural logarithm of each token's probability by the logits as given,
        /// without temperature, mask and filters.
        optional logprobs: out [F32] "[rows] or [rows, n]",
        /// The natural logarithm of each token's share of the distribution that it was drawn from.
        optional processed_logprobs: out [F32] "[rows] or [rows, n]",
        /// How many logits of the row, as given, are at least as large as each token's; 1 for the
        /// largest.
        optional ranks: out [I32] "[rows] or [rows, n]",
        /// The likeliest tokens of each row by the logits as given, at most 256, the likeliest
        /// first; -1 where the vocabulary has fewer.
        optional top_tokens: out [I32] "[rows, top]",
        /// The natural logarithm of the probability of each of `top_tokens`, as in `logprobs`.
        optional top_logprobs: out [F32] "[rows, top]",
        /// The bits of `flags` that each row has set, 0 for a row without bad data; written, not
        /// OR-ed.
        optional row_flags: out [U32] "[rows]",
        /// Bits for bad data, OR-ed into the word's previous value: 1 a logit that is not finite or
        /// a row without a token, 4 a bad parameter or request.
        optional flags: inout [U32] "[1]",
    }
}

impl Default for SampleLogits {
    fn default() -> Self {
        SampleLogits::new()
    }
}

impl SampleLogits {
    /// The order of filters in transformers: `min_p` last.
    pub const fn transformers() -> Self {
        SampleLogits::new()
    }

    /// The order of filters in vLLM: `min_p` first.
    pub const fn vllm() -> Self {
        SampleLogits::new().min_p_first(true)
    }

    /// Packed descriptors for `rows` rows of f32 logits, each the row of another request, with i64
    /// positions and no optional argument.
    pub fn tensors(&self, rows: usize, vocab: usize) -> Tensors {
        self.required(rows, rows, vocab)
    }

    /// As [`tensors`](Self::tensors), for the rows of `requests` requests. A request may have
    /// several rows; the optional argument `requests` (i32) says which request a row belongs to.
    pub fn tensors_of(&self, rows: usize, requests: usize, vocab: usize) -> Tensors {
        self.required(rows, requests, vocab).requests(TensorDesc::new(DType::I32, [rows]))
    }

    fn required(&self, rows: usize, requests: usize, vocab: usize) -> Tensors {
        Tensors::new(
            TensorDesc::new(DType::F32, [rows, vocab]),
            TensorDesc::new(DType::I64, [rows]),
            TensorDesc::new(DType::F32, [requests]),
            TensorDesc::new(DType::U64, [requests]),
            TensorDesc::new(DType::I32, [rows]),
        )
    }
}

/// A validated call, from which a backend prepares a kernel.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Plan {
    /// The parameters.
    pub params: SampleLogits,
    /// The logits.
    pub logits: Matrix,
    /// The positions.
    pub positions: Vector,
    /// The number of requests.
    pub requests: usize,
    /// Whether `top_k` or `top_p` is given.
    pub filters: bool,
    /// The request of each row, where given.
    pub of_rows: Option<Vector>,
    /// The mask, where given.
    pub mask: Option<Matrix>,
    /// The tokens to write, `[rows, n]`.
    pub tokens: Matrix,
    /// The distribution to write, where asked for.
    pub probs: Option<Matrix>,
    /// The log-probabilities of tokens by the logits as given, `[rows, n]`.
    pub logprobs: Option<Matrix>,
    /// The log-probabilities of tokens in the distribution that they were drawn from, `[rows, n]`.
    pub processed_logprobs: Option<Matrix>,
    /// The ranks of tokens, `[rows, n]`.
    pub ranks: Option<Matrix>,
    /// The likeliest tokens, `[rows, top]`.
    pub top_tokens: Option<Matrix>,
    /// The log-probabilities of the likeliest tokens, `[rows, top]`.
    pub top_logprobs: Option<Matrix>,
    /// Whether the flags of each row are asked for.
    pub row_flags: bool,
}

impl Plan {
    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.logits.rows
    }

    /// The size of the vocabulary.
    pub fn vocab(&self) -> usize {
        self.logits.cols
    }

    /// The number of tokens that a row draws, `n`.
    pub fn draws(&self) -> usize {
        self.tokens.cols
    }

    /// The number of likeliest tokens that a row reports; 0 where none are asked for.
    pub fn top(&self) -> usize {
        self.top_tokens.map_or(0, |matrix| matrix.cols)
    }

    /// Whether a report that depends on the logits as given is asked for.
    pub fn reports(&self) -> bool {
        self.logprobs.is_some() || self.ranks.is_some() || self.top() > 0
    }
}

impl Operator for SampleLogits {
    type Plan = Plan;

    fn plan(&self, t: &Tensors) -> Result<Plan> {
        let c = Checker::of::<Self>();
        let requests = c.shapes(self, t)?.of("requests");
        for (argument, desc) in [
            ("logprobs", &t.logprobs),
            ("processed_logprobs", &t.processed_logprobs),
            ("ranks", &t.ranks),
        ] {
            if let Some(desc) = desc.as_ref().filter(|desc| desc.shape() != t.tokens.shape()) {
                let value = format!("{:?}", desc.shape());
                let expected = format!("{:?}, the shape of `tokens`", t.tokens.shape());
                return Err(c.error(Status::BadTensorShape, argument, value, expected));
            }
        }
        if t.top_logprobs.is_some() {
            let expected = "present, since `top_logprobs` says the logarithms of its tokens";
            c.required("top_tokens", &t.top_tokens, expected)?;
        }
        let matrix = |desc: &Option<TensorDesc>| desc.as_ref().map(TensorDesc::matrix);
        Ok(Plan {
            params: *self,
            logits: t.logits.matrix(),
            positions: t.positions.vector(),
            requests,
            filters: t.top_k.is_some() || t.top_p.is_some(),
            of_rows: t.requests.as_ref().map(TensorDesc::vector),
            mask: matrix(&t.mask),
            tokens: t.tokens.matrix(),
            probs: matrix(&t.probs),
            logprobs: matrix(&t.logprobs),
            processed_logprobs: matrix(&t.processed_logprobs),
            ranks: matrix(&t.ranks),
            top_tokens: matrix(&t.top_tokens),
            top_logprobs: matrix(&t.top_logprobs),
            row_flags: t.row_flags.is_some(),
        })
    }
}
