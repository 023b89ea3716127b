//! Adjusts logits before sampling, as LLM servers do: bias, penalties, and tokens that a request
//! may not generate next.
//!
//! Each row of `logits` decides one token. The text of a row is the first `lengths` tokens of its
//! request, the prompt first. Where rows are drafts, the draft tokens on the path down to the row
//! follow, the row's own token last: `parents` names the row before each row, and -1 marks the row
//! that decides after the text itself. The own token of such a row is already the last token of the
//! text. A penalty therefore counts every draft on the path to a row, and a row of a tree gets the
//! same logits as it would get without drafts.
//!
//! ```text
//! tokens   The quick brown fox      lengths 4, prompt_lengths 2
//! row           0      1        2        3
//! draft_tokens  fox    jumps    over     naps
//! parents      -1      0        1        0
//! text of row 2: The quick brown fox jumps over     4 generated
//! text of row 3: The quick brown fox naps           3 generated
//! ```
//!
//! The steps run in this order, each only where its arguments are given. A step adjusts a distinct
//! token once, however often the token occurs:
//!
//! 1. Bias: `x + value`. A token that is in the request's list more than once gets each of its
//!    values, in the order of the list.
//! 2. `repetition` r, for tokens of the whole text: `x * inverse(r)` where `x > 0`, else `x * r`.
//!    [`inverse`](crate::exact::sampling::inverse) is the function that temperatures use.
//! 3. `frequency` f, for generated tokens: `x - f * count`, two roundings. `count` is how often the
//!    token was generated.
//! 4. `presence` p, for generated tokens: `x - p`.
//! 5. DRY, for tokens that would continue a repeated sequence: `x - penalty`; see below.
//! 6. `min_tokens`: while the request has generated fewer tokens, the logits of its stop tokens
//!    become negative infinity.
//! 7. Bad words: the logit of the last token of a word becomes negative infinity where the
//!    generated text ends with the other tokens of the word (with
//!    [`bad_words_in_prompt`](AdjustLogits::bad_words_in_prompt), where the whole text does).
//! 8. `no_repeat_ngram` n, above 0: the logit of each token that would complete an n-gram that
//!    the text already has becomes negative infinity.
//!
//! The output `forced` is apart from these steps: see "Thinking budgets".
//!
//! A logit that a step adjusts is computed in f32 and rounded once after the last step; all other
//! logits keep their bits. Subnormal f32 numbers count as zeros of their sign: logits that a step
//! adjusts, parameters, and each intermediate result. So a device or a process that flushes such
//! numbers gives the same bits. The work depends on the length of the texts, not on the size of the
//! vocabulary.
//!
//! # DRY
//! DRY ("don't repeat yourself") penalises a token the more, the longer the sequence that the token
//! would repeat. A sequence ends at a breaker, which is a token that may repeat, such as a line
//! break.
//!
//! The rule reads the last `dry_range` tokens of the row's text; all of the text where `dry_range`
//! is 0 or less, longer than the text, or absent. For an index i in this range, n(i) is the largest
//! n, at most [`MAX_MATCH`], such that the n tokens before i lie in the range, equal the last n
//! tokens of the text, and are no `dry_breakers`. The n of a token is the largest n(i) of all
//! indices i at which the text has the token. A token that is no breaker, and whose n is at least 1
//! and at least a = max(`dry_allowed_length`, 0), gets
//!
//! ```text
//! power   = base * base * ..  n - a factors, multiplied one after the other; 1 for n = a
//! penalty = multiplier * power
//! x       = x - penalty       negative infinity, whatever x is, where the penalty is infinite
//! ```
//!
//! ```text
//! text      the cat sat . the cat     multiplier 0.8, base 1.75, allowed length 1
//! n of sat  2: "the cat" ends the text, and stands before "sat"
//! x of sat  x - 0.8 * 1.75
//! ```
//!
//! # Thinking budgets
//! `forced` names the token that a row must take, -1 for none, as
//! [`sample_logits`](crate::ops::sample_logits) takes it; the logits keep their values. A thinking
//! begins behind the last occurrence of the tokens `think_start` in the row's text, and behind the
//! prompt where `think_start` has no tokens. A thinking that has used its budget of tokens is ended
//! by the tokens `think_forced`, one after the other: "I must answer now. `</think>`", say.
//!
//! Let L be the length of the row's text, drafts included, S the length of the text up to the end of
//! `think_start`, and t = L - S the tokens thought so far, those of the prompt included. Where t is
//! at least `think_budget`, let j be the largest number, at most t - `think_budget`, such that the
//! text ends with the first j tokens of `think_forced`. The row must take the token of `think_forced`
//! behind these j tokens. No token is forced where
//!
//! * the budget is below 0, or `think_end` or `think_forced` has no tokens;
//! * `think_start` does not occur, or t is below the budget;
//! * the text ends with all of `think_forced`, or the whole of `think_end` or of `think_forced`
//!   occurs in the text with its end behind S and not behind L - j: the thinking is over.
//!
//! A thinking therefore gets all tokens of `think_forced` once, also those behind `think_end` in it,
//! and a text that is already past its budget is ended at once. Each row of drafts is decided by its
//! own text.
//!
//! # Parts of a vocabulary
//! Where tensor parallelism divides the vocabulary, a call adjusts the columns of one part: column c
//! is token [`first_token`](AdjustLogits::first_token) + c of a vocabulary of
//! [`vocab`](AdjustLogits::vocab) tokens. A token of the vocabulary that has no column is skipped
//! without a flag, so each part gets the values, `forced` and flags that it has in a call with the
//! whole row.
//!
//! # Bad data
//! Flag 2: a token outside the vocabulary. It is skipped. The flag is raised for such a token in
//! the part of the text to which a penalty applies, in the request's bias, in its stop tokens while
//! `min_tokens` holds (except -1), as the last token of a word that matched, as the token that
//! completes an n-gram, as a token that DRY penalises, or as a token that a budget forces, where
//! `forced` becomes -1.
//!
//! Flag 4:
//! * a request outside the arrays, except -1, which is padding: its row keeps its bits and raises
//!   no other flag, and for padding no flag at all; its `forced` is -1;
//! * a length that is negative, or longer than the text or row that it belongs to: it is cut;
//! * a parent outside the rows, or a cycle of parents, on the path to a row: the row has no drafts;
//! * `repetition` that is not above 0 or not finite, `frequency` or `presence` that is not finite:
//!   this penalty is off;
//! * `dry_multiplier` that is negative or not finite, or, where it is not 0, `dry_base` that is below
//!   1 or not finite: DRY is off;
//! * offsets of a request's bias or words that descend or leave their arrays: the request has no
//!   bias or no words;
//! * a word without tokens, or whose offsets descend or leave their array: the word is ignored.
//!
//! A penalty of 1 (`repetition`) or 0 (`frequency`, `presence`, `dry_multiplier`) is off too: the text
//! is not read for it.
//!
//! Sources: vLLM for the order and meaning of the steps, and for thinking budgets; transformers for
//! repetition (Keskar et al., 2019) and n-grams; text-generation-webui and llama.cpp for DRY.
//!
//! # Example
//! ```
//! use spec::ops::AdjustLogits;
//! use spec::ops::adjust_logits::{Buffers, Required};
//! use spec::{DType, Handle, TensorDesc};
//!
//! // One request of two tokens, the last of which was generated; two drafts follow each other.
//! let tokens = [3, 1];
//! let (draft_tokens, parents, requests) = ([1, 1, 2], [-1, 0, 1], [0, 0, 0]);
//! let (repetition, frequency) = ([2.0f32], [0.5f32]);
//! let mut logits = [
//!     1.0f32, 1.0, 1.0, -1.0, // after 3 1
//!     1.0, 1.0, 1.0, -1.0, // after 3 1 1
//!     1.0, 1.0, 1.0, -1.0, // after 3 1 1 2
//! ];
//!
//! let params = AdjustLogits::default();
//! let rows = TensorDesc::new(DType::I32, [3]);
//! let penalty = TensorDesc::new(DType::F32, [1]);
//! let tensors = params
//!     .tensors(DType::F32, 3, 4, 1, 2)
//!     .requests(rows)
//!     .draft_tokens(rows)
//!     .parents(rows)
//!     .repetition(penalty)
//!     .frequency(penalty);
//! let handle = Handle::cpu()?;
//! let adjust = handle.create(&params, &tensors)?;
//! let mut workspace = adjust.workspace(&handle)?;
//! let buffers = Buffers::new(Required {
//!     logits: (&mut logits).into(),
//!     tokens: (&tokens).into(),
//!     prompt_lengths: (&[1]).into(),
//!     lengths: (&[2]).into(),
//! })
//! .requests(&requests)
//! .draft_tokens(&draft_tokens)
//! .parents(&parents)
//! .repetition(&repetition)
//! .frequency(&frequency);
//! adjust.call(&mut workspace, buffers)?;
//! assert_eq!(logits[..4], [1.0, 0.0, 1.0, -2.0]);
//! assert_eq!(logits[4..8], [1.0, -0.5, 1.0, -2.0]);
//! assert_eq!(logits[8..], [1.0, -0.5, 0.0, -2.0]);
//! # Ok::<(), spec::Error>(())
//! ```

use crate::check::{Checker, MAX_I32};
use crate::declare::operator;
use crate::{DType, Matrix, Operator, Result, TensorDesc, Vector};

operator! {
    /// Adjusts logits in place by bias, penalties and tokens that may not come next, also where
    /// rows are drafts.
    ///
    /// ```
    /// use spec::ops::AdjustLogits;
    /// use spec::{DType, Operator, TensorDesc};
    ///
    /// let operator = AdjustLogits::default();
    /// let tensors = operator
    ///     .tensors(DType::BF16, 32, 128_256, 32, 4096)
    ///     .presence(TensorDesc::new(DType::F32, [32]));
    /// let plan = operator.plan(&tensors)?;
    /// assert_eq!((plan.rows(), plan.columns(), plan.requests()), (32, 128_256, 32));
    /// # Ok::<(), spec::Error>(())
    /// ```
    pub struct AdjustLogits = "adjust_logits";

    options {
        /// Whether the tokens before the last of a bad word may lie in the prompt.
        optional bad_words_in_prompt: bool = false,
        /// The token of the first column. Above 0 where the columns are a part of a vocabulary
        /// whose other parts other calls adjust.
        optional first_token: i32 [0..] = 0,
        /// The number of tokens of the whole vocabulary; 0: the columns and the tokens before them.
        optional vocab: i32 [0..] = 0,
    }

    presence {
        draft_tokens, parents together;
        bias_offsets, bias_tokens, bias_values together;
        dry_multiplier, dry_base, dry_allowed_length together;
        dry_range, dry_breakers need dry_multiplier;
        min_tokens, stop_tokens together;
        bad_offsets, word_offsets, word_tokens together;
        think_budget, think_start, think_end, think_forced together;
        forced needs think_budget;
    }

    sizes {
        columns in 1..=MAX_I32,
        end = "first_token + columns",
        rows in 0..=MAX_I32,
        requests = "rows" without requests,
        requests in 0..=MAX_I32,
        max_len in 0..=MAX_I32,
        // Offsets into these are i32.
        biases in 0..=MAX_I32,
        words in 0..=MAX_I32,
        word_tokens in 0..=MAX_I32,
        stops in 0..=MAX_I32,
        breakers in 0..=MAX_I32,
        start_tokens in 0..=MAX_THINK_TOKENS,
        end_tokens in 0..=MAX_THINK_TOKENS,
        forced_tokens in 0..=MAX_THINK_TOKENS,
    }

    arguments by name {
        /// Logits, adjusted in place.
        required logits: inout [F32, F16, BF16] "[rows, columns]",
        /// The text of each request, the prompt first. Tokens behind `lengths` are not read.
        required tokens: in [I64, I32] "[requests, max_len]",
        /// How many tokens of each text are the prompt.
        required prompt_lengths: in [I32, I64] "[requests]",
        /// How many tokens each text has.
        required lengths: in [I32, I64] "[requests]",
        /// The request of each row; -1: padding. Absent: row r is request r.
        optional requests: in [I32] "[rows]",
        /// The draft token of each row, where rows are drafts. The entry of a row without a parent
        /// is not read.
        optional draft_tokens: in [I64, I32] "[rows]",
        /// The row before each row, -1 for a row that decides after the text itself.
        optional parents: in [I32] "[rows]",
        /// Where the bias of each request starts and ends in `bias_tokens`.
        optional bias_offsets: in [I32] "[requests + 1]",
        /// Tokens with a bias.
        optional bias_tokens: in [I32] "[biases]",
        /// The value that is added to the logit of each of `bias_tokens`; may be infinite.
        optional bias_values: in [F32] "[biases]",
        /// The repetition penalty of each request. Positive logits of tokens in its text are
        /// divided by it, other logits of such tokens are multiplied with it; 1 for none.
        optional repetition: in [F32] "[requests]",
        /// The frequency penalty of each request, subtracted from a logit once for each time that
        /// its token was generated; 0 for none.
        optional frequency: in [F32] "[requests]",
        /// The presence penalty of each request, subtracted once from the logit of each token that
        /// was generated; 0 for none.
        optional presence: in [F32] "[requests]",
        /// The DRY penalty of each request for a sequence of the allowed length; 0 for none.
        optional dry_multiplier: in [F32] "[requests]",
        /// The factor of the DRY penalty for each further token of the repeated sequence; at least 1.
        optional dry_base: in [F32] "[requests]",
        /// The length of a repeated sequence from which on DRY penalises the token behind it.
        optional dry_allowed_length: in [I32] "[requests]",
        /// How many of the last tokens of each text DRY reads; 0 or less for all.
        optional dry_range: in [I32] "[requests]",
        /// Tokens that end a sequence and that DRY never penalises, for all requests.
        optional dry_breakers: in [I32] "[breakers]",
        /// How many tokens each request must generate before a stop token.
        optional min_tokens: in [I32] "[requests]",
        /// Tokens that end each request; -1 for none.
        optional stop_tokens: in [I32] "[requests, stops]",
        /// Where the bad words of each request start and end in the list of words.
        optional bad_offsets: in [I32] "[requests + 1]",
        /// Where each word starts and ends in `word_tokens`.
        optional word_offsets: in [I32] "[words + 1]",
        /// The tokens of the words, one word behind the other.
        optional word_tokens: in [I32] "[word_tokens]",
        /// The length of n-grams that each request may not repeat; 0 or less for none.
        optional no_repeat_ngram: in [I32] "[requests]",
        /// How many tokens each request may think; below 0 for no limit.
        optional think_budget: in [I32] "[requests]",
        /// The tokens that begin a thinking, at most 1,024; none where thinking begins behind the
        /// prompt.
        optional think_start: in [I32] "[start_tokens]",
        /// The tokens that end a thinking, at most 1,024.
        optional think_end: in [I32] "[end_tokens]",
        /// The tokens that a request must take, one after the other, once its budget is used; at
        /// most 1,024.
        optional think_forced: in [I32] "[forced_tokens]",
        /// The token of `think_forced` that each row must take; -1 for none.
        optional forced: out [I32] "[rows]",
        /// Bits for bad data, OR-ed into the previous value; only the caller clears them. 2: a
        /// token is outside the vocabulary and was skipped; a forced token is, and becomes -1. 4: a
        /// request, a length, a parent, an offset or a penalty is out of range, and was cut or left
        /// out.
        optional flags: inout [U32] "[1]",
    }
}

impl AdjustLogits {
    /// Packed descriptors for `rows` rows of logits of the type `logits`, and `requests` texts of
    /// up to `max` tokens. Tokens and lengths are i32, and no optional argument is given.
    pub fn tensors(
        &self,
        logits: DType,
        rows: usize,
        vocab: usize,
        requests: usize,
        max: usize,
    ) -> Tensors {
        let per_request = TensorDesc::new(DType::I32, [requests]);
        Tensors::new(Required {
            logits: TensorDesc::new(logits, [rows, vocab]),
            tokens: TensorDesc::new(DType::I32, [requests, max]),
            prompt_lengths: per_request,
            lengths: per_request,
        })
    }
}

/// The largest number of tokens of a repeated sequence that DRY counts.
pub const MAX_MATCH: usize = 64;

/// The largest number of tokens of `think_start`, of `think_end` and of `think_forced`.
pub const MAX_THINK_TOKENS: usize = 1024;

/// The DRY rule of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dry {
    /// Whether `dry_range` is given.
    pub range: bool,
    /// The number of breakers; 0 where they are absent.
    pub breakers: usize,
}

/// The numbers of tokens of a thinking budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Think {
    /// The tokens of `think_start`.
    pub start: usize,
    /// The tokens of `think_end`.
    pub end: usize,
    /// The tokens of `think_forced`.
    pub forced: usize,
}

/// The bad words of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Words {
    /// The number of words.
    pub count: usize,
    /// The number of tokens of all words together.
    pub tokens: usize,
}

/// A validated call, from which a backend prepares a kernel.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Plan {
    /// The parameters.
    pub params: AdjustLogits,
    /// The logits.
    pub logits: Matrix,
    /// The texts.
    pub tokens: Matrix,
    /// The dtype of prompt lengths.
    pub prompt_lengths: DType,
    /// The dtype of lengths.
    pub lengths: DType,
    /// Whether the argument `requests` names the request of each row.
    pub mapped: bool,
    /// The draft tokens, where rows are drafts.
    pub draft_tokens: Option<Vector>,
    /// The number of biases of all requests together, where a bias is given.
    pub biases: Option<usize>,
    /// Whether there is a repetition penalty.
    pub repetition: bool,
    /// Whether there is a frequency penalty.
    pub frequency: bool,
    /// Whether there is a presence penalty.
    pub presence: bool,
    /// The DRY rule, where it is given.
    pub dry: Option<Dry>,
    /// The stop tokens, where `min_tokens` is given.
    pub stop_tokens: Option<Matrix>,
    /// The bad words, where they are given.
    pub words: Option<Words>,
    /// Whether `no_repeat_ngram` is given.
    pub no_repeat_ngram: bool,
    /// The thinking budget, where the output `forced` is given.
    pub think: Option<Think>,
}

impl Plan {
    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.logits.rows
    }

    /// The number of columns, each the logit of a token.
    pub fn columns(&self) -> usize {
        self.logits.cols
    }

    /// The token of the first column.
    pub fn first_token(&self) -> usize {
        self.params.first_token.unsigned_abs() as usize
    }

    /// The size of the vocabulary, of which the columns may be a part.
    pub fn vocab(&self) -> usize {
        match self.params.vocab {
            0 => self.first_token() + self.columns(),
            vocab => vocab.unsigned_abs() as usize,
        }
    }

    /// The number of requests.
    pub fn requests(&self) -> usize {
        self.tokens.rows
    }

    /// An upper bound of the number of tokens in the text of a row: the tokens of its request,
    /// and one draft token for every row but the first.
    pub fn max_text(&self) -> usize {
        let drafts = self.draft_tokens.map_or(0, |drafts| drafts.len.saturating_sub(1));
        self.tokens.cols.saturating_add(drafts)
    }

    /// Whether a repetition, frequency or presence penalty is given.
    pub fn penalises(&self) -> bool {
        self.repetition || self.frequency || self.presence
    }

    /// Whether a rule goes through the whole text of a row.
    pub fn reads_text(&self) -> bool {
        self.penalises() || self.dry.is_some() || self.no_repeat_ngram
    }

    /// An upper bound of the number of distinct tokens of a row whose logits are adjusted.
    pub fn touched(&self) -> usize {
        let text = if self.reads_text() { self.max_text() } else { 0 };
        text.saturating_add(self.biases.unwrap_or(0))
            .saturating_add(self.stop_tokens.map_or(0, |stops| stops.cols))
            .saturating_add(self.words.map_or(0, |words| words.count))
            .min(self.columns())
    }
}

impl Operator for AdjustLogits {
    type Plan = Plan;

    fn plan(&self, t: &Tensors) -> Result<Plan> {
        let (c, sizes) = Checker::declared(self, t)?;
        let expected = || format!("at most {}", MAX_I32 - t.logits.matrix().cols);
        c.param(sizes.of("end") <= MAX_I32, "first_token", self.first_token, expected())?;
        let len = |desc: &TensorDesc| desc.vector().len;
        let words = t.word_offsets.as_ref().zip(t.word_tokens.as_ref());
        let or_none = |desc: &Option<TensorDesc>| desc.as_ref().map_or(0, len);
        Ok(Plan {
            params: *self,
            logits: t.logits.matrix(),
            tokens: t.tokens.matrix(),
            prompt_lengths: t.prompt_lengths.dtype(),
            lengths: t.lengths.dtype(),
            mapped: t.requests.is_some(),
            draft_tokens: t.draft_tokens.as_ref().map(TensorDesc::vector),
            biases: t.bias_tokens.as_ref().map(len),
            repetition: t.repetition.is_some(),
            frequency: t.frequency.is_some(),
            presence: t.presence.is_some(),
            dry: t
                .dry_multiplier
                .is_some()
                .then(|| Dry { range: t.dry_range.is_some(), breakers: or_none(&t.dry_breakers) }),
            stop_tokens: t.stop_tokens.as_ref().map(TensorDesc::matrix),
            words: words
                .map(|(offsets, tokens)| Words { count: len(offsets) - 1, tokens: len(tokens) }),
            no_repeat_ngram: t.no_repeat_ngram.is_some(),
            think: t.forced.is_some().then(|| Think {
                start: or_none(&t.think_start),
                end: or_none(&t.think_end),
                forced: or_none(&t.think_forced),
            }),
        })
    }
}
