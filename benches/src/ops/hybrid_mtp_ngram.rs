//! The shapes of `ngram_match`, with one draft of a multi-token-prediction head per request.

use super::ngram::Found::{HighGenerated, HighPrompt, Low, Nowhere, Text};
use super::ngram::{DRAFTS, MAX_NGRAM, Requests, Shape};
use crate::shape::{Fields, ShapeError};
use crate::work::Work;
use crate::{Entry, Measured, Words};
use spec::ops::HybridMtpNgram;
use spec_conformance::Case;

const K: usize = 1024;

const SHAPES: [Shape; 10] = [
    Shape::new(32, 512, Low),
    Shape::new(16, 16 * K, Low),
    Shape::new(512, 16 * K, Low),
    Shape::new(16, 32 * K, HighPrompt),
    Shape::new(16, 32 * K, HighGenerated),
    Shape::new(16, 32 * K, Nowhere),
    Shape::new(256, 128 * K, Nowhere),
    Shape::new(16, 8 * K, Text),
    Shape::new(32, 512, Low).bound(),
    Shape::new(512, 512, Low).bound(),
];

/// Tokens that a request already has in this step: its last token and the head's draft.
const HAVE: i32 = 2;

impl Measured for HybridMtpNgram {
    type Shape = Shape;

    const SMALL: &str = "batch=3,prompt=300";

    fn table() -> Vec<Entry<Shape>> {
        let quick = |shape: &Shape| shape.length == 32 * K && shape.found != HighGenerated;
        SHAPES.map(|shape| Entry::plain(shape).quick_if(quick(&shape))).into()
    }

    fn parse(fields: &mut Fields<'_>) -> Result<Shape, ShapeError> {
        Shape::parse_bound(fields)
    }

    fn words(shape: &Shape) -> Words {
        shape.words()
    }

    fn memory(shape: &Shape) -> u64 {
        Requests::memory(shape, false)
    }

    fn work(shape: &Shape) -> Result<Work<Self>, String> {
        let requests = shape.requests()?;
        let operator = HybridMtpNgram::new(DRAFTS)
            .max_ngram_size(MAX_NGRAM)
            .min_ngram_size(1)
            .token_threshold(shape.threshold(HAVE));
        let case = Case::new(operator)
            .input("input_ids", requests.prompts())
            .input("input_ids_len", requests.lengths(requests.prompt))
            .input("pre_ids", requests.context(false))
            .input("step_idx", requests.lengths(requests.steps))
            .in_place("draft_tokens", requests.drafts())
            .in_place("seq_lens_this_time", requests.counts(HAVE))
            .input("seq_lens_decoder", requests.counts(1))
            .input("max_dec_len", requests.max_dec_len());
        Ok(Work::new(case, requests.bytes(shape)).rotated(shape.cold))
    }
}
