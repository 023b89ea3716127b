use serde_json::Value;

use crate::conformance::Rng;
use crate::conformance::case::{Argument, Case, Missing, Recomposed, Rows, Source, Subject};
use crate::conformance::tensor::Tensor;
use crate::ops::topk_router::{
    Arguments, Buffers, GroupScore, MAX_TOPK, Masked, Scoring, Tensors, TopkRouter,
};
use crate::{DType, TensorDesc, View, ViewMut};

fn arguments<I, O>(from: &mut impl Source<I, O>) -> Result<Arguments<I, O>, Missing> {
    Ok(Arguments {
        x: from.input("x")?,
        bias: from.maybe_input("bias"),
        weights: from.output("weights")?,
        indices: from.output("indices")?,
        flags: from.maybe_output("flags"),
    })
}

impl Subject for TopkRouter {
    const GOLDEN: &'static str = include_str!("../../../tests/golden/topk_router.json");
    const ARGUMENTS: &'static [&'static str] = &["x", "bias", "weights", "indices", "flags"];

    fn tensors(source: &mut impl Source<TensorDesc, TensorDesc>) -> Result<Tensors, Missing> {
        arguments(source)
    }

    fn buffers<'a>(
        source: &mut impl Source<View<'a>, ViewMut<'a>>,
    ) -> Result<Buffers<'a>, Missing> {
        arguments(source)
    }

    fn params(params: &Value) -> Option<Self> {
        let size = |name: &str| usize::try_from(params[name].as_u64()?).ok();
        Some(TopkRouter {
            scoring: match params["scoring"].as_str()? {
                "sigmoid" => Scoring::Sigmoid,
                "softmax" => Scoring::Softmax,
                _ => return None,
            },
            groups: size("groups")?,
            topk_groups: size("topk_groups")?,
            group_score: match params["group_score"].as_str()? {
                "top2_sum" => GroupScore::Top2Sum,
                "max" => GroupScore::Max,
                _ => return None,
            },
            masked: match params["masked"].as_str()? {
                "zero" => Masked::Zero,
                "excluded" => Masked::Excluded,
                _ => return None,
            },
            topk: size("topk")?,
            renormalize: params["renormalize"].as_bool()?,
            scale: params["scale"].as_f64()? as f32,
        })
    }

    fn random(rng: &mut Rng) -> Case<Self> {
        let usual = rng.pick(&[1, 2, 7, 8, 60, 64, 72, 128, 160, 256, 384, 512, 1000, 1024]);
        let experts = if rng.chance(3) { rng.between(1, 1024) } else { usual };
        let tokens = rng.size(48);
        let operator = parameters(rng, experts);
        let x = logits(rng, tokens, experts);
        let shape = [tokens, operator.topk];
        let dtype = rng.float_dtype();
        let mut case =
            Case::new(operator).input("x", Tensor::matrix(Rng::floats(dtype, x), tokens, experts));
        if rng.chance(2) {
            case = case.input("bias", Tensor::vector(logits(rng, 1, experts)));
        }
        case.output("weights", DType::F32, &shape)
            .output("indices", DType::I32, &shape)
            .in_place("flags", Tensor::vector(rng.flags()))
    }

    /// Some of the tokens, in another order, some of them twice.
    fn recomposed(case: &Case<Self>, rng: &mut Rng) -> Recomposed<Self> {
        let tokens = case.get("x").map_or(0, Tensor::rows);
        let wanted = if tokens == 0 { 0 } else { rng.between(0, tokens + 3) };
        let rows: Vec<usize> = (0..wanted).map(|_| rng.below(tokens)).collect();
        let per_token = ["x", "weights", "indices"];
        let case =
            case.map(
                |Argument { name, tensor, .. }| {
                    if per_token.contains(name) { tensor.pick(&rows) } else { tensor.clone() }
                },
            );
        Recomposed {
            case,
            rows: vec![("weights", Rows::Of(rows.clone())), ("indices", Rows::Of(rows))],
        }
    }
}

fn parameters(rng: &mut Rng, experts: usize) -> TopkRouter {
    let divisors: Vec<usize> = (1..=experts).filter(|n| experts.is_multiple_of(*n)).collect();
    let groups = if rng.chance(3) { 1 } else { rng.pick(&divisors) };
    let topk_groups = rng.between(1, groups);
    let masked = rng.pick(&[Masked::Zero, Masked::Excluded]);
    let choosable = match masked {
        Masked::Zero => experts,
        Masked::Excluded => experts / groups * topk_groups,
    };
    TopkRouter {
        scoring: rng.pick(&[Scoring::Sigmoid, Scoring::Softmax]),
        groups,
        topk_groups,
        group_score: rng.pick(&[GroupScore::Top2Sum, GroupScore::Max]),
        masked,
        topk: if rng.chance(2) { 8 } else { rng.between(1, MAX_TOPK) }.min(choosable),
        renormalize: rng.chance(2),
        scale: rng.pick(&[1.0, 2.5, 16.0, -1.5, 0.0]),
    }
}

/// Rows of logits in one of several styles.
fn logits(rng: &mut Rng, rows: usize, cols: usize) -> Vec<f32> {
    let mut values: Vec<f32> = match rng.below(6) {
        // Ties everywhere.
        0 => (0..rows * cols).map(|_| rng.below(4) as f32 - 1.5).collect(),
        1 => vec![rng.normal(); rows * cols],
        // Saturated scores.
        2 => (0..rows * cols).map(|_| rng.normal() * 60.0).collect(),
        _ => (0..rows * cols).map(|_| rng.normal() * 2.0).collect(),
    };
    match rng.below(5) {
        0 => {
            for _ in 0..rng.between(1, 1 + values.len() / 4) {
                if let Some(at) = values.len().checked_sub(1).map(|last| rng.between(0, last)) {
                    values[at] = rng.bad_float();
                }
            }
        }
        1 if rows > 0 => {
            let (row, bad) = (rng.below(rows), rng.bad_float());
            values[row * cols..(row + 1) * cols].fill(bad);
        }
        _ => {}
    }
    values
}
