//! The shapes of `ngram_match`, with prompt and generated tokens in one row, for the first
//! occurrence (as in `ngram_match`) and for the last occurrence.

use super::ngram::Found::{HighPrompt, Low, Nowhere, Text};
use super::ngram::{DRAFTS, MAX_NGRAM, Requests, Shape as Texts};
use super::ngram_match::GOALS;
use crate::baselines::Designs;
use crate::shape::{Fields, ShapeError};
use crate::work::Work;
use crate::{Entry, Measured, Words};
use spec::DType;
use spec::ops::PromptLookup;
use spec::ops::prompt_lookup::Occurrence::{self, First, Last};
use spec_conformance::Case;

const K: usize = 1024;

/// The time of two launches, in microseconds, by which the goals exceed those of `ngram_match`.
const LAUNCHES: f64 = 4.0;

/// Further shapes: real text, and searches from the other end.
const MORE: [Shape; 8] = [
    Shape::new(16, 8 * K, Text, First),
    Shape::new(16, 8 * K, Text, Last),
    Shape::new(256, 8 * K, Text, Last),
    Shape::new(16, 32 * K, Low, Last),
    Shape::new(16, 32 * K, HighPrompt, Last),
    Shape::new(16, 32 * K, Nowhere, Last),
    Shape::new(256, 128 * K, HighPrompt, Last),
    Shape::new(256, 128 * K, Nowhere, Last),
];

#[derive(Clone, Copy)]
pub(crate) struct Shape {
    texts: Texts,
    which: Occurrence,
}

impl Shape {
    const fn new(
        batch: usize,
        length: usize,
        found: super::ngram::Found,
        which: Occurrence,
    ) -> Self {
        Shape { texts: Texts::new(batch, length, found), which }
    }
}

impl Designs for PromptLookup {}

impl Measured for PromptLookup {
    type Shape = Shape;

    const SMALL: &str = "batch=3,prompt=300,occurrence=last";

    fn table() -> Vec<Entry<Shape>> {
        let goals = GOALS.map(|(batch, length, found, goal)| {
            Entry::goal(Shape::new(batch, length, found, First), goal + LAUNCHES)
        });
        let quick = |shape: &Shape| {
            let Texts { batch, length, found, .. } = shape.texts;
            batch == 16 && (length == 8 * K || length == 32 * K && found == Nowhere)
        };
        goals
            .into_iter()
            .chain(MORE.map(Entry::plain))
            .map(|entry| {
                let quick = quick(&entry.shape);
                entry.quick_if(quick)
            })
            .collect()
    }

    fn parse(fields: &mut Fields<'_>) -> Result<Shape, ShapeError> {
        Ok(Shape { texts: Texts::parse(fields)?, which: fields.choice("occurrence")? })
    }

    fn words(shape: &Shape) -> Words {
        let words = shape.texts.words();
        match shape.which {
            First => words,
            which => {
                let which = format!(", {} occurrence", which.name());
                Words { shape: words.shape + &which, series: words.series + &which, ..words }
            }
        }
    }

    fn memory(shape: &Shape) -> u64 {
        Requests::memory(&shape.texts, false)
    }

    fn work(shape: &Shape) -> Result<Work<Self>, String> {
        let requests = shape.texts.requests()?;
        let operator = PromptLookup::new()
            .min_ngram(1)
            .max_ngram(MAX_NGRAM)
            .max_draft(DRAFTS)
            .occurrence(shape.which);
        let case = Case::new(operator)
            .input("tokens", requests.context(true))
            .input("lengths", requests.lengths(requests.length()))
            .output("drafts", DType::I64)
            .output("counts", DType::I32);
        let bytes = requests.text_bytes(shape.which);
        Ok(Work::new(case, bytes).rotated(shape.texts.cold))
    }
}
