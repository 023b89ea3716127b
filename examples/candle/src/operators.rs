//! A function for each operator.

use candle_core::Tensor;
use spec::ops::{
    DeduplicateTopk, HybridMtpNgram, IndexerTopk, MoeAlign, NgramMatch, PromptLookup,
    RejectionSample, SampleLogits, TopkRouter, TreeVerify, Unique, deduplicate_topk,
    hybrid_mtp_ngram, indexer_topk, moe_align, ngram_match, prompt_lookup, rejection_sample,
    sample_logits, topk_router, tree_verify, unique,
};
use spec::{DType, Handle, Stream};

use crate::tensors::{Held, Made, Result, vector};

/// Weights and experts of each token: `logits` `[tokens, experts]` of f32, f16 or bf16,
/// `bias` `[experts]`; weights f32 and experts u32, `[tokens, topk + shared_experts]`.
///
/// # Errors
/// As the operator's.
pub fn topk_router(
    handle: &Handle,
    params: &TopkRouter,
    logits: &Tensor,
    bias: Option<&Tensor>,
) -> Result<(Tensor, Tensor)> {
    let (x, bias) = (Held::new(logits)?, bias.map(Held::new).transpose()?);
    let (tokens, experts) = logits.dims2()?;
    let shape = [tokens, params.columns()];
    let mut weights = Made::<f32>::zeros(shape.iter().product());
    let mut indices = Made::<u32>::zeros(shape.iter().product());
    let tensors = topk_router::Tensors {
        x: x.desc()?,
        bias: bias.as_ref().map(Held::desc).transpose()?,
        indices: indices.desc(shape),
        ..params.tensors(x.desc()?.dtype(), tokens, experts, None)
    };
    let router = handle.create(params, &tensors)?;
    let buffers = topk_router::Buffers {
        x: x.view()?,
        bias: bias.as_ref().map(Held::view).transpose()?,
        num_tokens: None,
        replicas: None,
        replica_counts: None,
        weights: weights.view_mut(),
        indices: indices.view_mut(),
        load: None,
        flags: None,
    };
    router.calculate(
        &mut handle.workspace(router.workspace_size())?,
        buffers,
        Stream::default(),
    )?;
    Ok((weights.tensor(shape)?, indices.tensor(shape)?))
}

/// Picks grouped by expert: what a grouped product of matrices is given.
pub struct Aligned {
    /// Picks, `token * k + j`, by expert, `tokens * k` in padding: u32.
    pub sorted_ids: Tensor,
    /// The expert of each block, i64; -1 after the last.
    pub block_experts: Tensor,
    /// How many of `sorted_ids` count, `[1]`, i64.
    pub num_padded: Tensor,
}

/// Groups `topk_ids` `[tokens, k]`, u32 or i64, by expert.
///
/// # Errors
/// As the operator's.
pub fn moe_align(handle: &Handle, params: &MoeAlign, topk_ids: &Tensor) -> Result<Aligned> {
    let ids = Held::new(topk_ids)?;
    let (tokens, k) = topk_ids.dims2()?;
    let capacity = params.capacity(tokens * k).unwrap_or(0);
    let blocks = capacity / params.block_size.max(1);
    let mut sorted_ids = Made::<u32>::zeros(capacity);
    let mut block_experts = Made::<i32>::zeros(blocks);
    let mut num_padded = Made::<i32>::zeros(1);
    let mut counts = Made::<i32>::zeros(params.local_experts);
    let mut offsets = Made::<i32>::zeros(params.local_experts + 1);
    let tensors = moe_align::Tensors {
        topk_ids: ids.desc()?,
        sorted_ids: sorted_ids.desc([capacity]),
        inverse: None,
        ..params.tensors(ids.desc()?.dtype(), tokens, k)
    };
    let align = handle.create(params, &tensors)?;
    let buffers = moe_align::Buffers {
        topk_ids: ids.view()?,
        expert_map: None,
        sorted_ids: sorted_ids.view_mut(),
        block_experts: block_experts.view_mut(),
        counts: counts.view_mut(),
        offsets: offsets.view_mut(),
        num_padded: num_padded.view_mut(),
        inverse: None,
        flags: None,
    };
    align.calculate(&mut handle.workspace(align.workspace_size())?, buffers, Stream::default())?;
    Ok(Aligned {
        sorted_ids: sorted_ids.tensor([capacity])?,
        block_experts: block_experts.tensor([blocks])?.to_dtype(candle_core::DType::I64)?,
        num_padded: num_padded.tensor([1])?.to_dtype(candle_core::DType::I64)?,
    })
}

/// Positions of the `k` best of each row of `scores` `[rows, cols]`, of which the first
/// `lengths` `[rows]`, i64, count: ascending, i64, then -1, `[rows, k]`.
///
/// # Errors
/// As the operator's.
pub fn indexer_topk(
    handle: &Handle,
    k: usize,
    scores: &Tensor,
    lengths: Option<&Tensor>,
) -> Result<Tensor> {
    let (held, lengths) = (Held::new(scores)?, lengths.map(Held::new).transpose()?);
    let (rows, cols) = scores.dims2()?;
    let params = IndexerTopk { k };
    let mut indices = Made::<i64>::zeros(rows * k);
    let tensors = indexer_topk::Tensors {
        scores: held.desc()?,
        lengths: lengths.as_ref().map(Held::desc).transpose()?,
        indices: indices.desc([rows, k]),
        ..params.tensors(held.desc()?.dtype(), rows, cols)
    };
    let best = handle.create(&params, &tensors)?;
    let buffers = indexer_topk::Buffers {
        scores: held.view()?,
        lengths: lengths.as_ref().map(Held::view).transpose()?,
        starts: None,
        indices: indices.view_mut(),
        flags: None,
    };
    best.calculate(&mut handle.workspace(best.workspace_size())?, buffers, Stream::default())?;
    indices.tensor([rows, k])
}

/// Distinct values of each request's `mtp_step` rows of `indices` `[batch * mtp_step, k]`, i32:
/// ascending, then -1, `[batch, mtp_step * k]`.
///
/// # Errors
/// As the operator's.
pub fn deduplicate_topk(handle: &Handle, mtp_step: usize, indices: &Tensor) -> Result<Tensor> {
    let held = Held::new(indices)?;
    let (rows, k) = indices.dims2()?;
    let params = DeduplicateTopk { mtp_step };
    let shape = [rows / mtp_step.max(1), mtp_step * k];
    let mut distinct = Made::<i32>::zeros(rows * k);
    let tensors =
        deduplicate_topk::Tensors { indices: held.desc()?, ..params.tensors(shape[0], k) };
    let deduplicate = handle.create(&params, &tensors)?;
    let buffers = deduplicate_topk::Buffers {
        indices: held.view()?,
        unique: distinct.view_mut(),
        counts: None,
    };
    let mut workspace = handle.workspace(deduplicate.workspace_size())?;
    deduplicate.calculate(&mut workspace, buffers, Stream::default())?;
    distinct.tensor(shape)
}

/// Distinct values of `keys` `[n]`, i64, ascending.
///
/// # Errors
/// As the operator's.
pub fn unique(handle: &Handle, keys: &Tensor) -> Result<Tensor> {
    let held = Held::new(keys)?;
    let len = keys.dims1()?;
    let mut distinct = Made::<i64>::zeros(len);
    let mut count = [0u64];
    let tensors = unique::Tensors {
        keys: held.desc()?,
        unique: distinct.desc([len]),
        ..Unique.tensors(DType::I64, len)
    };
    let operator = handle.create(&Unique, &tensors)?;
    let buffers = unique::Buffers {
        keys: held.view()?,
        unique: distinct.view_mut(),
        count: (&mut count).into(),
        counts: None,
    };
    let mut workspace = handle.workspace(operator.workspace_size())?;
    operator.calculate(&mut workspace, buffers, Stream::default())?;
    Ok(distinct.tensor([len])?.narrow(0, 0, count[0] as usize)?)
}

/// Drafts of each request from its own text: `tokens` `[batch, most]`, i64, of which `lengths`
/// `[batch]`, i64, count; i64, padded with -1, `[batch, max_draft]`.
///
/// # Errors
/// As the operator's.
pub fn prompt_lookup(
    handle: &Handle,
    params: &PromptLookup,
    tokens: &Tensor,
    lengths: &Tensor,
) -> Result<Tensor> {
    let (text, lengths) = (Held::new(tokens)?, Held::new(lengths)?);
    let (batch, most) = tokens.dims2()?;
    let mut drafts = Made::<i64>::zeros(batch * params.max_draft);
    let mut counts = Made::<i32>::zeros(batch);
    let tensors = prompt_lookup::Tensors {
        tokens: text.desc()?,
        lengths: lengths.desc()?,
        ..params.tensors(DType::I64, batch, most)
    };
    let lookup = handle.create(params, &tensors)?;
    let buffers = prompt_lookup::Buffers {
        tokens: text.view()?,
        lengths: lengths.view()?,
        drafts: drafts.view_mut(),
        counts: counts.view_mut(),
        flags: None,
    };
    lookup.calculate(
        &mut handle.workspace(lookup.workspace_size())?,
        buffers,
        Stream::default(),
    )?;
    drafts.tensor([batch, params.max_draft])
}

/// What `ngram_match` and `hybrid_mtp_ngram` read of a batch. All are i64, but for the last
/// three, which are i32.
pub struct Requests<'t> {
    /// The prompts, `[batch, max_prompt_len]`.
    pub input_ids: &'t Tensor,
    /// Their lengths, `[batch]`.
    pub input_ids_len: &'t Tensor,
    /// What was generated, `[batch, max_model_len]`: behind the prompt for `ngram_match`, alone
    /// for `hybrid_mtp_ngram`.
    pub generated: &'t Tensor,
    /// The index of the last generated token, `[batch]`.
    pub step_idx: &'t Tensor,
    /// How many tokens each may generate, `[batch]`.
    pub max_dec_len: &'t Tensor,
    /// Slots for drafts, of which the first is the last token, `[batch, slots]`.
    pub draft_tokens: &'t Tensor,
    /// How many slots count, `[batch]`, i32.
    pub seq_lens_this_time: &'t Tensor,
    /// Above 0 where a request is decoding, `[batch]`, i32.
    pub seq_lens_decoder: &'t Tensor,
}

/// FastDeploy's n-gram drafts. `prompt_lens` `[batch]`, i64; `draft_token_num` and
/// `seq_lens_encoder` `[batch]`, i32. The slots, and how many count.
///
/// # Errors
/// As the operator's.
pub fn ngram_match(
    handle: &Handle,
    params: &NgramMatch,
    requests: &Requests<'_>,
    prompt_lens: &Tensor,
    draft_token_num: &Tensor,
    seq_lens_encoder: &Tensor,
) -> Result<(Tensor, Tensor)> {
    let (batch, prompt) = requests.input_ids.dims2()?;
    let (model, slots) = (requests.generated.dim(1)?, requests.draft_tokens.dim(1)?);
    let input_ids = Held::new(requests.input_ids)?;
    let input_ids_len = Held::new(requests.input_ids_len)?;
    let generated = Held::new(requests.generated)?;
    let step_idx = Held::new(requests.step_idx)?;
    let max_dec_len = Held::new(requests.max_dec_len)?;
    let decoder = Held::new(requests.seq_lens_decoder)?;
    let prompt_lens = Held::new(prompt_lens)?;
    let draft_token_num = Held::new(draft_token_num)?;
    let encoder = Held::new(seq_lens_encoder)?;
    let mut drafts = Made::<i64>::copy(requests.draft_tokens)?;
    let mut this_time = Made::<i32>::copy(requests.seq_lens_this_time)?;
    let operator = handle.create(params, &params.tensors(batch, prompt, model, slots))?;
    let buffers = ngram_match::Buffers {
        input_ids: input_ids.view()?,
        input_ids_len: input_ids_len.view()?,
        token_ids_all: generated.view()?,
        prompt_lens: prompt_lens.view()?,
        step_idx: step_idx.view()?,
        draft_token_num: draft_token_num.view()?,
        draft_tokens: drafts.view_mut(),
        seq_lens_this_time: this_time.view_mut(),
        seq_lens_encoder: encoder.view()?,
        seq_lens_decoder: decoder.view()?,
        max_dec_len: max_dec_len.view()?,
        flags: None,
    };
    let mut workspace = handle.workspace(operator.workspace_size())?;
    operator.calculate(&mut workspace, buffers, Stream::default())?;
    Ok((drafts.tensor([batch, slots])?, this_time.tensor([batch])?))
}

/// The same behind the drafts of an MTP head. The slots, and how many count.
///
/// # Errors
/// As the operator's.
pub fn hybrid_mtp_ngram(
    handle: &Handle,
    params: &HybridMtpNgram,
    requests: &Requests<'_>,
) -> Result<(Tensor, Tensor)> {
    let (batch, prompt) = requests.input_ids.dims2()?;
    let (model, slots) = (requests.generated.dim(1)?, requests.draft_tokens.dim(1)?);
    let input_ids = Held::new(requests.input_ids)?;
    let input_ids_len = Held::new(requests.input_ids_len)?;
    let pre_ids = Held::new(requests.generated)?;
    let step_idx = Held::new(requests.step_idx)?;
    let max_dec_len = Held::new(requests.max_dec_len)?;
    let decoder = Held::new(requests.seq_lens_decoder)?;
    let mut drafts = Made::<i64>::copy(requests.draft_tokens)?;
    let mut this_time = Made::<i32>::copy(requests.seq_lens_this_time)?;
    let operator = handle.create(params, &params.tensors(batch, prompt, model, slots))?;
    let buffers = hybrid_mtp_ngram::Buffers {
        input_ids: input_ids.view()?,
        input_ids_len: input_ids_len.view()?,
        pre_ids: pre_ids.view()?,
        step_idx: step_idx.view()?,
        draft_tokens: drafts.view_mut(),
        seq_lens_this_time: this_time.view_mut(),
        seq_lens_decoder: decoder.view()?,
        max_dec_len: max_dec_len.view()?,
        flags: None,
    };
    let mut workspace = handle.workspace(operator.workspace_size())?;
    operator.calculate(&mut workspace, buffers, Stream::default())?;
    Ok((drafts.tensor([batch, slots])?, this_time.tensor([batch])?))
}

/// How one request samples.
#[derive(Clone, Copy, Debug)]
pub struct Sampling {
    /// 0 takes the likeliest token.
    pub temperature: f32,
    /// 0 for off.
    pub top_k: i32,
    /// 1 for off.
    pub top_p: f32,
    /// Of its random numbers.
    pub seed: u64,
}

/// A token, u32, for each row of `logits` `[rows, vocab]`: the rows decide `positions`
/// `[rows]`, i64, of one request's text.
///
/// # Errors
/// As the operator's.
pub fn sample_logits(
    handle: &Handle,
    sampling: &Sampling,
    logits: &Tensor,
    positions: &Tensor,
) -> Result<Tensor> {
    let (x, places) = (Held::new(logits)?, Held::new(positions)?);
    let (rows, vocab) = logits.dims2()?;
    let requests = vec![0i32; rows];
    let Sampling { temperature, top_k, top_p, seed } = *sampling;
    let (temperature, top_k, top_p, seeds) = ([temperature], [top_k], [top_p], [seed]);
    let mut tokens = Made::<u32>::zeros(rows);
    let params = SampleLogits::transformers();
    let tensors = sample_logits::Tensors {
        logits: x.desc()?,
        positions: places.desc()?,
        top_k: Some(vector(DType::I32, 1)),
        top_p: Some(vector(DType::F32, 1)),
        requests: Some(vector(DType::I32, rows)),
        tokens: tokens.desc([rows]),
        ..params.tensors(rows, 1, vocab)
    };
    let sample = handle.create(&params, &tensors)?;
    let buffers = sample_logits::Buffers {
        logits: x.view()?,
        positions: places.view()?,
        temperature: (&temperature).into(),
        seeds: (&seeds).into(),
        top_k: Some((&top_k).into()),
        top_p: Some((&top_p).into()),
        min_p: None,
        requests: Some((&requests).into()),
        mask: None,
        tokens: tokens.view_mut(),
        probs: None,
        logprobs: None,
        flags: None,
    };
    sample.calculate(
        &mut handle.workspace(sample.workspace_size())?,
        buffers,
        Stream::default(),
    )?;
    tokens.tensor([rows])
}

/// The way of the target's own tokens through trees of drafts: `draft_tokens` and
/// `target_tokens` `[batch, nodes]`, u32 or i64, `first_child` and `next_sibling` of the same
/// shape, i64. Tokens and nodes, i64, padded with -1, `[batch, max_depth + 1]`.
///
/// # Errors
/// As the operator's.
pub fn tree_verify(
    handle: &Handle,
    max_depth: usize,
    draft_tokens: &Tensor,
    target_tokens: &Tensor,
    first_child: &Tensor,
    next_sibling: &Tensor,
) -> Result<(Tensor, Tensor)> {
    let (batch, size) = draft_tokens.dims2()?;
    let (drafts, target) = (Held::new(draft_tokens)?, Held::new(target_tokens)?);
    let (child, sibling) = (Held::new(first_child)?, Held::new(next_sibling)?);
    let shape = [batch, max_depth + 1];
    let mut tokens = Made::<i64>::zeros(shape.iter().product());
    let mut nodes = Made::<i64>::zeros(shape.iter().product());
    let mut num_tokens = Made::<i32>::zeros(batch);
    let params = TreeVerify { max_depth };
    let tensors = tree_verify::Tensors {
        draft_tokens: drafts.desc()?,
        target_tokens: target.desc()?,
        first_child: child.desc()?,
        next_sibling: sibling.desc()?,
        tokens: tokens.desc(shape),
        nodes: nodes.desc(shape),
        ..params.tensors(batch, size)
    };
    let verify = handle.create(&params, &tensors)?;
    let buffers = tree_verify::Buffers {
        draft_tokens: drafts.view()?,
        target_tokens: target.view()?,
        first_child: child.view()?,
        next_sibling: sibling.view()?,
        tokens: tokens.view_mut(),
        nodes: nodes.view_mut(),
        num_tokens: num_tokens.view_mut(),
        flags: None,
    };
    verify.calculate(
        &mut handle.workspace(verify.workspace_size())?,
        buffers,
        Stream::default(),
    )?;
    Ok((tokens.tensor(shape)?, nodes.tensor(shape)?))
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
    handle: &Handle,
    params: &RejectionSample,
    target_probs: &Tensor,
    draft_probs: Option<&Tensor>,
    draft_token_ids: &Tensor,
    bonus_token_ids: &Tensor,
    cu_num_draft: &Tensor,
    seeds: &[u64],
    positions: &[i64],
) -> Result<Tensor> {
    let (tokens, vocab) = target_probs.dims2()?;
    let batch = bonus_token_ids.dims1()?;
    let target = Held::new(target_probs)?;
    let draft = draft_probs.map(Held::new).transpose()?;
    let ids = Held::new(draft_token_ids)?;
    let bonus = Held::new(bonus_token_ids)?;
    let ends = Held::new(cu_num_draft)?;
    let shape = [batch, params.max_spec_len + 1];
    let mut output = Made::<i64>::zeros(shape.iter().product());
    let [mut emitted, mut accepted, mut recovered, mut extra] =
        [(); 4].map(|()| Made::<i32>::zeros(batch));
    let tensors = rejection_sample::Tensors {
        target_probs: target.desc()?,
        draft_probs: draft.as_ref().map(Held::desc).transpose()?,
        draft_token_ids: ids.desc()?,
        bonus_token_ids: bonus.desc()?,
        cu_num_draft: ends.desc()?,
        seeds: Some(vector(DType::U64, batch)),
        positions: Some(vector(DType::I64, batch)),
        output_token_ids: output.desc(shape),
        ..params.tensors(batch, tokens, vocab)
    };
    let verify = handle.create(params, &tensors)?;
    let buffers = rejection_sample::Buffers {
        target_probs: target.view()?,
        draft_probs: draft.as_ref().map(Held::view).transpose()?,
        draft_token_ids: ids.view()?,
        bonus_token_ids: bonus.view()?,
        cu_num_draft: ends.view()?,
        uniform_samples: None,
        seeds: Some(seeds.into()),
        positions: Some(positions.into()),
        greedy: None,
        output_token_ids: output.view_mut(),
        num_accepted: emitted.view_mut(),
        accepted_counts: accepted.view_mut(),
        recovered_counts: recovered.view_mut(),
        bonus_counts: extra.view_mut(),
        flags: None,
    };
    verify.calculate(
        &mut handle.workspace(verify.workspace_size())?,
        buffers,
        Stream::default(),
    )?;
    output.tensor(shape)
}
