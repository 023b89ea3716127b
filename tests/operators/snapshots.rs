//! A few small, readable cases whose text every device must reproduce exactly.

use std::fmt::Write;

use insta::assert_snapshot;
use spec::ops::prompt_lookup::Occurrence;
use spec::ops::{
    AdjustLogits, AppendTokens, IndexerTopk, MoeAlign, SampleLogits, TreeVerify, adjust_logits,
    append_tokens, indexer_topk, moe_align, sample_logits, tree_verify,
};
use spec::ops::{
    DeduplicateTopk, HybridMtpNgram, NgramMatch, PromptLookup, RejectionSample, Unique,
    deduplicate_topk, hybrid_mtp_ngram, ngram_match, prompt_lookup, rejection_sample, topk_router,
    unique,
};
use spec::{DType, Handle, Result, TensorDesc};

/// Compares every device with the same snapshot, and names the first device that differs.
fn on_every_device(name: &str, case: impl Fn(&Handle) -> Result<String>) {
    for handle in crate::common::handles() {
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
        let mut params = topk_router::preset::DEEPSEEK_V3.router();
        params.groups = 4;
        params.topk_groups = 2;
        params.topk = 3;
        params.scale = 1.0;
        let tensors = params
            .tensors(DType::F32, 4, 8, None)
            .bias(TensorDesc::new(DType::F32, [8]))
            .flags(TensorDesc::new(DType::U32, [1]));
        let op = handle.create(&params, &tensors)?;
        let mut workspace = op.workspace(handle)?;
        let (x_in, bias) = (handle.upload(x.as_flattened())?, handle.upload(&bias)?);
        let (mut weights, mut indices) = (handle.allocate::<f32>(12)?, handle.allocate::<i32>(12)?);
        let mut flags = handle.upload(&[0u32])?;
        let buffers =
            topk_router::Buffers::new(x_in.view(), weights.view_mut(), indices.view_mut())
                .bias(bias.view())
                .flags(flags.view_mut());
        op.call(&mut workspace, buffers)?;
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
        let params = DeduplicateTopk::new().mtp_step(2);
        let tensors = params.tensors(2, 4).counts(TensorDesc::new(DType::I32, [2]));
        let op = handle.create(&params, &tensors)?;
        let mut workspace = op.workspace(handle)?;
        let input = handle.upload(indices.as_flattened())?;
        let (mut out, mut counts) = (handle.allocate::<i32>(16)?, handle.allocate::<i32>(2)?);
        let buffers =
            deduplicate_topk::Buffers::new(input.view(), out.view_mut()).counts(counts.view_mut());
        op.call(&mut workspace, buffers)?;
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
const PROMPT: [[i64; 8]; 2] = [[1, 2, 3, 4, 5, 6, 7, 8], [9, 9, 9, 9, 9, 9, 9, 9]];
const GENERATED: [[i64; 6]; 2] = [[0, 0, 2, 3, 0, 0], [4, 5, 4, 5, 4, 0]];

#[test]
fn ngram() {
    on_every_device("ngram_match", |handle| {
        let mut text = String::new();
        for token_threshold in [100, 6, 5, 3] {
            let params = NgramMatch::new().max_ngram_size(2).token_threshold(token_threshold);
            let op = handle.create(&params, &params.tensors(2, 8, 6, 5))?;
            let mut workspace = op.workspace(handle)?;
            let prompt = handle.upload(PROMPT.as_flattened())?;
            let generated = handle.upload(GENERATED.as_flattened())?;
            let (lens, starts) = (handle.upload(&[8i64, 8])?, handle.upload(&[0i64, 0])?);
            let (steps, max_dec) = (handle.upload(&[3i64, 4])?, handle.upload(&[100i64, 100])?);
            let (number, encoder) = (handle.upload(&[3i32, 3])?, handle.upload(&[0i32, 0])?);
            let decoder = handle.upload(&[1i32, 1])?;
            let mut drafts = handle.upload(&[-1i64; 10])?;
            let mut this_time = handle.upload(&[0i32, 0])?;
            let buffers = ngram_match::Buffers::new(ngram_match::Required {
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
            });
            op.call(&mut workspace, buffers)?;
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
        let params =
            HybridMtpNgram::new(4).max_ngram_size(2).min_ngram_size(2).token_threshold(100);
        let op = handle.create(&params, &params.tensors(2, 8, 6, 6))?;
        let mut workspace = op.workspace(handle)?;
        let prompt = handle.upload(PROMPT.as_flattened())?;
        let generated = handle.upload(GENERATED.as_flattened())?;
        let (lens, steps) = (handle.upload(&[8i64, 8])?, handle.upload(&[3i64, 4])?);
        let max_dec = handle.upload(&[100i64, 100])?;
        let decoder = handle.upload(&[1i32, 1])?;
        let mut drafts = handle.upload(&[50i64, 51, -1, -1, -1, -1, 60, 61, 62, -1, -1, -1])?;
        let mut this_time = handle.upload(&[2i32, 3])?;
        let buffers = hybrid_mtp_ngram::Buffers::new(hybrid_mtp_ngram::Required {
            input_ids: prompt.view(),
            input_ids_len: lens.view(),
            pre_ids: generated.view(),
            step_idx: steps.view(),
            draft_tokens: drafts.view_mut(),
            seq_lens_this_time: this_time.view_mut(),
            seq_lens_decoder: decoder.view(),
            max_dec_len: max_dec.view(),
        });
        op.call(&mut workspace, buffers)?;
        let drafts = drafts.to_vec()?;
        let rows: Vec<_> = drafts.chunks(6).collect();
        Ok(format!("{rows:?} this time {:?}\n", this_time.to_vec()?))
    });
}

#[test]
fn lookup() {
    on_every_device("prompt_lookup", |handle| {
        // Row by row: the pattern 2 3; the pattern 9 9, whose match overlaps the end; no
        // match; a length beyond the row.
        let tokens = [
            [1, 2, 3, 4, 2, 3, 5, 6, 2, 3],
            [9, 9, 9, 9, 9, 9, 0, 0, 0, 0],
            [1, 2, 3, 4, 5, 6, 7, 8, 9, 0],
            [7, 1, 8, 7, 2, 8, 7, 3, 8, 7],
        ];
        let lengths = [10, 6, 10, 11];
        let mut text = String::new();
        for occurrence in [Occurrence::First, Occurrence::Last] {
            let params =
                PromptLookup::new().min_ngram(1).max_ngram(2).max_draft(3).occurrence(occurrence);
            let tensors = params.tensors(DType::I32, 4, 10).flags(TensorDesc::new(DType::U32, [1]));
            let op = handle.create(&params, &tensors)?;
            let mut workspace = op.workspace(handle)?;
            let (input, given) = (handle.upload(tokens.as_flattened())?, handle.upload(&lengths)?);
            let (mut drafts, mut counts) =
                (handle.allocate::<i32>(12)?, handle.allocate::<i32>(4)?);
            let mut flags = handle.upload(&[0u32])?;
            let buffers = prompt_lookup::Buffers::new(
                input.view(),
                given.view(),
                drafts.view_mut(),
                counts.view_mut(),
            )
            .flags(flags.view_mut());
            op.call(&mut workspace, buffers)?;
            let (drafts, counts) = (drafts.to_vec()?, counts.to_vec()?);
            writeln!(text, "{occurrence:?}:").expect("a string");
            for (row, (drafts, count)) in tokens.iter().zip(drafts.chunks(3).zip(counts)) {
                writeln!(text, "{row:?} -> {drafts:?}, {count} drafts").expect("a string");
            }
            writeln!(text, "flags {}", flags.to_vec()?[0]).expect("a string");
        }
        Ok(text)
    });
}

#[test]
fn distinct() {
    on_every_device("unique", |handle| {
        let keys = [5i64, -1, 5, i64::MIN, 0, i64::MAX, -1, 5];
        let tensors = Unique::new()
            .tensors(DType::I64, 8)
            .counts(TensorDesc::new(DType::U64, [8]))
            .inverse(TensorDesc::new(DType::I32, [8]));
        let op = handle.create(&Unique::new(), &tensors)?;
        let mut workspace = op.workspace(handle)?;
        let input = handle.upload(&keys)?;
        let (mut out, mut counts) = (handle.allocate::<i64>(8)?, handle.allocate::<u64>(8)?);
        let (mut count, mut inverse) = (handle.allocate::<u64>(1)?, handle.allocate::<i32>(8)?);
        let buffers = unique::Buffers::new(input.view(), out.view_mut(), count.view_mut())
            .counts(counts.view_mut())
            .inverse(inverse.view_mut());
        op.call(&mut workspace, buffers)?;
        let n = count.to_vec()?[0] as usize;
        let (distinct, counts) = (out.to_vec()?, counts.to_vec()?);
        let inverse = inverse.to_vec()?;
        Ok(format!("{keys:?}\n-> {:?}\n x {:?}\n<- {inverse:?}\n", &distinct[..n], &counts[..n]))
    });
}

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
                first_child: first_child.view(),
                next_sibling: next_sibling.view(),
                tokens: tokens.view_mut(),
                nodes: nodes.view_mut(),
                num_tokens: counts.view_mut(),
            })
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

#[test]
fn grouping() {
    on_every_device("moe_align", |handle| {
        // Four of six experts are local, and expert 5 is the first of them; 7 and -1 are no
        // experts.
        let ids = [[1, 5], [5, 0], [1, 3], [7, 5], [-1, 1]];
        let map = [1, 3, -1, -1, 2, 0];
        let params = MoeAlign::new(6, 2).local_experts(4);
        let tensors = params
            .tensors(DType::I32, 5, 2)
            .expert_map(TensorDesc::new(DType::I32, [6]))
            .inverse(TensorDesc::new(DType::I32, [10]))
            .sorted_tokens(TensorDesc::new(DType::I32, [14]))
            .block_limits(TensorDesc::new(DType::I32, [7]))
            .num_blocks(TensorDesc::new(DType::I32, [1]))
            .flags(TensorDesc::new(DType::U32, [1]));
        let op = handle.create(&params, &tensors)?;
        let mut workspace = op.workspace(handle)?;
        let (topk_ids, map) = (handle.upload(ids.as_flattened())?, handle.upload(&map)?);
        let mut sorted = handle.allocate::<i32>(14)?;
        let mut blocks = handle.allocate::<i32>(7)?;
        let (mut counts, mut offsets) = (handle.allocate::<i32>(4)?, handle.allocate::<i32>(5)?);
        let mut padded = handle.allocate::<i32>(1)?;
        let mut inverse = handle.allocate::<i32>(10)?;
        let (mut tokens, mut limits) = (handle.allocate::<i32>(14)?, handle.allocate::<i32>(7)?);
        let (mut used, mut flags) = (handle.allocate::<i32>(1)?, handle.upload(&[0u32])?);
        let buffers = moe_align::Buffers::new(moe_align::Required {
            topk_ids: topk_ids.view(),
            sorted_ids: sorted.view_mut(),
            block_experts: blocks.view_mut(),
            counts: counts.view_mut(),
            offsets: offsets.view_mut(),
            num_padded: padded.view_mut(),
        })
        .expert_map(map.view())
        .inverse(inverse.view_mut())
        .sorted_tokens(tokens.view_mut())
        .block_limits(limits.view_mut())
        .num_blocks(used.view_mut())
        .flags(flags.view_mut());
        op.call(&mut workspace, buffers)?;
        Ok(format!(
            "{ids:?}\n-> sorted_ids {:?}\n   block_experts {:?}\n   counts {:?} offsets {:?} \
             num_padded {}\n   inverse {:?} flags {}\n   sorted_tokens {:?}\n   block_limits {:?} \
             num_blocks {}\n",
            sorted.to_vec()?,
            blocks.to_vec()?,
            counts.to_vec()?,
            offsets.to_vec()?,
            padded.to_vec()?[0],
            inverse.to_vec()?,
            flags.to_vec()?[0],
            tokens.to_vec()?,
            limits.to_vec()?,
            used.to_vec()?[0],
        ))
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
fn best() {
    on_every_device("indexer_topk", |handle| {
        let nan = f32::NAN;
        let scores = [
            [0.0f32, 0.5, -0.0, 0.5, 0.0, 2.0],
            [1.0, 1.0, 1.0, 1.0, 1.0, 1.0],
            [nan, -1.0, nan, f32::NEG_INFINITY, -2.0, nan],
            [9.0, 8.0, 1.0, 3.0, 2.0, 7.0],
            [9.0, 8.0, 1.0, 3.0, 2.0, 7.0],
        ];
        // Blocks of two positions: the second row and the last one lack a block.
        let blocks = [[7, 2, 5], [4, 0, -1], [0, 1, 2], [9, 8, 7], [6, -3, 0]];
        let params = IndexerTopk::new(4).block_size(2);
        let tensors = params
            .tensors(DType::F32, 5, 6)
            .lengths(TensorDesc::new(DType::I32, [5]))
            .starts(TensorDesc::new(DType::I32, [5]))
            .values(TensorDesc::new(DType::F32, [5, 4]))
            .block_table(TensorDesc::new(DType::I32, [5, 3]))
            .slots(TensorDesc::new(DType::I32, [5, 4]))
            .flags(TensorDesc::new(DType::U32, [1]));
        let op = handle.create(&params, &tensors)?;
        let mut workspace = op.workspace(handle)?;
        let input = handle.upload(scores.as_flattened())?;
        // The last row starts at its third score, and its length is beyond the row.
        let lengths = handle.upload(&[6i32, 6, 6, 3, 9])?;
        let starts = handle.upload(&[0i32, 0, 0, 1, 2])?;
        let table = handle.upload(blocks.as_flattened())?;
        let (mut out, mut flags) = (handle.allocate::<i32>(20)?, handle.upload(&[0u32])?);
        let (mut values, mut slots) = (handle.allocate::<f32>(20)?, handle.allocate::<i32>(20)?);
        let buffers = indexer_topk::Buffers::new(input.view(), out.view_mut())
            .lengths(lengths.view())
            .starts(starts.view())
            .values(values.view_mut())
            .block_table(table.view())
            .slots(slots.view_mut())
            .flags(flags.view_mut());
        op.call(&mut workspace, buffers)?;
        let (out, values, slots) = (out.to_vec()?, values.to_vec()?, slots.to_vec()?);
        let mut text = String::new();
        let outputs = out.chunks(4).zip(values.chunks(4)).zip(slots.chunks(4));
        for ((row, blocks), ((best, values), slots)) in scores.iter().zip(blocks).zip(outputs) {
            writeln!(text, "{row:?} -> {best:?} {values:?}").expect("a string");
            writeln!(text, "    blocks {blocks:?} -> {slots:?}").expect("a string");
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
