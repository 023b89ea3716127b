use half::bf16;
use spec_core::ops::RejectionSample;
use spec_core::ops::rejection_sample::{Buffers, Tensors};
use spec_core::{DType, Element, Result, TensorDesc};

use crate::random::Random;
use crate::{Case, On, Outcome, agree, cases, grid};

#[derive(Debug)]
struct Call {
    params: RejectionSample,
    dtype: DType,
    wide_ids: bool,
    batch: usize,
    vocab: usize,
    draft: bool,
    uniform: bool,
    bad: bool,
    /// Probabilities from a small set, so that residuals tie; or none above zero.
    ties: bool,
    gap: usize,
    seed: u64,
}

/// The inputs, packed.
struct Data {
    target: Vec<f32>,
    draft: Vec<f32>,
    ids: Vec<i64>,
    bonus: Vec<i64>,
    offsets: Vec<i64>,
    uniform: Vec<f32>,
}

impl Call {
    fn random(seed: u64) -> Self {
        let mut r = Random(seed);
        let max_spec_len = r.below(6);
        let params = match r.below(8) {
            0 => RejectionSample::lossless(max_spec_len),
            1 => RejectionSample::greedy(max_spec_len),
            _ => RejectionSample::argmax(max_spec_len),
        };
        let some = 20 + r.below(80);
        Call {
            params,
            dtype: if r.one_in(8) { DType::BF16 } else { DType::F32 },
            wide_ids: r.one_in(2),
            batch: [0, 1, r.below(7), 40][r.below(4)],
            vocab: [1 + r.below(5), some, 1023, 1025, 5000][r.below(5)],
            draft: !r.one_in(4),
            uniform: !r.one_in(8),
            bad: r.one_in(2),
            ties: r.one_in(3),
            gap: r.below(3),
            seed,
        }
    }

    fn probability(&self, r: &mut Random) -> f32 {
        match self.bad {
            true if r.one_in(40) => r.odd_float(),
            _ if self.ties => r.below(3) as f32 * 0.25,
            _ => r.unit().powi(10),
        }
    }

    fn data(&self) -> Data {
        let mut r = Random(self.seed);
        let mut offsets = vec![0i64];
        for _ in 0..self.batch {
            let longest = self.params.max_spec_len + usize::from(self.bad);
            offsets.push(offsets[offsets.len() - 1] + r.below(longest + 1) as i64);
        }
        let tokens = offsets[self.batch] as usize;
        if self.bad && r.one_in(3) {
            let at = r.below(self.batch + 1);
            offsets[at] = [-3, tokens as i64 + 1, i64::from(i32::MIN), 1][r.below(4)];
        }
        let mut target = r.many(tokens * self.vocab, |r| self.probability(r));
        let mut draft = r.many(tokens * self.vocab, |r| self.probability(r));
        for token in 0..tokens {
            let row = token * self.vocab..(token + 1) * self.vocab;
            // Rows without a positive residual, and without a number at all.
            if r.one_in(8) {
                draft[row.clone()].fill(1.0);
            }
            if self.bad && r.one_in(20) {
                target[row].fill(f32::NAN);
            }
        }
        let id = |r: &mut Random| {
            if self.bad && r.one_in(8) {
                let vocab = self.vocab as i64;
                return [-1, vocab, i64::from(i32::MAX), i64::from(i32::MIN)][r.below(4)];
            }
            r.below(self.vocab) as i64
        };
        let ids = r.many(tokens, id);
        let bonus = r.many(self.batch, id);
        let uniform = r.many(tokens, |r| match self.bad && r.one_in(10) {
            true => r.odd_float(),
            false => r.unit().powi(3),
        });
        Data { target, draft, ids, bonus, offsets, uniform }
    }

    fn run_as<T: Element, I: Element>(
        &self,
        on: &On<'_, RejectionSample>,
        narrow: impl Fn(f32) -> T,
        int: impl Fn(i64) -> I,
    ) -> Result<Outcome> {
        let data = self.data();
        let (batch, tokens) = (self.batch, data.ids.len());
        let probs = |values: &[f32]| -> Vec<T> { values.iter().map(|&v| narrow(v)).collect() };
        let (target_desc, target) = grid(tokens, self.vocab, self.gap, &probs(&data.target));
        let (draft_desc, draft) = grid(tokens, self.vocab, self.gap * 2, &probs(&data.draft));
        let width = self.params.max_spec_len + 1;
        let (output_desc, output) = grid(batch, width, self.gap, &vec![-9i32; batch * width]);
        let ids = |n| TensorDesc::new(I::DTYPE, [n]);
        let counts = TensorDesc::new(DType::I32, [batch]);
        let tensors = Tensors {
            target_probs: target_desc,
            draft_probs: self.draft.then_some(draft_desc),
            draft_token_ids: ids(tokens),
            bonus_token_ids: ids(batch),
            cu_num_draft: ids(batch + 1),
            uniform_samples: self.uniform.then(|| TensorDesc::new(DType::F32, [tokens])),
            seed_offset: Some(TensorDesc::new(DType::U64, [2])),
            output_token_ids: output_desc,
            num_accepted: counts,
            accepted_counts: counts,
            recovered_counts: counts,
            bonus_counts: counts,
            flags: Some(TensorDesc::new(DType::U32, [1])),
        };
        let ints =
            |values: &[i64]| on.upload(&values.iter().map(|&value| int(value)).collect::<Vec<I>>());
        let (target, draft) = (on.upload(&target)?, on.upload(&draft)?);
        let (ids, bonus, offsets) = (ints(&data.ids)?, ints(&data.bonus)?, ints(&data.offsets)?);
        let (uniform, random) = (on.upload(&data.uniform)?, on.upload(&[self.seed, 3])?);
        let mut output = on.upload(&output)?;
        let count = || on.upload(&vec![-9i32; batch]);
        let (mut emitted, mut accepted) = (count()?, count()?);
        let (mut recovered, mut bonus_counts) = (count()?, count()?);
        let mut flags = on.upload(&[8u32])?;
        let buffers = Buffers {
            target_probs: target.view(),
            draft_probs: self.draft.then(|| draft.view()),
            draft_token_ids: ids.view(),
            bonus_token_ids: bonus.view(),
            cu_num_draft: offsets.view(),
            uniform_samples: self.uniform.then(|| uniform.view()),
            seed_offset: Some(random.view()),
            output_token_ids: output.view_mut(),
            num_accepted: emitted.view_mut(),
            accepted_counts: accepted.view_mut(),
            recovered_counts: recovered.view_mut(),
            bonus_counts: bonus_counts.view_mut(),
            flags: Some(flags.view_mut()),
        };
        on.calculate(&self.params, &tensors, buffers)?;
        let counts = [emitted, accepted, recovered, bonus_counts];
        let mut exact = vec![output.ints()?, flags.ints()?];
        for count in counts {
            exact.push(count.ints()?);
        }
        Ok(Outcome { exact, close: vec![] })
    }
}

impl Case for Call {
    type Operator = RejectionSample;

    fn run(&self, on: &On<'_, RejectionSample>) -> Result<Outcome> {
        match (self.dtype, self.wide_ids) {
            (DType::BF16, _) => self.run_as(on, bf16::from_f32, |id| id),
            (_, true) => self.run_as(on, |p| p, |id| id),
            (_, false) => self.run_as(on, |p| p, |id| id as i32),
        }
    }
}

#[test]
fn random_cases() {
    agree((0..cases()).map(Call::random));
}

#[test]
fn measured_shapes() {
    let shapes =
        [(1, 8, 32_000), (8, 8, 32_000), (32, 2, 50_257), (1, 8, 128_256), (2, 4, 151_936)];
    agree(shapes.map(|(batch, drafts, vocab)| Call {
        params: RejectionSample::argmax(drafts),
        dtype: DType::F32,
        wide_ids: false,
        batch,
        vocab,
        draft: true,
        uniform: true,
        bad: false,
        ties: false,
        gap: 0,
        seed: 8,
    }));
}
