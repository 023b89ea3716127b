use half::{bf16, f16};
use spec_core::ops::TopkRouter;
use spec_core::ops::topk_router::{Buffers, Masked, Tensors};
use spec_core::{DType, Element, Result, TensorDesc};

use crate::random::Random;
use crate::{Case, On, Outcome, agree, cases, grid};

#[derive(Debug)]
struct Call {
    params: TopkRouter,
    dtype: DType,
    tokens: usize,
    experts: usize,
    bias: bool,
    /// Values from a small set, so that most choices tie.
    ties: bool,
    odd: bool,
    gaps: [usize; 2],
    seed: u64,
}

impl Call {
    fn random(seed: u64) -> Self {
        let mut r = Random(seed);
        let dtype = [DType::F32, DType::F16, DType::BF16][r.below(3)];
        let covered = TopkRouter {
            topk: 1 + r.below(8),
            scale: [2.5, 1.0, 1e20, 0.0][r.below(4)],
            ..TopkRouter::deepseek_v3()
        };
        let excluded = TopkRouter { masked: Masked::Excluded, ..covered.clone() };
        let (params, experts) = match r.below(6) {
            0 => (TopkRouter::kimi_k2(), 384),
            1 => (excluded, 256),
            _ => (covered, 256),
        };
        let gaps = [r.below(3), r.below(3)];
        let (tokens, bias) = (r.below(40), r.one_in(2));
        let (ties, odd) = (r.one_in(3), r.one_in(3));
        Call { params, dtype, tokens, experts, bias, ties, odd, gaps, seed }
    }

    fn value(&self, r: &mut Random) -> f32 {
        match self.odd {
            true if r.one_in(9) => r.odd_float(),
            _ if self.ties => r.below(3) as f32 - 1.0,
            _ => r.unit() * 20.0 - 10.0,
        }
    }

    fn run_as<T: Element>(
        &self,
        on: &On<'_, TopkRouter>,
        narrow: impl Fn(f32) -> T,
    ) -> Result<Outcome> {
        let Call { tokens, experts, .. } = *self;
        let topk = self.params.topk;
        let mut r = Random(self.seed);
        let x: Vec<T> = r.many(tokens * experts, |r| narrow(self.value(r)));
        let bias = r.many(experts, |r| self.value(r) * 0.1);
        let (x_desc, x) = grid(tokens, experts, self.gaps[0], &x);
        let (weights_desc, weights) = grid(tokens, topk, self.gaps[1], &vec![0f32; tokens * topk]);
        let (indices_desc, indices) = grid(tokens, topk, self.gaps[1], &vec![-9i32; tokens * topk]);
        let tensors = Tensors {
            x: x_desc,
            bias: self.bias.then(|| TensorDesc::new(DType::F32, [experts])),
            weights: weights_desc,
            indices: indices_desc,
            flags: Some(TensorDesc::new(DType::U32, [1])),
        };
        let (x, bias) = (on.upload(&x)?, on.upload(&bias)?);
        let (mut weights, mut indices) = (on.upload(&weights)?, on.upload(&indices)?);
        let mut flags = on.upload(&[8u32])?;
        let buffers = Buffers {
            x: x.view(),
            bias: self.bias.then(|| bias.view()),
            weights: weights.view_mut(),
            indices: indices.view_mut(),
            flags: Some(flags.view_mut()),
        };
        on.calculate(&self.params, &tensors, buffers)?;
        Ok(Outcome { exact: vec![indices.ints()?, flags.ints()?], close: weights.get()? })
    }
}

impl Case for Call {
    type Operator = TopkRouter;

    fn run(&self, on: &On<'_, TopkRouter>) -> Result<Outcome> {
        match self.dtype {
            DType::F16 => self.run_as(on, f16::from_f32),
            DType::BF16 => self.run_as(on, bf16::from_f32),
            _ => self.run_as(on, |value| value),
        }
    }
}

#[test]
fn random_cases() {
    agree((0..cases()).map(Call::random));
}

#[test]
fn measured_shapes() {
    let shapes = [1, 1024, 4096, 16384].map(|tokens| [(tokens, DType::F32), (tokens, DType::BF16)]);
    agree(shapes.into_iter().flatten().map(|(tokens, dtype)| Call {
        params: TopkRouter::deepseek_v3(),
        dtype,
        tokens,
        experts: 256,
        bias: true,
        ties: false,
        odd: false,
        gaps: [0; 2],
        seed: 6,
    }));
}
