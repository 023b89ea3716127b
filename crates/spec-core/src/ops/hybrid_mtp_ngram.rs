//! Extends the drafts of a multi-token-prediction head by n-gram matching.
//!
//! The search is that of [`ngram_match`](super::ngram_match), with
//! `generated = pre_ids[b]` and patterns down to `min_ngram_size`. What differs
//! is the budget: each request already has `have = seq_lens_this_time` tokens
//! in this step, and `left` starts at the number of requests with decoder > 0.
//!
//! * `m = min(max_draft_tokens - have + 1, max_dec_len - step - 1)`.
//! * `have = 0` or `m <= 0`: untouched; `have` counts as used.
//! * else `left` falls by one and at most `m` tokens are drafted, within
//!   `token_threshold` as in `ngram_match`, written from slot `have` and added
//!   to `seq_lens_this_time`.
//!
//! Flag 4: a length or step beyond its row, a negative length (a negative
//! `have` counts as 0), or a draft that would pass its row's end.
//!
//! # Example
//!
//! `pre_ids` holds generated tokens only, and the token that `step_idx` points at is the
//! last one that the search sees. To go on from the drafts of the head, put
//! them there too, behind the generated tokens, and let `step_idx` point at the last
//! of them, as here.
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

use crate::check::{Checker, MAX_I32};
use crate::declare::operator;
use crate::ngram::{RowDescs, Rows, check_sizes};
use crate::{DType, Operator, Result, TensorDesc};

operator! {
    /// Extends the drafts of a multi-token-prediction head by n-gram matching.
    pub struct HybridMtpNgram = "hybrid_mtp_ngram";

    options {
        /// The most drafts of a request, those of the head included.
        required max_draft_tokens: usize,
        /// The longest pattern, 1 to 1024.
        optional max_ngram_size: usize = 3,
        /// The shortest pattern.
        optional min_ngram_size: usize = 1,
        /// The token budget of one step, over all requests.
        optional token_threshold: i32 = 128,
    }

    arguments by name {
        /// The prompts, where patterns are looked for first.
        required input_ids: in [I64, I32, U32] "[batch, max_prompt_len]",
        /// Tokens in each prompt. The same at every step; 0 for one that is not to be
        /// searched.
        required input_ids_len: in [I64, I32] "[batch] or [batch, 1]",
        /// Generated tokens from the start of the row on, without the prompt, except
        /// that engines have its last token in slot 0; then, if matching is to go on from
        /// them, the drafts of the head.
        required pre_ids: in [I64, I32, U32] "[batch, max_model_len]",
        /// The index in `pre_ids` of the last token that counts, which the pattern ends
        /// with. With the prompt's last token in slot 0 that is, at a request's first
        /// step, 1; nothing is drafted below `min_ngram_size`.
        required step_idx: in [I64, I32] "[batch] or [batch, 1]",
        /// The tokens that the model is run on next. Slot 0 is the last generated token and
        /// slots 1 to `have - 1` the head's drafts, all of which the caller writes and this
        /// neither reads nor changes; drafts are written from slot `have` on.
        required draft_tokens: inout [I64, I32, U32] "[batch, max_draft_len]",
        /// `have`, the tokens of this step so far: 1 and the number of the head's drafts,
        /// to which the drafts found are added. 0 for a request that has no part in it.
        required seq_lens_this_time: inout [I32] "[batch] or [batch, 1]",
        /// Tokens in the cache: at a request's first decoding step, those of the prompt.
        /// Where it is 0 the request does not count among those that the budget keeps a
        /// token for.
        required seq_lens_decoder: in [I32] "[batch] or [batch, 1]",
        /// The most tokens to generate, over all steps: no drafts beyond it.
        required max_dec_len: in [I64, I32] "[batch] or [batch, 1]",
        /// Flags, OR-ed.
        optional flags: inout [U32] "[1]",
    }
}

impl HybridMtpNgram {
    /// Packed i64 descriptors for rows of the given lengths, without flags.
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

/// A validated call: what a backend makes ready.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Plan {
    /// The parameters.
    pub params: HybridMtpNgram,
    /// Token rows.
    pub rows: Rows,
}

impl Operator for HybridMtpNgram {
    type Plan = Plan;

    fn plan(&self, t: &Tensors) -> Result<Plan> {
        let c = Checker::of::<Self>();
        let rows = RowDescs {
            input_ids: (arg::input_ids, &t.input_ids),
            generated: (arg::pre_ids, &t.pre_ids),
            draft_tokens: (arg::draft_tokens, &t.draft_tokens),
            lengths: &[
                (arg::input_ids_len, &t.input_ids_len),
                (arg::step_idx, &t.step_idx),
                (arg::max_dec_len, &t.max_dec_len),
            ],
            counts: &[
                (arg::seq_lens_this_time, &t.seq_lens_this_time),
                (arg::seq_lens_decoder, &t.seq_lens_decoder),
            ],
        }
        .check(&c)?;
        if let Some(flags) = &t.flags {
            c.vector_of(arg::flags, flags, 1)?;
        }
        check_sizes(&c, self.min_ngram_size, self.max_ngram_size, self.token_threshold)?;
        c.param(
            self.max_draft_tokens < MAX_I32,
            "max_draft_tokens",
            self.max_draft_tokens,
            "a number below that of the largest i32",
        )?;
        Ok(Plan { params: *self, rows })
    }
}
