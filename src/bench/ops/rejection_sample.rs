//! Random distributions, of which every request rejects one draft.

use crate::bench::inputs::{random, seed};
use crate::bench::shape::{Fields, ShapeError};
use crate::bench::work::Work;
use crate::bench::{Entry, Goal, Measured, Words};
use crate::conformance::Rng;
use crate::conformance::case::Case;
use crate::conformance::tensor::Tensor;
use crate::ops::RejectionSample;
use crate::ops::rejection_sample::Recovery;
use crate::{DType, bf16, f16};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    batch: usize,
    drafts: usize,
    vocab: usize,
    recovery: Recovery,
    dtype: DType,
}

/// Requests, drafts of each, vocabulary; goals on an H100 in microseconds, for
/// recovery by argmax.
const GOALS: [(usize, usize, usize, f64); 10] = [
    (1, 8, 32_000, 3.8),
    (32, 8, 32_000, 6.0),
    (1, 8, 50_257, 4.0),
    (32, 8, 50_257, 8.0),
    (1, 8, 128_256, 4.5),
    (8, 8, 128_256, 7.0),
    (32, 8, 128_256, 16.0),
    (1, 8, 151_936, 5.0),
    (32, 8, 151_936, 18.0),
    (256, 4, 151_936, 115.0),
];

/// Recovery by sampling shall take at most so many times what argmax takes.
const SAMPLE_TO_ARGMAX: f64 = 1.4;

/// Inputs beyond this do not come to the operator in a GPU's cache.
const CACHE: u64 = 48 << 20;

impl Measured for RejectionSample {
    type Shape = Shape;

    fn table() -> Vec<Entry<Shape>> {
        let mut table = Vec::new();
        for (batch, drafts, vocab, goal) in GOALS {
            let dtype = DType::F32;
            let shape = |recovery| Shape { batch, drafts, vocab, recovery, dtype };
            let argmax = Entry::goal(shape(Recovery::Argmax), goal);
            let other = Self::words(&argmax.shape).shape;
            let goal = Goal::Times(SAMPLE_TO_ARGMAX, other);
            let sample = Entry { goal, ..Entry::plain(shape(Recovery::Sample)) };
            let quick = (batch, vocab) == (8, 128_256);
            table.extend([argmax, sample].map(|entry| entry.quick_if(quick)));
        }
        table
    }

    fn parse(fields: &mut Fields<'_>) -> Result<Shape, ShapeError> {
        Ok(Shape {
            batch: fields.number("batch", 32, 1..=1 << 16)?,
            drafts: fields.number("drafts", 8, 1..=1024)?,
            vocab: fields.number("vocab", 128_256, 2..=1 << 22)?,
            recovery: fields
                .word("recovery", &[("argmax", Recovery::Argmax), ("sample", Recovery::Sample)])?,
            dtype: fields.dtype(&[DType::F32, DType::F16, DType::BF16])?,
        })
    }

    fn words(shape: &Shape) -> Words {
        let Shape { batch, drafts, vocab, recovery, dtype } = shape;
        let mut kind = match recovery {
            Recovery::Argmax => "argmax".to_owned(),
            Recovery::Sample => "sample".to_owned(),
        };
        if *dtype != DType::F32 {
            kind += &format!(", {dtype}");
        }
        Words {
            shape: format!("{batch} x {drafts}, {vocab}, {kind}"),
            series: format!("{batch} x {drafts}, {kind}"),
            size: *vocab as f64,
            unit: "tokens of the vocabulary",
        }
    }

    fn memory(shape: &Shape) -> u64 {
        (2 * shape.batch * shape.drafts * shape.vocab * shape.dtype.size()) as u64
    }

    fn work(shape: &Shape) -> Result<Work<Self>, String> {
        Ok(match shape.dtype {
            DType::F16 => work(shape, f16::from_f32, f16::to_f32),
            DType::BF16 => work(shape, bf16::from_f32, bf16::to_f32),
            _ => work(shape, |p| p, |p| p),
        })
    }
}

fn work<T>(shape: &Shape, narrow: fn(f32) -> T, wide: fn(T) -> f32) -> Work<RejectionSample>
where
    T: crate::Element,
    crate::conformance::tensor::Data: From<Vec<T>>,
{
    let Shape { batch, drafts, vocab, recovery, dtype } = *shape;
    let tokens = batch * drafts;
    let seed = seed(&[batch, drafts, vocab]);
    // Uniform, over what they add up to on average: flat distributions, as a
    // high temperature has them, whose every entry counts.
    let scale = 2.0 / vocab as f32;
    let [target, draft] =
        [seed, !seed].map(|seed| random(seed, tokens * vocab, |rng| narrow(rng.unit() * scale)));
    let mut rng = Rng::new(seed, "drafts");
    let mut ids: Vec<i32> = Vec::with_capacity(tokens);
    for _ in 0..batch {
        let rejected = rng.below(drafts);
        for position in 0..drafts {
            let row = ids.len() * vocab;
            let [p_target, p_draft] =
                [&target, &draft].map(|probs| |id: usize| wide(probs[row + id]));
            // Draws are 0.9 and more: what is likelier in the target is accepted,
            // what is clearly less likely is not.
            let fits = |id: usize| match position.cmp(&rejected) {
                std::cmp::Ordering::Less => p_target(id) > p_draft(id),
                std::cmp::Ordering::Equal => p_target(id) < 0.8 * p_draft(id),
                std::cmp::Ordering::Greater => true,
            };
            let mut id = rng.below(vocab);
            while !fits(id) {
                id = rng.below(vocab);
            }
            ids.push(id as i32);
        }
    }
    let bonus: Vec<i32> = (0..batch).map(|_| rng.below(vocab) as i32).collect();
    let offsets: Vec<i32> = (0..=batch).map(|b| (b * drafts) as i32).collect();
    let uniform: Vec<f32> = (0..tokens).map(|_| 0.9 + 0.1 * rng.unit()).collect();
    let mut case = Case::new(RejectionSample { recovery, ..RejectionSample::lossless(drafts) })
        .input("target_probs", Tensor::matrix(target, tokens, vocab))
        .input("draft_probs", Tensor::matrix(draft, tokens, vocab))
        .input("draft_token_ids", Tensor::vector(ids))
        .input("bonus_token_ids", Tensor::vector(bonus))
        .input("cu_num_draft", Tensor::vector(offsets))
        .input("uniform_samples", Tensor::vector(uniform))
        .input("seed_offset", Tensor::vector(vec![seed, 6]))
        .output("output_token_ids", DType::I32, &[batch, drafts + 1]);
    for name in ["num_accepted", "accepted_counts", "recovered_counts", "bonus_counts"] {
        case = case.output(name, DType::I32, &[batch]);
    }
    // The row of the rejected token, of both distributions, for every request;
    // what else is read and written is too little to count.
    let bytes = (2 * batch * vocab * dtype.size()) as u64;
    // All rows were just computed, yet are too large for a cache to hold; those
    // that are read might fit.
    let rotated = RejectionSample::memory(shape) > CACHE;
    Work::new(case, bytes).rotated(rotated)
}
