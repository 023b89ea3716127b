//! The operators between the logits and the text.

use std::fmt::Write;

use spec::ops::{
    AdjustLogits, AppendTokens, RejectionSample, SampleLogits, TreeVerify, adjust_logits,
    append_tokens, rejection_sample, sample_logits, tree_verify,
};
use spec::{DType, Handle, Result, TensorDesc};

use super::on_every_device;

#[test]
fn verification() {
    on_every_device("rejection_sample", |handle| {
        let mut text = String::new();
        for (name, params) in [
            ("argmax", RejectionSample::argmax(2)),
            ("sample", RejectionSample::lossless(2)),
            ("greedy", RejectionSample::greedy(2)),
        ] {
            writeln!(text, "{name}: {}", verify(handle, &params, false)?).expect("a string");
        }
        let mixed = verify(handle, &RejectionSample::lossless(2), true)?;
        writeln!(text, "sample, the second greedy: {mixed}").expect("a string");
        Ok(text)
    });
}

/// Four requests over a vocabulary of four tokens. The first two requests have two drafts
/// each, the third has one, the last has none. If `mixed`, the second request is greedy.
fn verify(handle: &Handle, params: &RejectionSample, mixed: bool) -> Result<String> {
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
    let mut tensors = params
        .tensors(4, 5, 4)
        .uniform_samples(TensorDesc::new(DType::F32, [5]))
        .flags(TensorDesc::new(DType::U32, [1]));
    tensors.draft_probs = probabilistic.then_some(tensors.target_probs);
    tensors.greedy = mixed.then_some(TensorDesc::new(DType::I8, [4]));
    let op = handle.create(params, &tensors)?;
    let mut workspace = op.workspace(handle)?;
    let (target, draft) =
        (handle.upload(target.as_flattened())?, handle.upload(draft.as_flattened())?);
    let ids = handle.upload(&[3i32, 0, 0, 1, 9])?;
    let bonus = handle.upload(&[1i32, 2, 3, 2])?;
    let offsets = handle.upload(&[0i32, 2, 4, 5, 5])?;
    let uniform = handle.upload(&[0.5f32, 0.5, 0.5, 0.5, 0.5])?;
    let seeds = handle.upload(&[1u64, 2, 3, 4])?;
    let positions = handle.upload(&[7i64, 100, 0, 12])?;
    let greedy = handle.upload(&[0i8, 1, 0, 0])?;
    let mut out = handle.allocate::<i32>(12)?;
    let mut counts = Vec::new();
    for _ in 0..4 {
        counts.push(handle.allocate::<i32>(4)?);
    }
    let [emitted, accepted, recovered, bonus_counts] = &mut counts[..] else { unreachable!() };
    let mut flags = handle.upload(&[0u32])?;
    let mut buffers = rejection_sample::Buffers::new(rejection_sample::Required {
        target_probs: target.view(),
        draft_token_ids: ids.view(),
        bonus_token_ids: bonus.view(),
        cu_num_draft: offsets.view(),
        output_token_ids: out.view_mut(),
        num_accepted: emitted.view_mut(),
        accepted_counts: accepted.view_mut(),
        recovered_counts: recovered.view_mut(),
        bonus_counts: bonus_counts.view_mut(),
    })
    .uniform_samples(uniform.view())
    .flags(flags.view_mut());
    buffers.draft_probs = probabilistic.then(|| draft.view());
    buffers.seeds = probabilistic.then(|| seeds.view());
    buffers.positions = probabilistic.then(|| positions.view());
    buffers.greedy = mixed.then(|| greedy.view());
    op.call(&mut workspace, buffers)?;
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

#[test]
fn tree() {
    on_every_device("tree_verify", |handle| {
        //   0 ── 1 ── 3 ── 5
        //    │    └── 4
        //    └── 2
        // The target of the second request chooses node 2 and then no drafted token.
        let links = tree_verify::Links::from_parents(&[-1, 0, 0, 1, 1, 3])?;
        let first_child = links.first_child.repeat(2);
        let next_sibling = links.next_sibling.repeat(2);
        let draft = [[9, 10, 11, 12, 13, 14], [9, 10, 11, 12, 13, 14]];
        let target = [[10, 13, 0, 0, 15, 0], [11, 0, -7, 0, 0, 0]];
        let mut text = String::new();
        for max_depth in [3, 1, 0] {
            let params = TreeVerify::new(max_depth);
            let tensors = params.tensors(2, 6).flags(TensorDesc::new(DType::U32, [1]));
            let op = handle.create(&params, &tensors)?;
            let mut workspace = op.workspace(handle)?;
            let (draft, target) =
                (handle.upload(draft.as_flattened())?, handle.upload(target.as_flattened())?);
            let first_child = handle.upload(&first_child)?;
            let next_sibling = handle.upload(&next_sibling)?;
            let mut tokens = handle.allocate::<i32>(2 * (max_depth + 1))?;
            let mut nodes = handle.allocate::<i32>(2 * (max_depth + 1))?;
            let (mut counts, mut flags) = (handle.allocate::<i32>(2)?, handle.upload(&[0u32])?);
            let buffers = tree_verify::Buffers::new(tree_verify::Required {
                draft_tokens: draft.view(),
                target_tokens: target.view(),
                tokens: tokens.view_mut(),
                nodes: nodes.view_mut(),
                num_tokens: counts.view_mut(),
            })
            .first_child(&first_child)
            .next_sibling(&next_sibling)
            .flags(flags.view_mut());
            op.call(&mut workspace, buffers)?;
            let (tokens, nodes) = (tokens.to_vec()?, nodes.to_vec()?);
            let rows = |all: &[i32]| {
                let rows: Vec<_> =
                    all.chunks(max_depth + 1).map(|row| format!("{row:?}")).collect();
                rows.join(" ")
            };
            writeln!(
                text,
                "depth {max_depth}: tokens {} nodes {} counts {:?} flags {}",
                rows(&tokens),
                rows(&nodes),
                counts.to_vec()?,
                flags.to_vec()?[0],
            )
            .expect("a string");
        }
        Ok(text)
    });
}

/// Chains of drafts whose rows are packed: of three drafts, of one, of none, and a request that
/// has no rows.
#[test]
fn chains() {
    on_every_device("tree_verify_of_chains", |handle| {
        let draft = [9, 10, 11, 12, 9, 10, 9];
        let target = [10, 11, 77, 0, 20, 0, 30];
        let params = TreeVerify::new(3);
        let tensors = params.packed_tensors(4, 7).flags(TensorDesc::new(DType::U32, [1]));
        let op = handle.create(&params, &tensors)?;
        let mut workspace = op.workspace(handle)?;
        let (draft, target) = (handle.upload(&draft)?, handle.upload(&target)?);
        let mut text = String::new();
        for offsets in [[0, 4, 6, 7, 7], [0, 4, 6, 9, 7]] {
            let offsets_there = handle.upload(&offsets)?;
            let (mut tokens, mut nodes) =
                (handle.allocate::<i32>(16)?, handle.allocate::<i32>(16)?);
            let (mut counts, mut flags) = (handle.allocate::<i32>(4)?, handle.upload(&[0u32])?);
            let buffers = tree_verify::Buffers::new(tree_verify::Required {
                draft_tokens: draft.view(),
                target_tokens: target.view(),
                tokens: tokens.view_mut(),
                nodes: nodes.view_mut(),
                num_tokens: counts.view_mut(),
            })
            .row_offsets(&offsets_there)
            .flags(&mut flags);
            op.call(&mut workspace, buffers)?;
            let tokens = tokens.to_vec()?;
            let rows: Vec<_> = tokens.chunks(4).map(|row| format!("{row:?}")).collect();
            writeln!(
                text,
                "offsets {offsets:?}: tokens {} counts {:?} flags {}",
                rows.join(" "),
                counts.to_vec()?,
                flags.to_vec()?[0],
            )
            .expect("a string");
        }
        Ok(text)
    });
}

#[test]
fn sampled() {
    on_every_device("sample_logits", |handle| {
        // Eight rows of two requests with different temperatures. The mask of row 6 forbids
        // its likeliest tokens; row 7 has no token to choose.
        let row = [0.0f32, 1.0, 2.0, 3.0, 3.0, 2.0, 1.0, f32::NEG_INFINITY];
        let nothing = [f32::NAN; 8];
        let logits = [row, row, row, row, row, row, row, nothing];
        let requests = [0, 0, 0, 0, 1, 1, 0, 0];
        let all = 0xFF;
        let mask = [all, all, all, all, all, all, 0b1000_0111, 0b0011_0000];
        let params = SampleLogits::default();
        let tensors = params
            .tensors_of(8, 2, 8)
            .top_k(TensorDesc::new(DType::I32, [2]))
            .top_p(TensorDesc::new(DType::F32, [2]))
            .mask(TensorDesc::new(DType::I32, [8, 1]))
            .probs(TensorDesc::new(DType::F32, [8, 8]))
            .logprobs(TensorDesc::new(DType::F32, [8]))
            .flags(TensorDesc::new(DType::U32, [1]));
        let op = handle.create(&params, &tensors)?;
        let mut workspace = op.workspace(handle)?;
        let logits = handle.upload(logits.as_flattened())?;
        let positions = handle.upload(&[0i64, 1, 2, 3, 0, 1, 4, 5])?;
        let (temperature, seeds) = (handle.upload(&[1.0f32, 0.5])?, handle.upload(&[7u64, 7])?);
        let (top_k, top_p) = (handle.upload(&[0, 3])?, handle.upload(&[0.95f32, 1.0])?);
        let (requests, mask) = (handle.upload(&requests)?, handle.upload(&mask)?);
        let (mut tokens, mut probs) = (handle.allocate::<i32>(8)?, handle.allocate::<f32>(64)?);
        let (mut logprobs, mut flags) = (handle.allocate::<f32>(8)?, handle.upload(&[0u32])?);
        let buffers = sample_logits::Buffers::new(
            logits.view(),
            positions.view(),
            temperature.view(),
            seeds.view(),
            tokens.view_mut(),
        )
        .top_k(top_k.view())
        .top_p(top_p.view())
        .requests(requests.view())
        .mask(mask.view())
        .probs(probs.view_mut())
        .logprobs(logprobs.view_mut())
        .flags(flags.view_mut());
        op.call(&mut workspace, buffers)?;
        let (tokens, probs) = (tokens.to_vec()?, probs.to_vec()?);
        let logprobs = logprobs.to_vec()?;
        let mut text = String::new();
        for (row, probs) in probs.chunks(8).enumerate() {
            let (token, logprob) = (tokens[row], logprobs[row]);
            write!(text, "row {row}: token {token}, {logprob:.4}, of").expect("a string");
            for p in probs {
                write!(text, " {p:.4}").expect("a string");
            }
            text.push('\n');
        }
        Ok(format!("{text}flags {}\n", flags.to_vec()?[0]))
    });
}

#[test]
fn adjusted() {
    on_every_device("adjust_logits", |handle| {
        // A text of four tokens, two of them generated, and two drafts after it, one of which the
        // vocabulary does not have; then a text alone, with a bias, stop tokens and a bad word.
        let tokens = [[0, 1, 2, 1], [5, 4, 0, 0]];
        let logits = [[1.0f32, 1.0, -1.0, 0.5, 2.0, 3.0]; 4];
        let params = AdjustLogits::new();
        let vector = |dtype, len| TensorDesc::new(dtype, [len]);
        let (per_request, penalty) = (vector(DType::I32, 2), vector(DType::F32, 2));
        let (rows, offsets) = (vector(DType::I32, 4), vector(DType::I32, 3));
        let tensors = params
            .tensors(DType::F32, 4, 6, 2, 4)
            .requests(rows)
            .draft_tokens(rows)
            .parents(rows)
            .bias_offsets(offsets)
            .bias_tokens(per_request)
            .bias_values(penalty)
            .repetition(penalty)
            .frequency(penalty)
            .presence(penalty)
            .min_tokens(per_request)
            .stop_tokens(TensorDesc::new(DType::I32, [2, 1]))
            .bad_offsets(offsets)
            .word_offsets(per_request)
            .word_tokens(per_request)
            .no_repeat_ngram(per_request)
            .flags(vector(DType::U32, 1));
        let op = handle.create(&params, &tensors)?;
        let mut workspace = op.workspace(handle)?;
        let mut logits = handle.upload(logits.as_flattened())?;
        let tokens = handle.upload(tokens.as_flattened())?;
        let (prompts, lengths) = (handle.upload(&[2i32, 1])?, handle.upload(&[4i32, 2])?);
        let requests = handle.upload(&[0i32, 0, 0, 1])?;
        let drafts = handle.upload(&[1i32, 2, 6, 4])?;
        let parents = handle.upload(&[-1i32, 0, 1, -1])?;
        let bias_offsets = handle.upload(&[0i32, 0, 2])?;
        let bias_tokens = handle.upload(&[3i32, 3])?;
        let bias_values = handle.upload(&[1.0f32, 0.25])?;
        let repetition = handle.upload(&[2.0f32, 1.0])?;
        let frequency = handle.upload(&[0.25f32, 0.0])?;
        let presence = handle.upload(&[0.5f32, 0.0])?;
        let min_tokens = handle.upload(&[0i32, 2])?;
        let stop_tokens = handle.upload(&[0i32, 0])?;
        let bad_offsets = handle.upload(&[0i32, 0, 1])?;
        let word_offsets = handle.upload(&[0i32, 2])?;
        let word_tokens = handle.upload(&[4i32, 5])?;
        let ngram = handle.upload(&[2i32, 0])?;
        let mut flags = handle.upload(&[0u32])?;
        let buffers = adjust_logits::Buffers::new(adjust_logits::Required {
            logits: logits.view_mut(),
            tokens: tokens.view(),
            prompt_lengths: prompts.view(),
            lengths: lengths.view(),
        })
        .requests(requests.view())
        .draft_tokens(drafts.view())
        .parents(parents.view())
        .bias_offsets(bias_offsets.view())
        .bias_tokens(bias_tokens.view())
        .bias_values(bias_values.view())
        .repetition(repetition.view())
        .frequency(frequency.view())
        .presence(presence.view())
        .min_tokens(min_tokens.view())
        .stop_tokens(stop_tokens.view())
        .bad_offsets(bad_offsets.view())
        .word_offsets(word_offsets.view())
        .word_tokens(word_tokens.view())
        .no_repeat_ngram(ngram.view())
        .flags(flags.view_mut());
        op.call(&mut workspace, buffers)?;
        let mut text = String::new();
        for row in logits.to_vec()?.chunks(6) {
            writeln!(text, "{row:?}").unwrap();
        }
        writeln!(text, "flags {}", flags.to_vec()?[0]).unwrap();
        Ok(text)
    });
}

#[test]
fn append() {
    on_every_device("append_tokens", |handle| {
        // A text that continues, a text that stops, a text that gets full, a text that had
        // finished, and a text with an invalid token.
        let tokens = [[5, 3, 0, 0, 0, 0]; 5];
        let new_tokens = [[9, 8, 7], [9, 2, 7], [9, 8, 7], [9, 8, 7], [9, -1, 7]];
        let params = AppendTokens::new();
        let vector = TensorDesc::new(DType::I32, [5]);
        let tensors = params
            .tensors(DType::I32, 5, 6, 3)
            .stop_tokens(TensorDesc::new(DType::I32, [5, 1]))
            .max_lengths(vector)
            .finished(vector)
            .last_tokens(vector)
            .flags(TensorDesc::new(DType::U32, [1]));
        let op = handle.create(&params, &tensors)?;
        let mut workspace = op.workspace(handle)?;
        let mut tokens = handle.upload(tokens.as_flattened())?;
        let mut lengths = handle.upload(&[2i32; 5])?;
        let new_tokens = handle.upload(new_tokens.as_flattened())?;
        let new_counts = handle.upload(&[2i32, 3, 3, 3, 3])?;
        let stop_tokens = handle.upload(&[2i32; 5])?;
        let max_lengths = handle.upload(&[9i32, 9, 4, 9, 9])?;
        let mut finished = handle.upload(&[0i32, 0, 0, 2, 0])?;
        let mut appended = handle.allocate::<i32>(5)?;
        let mut last_tokens = handle.allocate::<i32>(5)?;
        let mut flags = handle.upload(&[0u32])?;
        let buffers = append_tokens::Buffers::new(append_tokens::Required {
            tokens: tokens.view_mut(),
            lengths: lengths.view_mut(),
            new_tokens: new_tokens.view(),
            new_counts: new_counts.view(),
            appended: appended.view_mut(),
        })
        .stop_tokens(stop_tokens.view())
        .max_lengths(max_lengths.view())
        .finished(finished.view_mut())
        .last_tokens(last_tokens.view_mut())
        .flags(flags.view_mut());
        op.call(&mut workspace, buffers)?;
        let tokens = tokens.to_vec()?;
        let (lengths, finished) = (lengths.to_vec()?, finished.to_vec()?);
        let (appended, last_tokens) = (appended.to_vec()?, last_tokens.to_vec()?);
        let mut text = String::new();
        for (request, row) in tokens.chunks(6).enumerate() {
            writeln!(
                text,
                "{row:?} length {} appended {} last {} finished {}",
                lengths[request], appended[request], last_tokens[request], finished[request]
            )
            .unwrap();
        }
        writeln!(text, "flags {}", flags.to_vec()?[0]).unwrap();
        Ok(text)
    });
}
