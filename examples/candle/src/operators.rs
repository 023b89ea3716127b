//! One function per operator.

use candle_core::{DType, Tensor};
use spec::TensorDesc;
use spec::ops::{
    DeduplicateTopk, HybridMtpNgram, IndexerTopk, MoeAlign, NgramMatch, PromptLookup,
    RejectionSample, SampleLogits, TopkRouter, TreeVerify, Unique, deduplicate_topk,
    hybrid_mtp_ngram, indexer_topk, moe_align, ngram_match, prompt_lookup, rejection_sample,
    sample_logits, topk_router, tree_verify, unique,
};

use crate::tensors::{Held, Made, Queue, Result};

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
    let x = queue.read(logits)?;
    let bias = bias.map(|bias| queue.read(bias)).transpose()?;
    let (tokens, experts) = logits.dims2()?;
    let shape = [tokens, params.columns()];
    let mut weights = queue.zeros(DType::F32, shape)?;
    let mut indices = queue.zeros(DType::U32, shape)?;
    let mut tensors = params.tensors(x.desc().dtype(), tokens, experts, None);
    tensors.x = x.desc();
    tensors.bias = bias.as_ref().map(Held::desc);
    tensors.weights = weights.desc();
    tensors.indices = indices.desc();
    let router = queue.create(params, &tensors)?;
    let mut addresses =
        topk_router::Addresses::new(x.address(), weights.address(), indices.address());
    addresses.bias = bias.as_ref().map(Held::address);
    // SAFETY: the addresses are those of the tensors described above, held or made in this queue.
    unsafe { queue.run(&router, addresses)? };
    Ok((weights.tensor(), indices.tensor()))
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
    let ids = queue.read(topk_ids)?;
    let (tokens, k) = topk_ids.dims2()?;
    let capacity = params.capacity(tokens * k).unwrap_or(0);
    let mut sorted_ids = queue.zeros(DType::U32, [capacity])?;
    let mut block_experts = queue.zeros(DType::I32, [capacity / params.block_size.max(1)])?;
    let mut counts = queue.zeros(DType::I32, [params.local_experts])?;
    let mut offsets = queue.zeros(DType::I32, [params.local_experts + 1])?;
    let mut num_padded = queue.zeros(DType::I32, [1])?;
    let tensors = moe_align::Tensors::new(moe_align::Required {
        topk_ids: ids.desc(),
        sorted_ids: sorted_ids.desc(),
        block_experts: block_experts.desc(),
        counts: counts.desc(),
        offsets: offsets.desc(),
        num_padded: num_padded.desc(),
    });
    let align = queue.create(params, &tensors)?;
    let addresses = moe_align::Addresses::new(moe_align::Required {
        topk_ids: ids.address(),
        sorted_ids: sorted_ids.address(),
        block_experts: block_experts.address(),
        counts: counts.address(),
        offsets: offsets.address(),
        num_padded: num_padded.address(),
    });
    // SAFETY: the addresses are those of the tensors described above, held or made in this queue.
    unsafe { queue.run(&align, addresses)? };
    Ok(Aligned {
        sorted_ids: sorted_ids.tensor(),
        block_experts: block_experts.tensor(),
        num_padded: num_padded.tensor(),
    })
}

/// Positions of the `k` largest scores in each row of `scores` `[rows, cols]`: ascending, i64,
/// then -1, `[rows, k]`. `lengths` `[rows]`, i64, is how many scores of each row are in use.
///
/// # Errors
/// As the operator's.
pub fn indexer_topk(k: usize, scores: &Tensor, lengths: Option<&Tensor>) -> Result<Tensor> {
    let queue = Queue::of(scores)?;
    let held = queue.read(scores)?;
    let lengths = lengths.map(|lengths| queue.read(lengths)).transpose()?;
    let (rows, cols) = scores.dims2()?;
    let params = IndexerTopk::new(k);
    let mut indices = queue.zeros(DType::I64, [rows, k])?;
    let mut tensors = params.tensors(held.desc().dtype(), rows, cols);
    tensors.scores = held.desc();
    tensors.lengths = lengths.as_ref().map(Held::desc);
    tensors.indices = indices.desc();
    let best = queue.create(&params, &tensors)?;
    let mut addresses = indexer_topk::Addresses::new(held.address(), indices.address());
    addresses.lengths = lengths.as_ref().map(Held::address);
    // SAFETY: the addresses are those of the tensors described above, held or made in this queue.
    unsafe { queue.run(&best, addresses)? };
    Ok(indices.tensor())
}

/// Distinct values of each request's `mtp_step` rows of `indices` `[batch * mtp_step, k]`, i32:
/// ascending, then -1, `[batch, mtp_step * k]`.
///
/// # Errors
/// As the operator's.
pub fn deduplicate_topk(mtp_step: usize, indices: &Tensor) -> Result<Tensor> {
    let queue = Queue::of(indices)?;
    let held = queue.read(indices)?;
    let (rows, k) = indices.dims2()?;
    let params = DeduplicateTopk::new().mtp_step(mtp_step);
    let mut distinct = queue.zeros(DType::I32, [rows / mtp_step.max(1), mtp_step * k])?;
    let tensors = deduplicate_topk::Tensors::new(held.desc(), distinct.desc());
    let deduplicate = queue.create(&params, &tensors)?;
    let addresses = deduplicate_topk::Addresses::new(held.address(), distinct.address());
    // SAFETY: the addresses are those of the tensors described above, held or made in this queue.
    unsafe { queue.run(&deduplicate, addresses)? };
    Ok(distinct.tensor())
}

/// Distinct values of `keys` `[n]`, i64, i32 or u32, ascending. The function waits for the result,
/// because the number of distinct values is the shape of the tensor.
///
/// # Errors
/// As the operator's.
pub fn unique(keys: &Tensor) -> Result<Tensor> {
    let queue = Queue::of(keys)?;
    let held = queue.read(keys)?;
    let len = keys.dims1()?;
    let mut distinct = queue.zeros(keys.dtype(), [len])?;
    // The count is a u64, which candle lacks; an i64 has the same size.
    let mut count = queue.zeros(DType::I64, [1])?;
    let mut tensors = Unique::new().tensors(held.desc().dtype(), len);
    tensors.keys = held.desc();
    tensors.unique = distinct.desc();
    let operator = queue.create(&Unique::new(), &tensors)?;
    let addresses = unique::Addresses::new(held.address(), distinct.address(), count.address());
    // SAFETY: the addresses are those of the tensors that were described, held or made in this
    // queue; the count has the size that was described.
    unsafe { queue.run(&operator, addresses)? };
    let [count] = count.tensor().to_vec1::<i64>()?[..] else { unreachable!("one was made") };
    Ok(distinct.tensor().narrow(0, 0, count as usize)?)
}

/// Drafts of each request from its own text: i64, padded with -1, `[batch, max_draft]`. `tokens`
/// `[batch, most]`, i64, are the texts, `lengths` `[batch]`, i64, their lengths.
///
/// # Errors
/// As the operator's.
pub fn prompt_lookup(params: &PromptLookup, tokens: &Tensor, lengths: &Tensor) -> Result<Tensor> {
    let queue = Queue::of(tokens)?;
    let (text, lengths) = (queue.read(tokens)?, queue.read(lengths)?);
    let batch = tokens.dim(0)?;
    let mut drafts = queue.zeros(DType::I64, [batch, params.max_draft])?;
    let mut counts = queue.zeros(DType::I32, [batch])?;
    let tensors =
        prompt_lookup::Tensors::new(text.desc(), lengths.desc(), drafts.desc(), counts.desc());
    let lookup = queue.create(params, &tensors)?;
    let addresses = prompt_lookup::Addresses::new(
        text.address(),
        lengths.address(),
        drafts.address(),
        counts.address(),
    );
    // SAFETY: the addresses are those of the tensors described above, held or made in this queue.
    unsafe { queue.run(&lookup, addresses)? };
    Ok(drafts.tensor())
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

/// The tensors of [`Requests`] for a call: inputs are held, in-place arguments are copied.
struct Slots<'t> {
    input_ids: Held<'t>,
    input_ids_len: Held<'t>,
    generated: Held<'t>,
    step_idx: Held<'t>,
    max_dec_len: Held<'t>,
    decoder: Held<'t>,
    drafts: Made,
    this_time: Made,
}

impl<'t> Slots<'t> {
    fn of(queue: &Queue, requests: &Requests<'t>) -> Result<Self> {
        Ok(Slots {
            input_ids: queue.read(requests.input_ids)?,
            input_ids_len: queue.read(requests.input_ids_len)?,
            generated: queue.read(requests.generated)?,
            step_idx: queue.read(requests.step_idx)?,
            max_dec_len: queue.read(requests.max_dec_len)?,
            decoder: queue.read(requests.seq_lens_decoder)?,
            drafts: queue.copy(requests.draft_tokens)?,
            this_time: queue.copy(requests.seq_lens_this_time)?,
        })
    }

    fn tensors(self) -> (Tensor, Tensor) {
        (self.drafts.tensor(), self.this_time.tensor())
    }
}

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
    let mut slots = Slots::of(&queue, requests)?;
    let prompt_lens = queue.read(prompt_lens)?;
    let draft_token_num = queue.read(draft_token_num)?;
    let encoder = queue.read(seq_lens_encoder)?;
    let tensors = ngram_match::Tensors::new(ngram_match::Required {
        input_ids: slots.input_ids.desc(),
        input_ids_len: slots.input_ids_len.desc(),
        token_ids_all: slots.generated.desc(),
        prompt_lens: prompt_lens.desc(),
        step_idx: slots.step_idx.desc(),
        draft_token_num: draft_token_num.desc(),
        draft_tokens: slots.drafts.desc(),
        seq_lens_this_time: slots.this_time.desc(),
        seq_lens_encoder: encoder.desc(),
        seq_lens_decoder: slots.decoder.desc(),
        max_dec_len: slots.max_dec_len.desc(),
    });
    let operator = queue.create(params, &tensors)?;
    let addresses = ngram_match::Addresses::new(ngram_match::Required {
        input_ids: slots.input_ids.address(),
        input_ids_len: slots.input_ids_len.address(),
        token_ids_all: slots.generated.address(),
        prompt_lens: prompt_lens.address(),
        step_idx: slots.step_idx.address(),
        draft_token_num: draft_token_num.address(),
        draft_tokens: slots.drafts.address(),
        seq_lens_this_time: slots.this_time.address(),
        seq_lens_encoder: encoder.address(),
        seq_lens_decoder: slots.decoder.address(),
        max_dec_len: slots.max_dec_len.address(),
    });
    // SAFETY: the addresses are those of the tensors described above, held or made in this queue.
    unsafe { queue.run(&operator, addresses)? };
    Ok(slots.tensors())
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
    let mut slots = Slots::of(&queue, requests)?;
    let tensors = hybrid_mtp_ngram::Tensors::new(hybrid_mtp_ngram::Required {
        input_ids: slots.input_ids.desc(),
        input_ids_len: slots.input_ids_len.desc(),
        pre_ids: slots.generated.desc(),
        step_idx: slots.step_idx.desc(),
        draft_tokens: slots.drafts.desc(),
        seq_lens_this_time: slots.this_time.desc(),
        seq_lens_decoder: slots.decoder.desc(),
        max_dec_len: slots.max_dec_len.desc(),
    });
    let operator = queue.create(params, &tensors)?;
    let addresses = hybrid_mtp_ngram::Addresses::new(hybrid_mtp_ngram::Required {
        input_ids: slots.input_ids.address(),
        input_ids_len: slots.input_ids_len.address(),
        pre_ids: slots.generated.address(),
        step_idx: slots.step_idx.address(),
        draft_tokens: slots.drafts.address(),
        seq_lens_this_time: slots.this_time.address(),
        seq_lens_decoder: slots.decoder.address(),
        max_dec_len: slots.max_dec_len.address(),
    });
    // SAFETY: the addresses are those of the tensors described above, held or made in this queue.
    unsafe { queue.run(&operator, addresses)? };
    Ok(slots.tensors())
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
    let (x, places) = (queue.read(logits)?, queue.read(positions)?);
    let (rows, vocab) = logits.dims2()?;
    let Sampling { temperature, top_k, top_p, seed } = *sampling;
    let (mut temperature, mut top_p) = (queue.upload(&[temperature])?, queue.upload(&[top_p])?);
    // The seed is a u64, which candle lacks; an i64 has the same bits.
    let (mut top_k, mut seeds) = (queue.upload(&[top_k])?, queue.upload(&[seed as i64])?);
    let mut requests = queue.zeros(DType::I32, [rows])?;
    let mut tokens = queue.zeros(DType::U32, [rows])?;
    let params = SampleLogits::transformers();
    let mut tensors = params.tensors_of(rows, 1, vocab);
    tensors.logits = x.desc();
    tensors.positions = places.desc();
    tensors.temperature = temperature.desc();
    tensors.top_k = Some(top_k.desc());
    tensors.top_p = Some(top_p.desc());
    tensors.tokens = tokens.desc();
    let sample = queue.create(&params, &tensors)?;
    let addresses = sample_logits::Addresses::new(
        x.address(),
        places.address(),
        temperature.address(),
        seeds.address(),
        tokens.address(),
    )
    .top_k(top_k.address())
    .top_p(top_p.address())
    .requests(requests.address());
    // SAFETY: the addresses are those of the tensors that were described, held or made in this
    // queue; the seed has the size that was described.
    unsafe { queue.run(&sample, addresses)? };
    Ok(tokens.tensor())
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
    let batch = draft_tokens.dim(0)?;
    let (drafts, target) = (queue.read(draft_tokens)?, queue.read(target_tokens)?);
    let (child, sibling) = (queue.read(first_child)?, queue.read(next_sibling)?);
    let shape = [batch, max_depth + 1];
    let (mut tokens, mut nodes) =
        (queue.zeros(DType::I64, shape)?, queue.zeros(DType::I64, shape)?);
    let mut num_tokens = queue.zeros(DType::I32, [batch])?;
    let params = TreeVerify::new(max_depth);
    let tensors = tree_verify::Tensors::new(tree_verify::Required {
        draft_tokens: drafts.desc(),
        target_tokens: target.desc(),
        tokens: tokens.desc(),
        nodes: nodes.desc(),
        num_tokens: num_tokens.desc(),
    })
    .first_child(child.desc())
    .next_sibling(sibling.desc());
    let verify = queue.create(&params, &tensors)?;
    let addresses = tree_verify::Addresses::new(tree_verify::Required {
        draft_tokens: drafts.address(),
        target_tokens: target.address(),
        tokens: tokens.address(),
        nodes: nodes.address(),
        num_tokens: num_tokens.address(),
    })
    .first_child(child.address())
    .next_sibling(sibling.address());
    // SAFETY: the addresses are those of the tensors described above, held or made in this queue.
    unsafe { queue.run(&verify, addresses)? };
    Ok((tokens.tensor(), nodes.tensor()))
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
    let batch = bonus_token_ids.dims1()?;
    let target = queue.read(target_probs)?;
    let draft = draft_probs.map(|probs| queue.read(probs)).transpose()?;
    let ids = queue.read(draft_token_ids)?;
    let bonus = queue.read(bonus_token_ids)?;
    let ends = queue.read(cu_num_draft)?;
    // Seeds are u64, which candle lacks; i64 have the same bits.
    let bits: Vec<i64> = seeds.iter().map(|&seed| seed as i64).collect();
    let (mut bits, mut positions) = (queue.upload(&bits)?, queue.upload(positions)?);
    let mut output = queue.zeros(DType::I64, [batch, params.max_spec_len + 1])?;
    let mut emitted = queue.zeros(DType::I32, [batch])?;
    let mut accepted = queue.zeros(DType::I32, [batch])?;
    let mut recovered = queue.zeros(DType::I32, [batch])?;
    let mut extra = queue.zeros(DType::I32, [batch])?;
    let mut tensors = rejection_sample::Tensors::new(rejection_sample::Required {
        target_probs: target.desc(),
        draft_token_ids: ids.desc(),
        bonus_token_ids: bonus.desc(),
        cu_num_draft: ends.desc(),
        output_token_ids: output.desc(),
        num_accepted: emitted.desc(),
        accepted_counts: accepted.desc(),
        recovered_counts: recovered.desc(),
        bonus_counts: extra.desc(),
    })
    .seeds(TensorDesc::new(spec::DType::U64, [seeds.len()]))
    .positions(positions.desc());
    tensors.draft_probs = draft.as_ref().map(Held::desc);
    let verify = queue.create(params, &tensors)?;
    let mut addresses = rejection_sample::Addresses::new(rejection_sample::Required {
        target_probs: target.address(),
        draft_token_ids: ids.address(),
        bonus_token_ids: bonus.address(),
        cu_num_draft: ends.address(),
        output_token_ids: output.address(),
        num_accepted: emitted.address(),
        accepted_counts: accepted.address(),
        recovered_counts: recovered.address(),
        bonus_counts: extra.address(),
    })
    .seeds(bits.address())
    .positions(positions.address());
    addresses.draft_probs = draft.as_ref().map(Held::address);
    // SAFETY: the addresses are those of the tensors that were described, held or made in this
    // queue; the seeds have the size that was described.
    unsafe { queue.run(&verify, addresses)? };
    Ok(output.tensor())
}
