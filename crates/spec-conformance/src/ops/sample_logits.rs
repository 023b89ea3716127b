use crate::Rng;
use crate::case::{Case, Subject};
use crate::plain;
use crate::tensor::{Data, Tensor};
use half::{bf16, f16};
use spec_core::ops::sample_logits::SampleLogits;
use spec_core::{DType, Result, exact};

/// The types that tokens and requests may have.
const INDEX: [DType; 3] = [DType::I32, DType::U32, DType::I64];

/// What a random call is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// Whole rows, without the options of columns.
    Rows,
    /// Any outputs of columns that may stand for other tokens.
    Columns,
    /// The winners among a rank's columns.
    Shard,
    /// The largest logits of a rank's columns.
    Largest,
}

impl Subject for SampleLogits {
    /// Without it, a call that draws no token is none.
    const STATE: &'static [&'static str] = &["largest"];

    const GOLDEN: &'static str = include_str!("../../golden/sample_logits.json");

    /// Some vectors have more seeds, or other numbers, than requests. No request has the rest.
    fn complete(case: &mut Case<Self>) {
        let requests = case.get("temperature").map_or(0, Tensor::rows);
        for argument in &mut case.arguments {
            if ["seeds", "top_k", "top_p", "min_p"].contains(&argument.name) {
                match &mut argument.tensor.data {
                    Data::U64(numbers) => numbers.truncate(requests),
                    Data::I32(numbers) => numbers.truncate(requests),
                    Data::F32(numbers) => numbers.truncate(requests),
                    _ => continue,
                }
                let dims = &mut argument.tensor.shape;
                dims[0] = dims[0].min(requests);
            }
        }
    }

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
            .output("tokens", DType::I32)
            .output("probs", DType::F32)
            .output("logprobs", DType::F32);
        // Half of a row of 16 tokens, and a draft head with 4 of them. The forced token of row 2 is
        // none of these.
        let shard = Case::new(SampleLogits::default().first_token(8))
            .input("logits", [[0.0, 1.0, 2.0, 3.0, 3.0, 2.0, 1.0, f32::NEG_INFINITY]; 3])
            .input("positions", [0_i64, 1, 2])
            .input("temperature", [1.0, 0.5, 0.0])
            .input("seeds", [7_u64, 7, 7])
            .input("maxima", [3.0, 3.5, 3.5])
            .output("tokens", DType::I32)
            .output("winners", DType::I64)
            .in_place("flags", [0_u32]);
        let head = Case::new(SampleLogits::default())
            .input("logits", [[2.0, 3.0, 1.0, 0.0]; 3])
            .input("positions", [0_i64, 1, 2])
            .input("temperature", [1.0, 1.0, 1.0])
            .input("seeds", [7_u64, 7, 7])
            .input("top_k", [0, 3, 3])
            .input("token_ids", [3_i32, 11, 12, -1])
            .input("forced", [-1, 12, 5])
            .output("tokens", DType::I32)
            .output("logprobs", DType::F32)
            .output_of("kept_tokens", DType::I32, &[3, 4])
            .output("kept_counts", DType::I32)
            .in_place("flags", [0_u32]);
        vec![case.in_place("flags", [0_u32]), shard, head]
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
        let purpose = match rng.below(16) {
            0..=6 => Purpose::Rows,
            7..=11 => Purpose::Columns,
            12..=14 => Purpose::Shard,
            _ => Purpose::Largest,
        };
        let wild = rng.pick(&[3, 8, 1_000_000]);
        let (float, int) = (rng.float_dtype(), rng.int_dtype());
        let mapped = rng.chance(3);
        let requests = if mapped { rng.between(usize::from(wild > 8), 9) } else { rows };
        let positions = (0..rows).map(|_| position(rng)).collect();
        // A logit, and its weight at temperature 1, which some cases use as `min_p`.
        let near = -rng.unit() - 1e-3;
        let weight = exact::exp(near);
        let values = logits(rng, rows, vocab, wild, near);
        let maxima = maxima(rng, float, &values, vocab, wild);
        let mut case = Case::new(SampleLogits::new().min_p_first(rng.chance(2)))
            .input("logits", Tensor::matrix(Rng::floats(float, values), rows, vocab))
            .input("positions", Tensor::vector(Rng::integers(int, positions)));
        let greedy = rng.pick(&[3, 1_000_000]);
        let temperatures = per_request(rng, requests, |rng| temperature(rng, greedy, wild));
        let seeds = per_request(rng, requests, |rng| rng.next() >> rng.pick(&[0, 40, 63]));
        case = case
            .input("temperature", Tensor::vector(temperatures))
            .input("seeds", Tensor::vector(seeds));
        let whole = matches!(purpose, Purpose::Rows | Purpose::Columns);
        if whole && rng.chance(2) {
            let top_k = per_request(rng, requests, |rng| top_k(rng, vocab));
            case = case.input("top_k", Tensor::vector(top_k));
        }
        if whole && rng.chance(2) {
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
        let (mut case, end) = match purpose {
            Purpose::Rows => (case, vocab),
            _ => columns(rng, case, rows, vocab, wild),
        };
        if rng.chance(3) {
            case = masked(rng, case, rows, end, wild);
        }
        let case = match purpose {
            Purpose::Rows => outputs(rng, case, rows),
            Purpose::Columns => {
                let case = if rng.chance(2) { forced(rng, case, rows, end, wild) } else { case };
                let case = outputs(rng, case, rows);
                let case = kept(rng, case, rows, vocab);
                winners(rng, case)
            }
            Purpose::Shard => {
                let case = case.input("maxima", Tensor::vector(maxima));
                let case = if rng.chance(3) { forced(rng, case, rows, end, wild) } else { case };
                let shape = if rng.chance(2) { vec![rows] } else { vec![rows, 1] };
                let case = case.output_of("tokens", rng.pick(&INDEX), &shape);
                let case = if rng.chance(2) { case.output("row_flags", DType::U32) } else { case };
                winners(rng, case)
            }
            Purpose::Largest => {
                let case = case.output_of("tokens", rng.pick(&INDEX), &[rows, 0]);
                case.output("largest", DType::F32)
            }
        };
        case.in_place("flags", Tensor::vector(rng.flags()))
    }
}

/// Adds outputs that a call for whole rows may have.
fn outputs(rng: &mut Rng, case: Case<SampleLogits>, rows: usize) -> Case<SampleLogits> {
    // Most cases draw one token for each row, in either shape.
    let draws = match rng.below(6) {
        0 => rng.between(1, 64),
        1 => rng.between(1, 4),
        _ => 1,
    };
    let shape = if draws == 1 && rng.chance(2) { vec![rows] } else { vec![rows, draws] };
    let mut case = case.output_of("tokens", rng.pick(&INDEX), &shape);
    if rng.chance(2) {
        case = case.output("probs", DType::F32);
    }
    // The outputs are given alone, several together, or not at all.
    let often = rng.pick(&[2, 2, 4, 1_000_000]);
    let of_tokens =
        [("logprobs", DType::F32), ("processed_logprobs", DType::F32), ("ranks", DType::I32)];
    for (name, dtype) in of_tokens {
        if rng.chance(often) {
            case = case.output_of(name, dtype, &shape);
        }
    }
    let max_top = if rng.chance(4) { 256 } else { 24 };
    let top = rng.between(1, max_top);
    if rng.chance(often) {
        case = case.output_of("top_tokens", DType::I32, &[rows, top]);
        if rng.chance(2) {
            case = case.output("top_logprobs", DType::F32);
        }
    }
    if rng.chance(3) {
        case = case.output("row_flags", DType::U32);
    }
    case
}

/// Adds a mask with bits for the tokens below `end`.
fn masked(
    rng: &mut Rng,
    case: Case<SampleLogits>,
    rows: usize,
    end: usize,
    wild: usize,
) -> Case<SampleLogits> {
    let words = end.div_ceil(32);
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
    case.input("mask", Tensor::matrix(mask, rows, words))
}

/// Makes the columns of a case stand for other tokens. Returns how many tokens a mask has bits for,
/// which may be fewer than there are where ids are given.
fn columns(
    rng: &mut Rng,
    mut case: Case<SampleLogits>,
    rows: usize,
    vocab: usize,
    wild: usize,
) -> (Case<SampleLogits>, usize) {
    if rng.chance(3) {
        let last = (1 << 24) - vocab;
        let first = rng.pick(&[0, 1, 31, 64, 127, 3986, 18_992, last]).min(last);
        // A mask of 2^24 tokens has 2 MiB a row.
        let first = if rows > 2 { first.min(100_000) } else { first };
        case.operator.first_token = first as i32;
        return (case, first + vocab + rng.pick(&[0, 0, 40]));
    }
    let shared = rng.chance(2);
    let lists = if shared { 1 } else { rows };
    let mut all = Vec::new();
    let style = rng.below(4);
    let step = rng.pick(&[1, 2, 4, 300]);
    for _ in 0..lists {
        let mut next = rng.below(200);
        all.extend((0..vocab).map(|column| {
            next += 1 + rng.below(step);
            let id = match style {
                // In order, as the head of a draft model has them.
                0 => next,
                // In any order.
                1 => rng.below(1 << 24),
                // Few tokens, many times each.
                2 => rng.below(1 + vocab / 3),
                // Runs of tokens, as candidates of ranks are.
                _ => column + (column / 7) * 1000 % 8000,
            };
            id.min((1 << 24) - 1) as i64
        }));
    }
    if rng.chance(2) {
        for _ in 0..all.len() / 4 + 1 {
            let at = rng.below(all.len().max(1));
            let bad = [-2, i64::from(i32::MIN), 1 << 24, i64::from(i32::MAX)];
            let id = if rng.chance(wild) { rng.pick(&bad) } else { -1 };
            if let Some(to) = all.get_mut(at) {
                *to = id;
            }
        }
    }
    if rng.chance(8 * wild) {
        all.fill(-1);
    }
    let ids = Rng::integers(rng.int_dtype(), all);
    let end = rng.pick(&[1, vocab, 8000, 80_000]);
    let ids = if shared { Tensor::vector(ids) } else { Tensor::matrix(ids, rows, vocab) };
    (case.input("token_ids", ids), end)
}

/// Adds forced tokens: mostly none, or a token that some column stands for.
fn forced(
    rng: &mut Rng,
    case: Case<SampleLogits>,
    rows: usize,
    end: usize,
    wild: usize,
) -> Case<SampleLogits> {
    let first = case.operator.first_token;
    let ids = case.get("token_ids").map(|ids| match &ids.data {
        Data::I32(ids) => ids.clone(),
        Data::I64(ids) => ids.iter().map(|&id| i32::try_from(id).unwrap_or(-1)).collect(),
        _ => Vec::new(),
    });
    let forced = (0..rows).map(|_| match rng.below(4) {
        _ if rng.chance(4 * wild) => rng.pick(&[-2, i32::MIN, i32::MAX]),
        0 => -1,
        1 => rng.below(end + 2) as i32,
        _ => match &ids {
            Some(ids) => ids[rng.below(ids.len())].max(-1),
            None => first + rng.below((end as i32 - first).max(1) as usize) as i32,
        },
    });
    let forced: Vec<i32> = forced.collect();
    case.input("forced", Tensor::vector(forced))
}

/// Adds the outputs of kept tokens.
fn kept(
    rng: &mut Rng,
    mut case: Case<SampleLogits>,
    rows: usize,
    vocab: usize,
) -> Case<SampleLogits> {
    if rng.chance(2) {
        let most = if rng.chance(8) { 4096 } else { (vocab + 3).min(4096) };
        let count = if rng.chance(2) { rng.between(1, 8) } else { rng.between(1, most) };
        case = case.output_of("kept_tokens", DType::I32, &[rows, count]);
    }
    if rng.chance(2) { case.output("kept_counts", DType::I32) } else { case }
}

/// Adds the output of winners to a case of single draws.
fn winners(rng: &mut Rng, case: Case<SampleLogits>) -> Case<SampleLogits> {
    let single =
        case.get("tokens").is_some_and(|tokens| tokens.shape.get(1).is_none_or(|&n| n == 1));
    match single && rng.chance(2) {
        true => case.output("winners", rng.pick(&[DType::I64, DType::U64])),
        false => case,
    }
}

/// The largest logits of rows over all ranks: mostly at least the rows' own, some of them bad.
fn maxima(rng: &mut Rng, dtype: DType, values: &[f32], vocab: usize, wild: usize) -> Vec<f32> {
    let rounded = |x: f32| match dtype {
        DType::F16 => f16::from_f32(x).to_f32(),
        DType::BF16 => bf16::from_f32(x).to_f32(),
        _ => x,
    };
    let rows = values.chunks(vocab).map(|row| {
        let own = row.iter().copied().map(rounded).fold(f32::NEG_INFINITY, f32::max);
        match rng.below(4) {
            _ if rng.chance(wild) => {
                let far = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, own - 1.0, -0.0, f32::MAX];
                rng.pick(&far)
            }
            0 => own + rng.unit() * 4.0,
            1 => own + 40.0,
            _ => own,
        }
    });
    rows.collect()
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
