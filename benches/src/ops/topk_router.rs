//! The routing of DeepSeek-V3 (sigmoid, a correction bias, 4 of 8 groups), also with
//! replicas of experts; of DeepSeek-V4 (square root of softplus); 896 experts with top 16; and
//! of GLM-4.5 (160 experts).

use crate::inputs::{random, seed};
use crate::shape::{Fields, ShapeError};
use crate::work::Work;
use crate::{Entry, Measured, Words};
use spec::ops::topk_router::{MAX_EXPERTS, MAX_TOPK, TopkRouter, preset};
use spec::{DType, bf16, f16};
use spec_conformance::Case;
use spec_conformance::Rng;
use spec_conformance::Tensor;

#[derive(Clone, Debug)]
pub(crate) struct Shape {
    tokens: usize,
    experts: usize,
    dtype: DType,
    router: TopkRouter,
}

const USUAL: preset::Preset = preset::DEEPSEEK_V3;

/// The largest number of replicas of an expert, in rows with replicas.
const MAX: usize = 3;

/// Tokens, and the goals on an H200 in microseconds for f32 and bf16.
const GOALS: [(usize, f64, f64); 5] =
    [(1, 2.0, 2.0), (1024, 2.7, 2.6), (4096, 4.0, 3.8), (16_384, 8.0, 6.5), (65_536, 24.0, 18.0)];

impl Measured for TopkRouter {
    type Shape = Shape;

    const SMALL: &str = "tokens=64,experts=64";

    fn table() -> Vec<Entry<Shape>> {
        let shape = |tokens, experts, dtype, router| Shape { tokens, experts, dtype, router };
        let row = |tokens, dtype, goal| {
            let quick = tokens == 1024 || tokens == 4096 && dtype == DType::F32;
            let shape = shape(tokens, USUAL.experts(), dtype, USUAL.router());
            Entry::goal(shape, goal).quick_if(quick)
        };
        let single = GOALS.map(|(tokens, goal, _)| row(tokens, DType::F32, goal));
        let half = GOALS.map(|(tokens, _, goal)| row(tokens, DType::BF16, goal));
        let v4 = preset::DEEPSEEK_V4_PRO;
        let mut wide = USUAL.router();
        wide.groups = 1;
        wide.topk_groups = 1;
        wide.topk = 16;
        let placed = USUAL.router().physical_experts(Some(288));
        let mut glm = wide;
        glm.topk = 8;
        let others = [
            (v4.experts(), v4.router(), [None, None]),
            (896, wide, [Some(4.0), Some(12.0)]),
            (USUAL.experts(), placed, [None, Some(4.5)]),
            (preset::GLM_4_5.experts(), glm, [None, None]),
        ];
        let others = others.into_iter().flat_map(|(experts, router, goals)| {
            [1, 4096].into_iter().zip(goals).map(move |(tokens, goal)| {
                let shape = shape(tokens, experts, DType::F32, router);
                match goal {
                    Some(goal) => Entry::goal(shape, goal),
                    None => Entry::plain(shape),
                }
            })
        });
        single.into_iter().chain(half).chain(others).collect()
    }

    fn parse(fields: &mut Fields<'_>) -> Result<Shape, ShapeError> {
        let usual = USUAL.router();
        let replicas = fields.word("replicas", &[("no", false), ("yes", true)])?;
        let experts = fields.number("experts", USUAL.experts(), 1..=MAX_EXPERTS)?;
        Ok(Shape {
            tokens: fields.number("tokens", 1024, 1..=1 << 24)?,
            experts,
            dtype: fields.dtype(&[DType::F32, DType::F16, DType::BF16])?,
            router: {
                let mut made = usual;
                made.groups = fields.number("groups", usual.groups, 1..=MAX_EXPERTS)?;
                made.topk_groups =
                    fields.number("topk_groups", usual.topk_groups, 1..=MAX_EXPERTS)?;
                made.topk = fields.number("topk", usual.topk, 1..=MAX_TOPK)?;
                made.scoring = fields.choice("scoring")?;
                made.physical_experts = replicas.then_some(experts + experts.div_ceil(8));
                made
            },
        })
    }

    fn words(shape: &Shape) -> Words {
        let Shape { tokens, experts, dtype, router } = shape;
        let usual = USUAL.router();
        let mut series = dtype.to_string();
        if *experts != USUAL.experts() {
            series += &format!(", {experts} experts");
        }
        if (router.groups, router.topk_groups) != (usual.groups, usual.topk_groups) {
            series += &format!(", {} of {} groups", router.topk_groups, router.groups);
        }
        if router.topk != usual.topk {
            series += &format!(", top {}", router.topk);
        }
        if router.scoring != usual.scoring {
            series += &format!(", {}", router.scoring.name());
        }
        if router.physical_experts.is_some() {
            series += ", replicas";
        }
        Words {
            shape: format!("{tokens} tokens, {series}"),
            series,
            size: *tokens as f64,
            unit: "tokens",
        }
    }

    fn memory(shape: &Shape) -> u64 {
        let Shape { tokens, experts, dtype, router } = shape;
        let read = tokens * experts * dtype.size() + experts * 4;
        let placed = router.physical_experts.map_or(0, |places| experts * (MAX + 1) + places);
        (read + tokens * router.topk * 8 + placed * 4) as u64
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
        let mut case = Case::new(*router)
            .input("x", x)
            .input("bias", Tensor::vector(bias))
            .output("weights", DType::F32)
            .output("indices", DType::I32);
        if let Some(places) = router.physical_experts {
            let replicas = random(seed, experts * MAX, |rng| rng.below(places) as i32);
            let counts = random(!seed, experts, |rng| rng.between(1, MAX) as i32);
            case = case
                .input("replicas", Tensor::matrix(replicas, experts, MAX))
                .input("replica_counts", Tensor::vector(counts))
                .in_place("load", Tensor::vector(vec![0_i32; places]));
        }
        // Every argument is read once or written once.
        Ok(Work::new(case, Self::memory(shape)))
    }
}
