//! Sizes past 2^31 elements: a minute and up to 18 GiB of memory, so marked
//! `#[ignore]`; CI runs them once, one at a time: `cargo test --release --test large -- --ignored
//! --test-threads 1`.
//!
//! The tests here run on the CPU; the CUDA backend has its own tests of large sizes.
//! (`unique` is not tested: it needs three times the memory of its keys, more than 24 GiB.)

use spec::ops::{
    DeduplicateTopk, RejectionSample, TopkRouter, deduplicate_topk, rejection_sample, topk_router,
};
use spec::{DType, Handle, Result};

const BEYOND: usize = (1 << 31) + 4096;

/// More than 2^31 candidates; only the last request has candidates that are not padding.
#[test]
#[ignore = "slow: 2^31 candidates, 17 GiB"]
fn candidates() -> Result<()> {
    let handle = Handle::cpu()?;
    let k = 1 << 16;
    let batch = BEYOND.div_ceil(k);
    let params = DeduplicateTopk::new().mtp_step(1);
    let mut indices = vec![-1i32; batch * k];
    let last = indices.len() - 1;
    (indices[last - 1], indices[last]) = (i32::MAX, 4);
    let mut unique = vec![0i32; batch * k];
    let op = handle.create(&params, &params.tensors(batch, k))?;
    let mut workspace = op.workspace(&handle)?;
    let buffers = deduplicate_topk::Buffers::new(&indices, &mut unique);
    op.call(&mut workspace, buffers)?;
    let (before, row) = unique.split_at((batch - 1) * k);
    assert!(before.iter().all(|&value| value == -1));
    assert_eq!(row[..3], [4, i32::MAX, -1]);
    Ok(())
}

/// More than 2^31 probabilities; the last row decides the result.
#[test]
#[ignore = "slow: 2^31 probabilities, 4 GiB"]
fn target_probs() -> Result<()> {
    let handle = Handle::cpu()?;
    let vocab = 151_936;
    let tokens = BEYOND / vocab + 1;
    let params = RejectionSample::argmax(1);
    let mut tensors = params.tensors(1, tokens, vocab);
    tensors.target_probs = spec::TensorDesc::new(DType::BF16, [tokens, vocab]);
    let mut target = vec![half::bf16::ZERO; tokens * vocab];
    let last = target.len() - 1;
    target[last] = half::bf16::from_f32(0.75);
    let op = handle.create(&params, &tensors)?;
    let mut workspace = op.workspace(&handle)?;
    let (mut output, mut counts) = ([0i32; 2], [[0i32; 1]; 4]);
    let [emitted, accepted, recovered, bonus] = &mut counts;
    let (ids, offsets) = (vec![5i32; tokens], [tokens as i32 - 1, tokens as i32]);
    let buffers = rejection_sample::Buffers::new(rejection_sample::Required {
        target_probs: (&target).into(),
        draft_token_ids: (&ids).into(),
        bonus_token_ids: (&[1i32]).into(),
        cu_num_draft: (&offsets).into(),
        output_token_ids: (&mut output).into(),
        num_accepted: emitted.into(),
        accepted_counts: accepted.into(),
        recovered_counts: recovered.into(),
        bonus_counts: bonus.into(),
    })
    .seeds(&[1u64])
    .positions(&[1i64]);
    op.call(&mut workspace, buffers)?;
    assert_eq!(output, [vocab as i32 - 1, -1]);
    Ok(())
}

/// More than 2^31 logits; the logits of the last token differ from the others.
#[test]
#[ignore = "slow: 2^31 logits, 6 GiB"]
fn logits() -> Result<()> {
    let handle = Handle::cpu()?;
    let (tokens, experts) = (BEYOND / 1024, 1024);
    let params = TopkRouter::new(1);
    let mut x = vec![half::bf16::ZERO; tokens * experts];
    let last = x.len() - 1;
    x[last] = half::bf16::ONE;
    let op = handle.create(&params, &params.tensors(DType::BF16, tokens, experts, None))?;
    let (mut weights, mut indices) = (vec![0f32; tokens], vec![-1i32; tokens]);
    let buffers = topk_router::Buffers::new(&x, &mut weights, &mut indices);
    op.call(&mut [0u8; 0], buffers)?;
    assert_eq!(indices[tokens - 1], 1023);
    assert!(indices[..tokens - 1].iter().all(|&i| i == 0));
    Ok(())
}
