use crate::Rng;
use crate::argument::Argument;
use crate::case::{Case, Recomposed, Rows, Subject};
use crate::plain;
use crate::tensor::Tensor;
use spec_core::ops::moe_align::MoeAlign;
use spec_core::{DType, Result};

impl Subject for MoeAlign {
    const GOLDEN: &'static str = include_str!("../../golden/moe_align.json");

    fn plain(plan: &Self::Plan, buffers: Self::Buffers<'_>) -> Result<()> {
        plain::moe_align::run(plan, buffers)
    }

    fn examples() -> Vec<Case<Self>> {
        // Four of six experts are local, and expert 5 is the first of them; 7 and -1 are no
        // experts.
        let case = Case::new(MoeAlign::new(6, 2).local_experts(4))
            .input("topk_ids", [[1, 5], [5, 0], [1, 3], [7, 5], [-1, 1]])
            .input("expert_map", [1, 3, -1, -1, 2, 0])
            .output("sorted_ids", DType::I32)
            .output("block_experts", DType::I32)
            .output("counts", DType::I32)
            .output("offsets", DType::I32)
            .output("num_padded", DType::I32)
            .output("inverse", DType::I32)
            .output("sorted_tokens", DType::I32)
            .output("block_limits", DType::I32)
            .output("num_blocks", DType::I32);
        vec![case.in_place("flags", [0_u32])]
    }

    fn random(rng: &mut Rng) -> Case<Self> {
        let mut experts = rng.pick(&[1, 2, 7, 8, 60, 64, 128, 255, 256, 257, 512, 1000, 4096]);
        let block_size = rng.pick(&[1, 2, 8, 16, 48, 64, 128, 129]);
        // Outputs have a block for each expert.
        if experts * block_size > 4096 && !rng.rare(24) {
            experts = rng.pick(&[1, 2, 7, 8, 32]);
        }
        let tokens = match () {
            () if rng.rare(60) => rng.between(300, 5000),
            () if rng.chance(8) => rng.size(300),
            () => rng.size(40),
        };
        let k = rng.pick(&[1, 2, 6, 8, 8, 10]);
        let ids = experts_of(rng, tokens * k, experts);
        let mut align = MoeAlign::new(experts, block_size);
        let map = rng.chance(2).then(|| {
            align.local_experts = rng.pick(&[0, 1, experts.div_ceil(8), experts]);
            map(rng, experts, align.local_experts)
        });
        let dtype = rng.pick(&[DType::I32, DType::U32, DType::I64]);
        let data = Rng::integers(dtype, ids);
        let mut case = Case::new(align).input("topk_ids", Tensor { data, shape: vec![tokens, k] });
        if let Some(map) = map {
            case = case.input("expert_map", Tensor::vector(map));
        }
        let optional = ["sorted_tokens", "block_limits", "num_blocks"];
        case = case.some_outputs(rng, optional.map(|name| (name, DType::I32)));
        case.output("sorted_ids", rng.pick(&[DType::I32, DType::U32]))
            .output("block_experts", DType::I32)
            .output("counts", DType::I32)
            .output("offsets", DType::I32)
            .output("num_padded", DType::I32)
            .output("inverse", DType::I32)
            .in_place("flags", Tensor::vector(rng.flags()))
    }

    /// The same tokens with others behind them that go nowhere: each pick has its
    /// old place.
    fn recomposed(case: &Case<Self>, rng: &mut Rng) -> Recomposed<Self> {
        let (tokens, k) = case.get("topk_ids").map_or((0, 1), |ids| (ids.rows(), ids.cols()));
        let more = tokens + rng.between(0, 40);
        let picks = more * k;
        let capacity = case.operator.capacity(picks).expect("small sizes fit");
        let recomposed = case.map(|Argument { name, tensor, .. }| {
            let dtype = tensor.data.dtype();
            match *name {
                "topk_ids" => {
                    let mut data = Rng::integers(dtype, vec![-1; picks]);
                    data.splice(0, &tensor.data, 0..tensor.data.len());
                    Tensor { data, shape: vec![more, k] }
                }
                "sorted_ids" | "sorted_tokens" => Tensor::to_fill(dtype, &[capacity]),
                "block_experts" | "block_limits" => {
                    Tensor::to_fill(dtype, &[capacity / case.operator.block_size])
                }
                "inverse" => Tensor::to_fill(dtype, &[picks]),
                _ => tensor.clone(),
            }
        });
        let same = ["counts", "offsets", "num_padded", "num_blocks"].map(|name| (name, Rows::All));
        let old = ("inverse", Rows::Of((0..tokens * k).collect()));
        Recomposed { case: recomposed, rows: same.into_iter().chain([old]).collect() }
    }
}

/// What a router picked, in one of several styles.
fn experts_of(rng: &mut Rng, picks: usize, experts: usize) -> Vec<i64> {
    let style = rng.below(5);
    let favourite = rng.below(experts);
    let mut ids: Vec<i64> = (0..picks)
        .map(|pick| match style {
            // All to one; to a few; evenly in turn.
            0 => favourite,
            1 => rng.below(experts.min(3)),
            2 => pick % experts,
            _ => rng.below(experts),
        })
        .map(|expert| expert as i64)
        .collect();
    if rng.chance(3) && picks > 0 {
        let end = experts as i64;
        for _ in 0..rng.between(1, 1 + picks / 4) {
            let bad = [-1, -1, -2, end, end + 1, i64::from(i32::MIN), i64::from(i32::MAX)];
            ids[rng.below(picks)] = rng.pick(&bad);
        }
    }
    ids
}

/// Each expert to a local one or none; now and then to what there is not.
fn map(rng: &mut Rng, experts: usize, locals: usize) -> Vec<i32> {
    let mut map = vec![-1; experts];
    for (local, expert) in rng.permutation(experts).into_iter().take(locals).enumerate() {
        map[expert] = local as i32;
    }
    if rng.chance(3) {
        map[rng.below(experts)] = rng.pick(&[-2, locals as i32, i32::MIN, i32::MAX]);
    }
    map
}
