//! Drafts tokens by copying what followed the last tokens' earlier occurrence.
//!
//! For a request with `step` generated tokens the pattern is the last `n` of
//! `generated[..= step]`, for `n` from `max_ngram_size` down to 1 while
//! `step >= n`. It is looked for in the prompt (`input_ids[.. input_ids_len]`),
//! then in `generated[.. step]`: the leftmost window equal to it with at least
//! one token after it in that haystack. The first hit, longest pattern first,
//! ends the search; the tokens after the window are the candidates.
//!
//! The drafts of all requests share a budget, in request order, exactly as the
//! sequential loop of FastDeploy's `ngram_match` shares it ([`crate::ngram`]).
//! `left` starts at the number of requests with encoder > 0 or decoder > 0:
//!
//! * encoder > 0: untouched; its `seq_lens_this_time` counts as used.
//! * decoder = 0: `seq_lens_this_time` becomes 0.
//! * else `seq_lens_this_time` becomes 1, `left` falls by one, and at most
//!   `min(draft_token_num, max_dec_len - step - 1)` tokens are drafted: none if
//!   `used + left >= token_threshold - 1`, else at most
//!   `token_threshold - used - left`. They are written from slot 1 and added to
//!   `seq_lens_this_time`.
//!
//! Flag 4: a length or step beyond its row, a negative length, or a draft that
//! would pass its row's end; each is cut to what fits (a negative
//! `seq_lens_decoder` counts as 0, as does a negative `seq_lens_this_time` of a
//! request in its encoder phase).
//!
//! Source: FastDeploy's `speculate_decoding/ngram_match`, itself after prompt
//! lookup decoding (Saxena, 2023).

use crate::check::{Checker, arguments};
use crate::ngram::{RowDescs, Rows, check_sizes};
use crate::{DType, Device, Operator, Result, TensorDesc};

/// The parameters of `ngram_match`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NgramMatch {
    /// The longest pattern, 1 to 1024.
    pub max_ngram_size: usize,
    /// The token budget of one step, over all requests.
    pub token_threshold: i32,
}

impl Default for NgramMatch {
    /// FastDeploy's: patterns of up to 3 tokens, a budget of 128.
    fn default() -> Self {
        NgramMatch { max_ngram_size: 3, token_threshold: 128 }
    }
}

impl NgramMatch {
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
            token_ids_all: tokens(max_model_len),
            prompt_lens: lengths,
            step_idx: lengths,
            draft_token_num: counts,
            draft_tokens: tokens(max_draft_len),
            seq_lens_this_time: counts,
            seq_lens_encoder: counts,
            seq_lens_decoder: counts,
            max_dec_len: lengths,
            flags: None,
        }
    }
}

arguments! {
    /// The arguments of `ngram_match`. Tokens are i64 or i32, lengths (the
    /// `_len`, `_lens` and `step_idx`) i64 or i32, counts i32.
    {
        /// Prompts `[batch, max_prompt_len]`.
        input_ids: I,
        /// Tokens in each prompt `[batch]`, a length.
        input_ids_len: I,
        /// Prompt and generated tokens `[batch, max_model_len]`.
        token_ids_all: I,
        /// Where the generated tokens start in `token_ids_all` `[batch]`, a length.
        prompt_lens: I,
        /// Generated tokens `[batch]`, a length.
        step_idx: I,
        /// The most drafts of each request `[batch]`, a count.
        draft_token_num: I,
        /// Drafts `[batch, max_draft_len]`, written from slot 1.
        draft_tokens: O,
        /// Tokens of this step `[batch]`, a count, in place.
        seq_lens_this_time: O,
        /// Tokens being encoded `[batch]`, a count.
        seq_lens_encoder: I,
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
    pub params: NgramMatch,
    /// Token rows.
    pub rows: Rows,
}

impl Operator for NgramMatch {
    const NAME: &'static str = "ngram_match";
    type Tensors = Tensors;
    type Buffers<'a> = Buffers<'a>;
    type Plan = Plan;

    fn plan(&self, t: &Tensors) -> Result<Plan> {
        let c = Checker::new(Self::NAME);
        let rows = RowDescs {
            input_ids: &t.input_ids,
            generated: ("token_ids_all", &t.token_ids_all),
            draft_tokens: &t.draft_tokens,
            lengths: &[
                ("input_ids_len", &t.input_ids_len),
                ("prompt_lens", &t.prompt_lens),
                ("step_idx", &t.step_idx),
                ("max_dec_len", &t.max_dec_len),
            ],
            counts: &[
                ("draft_token_num", &t.draft_token_num),
                ("seq_lens_this_time", &t.seq_lens_this_time),
                ("seq_lens_encoder", &t.seq_lens_encoder),
                ("seq_lens_decoder", &t.seq_lens_decoder),
            ],
            flags: t.flags.as_ref(),
        }
        .check(&c)?;
        check_sizes(&c, 1, self.max_ngram_size, self.token_threshold)?;
        Ok(Plan { params: self.clone(), rows })
    }

    fn fit(tensors: &Tensors, buffers: &mut Buffers<'_>, device: Device) -> Result<()> {
        fit_buffers(Self::NAME, tensors, buffers, device)
    }
}
