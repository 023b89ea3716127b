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
//! 5. `min_tokens`: while the request has generated fewer tokens, the logits of its stop tokens
//!    become negative infinity.
//! 6. Bad words: the logit of the last token of a word becomes negative infinity where the
//!    generated text ends with the other tokens of the word (with
//!    [`bad_words_in_prompt`](AdjustLogits::bad_words_in_prompt), where the whole text does).
//! 7. `no_repeat_ngram` n, above 0: the logit of each token that would complete an n-gram that
//!    the text already has becomes negative infinity.
//!
//! A logit that a step adjusts is computed in f32 and rounded once after the last step; all other
//! logits keep their bits. Subnormal f32 numbers count as zeros of their sign: logits that a step
//! adjusts, parameters, and each intermediate result. So a device or a process that flushes such
//! numbers gives the same bits. The work depends on the length of the texts, not on the size of the
//! vocabulary.
//!
//! # Bad data
//! Flag 2: a token outside the vocabulary. It is skipped. The flag is raised for such a token in
//! the part of the text to which a penalty applies, in the request's bias, in its stop tokens while
//! `min_tokens` holds (except -1), as the last token of a word that matched, or as the token that
//! completes an n-gram.
//!
//! Flag 4:
//! * a request outside the arrays, except -1, which is padding: its row keeps its bits and raises
//!   no other flag, and for padding no flag at all;
//! * a length that is negative, or longer than the text or row that it belongs to: it is cut;
//! * a parent outside the rows, or a cycle of parents, on the path to a row: the row has no drafts;
//! * `repetition` that is not above 0 or not finite, `frequency` or `presence` that is not finite:
//!   this penalty is off;
//! * offsets of a request's bias or words that descend or leave their arrays: the request has no
//!   bias or no words;
//! * a word without tokens, or whose offsets descend or leave their array: the word is ignored.
//!
//! A penalty of 1 (`repetition`) or 0 (`frequency`, `presence`) is off too: the text is not read for
//! it.
//!
//! Sources: vLLM for the order and meaning of the steps; transformers for repetition (Keskar et
//! al., 2019) and n-grams.
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
    /// assert_eq!((plan.rows(), plan.vocab(), plan.requests()), (32, 128_256, 32));
    /// # Ok::<(), spec::Error>(())
    /// ```
    pub struct AdjustLogits = "adjust_logits";

    options {
        /// Whether the tokens before the last of a bad word may lie in the prompt.
        optional bad_words_in_prompt: bool = false,
    }

    sizes {
        vocab in 1..=MAX_I32,
        rows in 0..=MAX_I32,
        requests = "rows" without requests,
        requests in 0..=MAX_I32,
        max_len in 0..=MAX_I32,
        // Offsets into these are i32.
        biases in 0..=MAX_I32,
        words in 0..=MAX_I32,
        word_tokens in 0..=MAX_I32,
        stops in 0..=MAX_I32,
    }

    arguments by name {
        /// Logits, adjusted in place.
        required logits: inout [F32, F16, BF16] "[rows, vocab]",
        /// The text of each request, the prompt first. Tokens behind `lengths` are not read.
        required tokens: in [I64, I32] "[requests, max_len]",
        /// How many tokens of each text are the prompt.
        required prompt_lengths: in [I32, I64] "[requests]",
        /// How many tokens each text has.
        required lengths: in [I32, I64] "[requests]",
        /// The request of each row; -1: padding. Absent: row r is request r.
        optional requests: in [I32] "[rows]",
        /// The draft token of each row, where rows are drafts. The entry of a row without a parent
        /// is not read. Needs `parents`.
        optional draft_tokens: in [I64, I32] "[rows]",
        /// The row before each row, -1 for a row that decides after the text itself.
        optional parents: in [I32] "[rows]",
        /// Where the bias of each request starts and ends in `bias_tokens`. Needs `bias_tokens` and
        /// `bias_values`.
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
        /// How many tokens each request must generate before a stop token. Needs `stop_tokens`.
        optional min_tokens: in [I32] "[requests]",
        /// Tokens that end each request; -1 for none.
        optional stop_tokens: in [I32] "[requests, stops]",
        /// Where the bad words of each request start and end in the list of words. Needs
        /// `word_offsets` and `word_tokens`.
        optional bad_offsets: in [I32] "[requests + 1]",
        /// Where each word starts and ends in `word_tokens`.
        optional word_offsets: in [I32] "[words + 1]",
        /// The tokens of the words, one word behind the other.
        optional word_tokens: in [I32] "[word_tokens]",
        /// The length of n-grams that each request may not repeat; 0 or less for none.
        optional no_repeat_ngram: in [I32] "[requests]",
        /// Bits for bad data, OR-ed into the word's previous value.
        optional flags: inout [U32] "[1]",
    }
}

impl Default for AdjustLogits {
    /// Bad words are matched in the generated text only, as in vLLM.
    fn default() -> Self {
        AdjustLogits::new()
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
    /// The stop tokens, where `min_tokens` is given.
    pub stop_tokens: Option<Matrix>,
    /// The bad words, where they are given.
    pub words: Option<Words>,
    /// Whether `no_repeat_ngram` is given.
    pub no_repeat_ngram: bool,
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

    /// An upper bound of the number of distinct tokens of a row whose logits are adjusted.
    pub fn touched(&self) -> usize {
        let text = if self.penalises() || self.no_repeat_ngram { self.max_text() } else { 0 };
        text.saturating_add(self.biases.unwrap_or(0))
            .saturating_add(self.stop_tokens.map_or(0, |stops| stops.cols))
            .saturating_add(self.words.map_or(0, |words| words.count))
            .min(self.vocab())
    }
}

impl Operator for AdjustLogits {
    type Plan = Plan;

    fn plan(&self, t: &Tensors) -> Result<Plan> {
        let c = Checker::of::<Self>();
        c.shapes(self, t)?;
        c.together(
            &[("draft_tokens", &t.draft_tokens), ("parents", &t.parents)],
            "given, as `draft_tokens` and `parents` are given together or not at all",
        )?;
        c.together(
            &[
                ("bias_offsets", &t.bias_offsets),
                ("bias_tokens", &t.bias_tokens),
                ("bias_values", &t.bias_values),
            ],
            "given, as a bias has offsets, tokens and values",
        )?;
        c.together(
            &[("min_tokens", &t.min_tokens), ("stop_tokens", &t.stop_tokens)],
            "given, as `min_tokens` and `stop_tokens` are given together or not at all",
        )?;
        c.together(
            &[
                ("bad_offsets", &t.bad_offsets),
                ("word_offsets", &t.word_offsets),
                ("word_tokens", &t.word_tokens),
            ],
            "given, as bad words have two kinds of offsets and tokens",
        )?;
        let len = |desc: &TensorDesc| desc.vector().len;
        let words = t.word_offsets.as_ref().zip(t.word_tokens.as_ref());
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
            stop_tokens: t.stop_tokens.as_ref().map(TensorDesc::matrix),
            words: words
                .map(|(offsets, tokens)| Words { count: len(offsets) - 1, tokens: len(tokens) }),
            no_repeat_ngram: t.no_repeat_ngram.is_some(),
        })
    }
}
