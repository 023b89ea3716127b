use serde_json::Value;

use crate::conformance::Rng;
use crate::conformance::case::{Argument, Case, Missing, Recomposed, Rows, Source, Subject};
use crate::conformance::tensor::Tensor;
use crate::ops::rejection_sample::{
    Acceptance, Arguments, Buffers, Recovery, RejectionSample, Tensors,
};
use crate::{DType, TensorDesc, View, ViewMut};

fn arguments<I, O>(from: &mut impl Source<I, O>) -> Result<Arguments<I, O>, Missing> {
    Ok(Arguments {
        target_probs: from.input("target_probs")?,
        draft_probs: from.maybe_input("draft_probs"),
        draft_token_ids: from.input("draft_token_ids")?,
        bonus_token_ids: from.input("bonus_token_ids")?,
        cu_num_draft: from.input("cu_num_draft")?,
        uniform_samples: from.maybe_input("uniform_samples"),
        seed_offset: from.maybe_input("seed_offset"),
        output_token_ids: from.output("output_token_ids")?,
        num_accepted: from.output("num_accepted")?,
        accepted_counts: from.output("accepted_counts")?,
        recovered_counts: from.output("recovered_counts")?,
        bonus_counts: from.output("bonus_counts")?,
        flags: from.maybe_output("flags"),
    })
}

const PER_REQUEST: [&str; 5] =
    ["output_token_ids", "num_accepted", "accepted_counts", "recovered_counts", "bonus_counts"];

impl Subject for RejectionSample {
    const GOLDEN: &'static str = include_str!("../../../tests/golden/rejection_sample.json");
    const ARGUMENTS: &'static [&'static str] = &[
        "target_probs",
        "draft_probs",
        "draft_token_ids",
        "bonus_token_ids",
        "cu_num_draft",
        "uniform_samples",
        "seed_offset",
        "output_token_ids",
        "num_accepted",
        "accepted_counts",
        "recovered_counts",
        "bonus_counts",
        "flags",
    ];

    fn tensors(source: &mut impl Source<TensorDesc, TensorDesc>) -> Result<Tensors, Missing> {
        arguments(source)
    }

    fn buffers<'a>(
        source: &mut impl Source<View<'a>, ViewMut<'a>>,
    ) -> Result<Buffers<'a>, Missing> {
        arguments(source)
    }

    fn params(params: &Value) -> Option<Self> {
        Some(RejectionSample {
            max_spec_len: usize::try_from(params["max_spec_len"].as_u64()?).ok()?,
            acceptance: match params["acceptance"].as_str()? {
                "probabilistic" => Acceptance::Probabilistic,
                "greedy" => Acceptance::Greedy,
                _ => return None,
            },
            recovery: match params["recovery"].as_str()? {
                "argmax" => Recovery::Argmax,
                "sample" => Recovery::Sample,
                _ => return None,
            },
        })
    }

    /// Seed and offset are parameters in the file.
    fn complete(case: &mut Case<Self>, params: &Value) {
        let word = |name: &str| params[name].as_u64().unwrap_or(0);
        let seed_offset = Tensor::vector(vec![word("seed"), word("offset")]);
        *case = case.clone().input("seed_offset", seed_offset);
    }

    fn random(rng: &mut Rng) -> Case<Self> {
        let vocab = match rng.below(12) {
            0 => 1,
            1 => rng.between(20_000, 40_000),
            2 | 3 => rng.between(1000, 6000),
            _ => rng.between(2, 300),
        };
        let longest = if rng.chance(8) { 12 } else { 6 };
        let batch = if vocab > 10_000 { rng.between(0, 3) } else { rng.size(32) };
        let lens: Vec<usize> = (0..batch).map(|_| rng.below(longest + 1)).collect();
        let tokens = lens.iter().sum();
        let (float, id, offset) = (rng.float_dtype(), rng.int_dtype(), rng.int_dtype());
        let operator = RejectionSample {
            max_spec_len: if rng.chance(4) { rng.below(longest + 1) } else { longest },
            acceptance: rng.pick(&[
                Acceptance::Probabilistic,
                Acceptance::Probabilistic,
                Acceptance::Greedy,
            ]),
            recovery: rng.pick(&[Recovery::Argmax, Recovery::Sample]),
        };
        let wild = rng.pick(&[10, 1_000_000]);
        let (target, draft) = probabilities(rng, tokens, vocab, wild);
        let drafts = draft_tokens(rng, &draft, tokens, vocab, wild);
        let bonus = (0..batch).map(|_| token(rng, vocab, wild)).collect();
        let given = rng.chance(2);
        let output_cols = operator.max_spec_len + 1;
        let mut case = Case::new(operator)
            .input("target_probs", Tensor::matrix(Rng::floats(float, target), tokens, vocab));
        if rng.chance(3) {
            case =
                case.input("draft_probs", Tensor::matrix(Rng::floats(float, draft), tokens, vocab));
        }
        if given {
            let draws = (0..tokens).map(|_| uniform(rng, wild)).collect::<Vec<f32>>();
            case = case.input("uniform_samples", Tensor::vector(draws));
        }
        let word = |rng: &mut Rng| rng.next() >> rng.pick(&[0, 40, 63]);
        let seed_offset = vec![word(rng), word(rng)];
        case = case
            .input("draft_token_ids", Tensor::vector(Rng::integers(id, drafts)))
            .input("bonus_token_ids", Tensor::vector(Rng::integers(id, bonus)))
            .input("cu_num_draft", Tensor::vector(Rng::integers(offset, offsets(rng, &lens, wild))))
            .input("seed_offset", Tensor::vector(seed_offset))
            .output("output_token_ids", DType::I32, &[batch, output_cols]);
        for name in &PER_REQUEST[1..] {
            case = case.output(name, DType::I32, &[batch]);
        }
        case.in_place("flags", Tensor::vector(rng.flags()))
    }

    /// The first requests alone.
    fn recomposed(case: &Case<Self>, rng: &mut Rng) -> Recomposed<Self> {
        let batch = case.get("bonus_token_ids").map_or(0, Tensor::rows);
        let kept = rng.between(0, batch);
        let case = case.map(|Argument { name, tensor, .. }| match *name {
            "bonus_token_ids" => tensor.head(kept),
            "cu_num_draft" => tensor.head(kept + 1),
            name if PER_REQUEST.contains(&name) => tensor.head(kept),
            _ => tensor.clone(),
        });
        let rows = Rows::Of((0..kept).collect());
        Recomposed { case, rows: PER_REQUEST.map(|name| (name, rows.clone())).to_vec() }
    }
}

/// Rows of target and draft probabilities in one of several styles.
fn probabilities(rng: &mut Rng, tokens: usize, vocab: usize, wild: usize) -> (Vec<f32>, Vec<f32>) {
    let style = rng.below(5);
    let closeness = rng.pick(&[0.0, 0.1, 1.0]);
    let (mut target, mut draft) = (Vec::new(), Vec::new());
    for _ in 0..tokens {
        let logits: Vec<f32> = (0..vocab)
            .map(|_| match style {
                // Few distinct values: ties.
                0 => rng.below(3) as f32,
                // Most of the weight on few tokens.
                1 => rng.normal() * 12.0,
                _ => rng.normal() * 2.0,
            })
            .collect();
        let near = logits.iter().map(|x| x + rng.normal() * closeness).collect();
        target.extend(softmax(logits));
        draft.extend(softmax(near));
    }
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
    }
    (target, draft)
}

fn softmax(logits: Vec<f32>) -> Vec<f32> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f32> = logits.into_iter().map(|x| (x - max).exp()).collect();
    let sum: f32 = weights.iter().sum();
    weights.into_iter().map(|weight| weight / sum).collect()
}

/// A draft token for each row: often its likeliest, so that some are accepted.
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

/// A token, seldom one outside the vocabulary.
fn token(rng: &mut Rng, vocab: usize, wild: usize) -> i64 {
    if rng.chance(wild) {
        let vocab = vocab as i64;
        rng.pick(&[-1, vocab, i64::from(i32::MAX), i64::from(i32::MIN), 1 << 32, i64::MAX])
    } else {
        rng.below(vocab) as i64
    }
}

fn uniform(rng: &mut Rng, wild: usize) -> f32 {
    if rng.chance(wild) {
        rng.pick(&[f32::NAN, f32::INFINITY, 1.0 - f32::EPSILON / 2.0, 0.0, 1e-40])
    } else {
        rng.unit()
    }
}

/// Offsets of requests with that many drafts, a few of them bad.
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
    if rng.chance(wild) {
        offsets[0] = rng.pick(&[-1, 1]);
    }
    offsets
}
