use spec_baselines::plain::ngram::{Requests, Sizes};
use spec_core::ops::{HybridMtpNgram, NgramMatch, hybrid_mtp_ngram, ngram_match};
use spec_core::{DType, Element, Result, TensorDesc};

use crate::random::Random;
use crate::{Array, Case, On, Outcome, agree, cases, grid};

/// Inputs of either operator.
#[derive(Debug)]
struct Call {
    batch: usize,
    max_prompt: usize,
    max_model: usize,
    max_draft: usize,
    /// Tokens to draw from.
    tokens: usize,
    sizes: Sizes,
    wide: [bool; 2],
    bad: bool,
    gap: usize,
    seed: u64,
}

impl Call {
    fn random(seed: u64, hybrid: bool) -> Self {
        let mut r = Random(seed);
        let some = r.below(30);
        let (a, b) = (1 + r.below(6), 1 + r.below(6));
        let max_ngram = if hybrid { a.max(b) } else { a };
        Call {
            batch: [some, some, 700, 1024, 1025][r.below(5)],
            max_prompt: [r.below(40), 40 + r.below(400), 3000][r.below(3)],
            max_model: r.below(60),
            max_draft: r.below(12),
            tokens: 1 + r.below(5),
            sizes: Sizes {
                max_ngram,
                min_ngram: if hybrid { a.min(b) } else { 1 },
                max_draft_tokens: hybrid.then(|| r.below(10)),
                threshold: [r.below(300), r.below(4000), i32::MAX as usize][r.below(3)] as i64,
            },
            wide: [r.one_in(2), r.one_in(2)],
            bad: r.one_in(2),
            gap: r.below(3),
            seed,
        }
    }

    fn requests(&self) -> Requests<'static> {
        let mut r = Random(self.seed);
        let Call { batch, max_prompt, max_model, max_draft, bad, .. } = *self;
        let hybrid = self.sizes.max_draft_tokens.is_some();
        let mut length = |max: usize| {
            r.many(batch, |r| match bad && r.one_in(8) {
                true => [-1, max as i64 + 1, i64::from(i32::MAX), i64::from(i32::MIN)][r.below(4)],
                false => r.below(max + 1) as i64,
            })
        };
        let input_ids_len = length(max_prompt);
        let prompt_lens = if hybrid { vec![0; batch] } else { length(max_model / 3) };
        let step_idx = length(max_model.saturating_sub(max_model / 3 + 1));
        let max_dec_len = length(max_model * 2);
        let few = self.tokens;
        let mut token = |n: usize| r.many(n, |r| r.below(few) as i64).into();
        let (input_ids, generated) = (token(batch * max_prompt), token(batch * max_model));
        let mut count = |choices: &[i32]| {
            r.many(batch, |r| match bad && r.one_in(8) {
                true => [-2, i32::MIN, i32::MAX, 100][r.below(4)],
                false => choices[r.below(choices.len())],
            })
        };
        Requests {
            input_cols: max_prompt,
            input_ids,
            input_ids_len,
            generated_cols: max_model,
            generated,
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
}

/// Requests as an operator takes them.
struct Uploaded<T, L> {
    descs: [TensorDesc; 3],
    ids: Array<T>,
    past: Array<T>,
    drafts: Array<T>,
    ids_len: Array<L>,
    starts: Array<L>,
    steps: Array<L>,
    max_dec: Array<L>,
    number: Array<i32>,
    this_time: Array<i32>,
    encoder: Array<i32>,
    decoder: Array<i32>,
    flags: Array<u32>,
}

impl<T: Element, L: Element> Uploaded<T, L>
where
    i64: From<T>,
{
    fn new<O: spec_baselines::Designs>(
        on: &On<'_, O>,
        r: &Requests<'_>,
        gap: usize,
        token: impl Fn(i64) -> T,
        length: impl Fn(i64) -> L,
    ) -> Result<Self> {
        let batch = r.this_time.len();
        let tokens = |v: &[i64]| v.iter().map(|&t| token(t)).collect::<Vec<T>>();
        let (ids_desc, ids) = grid(batch, r.input_cols, gap, &tokens(&r.input_ids));
        let (past_desc, past) = grid(batch, r.generated_cols, gap * 2, &tokens(&r.generated));
        let (drafts_desc, drafts) = grid(batch, r.draft_cols, gap, &tokens(&r.draft_tokens));
        let lengths = |v: &[i64]| on.upload(&v.iter().map(|&l| length(l)).collect::<Vec<L>>());
        Ok(Uploaded {
            descs: [ids_desc, past_desc, drafts_desc],
            ids: on.upload(&ids)?,
            past: on.upload(&past)?,
            drafts: on.upload(&drafts)?,
            ids_len: lengths(&r.input_ids_len)?,
            starts: lengths(&r.prompt_lens)?,
            steps: lengths(&r.step_idx)?,
            max_dec: lengths(&r.max_dec_len)?,
            number: on.upload(&r.draft_token_num)?,
            this_time: on.upload(&r.this_time)?,
            encoder: on.upload(&r.encoder)?,
            decoder: on.upload(&r.decoder)?,
            flags: on.upload(&[8u32])?,
        })
    }

    fn outcome(&self) -> Result<Outcome> {
        let exact = vec![self.drafts.ints()?, self.this_time.ints()?, self.flags.ints()?];
        Ok(Outcome { exact, close: vec![] })
    }
}

/// The lengths and counts of a descriptor.
fn vectors<L: Element>(batch: usize) -> (TensorDesc, TensorDesc, Option<TensorDesc>) {
    let vector = |dtype| TensorDesc::new(dtype, [batch]);
    (vector(L::DTYPE), vector(DType::I32), Some(TensorDesc::new(DType::U32, [1])))
}

#[derive(Debug)]
struct Match(Call);

impl Match {
    fn operator(&self) -> NgramMatch {
        let Sizes { max_ngram, threshold, .. } = self.0.sizes;
        NgramMatch { max_ngram_size: max_ngram, token_threshold: threshold as i32 }
    }

    fn run_as<T: Element, L: Element>(
        &self,
        on: &On<'_, NgramMatch>,
        token: impl Fn(i64) -> T,
        length: impl Fn(i64) -> L,
    ) -> Result<Outcome>
    where
        i64: From<T>,
    {
        let r = self.0.requests();
        let mut up = Uploaded::new(on, &r, self.0.gap, token, length)?;
        let (lengths, counts, flags) = vectors::<L>(self.0.batch);
        let tensors = ngram_match::Tensors {
            input_ids: up.descs[0],
            input_ids_len: lengths,
            token_ids_all: up.descs[1],
            prompt_lens: lengths,
            step_idx: lengths,
            draft_token_num: counts,
            draft_tokens: up.descs[2],
            seq_lens_this_time: counts,
            seq_lens_encoder: counts,
            seq_lens_decoder: counts,
            max_dec_len: lengths,
            flags,
        };
        let buffers = ngram_match::Buffers {
            input_ids: up.ids.view(),
            input_ids_len: up.ids_len.view(),
            token_ids_all: up.past.view(),
            prompt_lens: up.starts.view(),
            step_idx: up.steps.view(),
            draft_token_num: up.number.view(),
            draft_tokens: up.drafts.view_mut(),
            seq_lens_this_time: up.this_time.view_mut(),
            seq_lens_encoder: up.encoder.view(),
            seq_lens_decoder: up.decoder.view(),
            max_dec_len: up.max_dec.view(),
            flags: Some(up.flags.view_mut()),
        };
        on.calculate(&self.operator(), &tensors, buffers)?;
        up.outcome()
    }
}

impl Case for Match {
    type Operator = NgramMatch;

    fn run(&self, on: &On<'_, NgramMatch>) -> Result<Outcome> {
        match self.0.wide {
            [true, true] => self.run_as(on, |t| t, |l| l),
            [true, false] => self.run_as(on, |t| t, |l| l as i32),
            [false, true] => self.run_as(on, |t| t as i32, |l| l),
            [false, false] => self.run_as(on, |t| t as i32, |l| l as i32),
        }
    }
}

#[derive(Debug)]
struct Hybrid(Call);

impl Hybrid {
    fn operator(&self) -> HybridMtpNgram {
        let Sizes { max_ngram, min_ngram, max_draft_tokens, threshold } = self.0.sizes;
        HybridMtpNgram {
            max_ngram_size: max_ngram,
            min_ngram_size: min_ngram,
            max_draft_tokens: max_draft_tokens.unwrap_or(0),
            token_threshold: threshold as i32,
        }
    }

    fn run_as<T: Element, L: Element>(
        &self,
        on: &On<'_, HybridMtpNgram>,
        token: impl Fn(i64) -> T,
        length: impl Fn(i64) -> L,
    ) -> Result<Outcome>
    where
        i64: From<T>,
    {
        let r = self.0.requests();
        let mut up = Uploaded::new(on, &r, self.0.gap, token, length)?;
        let (lengths, counts, flags) = vectors::<L>(self.0.batch);
        let tensors = hybrid_mtp_ngram::Tensors {
            input_ids: up.descs[0],
            input_ids_len: lengths,
            pre_ids: up.descs[1],
            step_idx: lengths,
            draft_tokens: up.descs[2],
            seq_lens_this_time: counts,
            seq_lens_decoder: counts,
            max_dec_len: lengths,
            flags,
        };
        let buffers = hybrid_mtp_ngram::Buffers {
            input_ids: up.ids.view(),
            input_ids_len: up.ids_len.view(),
            pre_ids: up.past.view(),
            step_idx: up.steps.view(),
            draft_tokens: up.drafts.view_mut(),
            seq_lens_this_time: up.this_time.view_mut(),
            seq_lens_decoder: up.decoder.view(),
            max_dec_len: up.max_dec.view(),
            flags: Some(up.flags.view_mut()),
        };
        on.calculate(&self.operator(), &tensors, buffers)?;
        up.outcome()
    }
}

impl Case for Hybrid {
    type Operator = HybridMtpNgram;

    fn run(&self, on: &On<'_, HybridMtpNgram>) -> Result<Outcome> {
        match self.0.wide {
            [true, true] => self.run_as(on, |t| t, |l| l),
            [true, false] => self.run_as(on, |t| t, |l| l as i32),
            [false, true] => self.run_as(on, |t| t as i32, |l| l),
            [false, false] => self.run_as(on, |t| t as i32, |l| l as i32),
        }
    }
}

#[test]
fn random_cases_of_ngram_match() {
    agree((0..cases()).map(|seed| Match(Call::random(seed, false))));
}

#[test]
fn random_cases_of_hybrid_mtp_ngram() {
    agree((0..cases()).map(|seed| Hybrid(Call::random(seed, true))));
}

#[test]
fn measured_shapes() {
    // Among so many tokens a pattern is found late, or nowhere.
    let shapes =
        [(32, 512), (16, 1024), (16, 16 << 10), (1, 16 << 10), (512, 2048), (4, 128 << 10)];
    agree(shapes.map(|(batch, max_prompt)| {
        Match(Call {
            batch,
            max_prompt,
            max_model: 1024,
            max_draft: 16,
            tokens: 100,
            sizes: Sizes { max_ngram: 3, min_ngram: 1, max_draft_tokens: None, threshold: 8192 },
            wide: [true; 2],
            bad: false,
            gap: 0,
            seed: 9,
        })
    }));
}
