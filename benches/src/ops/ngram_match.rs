//! The shapes of the operator's write-up, and real text.

use super::ngram::Found::{HighGenerated, HighPrompt, Low, Nowhere, Text};
use super::ngram::{DRAFTS, Found, MAX_NGRAM, Requests, Shape};
use crate::shape::{Fields, ShapeError};
use crate::work::Work;
use crate::{Entry, Measured, Words};
use spec::ops::NgramMatch;
use spec_conformance::Case;

const K: usize = 1024;

/// Requests, tokens, the place of the pattern, and the goals on an H200 in microseconds.
pub(super) const GOALS: [(usize, usize, Found, f64); 20] = [
    (32, 512, Low, 2.7),
    (16, K, Low, 2.7),
    (16, 4 * K, Low, 2.7),
    (16, 16 * K, Low, 2.7),
    (16, 64 * K, Low, 3.4),
    (16, 128 * K, Low, 3.6),
    (1, 16 * K, Low, 2.6),
    (8, 16 * K, Low, 3.0),
    (32, 16 * K, Low, 3.2),
    (128, 16 * K, Low, 4.0),
    (512, 16 * K, Low, 7.0),
    (16, 32 * K, HighPrompt, 3.6),
    (16, 32 * K, HighGenerated, 3.6),
    (16, 32 * K, Nowhere, 3.6),
    (256, 128 * K, Low, 9.0),
    (256, 128 * K, HighPrompt, 105.0),
    (256, 128 * K, Nowhere, 68.0),
    (128, 512, Low, 2.9),
    (512, 512, Low, 3.3),
    (1024, 512, Low, 4.0),
];

/// Further shapes: real text, tokens that are in no cache, a budget that binds, requests that
/// encode.
const MORE: [Shape; 12] = [
    Shape::new(16, 8 * K, Text),
    Shape::new(256, 8 * K, Text),
    Shape { cold: true, ..Shape::new(16, 32 * K, Nowhere) },
    Shape { cold: true, ..Shape::new(16, 32 * K, HighPrompt) },
    Shape::new(8, 32 * K, Low).bound(),
    Shape::new(128, 32 * K, Low).bound(),
    Shape::new(32, 512, Low).bound(),
    Shape::new(128, 512, Low).bound(),
    Shape::new(1024, 512, Low).bound(),
    Shape::new(128, 512, Low).mixed(),
    Shape::new(1024, 512, Low).mixed(),
    Shape::new(128, 512, Low).mixed().bound(),
];

impl Measured for NgramMatch {
    type Shape = Shape;

    const SMALL: &str = "batch=3,prompt=300,found=text";

    fn table() -> Vec<Entry<Shape>> {
        let quick = |shape: &Shape| {
            let known = (shape.batch, shape.length, shape.cold);
            known == (16, 32 * K, false) || known == (16, 8 * K, false)
        };
        let goals = GOALS.map(|(batch, length, found, goal)| {
            Entry::goal(Shape::new(batch, length, found), goal)
        });
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
        Shape::parse_mixed(fields)
    }

    fn words(shape: &Shape) -> Words {
        shape.words()
    }

    fn memory(shape: &Shape) -> u64 {
        Requests::memory(shape, true)
    }

    fn work(shape: &Shape) -> Result<Work<Self>, String> {
        let requests = shape.requests()?;
        let [encoder, this_time] = shape.encoding();
        let operator =
            NgramMatch::new().max_ngram_size(MAX_NGRAM).token_threshold(shape.threshold(1));
        let case = Case::new(operator)
            .input("input_ids", requests.prompts())
            .input("input_ids_len", requests.lengths(requests.prompt))
            .input("token_ids_all", requests.context(true))
            .input("prompt_lens", requests.lengths(requests.prompt))
            .input("step_idx", requests.lengths(requests.steps))
            .input("draft_token_num", requests.counts(DRAFTS as i32))
            .in_place("draft_tokens", requests.drafts())
            .in_place("seq_lens_this_time", this_time)
            .input("seq_lens_encoder", encoder)
            .input("seq_lens_decoder", requests.counts(1))
            .input("max_dec_len", requests.max_dec_len());
        Ok(Work::new(case, requests.bytes(shape)).rotated(shape.cold))
    }
}
