//! A few small, readable cases that every device must reproduce to the letter.

mod common;

use std::fmt::Write;

use insta::assert_snapshot;
use spec::ops::{
    DeduplicateTopk, HybridMtpNgram, NgramMatch, RejectionSample, TopkRouter, Unique,
    deduplicate_topk, hybrid_mtp_ngram, ngram_match, rejection_sample, topk_router, unique,
};
use spec::{DType, Handle, Result, Stream, TensorDesc};

/// Checks the same snapshot on every device: the first to differ is named.
fn on_every_device(name: &str, case: impl Fn(&Handle) -> Result<String>) {
    for handle in common::handles() {
        let text = case(&handle).unwrap_or_else(|error| panic!("on {}: {error}", handle.device()));
        insta::with_settings!({ omit_expression => true }, {
            assert_snapshot!(name, text, &handle.device().to_string());
        });
    }
}

#[test]
fn router() {
    on_every_device("topk_router", |handle| {
        // Eight experts in four groups; two groups are kept.
        let x = [
            [0.0f32, 0.0, 2.0, 1.0, 0.0, 0.0, 3.0, -3.0],
            [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0],
            [f32::NAN, 5.0, f32::NAN, f32::NAN, 0.0, 0.0, -1.0, f32::NEG_INFINITY],
            [f32::NAN; 8],
        ];
        let bias = [0.0f32, 0.0, 0.0, 0.0, 0.25, 0.0, 0.0, 0.0];
        let params = TopkRouter {
            groups: 4,
            topk_groups: 2,
            topk: 3,
            scale: 1.0,
            ..TopkRouter::deepseek_v3()
        };
        let tensors = topk_router::Tensors {
            bias: Some(TensorDesc::new(DType::F32, [8])),
            flags: Some(TensorDesc::new(DType::U32, [1])),
            ..params.tensors(DType::F32, 4, 8)
        };
        let op = handle.create(&params, &tensors)?;
        let mut workspace = handle.workspace(op.workspace_size())?;
        let (x_in, bias) = (handle.upload(x.as_flattened())?, handle.upload(&bias)?);
        let (mut weights, mut indices) = (handle.allocate::<f32>(12)?, handle.allocate::<i32>(12)?);
        let mut flags = handle.upload(&[0u32])?;
        let buffers = topk_router::Buffers {
            x: x_in.view(),
            bias: Some(bias.view()),
            weights: weights.view_mut(),
            indices: indices.view_mut(),
            flags: Some(flags.view_mut()),
        };
        op.calculate(&mut workspace, buffers, Stream::default())?;
        let (weights, indices) = (weights.to_vec()?, indices.to_vec()?);
        let mut text = String::new();
        for (token, row) in x.iter().enumerate() {
            write!(text, "{row:?} ->").expect("a string");
            for i in token * 3..token * 3 + 3 {
                write!(text, " {}: {:.4}", indices[i], weights[i]).expect("a string");
            }
            text.push('\n');
        }
        Ok(format!("{text}flags {}\n", flags.to_vec()?[0]))
    });
}

#[test]
fn deduplicate() {
    on_every_device("deduplicate_topk", |handle| {
        let indices = [[7, 3, 3, -1], [3, 9, 0, 7], [-1, -5, -1, -1], [-1, -1, -2, -1]];
        let params = DeduplicateTopk { mtp_step: 2 };
        let tensors = deduplicate_topk::Tensors {
            counts: Some(TensorDesc::new(DType::I32, [2])),
            ..params.tensors(2, 4)
        };
        let op = handle.create(&params, &tensors)?;
        let mut workspace = handle.workspace(op.workspace_size())?;
        let input = handle.upload(indices.as_flattened())?;
        let (mut out, mut counts) = (handle.allocate::<i32>(16)?, handle.allocate::<i32>(2)?);
        let buffers = deduplicate_topk::Buffers {
            indices: input.view(),
            unique: out.view_mut(),
            counts: Some(counts.view_mut()),
        };
        op.calculate(&mut workspace, buffers, Stream::default())?;
        let (out, counts) = (out.to_vec()?, counts.to_vec()?);
        Ok(format!(
            "{:?} -> {:?}, {} distinct\n{:?} -> {:?}, {} distinct\n",
            &indices[..2],
            &out[..8],
            counts[0],
            &indices[2..],
            &out[8..],
            counts[1],
        ))
    });
}

#[test]
fn verification() {
    on_every_device("rejection_sample", |handle| {
        let mut text = String::new();
        for (name, params) in [
            ("argmax", RejectionSample::argmax(2)),
            ("sample", RejectionSample::lossless(2)),
            ("greedy", RejectionSample::greedy(2)),
        ] {
            writeln!(text, "{name}: {}", verify(handle, &params)?).expect("a string");
        }
        Ok(text)
    });
}

/// Four requests over a vocabulary of four: two drafts each of the first two,
/// one of the third, none of the last.
fn verify(handle: &Handle, params: &RejectionSample) -> Result<String> {
    let target = [
        [0.1f32, 0.2, 0.3, 0.4],
        [0.7, 0.1, 0.1, 0.1],
        [0.0, 0.0, 0.5, 0.5],
        [0.25, 0.25, 0.25, 0.25],
        [f32::NAN, 0.0, 0.6, 0.4],
    ];
    let draft = [
        [0.1f32, 0.1, 0.1, 0.7],
        [0.1, 0.1, 0.1, 0.7],
        [1.0, 0.0, 0.0, 0.0],
        [0.25, 0.25, 0.25, 0.25],
        [0.5, 0.5, 0.0, 0.0],
    ];
    let probabilistic = params.acceptance == rejection_sample::Acceptance::Probabilistic;
    let tensors = rejection_sample::Tensors {
        uniform_samples: Some(TensorDesc::new(DType::F32, [5])),
        flags: Some(TensorDesc::new(DType::U32, [1])),
        ..params.tensors(4, 5, 4)
    };
    let op = handle.create(params, &tensors)?;
    let mut workspace = handle.workspace(op.workspace_size())?;
    let (target, draft) =
        (handle.upload(target.as_flattened())?, handle.upload(draft.as_flattened())?);
    let ids = handle.upload(&[3i32, 0, 0, 1, 9])?;
    let bonus = handle.upload(&[1i32, 2, 3, 2])?;
    let offsets = handle.upload(&[0i32, 2, 4, 5, 5])?;
    let uniform = handle.upload(&[0.5f32, 0.5, 0.5, 0.5, 0.5])?;
    let random = handle.upload(&[1u64, 2])?;
    let mut out = handle.allocate::<i32>(12)?;
    let mut counts = Vec::new();
    for _ in 0..4 {
        counts.push(handle.allocate::<i32>(4)?);
    }
    let [emitted, accepted, recovered, bonus_counts] = &mut counts[..] else { unreachable!() };
    let mut flags = handle.upload(&[0u32])?;
    let buffers = rejection_sample::Buffers {
        target_probs: target.view(),
        draft_probs: probabilistic.then(|| draft.view()),
        draft_token_ids: ids.view(),
        bonus_token_ids: bonus.view(),
        cu_num_draft: offsets.view(),
        uniform_samples: Some(uniform.view()),
        seed_offset: probabilistic.then(|| random.view()),
        output_token_ids: out.view_mut(),
        num_accepted: emitted.view_mut(),
        accepted_counts: accepted.view_mut(),
        recovered_counts: recovered.view_mut(),
        bonus_counts: bonus_counts.view_mut(),
        flags: Some(flags.view_mut()),
    };
    op.calculate(&mut workspace, buffers, Stream::default())?;
    let out = out.to_vec()?;
    let rows: Vec<_> = out.chunks(3).collect();
    Ok(format!(
        "{rows:?} emitted {:?} accepted {:?} recovered {:?} bonus {:?} flags {}",
        counts[0].to_vec()?,
        counts[1].to_vec()?,
        counts[2].to_vec()?,
        counts[3].to_vec()?,
        flags.to_vec()?[0]
    ))
}

/// The prompt and the generated tokens of two requests.
const PROMPT: [[i64; 8]; 2] = [[1, 2, 3, 4, 5, 6, 7, 8], [9, 9, 9, 9, 9, 9, 9, 9]];
const GENERATED: [[i64; 6]; 2] = [[0, 0, 2, 3, 0, 0], [4, 5, 4, 5, 4, 0]];

#[test]
fn ngram() {
    on_every_device("ngram_match", |handle| {
        let mut text = String::new();
        for token_threshold in [100, 6, 5, 3] {
            let params = NgramMatch { max_ngram_size: 2, token_threshold };
            let op = handle.create(&params, &params.tensors(2, 8, 6, 5))?;
            let mut workspace = handle.workspace(op.workspace_size())?;
            let prompt = handle.upload(PROMPT.as_flattened())?;
            let generated = handle.upload(GENERATED.as_flattened())?;
            let (lens, starts) = (handle.upload(&[8i64, 8])?, handle.upload(&[0i64, 0])?);
            let (steps, max_dec) = (handle.upload(&[3i64, 4])?, handle.upload(&[100i64, 100])?);
            let (number, encoder) = (handle.upload(&[3i32, 3])?, handle.upload(&[0i32, 0])?);
            let decoder = handle.upload(&[1i32, 1])?;
            let mut drafts = handle.upload(&[-1i64; 10])?;
            let mut this_time = handle.upload(&[0i32, 0])?;
            let buffers = ngram_match::Buffers {
                input_ids: prompt.view(),
                input_ids_len: lens.view(),
                token_ids_all: generated.view(),
                prompt_lens: starts.view(),
                step_idx: steps.view(),
                draft_token_num: number.view(),
                draft_tokens: drafts.view_mut(),
                seq_lens_this_time: this_time.view_mut(),
                seq_lens_encoder: encoder.view(),
                seq_lens_decoder: decoder.view(),
                max_dec_len: max_dec.view(),
                flags: None,
            };
            op.calculate(&mut workspace, buffers, Stream::default())?;
            let (drafts, this_time) = (drafts.to_vec()?, this_time.to_vec()?);
            let rows: Vec<_> = drafts.chunks(5).collect();
            writeln!(text, "threshold {token_threshold}: {rows:?} this time {this_time:?}")
                .expect("a string");
        }
        Ok(text)
    });
}

#[test]
fn hybrid() {
    on_every_device("hybrid_mtp_ngram", |handle| {
        let params = HybridMtpNgram {
            max_ngram_size: 2,
            min_ngram_size: 2,
            max_draft_tokens: 4,
            token_threshold: 100,
        };
        let op = handle.create(&params, &params.tensors(2, 8, 6, 6))?;
        let mut workspace = handle.workspace(op.workspace_size())?;
        let prompt = handle.upload(PROMPT.as_flattened())?;
        let generated = handle.upload(GENERATED.as_flattened())?;
        let (lens, steps) = (handle.upload(&[8i64, 8])?, handle.upload(&[3i64, 4])?);
        let max_dec = handle.upload(&[100i64, 100])?;
        let decoder = handle.upload(&[1i32, 1])?;
        let mut drafts = handle.upload(&[50i64, 51, -1, -1, -1, -1, 60, 61, 62, -1, -1, -1])?;
        let mut this_time = handle.upload(&[2i32, 3])?;
        let buffers = hybrid_mtp_ngram::Buffers {
            input_ids: prompt.view(),
            input_ids_len: lens.view(),
            pre_ids: generated.view(),
            step_idx: steps.view(),
            draft_tokens: drafts.view_mut(),
            seq_lens_this_time: this_time.view_mut(),
            seq_lens_decoder: decoder.view(),
            max_dec_len: max_dec.view(),
            flags: None,
        };
        op.calculate(&mut workspace, buffers, Stream::default())?;
        let drafts = drafts.to_vec()?;
        let rows: Vec<_> = drafts.chunks(6).collect();
        Ok(format!("{rows:?} this time {:?}\n", this_time.to_vec()?))
    });
}

#[test]
fn distinct() {
    on_every_device("unique", |handle| {
        let keys = [5i64, -1, 5, i64::MIN, 0, i64::MAX, -1, 5];
        let tensors = unique::Tensors {
            counts: Some(TensorDesc::new(DType::U64, [8])),
            ..Unique.tensors(DType::I64, 8)
        };
        let op = handle.create(&Unique, &tensors)?;
        let mut workspace = handle.workspace(op.workspace_size())?;
        let input = handle.upload(&keys)?;
        let (mut out, mut counts) = (handle.allocate::<i64>(8)?, handle.allocate::<u64>(8)?);
        let mut count = handle.allocate::<u64>(1)?;
        let buffers = unique::Buffers {
            keys: input.view(),
            unique: out.view_mut(),
            count: count.view_mut(),
            counts: Some(counts.view_mut()),
        };
        op.calculate(&mut workspace, buffers, Stream::default())?;
        let n = count.to_vec()?[0] as usize;
        Ok(format!("{keys:?}\n-> {:?}\n x {:?}\n", &out.to_vec()?[..n], &counts.to_vec()?[..n]))
    });
}
