//! Callers that use only the required arguments of each operator.
//!
//! This file must not be edited when an operator gets an option or an optional argument: callers
//! were promised that such code still compiles and gives the same results. Only a change that
//! breaks every caller on purpose may edit this file.

use spec::ops::{
    deduplicate_topk, hybrid_mtp_ngram, indexer_topk, moe_align, ngram_match, prompt_lookup,
    rejection_sample, sample_logits, topk_router, tree_verify, unique,
};
use spec::{DType, Handle, Result};

#[test]
fn topk_router() -> Result<()> {
    let handle = Handle::cpu()?;
    let params = topk_router::TopkRouter::new(2);
    let op = handle.create(&params, &params.tensors(DType::F32, 1, 4, None))?;
    let (mut weights, mut indices) = ([0f32; 2], [0i32; 2]);
    let buffers = topk_router::Buffers::new(&[0.0f32, 3.0, 1.0, 2.0], &mut weights, &mut indices);
    op.call(&mut op.workspace(&handle)?, buffers)?;
    assert_eq!(indices, [1, 3]);
    Ok(())
}

#[test]
fn deduplicate_topk() -> Result<()> {
    let handle = Handle::cpu()?;
    let params = deduplicate_topk::DeduplicateTopk::new();
    let op = handle.create(&params, &params.tensors(1, 3))?;
    let mut unique = [0i32; 3];
    let buffers = deduplicate_topk::Buffers::new(&[7i32, 3, 7], &mut unique);
    op.call(&mut op.workspace(&handle)?, buffers)?;
    assert_eq!(unique, [3, 7, -1]);
    Ok(())
}

#[test]
fn rejection_sample() -> Result<()> {
    let handle = Handle::cpu()?;
    let params = rejection_sample::RejectionSample::greedy(1);
    let op = handle.create(&params, &params.tensors(1, 1, 4))?;
    let (mut output, mut counts) = ([0i32; 2], [[0i32; 1]; 4]);
    let [num_accepted, accepted_counts, recovered_counts, bonus_counts] = &mut counts;
    let buffers = rejection_sample::Buffers::new(rejection_sample::Required {
        target_probs: (&[0.1f32, 0.2, 0.6, 0.1]).into(),
        draft_token_ids: (&[2i32]).into(),
        bonus_token_ids: (&[3i32]).into(),
        cu_num_draft: (&[0i32, 1]).into(),
        output_token_ids: (&mut output).into(),
        num_accepted: num_accepted.into(),
        accepted_counts: accepted_counts.into(),
        recovered_counts: recovered_counts.into(),
        bonus_counts: bonus_counts.into(),
    });
    op.call(&mut op.workspace(&handle)?, buffers)?;
    assert_eq!(output, [2, 3]);
    Ok(())
}

#[test]
fn sample_logits() -> Result<()> {
    let handle = Handle::cpu()?;
    let params = sample_logits::SampleLogits::new();
    let op = handle.create(&params, &params.tensors(1, 4))?;
    let mut tokens = [0i32];
    let buffers = sample_logits::Buffers::new(
        &[0.0f32, 1.0, 5.0, 2.0],
        &[9i64],
        &[0.0f32],
        &[1u64],
        &mut tokens,
    );
    op.call(&mut op.workspace(&handle)?, buffers)?;
    assert_eq!(tokens, [2]);
    Ok(())
}

#[test]
fn ngram_match() -> Result<()> {
    let handle = Handle::cpu()?;
    let params = ngram_match::NgramMatch::new();
    let op = handle.create(&params, &params.tensors(1, 4, 8, 3))?;
    let (mut drafts, mut this_time) = ([6i64, 0, 0], [1i32]);
    let buffers = ngram_match::Buffers::new(ngram_match::Required {
        input_ids: (&[5i64, 6, 7, 8]).into(),
        input_ids_len: (&[4i64]).into(),
        token_ids_all: (&[5i64, 6, 7, 8, 5, 6, 0, 0]).into(),
        prompt_lens: (&[3i64]).into(),
        step_idx: (&[2i64]).into(),
        draft_token_num: (&[2i32]).into(),
        draft_tokens: (&mut drafts).into(),
        seq_lens_this_time: (&mut this_time).into(),
        seq_lens_encoder: (&[0i32]).into(),
        seq_lens_decoder: (&[5i32]).into(),
        max_dec_len: (&[20i64]).into(),
    });
    op.call(&mut op.workspace(&handle)?, buffers)?;
    assert_eq!((drafts, this_time), ([6, 7, 8], [3]));
    Ok(())
}

#[test]
fn hybrid_mtp_ngram() -> Result<()> {
    let handle = Handle::cpu()?;
    let params = hybrid_mtp_ngram::HybridMtpNgram::new(3);
    let op = handle.create(&params, &params.tensors(1, 5, 4, 4))?;
    let (mut drafts, mut this_time) = ([5i64, 6, 0, 0], [2i32]);
    let buffers = hybrid_mtp_ngram::Buffers::new(hybrid_mtp_ngram::Required {
        input_ids: (&[4i64, 5, 6, 7, 8]).into(),
        input_ids_len: (&[5i64]).into(),
        pre_ids: (&[4i64, 5, 6, 0]).into(),
        step_idx: (&[2i64]).into(),
        draft_tokens: (&mut drafts).into(),
        seq_lens_this_time: (&mut this_time).into(),
        seq_lens_decoder: (&[5i32]).into(),
        max_dec_len: (&[20i64]).into(),
    });
    op.call(&mut op.workspace(&handle)?, buffers)?;
    assert_eq!((drafts, this_time), ([5, 6, 7, 8], [4]));
    Ok(())
}

#[test]
fn prompt_lookup() -> Result<()> {
    let handle = Handle::cpu()?;
    let params = prompt_lookup::PromptLookup::new();
    let op = handle.create(&params, &params.tensors(DType::I32, 1, 6))?;
    let (mut drafts, mut counts) = ([0i32; 5], [0i32]);
    let buffers =
        prompt_lookup::Buffers::new(&[1i32, 2, 3, 1, 2, 0], &[5i32], &mut drafts, &mut counts);
    op.call(&mut op.workspace(&handle)?, buffers)?;
    assert_eq!((drafts, counts), ([3, 1, 2, -1, -1], [3]));
    Ok(())
}

#[test]
fn tree_verify() -> Result<()> {
    let handle = Handle::cpu()?;
    let params = tree_verify::TreeVerify::new(1);
    let op = handle.create(&params, &params.chain_tensors(1, 2))?;
    let ([mut tokens, mut nodes], mut num_tokens) = ([[0i32; 2]; 2], [0i32]);
    let buffers = tree_verify::Buffers::new(tree_verify::Required {
        draft_tokens: (&[0i32, 14]).into(),
        target_tokens: (&[14i32, 39]).into(),
        tokens: (&mut tokens).into(),
        nodes: (&mut nodes).into(),
        num_tokens: (&mut num_tokens).into(),
    });
    op.call(&mut op.workspace(&handle)?, buffers)?;
    assert_eq!((tokens, nodes, num_tokens), ([14, 39], [0, 1], [2]));
    Ok(())
}

#[test]
fn moe_align() -> Result<()> {
    let handle = Handle::cpu()?;
    let params = moe_align::MoeAlign::new(2, 2);
    let op = handle.create(&params, &params.tensors(DType::I32, 1, 2))?;
    let (mut sorted_ids, mut block_experts) = ([0i32; 4], [0i32; 2]);
    let (mut counts, mut offsets, mut num_padded) = ([0i32; 2], [0i32; 3], [0i32]);
    let buffers = moe_align::Buffers::new(moe_align::Required {
        topk_ids: (&[1i32, 0]).into(),
        sorted_ids: (&mut sorted_ids).into(),
        block_experts: (&mut block_experts).into(),
        counts: (&mut counts).into(),
        offsets: (&mut offsets).into(),
        num_padded: (&mut num_padded).into(),
    });
    op.call(&mut op.workspace(&handle)?, buffers)?;
    assert_eq!((sorted_ids, block_experts), ([1, 2, 0, 2], [0, 1]));
    Ok(())
}

#[test]
fn indexer_topk() -> Result<()> {
    let handle = Handle::cpu()?;
    let params = indexer_topk::IndexerTopk::new(2);
    let op = handle.create(&params, &params.tensors(DType::F32, 1, 4))?;
    let mut indices = [0i32; 2];
    let buffers = indexer_topk::Buffers::new(&[0.0f32, 3.0, 0.0, 9.0], &mut indices);
    op.call(&mut op.workspace(&handle)?, buffers)?;
    assert_eq!(indices, [1, 3]);
    Ok(())
}

#[test]
fn unique() -> Result<()> {
    let handle = Handle::cpu()?;
    let params = unique::Unique::new();
    let op = handle.create(&params, &params.tensors(DType::U64, 3))?;
    let (mut distinct, mut count) = ([0u64; 3], [0u64]);
    let buffers = unique::Buffers::new(&[7u64, 3, 7], &mut distinct, &mut count);
    op.call(&mut op.workspace(&handle)?, buffers)?;
    assert_eq!((&distinct[..2], count), (&[3, 7][..], [2]));
    Ok(())
}
