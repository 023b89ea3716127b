use crate::Rng;
use crate::argument::Argument;
use crate::case::{Case, Recomposed, Rows, Subject};
use crate::plain;
use crate::tensor::{Data, Tensor};
use half::{bf16, f16};
use spec_core::ops::rejection_sample::{Acceptance, Recovery, RejectionSample};
use spec_core::{DType, Result};

const OUTPUTS: [&str; 5] =
    ["output_token_ids", "num_accepted", "accepted_counts", "recovered_counts", "bonus_counts"];
/// The inputs that have one row for each draft token.
const PER_TOKEN: [&str; 4] = ["target_probs", "draft_probs", "draft_token_ids", "uniform_samples"];

impl Subject for RejectionSample {
    const GOLDEN: &'static str = include_str!("../../golden/rejection_sample.json");

    fn plain(plan: &Self::Plan, buffers: Self::Buffers<'_>) -> Result<()> {
        plain::rejection_sample::run(plan, buffers)
    }

    fn examples() -> Vec<Case<Self>> {
        let target = [
            [0.1, 0.2, 0.3, 0.4],
            [0.7, 0.1, 0.1, 0.1],
            [0.0, 0.0, 0.5, 0.5],
            [0.25; 4],
            [f32::NAN, 0.0, 0.6, 0.4],
        ];
        let draft = [
            [0.1, 0.1, 0.1, 0.7],
            [0.1, 0.1, 0.1, 0.7],
            [1.0, 0.0, 0.0, 0.0],
            [0.25; 4],
            [0.5, 0.5, 0.0, 0.0],
        ];
        // Four requests: the first two have two drafts each, the third has one, the last none.
        let case = |operator| {
            let case = Case::new(operator)
                .input("target_probs", target)
                .input("draft_token_ids", [3, 0, 0, 1, 9])
                .input("bonus_token_ids", [1, 2, 3, 2])
                .input("cu_num_draft", [0, 2, 4, 5, 5])
                .input("uniform_samples", [0.5; 5])
                .output("output_token_ids", DType::I32)
                .in_place("flags", [0_u32]);
            OUTPUTS[1..].iter().fold(case, |case, name| case.output(name, DType::I32))
        };
        let drafted = |operator| {
            let case = case(operator).input("draft_probs", draft);
            case.input("seeds", [1_u64, 2, 3, 4]).input("positions", [7_i64, 100, 0, 12])
        };
        let [argmax, sampled] =
            [RejectionSample::argmax(2), RejectionSample::lossless(2)].map(drafted);
        let mixed = sampled.clone().input("greedy", [0_i8, 1, 0, 0]);
        vec![case(RejectionSample::greedy(2)), argmax, sampled, mixed]
    }

    fn random(rng: &mut Rng) -> Case<Self> {
        let vocab = match () {
            () if rng.rare(500) => rng.between(20_000, 40_000),
            () if rng.rare(100) => rng.between(1000, 6000),
            () if rng.chance(12) => 1,
            () => 1 + rng.size(299),
        };
        let (longest, batch) = match vocab {
            // A request with more drafts than a warp or a workgroup handles in one pass.
            0..=20 if rng.chance(10) => (200, rng.between(0, 4)),
            0..=300 if rng.rare(20) => (rng.pick(&[6, 6, 6, 12]), rng.size(32)),
            0..=10_000 => (rng.pick(&[6, 6, 6, 12]), rng.size(6)),
            _ => (6, rng.between(0, 3)),
        };
        let lens: Vec<usize> = (0..batch).map(|_| rng.below(longest + 1)).collect();
        let tokens = lens.iter().sum();
        let operator =
            RejectionSample::new(if rng.chance(4) { rng.below(longest + 1) } else { longest })
                .acceptance(if rng.chance(4) {
                    Acceptance::Greedy
                } else {
                    Acceptance::Probabilistic
                })
                .recovery(rng.choice());
        let wild = rng.pick(&[10, 1_000_000]);
        let inputs = Inputs::random(rng, tokens, vocab, wild);
        let bonus = (0..batch).map(|_| token(rng, vocab, wild)).collect();
        let offsets = offsets(rng, &lens, wild);
        let (id, output) = (rng.id_dtype(), rng.id_dtype());
        let sampled = operator.acceptance == Acceptance::Probabilistic;
        let given = rng.chance(2);
        let drawn = sampled && (operator.recovery == Recovery::Sample || !given);
        let float = inputs.dtype;
        let mut case = Case::new(operator)
            .input("target_probs", matrix(float, inputs.target, tokens, vocab))
            .input("draft_token_ids", vector(id, inputs.drafts))
            .input("bonus_token_ids", vector(rng.id_dtype(), bonus))
            .input("cu_num_draft", vector(rng.id_dtype(), offsets));
        // Two thirds of the cases have the optional `draft_probs`.
        if !rng.chance(3) {
            case = case.input("draft_probs", matrix(float, inputs.draft, tokens, vocab));
        }
        if given {
            case = case.input("uniform_samples", Tensor::vector(inputs.uniform));
        }
        if drawn || rng.chance(2) {
            let (dtype, positions) = positions(rng, batch);
            let seeds: Vec<u64> =
                (0..batch).map(|_| rng.next() >> rng.pick(&[0, 40, 63])).collect();
            case = case
                .input("seeds", Tensor::vector(seeds))
                .input("positions", vector(dtype, positions));
        }
        if rng.chance(3) {
            let (dtype, truths) = truths(rng, batch);
            case = case.input("greedy", vector(dtype, truths));
        }
        case = case.output(OUTPUTS[0], output);
        for name in &OUTPUTS[1..] {
            case = case.output(name, DType::I32);
        }
        case.in_place("flags", Tensor::vector(rng.flags()))
    }

    /// Some of the requests, in another order, with or without the leading 0.
    fn recomposed(case: &Case<Self>, rng: &mut Rng) -> Recomposed<Self> {
        let tensor = |name| case.get(name).expect("every case has it");
        let (batch, tokens) =
            (tensor("bonus_token_ids").rows(), tensor("draft_token_ids").rows() as i64);
        let mut bounds = integers(&tensor("cu_num_draft").data);
        if bounds.len() == batch {
            bounds.insert(0, 0);
        }
        // Only a request with valid offsets can be moved to another batch.
        let good =
            |b: &usize| 0 <= bounds[*b] && bounds[*b] <= bounds[b + 1] && bounds[b + 1] <= tokens;
        let mut requests: Vec<usize> = rng.permutation(batch).into_iter().filter(good).collect();
        requests.truncate(rng.between(0, batch));
        let (mut rows, mut offsets) = (Vec::new(), vec![0]);
        for &request in &requests {
            rows.extend(bounds[request] as usize..bounds[request + 1] as usize);
            offsets.push(rows.len() as i64);
        }
        if rng.chance(2) {
            offsets.remove(0);
        }
        let case = case.map(|Argument { name, tensor, .. }| match *name {
            "cu_num_draft" => vector(tensor.data.dtype(), offsets.clone()),
            "flags" => tensor.clone(),
            name if PER_TOKEN.contains(&name) => tensor.pick(&rows),
            _ => tensor.pick(&requests),
        });
        let rows = Rows::Of(requests);
        Recomposed { case, rows: OUTPUTS.map(|name| (name, rows.clone())).to_vec() }
    }
}

fn vector(dtype: DType, values: Vec<i64>) -> Tensor {
    Tensor::vector(Rng::integers(dtype, values))
}

fn matrix(dtype: DType, values: Vec<f32>, rows: usize, cols: usize) -> Tensor {
    Tensor::matrix(Rng::floats(dtype, values), rows, cols)
}

fn integers(data: &Data) -> Vec<i64> {
    match data {
        Data::I32(values) => values.iter().map(|&value| i64::from(value)).collect(),
        Data::U32(values) => values.iter().map(|&value| i64::from(value as i32)).collect(),
        Data::I64(values) => values.clone(),
        _ => Vec::new(),
    }
}

/// The style of a case's target and draft probabilities.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// Softmax of random logits; the draft's logits are near the target's.
    Model,
    /// Only a few distinct values, so that most probabilities are equal.
    Few,
    /// Floats from [`odd_float`], with unusual exponents and mantissas.
    Wild,
    /// Probabilities so small that a residual is only a few units of 2^-40.
    Tiny,
    /// No target probability is above 0.
    Negative,
}

/// The inputs of a case that hold one row or one element for each draft token.
struct Inputs {
    dtype: DType,
    target: Vec<f32>,
    draft: Vec<f32>,
    drafts: Vec<i64>,
    uniform: Vec<f32>,
}

impl Inputs {
    fn random(rng: &mut Rng, tokens: usize, vocab: usize, wild: usize) -> Inputs {
        let kinds = [
            Kind::Model,
            Kind::Model,
            Kind::Model,
            Kind::Few,
            Kind::Wild,
            Kind::Tiny,
            Kind::Negative,
        ];
        let kind = rng.pick(&kinds);
        let dtype = rng.float_dtype();
        let (mut target, mut draft) = probabilities(rng, kind, tokens, vocab);
        for values in [&mut target, &mut draft] {
            if tokens > 0 && rng.chance(wild) {
                for _ in 0..rng.between(1, 1 + values.len() / 8) {
                    let at = rng.below(values.len());
                    values[at] = rng.bad_float();
                }
            }
            if tokens > 0 && rng.chance(wild) {
                let (row, fill) = (rng.below(tokens), rng.pick(&[0.0, f32::NAN, 1e-40, 1e-12]));
                values[row * vocab..(row + 1) * vocab].fill(fill);
            }
            values.iter_mut().for_each(|value| *value = rounded(dtype, *value));
        }
        let drafts = draft_tokens(rng, &draft, tokens, vocab, wild);
        let uniform = (0..tokens).map(|_| uniform(rng, kind, wild)).collect();
        let mut inputs = Inputs { dtype, target, draft, drafts, uniform };
        for token in 0..tokens {
            inputs.bring_to_the_bound(rng, token, vocab);
        }
        inputs
    }

    /// For some drafts, moves the target probability to the acceptance bound or to one ulp
    /// beside it, so that the rounding of the comparison decides whether the draft is accepted.
    fn bring_to_the_bound(&mut self, rng: &mut Rng, token: usize, vocab: usize) {
        let id = usize::try_from(self.drafts[token]).unwrap_or(vocab);
        if id >= vocab || !rng.chance(3) {
            return;
        }
        let at = token * vocab + id;
        if rng.chance(2) {
            // An odd factor of 12 bits times an odd factor of 13 bits: a product of 25 bits has
            // one bit more than an f32 holds, and so lies halfway between two floats.
            self.uniform[token] = (rng.below(1 << 12) | 0x801) as f32 / 4096.0;
            let draft = (rng.below(1 << 13) | 0x1001) as f32 / 16_384.0;
            self.draft[at] = rounded(self.dtype, draft);
        }
        let least = self.draft[at].max(1e-10);
        let bound = if rng.chance(2) { least } else { self.uniform[token] * least };
        if bound > 0.0 && bound.is_finite() {
            let near = f32::from_bits(bound.to_bits() + rng.below(3) as u32 - 1);
            self.target[at] = rounded(self.dtype, near);
        }
    }
}

/// The number of the float type `dtype` that is nearest to `value`.
fn rounded(dtype: DType, value: f32) -> f32 {
    match dtype {
        DType::F16 => f16::from_f32(value).to_f32(),
        DType::BF16 => bf16::from_f32(value).to_f32(),
        _ => value,
    }
}

/// Rows of target and draft probabilities.
fn probabilities(rng: &mut Rng, kind: Kind, tokens: usize, vocab: usize) -> (Vec<f32>, Vec<f32>) {
    if kind == Kind::Model {
        return model(rng, tokens, vocab);
    }
    let entry = |rng: &mut Rng| match kind {
        Kind::Few => (rng.below(4) as f32 * 0.25, rng.below(3) as f32 * 0.25),
        Kind::Tiny => (rng.unit() * 2f32.powi(-36), rng.unit() * 2f32.powi(-37)),
        Kind::Negative => (-rng.unit(), rng.unit()),
        _ => {
            let target = odd_float(rng);
            let near = target.to_bits().wrapping_add(rng.below(5) as u32).wrapping_sub(2);
            (target, if rng.chance(3) { f32::from_bits(near) } else { odd_float(rng) })
        }
    };
    (0..tokens * vocab).map(|_| entry(rng)).unzip()
}

/// Softmax of random target logits, and of draft logits that lie near the target logits.
fn model(rng: &mut Rng, tokens: usize, vocab: usize) -> (Vec<f32>, Vec<f32>) {
    let sharpness = rng.pick(&[2.0, 2.0, 12.0]);
    let closeness = rng.pick(&[0.0, 0.1, 1.0]);
    let (mut target, mut draft) = (Vec::new(), Vec::new());
    for _ in 0..tokens {
        let logits: Vec<f32> = (0..vocab).map(|_| rng.normal() * sharpness).collect();
        let near = logits.iter().map(|x| x + rng.normal() * closeness).collect();
        target.extend(softmax(logits));
        draft.extend(softmax(near));
    }
    (target, draft)
}

fn softmax(logits: Vec<f32>) -> Vec<f32> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f32> = logits.into_iter().map(|x| (x - max).exp()).collect();
    let sum: f32 = weights.iter().sum();
    weights.into_iter().map(|weight| weight / sum).collect()
}

/// A float of any sign whose exponent is near that of the smallest float, of the largest float,
/// of 1, or of the bounds between a shader's fast subtraction and its exact subtraction.
fn odd_float(rng: &mut Rng) -> f32 {
    let exponent = rng.pick(&[0, 0, 20, 28, 86, 100, 120, 125, 244, 251]) + rng.below(6) as u32;
    let mantissa = match rng.below(4) {
        0 => 0,
        1 => 0x007F_FFFF,
        2 => 1 << rng.below(23),
        _ => rng.below(1 << 23) as u32,
    };
    let sign = u32::from(rng.chance(6)) << 31;
    f32::from_bits(sign | exponent.min(255) << 23 | mantissa)
}

/// A draft token for each row: often the likeliest token of the row, so that some drafts are
/// accepted.
fn draft_tokens(
    rng: &mut Rng,
    draft: &[f32],
    tokens: usize,
    vocab: usize,
    wild: usize,
) -> Vec<i64> {
    (0..tokens)
        .map(|row| {
            if rng.chance(4) {
                return token(rng, vocab, wild);
            }
            let row = &draft[row * vocab..(row + 1) * vocab];
            let best = row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
            best.map_or(0, |(token, _)| token as i64)
        })
        .collect()
}

/// A random token; one in `wild` lies outside the vocabulary.
fn token(rng: &mut Rng, vocab: usize, wild: usize) -> i64 {
    if rng.chance(wild) {
        let vocab = vocab as i64;
        rng.pick(&[-1, vocab, i64::from(i32::MAX), i64::from(i32::MIN), 1 << 32, i64::MAX])
    } else {
        rng.below(vocab) as i64
    }
}

fn uniform(rng: &mut Rng, kind: Kind, wild: usize) -> f32 {
    if rng.chance(wild) {
        rng.pick(&[f32::NAN, f32::INFINITY, 1.0 - f32::EPSILON / 2.0, 0.0, 1e-40])
    } else if kind == Kind::Wild && rng.chance(6) {
        odd_float(rng)
    } else {
        rng.unit()
    }
}

/// Positions of any size and sign, some near `i32::MAX` or `i64::MAX`, where positions wrap around.
fn positions(rng: &mut Rng, batch: usize) -> (DType, Vec<i64>) {
    let dtype = rng.int_dtype();
    let start = |rng: &mut Rng| match rng.below(6) {
        0 => -(rng.below(8) as i64),
        1 => i64::from(i32::MAX) - rng.below(4) as i64,
        2 => i64::MAX - rng.below(4) as i64,
        3 => rng.next() as i64,
        _ => rng.below(1 << 20) as i64,
    };
    (dtype, (0..batch).map(|_| start(rng)).collect())
}

/// Truth values: 0 for false; 1 or another nonzero value for true.
fn truths(rng: &mut Rng, batch: usize) -> (DType, Vec<i64>) {
    let (dtype, odd) = rng.pick(&[(DType::I32, 256), (DType::I8, -1), (DType::U8, 128)]);
    let often = rng.pick(&[1, 2, 5]);
    let one = |rng: &mut Rng| if rng.chance(often) { rng.pick(&[1, 1, odd]) } else { 0 };
    (dtype, (0..batch).map(|_| one(rng)).collect())
}

/// The cumulative offsets of requests with `lens` drafts, with or without the leading 0. One
/// offset in `wild` is invalid.
fn offsets(rng: &mut Rng, lens: &[usize], wild: usize) -> Vec<i64> {
    let mut offsets = vec![0];
    let mut end = 0;
    for len in lens {
        end += *len as i64;
        let bad = rng.chance(wild).then(|| {
            let far = [-1, 0, i64::from(i32::MAX), i64::from(i32::MIN), i64::MAX, i64::MIN];
            rng.pick(&far)
        });
        offsets.push(bad.unwrap_or(end));
    }
    if rng.chance(3) {
        offsets.remove(0);
    } else if rng.chance(wild) {
        offsets[0] = rng.pick(&[-1, 1]);
    }
    offsets
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::Tensor;
    use crate::tests::{balanced, flags, integers, results, share};
    use spec_core::DType;

    #[test]
    fn random_rejections_get_everywhere() {
        let runs = results::<RejectionSample>(300);
        assert_eq!(flags(&runs), 7);
        let all = |name| runs.iter().flat_map(move |(_, results)| integers(results, name));
        balanced(share(all("accepted_counts").map(|n| n > 0)), "requests that accept");
        balanced(share(all("recovered_counts").map(|n| n > 0)), "requests that recover");
        balanced(share(all("bonus_counts").map(|n| n > 0)), "requests with a bonus");
        let given = |name| share(runs.iter().map(|(case, _)| case.get(name).is_some()));
        balanced(given("draft_probs"), "cases with draft_probs");
        balanced(given("uniform_samples"), "cases with uniform_samples");
        balanced(given("seeds"), "cases with seeds");
        balanced(given("greedy"), "cases with greedy requests");
        let bare = |(case, _): &(Case<RejectionSample>, _)| {
            let rows = |name| case.get(name).map(Tensor::rows);
            rows("cu_num_draft") == rows("bonus_token_ids")
        };
        balanced(share(runs.iter().map(bare)), "offsets without a leading 0");
        for name in ["draft_token_ids", "bonus_token_ids", "cu_num_draft", "output_token_ids"] {
            for dtype in [DType::I32, DType::U32, DType::I64] {
                let is = |(case, _): &(Case<RejectionSample>, _)| {
                    case.get(name).is_some_and(|ids| ids.data.dtype() == dtype)
                };
                balanced(share(runs.iter().map(is)), name);
            }
        }
        let good = runs.iter().map(|(_, results)| integers(results, "flags")[0] & 0xFF == 0);
        balanced(share(good), "cases without bad data");
    }
}
