//! Texts of many requests, to which a decode step appends the verified tokens.

use crate::baselines::Designs;
use crate::inputs::seed;
use crate::shape::{Fields, ShapeError};
use crate::work::Work;
use crate::{Entry, Measured, Words};
use spec::DType;
use spec::ops::AppendTokens;
use spec_conformance::{Case, Rng, Tensor};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    batch: usize,
    /// Drafts of each request. A request emits at most one token more than its drafts.
    drafts: usize,
}

const VOCAB: usize = 128_256;
/// The largest number of tokens in a text.
const MAX_LEN: usize = 4096;
const STOPS: usize = 4;

impl Designs for AppendTokens {}

impl Measured for AppendTokens {
    type Shape = Shape;

    const SMALL: &str = "batch=3,drafts=2";

    fn table() -> Vec<Entry<Shape>> {
        let row = |batch| Shape { batch, drafts: 4 };
        vec![
            Entry::goal(row(1), 1.6),
            Entry::goal(row(256), 1.6).quick_if(true),
            Entry::goal(row(1024), 1.6),
        ]
    }

    fn parse(fields: &mut Fields<'_>) -> Result<Shape, ShapeError> {
        Ok(Shape {
            batch: fields.number("batch", 256, 1..=1 << 16)?,
            drafts: fields.number("drafts", 4, 0..=1 << 10)?,
        })
    }

    fn words(shape: &Shape) -> Words {
        let series = format!("{} drafts", shape.drafts);
        Words {
            shape: format!("{} requests, {series}", shape.batch),
            series,
            size: shape.batch as f64,
            unit: "requests",
        }
    }

    /// Of the texts, only the appended tokens count: no other token is read.
    fn memory(shape: &Shape) -> u64 {
        (shape.batch * (2 * (shape.drafts + 1) + STOPS + 6) * 4) as u64
    }

    /// Texts of random lengths, with i32 for all integers. One request in eight finished in an
    /// earlier step.
    fn work(shape: &Shape) -> Result<Work<Self>, String> {
        let Shape { batch, drafts } = *shape;
        let rng = &mut Rng::new(seed(&[batch, drafts]), "append_tokens");
        let n = drafts + 1;
        let mut tokens =
            |count: usize| -> Vec<i32> { (0..count).map(|_| rng.below(VOCAB) as i32).collect() };
        let (text, new, stops) =
            (tokens(batch * MAX_LEN), tokens(batch * n), tokens(batch * STOPS));
        let lengths: Vec<i32> = (0..batch).map(|_| rng.below(MAX_LEN) as i32).collect();
        let counts: Vec<i32> = (0..batch).map(|_| rng.between(1, n) as i32).collect();
        let finished: Vec<i32> = (0..batch).map(|_| i32::from(rng.chance(8))).collect();
        let case = Case::new(AppendTokens::new())
            .in_place("tokens", Tensor::matrix(text, batch, MAX_LEN))
            .in_place("lengths", Tensor::vector(lengths))
            .input("new_tokens", Tensor::matrix(new, batch, n))
            .input("new_counts", Tensor::vector(counts))
            .input("stop_tokens", Tensor::matrix(stops, batch, STOPS))
            .in_place("finished", Tensor::vector(finished))
            .output("appended", DType::I32)
            .output("last_tokens", DType::I32);
        Ok(Work::new(case, Self::memory(shape)))
    }
}
