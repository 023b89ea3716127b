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
//! Source: FastDeploy's `speculate_decoding/draft_model/ngram_match_mixed`.

use crate::check::{Checker, arguments};
use crate::ngram::{RowDescs, Rows, check_sizes};
use crate::{DType, Device, Operator, Result, TensorDesc};

/// The parameters of `hybrid_mtp_ngram`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HybridMtpNgram {
    /// The longest pattern, 1 to 1024.
    pub max_ngram_size: usize,
    /// The shortest pattern.
    pub min_ngram_size: usize,
    /// The most drafts of a request, those of the head included.
    pub max_draft_tokens: usize,
    /// The token budget of one step, over all requests.
    pub token_threshold: i32,
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
        Tensors {
            input_ids: tokens(max_prompt_len),
            input_ids_len: lengths,
            pre_ids: tokens(max_model_len),
            step_idx: lengths,
            draft_tokens: tokens(max_draft_len),
            seq_lens_this_time: counts,
            seq_lens_decoder: counts,
            max_dec_len: lengths,
            flags: None,
        }
    }
}

arguments! {
    /// The arguments of `hybrid_mtp_ngram`. Tokens are i64 or i32, lengths
    /// (`input_ids_len`, `step_idx`, `max_dec_len`) i64 or i32, counts i32.
    {
        /// Prompts `[batch, max_prompt_len]`.
        input_ids: I,
        /// Tokens in each prompt `[batch]`, a length.
        input_ids_len: I,
        /// Generated tokens `[batch, max_model_len]`.
        pre_ids: I,
        /// Generated tokens `[batch]`, a length.
        step_idx: I,
        /// Drafts `[batch, max_draft_len]`, written from slot `have`.
        draft_tokens: O,
        /// Tokens of this step `[batch]`, a count, in place.
        seq_lens_this_time: O,
        /// Tokens decoded so far `[batch]`, a count.
        seq_lens_decoder: I,
        /// The most tokens to generate `[batch]`, a length.
        max_dec_len: I,
        /// Flags `[1]`, u32, OR-ed.
        flags: Option<O>,
    }
}

/// What was validated.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The parameters.
    pub params: HybridMtpNgram,
    /// Token rows.
    pub rows: Rows,
}

impl Operator for HybridMtpNgram {
    const NAME: &'static str = "hybrid_mtp_ngram";
    type Tensors = Tensors;
    type Buffers<'a> = Buffers<'a>;
    type Plan = Plan;

    fn plan(&self, t: &Tensors) -> Result<Plan> {
        let c = Checker::new(Self::NAME);
        let rows = RowDescs {
            input_ids: &t.input_ids,
            generated: ("pre_ids", &t.pre_ids),
            draft_tokens: &t.draft_tokens,
            lengths: &[
                ("input_ids_len", &t.input_ids_len),
                ("step_idx", &t.step_idx),
                ("max_dec_len", &t.max_dec_len),
            ],
            counts: &[
                ("seq_lens_this_time", &t.seq_lens_this_time),
                ("seq_lens_decoder", &t.seq_lens_decoder),
            ],
            flags: t.flags.as_ref(),
        }
        .check(&c)?;
        check_sizes(&c, self.min_ngram_size, self.max_ngram_size, self.token_threshold)?;
        c.param(
            self.max_draft_tokens < i32::MAX.unsigned_abs() as usize,
            "max_draft_tokens",
            self.max_draft_tokens,
            "a number below that of the largest i32",
        )?;
        Ok(Plan { params: self.clone(), rows })
    }

    fn fit(tensors: &Tensors, buffers: &mut Buffers<'_>, device: Device) -> Result<()> {
        fit_buffers(Self::NAME, tensors, buffers, device)
    }
}
