//! Routing as DeepSeek-V3 has it: sigmoid, a correction bias, 4 of 8 groups.

use crate::bench::inputs::{random, seed};
use crate::bench::shape::{Fields, ShapeError};
use crate::bench::work::Work;
use crate::bench::{Entry, Measured, Words};
use crate::conformance::Rng;
use crate::conformance::case::Case;
use crate::conformance::tensor::Tensor;
use crate::ops::topk_router::{MAX_EXPERTS, MAX_TOPK, Scoring, TopkRouter};
use crate::{DType, bf16, f16};

#[derive(Clone, Debug)]
pub(crate) struct Shape {
    tokens: usize,
    experts: usize,
    dtype: DType,
    router: TopkRouter,
}

const EXPERTS: usize = 256;

/// Tokens; goals on an H100 in microseconds, f32 and bf16.
const GOALS: [(usize, f64, f64); 5] =
    [(1, 2.3, 2.3), (1024, 2.8, 2.7), (4096, 4.5, 4.0), (16_384, 10.0, 8.0), (65_536, 33.0, 26.0)];

impl Measured for TopkRouter {
    type Shape = Shape;

    fn table() -> Vec<Entry<Shape>> {
        let row = |tokens, dtype, goal| {
            let router = TopkRouter::deepseek_v3();
            let quick = tokens == 1024 || tokens == 4096 && dtype == DType::F32;
            Entry::goal(Shape { tokens, experts: EXPERTS, dtype, router }, goal).quick_if(quick)
        };
        let single = GOALS.map(|(tokens, goal, _)| row(tokens, DType::F32, goal));
        let half = GOALS.map(|(tokens, _, goal)| row(tokens, DType::BF16, goal));
        single.into_iter().chain(half).collect()
    }

    fn parse(fields: &mut Fields<'_>) -> Result<Shape, ShapeError> {
        let usual = TopkRouter::deepseek_v3();
        Ok(Shape {
            tokens: fields.number("tokens", 1024, 1..=1 << 24)?,
            experts: fields.number("experts", EXPERTS, 1..=MAX_EXPERTS)?,
            dtype: fields.dtype(&[DType::F32, DType::F16, DType::BF16])?,
            router: TopkRouter {
                groups: fields.number("groups", usual.groups, 1..=MAX_EXPERTS)?,
                topk_groups: fields.number("topk_groups", usual.topk_groups, 1..=MAX_EXPERTS)?,
                topk: fields.number("topk", usual.topk, 1..=MAX_TOPK)?,
                scoring: fields.word(
                    "scoring",
                    &[("sigmoid", Scoring::Sigmoid), ("softmax", Scoring::Softmax)],
                )?,
                ..usual
            },
        })
    }

    fn words(shape: &Shape) -> Words {
        let Shape { tokens, experts, dtype, router } = shape;
        let usual = TopkRouter::deepseek_v3();
        let mut series = dtype.to_string();
        if *experts != EXPERTS {
            series += &format!(", {experts} experts");
        }
        if (router.groups, router.topk_groups) != (usual.groups, usual.topk_groups) {
            series += &format!(", {} of {} groups", router.topk_groups, router.groups);
        }
        if router.topk != usual.topk {
            series += &format!(", top {}", router.topk);
        }
        if router.scoring != usual.scoring {
            series += ", softmax";
        }
        Words {
            shape: format!("{tokens} tokens, {series}"),
            series,
            size: *tokens as f64,
            unit: "tokens",
        }
    }

    fn memory(shape: &Shape) -> u64 {
        let read = shape.tokens * shape.experts * shape.dtype.size() + shape.experts * 4;
        (read + shape.tokens * shape.router.topk * 8) as u64
    }

    fn work(shape: &Shape) -> Result<Work<Self>, String> {
        let Shape { tokens, experts, dtype, ref router } = *shape;
        let n = tokens * experts;
        let logit = |rng: &mut Rng| rng.unit() * 8.0 - 4.0;
        let seed = seed(&[tokens, experts]);
        let x = match dtype {
            DType::F16 => random(seed, n, |rng| f16::from_f32(logit(rng))).into(),
            DType::BF16 => random(seed, n, |rng| bf16::from_f32(logit(rng))).into(),
            _ => random(seed, n, logit).into(),
        };
        let x = Tensor { data: x, shape: vec![tokens, experts] };
        let bias = random(!seed, experts, |rng| rng.unit() * 0.2 - 0.1);
        let chosen = [tokens, router.topk];
        let case = Case::new(router.clone())
            .input("x", x)
            .input("bias", Tensor::vector(bias))
            .output("weights", DType::F32, &chosen)
            .output("indices", DType::I32, &chosen);
        // All of it is read once or written once.
        Ok(Work::new(case, Self::memory(shape)))
    }
}
