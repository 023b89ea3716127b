use half::{bf16, f16};
use proptest::prelude::*;
use spec::ops::RejectionSample;
use spec::ops::rejection_sample::{Acceptance, Buffers, Recovery, Tensors};
use spec::{Buffer, DType, Element, Handle, Stream, TensorDesc};

use crate::common::grid::Grid;
use crate::{Random, common, on_every_device};
use spec_baselines::plain::{self, Verification, Verified};

#[derive(Clone, Debug)]
struct Case {
    params: RejectionSample,
    dtype: DType,
    wide_ids: bool,
    batch: usize,
    vocab: usize,
    draft: bool,
    uniform: bool,
    /// How alike target and draft are: 0 random, else nearly equal.
    close: bool,
    bad: bool,
    gap: usize,
    seed: u64,
}

fn case() -> impl Strategy<Value = Case> + Clone {
    let options = (0..2usize, 0..2usize, 0..3usize, any::<bool>(), any::<bool>(), any::<bool>());
    let vocab = prop_oneof![1usize..6, 20usize..100, Just(1023), Just(5000), Just(50_257)];
    let sizes = (0usize..7, 0usize..6, vocab, 0usize..4);
    let data = (any::<bool>(), any::<bool>(), any::<u64>());
    (options, sizes, data).prop_map(|(options, sizes, data)| {
        let (acceptance, recovery, dtype, wide_ids, draft, uniform) = options;
        let (batch, max_spec_len, vocab, gap) = sizes;
        let (close, bad, seed) = data;
        let acceptance = [Acceptance::Probabilistic, Acceptance::Greedy][acceptance];
        let recovery = [Recovery::Argmax, Recovery::Sample][recovery];
        let dtype = [DType::F32, DType::F16, DType::BF16][dtype];
        let params = RejectionSample { max_spec_len, acceptance, recovery };
        Case { params, dtype, wide_ids, batch, vocab, draft, uniform, close, bad, gap, seed }
    })
}

/// The inputs of a case, packed.
struct Data {
    target: Vec<f32>,
    draft: Vec<f32>,
    ids: Vec<i64>,
    bonus: Vec<i64>,
    offsets: Vec<i64>,
    uniform: Vec<f32>,
    random: [u64; 2],
}

impl Case {
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
        let row = |r: &mut Random, near: Option<&[f32]>| {
            let mut row: Vec<f32> = match near {
                Some(near) => near.iter().map(|p| p * (0.9 + 0.2 * r.unit())).collect(),
                // The tenth power makes a few entries dominate, as in a real model.
                None => r.many(self.vocab, |r| r.unit().powi(10)),
            };
            let sum: f32 = row.iter().sum();
            row.iter_mut().for_each(|p| *p /= sum.max(1e-30));
            row
        };
        let (mut target, mut draft) = (Vec::new(), Vec::new());
        for _ in 0..tokens {
            let t = row(&mut r, None);
            draft.extend(row(&mut r, self.close.then_some(&t)));
            target.extend(t);
        }
        if self.bad && tokens > 0 {
            for _ in 0..tokens * 2 {
                let at = r.below(target.len());
                target[at] = r.odd_float();
                let at = r.below(draft.len());
                draft[at] = r.odd_float();
            }
            if r.one_in(3) {
                let at = r.below(tokens);
                target[at * self.vocab..][..self.vocab].fill(f32::NAN);
            }
        }
        let id = |r: &mut Random, row: &[f32]| {
            if self.bad && r.one_in(6) {
                return [-1, self.vocab as i64, i64::from(i32::MAX), i64::from(i32::MIN)]
                    [r.below(4)];
            }
            let best = (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap_or(0);
            if r.one_in(2) { best as i64 } else { r.below(self.vocab) as i64 }
        };
        let ids =
            (0..tokens).map(|t| id(&mut r, &target[t * self.vocab..][..self.vocab])).collect();
        let bonus = (0..self.batch).map(|_| id(&mut r, &[])).collect();
        let uniform = r.many(tokens, |r| match self.bad && r.one_in(10) {
            true => r.odd_float(),
            false => r.unit(),
        });
        Data { target, draft, ids, bonus, offsets, uniform, random: [r.next(), r.next()] }
    }

    fn run<T: Element + PartialEq>(
        &self,
        handle: &Handle,
        narrow: impl Fn(f32) -> T,
        widen: impl Fn(T) -> f32,
    ) -> spec::Result<()> {
        self.run_on(handle, &self.data(), narrow, widen)
    }

    fn run_on<T: Element + PartialEq>(
        &self,
        handle: &Handle,
        data: &Data,
        narrow: impl Fn(f32) -> T,
        widen: impl Fn(T) -> f32,
    ) -> spec::Result<()> {
        let narrowed = |wide: &[f32]| wide.iter().map(|&v| narrow(v)).collect::<Vec<T>>();
        let (target, draft) = (narrowed(&data.target), narrowed(&data.draft));
        let widened = |narrow: &[T]| narrow.iter().map(|&v| widen(v)).collect::<Vec<f32>>();
        let (wide_target, wide_draft) = (widened(&target), widened(&draft));
        let expected = plain::rejection_sample(&Verification {
            params: &self.params,
            vocab: self.vocab,
            target: &wide_target,
            draft: self.draft.then_some(&wide_draft),
            ids: &data.ids,
            bonus: &data.bonus,
            offsets: &data.offsets,
            uniform: self.uniform.then_some(&data.uniform),
            seed: data.random[0],
            offset: data.random[1],
        });
        let got = self.calculate(handle, data, &target, &draft)?;
        assert_eq!(got, expected);
        Ok(())
    }

    fn calculate<T: Element + PartialEq>(
        &self,
        handle: &Handle,
        data: &Data,
        target: &[T],
        draft: &[T],
    ) -> spec::Result<Verified> {
        let tokens = data.ids.len();
        let (batch, spec) = (self.batch, self.params.max_spec_len);
        let poison = T::default();
        let target = Grid::new(tokens, self.vocab, self.gap, target, poison);
        let draft = Grid::new(tokens, self.vocab, self.gap * 2, draft, poison);
        let output = Grid::output(batch, spec + 1, self.gap, -9i32);
        let ids = |n| TensorDesc::new(if self.wide_ids { DType::I64 } else { DType::I32 }, [n]);
        let counts = TensorDesc::new(DType::I32, [batch]);
        let tensors = Tensors {
            target_probs: target.desc(),
            draft_probs: self.draft.then(|| draft.desc()),
            draft_token_ids: ids(tokens),
            bonus_token_ids: ids(batch),
            cu_num_draft: ids(batch + 1),
            uniform_samples: self.uniform.then(|| TensorDesc::new(DType::F32, [tokens])),
            seed_offset: Some(TensorDesc::new(DType::U64, [2])),
            output_token_ids: output.desc(),
            num_accepted: counts,
            accepted_counts: counts,
            recovered_counts: counts,
            bonus_counts: counts,
            flags: Some(TensorDesc::new(DType::U32, [1])),
        };
        let verify = handle.create(&self.params, &tensors)?;
        let mut workspace = handle.workspace(verify.workspace_size())?;
        let target = handle.upload(&target.data)?;
        let draft = handle.upload(&draft.data)?;
        let ids = Ids::upload(handle, &data.ids, self.wide_ids)?;
        let bonus = Ids::upload(handle, &data.bonus, self.wide_ids)?;
        let offsets = Ids::upload(handle, &data.offsets, self.wide_ids)?;
        let uniform = handle.upload(&data.uniform)?;
        let random = handle.upload(&data.random)?;
        let mut out = handle.upload(&output.data)?;
        let mut counts: Vec<Buffer<i32>> =
            (0..4).map(|_| handle.upload(&vec![-9; batch])).collect::<spec::Result<_>>()?;
        let mut flags = handle.upload(&[0u32])?;
        let [emitted, accepted, recovered, bonus_counts] = &mut counts[..] else { unreachable!() };
        let buffers = Buffers {
            target_probs: target.view(),
            draft_probs: self.draft.then(|| draft.view()),
            draft_token_ids: ids.view(),
            bonus_token_ids: bonus.view(),
            cu_num_draft: offsets.view(),
            uniform_samples: self.uniform.then(|| uniform.view()),
            seed_offset: Some(random.view()),
            output_token_ids: out.view_mut(),
            num_accepted: emitted.view_mut(),
            accepted_counts: accepted.view_mut(),
            recovered_counts: recovered.view_mut(),
            bonus_counts: bonus_counts.view_mut(),
            flags: Some(flags.view_mut()),
        };
        verify.calculate(&mut workspace, buffers, Stream::default())?;
        Ok(Verified {
            output: output.packed(&out.to_vec()?),
            emitted: counts[0].to_vec()?,
            accepted: counts[1].to_vec()?,
            recovered: counts[2].to_vec()?,
            bonus: counts[3].to_vec()?,
            flags: flags.to_vec()?[0],
        })
    }
}

/// Ids of either width.
enum Ids {
    Wide(Buffer<i64>),
    Narrow(Buffer<i32>),
}

impl Ids {
    fn upload(handle: &Handle, ids: &[i64], wide: bool) -> spec::Result<Self> {
        if wide {
            return Ok(Ids::Wide(handle.upload(ids)?));
        }
        let narrow: Vec<i32> = ids.iter().map(|&id| id as i32).collect();
        Ok(Ids::Narrow(handle.upload(&narrow)?))
    }

    fn view(&self) -> spec::View<'_> {
        match self {
            Ids::Wide(ids) => ids.view(),
            Ids::Narrow(ids) => ids.view(),
        }
    }
}

#[test]
fn agrees_with_the_plain_loop() {
    on_every_device(&case(), |handle, case| match case.dtype {
        DType::F16 => case.run(handle, f16::from_f32, f16::to_f32),
        DType::BF16 => case.run(handle, bf16::from_f32, bf16::to_f32),
        _ => case.run(handle, |v| v, |v: f32| v),
    });
}

/// Cases that random numbers do not meet: bounds that are hit exactly.
fn on_every_device_exactly(params: &RejectionSample, vocab: usize, draft: bool, data: &Data) {
    for handle in common::handles() {
        let case = Case {
            params: params.clone(),
            dtype: DType::F32,
            wide_ids: true,
            batch: data.bonus.len(),
            vocab,
            draft,
            uniform: true,
            close: false,
            bad: false,
            gap: 1,
            seed: 0,
        };
        case.run_on(&handle, data, |v| v, |v: f32| v).unwrap_or_else(|error| panic!("{error}"));
    }
}

#[test]
fn acceptance_at_its_bounds() {
    // Target, draft and draw of each request's one token.
    let bounds = [
        (0.25, 0.5, 0.5),    // u * d = t: rejected
        (0.25, 0.5, 0.49),   // just below: accepted
        (0.5, 0.5, 0.999),   // t = d: accepted, whatever u
        (1e-10, 0.0, 0.999), // d counts as 1e-10: accepted
        (0.0, 0.0, 0.0),     // u * d = 0 = t: rejected
        (1e-40, 0.0, 0.0),   // a subnormal target above 0: accepted
        (1e-40, 0.5, 1e-40), // a subnormal product below it: accepted
        (1e-45, 1.0, 1e-45), // and equal to it: rejected
    ];
    let rows = |of: fn(&(f32, f32, f32)) -> f32| -> Vec<f32> {
        bounds.iter().flat_map(|b| [of(b), 1.0 - of(b)]).collect()
    };
    let batch = bounds.len();
    let data = Data {
        target: rows(|b| b.0),
        draft: rows(|b| b.1),
        ids: vec![0; batch],
        bonus: vec![1; batch],
        offsets: (0..=batch as i64).collect(),
        uniform: bounds.iter().map(|b| b.2).collect(),
        random: [3, 4],
    };
    on_every_device_exactly(&RejectionSample::argmax(1), 2, true, &data);
}

#[test]
fn residuals_of_one_unit_far_apart() {
    // A few entries of 2^-40, the smallest that counts, all over a long row: the
    // threshold falls on the running sum itself.
    let (batch, vocab) = (64, 50_000);
    let mut target = vec![0.0; batch * vocab];
    for row in target.chunks_mut(vocab) {
        for at in [0, 1023, 8191, 8192, 30_000, 49_999] {
            row[at] = 2f32.powi(-40);
        }
    }
    let data = Data {
        draft: vec![0.0; batch * vocab],
        ids: vec![7; batch],
        bonus: vec![1; batch],
        offsets: (0..=batch as i64).collect(),
        uniform: vec![0.5; batch],
        random: [5, 6],
        target,
    };
    on_every_device_exactly(&RejectionSample::lossless(1), vocab, false, &data);
    // As an argmax they are equals, of which the first wins.
    on_every_device_exactly(&RejectionSample::argmax(1), vocab, false, &data);
}
