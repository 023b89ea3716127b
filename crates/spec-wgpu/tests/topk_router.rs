//! `topk_router` against the golden vectors and the exact rules, one token at a
//! time.

mod common;

use common::{Pod, Random, Tensor, bytes_of, every_gpu, golden, golden_tensor};
use half::{bf16, f16};
use serde_json::Value;
use spec_core::ops::topk_router::{Buffers, GroupScore, Masked, Scoring, Tensors, TopkRouter};
use spec_core::{Backend, DType, Descriptor, Status, Stream, TensorDesc, ViewMut, exact};
use spec_wgpu::Wgpu;

struct Outputs {
    weights: Vec<f32>,
    indices: Vec<i32>,
    flags: u32,
}

/// Runs the operator on rows `stride` apart; `None` where a binding is too small.
fn run(
    gpu: &Wgpu,
    router: &TopkRouter,
    dtype: DType,
    [tokens, experts, stride]: [usize; 3],
    x: &[u8],
    bias: Option<&[u8]>,
) -> Option<Outputs> {
    let tensors = Tensors {
        x: TensorDesc::with_strides(dtype, [tokens, experts], [stride as isize, 1]),
        bias: bias.map(|_| TensorDesc::new(DType::F32, [experts])),
        flags: Some(TensorDesc::new(DType::U32, [1])),
        ..router.tensors(dtype, tokens, experts)
    };
    let descriptor = match Descriptor::create(gpu, router, &tensors) {
        Err(e) if e.status() == Status::NotImplemented => return None,
        other => other.unwrap(),
    };
    let x = Tensor::new(gpu, dtype, x, 7);
    let bias = bias.map(|b| Tensor::new(gpu, DType::F32, b, 3));
    let mut weights = Tensor::poison(gpu, DType::F32, tokens * router.topk, 1);
    let mut indices = Tensor::poison(gpu, DType::I32, tokens * router.topk, 65);
    let mut flags = Tensor::new(gpu, DType::U32, &[0; 4], 2);
    let buffers = Buffers {
        x: x.view(),
        bias: bias.as_ref().map(Tensor::view),
        weights: weights.view_mut(),
        indices: indices.view_mut(),
        flags: Some(flags.view_mut()),
    };
    assert_eq!(descriptor.workspace_size(), 0);
    descriptor.calculate(ViewMut::empty(), buffers, Stream::default()).unwrap();
    gpu.synchronize().unwrap();
    Some(Outputs { weights: weights.read(), indices: indices.read(), flags: flags.read()[0] })
}

/// The rules of the operator, read off its documentation.
fn expected(router: &TopkRouter, x: &[f32], bias: Option<&[f32]>) -> (Vec<f32>, Vec<i32>) {
    let scores: Vec<f32> = match router.scoring {
        Scoring::Sigmoid => x.iter().map(|&v| exact::sigmoid(v)).collect(),
        Scoring::Softmax => {
            let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let weight = |&v: &f32| exact::softmax::weight(v, max);
            let sum = x.iter().map(weight).map(|w| u64::from(exact::softmax::fixed(w))).sum();
            let factor = exact::softmax::factor(sum);
            x.iter().map(weight).map(|w| exact::softmax::score(w, factor)).collect()
        }
    };
    let mut keys: Vec<u32> = scores
        .iter()
        .enumerate()
        .map(|(e, s)| s + bias.map_or(0.0, |b| b[e]))
        .zip(x)
        .map(|(c, x)| exact::sort_key(if x.is_nan() { f32::NEG_INFINITY } else { c }))
        .collect();
    let size = x.len() / router.groups;
    if router.groups > 1 {
        let value = |key: u32| f32::from_bits(if key >> 31 == 1 { key ^ (1 << 31) } else { !key });
        let mut order: Vec<(u32, usize)> = keys
            .chunks(size)
            .enumerate()
            .map(|(g, group)| {
                let mut group = group.to_vec();
                group.sort_unstable_by(|a, b| b.cmp(a));
                let two = router.group_score == GroupScore::Top2Sum && size > 1;
                let key =
                    if two { exact::sort_key(value(group[0]) + value(group[1])) } else { group[0] };
                (key, g)
            })
            .collect();
        order.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
        for &(_, g) in &order[router.topk_groups..] {
            let masked = if router.masked == Masked::Zero { exact::sort_key(0.0) } else { 0 };
            keys[g * size..][..size].fill(masked);
        }
    }
    let mut order: Vec<usize> = (0..x.len()).collect();
    order.sort_by(|&a, &b| keys[b].cmp(&keys[a]).then(a.cmp(&b)));
    order.truncate(router.topk);
    let sum: f32 = order.iter().map(|&e| scores[e]).sum::<f32>() + 1e-20;
    let weight = |e: usize| {
        let w = router.scale * scores[e];
        if router.renormalize { w / sum } else { w }
    };
    (order.iter().map(|&e| weight(e)).collect(), order.iter().map(|&e| e as i32).collect())
}

fn close(found: &[f32], wanted: &[f32]) -> bool {
    let near = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-6 + 2e-5 * b.abs();
    found.len() == wanted.len() && found.iter().zip(wanted).all(near)
}

fn router_of(params: &Value) -> TopkRouter {
    let size = |name: &str| params[name].as_u64().unwrap() as usize;
    TopkRouter {
        scoring: match params["scoring"].as_str().unwrap() {
            "sigmoid" => Scoring::Sigmoid,
            _ => Scoring::Softmax,
        },
        groups: size("groups"),
        topk_groups: size("topk_groups"),
        group_score: match params["group_score"].as_str().unwrap() {
            "max" => GroupScore::Max,
            _ => GroupScore::Top2Sum,
        },
        masked: match params["masked"].as_str().unwrap() {
            "excluded" => Masked::Excluded,
            _ => Masked::Zero,
        },
        topk: size("topk"),
        renormalize: params["renormalize"].as_bool().unwrap(),
        scale: params["scale"].as_f64().unwrap() as f32,
    }
}

#[test]
fn golden_vectors() {
    for (name, gpu) in every_gpu() {
        for case in golden("topk_router") {
            let router = router_of(&case["params"]);
            let (dtype, shape, x) = golden_tensor(&case["inputs"]["x"]).unwrap();
            let bias = golden_tensor(&case["inputs"]["bias"]).map(|b| b.2);
            let sizes = [shape[0], shape[1], shape[1]];
            let Some(found) = run(&gpu, &router, dtype, sizes, &x, bias.as_deref()) else {
                assert_eq!(name, "tiny bindings");
                continue;
            };
            let wanted = golden_tensor(&case["outputs"]["indices"]).unwrap().2;
            assert!(bytes_of(&found.indices) == wanted, "{name} {}", case["name"]);
            let wanted = golden_tensor(&case["outputs"]["weights"]).unwrap().2;
            let wanted: Vec<f32> = wanted.chunks(4).map(Pod::from_bytes).collect();
            assert!(close(&found.weights, &wanted), "{name} {}", case["name"]);
            if let Some((_, _, flags)) = golden_tensor(&case["outputs"]["flags"]) {
                assert_eq!(bytes_of(&[found.flags]), flags, "{name} {}", case["name"]);
            }
        }
    }
}

/// A float of a kind that breaks things.
fn logit(random: &mut Random, kind: u64) -> f32 {
    let plain = (random.below(20001) as f32 - 10000.0) * 1e-3;
    match (kind, random.below(40)) {
        (0, _) => plain,
        (1, _) => (random.below(7) as f32 - 3.0) * 0.5,
        (2, 0) => f32::NAN,
        (2, 1) => f32::INFINITY,
        (2, 2) => f32::NEG_INFINITY,
        (2, 3) => f32::from_bits(random.next() as u32),
        (2, 4) => f32::from_bits(random.next() as u32 & 0x807F_FFFF),
        (3, _) => f32::from_bits(random.next() as u32),
        (4, _) => plain * 40.0,
        (5, 0..30) => f32::NEG_INFINITY,
        _ => plain,
    }
}

fn round_to(dtype: DType, values: &[f32]) -> (Vec<u8>, Vec<f32>) {
    match dtype {
        DType::F16 => {
            let halves: Vec<f16> = values.iter().map(|&v| f16::from_f32(v)).collect();
            (bytes_of(&halves), halves.iter().map(|h| h.to_f32()).collect())
        }
        DType::BF16 => {
            let halves: Vec<bf16> = values.iter().map(|&v| bf16::from_f32(v)).collect();
            (bytes_of(&halves), halves.iter().map(|h| h.to_f32()).collect())
        }
        _ => (bytes_of(values), values.to_vec()),
    }
}

fn random_router(random: &mut Random, experts: usize) -> TopkRouter {
    let divisors: Vec<usize> = (1..=experts).filter(|d| experts.is_multiple_of(*d)).collect();
    let groups = divisors[random.below(divisors.len() as u64) as usize];
    let topk_groups = 1 + random.below(groups as u64) as usize;
    let excluded = random.below(2) == 0;
    let choosable = if excluded { experts / groups * topk_groups } else { experts };
    TopkRouter {
        scoring: [Scoring::Sigmoid, Scoring::Softmax][random.below(2) as usize],
        groups,
        topk_groups,
        group_score: [GroupScore::Top2Sum, GroupScore::Max][random.below(2) as usize],
        masked: if excluded { Masked::Excluded } else { Masked::Zero },
        topk: 1 + random.below(choosable.min(32) as u64) as usize,
        renormalize: random.below(2) == 0,
        scale: 2.5,
    }
}

#[test]
fn follows_the_exact_rules() {
    let mut random = Random(2);
    let gpus = every_gpu();
    for turn in 0..150 {
        let experts = match random.below(4) {
            0 => 1 + random.below(1024) as usize,
            1 => 1 + random.below(40) as usize,
            _ => [8, 64, 128, 160, 256, 384, 512, 1024][random.below(8) as usize],
        };
        let router = random_router(&mut random, experts);
        let tokens = 1 + random.below(30) as usize;
        let stride = experts + random.below(3) as usize;
        let kind = random.below(6);
        let x: Vec<f32> = (0..tokens * stride).map(|_| logit(&mut random, kind)).collect();
        let bias: Option<Vec<f32>> = (random.below(3) > 0).then(|| {
            let kind = random.below(4);
            let small = if random.below(2) == 0 { 0.01 } else { 1.0 };
            (0..experts).map(|_| logit(&mut random, kind) * small).collect()
        });
        let bytes = bias.as_deref().map(bytes_of);
        let dtype = [DType::F32, DType::F16, DType::BF16][random.below(3) as usize];
        let (x_bytes, x) = round_to(dtype, &x);
        for (name, gpu) in &gpus {
            let sizes = [tokens, experts, stride];
            let found = run(gpu, &router, dtype, sizes, &x_bytes, bytes.as_deref());
            let Some(found) = found else { continue };
            let mut bad = bias.iter().flatten().any(|b| !b.is_finite());
            for token in 0..tokens {
                let row = &x[token * stride..][..experts];
                bad = bad || row.iter().any(|v| !v.is_finite());
                let (weights, indices) = expected(&router, row, bias.as_deref());
                let at = token * router.topk..(token + 1) * router.topk;
                let words = || format!("{name} {turn}: {router:?} {dtype} {experts} kind {kind}");
                assert_eq!(found.indices[at.clone()], indices, "{}", words());
                assert!(close(&found.weights[at], &weights), "{}", words());
            }
            assert_eq!(found.flags, u32::from(bad), "{name} {turn}");
        }
    }
}

#[test]
fn no_tokens() {
    for (_, gpu) in every_gpu() {
        let found = run(&gpu, &TopkRouter::qwen3(), DType::F32, [0, 128, 128], &[], None).unwrap();
        assert!(found.weights.is_empty() && found.indices.is_empty() && found.flags == 0);
    }
}
