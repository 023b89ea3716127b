use proptest::prelude::*;
use spec::ops::{HybridMtpNgram, NgramMatch, hybrid_mtp_ngram, ngram_match};
use spec::{DType, Element, Handle, Stream, TensorDesc};

use crate::common::grid::Grid;
use crate::{Random, on_every_device};
use spec_baselines::plain::ngram::{Requests, Sizes, draft};

#[derive(Clone, Debug)]
struct Case {
    hybrid: bool,
    wide_tokens: bool,
    wide_lengths: bool,
    batch: usize,
    max_prompt: usize,
    max_model: usize,
    max_draft: usize,
    tokens: usize,
    sizes: Sizes,
    bad: bool,
    gap: usize,
    seed: u64,
}

fn case() -> impl Strategy<Value = Case> + Clone {
    let kinds = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    let batch = prop_oneof![0usize..30, Just(700)];
    let prompt = prop_oneof![0usize..40, 40usize..400, Just(40_000)];
    let shape = (batch, prompt, 0usize..60, 0usize..12, 1usize..6);
    let sizes = (1usize..7, 1usize..7, 0usize..10, 0i64..300);
    (kinds, shape, sizes, 0usize..3, any::<u64>()).prop_map(|(kinds, shape, sizes, gap, seed)| {
        let (hybrid, wide_tokens, wide_lengths, bad) = kinds;
        let (batch, max_prompt, max_model, max_draft, tokens) = shape;
        let (a, b, most, threshold) = sizes;
        let (min, max) = if hybrid { (a.min(b), a.max(b)) } else { (1, a) };
        let sizes = Sizes {
            max_ngram: max,
            min_ngram: min,
            max_draft_tokens: hybrid.then_some(most),
            threshold,
        };
        let batch = if max_prompt > 10_000 { batch.min(2) } else { batch };
        Case {
            hybrid,
            wide_tokens,
            wide_lengths,
            batch,
            max_prompt,
            max_model,
            max_draft,
            tokens,
            sizes,
            bad,
            gap,
            seed,
        }
    })
}

impl Case {
    fn requests(&self) -> Requests<'static> {
        let mut r = Random(self.seed);
        let Case { batch, max_prompt, max_model, max_draft, .. } = *self;
        let bad = self.bad;
        let mut length = |max: usize| {
            r.many(batch, |r| match bad && r.one_in(8) {
                true => [-1, max as i64 + 1, i64::from(i32::MAX), i64::from(i32::MIN)][r.below(4)],
                false => r.below(max + 1) as i64,
            })
        };
        let input_ids_len = length(max_prompt);
        let prompt_lens = if self.hybrid { vec![0; batch] } else { length(max_model / 3) };
        let step_idx = length(max_model.saturating_sub(max_model / 3 + 1));
        let max_dec_len = length(max_model * 2);
        let few = self.tokens;
        // A few tokens repeat often; rarely a wide one that only i64 holds.
        let wide = if self.wide_tokens { 1i64 << 40 } else { 1 << 20 };
        let mut token =
            |n: usize| r.many(n, |r| r.below(few) as i64 + if r.one_in(50) { wide } else { 0 });
        let (input_ids, generated) = (token(batch * max_prompt), token(batch * max_model));
        let mut count = |choices: &[i32]| {
            r.many(batch, |r| match bad && r.one_in(8) {
                true => [-2, i32::MIN, i32::MAX, 100][r.below(4)],
                false => choices[r.below(choices.len())],
            })
        };
        Requests {
            input_cols: max_prompt,
            input_ids: input_ids.into(),
            input_ids_len,
            generated_cols: max_model,
            generated: generated.into(),
            prompt_lens,
            step_idx,
            max_dec_len,
            draft_cols: max_draft,
            draft_tokens: vec![-7; batch * max_draft],
            draft_token_num: count(&[0, 1, 3, 5, 10]),
            this_time: count(&[0, 1, 2, 4]),
            encoder: count(&[0, 0, 0, 7]),
            decoder: count(&[0, 1, 1, 9]),
        }
    }

    fn run<T: Element + PartialEq, L: Element>(
        &self,
        handle: &Handle,
        token: impl Fn(i64) -> T,
        length: impl Fn(i64) -> L,
    ) -> spec::Result<()> {
        let requests = self.requests();
        let mut expected = requests.clone();
        let expected_flags = draft(&mut expected, self.sizes);

        let (batch, r) = (self.batch, &requests);
        let tokens = |v: &[i64]| v.iter().map(|&t| token(t)).collect::<Vec<T>>();
        let grid = |cols, v: &[i64], gap| Grid::new(batch, cols, gap, &tokens(v), token(3));
        let input_ids = grid(r.input_cols, &r.input_ids, self.gap);
        let generated = grid(r.generated_cols, &r.generated, self.gap * 2);
        let drafts = grid(r.draft_cols, &r.draft_tokens, self.gap);
        let lengths = |v: &[i64]| v.iter().map(|&l| length(l)).collect::<Vec<L>>();
        let upload = |v: &[i64]| handle.upload(&lengths(v));
        let lengths = TensorDesc::new(L::DTYPE, [batch]);
        let counts = TensorDesc::new(DType::I32, [batch]);
        let word = Some(TensorDesc::new(DType::U32, [1]));

        let (ids, past) = (handle.upload(&input_ids.data)?, handle.upload(&generated.data)?);
        let (ids_len, starts) = (upload(&r.input_ids_len)?, upload(&r.prompt_lens)?);
        let (steps, max_dec) = (upload(&r.step_idx)?, upload(&r.max_dec_len)?);
        let number = handle.upload(&r.draft_token_num)?;
        let (encoder, decoder) = (handle.upload(&r.encoder)?, handle.upload(&r.decoder)?);
        let mut drafts_out = handle.upload(&drafts.data)?;
        let mut this_time = handle.upload(&r.this_time)?;
        let mut flags = handle.upload(&[0u32])?;
        if self.hybrid {
            let params = HybridMtpNgram {
                max_ngram_size: self.sizes.max_ngram,
                min_ngram_size: self.sizes.min_ngram,
                max_draft_tokens: self.sizes.max_draft_tokens.unwrap_or(0),
                token_threshold: self.sizes.threshold as i32,
            };
            let tensors = hybrid_mtp_ngram::Tensors {
                input_ids: input_ids.desc(),
                input_ids_len: lengths,
                pre_ids: generated.desc(),
                step_idx: lengths,
                draft_tokens: drafts.desc(),
                seq_lens_this_time: counts,
                seq_lens_decoder: counts,
                max_dec_len: lengths,
                flags: word,
            };
            let op = handle.create(&params, &tensors)?;
            let mut workspace = handle.workspace(op.workspace_size())?;
            let buffers = hybrid_mtp_ngram::Buffers {
                input_ids: ids.view(),
                input_ids_len: ids_len.view(),
                pre_ids: past.view(),
                step_idx: steps.view(),
                draft_tokens: drafts_out.view_mut(),
                seq_lens_this_time: this_time.view_mut(),
                seq_lens_decoder: decoder.view(),
                max_dec_len: max_dec.view(),
                flags: Some(flags.view_mut()),
            };
            op.calculate(&mut workspace, buffers, Stream::default())?;
        } else {
            let params = NgramMatch {
                max_ngram_size: self.sizes.max_ngram,
                token_threshold: self.sizes.threshold as i32,
            };
            let tensors = ngram_match::Tensors {
                input_ids: input_ids.desc(),
                input_ids_len: lengths,
                token_ids_all: generated.desc(),
                prompt_lens: lengths,
                step_idx: lengths,
                draft_token_num: counts,
                draft_tokens: drafts.desc(),
                seq_lens_this_time: counts,
                seq_lens_encoder: counts,
                seq_lens_decoder: counts,
                max_dec_len: lengths,
                flags: word,
            };
            let op = handle.create(&params, &tensors)?;
            let mut workspace = handle.workspace(op.workspace_size())?;
            let buffers = ngram_match::Buffers {
                input_ids: ids.view(),
                input_ids_len: ids_len.view(),
                token_ids_all: past.view(),
                prompt_lens: starts.view(),
                step_idx: steps.view(),
                draft_token_num: number.view(),
                draft_tokens: drafts_out.view_mut(),
                seq_lens_this_time: this_time.view_mut(),
                seq_lens_encoder: encoder.view(),
                seq_lens_decoder: decoder.view(),
                max_dec_len: max_dec.view(),
                flags: Some(flags.view_mut()),
            };
            op.calculate(&mut workspace, buffers, Stream::default())?;
        }
        assert_eq!(this_time.to_vec()?, expected.this_time, "seq_lens_this_time");
        let drafted = drafts.packed(&drafts_out.to_vec()?);
        assert!(drafted == tokens(&expected.draft_tokens), "draft_tokens");
        assert_eq!(flags.to_vec()?, [expected_flags], "flags");
        Ok(())
    }
}

#[test]
fn agree_with_the_plain_loop() {
    on_every_device(&case(), |handle, case| match (case.wide_tokens, case.wide_lengths) {
        (true, true) => case.run(handle, |t| t, |l| l),
        (true, false) => case.run(handle, |t| t, |l| l as i32),
        (false, true) => case.run(handle, |t| t as i32, |l| l),
        (false, false) => case.run(handle, |t| t as i32, |l| l as i32),
    });
}
