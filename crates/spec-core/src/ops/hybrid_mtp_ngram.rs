//! Extends the drafts of a multi-token-prediction head by n-gram matching.
//!
//! The search is that of [`ngram_match`](super::ngram_match), with
//! `generated = pre_ids[b]` and patterns down to `min_ngram_size`. The token budget
//! differs: each request already has `have = seq_lens_this_time` tokens
//! in this step, and `left` starts at the number of requests whose `seq_lens_decoder` is
//! above 0. For each request in order:
//!
//! * `m = min(max_draft_tokens - have + 1, max_dec_len - step - 1)`.
//! * Where `have = 0` or `m <= 0`, the request stays as it is; `have` counts as used.
//! * Otherwise `left` falls by one, and at most `m` tokens are drafted, within
//!   `token_threshold` as in `ngram_match`. The drafts are written from slot `have` on, and
//!   their number is added to `seq_lens_this_time`.
//!
//! Flag 4: a negative `seq_lens_decoder` or `seq_lens_this_time` of any request, which counts as
//! 0; and of a request that drafts, a negative length, a length or step beyond its row, or a draft
//! that would pass its row's end, each of which is cut to the range that fits.
//!
//! # Example
//!
//! `pre_ids` holds generated tokens only, and the token that `step_idx` points at is the
//! last one that the search sees. To match behind the drafts of the head, write these drafts
//! to `pre_ids` too, behind the generated tokens, and let `step_idx` point at the last
//! draft, as this example does.
//!
//! ```
//! use spec::ops::hybrid_mtp_ngram::{Buffers, HybridMtpNgram, Required};
//! use spec::Handle;
//!
//! # fn main() -> spec::Result<()> {
//! let handle: Handle = "cpu".parse()?;
//!
//! // "The quick brown fox jumps over the lazy dog.", and " The" was generated. A head
//! // with one layer drafted " quick".
//! let prompt = [791i64, 4062, 14198, 39935, 35308, 927, 279, 16053, 5679, 13];
//! let mut pre_ids = [0i64; 16];
//! pre_ids[..3].copy_from_slice(&[13, 578, 4062]); // the prompt's last, generated, drafted
//!
//! // Slot 0 is the last generated token, then the head's draft: two tokens so far.
//! let mut draft_tokens = [578i64, 4062, 0, 0, 0];
//! let mut seq_lens_this_time = [2i32];
//!
//! let params = HybridMtpNgram::new(4).max_ngram_size(3).min_ngram_size(1).token_threshold(128);
//! let hybrid = handle.create(&params, &params.tensors(1, prompt.len(), pre_ids.len(), 5))?;
//! let mut workspace = hybrid.workspace(&handle)?;
//! hybrid.call(
//!     &mut workspace,
//!     Buffers::new(Required {
//!         input_ids: (&prompt).into(),
//!         input_ids_len: (&[10i64]).into(),
//!         pre_ids: (&pre_ids).into(),
//!         step_idx: (&[2i64]).into(), // pre_ids[2] is the last token
//!         draft_tokens: (&mut draft_tokens).into(),
//!         seq_lens_this_time: (&mut seq_lens_this_time).into(),
//!         seq_lens_decoder: (&[10i32]).into(),
//!         max_dec_len: (&[20i64]).into(),
//!     }),
//! )?;
//! // " quick" was followed by " brown fox jumps".
//! assert_eq!(draft_tokens, [578, 4062, 14198, 39935, 35308]);
//! assert_eq!(seq_lens_this_time, [5]);
//! # Ok(())
//! # }
//! ```
//!
//! Source: FastDeploy's `speculate_decoding/draft_model/ngram_match_mixed`.

use crate::check::Checker;
use crate::declare::operator;
use crate::ngram::{MAX_NGRAM, Rows};
use crate::{DType, Operator, Result, TensorDesc};

operator! {
    /// Extends the drafts of a multi-token-prediction head by n-gram matching.
    pub struct HybridMtpNgram = "hybrid_mtp_ngram";

    options {
        /// The largest number of drafts of a request, those of the head included.
        required max_draft_tokens: usize [0..=i32::MAX - 1],
        /// The longest pattern.
        optional max_ngram_size: usize [1..=MAX_NGRAM] = 3,
        /// The shortest pattern.
        optional min_ngram_size: usize [1..=max_ngram_size] = 1,
        /// The token budget of one step, over all requests.
        optional token_threshold: i32 [0..] = 128,
    }

    arguments by name {
        /// The prompts, which are searched first.
        required input_ids: in [I64, I32, U32] "[batch, max_prompt_len]",
        /// The number of tokens in each prompt, the same at every step; 0 for a prompt that is not
        /// to be searched.
        required input_ids_len: in [I64, I32] "[batch] or [batch, 1]",
        /// Generated tokens from the start of the row on, without the prompt, except that engines
        /// store the prompt's last token in slot 0. If matching is to go on behind the drafts of
        /// the head, these drafts follow.
        required pre_ids: in [I64, I32, U32] as input_ids "[batch, max_model_len]",
        /// The index in `pre_ids` of the last token of the pattern. With the prompt's last token in
        /// slot 0, the index is 1 at a request's first step. Nothing is drafted where the index is
        /// below `min_ngram_size`.
        required step_idx: in [I64, I32] as input_ids_len "[batch] or [batch, 1]",
        /// The tokens that the model is run on next. Slot 0 is the last generated token, and
        /// slots 1 to `have - 1` are the head's drafts. The caller writes these slots; the operator
        /// neither reads nor changes them, and writes its own drafts from slot `have` on.
        required draft_tokens: inout [I64, I32, U32] as input_ids "[batch, max_draft_len]",
        /// `have`, the number of tokens of this step so far: 1 plus the number of the head's
        /// drafts. The operator adds the number of its own drafts. 0 for a request that is not part
        /// of the step.
        required seq_lens_this_time: inout [I32] "[batch] or [batch, 1]",
        /// The number of tokens in the cache; at a request's first decoding step, the number of
        /// tokens of the prompt. The budget keeps a token only for requests where it is above 0.
        required seq_lens_decoder: in [I32] "[batch] or [batch, 1]",
        /// The largest number of tokens to generate over all steps; no draft passes it.
        required max_dec_len: in [I64, I32] as input_ids_len "[batch] or [batch, 1]",
        /// Bits for bad data, OR-ed into the previous value; only the caller clears them. 4: a
        /// length or a step is out of range, or drafts would leave their row; it was cut.
        optional flags: inout [U32] "[1]",
    }
}

impl HybridMtpNgram {
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
            pre_ids: tokens(max_model_len),
            step_idx: lengths,
            draft_tokens: tokens(max_draft_len),
            seq_lens_this_time: counts,
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
    pub params: HybridMtpNgram,
    /// The rows of tokens.
    pub rows: Rows,
}

impl Operator for HybridMtpNgram {
    type Plan = Plan;

    fn plan(&self, t: &Tensors) -> Result<Plan> {
        Checker::declared(self, t)?;
        let rows = Rows::new(&t.input_ids, &t.pre_ids, &t.draft_tokens, &t.input_ids_len);
        Ok(Plan { params: *self, rows })
    }
}
