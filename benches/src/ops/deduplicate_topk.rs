//! Batch 115, k 2048. Values are positions in a context, numbers from the whole range
//! of i32, or the tokens of a text.

use crate::inputs::{random, seed, text, windows};
use crate::shape::{Fields, ShapeError, words_of};
use crate::work::Work;
use crate::{Entry, Measured, Words};
use spec::DType;
use spec::ops::DeduplicateTopk;
use spec_conformance::Case;
use spec_conformance::Rng;
use spec_conformance::Tensor;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    batch: usize,
    steps: usize,
    k: usize,
    values: Values,
    /// Whether the places of indices are wanted too.
    inverse: bool,
}

/// The kind of values.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Values {
    /// Uniform below a bound.
    Below(usize),
    /// Uniform over all of i32: half of them are negative, which is padding.
    Whole,
    /// Tokens of a text, many of which occur often.
    Text,
}

const BATCH: usize = 115;
const K: usize = 2048;
const POSITIONS: usize = 1 << 17;

/// Rows per request, and the goals on an H200 in microseconds for values below 2^17, for
/// values below 2^20 and for the whole range.
const GOALS: [(usize, f64, f64, f64); 4] =
    [(1, 2.8, 3.2, 4.0), (2, 3.6, 4.0, 5.4), (3, 4.3, 4.7, 7.0), (4, 5.0, 5.4, 8.4)];

/// What the places of indices may take more, in microseconds.
const INVERSE: f64 = 1.0;

/// The goal on an H200 in microseconds for eight rows per request of the whole range.
const MANY_WHOLE: f64 = 20.0;

impl Measured for DeduplicateTopk {
    type Shape = Shape;

    const SMALL: &str = "batch=3,steps=2,k=100,below=500";

    fn table() -> Vec<Entry<Shape>> {
        let mut table = Vec::new();
        for (steps, positions, bounded, whole) in GOALS {
            let shape = |values| Shape { batch: BATCH, steps, k: K, values, inverse: false };
            let quick = steps == 2;
            table.extend([
                Entry::goal(shape(Values::Below(POSITIONS)), positions).quick_if(quick),
                Entry::goal(shape(Values::Below(1 << 20)), bounded),
                Entry::goal(shape(Values::Whole), whole).quick_if(quick),
                Entry::plain(shape(Values::Text)).quick_if(quick),
            ]);
        }
        // More values than go through registers.
        let many = |values| Shape { batch: BATCH, steps: 8, k: K, values, inverse: false };
        table.push(Entry::goal(many(Values::Whole), MANY_WHOLE));
        table.push(Entry::plain(many(Values::Below(POSITIONS))));
        // The places of indices may take a microsecond more.
        let (steps, positions, bounded, whole) = GOALS[1];
        for (values, goal) in [
            (Values::Below(POSITIONS), positions),
            (Values::Below(1 << 20), bounded),
            (Values::Whole, whole),
        ] {
            let shape = Shape { batch: BATCH, steps, k: K, values, inverse: true };
            table.push(Entry::goal(shape, goal + INVERSE));
        }
        table
    }

    fn parse(fields: &mut Fields<'_>) -> Result<Shape, ShapeError> {
        let bound = fields.number("below", POSITIONS, 1..=1 << 31)?;
        Ok(Shape {
            batch: fields.number("batch", BATCH, 1..=1 << 20)?,
            steps: fields.number("steps", 1, 1..=1024)?,
            k: fields.number("k", K, 1..=1 << 20)?,
            values: fields.word(
                "values",
                &[
                    ("below", Values::Below(bound)),
                    ("whole", Values::Whole),
                    ("text", Values::Text),
                ],
            )?,
            inverse: fields.number("inverse", 0, 0..=1)? == 1,
        })
    }

    fn words(shape: &Shape) -> Words {
        let mut series = match shape.values {
            Values::Below(bound) => format!("below {}", words_of(bound)),
            Values::Whole => "whole i32".to_owned(),
            Values::Text => "text".to_owned(),
        };
        if shape.inverse {
            series += ", inverse";
        }
        Words {
            shape: format!("{} x {} x {}, {series}", shape.batch, shape.steps, shape.k),
            series,
            size: (shape.steps * shape.k) as f64,
            unit: "values a request",
        }
    }

    fn memory(shape: &Shape) -> u64 {
        (shape.batch * shape.steps * shape.k) as u64 * if shape.inverse { 12 } else { 8 }
    }

    fn work(shape: &Shape) -> Result<Work<Self>, String> {
        let Shape { batch, steps, k, values, inverse } = *shape;
        let row = steps * k;
        let n = batch * row;
        let seed = seed(&[batch, steps, k]);
        let indices: Vec<i32> = match values {
            Values::Below(bound) => random(seed, n, |rng| rng.below(bound) as i32),
            Values::Whole => random(seed, n, |rng| rng.next() as i32),
            Values::Text => {
                let tokens = windows(&mut Rng::new(seed, "text"), &text()?, batch, row);
                tokens.into_iter().map(u32::cast_signed).collect()
            }
        };
        let case = Case::new(DeduplicateTopk::new().mtp_step(steps))
            .input("indices", Tensor::matrix(indices, batch * steps, k))
            .output("unique", DType::I32);
        let case = match inverse {
            true => case.output("inverse", DType::I32),
            false => case,
        };
        Ok(Work::new(case, Self::memory(shape)))
    }
}
