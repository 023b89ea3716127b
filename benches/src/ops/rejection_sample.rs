//! Random distributions. Either every request rejects one draft or no request does;
//! either all requests sample or every other request is greedy.

use crate::inputs::{random, seed};
use crate::shape::{Fields, ShapeError};
use crate::work::Work;
use crate::{Entry, Goal, Measured, Words};
use spec::exact::accepts;
use spec::ops::RejectionSample;
use spec::ops::rejection_sample::Recovery;
use spec::philox::{Draw, Purpose};
use spec::{DType, bf16, f16};
use spec_conformance::Case;
use spec_conformance::Rng;
use spec_conformance::Tensor;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    batch: usize,
    drafts: usize,
    vocab: usize,
    recovery: Recovery,
    dtype: DType,
    case: Requests,
}

/// Whether requests reject a draft, and how they draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Requests {
    /// Every request rejects one draft; uniform samples are given.
    Reject,
    /// All drafts are accepted; samples are drawn from seeds and positions.
    Accept,
    /// As `Reject`; every other request is greedy.
    HalfGreedy,
}

/// Requests, drafts per request, the size of the vocabulary, and the goals on an H200 in
/// microseconds for recovery by argmax.
const GOALS: [(usize, usize, usize, f64); 10] = [
    (1, 8, 32_000, 3.0),
    (32, 8, 32_000, 5.0),
    (1, 8, 50_257, 4.0),
    (32, 8, 50_257, 8.0),
    (1, 8, 128_256, 3.5),
    (8, 8, 128_256, 7.0),
    (32, 8, 128_256, 16.0),
    (1, 8, 151_936, 3.6),
    (32, 8, 151_936, 11.5),
    (256, 4, 151_936, 72.0),
];

/// Further rows: the kind of requests and their number, with 8 drafts each.
const OTHERS: [(Requests, usize); 3] =
    [(Requests::Accept, 1), (Requests::Accept, 32), (Requests::HalfGreedy, 32)];

/// The goal of recovery by sampling: at most this many times the time of recovery by argmax.
const SAMPLE_TO_ARGMAX: f64 = 1.4;

/// Larger inputs, in bytes, are not in a GPU's cache when an engine calls the operator.
const CACHE: u64 = 48 << 20;

impl Measured for RejectionSample {
    type Shape = Shape;

    const SMALL: &str = "batch=2,drafts=3,vocab=1000";

    fn table() -> Vec<Entry<Shape>> {
        let mut table = Vec::new();
        for (batch, drafts, vocab, goal) in GOALS {
            let shape = |recovery| Shape {
                batch,
                drafts,
                vocab,
                recovery,
                dtype: DType::F32,
                case: Requests::Reject,
            };
            let argmax = Entry::goal(shape(Recovery::Argmax), goal);
            let other = Self::words(&argmax.shape).shape;
            let goal = Goal::Times(SAMPLE_TO_ARGMAX, other);
            let sample = Entry { goal, ..Entry::plain(shape(Recovery::Sample)) };
            let quick = (batch, vocab) == (8, 128_256);
            table.extend([argmax, sample].map(|entry| entry.quick_if(quick)));
        }
        table.extend(OTHERS.map(|(case, batch)| {
            let (drafts, vocab) = (8, 128_256);
            let (recovery, dtype) = (Recovery::Sample, DType::F32);
            Entry::plain(Shape { batch, drafts, vocab, recovery, dtype, case })
        }));
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
            case: fields.word(
                "requests",
                &[
                    ("reject", Requests::Reject),
                    ("accept", Requests::Accept),
                    ("half-greedy", Requests::HalfGreedy),
                ],
            )?,
        })
    }

    fn words(shape: &Shape) -> Words {
        let Shape { batch, drafts, vocab, recovery, dtype, case } = shape;
        let mut kind = recovery.name().to_owned();
        if *dtype != DType::F32 {
            kind += &format!(", {dtype}");
        }
        kind += match case {
            Requests::Reject => "",
            Requests::Accept => ", all accepted",
            Requests::HalfGreedy => ", half greedy",
        };
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
    T: spec::Element,
    spec_conformance::Data: From<Vec<T>>,
{
    let Shape { batch, drafts, vocab, recovery, dtype, case: requests } = *shape;
    let tokens = batch * drafts;
    let seed = seed(&[batch, drafts, vocab]);
    // Uniform numbers, scaled so that a row adds up to 1 on average: flat distributions, as
    // with a high temperature, in which every entry matters.
    let scale = 2.0 / vocab as f32;
    let [target, draft] =
        [seed, !seed].map(|seed| random(seed, tokens * vocab, |rng| narrow(rng.unit() * scale)));
    let mut rng = Rng::new(seed, "drafts");
    let seeds: Vec<u64> = (0..batch).map(|_| rng.next()).collect();
    let positions: Vec<i64> = (0..batch).map(|_| rng.below(1 << 17) as i64).collect();
    // Given uniform samples are at least 0.9, so that many tokens would be rejected.
    let uniform: Vec<f32> = (0..tokens)
        .map(|token| match requests {
            Requests::Accept => {
                let (request, turn) = (token / drafts, (token % drafts) as i64);
                Draw::at(seeds[request], positions[request] + turn, Purpose::Accept).uniform()
            }
            _ => 0.9 + 0.1 * rng.unit(),
        })
        .collect();
    let greedy: Vec<u8> =
        (0..batch).map(|b| u8::from(requests == Requests::HalfGreedy && b % 2 == 1)).collect();
    let mut ids: Vec<i32> = Vec::with_capacity(tokens);
    // Rows that a call reads: for a rejected token, its rows of both distributions; for a
    // greedy request, the target's rows up to the rejected token.
    let mut rows = 0;
    for &greedy in &greedy {
        let rejected = if requests == Requests::Accept { drafts } else { rng.below(drafts) };
        rows += match (greedy, rejected < drafts) {
            (0, false) => 0,
            (0, true) => 2,
            _ => rejected + 1,
        };
        for turn in 0..drafts {
            let token = ids.len();
            let [row, drafted] = [&target, &draft].map(|probs| &probs[token * vocab..][..vocab]);
            let best = (greedy != 0).then(|| largest(row, wide));
            // Whether a draft `id` is accepted or rejected here as wanted, by the operator's rule.
            let fits = |id: usize| {
                let accepted = match best {
                    Some(best) => id == best,
                    None => accepts(wide(row[id]), wide(drafted[id]), uniform[token]),
                };
                turn > rejected || accepted == (turn < rejected)
            };
            let mut id = best.unwrap_or_else(|| rng.below(vocab));
            while !fits(id) {
                id = rng.below(vocab);
            }
            ids.push(id as i32);
        }
    }
    let bonus: Vec<i32> = (0..batch).map(|_| rng.below(vocab) as i32).collect();
    let offsets: Vec<i32> = (0..=batch).map(|b| (b * drafts) as i32).collect();
    let mut case = Case::new(RejectionSample::lossless(drafts).recovery(recovery))
        .input("target_probs", Tensor::matrix(target, tokens, vocab))
        .input("draft_probs", Tensor::matrix(draft, tokens, vocab))
        .input("draft_token_ids", Tensor::vector(ids))
        .input("bonus_token_ids", Tensor::vector(bonus))
        .input("cu_num_draft", Tensor::vector(offsets))
        .input("seeds", Tensor::vector(seeds))
        .input("positions", Tensor::vector(positions))
        .output("output_token_ids", DType::I32);
    for name in ["num_accepted", "accepted_counts", "recovered_counts", "bonus_counts"] {
        case = case.output(name, DType::I32);
    }
    if requests != Requests::Accept {
        case = case.input("uniform_samples", Tensor::vector(uniform));
    }
    if requests == Requests::HalfGreedy {
        case = case.input("greedy", Tensor::vector(greedy));
    }
    // All other bytes are too few to matter, unless no row is read.
    let bytes = (rows * vocab * dtype.size()).max(2 * tokens * dtype.size()) as u64;
    // In an engine all rows were just computed and exceed the cache. The few rows that a
    // call reads would fit, so the inputs are rotated.
    let rotated = RejectionSample::memory(shape) > CACHE;
    Work::new(case, bytes).rotated(rotated)
}

/// The index of the largest entry of a row; among equal entries, the first.
fn largest<T: Copy>(row: &[T], wide: fn(T) -> f32) -> usize {
    let larger = |best: usize, i: usize| if wide(row[i]) > wide(row[best]) { i } else { best };
    (0..row.len()).fold(0, larger)
}
