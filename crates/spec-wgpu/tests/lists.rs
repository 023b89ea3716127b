//! Compares with plain loops a batch that has both kinds of rows: rows whose cut is found in a
//! list of their entries, and rows for which no list is long enough.

mod common;

use common::{alone, gpus_with_bindings};
use spec_conformance::plain::Plain;
use spec_conformance::{Argument, Case, Layout, Ready, Rng, Subject, Tensor, compare};
use spec_core::ops::{IndexerTopk, SampleLogits};
use spec_core::{DType, Stream, Supports};

/// The relative tolerance of float results; tokens and positions must be equal.
const TOLERANCE: f64 = 2e-5;

fn results<O: Subject, B: Supports<O>>(backend: &B, case: &Case<O>) -> Vec<Argument> {
    let mut ready = Ready::new(backend, case, Layout::PACKED).expect("a kernel");
    ready.enqueue(Stream::default()).expect("a call");
    ready.results(case).expect("results")
}

/// Checks that every form of the backend agrees with plain loops.
fn check<O: Subject>(cases: &[(String, Case<O>)])
where
    Plain: Supports<O>,
    spec_wgpu::Wgpu: Supports<O>,
{
    let _alone = alone();
    let gpus = gpus_with_bindings("small bindings", 1 << 20);
    for (name, case) in cases {
        let expected = results(&Plain::default(), case);
        for (how, gpu) in &gpus {
            let failure = compare(&results(gpu, case), &expected, |_| Some(TOLERANCE));
            assert!(failure.is_none(), "{name}, {how}: {}", failure.expect("a failure"));
        }
    }
}

const VOCAB: usize = 20_000;

/// The distribution of a row of logits.
#[derive(Clone, Copy)]
enum Logits {
    Normal,
    /// Different logits with nearly the same weight.
    Flat,
    Equal,
    /// Few distinct values, each thousands of times.
    Few,
    Ascending,
    /// Thousands of logits far above the others, and close to each other.
    Crowd,
}

impl Logits {
    const ALL: [Logits; 6] = [
        Logits::Normal,
        Logits::Flat,
        Logits::Equal,
        Logits::Few,
        Logits::Ascending,
        Logits::Crowd,
    ];

    fn draw(self, rng: &mut Rng, token: usize) -> f32 {
        match self {
            Logits::Normal => rng.normal() * 2.5,
            Logits::Flat => rng.normal() * 1e-3,
            Logits::Equal => 1.5,
            Logits::Few => rng.below(3) as f32,
            Logits::Ascending => token as f32 * 1e-3,
            Logits::Crowd if token % 4 == 1 => 30.0 + rng.normal() * 0.01,
            Logits::Crowd => rng.normal(),
        }
    }
}

/// Top-k, top-p, min-p.
const FILTERS: [(i32, f32, f32); 11] = [
    (50, 0.9, 0.0),
    (50, 1.0, 0.01),
    // Limits that a whole number of equal weights reaches exactly.
    (100, 0.5, 0.0),
    (0, 0.5, 0.0),
    (0, 0.9, 0.0),
    (0, 0.3, 0.9),
    (0, 0.999_999, 0.0),
    (700, 0.5, 0.0),
    (3000, 0.99, 0.0),
    (19_990, 0.3, 0.01),
    (5000, 1.0, 0.5),
];

#[test]
fn rows_of_logits() {
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::BF16] {
        for min_p_first in [false, true] {
            let mut rng = Rng::new(11, "lists");
            let rows: Vec<_> =
                Logits::ALL.iter().flat_map(|of| FILTERS.map(|filter| (*of, filter))).collect();
            let values = rows
                .iter()
                .flat_map(|(of, _)| (0..VOCAB).map(|v| of.draw(&mut rng, v)).collect::<Vec<_>>())
                .collect();
            let each = |of: fn(&(i32, f32, f32)) -> f32| {
                Tensor::vector(rows.iter().map(|(_, filter)| of(filter)).collect::<Vec<_>>())
            };
            let top_k: Vec<i32> = rows.iter().map(|(_, filter)| filter.0).collect();
            let count = rows.len();
            let case = Case::new(SampleLogits::new().min_p_first(min_p_first))
                .input("logits", Tensor::matrix(Rng::floats(dtype, values), count, VOCAB))
                .input("positions", Tensor::vector((0..count as i64).collect::<Vec<_>>()))
                .input("temperature", Tensor::vector(vec![0.8_f32; count]))
                .input("seeds", Tensor::vector((7..7 + count as u64).collect::<Vec<_>>()))
                .input("top_k", Tensor::vector(top_k))
                .input("top_p", each(|filter| filter.1))
                .input("min_p", each(|filter| filter.2))
                .output("tokens", DType::I32)
                .output("probs", DType::F32);
            cases.push((format!("{dtype}, min_p first {min_p_first}"), case));
        }
    }
    check(&cases);
}

const COLS: usize = 40_000;

#[test]
fn rows_of_scores() {
    let score: [fn(&mut Rng, usize) -> f32; 5] = [
        |rng, _| rng.normal(),
        |_, at| at as f32,
        |_, _| 0.5,
        |rng, _| (rng.normal() - 2.5).max(0.0),
        // The largest scores are at the start of groups, so too many scores reach any bound.
        |rng, at| rng.normal() + if at % 2560 < 400 { 10.0 } else { 0.0 },
    ];
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::BF16] {
        for k in [1, 512, 2048, 4096] {
            let mut rng = Rng::new(12, "lists");
            let values = score
                .iter()
                .flat_map(|of| (0..COLS).map(|at| of(&mut rng, at)).collect::<Vec<_>>())
                .collect();
            let case = Case::new(IndexerTopk::new(k))
                .input("scores", Tensor::matrix(Rng::floats(dtype, values), score.len(), COLS))
                .output("indices", DType::I32);
            cases.push((format!("{dtype}, {k} of a row"), case));
        }
    }
    check(&cases);
}
