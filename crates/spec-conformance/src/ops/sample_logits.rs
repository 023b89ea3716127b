use crate::Rng;
use crate::argument::Argument;
use crate::case::{Case, Recomposed, Rows, Subject};
use crate::plain;
use crate::tensor::Tensor;
use spec_core::ops::sample_logits::SampleLogits;
use spec_core::{DType, Result, exact};

/// The arguments that have a row for each row of logits, outputs first.
const PER_ROW: [&str; 12] = [
    "tokens",
    "probs",
    "logprobs",
    "processed_logprobs",
    "ranks",
    "top_tokens",
    "top_logprobs",
    "row_flags",
    "logits",
    "positions",
    "requests",
    "mask",
];
const OUTPUTS: usize = 8;

/// The types that tokens and requests may have.
const INDEX: [DType; 3] = [DType::I32, DType::U32, DType::I64];

impl Subject for SampleLogits {
    const GOLDEN: &'static str = include_str!("../../golden/sample_logits.json");

    fn plain(plan: &Self::Plan, buffers: Self::Buffers<'_>) -> Result<()> {
        plain::sample_logits::run(plan, buffers)
    }

    fn examples() -> Vec<Case<Self>> {
        // Eight rows of two requests with different temperatures. The mask of row 6 forbids its
        // likeliest tokens; row 7 has no token to choose.
        let mut logits = [[0.0, 1.0, 2.0, 3.0, 3.0, 2.0, 1.0, f32::NEG_INFINITY]; 8];
        logits[7] = [f32::NAN; 8];
        let all = [0xFF];
        let case = Case::new(SampleLogits::default())
            .input("logits", logits)
            .input("positions", [0_i64, 1, 2, 3, 0, 1, 4, 5])
            .input("temperature", [1.0, 0.5])
            .input("seeds", [7_u64, 7])
            .input("top_k", [0, 3])
            .input("top_p", [0.95, 1.0])
            .input("requests", [0, 0, 0, 0, 1, 1, 0, 0])
            .input("mask", [all, all, all, all, all, all, [0b1000_0111], [0b0011_0000]])
            .output("tokens", DType::I32, &[8])
            .output("probs", DType::F32, &[8, 8])
            .output("logprobs", DType::F32, &[8]);
        vec![case.in_place("flags", [0_u32])]
    }

    fn random(rng: &mut Rng) -> Case<Self> {
        let vocab = match () {
            () if rng.rare(600) => rng.between(30_000, 160_000),
            () if rng.rare(150) => rng.between(4000, 20_000),
            () if rng.rare(30) => rng.between(300, 4000),
            () => 1 + rng.size(299),
        };
        let rows = match vocab {
            20_000.. => rng.between(1, 2),
            300.. => rng.between(0, 4),
            _ => rng.size(12),
        };
        let wild = rng.pick(&[3, 8, 1_000_000]);
        let (float, int) = (rng.float_dtype(), rng.int_dtype());
        let mapped = rng.chance(3);
        let requests = if mapped { rng.between(usize::from(wild > 8), 9) } else { rows };
        let positions = (0..rows).map(|_| position(rng)).collect();
        // A logit, and its weight at temperature 1, which some cases use as `min_p`.
        let near = -rng.unit() - 1e-3;
        let weight = exact::exp(near);
        let mut case = Case::new(SampleLogits::new().min_p_first(rng.chance(2)))
            .input(
                "logits",
                Tensor::matrix(
                    Rng::floats(float, logits(rng, rows, vocab, wild, near)),
                    rows,
                    vocab,
                ),
            )
            .input("positions", Tensor::vector(Rng::integers(int, positions)));
        let greedy = rng.pick(&[3, 1_000_000]);
        let temperatures = per_request(rng, requests, |rng| temperature(rng, greedy, wild));
        let seeds = per_request(rng, requests, |rng| rng.next() >> rng.pick(&[0, 40, 63]));
        case = case
            .input("temperature", Tensor::vector(temperatures))
            .input("seeds", Tensor::vector(seeds));
        if rng.chance(2) {
            let top_k = per_request(rng, requests, |rng| top_k(rng, vocab));
            case = case.input("top_k", Tensor::vector(top_k));
        }
        if rng.chance(2) {
            let top_p = per_request(rng, requests, |rng| share(rng, wild));
            case = case.input("top_p", Tensor::vector(top_p));
        }
        if rng.chance(3) {
            let min_p = per_request(rng, requests, |rng| {
                let scale = rng.pick(&[1.0, 0.1, 1e-3]);
                if rng.chance(3) { weight } else { share(rng, wild) * scale }
            });
            case = case.input("min_p", Tensor::vector(min_p));
        }
        if mapped {
            let of_rows = per_request(rng, rows, |rng| request(rng, requests, wild));
            let index = rng.pick(&INDEX);
            case = case.input("requests", Tensor::vector(Rng::integers(index, of_rows)));
        }
        if rng.chance(3) {
            let words = vocab.div_ceil(32);
            let mut mask = Vec::new();
            for _ in 0..rows {
                let empty = rng.chance(wild);
                let rare = rng.chance(2);
                mask.extend((0..words).map(|_| match (empty, rare) {
                    (true, _) => 0,
                    (_, true) => (rng.next() & rng.next() & rng.next()) as i32,
                    _ => rng.next() as i32,
                }));
            }
            case = case.input("mask", Tensor::matrix(mask, rows, words));
        }
        // Most cases draw one token for each row, in either shape.
        let draws = match rng.below(6) {
            0 => rng.between(1, 64),
            1 => rng.between(1, 4),
            _ => 1,
        };
        let shape = if draws == 1 && rng.chance(2) { vec![rows] } else { vec![rows, draws] };
        case = case.output("tokens", rng.pick(&INDEX), &shape);
        if rng.chance(2) {
            case = case.output("probs", DType::F32, &[rows, vocab]);
        }
        // The outputs are given alone, several together, or not at all.
        let often = rng.pick(&[2, 2, 4, 1_000_000]);
        let of_tokens =
            [("logprobs", DType::F32), ("processed_logprobs", DType::F32), ("ranks", DType::I32)];
        for (name, dtype) in of_tokens {
            if rng.chance(often) {
                case = case.output(name, dtype, &shape);
            }
        }
        let max_top = if rng.chance(4) { 256 } else { 24 };
        let top = rng.between(1, max_top);
        if rng.chance(often) {
            case = case.output("top_tokens", DType::I32, &[rows, top]);
            if rng.chance(2) {
                case = case.output("top_logprobs", DType::F32, &[rows, top]);
            }
        }
        if rng.chance(3) {
            case = case.output("row_flags", DType::U32, &[rows]);
        }
        case.in_place("flags", Tensor::vector(rng.flags()))
    }

    /// Some of the rows, in another order, some of them twice.
    fn recomposed(case: &Case<Self>, rng: &mut Rng) -> Recomposed<Self> {
        let rows = case.get("logits").map_or(0, Tensor::rows);
        let wanted = if rows == 0 { 0 } else { rng.between(0, rows + 2) };
        let picked: Vec<usize> = (0..wanted).map(|_| rng.below(rows)).collect();
        // Where row r belongs to request r, the arguments of requests are picked too.
        let mapped = case.get("requests").is_some();
        let moved = |name: &str| name != "flags" && (PER_ROW.contains(&name) || !mapped);
        let case = case.map(
            |Argument { name, tensor, .. }| {
                if moved(name) { tensor.pick(&picked) } else { tensor.clone() }
            },
        );
        let outputs = PER_ROW[..OUTPUTS].iter();
        let rows = outputs.map(|&name| (name, Rows::Of(picked.clone()))).collect();
        Recomposed { case, rows }
    }
}

fn per_request<T>(rng: &mut Rng, count: usize, draw: impl Fn(&mut Rng) -> T) -> Vec<T> {
    (0..count).map(|_| draw(rng)).collect()
}

/// Rows of logits in several styles, some with bad numbers among them.
fn logits(rng: &mut Rng, rows: usize, vocab: usize, wild: usize, near: f32) -> Vec<f32> {
    let mut all = Vec::new();
    for _ in 0..rows {
        let style = rng.below(8);
        let scale = rng.pick(&[0.01, 1.0, 3.0, 3.0, 20.0]);
        let peak = rng.below(vocab);
        let start = all.len();
        all.extend((0..vocab).map(|v| match style {
            // All equal, or few distinct values: ties at every cut.
            0 => 1.5,
            1 => rng.below(4) as f32,
            // Nearly equal: keys that share their first digits.
            2 => 7.0 + rng.below(9) as f32 * 5e-7,
            // One token has all the weight.
            3 if v == peak => 60.0,
            4 => rng.normal() * 1e36,
            // Logits a few ulps apart, where `exp` sometimes falls as they rise.
            5 if rng.chance(8) => 0.0,
            5 => f32::from_bits(near.to_bits() + rng.below(12) as u32),
            _ => rng.normal() * scale,
        }));
        let row = &mut all[start..];
        if rng.chance(wild) {
            for _ in 0..rng.between(1, 1 + vocab / 8) {
                row[rng.below(vocab)] = rng.bad_float();
            }
        }
        if rng.chance(2 * wild) {
            row.fill(rng.pick(&[f32::NAN, f32::NEG_INFINITY, f32::INFINITY]));
        }
    }
    all
}

fn position(rng: &mut Rng) -> i64 {
    let far = [0, -1, i64::MAX, i64::MIN, 1 << 32, i64::from(i32::MAX)];
    if rng.chance(4) { rng.pick(&far) } else { rng.below(100_000) as i64 }
}

fn temperature(rng: &mut Rng, greedy: usize, wild: usize) -> f32 {
    if rng.chance(greedy) {
        return rng.pick(&[0.0, 0.0, -0.0]);
    }
    if rng.chance(wild) {
        return rng.pick(&[
            f32::NAN,
            f32::INFINITY,
            f32::NEG_INFINITY,
            -1.0,
            f32::MAX,
            f32::MIN_POSITIVE,
            1e-40,
            1e-3,
            1e3,
        ]);
    }
    if rng.chance(4) { 1.0 } else { 0.1 + 1.9 * rng.unit() }
}

fn top_k(rng: &mut Rng, vocab: usize) -> i32 {
    match rng.below(8) {
        0 => rng.pick(&[0, -1, i32::MIN, i32::MAX]),
        1 => (vocab + rng.below(3)) as i32 - 1,
        2 => 1,
        3 => 1 + rng.below(vocab) as i32,
        _ => 1 + rng.below(vocab.min(100)) as i32,
    }
}

/// A share of probability; one in `wild` is not between 0 and 1, or is tiny.
fn share(rng: &mut Rng, wild: usize) -> f32 {
    if rng.chance(wild) {
        return rng.pick(&[f32::NAN, -1.0, 0.0, -0.0, 1.0, 2.0, f32::INFINITY, 1e-30, 1e-40]);
    }
    match rng.below(6) {
        0 => 0.999_999,
        1 => rng.unit(),
        2 => rng.unit() * 1e-3,
        _ => 1.0 - rng.unit() * 0.3,
    }
}

/// The request of a row; one in `wild` does not exist, and some rows are padding.
fn request(rng: &mut Rng, requests: usize, wild: usize) -> i64 {
    if rng.chance(8) {
        return -1;
    }
    if requests == 0 || rng.chance(wild) {
        let far = [-2, i64::from(i32::MIN), i64::from(i32::MAX)];
        return if rng.chance(2) { requests as i64 } else { rng.pick(&far) };
    }
    rng.below(requests) as i64
}
