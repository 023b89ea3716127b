//! What servers do to logits before they sample: bias, penalties, and tokens that a request
//! may not have next.
//!
//! Each row of `logits` decides one token. Its text is the first `lengths` tokens of its request,
//! the prompt first. Where rows are drafts, the draft tokens on the way down to the row follow,
//! its own last: `parents` names the row before each, and -1 for the row that decides after the
//! text itself, whose own token is the text's last already. A penalty therefore counts every
//! draft above a row, and a row of a tree gets what it would get without drafts.
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
//! In this order, each of them only where its arguments are there, for every distinct token:
//!
//! 1. Bias: `x + value`, in the order of the request's list, where a token may stand repeatedly.
//! 2. `repetition` r, tokens of the whole text: `x * inverse(r)` where `x > 0`, else `x * r`.
//!    [`inverse`](crate::exact::sampling::inverse) is that of a temperature.
//! 3. `frequency` f, tokens generated: `x - f * count`, two roundings.
//! 4. `presence` p, tokens generated: `x - p`.
//! 5. `min_tokens`: while fewer tokens were generated, the request's stop tokens are negative
//!    infinity.
//! 6. Bad words: the last token of each word whose other tokens end what was generated (the whole
//!    text with [`bad_words_in_prompt`](AdjustLogits::bad_words_in_prompt)) is negative infinity.
//! 7. `no_repeat_ngram` n, above 0: each token that would complete an n-gram that the text has
//!    already is negative infinity.
//!
//! A logit that is touched is computed in f32 and rounded once; all others keep their bits. The
//! work depends on the length of the texts, not on the size of the vocabulary.
//!
//! # Bad data
//! Flag 2: a token outside the vocabulary, in the part of the text to which a penalty applies, in
//! the request's bias, in its stop tokens while `min_tokens` holds (-1 aside), as the last token
//! of a word that matched, or as the one that completes an n-gram. It is skipped.
//!
//! Flag 4: a request outside the arrays, whose row keeps its bits and has no other flag; a length
//! that is negative or longer than what it is a length of, which is cut; a parent outside the rows
//! or a cycle of parents, on the way to a row, which then has no drafts; `repetition` that is not
//! above 0 or not finite, `frequency` or `presence` that is not finite: that penalty is off;
//! offsets of a request's bias or words that descend or leave their arrays: the request has none;
//! a word without tokens, or with such offsets: there is no such word.
//!
//! A penalty of exactly 1 (`repetition`) or +0 (the others) is off too: its text is not looked at.
//!
//! Sources: vLLM's order and meaning; transformers' for repetition (Keskar et al., 2019) and
//! n-grams.
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
use crate::{Argument, DType, Matrix, Operator, Result, Status, TensorDesc, Vector};

operator! {
    /// Bias, penalties and tokens that may not come next, on logits in place, also where rows
    /// are drafts.
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

    arguments by name {
        /// Logits, adjusted in place.
        required logits: inout [F32, F16, BF16] "[rows, vocab]",
        /// The text of each request, the prompt first. What lies behind `lengths` is not read.
        required tokens: in [I64, I32] "[requests, most]",
        /// How many tokens of each text are its prompt.
        required prompt_lengths: in [I32, I64] "[requests]",
        /// How many tokens each text has.
        required lengths: in [I32, I64] "[requests]",
        /// The request of each row; absent: row r is request r.
        optional requests: in [I32] "[rows]",
        /// Where rows are drafts, the draft token of each; that of a row without a parent is
        /// not looked at. Needs `parents`.
        optional draft_tokens: in [I64, I32] "[rows]",
        /// The row before each row, -1 for a row that decides after the text itself.
        optional parents: in [I32] "[rows]",
        /// Where each request's bias starts in `bias_tokens` and ends. Needs both arguments
        /// that follow.
        optional bias_offsets: in [I32] "[requests + 1]",
        /// Tokens with a bias.
        optional bias_tokens: in [I32] "[biases]",
        /// What is added to their logits; may be infinite.
        optional bias_values: in [F32] "[biases]",
        /// What each request's logits of tokens in its text are divided by, or multiplied with
        /// where they are negative; 1 for none.
        optional repetition: in [F32] "[requests]",
        /// What is taken off a logit for each time that its token was generated; 0 for none.
        optional frequency: in [F32] "[requests]",
        /// What is taken off the logit of a token that was generated; 0 for none.
        optional presence: in [F32] "[requests]",
        /// How many tokens each request generates before a stop token. Needs `stop_tokens`.
        optional min_tokens: in [I32] "[requests]",
        /// Tokens that end each request; -1 for none.
        optional stop_tokens: in [I32] "[requests, stops]",
        /// Where each request's bad words start among the words and end. Needs both arguments
        /// that follow.
        optional bad_offsets: in [I32] "[requests + 1]",
        /// Where each word starts in `word_tokens` and ends.
        optional word_offsets: in [I32] "[words + 1]",
        /// The words, one behind the other.
        optional word_tokens: in [I32] "[word_tokens]",
        /// The length of n-grams that each request may not repeat; 0 or less for none.
        optional no_repeat_ngram: in [I32] "[requests]",
        /// Bits of bad data, OR-ed into what is there.
        optional flags: inout [U32] "[1]",
    }
}

impl Default for AdjustLogits {
    /// Bad words are looked for in what was generated, as vLLM has it.
    fn default() -> Self {
        AdjustLogits::new()
    }
}

impl AdjustLogits {
    /// Packed descriptors for `rows` rows of logits of a type, and `requests` texts of up to
    /// `most` tokens: i32 throughout, no optional argument.
    pub fn tensors(
        &self,
        logits: DType,
        rows: usize,
        vocab: usize,
        requests: usize,
        most: usize,
    ) -> Tensors {
        let per_request = TensorDesc::new(DType::I32, [requests]);
        Tensors::new(Required {
            logits: TensorDesc::new(logits, [rows, vocab]),
            tokens: TensorDesc::new(DType::I32, [requests, most]),
            prompt_lengths: per_request,
            lengths: per_request,
        })
    }
}

/// What a call has of bad words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Words {
    /// How many words there are.
    pub count: usize,
    /// How many tokens they have in all.
    pub tokens: usize,
}

/// A validated call: what a backend makes ready.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Plan {
    /// The parameters.
    pub params: AdjustLogits,
    /// Logits.
    pub logits: Matrix,
    /// The texts.
    pub tokens: Matrix,
    /// The dtype of prompt lengths.
    pub prompt_lengths: DType,
    /// The dtype of lengths.
    pub lengths: DType,
    /// Whether rows name their requests.
    pub mapped: bool,
    /// The draft tokens, where rows are drafts.
    pub draft_tokens: Option<Vector>,
    /// How many biases all requests have, where there are any.
    pub biases: Option<usize>,
    /// Whether there is a repetition penalty.
    pub repetition: bool,
    /// Whether there is a frequency penalty.
    pub frequency: bool,
    /// Whether there is a presence penalty.
    pub presence: bool,
    /// The stop tokens, where there is a least number of tokens.
    pub stop_tokens: Option<Matrix>,
    /// The bad words, where there are any.
    pub words: Option<Words>,
    /// Whether n-grams may be forbidden.
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

    /// The most tokens that the text of a row has: its request's, and a draft of every row but
    /// the first.
    pub fn most(&self) -> usize {
        let drafts = self.draft_tokens.map_or(0, |drafts| drafts.len.saturating_sub(1));
        self.tokens.cols.saturating_add(drafts)
    }

    /// Whether a penalty may apply to tokens of the text.
    pub fn penalises(&self) -> bool {
        self.repetition || self.frequency || self.presence
    }

    /// The most distinct tokens of a row that can be touched.
    pub fn touched(&self) -> usize {
        let text = if self.penalises() || self.no_repeat_ngram { self.most() } else { 0 };
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
        let logits = c.matrix(arg::logits, &t.logits)?;
        let Matrix { rows, cols: vocab, .. } = logits;
        if !(1..=MAX_I32).contains(&vocab) || rows > MAX_I32 {
            let value = format!("{:?}", t.logits.shape());
            let expected = format!("a vocabulary of 1 to {MAX_I32}, and at most {MAX_I32} rows");
            return Err(c.error(Status::BadTensorShape, "logits", value, expected));
        }
        let tokens = c.matrix(arg::tokens, &t.tokens)?;
        let requests = tokens.rows;
        if requests > MAX_I32 || tokens.cols > MAX_I32 {
            let value = format!("{:?}", t.tokens.shape());
            let expected = format!("at most {MAX_I32} requests, and tokens of each");
            return Err(c.error(Status::BadTensorShape, "tokens", value, expected));
        }
        let prompt_lengths = c.vector_of(arg::prompt_lengths, &t.prompt_lengths, requests)?.dtype;
        let lengths = c.vector_of(arg::lengths, &t.lengths, requests)?.dtype;
        match &t.requests {
            Some(of) => c.vector_of(arg::requests, of, rows).map(|_| ())?,
            None if rows != requests => {
                let value = format!("{:?}", t.tokens.shape());
                let expected = format!("{rows} requests, a row each, as `requests` is absent");
                return Err(c.error(Status::BadTensorShape, "tokens", value, expected));
            }
            None => {}
        }
        let vector = |argument: &Argument, desc: &Option<TensorDesc>, len: usize| match desc {
            Some(desc) => c.vector_of(argument, desc, len).map(Some),
            None => Ok(None),
        };
        // Of arguments that belong together, each needs the others.
        let together = |given: &[(&'static str, bool)], reason: &'static str| match given {
            given if given.iter().all(|(_, there)| !there) => Ok(false),
            given => match given.iter().find(|(_, there)| !there) {
                Some((absent, _)) => Err(c.error(Status::NullPointer, absent, "absent", reason)),
                None => Ok(true),
            },
        };
        together(
            &[("draft_tokens", t.draft_tokens.is_some()), ("parents", t.parents.is_some())],
            "given, as `draft_tokens` and `parents` are given together or not at all",
        )?;
        let draft_tokens = vector(arg::draft_tokens, &t.draft_tokens, rows)?;
        vector(arg::parents, &t.parents, rows)?;
        together(
            &[
                ("bias_offsets", t.bias_offsets.is_some()),
                ("bias_tokens", t.bias_tokens.is_some()),
                ("bias_values", t.bias_values.is_some()),
            ],
            "given, as a bias has offsets, tokens and values",
        )?;
        vector(arg::bias_offsets, &t.bias_offsets, requests + 1)?;
        let biases = self.list(&c, arg::bias_tokens, &t.bias_tokens)?;
        if let Some(biases) = biases {
            vector(arg::bias_values, &t.bias_values, biases)?;
        }
        vector(arg::repetition, &t.repetition, requests)?;
        vector(arg::frequency, &t.frequency, requests)?;
        vector(arg::presence, &t.presence, requests)?;
        together(
            &[("min_tokens", t.min_tokens.is_some()), ("stop_tokens", t.stop_tokens.is_some())],
            "given, as `min_tokens` and `stop_tokens` are given together or not at all",
        )?;
        vector(arg::min_tokens, &t.min_tokens, requests)?;
        let stop_tokens = match &t.stop_tokens {
            Some(stops) => Some(self.stops(&c, stops, requests)?),
            None => None,
        };
        together(
            &[
                ("bad_offsets", t.bad_offsets.is_some()),
                ("word_offsets", t.word_offsets.is_some()),
                ("word_tokens", t.word_tokens.is_some()),
            ],
            "given, as bad words have two kinds of offsets and tokens",
        )?;
        vector(arg::bad_offsets, &t.bad_offsets, requests + 1)?;
        let word_offsets = self.list(&c, arg::word_offsets, &t.word_offsets)?;
        let word_tokens = self.list(&c, arg::word_tokens, &t.word_tokens)?;
        let words = match (word_offsets, word_tokens) {
            (Some(0), _) => {
                let expected = "[words + 1], at least one element";
                return Err(c.error(Status::BadTensorShape, "word_offsets", "[0]", expected));
            }
            (Some(offsets), Some(tokens)) => Some(Words { count: offsets - 1, tokens }),
            _ => None,
        };
        vector(arg::no_repeat_ngram, &t.no_repeat_ngram, requests)?;
        vector(arg::flags, &t.flags, 1)?;
        Ok(Plan {
            params: *self,
            logits,
            tokens,
            prompt_lengths,
            lengths,
            mapped: t.requests.is_some(),
            draft_tokens,
            biases,
            repetition: t.repetition.is_some(),
            frequency: t.frequency.is_some(),
            presence: t.presence.is_some(),
            stop_tokens,
            words,
            no_repeat_ngram: t.no_repeat_ngram.is_some(),
        })
    }
}

impl AdjustLogits {
    /// The length of a list to which offsets of i32 point, where it is given.
    fn list(
        &self,
        c: &Checker,
        argument: &Argument,
        desc: &Option<TensorDesc>,
    ) -> Result<Option<usize>> {
        let Some(desc) = desc else { return Ok(None) };
        let len = c.vector(argument, desc)?.len;
        if len > MAX_I32 {
            let value = format!("{:?}", desc.shape());
            let expected = format!("at most {MAX_I32} elements, since offsets are i32");
            return Err(c.error(Status::BadTensorShape, argument.name, value, expected));
        }
        Ok(Some(len))
    }

    /// The stop tokens of each request.
    fn stops(&self, c: &Checker, desc: &TensorDesc, requests: usize) -> Result<Matrix> {
        let stops = c.matrix(arg::stop_tokens, desc)?;
        if stops.rows == requests && stops.cols <= MAX_I32 {
            return Ok(stops);
        }
        let value = format!("{:?}", desc.shape());
        let expected = format!("{requests} rows of at most {MAX_I32} tokens");
        Err(c.error(Status::BadTensorShape, "stop_tokens", value, expected))
    }
}
