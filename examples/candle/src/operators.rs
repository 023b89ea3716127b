//! One function per operator.

use candle_core::{DType, Tensor};
use spec::ops::{
    DeduplicateTopk, HybridMtpNgram, IndexerTopk, MoeAlign, NgramMatch, PromptLookup,
    RejectionSample, SampleLogits, TopkRouter, TreeVerify, Unique,
};

use crate::tensors::{Argument, Queue, Result};

/// Weights and experts of each token: `logits` `[tokens, experts]` of f32, f16 or bf16,
/// `bias` `[experts]`; weights f32 and experts u32, `[tokens, topk + shared_experts]`.
///
/// # Errors
/// As the operator's.
pub fn topk_router(
    params: &TopkRouter,
    logits: &Tensor,
    bias: Option<&Tensor>,
) -> Result<(Tensor, Tensor)> {
    let queue = Queue::of(logits)?;
    let mut given = vec![("x", queue.read(logits)?.into())];
    if let Some(bias) = bias {
        given.push(("bias", queue.read(bias)?.into()));
    }
    let results = [("weights", DType::F32), ("indices", DType::U32)];
    let [weights, indices] = queue.call(params, given, results)?;
    Ok((weights, indices))
}

/// Picks grouped by expert: the input of a grouped matrix product.
pub struct Aligned {
    /// Picks as `token * k + j`, grouped by expert; padding is `tokens * k`: u32.
    pub sorted_ids: Tensor,
    /// The expert of each block, i32; -1 after the last.
    pub block_experts: Tensor,
    /// The number of elements of `sorted_ids` that are in use, `[1]`, i32.
    pub num_padded: Tensor,
}

/// Groups `topk_ids` `[tokens, k]`, u32 or i64, by expert.
///
/// # Errors
/// As the operator's.
pub fn moe_align(params: &MoeAlign, topk_ids: &Tensor) -> Result<Aligned> {
    let queue = Queue::of(topk_ids)?;
    let given = [("topk_ids", queue.read(topk_ids)?.into())];
    let results =
        [("sorted_ids", DType::U32), ("block_experts", DType::I32), ("num_padded", DType::I32)];
    let [sorted_ids, block_experts, num_padded] = queue.call(params, given, results)?;
    Ok(Aligned { sorted_ids, block_experts, num_padded })
}

/// Positions of the `k` largest scores in each row of `scores` `[rows, cols]`: ascending, i64,
/// then -1, `[rows, k]`. `lengths` `[rows]`, i64, is how many scores of each row are in use.
///
/// # Errors
/// As the operator's.
pub fn indexer_topk(k: usize, scores: &Tensor, lengths: Option<&Tensor>) -> Result<Tensor> {
    let queue = Queue::of(scores)?;
    let mut given = vec![("scores", queue.read(scores)?.into())];
    if let Some(lengths) = lengths {
        given.push(("lengths", queue.read(lengths)?.into()));
    }
    let [indices] = queue.call(&IndexerTopk::new(k), given, [("indices", DType::I64)])?;
    Ok(indices)
}

/// Distinct values of each request's `mtp_step` rows of `indices` `[batch * mtp_step, k]`, i32:
/// ascending, then -1, `[batch, mtp_step * k]`.
///
/// # Errors
/// As the operator's.
pub fn deduplicate_topk(mtp_step: usize, indices: &Tensor) -> Result<Tensor> {
    let queue = Queue::of(indices)?;
    let params = DeduplicateTopk::new().mtp_step(mtp_step);
    let given = [("indices", queue.read(indices)?.into())];
    let [distinct] = queue.call(&params, given, [("unique", DType::I32)])?;
    Ok(distinct)
}

/// Distinct values of `keys` `[n]`, i64, i32 or u32, ascending. The function waits for the result,
/// because the number of distinct values is the shape of the tensor.
///
/// # Errors
/// As the operator's.
pub fn unique(keys: &Tensor) -> Result<Tensor> {
    let queue = Queue::of(keys)?;
    let given = [("keys", queue.read(keys)?.into())];
    // The count is a u64, which candle lacks; an i64 has the same size.
    let results = [("unique", keys.dtype()), ("count", DType::I64)];
    let [distinct, count] = queue.call(&Unique::new(), given, results)?;
    let [count] = count.to_vec1::<i64>()?[..] else { unreachable!("one was made") };
    Ok(distinct.narrow(0, 0, count as usize)?)
}

/// Drafts of each request from its own text: i64, padded with -1, `[batch, max_draft]`. `tokens`
/// `[batch, max_len]`, i64, are the texts, `lengths` `[batch]`, i64, their lengths.
///
/// # Errors
/// As the operator's.
pub fn prompt_lookup(params: &PromptLookup, tokens: &Tensor, lengths: &Tensor) -> Result<Tensor> {
    let queue = Queue::of(tokens)?;
    let given = [("tokens", queue.read(tokens)?.into()), ("lengths", queue.read(lengths)?.into())];
    let [drafts] = queue.call(params, given, [("drafts", DType::I64)])?;
    Ok(drafts)
}

/// The tensors of a batch that `ngram_match` and `hybrid_mtp_ngram` share. All are i64, unless
/// their description says i32.
pub struct Requests<'t> {
    /// The prompts, `[batch, max_prompt_len]`.
    pub input_ids: &'t Tensor,
    /// The lengths of the prompts, `[batch]`.
    pub input_ids_len: &'t Tensor,
    /// The generated tokens, `[batch, max_model_len]`: after the prompt for `ngram_match`, alone
    /// for `hybrid_mtp_ngram`.
    pub generated: &'t Tensor,
    /// The index of the last generated token, `[batch]`.
    pub step_idx: &'t Tensor,
    /// How many tokens each request may generate, `[batch]`.
    pub max_dec_len: &'t Tensor,
    /// Slots for drafts, `[batch, slots]`; the first slot holds the last token.
    pub draft_tokens: &'t Tensor,
    /// How many slots are in use, `[batch]`, i32.
    pub seq_lens_this_time: &'t Tensor,
    /// Above 0 where a request is decoding, `[batch]`, i32.
    pub seq_lens_decoder: &'t Tensor,
}

impl<'t> Requests<'t> {
    /// The arguments of a call, the generated tokens as `generated`: inputs are held, in-place
    /// arguments are copied.
    fn given(
        &self,
        queue: &Queue,
        generated: &'static str,
    ) -> Result<Vec<(&'static str, Argument<'t>)>> {
        Ok(vec![
            ("input_ids", queue.read(self.input_ids)?.into()),
            ("input_ids_len", queue.read(self.input_ids_len)?.into()),
            (generated, queue.read(self.generated)?.into()),
            ("step_idx", queue.read(self.step_idx)?.into()),
            ("max_dec_len", queue.read(self.max_dec_len)?.into()),
            ("seq_lens_decoder", queue.read(self.seq_lens_decoder)?.into()),
            ("draft_tokens", queue.copy(self.draft_tokens)?.into()),
            ("seq_lens_this_time", queue.copy(self.seq_lens_this_time)?.into()),
        ])
    }
}

/// What the drafters of FastDeploy change.
const SLOTS: [(&str, DType); 2] =
    [("draft_tokens", DType::I64), ("seq_lens_this_time", DType::I32)];

/// FastDeploy's n-gram drafts. `prompt_lens` is `[batch]`, i64; `draft_token_num` and
/// `seq_lens_encoder` are `[batch]`, i32. Returns the slots, and how many of them are in use.
///
/// # Errors
/// As the operator's.
pub fn ngram_match(
    params: &NgramMatch,
    requests: &Requests<'_>,
    prompt_lens: &Tensor,
    draft_token_num: &Tensor,
    seq_lens_encoder: &Tensor,
) -> Result<(Tensor, Tensor)> {
    let queue = Queue::of(requests.draft_tokens)?;
    let mut given = requests.given(&queue, "token_ids_all")?;
    given.extend([
        ("prompt_lens", queue.read(prompt_lens)?.into()),
        ("draft_token_num", queue.read(draft_token_num)?.into()),
        ("seq_lens_encoder", queue.read(seq_lens_encoder)?.into()),
    ]);
    let [slots, counts] = queue.call(params, given, SLOTS)?;
    Ok((slots, counts))
}

/// FastDeploy's n-gram drafts after the drafts of an MTP head. Returns the slots, and how many of
/// them are in use.
///
/// # Errors
/// As the operator's.
pub fn hybrid_mtp_ngram(
    params: &HybridMtpNgram,
    requests: &Requests<'_>,
) -> Result<(Tensor, Tensor)> {
    let queue = Queue::of(requests.draft_tokens)?;
    let given = requests.given(&queue, "pre_ids")?;
    let [slots, counts] = queue.call(params, given, SLOTS)?;
    Ok((slots, counts))
}

/// The sampling settings of a request.
#[derive(Clone, Copy, Debug)]
pub struct Sampling {
    /// The temperature; 0 takes the likeliest token.
    pub temperature: f32,
    /// How many of the likeliest tokens are kept; 0 for all.
    pub top_k: i32,
    /// The share of the probability that is kept; 1 for all.
    pub top_p: f32,
    /// The seed of the request's random numbers.
    pub seed: u64,
}

/// A token, u32, for each row of `logits` `[rows, vocab]`. The tokens are for `positions`
/// `[rows]`, i64, of one request's text.
///
/// # Errors
/// As the operator's.
pub fn sample_logits(sampling: &Sampling, logits: &Tensor, positions: &Tensor) -> Result<Tensor> {
    let queue = Queue::of(logits)?;
    let Sampling { temperature, top_k, top_p, seed } = *sampling;
    let given = [
        ("logits", queue.read(logits)?.into()),
        ("positions", queue.read(positions)?.into()),
        ("requests", queue.zeros(DType::I32, &[logits.dim(0)?])?.into()),
        ("temperature", queue.upload(&[temperature])?.into()),
        ("top_k", queue.upload(&[top_k])?.into()),
        ("top_p", queue.upload(&[top_p])?.into()),
        ("seeds", queue.upload_u64(&[seed])?.into()),
    ];
    let params = SampleLogits::transformers();
    let [tokens] = queue.call(&params, given, [("tokens", DType::U32)])?;
    Ok(tokens)
}

/// The path of the target's own tokens through trees of drafts. `draft_tokens` and
/// `target_tokens` are `[batch, nodes]`, u32 or i64; `first_child` and `next_sibling` have the same
/// shape, i64. Returns tokens and nodes, i64, padded with -1, `[batch, max_depth + 1]`.
///
/// # Errors
/// As the operator's.
pub fn tree_verify(
    max_depth: usize,
    draft_tokens: &Tensor,
    target_tokens: &Tensor,
    first_child: &Tensor,
    next_sibling: &Tensor,
) -> Result<(Tensor, Tensor)> {
    let queue = Queue::of(draft_tokens)?;
    let given = [
        ("draft_tokens", queue.read(draft_tokens)?.into()),
        ("target_tokens", queue.read(target_tokens)?.into()),
        ("first_child", queue.read(first_child)?.into()),
        ("next_sibling", queue.read(next_sibling)?.into()),
    ];
    let results = [("tokens", DType::I64), ("nodes", DType::I64)];
    let [tokens, nodes] = queue.call(&TreeVerify::new(max_depth), given, results)?;
    Ok((tokens, nodes))
}

/// The drafts that stand and the token after them: `target_probs` `[tokens, vocab]`,
/// `draft_probs` the same or none for drafts that were certain, `draft_token_ids` `[tokens]`,
/// `bonus_token_ids` `[batch]` and `cu_num_draft` `[batch + 1]` of u32 or i64; each request's
/// `seeds` and `positions`, that of its first draft. i64, padded with -1,
/// `[batch, max_spec_len + 1]`.
///
/// # Errors
/// As the operator's.
#[allow(clippy::too_many_arguments)]
pub fn rejection_sample(
    params: &RejectionSample,
    target_probs: &Tensor,
    draft_probs: Option<&Tensor>,
    draft_token_ids: &Tensor,
    bonus_token_ids: &Tensor,
    cu_num_draft: &Tensor,
    seeds: &[u64],
    positions: &[i64],
) -> Result<Tensor> {
    let queue = Queue::of(target_probs)?;
    let mut given = vec![
        ("target_probs", queue.read(target_probs)?.into()),
        ("draft_token_ids", queue.read(draft_token_ids)?.into()),
        ("bonus_token_ids", queue.read(bonus_token_ids)?.into()),
        ("cu_num_draft", queue.read(cu_num_draft)?.into()),
        ("seeds", queue.upload_u64(seeds)?.into()),
        ("positions", queue.upload(positions)?.into()),
    ];
    if let Some(probs) = draft_probs {
        given.push(("draft_probs", queue.read(probs)?.into()));
    }
    let [output] = queue.call(params, given, [("output_token_ids", DType::I64)])?;
    Ok(output)
}
