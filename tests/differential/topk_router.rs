use half::{bf16, f16};
use proptest::prelude::*;
use spec::ops::TopkRouter;
use spec::ops::topk_router::{Buffers, GroupScore, Masked, Scoring, Tensors};
use spec::{DType, Element, Handle, Stream, TensorDesc};

use crate::common::grid::Grid;
use spec_baselines::plain;

use crate::{Random, on_every_device};

#[derive(Clone, Debug)]
struct Case {
    params: TopkRouter,
    dtype: DType,
    tokens: usize,
    experts: usize,
    bias: bool,
    /// Values from a small set, so that most choices tie.
    ties: bool,
    odd: bool,
    gap: usize,
    seed: u64,
}

fn case() -> impl Strategy<Value = Case> + Clone {
    let groups = prop_oneof![
        Just((1, 256)),
        Just((8, 32)),
        Just((8, 20)),
        Just((16, 1)),
        Just((2, 256)),
        Just((1, 384)),
        Just((4, 3)),
        Just((1, 1024)),
        Just((1024, 1)),
        (1usize..6, 1usize..80),
    ];
    let options = (0..2usize, 0..2usize, 0..2usize, any::<bool>(), any::<bool>(), 0..3usize);
    let data = (0usize..20, any::<bool>(), any::<bool>(), 0usize..5, any::<u64>());
    (groups, options, data).prop_map(|((groups, size), options, data)| {
        let (scoring, group_score, masked, renormalize, bias, dtype) = options;
        let (tokens, ties, odd, gap, seed) = data;
        let mut random = Random(seed);
        let topk_groups = 1 + random.below(groups);
        let masked = [Masked::Zero, Masked::Excluded][masked];
        let choosable = if masked == Masked::Zero { groups } else { topk_groups } * size;
        let params = TopkRouter {
            scoring: [Scoring::Sigmoid, Scoring::Softmax][scoring],
            groups,
            topk_groups,
            group_score: [GroupScore::Top2Sum, GroupScore::Max][group_score],
            masked,
            topk: 1 + random.below(choosable.min(32)),
            renormalize,
            scale: [2.5, 1.0, 1e20, 0.0][random.below(4)],
        };
        let dtype = [DType::F32, DType::F16, DType::BF16][dtype];
        Case { params, dtype, tokens, experts: groups * size, bias, ties, odd, gap, seed }
    })
}

impl Case {
    fn logits(&self) -> Vec<f32> {
        let mut random = Random(self.seed);
        let rows_odd = random.one_in(4);
        random.many(self.tokens * self.experts, |r| match self.odd {
            true if r.one_in(if rows_odd { 1 } else { 9 }) => r.odd_float(),
            _ if self.ties => r.below(3) as f32 - 1.0,
            _ => r.unit() * 20.0 - 10.0,
        })
    }

    fn bias(&self) -> Option<Vec<f32>> {
        let mut random = Random(self.seed ^ 1);
        self.bias.then(|| {
            random.many(self.experts, |r| match self.odd {
                true if r.one_in(30) => r.odd_float(),
                _ if self.ties => r.below(2) as f32 * -0.25,
                _ => r.unit() - 0.5,
            })
        })
    }

    fn run<T: Element + PartialEq>(
        &self,
        handle: &Handle,
        narrow: impl Fn(f32) -> T,
        widen: impl Fn(T) -> f32,
    ) -> spec::Result<()> {
        let data: Vec<T> = self.logits().into_iter().map(narrow).collect();
        let wide: Vec<f32> = data.iter().map(|&v| widen(v)).collect();
        let bias = self.bias();
        let expected = plain::topk_router(&self.params, &wide, self.experts, bias.as_deref());

        let x = Grid::new(self.tokens, self.experts, self.gap, &data, T::default());
        let weights = Grid::output(self.tokens, self.params.topk, self.gap, -7.0f32);
        let indices = Grid::output(self.tokens, self.params.topk, self.gap / 2, -7i32);
        let tensors = Tensors {
            x: x.desc(),
            bias: bias.as_ref().map(|b| TensorDesc::new(DType::F32, [b.len()])),
            weights: weights.desc(),
            indices: indices.desc(),
            flags: Some(TensorDesc::new(DType::U32, [1])),
        };
        let router = handle.create(&self.params, &tensors)?;
        let mut workspace = handle.workspace(router.workspace_size())?;
        let x = handle.upload(&x.data)?;
        let bias = bias.map(|b| handle.upload(&b)).transpose()?;
        let mut weights_out = handle.upload(&weights.data)?;
        let mut indices_out = handle.upload(&indices.data)?;
        let mut flags = handle.upload(&[8u32])?;
        let buffers = Buffers {
            x: x.view(),
            bias: bias.as_ref().map(|b| b.view()),
            weights: weights_out.view_mut(),
            indices: indices_out.view_mut(),
            flags: Some(flags.view_mut()),
        };
        router.calculate(&mut workspace, buffers, Stream::default())?;
        assert_eq!(indices.packed(&indices_out.to_vec()?), expected.1, "indices");
        assert_eq!(flags.to_vec()?, [expected.2 | 8], "flags");
        for (i, (got, want)) in
            weights.packed(&weights_out.to_vec()?).iter().zip(&expected.0).enumerate()
        {
            let close = (got - want).abs() <= 2e-5 * want.abs() + 1e-6;
            assert!(close, "weight {i} is {got}, expected {want}");
        }
        Ok(())
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
