//! Logits of requests with every penalty on, at the ends of texts of some length.

use crate::baselines::Designs;
use crate::inputs::seed;
use crate::shape::{Fields, ShapeError};
use crate::work::Work;
use crate::{Entry, Measured, Words};
use spec::DType;
use spec::ops::AdjustLogits;
use spec_conformance::{Case, Rng, Tensor};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Rows, each of a request of its own.
    rows: usize,
    /// Tokens of each text, half of them the prompt.
    text: usize,
    vocab: usize,
}

const STOPS: usize = 2;
const BIASES: usize = 8;
/// Words of each request, and tokens of each word.
const WORDS: usize = 4;
const WORD: usize = 3;
/// Bytes that memory moves for one logit.
const SECTOR: usize = 32;

impl Designs for AdjustLogits {}

impl Measured for AdjustLogits {
    type Shape = Shape;

    const SMALL: &str = "rows=3,text=200,vocab=1000";

    fn table() -> Vec<Entry<Shape>> {
        let row = |rows, text| Shape { rows, text, vocab: 128_256 };
        vec![
            Entry::plain(row(1, 4096)),
            Entry::goal(row(32, 4096), 6.0).quick_if(true),
            Entry::goal(row(256, 2048), 8.0),
            Entry::plain(row(32, 32_768)),
        ]
    }

    fn parse(fields: &mut Fields<'_>) -> Result<Shape, ShapeError> {
        Ok(Shape {
            rows: fields.number("rows", 32, 1..=1 << 12)?,
            text: fields.number("text", 4096, 1..=1 << 18)?,
            vocab: fields.number("vocab", 128_256, 2..=1 << 20)?,
        })
    }

    fn words(shape: &Shape) -> Words {
        let series = format!("texts of {}, bf16 of {}", shape.text, shape.vocab);
        Words {
            shape: format!("{} rows, {series}", shape.rows),
            series,
            size: shape.rows as f64,
            unit: "rows",
        }
    }

    /// The texts, and a sector read and written for each logit that is touched, as if no token
    /// stood twice.
    fn memory(shape: &Shape) -> u64 {
        let touched = (shape.text + STOPS + BIASES + WORDS).min(shape.vocab);
        (shape.rows * (shape.text * 4 + touched * 2 * SECTOR)) as u64
    }

    fn work(shape: &Shape) -> Result<Work<Self>, String> {
        let Shape { rows, text, vocab } = *shape;
        let rng = &mut Rng::new(seed(&[rows, text, vocab]), "adjust_logits");
        let logits = (0..rows * vocab).map(|_| 3.0 * rng.normal()).collect();
        let mut tokens =
            |count: usize| -> Vec<i32> { (0..count).map(|_| rng.below(vocab) as i32).collect() };
        let (texts, stops) = (tokens(rows * text), tokens(rows * STOPS));
        let (biased, words) = (tokens(rows * BIASES), tokens(rows * WORDS * WORD));
        let mut penalties =
            |from: f32| -> Vec<f32> { (0..rows).map(|_| from + rng.unit()).collect() };
        let (repetition, frequency) = (penalties(1.01), penalties(0.01));
        let (presence, values) = (penalties(0.01), vec![0.5f32; rows * BIASES]);
        let offsets = |parts: usize, of: usize| -> Vec<i32> {
            (0..=parts).map(|part| (part * of) as i32).collect()
        };
        let case = Case::new(AdjustLogits::new())
            .in_place("logits", Tensor::matrix(Rng::floats(DType::BF16, logits), rows, vocab))
            .input("tokens", Tensor::matrix(texts, rows, text))
            .input("prompt_lengths", Tensor::vector(vec![(text / 2) as i32; rows]))
            .input("lengths", Tensor::vector(vec![text as i32; rows]))
            .input("bias_offsets", Tensor::vector(offsets(rows, BIASES)))
            .input("bias_tokens", Tensor::vector(biased))
            .input("bias_values", Tensor::vector(values))
            .input("repetition", Tensor::vector(repetition))
            .input("frequency", Tensor::vector(frequency))
            .input("presence", Tensor::vector(presence))
            .input("min_tokens", Tensor::vector(vec![text as i32; rows]))
            .input("stop_tokens", Tensor::matrix(stops, rows, STOPS))
            .input("bad_offsets", Tensor::vector(offsets(rows, WORDS)))
            .input("word_offsets", Tensor::vector(offsets(rows * WORDS, WORD)))
            .input("word_tokens", Tensor::vector(words))
            .input("no_repeat_ngram", Tensor::vector(vec![3i32; rows]));
        Ok(Work::new(case, Self::memory(shape)))
    }
}
