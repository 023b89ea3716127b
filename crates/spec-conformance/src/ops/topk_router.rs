use crate::Rng;
use crate::argument::Argument;
use crate::case::{Case, Recomposed, Rows, Subject};
use crate::plain;
use crate::tensor::{Data, Tensor};
use spec_core::ops::topk_router::preset::{self, Preset};
use spec_core::ops::topk_router::{MAX_EXPERTS, MAX_TOPK, Masked, Select, TopkRouter};
use spec_core::{DType, Result, Role};

impl Subject for TopkRouter {
    const GOLDEN: &'static str = include_str!("../../golden/topk_router.json");
    const ROUNDED: &'static [&'static str] = &["weights"];

    fn plain(plan: &Self::Plan, buffers: Self::Buffers<'_>) -> Result<()> {
        plain::topk_router::run(plan, buffers)
    }

    /// The call adds to `load`; the golden vectors have the sums for a `load` of zeros.
    fn complete(case: &mut Case<Self>) {
        for argument in case.arguments.iter_mut().filter(|argument| argument.name == "load") {
            argument.role = Role::InPlace;
            argument.tensor = Tensor::vector(vec![0_i32; argument.tensor.rows()]);
        }
    }

    fn examples() -> Vec<Case<Self>> {
        // Eight experts in four groups; two groups are kept.
        let mut router = preset::DEEPSEEK_V3.router();
        (router.groups, router.topk_groups, router.topk, router.scale) = (4, 2, 3, 1.0);
        let x = [
            [0.0, 0.0, 2.0, 1.0, 0.0, 0.0, 3.0, -3.0],
            [1.0; 8],
            [f32::NAN, 5.0, f32::NAN, f32::NAN, 0.0, 0.0, -1.0, f32::NEG_INFINITY],
            [f32::NAN; 8],
        ];
        let case = Case::new(router)
            .input("x", x)
            .input("bias", [0.0, 0.0, 0.0, 0.0, 0.25, 0.0, 0.0, 0.0])
            .output("weights", DType::F32)
            .output("indices", DType::I32);
        vec![case.in_place("flags", [0_u32])]
    }

    fn random(rng: &mut Rng) -> Case<Self> {
        // Backends have kernels for published routers, and for calls without other options.
        let published = rng.chance(3).then(|| rng.pick(preset::ALL));
        let is_plain = rng.chance(2);
        let usual = rng.pick(&[1, 2, 7, 8, 60, 64, 72, 128, 160, 256, 384, 512, 896, 1024]);
        let experts = match rng.below(4) {
            _ if rng.rare(120) => rng.between(1025, MAX_EXPERTS),
            0 => 1 + rng.size(1023),
            1 => 1 + rng.size(127),
            _ => usual,
        };
        let experts = published.as_ref().map_or(experts, Preset::experts);
        let tokens = match () {
            () if experts > 1024 => rng.size(12),
            // As many as CUDA counts the load of in a kernel of its own.
            () if experts <= 16 && rng.chance(400) => rng.between(2048, 2600),
            // As many as CUDA divides each among fewer lanes.
            () if published.is_some() && rng.chance(40) => rng.between(1025, 1100),
            () if published.is_some() && rng.chance(8) => rng.between(128, 160),
            () if experts <= 16 || rng.rare(30) => rng.size(48),
            () => rng.size(4),
        };
        let mut operator = parameters(rng, experts);
        if let Some(preset) = &published {
            operator = preset.router();
        } else if is_plain {
            operator = operator.shared_experts(0).physical_experts(None);
            operator = operator.select(Select::Score).topk_groups(operator.groups);
        }
        let has_bias = published.as_ref().map_or_else(|| rng.chance(2), Preset::has_bias);
        let x = logits(rng, tokens, experts);
        let dtype = rng.float_dtype();
        let index = rng.pick(&[DType::I32, DType::I32, DType::U32, DType::I64]);
        let index = if is_plain { DType::I32 } else { index };
        let flags = rng.flags();
        let physical = operator.physical_experts;
        let mut case =
            Case::new(operator).input("x", Tensor::matrix(Rng::floats(dtype, x), tokens, experts));
        if has_bias {
            let bias = logits(rng, 1, experts);
            let dtype = if is_plain { DType::F32 } else { rng.float_dtype() };
            case = case.input("bias", Tensor::vector(Rng::floats(dtype, bias)));
        }
        if is_plain {
            return case
                .output("weights", DType::F32)
                .output("indices", index)
                .in_place("flags", Tensor::vector(flags));
        }
        if rng.chance(3) {
            let usual = rng.between(0, tokens) as i32;
            let wanted = rng.pick(&[usual, usual, usual, -1, i32::MIN, i32::MAX]);
            case = case.input("num_tokens", Tensor::vector(vec![wanted]));
        }
        if rng.chance(3) {
            let given = given(rng, tokens * operator.topk, experts);
            case = case.input("chosen", Tensor::matrix(given, tokens, operator.topk));
        }
        if let Some(physical) = physical {
            case = with_replicas(case, rng, experts, physical);
        }
        if rng.chance(3) {
            let places = physical.unwrap_or(experts);
            let before: Vec<i32> = (0..places).map(|_| rng.next() as i32).collect();
            case = case.in_place("load", Tensor::vector(before));
        }
        if rng.chance(3) {
            case = case.output("logical", DType::I32);
        }
        let weights = if rng.chance(2) { DType::F32 } else { rng.float_dtype() };
        case.output("weights", weights)
            .output("indices", index)
            .in_place("flags", Tensor::vector(flags))
    }

    /// Some of the tokens, in another order, some of them twice. Padding follows. With replicas,
    /// which are chosen by the row's number, each token keeps its row.
    fn recomposed(case: &Case<Self>, rng: &mut Rng) -> Recomposed<Self> {
        let tokens = case.get("x").map_or(0, Tensor::rows);
        let wanted = case.get("num_tokens").map(|tensor| match &tensor.data {
            Data::I32(wanted) => wanted[0],
            _ => 0,
        });
        let live = wanted.map_or(tokens, |n| usize::try_from(n).unwrap_or(0).min(tokens));
        let kept = if live == 0 { 0 } else { rng.between(0, live + 3) };
        let rows: Vec<usize> = if case.operator.physical_experts.is_some() {
            (0..kept.min(live)).collect()
        } else {
            (0..kept).map(|_| rng.below(live)).collect()
        };
        let padding = if wanted.is_some() { rng.between(0, 3) } else { 0 };
        let mut all = rows.clone();
        all.extend((0..padding).filter(|_| tokens > 0).map(|_| rng.below(tokens.max(1))));
        let per_token = ["x", "chosen", "weights", "indices", "logical"];
        let case = case.map(|Argument { name, tensor, .. }| match *name {
            "num_tokens" => Tensor::vector(vec![rows.len() as i32]),
            name if per_token.contains(&name) => tensor.pick(&all),
            _ => tensor.clone(),
        });
        Recomposed {
            case,
            rows: ["weights", "indices", "logical"]
                .map(|name| (name, Rows::Of(rows.clone())))
                .to_vec(),
        }
    }
}

/// Experts for `chosen`, some of them twice, sometimes with -1 or experts that do not exist.
fn given(rng: &mut Rng, count: usize, experts: usize) -> Vec<i32> {
    let (some_absent, some_bad) = (rng.chance(3), rng.chance(4));
    let mut given: Vec<i32> = (0..count).map(|_| rng.below(experts) as i32).collect();
    for i in 0..count {
        if i > 0 && rng.chance(8) {
            given[i] = given[i - 1];
        }
        if some_absent && rng.chance(4) {
            given[i] = -1;
        }
        if some_bad && rng.chance(6) {
            given[i] = rng.pick(&[experts as i32, -2, i32::MIN, i32::MAX]);
        }
    }
    given
}

/// The case with places of experts and their counts, sometimes out of range.
fn with_replicas(
    case: Case<TopkRouter>,
    rng: &mut Rng,
    experts: usize,
    physical: usize,
) -> Case<TopkRouter> {
    let max_replicas = rng.between(1, 4);
    let has_bad = rng.chance(3);
    let mut places = vec![0_i32; experts * max_replicas];
    let mut counts = vec![0_i32; experts];
    for place in &mut places {
        *place = rng.below(physical) as i32;
        if has_bad && rng.chance(8) {
            *place = rng.pick(&[-1, physical as i32, i32::MIN, i32::MAX]);
        }
    }
    for count in &mut counts {
        *count = rng.between(1, max_replicas) as i32;
        if has_bad && rng.chance(8) {
            *count = rng.pick(&[0, -1, max_replicas as i32 + 1, i32::MIN, i32::MAX]);
        }
    }
    case.input("replicas", Tensor::matrix(places, experts, max_replicas))
        .input("replica_counts", Tensor::vector(counts))
}

fn parameters(rng: &mut Rng, experts: usize) -> TopkRouter {
    let divisors: Vec<usize> = (1..=experts).filter(|n| experts.is_multiple_of(*n)).collect();
    let groups = if rng.chance(3) { 1 } else { rng.pick(&divisors) };
    let topk_groups = rng.between(1, groups);
    let masked: Masked = rng.choice();
    let choosable = match masked {
        Masked::Zero => experts,
        _ => experts / groups * topk_groups,
    };
    TopkRouter::new(if rng.chance(2) { 8 } else { rng.between(1, MAX_TOPK) }.min(choosable))
        .scoring(rng.choice())
        .select(if rng.chance(4) { Select::Logit } else { Select::Score })
        .groups(groups)
        .topk_groups(topk_groups)
        .group_score(rng.choice())
        .masked(masked)
        .renormalize(rng.chance(2))
        .scale(rng.pick(&[1.0, 2.5, 16.0, -1.5, 0.0]))
        .shared_experts(if rng.chance(4) { rng.between(1, 5) } else { 0 })
        .shared_weight(rng.pick(&[1.0, 0.4, -2.0]))
        .physical_experts(rng.chance(4).then(|| rng.between(1, 2 * experts)))
}

/// Rows of logits in one of several styles.
fn logits(rng: &mut Rng, rows: usize, cols: usize) -> Vec<f32> {
    let mut values: Vec<f32> = match rng.below(7) {
        // Few distinct values: many ties.
        0 => {
            let distinct = rng.pick(&[4, 4, 40]);
            (0..rows * cols)
                .map(|_| rng.below(distinct) as f32 * (4.0 / distinct as f32) - 1.5)
                .collect()
        }
        1 => vec![rng.normal(); rows * cols],
        // Logits whose scores saturate.
        2 => (0..rows * cols).map(|_| rng.normal() * 60.0).collect(),
        // Logits around -87, below which the exact exponential is 0.
        3 => {
            let highest = rng.pick(&[-87.0, -86.9]);
            (0..rows * cols).map(|_| highest - rng.unit() * 0.5).collect()
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{balanced, flags, integers, results, share};
    use spec_core::DType;
    use spec_core::ops::topk_router::{Scoring, Select};

    #[test]
    fn random_routers_get_everywhere() {
        let runs = results::<TopkRouter>(200);
        assert_eq!(flags(&runs), 7);
        for name in ["num_tokens", "replicas", "load"] {
            balanced(share(runs.iter().map(|(case, _)| case.get(name).is_some())), name);
        }
        balanced(share(runs.iter().map(|(case, _)| case.operator.shared_experts > 0)), "shared");
        balanced(
            share(runs.iter().map(|(case, _)| case.operator.select == Select::Logit)),
            "logits",
        );
        for scoring in [Scoring::Sigmoid, Scoring::Softmax, Scoring::SqrtSoftplus] {
            let is = runs.iter().map(|(case, _)| case.operator.scoring == scoring);
            balanced(share(is), "a way to score");
        }
        let good = runs.iter().map(|(_, results)| integers(results, "flags")[0] & 0xFF == 0);
        balanced(share(good), "cases without bad data");
        balanced(share(runs.iter().map(|(case, _)| case.operator.groups > 1)), "grouped");
        balanced(share(runs.iter().map(|(case, _)| case.get("bias").is_some())), "biased");
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let is = |(case, _): &(Case<TopkRouter>, _)| {
                case.get("x").is_some_and(|x| x.data.dtype() == dtype)
            };
            balanced(share(runs.iter().map(is)), dtype.name());
        }
    }
}
