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
//! # Columns that stand for other tokens
//! A row need not hold the whole vocabulary in order. With [`first_token`](SampleLogits::first_token),
//! column `c` stands for the token `first_token + c`: a shard of the vocabulary. With `token_ids`,
//! column `c` stands for the token `token_ids[c]`: the head of a draft model with fewer tokens, or
//! candidates that were gathered from shards.
//!
//! * The noise of a column is that of its token, so a draft model with a reduced vocabulary agrees
//!   with its target, and shards race on the noise of the whole row. Of equal times in step 9, the
//!   lower token comes first, then the lower column. Columns with equal ids race each for itself,
//!   on the same noise.
//! * `tokens`, `top_tokens`, `kept_tokens`, `winners` and `forced` hold tokens, and the bits of
//!   `mask` are those of tokens. A token beyond the mask's words is not allowed. `probs`, and the
//!   order of steps 1, 2 and 4, go by column.
//! * A column whose id is -1 stands for no token. Nothing of its logit is looked at: the column is
//!   not allowed, `ranks` does not count it and `top_tokens` does not list it. Another id outside of
//!   `0..2^24` is the same and sets flag 2. If no column of a row is allowed, step 1 takes column 0.
//!   If that stands for no token, the row's token is 0, with rank 0.
//!
//! # Shards
//! The ranks of a tensor-parallel model each hold some columns of a row. The largest logit of the
//! whole row is all that one rank has to know of the others:
//!
//! 1. Each rank calls with `largest` and `tokens` of shape `[rows, 0]`. Such a call draws nothing.
//! 2. An all-reduce MAX of `largest`, 4 bytes per row.
//! 3. Each rank calls with the result as `maxima`, with `first_token`, and with `winners`.
//! 4. An all-reduce MIN of `winners`, 8 bytes per row, whose low 32 bits are the tokens.
//!
//! `maxima` takes the place of `m` in all steps. A `maxima` of NaN, or below the largest `x` of the
//! rank's own columns, is replaced by the latter and sets flag 4. A rank may have nothing to offer:
//! no `x` equals `m` at temperature 0, or no column has a `q` that is not 0. Its token is then -1.
//!
//! `winners` is `place << 32 | token`. The place is 0 for a forced token; 1 for a row that step 1 or
//! 2 ends; the bits of the winner's time for a row that step 9 ends; 2^31 - 1 for a row that has
//! nothing to offer, a row of which no column is allowed, and padding.
//!
//! # Forced tokens
//! `forced` names a token that is taken instead of the drawn one, by the lowest column that stands
//! for the token, whether the column is allowed and kept or not; further draws are -1. `logprobs` and
//! `ranks` are those of the column. `processed_logprobs` is its share of what would have been drawn
//! from. All other outputs and flags are as without `forced`. -1 forces no token. A token that no
//! column stands for is not taken and sets flag 2, unless `maxima` is given, since another rank may
//! have the token. A token below -1 is not taken and sets flag 2.
//!
//! # Kept tokens
//! `kept_tokens` lists the tokens that race in step 9 in the order of their columns, then -1, and
//! `kept_counts` says how many race. Where more race than `kept_tokens` holds, it lists the first in
//! the order of step 4, still by column. A row that step 1 or 2 ends lists the one token that it
//! chose.
//!
//! # Padding
//! A request of -1 is padding, as captured graphs have it: nothing of its row is looked at, and the
//! row sets no flag. The row has no token: `tokens`, `top_tokens` and `kept_tokens` are -1, `ranks`,
//! `probs` and `kept_counts` 0, logarithms and `largest` negative infinity.
//!
//! # Bad data
//! Flag 1: a logit that is NaN or positive infinity, whether the mask allows its token or not
//! (logits of positive infinity share the whole weight of the row); or a row without any token to
//! choose.
//!
//! Flag 2: an id outside of `-1..2^24`, or a forced token that is not taken.
//!
//! Flag 4: a temperature that is negative or NaN, or a request outside the arrays, both
//! of which count as temperature 0; a `top_p` of NaN, which keeps the first token only; a
//! `min_p` of NaN, which counts as 1; a `maxima` that is replaced. A row that step 1 or 2 ends raises no flag for data that only
//! later steps read. `row_flags` says which bits each row has set.
//!
//! The first token of a row that is no padding is always inside the vocabulary, unless `maxima` is
//! given. A call with `largest` sets no flag, because the call that draws sets it.
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
/// The largest number of kept tokens that a row lists.
pub const MAX_KEPT: usize = 4096;
/// The place of a row in `winners` whose token is forced.
pub const PLACE_FORCED: u32 = 0;
/// The place of a row in `winners` that ends without a race.
pub const PLACE_CERTAIN: u32 = 1;
/// The place of a row in `winners` that has no token to offer.
pub const PLACE_NOTHING: u32 = i32::MAX as u32;

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
        /// The token that column 0 stands for; column `c` stands for `first_token + c`.
        optional first_token: i32 [0..] = 0,
    }

    presence {
        token_ids excludes first_token;
        maxima, largest exclude top_k, top_p, probs, logprobs, processed_logprobs, ranks,
            top_tokens, top_logprobs, kept_tokens, kept_counts;
        largest excludes maxima, forced, winners, row_flags;
        top_logprobs needs top_tokens;
    }

    sizes {
        vocab in 1..=MAX_SAMPLED_VOCAB,
        end = "first_token + vocab",
        requests = "rows" without requests,
        n in 0..=MAX_DRAWS,
        top in 1..=MAX_TOP,
        kept in 1..=MAX_KEPT,
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
        /// Bit `v % 32` of word `v / 32` is set where a row may choose token `v`. Logits that are
        /// wider than the tokenizer's vocabulary, as those of a padded vocabulary are, need a mask
        /// without the bits of the columns that stand for no token, or a shape without the columns.
        optional mask: in [I32] "[rows, words]",
        /// The token that each column stands for, of all rows or of each; -1: none.
        optional token_ids: in [I32, I64] "[vocab] or [rows, vocab]",
        /// The largest logit of each row among the columns of all ranks, `largest` of the ranks
        /// after an all-reduce MAX.
        optional maxima: in [F32] "[rows]",
        /// A token that each row takes instead of a drawn one; -1: none.
        optional forced: in [I32] "[rows]",
        /// The tokens chosen: one for each row, or the first `n`, at most 64, in the order in
        /// which they finish, then -1. None, `[rows, 0]`, with `largest`.
        required tokens: out [I32, U32, I64] "[rows] or [rows, n]",
        /// The distribution that each row's tokens were drawn from, exact to the bit; where no
        /// token was drawn, 1 at the token that was chosen and 0 elsewhere.
        optional probs: out [F32] "[rows, vocab]",
        /// The natural logarithm of each token's probability by the logits as given,
        /// without temperature, mask and filters.
        optional logprobs: out [F32] "[rows] or [rows, n] as tokens",
        /// The natural logarithm of each token's share of the distribution that it was drawn from.
        optional processed_logprobs: out [F32] "[rows] or [rows, n] as tokens",
        /// How many logits of the row, as given, are at least as large as each token's; 1 for the
        /// largest.
        optional ranks: out [I32] "[rows] or [rows, n] as tokens",
        /// The likeliest tokens of each row by the logits as given, at most 256, the likeliest
        /// first; -1 where the vocabulary has fewer.
        optional top_tokens: out [I32] "[rows, top]",
        /// The natural logarithm of the probability of each of `top_tokens`, as in `logprobs`.
        optional top_logprobs: out [F32] "[rows, top]",
        /// The bits of `flags` that each row has set, 0 for a row without bad data; written, not
        /// OR-ed.
        optional row_flags: out [U32] "[rows]",
        /// The time of each row's token and the token, as a number whose minimum over the ranks is
        /// that of the whole row: `place << 32 | token`.
        optional winners: out [I64, U64] "[rows]",
        /// The tokens of each row that race, at most 4096, in the order of their columns, then -1.
        optional kept_tokens: out [I32] "[rows, kept]",
        /// How many tokens of each row race.
        optional kept_counts: out [I32] "[rows]",
        /// The largest logit of each row that the mask allows. A call with this output draws no
        /// token and has no other output.
        optional largest: out [F32] "[rows]",
        /// Bits for bad data, OR-ed into the previous value; only the caller clears them. 1: a
        /// logit is NaN or positive infinity, or a row has no token to choose. 2: an id of
        /// `token_ids` is neither a token nor -1 and counts as none, or a forced token is not
        /// there. 4: a temperature is negative or NaN, a request is out of range, `top_p` or
        /// `min_p` is NaN, or one of `maxima` cannot be the largest logit.
        optional flags: inout [U32] "[1]",
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
    /// The token that each column stands for, where given. One row for all rows has a stride of 0.
    pub token_ids: Option<Matrix>,
    /// Whether the largest logits over all ranks are given.
    pub maxima: bool,
    /// Whether tokens may be forced.
    pub forced: bool,
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
    /// Whether the numbers that ranks reduce are asked for.
    pub winners: bool,
    /// The tokens that race, `[rows, kept]`.
    pub kept_tokens: Option<Matrix>,
    /// Whether the number of tokens that race is asked for.
    pub kept_counts: bool,
    /// Whether the call is for the largest logits alone.
    pub largest: bool,
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

    /// Whether the tokens that race are asked for, or their number.
    pub fn keeps(&self) -> bool {
        self.kept_tokens.is_some() || self.kept_counts
    }

    /// Whether the call has any of the options by which a row is more than the whole vocabulary in
    /// order that draws its tokens. Calls without them have kernels of their own.
    pub fn by_column(&self) -> bool {
        let ids = self.token_ids.is_some() || self.params.first_token != 0;
        ids || self.maxima || self.forced || self.winners || self.keeps()
    }

    /// Whether a report that depends on the logits as given is asked for.
    pub fn reports(&self) -> bool {
        self.logprobs.is_some() || self.ranks.is_some() || self.top() > 0
    }
}

impl SampleLogits {
    /// Checks that the mask has the bits of all columns.
    fn check_mask(&self, c: &Checker, t: &Tensors, end: usize) -> Result<()> {
        match t.mask.as_ref().map(TensorDesc::matrix) {
            Some(mask) if t.token_ids.is_none() && mask.cols < end.div_ceil(32) => {
                let value = format!("[{}, {}]", mask.rows, mask.cols);
                let expected = format!("a bit for each token, {} words per row", end.div_ceil(32));
                Err(c.error(Status::BadTensorShape, "mask", value, expected))
            }
            _ => Ok(()),
        }
    }

    /// Checks how many tokens a row draws.
    fn check_draws(&self, c: &Checker, t: &Tensors) -> Result<()> {
        let draws = t.tokens.matrix().cols;
        if (draws == 0) != t.largest.is_some() {
            let value = format!("{:?}", t.tokens.shape());
            let expected = "[rows, 0] with `largest`, and 1 to 64 tokens per row without";
            return Err(c.error(Status::BadTensorShape, "tokens", value, expected));
        }
        if t.maxima.is_some() {
            c.param(draws == 1, "tokens", format!("{draws} per row"), "1 per row with `maxima`")?;
        }
        if t.winners.is_some() {
            c.param(draws == 1, "winners", "given", "absent where a row draws several tokens")?;
        }
        Ok(())
    }
}

impl Operator for SampleLogits {
    type Plan = Plan;

    fn plan(&self, t: &Tensors) -> Result<Plan> {
        let (c, sizes) = Checker::declared(self, t)?;
        let (end, vocab) = (sizes.of("end"), t.logits.matrix().cols);
        let max = MAX_SAMPLED_VOCAB + 1;
        c.param(end <= max, "first_token", self.first_token, format!("at most {}", max - vocab))?;
        self.check_mask(&c, t, end)?;
        self.check_draws(&c, t)?;
        let matrix = |desc: &Option<TensorDesc>| desc.as_ref().map(TensorDesc::matrix);
        // The ids of all rows are a row that every row has.
        let ids = |desc: &TensorDesc| match *desc.shape() {
            [cols] => {
                Matrix { dtype: desc.dtype(), rows: t.logits.matrix().rows, cols, row_stride: 0 }
            }
            _ => desc.matrix(),
        };
        Ok(Plan {
            params: *self,
            logits: t.logits.matrix(),
            positions: t.positions.vector(),
            requests: sizes.of("requests"),
            filters: t.top_k.is_some() || t.top_p.is_some(),
            of_rows: t.requests.as_ref().map(TensorDesc::vector),
            mask: matrix(&t.mask),
            token_ids: t.token_ids.as_ref().map(ids),
            maxima: t.maxima.is_some(),
            forced: t.forced.is_some(),
            tokens: t.tokens.matrix(),
            probs: matrix(&t.probs),
            logprobs: matrix(&t.logprobs),
            processed_logprobs: matrix(&t.processed_logprobs),
            ranks: matrix(&t.ranks),
            top_tokens: matrix(&t.top_tokens),
            top_logprobs: matrix(&t.top_logprobs),
            winners: t.winners.is_some(),
            kept_tokens: matrix(&t.kept_tokens),
            kept_counts: t.kept_counts.is_some(),
            largest: t.largest.is_some(),
            row_flags: t.row_flags.is_some(),
        })
    }
}
