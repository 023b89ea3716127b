//! Drafts tokens by copying those that followed an earlier occurrence of the last tokens.
//!
//! For a request with `step = step_idx`, the pattern is the last `n` tokens of
//! `generated[..= step]`, for `n` from `max_ngram_size` down to 1 while
//! `step >= n`. The search goes through the prompt (`input_ids[.. input_ids_len]`), then through
//! `generated[.. step]`, and finds the leftmost window that equals the pattern and has at least
//! one token after it in the same haystack. The first hit ends the search; longer patterns are
//! searched first. The tokens after the window are the candidates.
//!
//! The drafts of all requests share a token budget. It is given out in request order, exactly as
//! the sequential loop of FastDeploy's `ngram_match` does ([`crate::ngram`]).
//! `used` is the sum of `seq_lens_this_time` over the requests up to and including the current
//! one. `left` starts at the number of requests whose `seq_lens_encoder` or `seq_lens_decoder` is
//! above 0. For each request:
//!
//! * Where `seq_lens_encoder` is above 0, the request stays as it is; its `seq_lens_this_time`
//!   counts as used.
//! * Where `seq_lens_decoder` is 0, `seq_lens_this_time` becomes 0.
//! * Otherwise `seq_lens_this_time` becomes 1, `left` falls by one, and at most
//!   `min(draft_token_num, max_dec_len - step - 1)` tokens are drafted: none if
//!   `used + left >= token_threshold - 1`, else at most
//!   `token_threshold - used - left`. The drafts are written from slot 1 on, and their number is
//!   added to `seq_lens_this_time`.
//!
//! Flag 4: a negative `seq_lens_encoder`, `seq_lens_decoder` or `seq_lens_this_time` of any
//! request, which counts as 0; and of a request that drafts, a negative length, a length or step
//! beyond its row, or a draft that would pass its row's end, each of which is cut to the range that
//! fits.
//!
//! # Example
//!
//! `token_ids_all` holds prompt and generated tokens one behind the other, as
//! engines keep them. `step_idx` is the **index of the last token**, counted from
//! `prompt_lens` on, and not the number of generated tokens: a pattern of `n` tokens needs
//! `step_idx >= n`. In this example `prompt_lens` is the index of the prompt's last token, so the
//! index equals the number of generated tokens, and one generated token is enough to draft from.
//!
//! ```
//! use spec::ops::ngram_match::{Buffers, NgramMatch, Required};
//! use spec::Handle;
//!
//! # fn main() -> spec::Result<()> {
//! let handle: Handle = "cpu".parse()?;
//!
//! // "The quick brown fox jumps over the lazy dog." and then, generated, " The quick".
//! let prompt = [791i64, 4062, 14198, 39935, 35308, 927, 279, 16053, 5679, 13];
//! let generated = [578i64, 4062];
//! let mut all = [0i64; 32];
//! all[..10].copy_from_slice(&prompt);
//! all[10..12].copy_from_slice(&generated);
//!
//! // One request that decodes: no token is being encoded, ten are in the cache.
//! let mut draft_tokens = [4062i64, 0, 0, 0, 0]; // slot 0: the token that the model is run on
//! let mut seq_lens_this_time = [1i32];
//!
//! let params = NgramMatch::new().max_ngram_size(3).token_threshold(128);
//! let ngram = handle.create(&params, &params.tensors(1, prompt.len(), all.len(), 5))?;
//! let mut workspace = ngram.workspace(&handle)?;
//! ngram.call(
//!     &mut workspace,
//!     Buffers::new(Required {
//!         input_ids: (&prompt).into(),
//!         input_ids_len: (&[10i64]).into(),
//!         token_ids_all: (&all).into(),
//!         prompt_lens: (&[9i64]).into(),
//!         step_idx: (&[2i64]).into(), // all[9 + 2] is the last token
//!         draft_token_num: (&[4i32]).into(),
//!         draft_tokens: (&mut draft_tokens).into(),
//!         seq_lens_this_time: (&mut seq_lens_this_time).into(),
//!         seq_lens_encoder: (&[0i32]).into(),
//!         seq_lens_decoder: (&[11i32]).into(),
//!         max_dec_len: (&[20i64]).into(),
//!     }),
//! )?;
//! // " quick" was followed by " brown fox jumps over".
//! assert_eq!(draft_tokens, [4062, 14198, 39935, 35308, 927]);
//! assert_eq!(seq_lens_this_time, [5]); // the token itself and four drafts
//! # Ok(())
//! # }
//! ```
//!
//! Source: FastDeploy's `speculate_decoding/ngram_match`, itself after prompt
//! lookup decoding (Saxena, 2023).

use crate::check::Checker;
use crate::declare::operator;
use crate::ngram::{MAX_NGRAM, Rows};
use crate::{DType, Operator, Result, TensorDesc};

operator! {
    /// Drafts tokens by copying those that followed an earlier occurrence of the last tokens.
    pub struct NgramMatch = "ngram_match";

    options {
        /// The longest pattern.
        optional max_ngram_size: usize [1..=MAX_NGRAM] = 3,
        /// The token budget of one step, over all requests.
        optional token_threshold: i32 [0..] = 128,
    }

    arguments by name {
        /// The prompts, which are searched first.
        required input_ids: in [I64, I32, U32] "[batch, max_prompt_len]",
        /// The number of tokens in each prompt, the same at every step; 0 for a prompt that is not
        /// to be searched.
        required input_ids_len: in [I64, I32] "[batch] or [batch, 1]",
        /// The rows of generated tokens, which start at index `prompt_lens`. Tokens before that
        /// index are not read.
        required token_ids_all: in [I64, I32, U32] as input_ids "[batch, max_model_len]",
        /// The index in the row where the generated tokens start. Where the prompt lies before
        /// them, this is the prompt's length, or one less: then the prompt's last token counts as
        /// generated, and the first step can draft. The same at every step.
        required prompt_lens: in [I64, I32] as input_ids_len "[batch] or [batch, 1]",
        /// The index of the last generated token, counted from `prompt_lens`, which is the number
        /// of generated tokens minus 1. It is 0 at a request's first step, where one token was
        /// generated. Nothing is drafted where it is below 1.
        required step_idx: in [I64, I32] as input_ids_len "[batch] or [batch, 1]",
        /// The largest number of drafts of each request; 0 or less for none.
        required draft_token_num: in [I32] "[batch] or [batch, 1]",
        /// The tokens that the model is run on next. Slot 0 is the last generated token: the caller
        /// writes it, and the operator neither reads nor changes it. Drafts are written from slot 1
        /// on, and the slots behind the last draft keep their values.
        required draft_tokens: inout [I64, I32, U32] as input_ids "[batch, max_draft_len]",
        /// The number of tokens of this step. It becomes 1 plus the number of drafts for a request
        /// that decodes, and 0 for an idle slot. It is read only for a request that is being
        /// encoded, whose tokens count against the budget.
        required seq_lens_this_time: inout [I32] "[batch] or [batch, 1]",
        /// The number of prompt tokens that are being encoded in this step; 0 from a request's
        /// first decoding step on.
        required seq_lens_encoder: in [I32] "[batch] or [batch, 1]",
        /// The number of tokens in the cache; at a request's first decoding step, the number of
        /// tokens of the prompt. 0 for a slot without a request, which drafts nothing.
        required seq_lens_decoder: in [I32] "[batch] or [batch, 1]",
        /// The largest number of tokens to generate over all steps; no draft passes it.
        required max_dec_len: in [I64, I32] as input_ids_len "[batch] or [batch, 1]",
        /// Bits for bad data, OR-ed into the previous value; only the caller clears them. 4: a
        /// length or a step is out of range, or drafts would leave their row; it was cut.
        optional flags: inout [U32] "[1]",
    }
}

impl NgramMatch {
    /// Packed descriptors for rows of the given lengths: i64 tokens and lengths, i32 counts, no
    /// `flags`.
    pub fn tensors(
        &self,
        batch: usize,
        max_prompt_len: usize,
        max_model_len: usize,
        max_draft_len: usize,
    ) -> Tensors {
        let tokens = |cols| TensorDesc::new(DType::I64, [batch, cols]);
        let lengths = TensorDesc::new(DType::I64, [batch]);
        let counts = TensorDesc::new(DType::I32, [batch]);
        Tensors::new(Required {
            input_ids: tokens(max_prompt_len),
            input_ids_len: lengths,
            token_ids_all: tokens(max_model_len),
            prompt_lens: lengths,
            step_idx: lengths,
            draft_token_num: counts,
            draft_tokens: tokens(max_draft_len),
            seq_lens_this_time: counts,
            seq_lens_encoder: counts,
            seq_lens_decoder: counts,
            max_dec_len: lengths,
        })
    }
}

/// A validated call, from which a backend prepares a kernel.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Plan {
    /// The parameters.
    pub params: NgramMatch,
    /// The rows of tokens.
    pub rows: Rows,
}

impl Operator for NgramMatch {
    type Plan = Plan;

    fn plan(&self, t: &Tensors) -> Result<Plan> {
        Checker::declared(self, t)?;
        let rows = Rows::new(&t.input_ids, &t.token_ids_all, &t.draft_tokens, &t.input_ids_len);
        Ok(Plan { params: *self, rows })
    }
}
