//! Drafts from a request's own text, by copying the tokens that followed an earlier occurrence of
//! its last tokens.
//!
//! A request's text has `L = lengths[b]` tokens. For `n` from
//! `min(max_ngram, L - 1)` down to `min_ngram`, the search looks for windows of `n` tokens that
//! equal the last `n` tokens and have at least one token after them. A window may overlap the last
//! `n` tokens. The first `n` that has such a window ends the search; if it has several,
//! [`Occurrence`] says which window is taken. The draft is
//! the up to `max_draft` tokens after the window, within the `L` tokens.
//!
//! Engines keep texts in slots: with `requests`, request `b` drafts from the text in row
//! `requests[b]` of `tokens` and `lengths`. `max_drafts` has a limit per request, below `max_draft`.
//! Behind its drafts a row has -1, which no engine can feed to a model; with `pad_with_last` it has
//! the text's last token there, so that an engine that always verifies `max_draft` drafts needs no
//! further step. `counts` says how many drafts there are either way.
//!
//! Requests are independent of each other, and there is no token budget: a request
//! drafts the same tokens alone as in any slot of any batch.
//!
//! ```text
//! tokens   The quick brown fox jumps over the lazy dog . The quick brown
//!              └─────────┘└───────────────────┘              └─────────┘
//!              n = 2      draft                              the last 2
//! ```
//!
//! # Bad data
//! Flag 4: a length below 0 or beyond its row, which is cut to that range; a request of `requests`
//! that is neither -1 nor a row of `tokens`, which drafts nothing. A request of -1 is padding: it
//! drafts nothing, and sets no flag. `drafts` has -1 in all columns of both. A limit of `max_drafts`
//! outside `0 ..= max_draft` is cut to that range without a flag.
//!
//! # Example
//!
//! ```
//! use spec::ops::prompt_lookup::{Buffers, PromptLookup};
//! use spec::{DType, Handle};
//!
//! # fn main() -> spec::Result<()> {
//! let handle: Handle = "cpu".parse()?;
//!
//! // Prompt and generated tokens of two requests, in rows with room for 16.
//! let tokens = [
//!     // "The quick brown fox jumps over the lazy dog. The quick brown"
//!     [791, 4062, 14198, 39935, 35308, 927, 279, 16053, 5679, 13, 578, 4062, 14198, 0, 0, 0],
//!     // "Hello world!"
//!     [9906, 1917, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
//! ];
//! let lengths = [13i32, 3];
//! let (mut drafts, mut counts) = ([0i32; 2 * 4], [0i32; 2]);
//!
//! let params = PromptLookup::default().max_draft(4);
//! let lookup = handle.create(&params, &params.tensors(DType::I32, 2, 16))?;
//! let mut workspace = lookup.workspace(&handle)?;
//! lookup.call(
//!     &mut workspace,
//!     Buffers::new(tokens.as_flattened(), &lengths, &mut drafts, &mut counts),
//! )?;
//! // " fox jumps over the", and nothing for a text that repeats nothing.
//! assert_eq!(drafts, [39935, 35308, 927, 279, -1, -1, -1, -1]);
//! assert_eq!(counts, [4, 0]);
//! # Ok(())
//! # }
//! ```
//!
//! Source: prompt lookup decoding (Saxena, 2023), as in vLLM's n-gram proposer,
//! transformers and llama.cpp.

use crate::check::Checker;
use crate::declare::{choice, operator};
use crate::ngram::MAX_NGRAM;
use crate::{DType, Matrix, Operator, Result, TensorDesc};

choice! {
    /// Which of several earlier occurrences of the same length the draft is copied from.
    pub enum Occurrence = "occurrence" {
        /// The first in the text, as vLLM's proposer on the CPU does.
        First = "first",
        /// The last in the text, as vLLM's proposer on the GPU does. This guesses better in code
        /// and conversation, which repeat recent text.
        Last = "last",
    }
}

operator! {
    /// Drafts from a request's own text, by copying the tokens that followed an earlier occurrence
    /// of its last tokens.
    pub struct PromptLookup = "prompt_lookup";

    options {
        /// The shortest pattern. Patterns of 1 token mostly match by chance.
        optional min_ngram: usize [1..=max_ngram] = 2,
        /// The longest pattern.
        optional max_ngram: usize [1..=MAX_NGRAM] = 5,
        /// The largest number of drafts of a request, which is also the number of columns of
        /// `drafts`.
        optional max_draft: usize [0..=i32::MAX] = 5,
        /// Which occurrence drafts are copied from.
        optional occurrence: Occurrence = Occurrence::Last,
        /// Whether the text's last token stands behind the drafts, instead of -1. A row whose text
        /// has no tokens has -1 in all columns.
        optional pad_with_last: bool = false,
    }

    sizes {
        batch = "slots" without requests,
    }

    arguments by position {
        /// The text of each request: its prompt, then every token generated so
        /// far, the last one included. Tokens behind `lengths` are not read.
        required tokens: in [I64, I32, U32] "[slots, max_len]",
        /// How many tokens each text has. At a request's first step this is the number of tokens of
        /// the prompt, or one more if the token that the prefill generated is already in the text.
        required lengths: in [I32, I64] "[slots] or [slots, 1]",
        /// The row of `tokens` and `lengths` that each request has; -1 for padding. Absent:
        /// request b has row b.
        optional requests: in [I32, U32, I64] "[batch]",
        /// The largest number of drafts of each request, cut to `0 ..= max_draft`. Absent:
        /// `max_draft`.
        optional max_drafts: in [I32] "[batch]",
        /// The drafts, then -1 (the largest value in u32) or the text's last token to the row's
        /// end. Of the type of `tokens`; for tokens of 32 bits also i64.
        required drafts: out [I64, I32, U32] from tokens "[batch, max_draft]",
        /// The number of drafts of each request, 0 to `max_draft`.
        required counts: out [I32] "[batch] or [batch, 1]",
        /// Bits for bad data, OR-ed into the previous value; only the caller clears them. 4: a
        /// length is out of range and was cut, or a request has no row of `tokens` and no drafts.
        optional flags: inout [U32] "[1]",
    }
}

impl PromptLookup {
    /// Packed descriptors for `batch` texts of the type `dtype` in rows of `max` tokens, with
    /// i32 lengths and without optional arguments.
    pub fn tensors(&self, dtype: DType, batch: usize, max: usize) -> Tensors {
        let per_request = TensorDesc::new(DType::I32, [batch]);
        Tensors::new(
            TensorDesc::new(dtype, [batch, max]),
            per_request,
            TensorDesc::new(dtype, [batch, self.max_draft]),
            per_request,
        )
    }
}

/// A validated call, from which a backend prepares a kernel.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Plan {
    /// The parameters.
    pub params: PromptLookup,
    /// The texts; rows are slots.
    pub tokens: Matrix,
    /// The dtype of lengths.
    pub lengths: DType,
    /// The drafts; rows are requests.
    pub drafts: Matrix,
    /// The dtype of `requests`, the row of `tokens` that each request has, where given.
    pub requests: Option<DType>,
    /// Whether `max_drafts` has a limit per request.
    pub limited: bool,
}

impl Plan {
    /// The number of requests.
    pub fn batch(&self) -> usize {
        self.drafts.rows
    }
}

impl Operator for PromptLookup {
    type Plan = Plan;

    fn plan(&self, t: &Tensors) -> Result<Plan> {
        Checker::declared(self, t)?;
        Ok(Plan {
            params: *self,
            tokens: t.tokens.matrix(),
            lengths: t.lengths.dtype(),
            drafts: t.drafts.matrix(),
            requests: t.requests.as_ref().map(TensorDesc::dtype),
            limited: t.max_drafts.is_some(),
        })
    }
}
