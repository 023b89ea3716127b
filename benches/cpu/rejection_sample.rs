//! Random distributions, f32, both recoveries.

use spec::ops::RejectionSample;
use spec::ops::rejection_sample::{Buffers, Recovery, Tensors};
use spec::{DType, Stream, TensorDesc};

use spec_baselines::plain::{self, Verification};

use crate::{Bench, Random};

pub fn run(bench: &Bench) -> spec::Result<()> {
    for (batch, drafts, vocab) in [
        (1, 8, 32000),
        (32, 8, 32000),
        (1, 8, 50257),
        (32, 8, 50257),
        (1, 8, 128_256),
        (8, 8, 128_256),
        (32, 8, 128_256),
        (1, 8, 151_936),
        (32, 8, 151_936),
        (256, 4, 151_936),
    ] {
        let params = RejectionSample::argmax(drafts);
        one(bench, &params, batch, vocab)?;
        one(bench, &RejectionSample { recovery: Recovery::Sample, ..params }, batch, vocab)?;
    }
    Ok(())
}

fn one(bench: &Bench, params: &RejectionSample, batch: usize, vocab: usize) -> spec::Result<()> {
    let drafts = params.max_spec_len;
    let recovery = if params.recovery == Recovery::Argmax { "argmax" } else { "sample" };
    let shape = format!("{batch} x {drafts}, {vocab}, {recovery}");
    if !bench.wants("rejection_sample", &shape) {
        return Ok(());
    }
    let tokens = batch * drafts;
    let mut random = Random(vocab as u64);
    let mut rows = |n: usize| -> Vec<f32> {
        let scale = 2.0 / vocab as f32;
        (0..n * vocab).map(|_| random.unit() * scale).collect()
    };
    let (target, draft) = (rows(tokens), rows(tokens));
    let ids: Vec<i64> = (0..tokens).map(|_| (random.next() % vocab as u64) as i64).collect();
    let bonus = vec![1i64; batch];
    let offsets: Vec<i64> = (0..=batch).map(|b| (b * drafts) as i64).collect();
    // High draws, so that every request soon has something to recover.
    let uniform: Vec<f32> = (0..tokens).map(|_| 0.9 + 0.1 * random.unit()).collect();
    let wide = |n| TensorDesc::new(DType::I64, [n]);
    let tensors = Tensors {
        draft_token_ids: wide(tokens),
        bonus_token_ids: wide(batch),
        cu_num_draft: wide(batch + 1),
        uniform_samples: Some(TensorDesc::new(DType::F32, [tokens])),
        ..params.tensors(batch, tokens, vocab)
    };
    let verify = bench.handle.create(params, &tensors)?;
    let mut workspace = bench.handle.workspace(verify.workspace_size())?;
    let mut output = vec![0i32; batch * (drafts + 1)];
    let mut counts = [0; 4].map(|_: i32| vec![0i32; batch]);
    let mut call = || {
        let [emitted, accepted, recovered, bonus_counts] = &mut counts;
        let buffers = Buffers {
            target_probs: (&target).into(),
            draft_probs: Some((&draft).into()),
            draft_token_ids: (&ids).into(),
            bonus_token_ids: (&bonus).into(),
            cu_num_draft: (&offsets).into(),
            uniform_samples: Some((&uniform).into()),
            seed_offset: Some((&[7u64, 9]).into()),
            output_token_ids: (&mut output).into(),
            num_accepted: emitted.into(),
            accepted_counts: accepted.into(),
            recovered_counts: recovered.into(),
            bonus_counts: bonus_counts.into(),
            flags: None,
        };
        verify.calculate(&mut workspace, buffers, Stream::default())
    };
    call()?;
    let plain = || {
        plain::rejection_sample(&Verification {
            params,
            vocab,
            target: &target,
            draft: Some(&draft),
            ids: &ids,
            bonus: &bonus,
            offsets: &offsets,
            uniform: Some(&uniform),
            seed: 7,
            offset: 9,
        })
    };
    let expected = plain();
    let recovered: i32 = expected.recovered.iter().sum();
    bench.row(
        "rejection_sample",
        &shape,
        recovered as usize * vocab * 8,
        || {
            std::hint::black_box(plain());
        },
        call,
    );
    assert_eq!(output, expected.output);
    Ok(())
}
