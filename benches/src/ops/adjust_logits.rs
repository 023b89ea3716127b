//! Logits of requests with every penalty on, at the ends of texts of some length; and the same with
//! DRY in the place of n-grams that must not repeat, or with a thinking budget.

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
    rule: Rule,
}

/// The rule that searches the texts.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Rule {
    /// N-grams of three tokens must not repeat.
    Ngram,
    /// DRY on texts in which hardly a sequence repeats.
    Dry,
    /// DRY on texts that repeat themselves after a number of tokens.
    DryRepeats,
    /// N-grams, and a thinking budget that is used up, whose start is the first token of each text.
    Think,
}

const RULES: [(&str, Rule); 4] = [
    ("ngram", Rule::Ngram),
    ("dry", Rule::Dry),
    ("dry-repeats", Rule::DryRepeats),
    ("think", Rule::Think),
];

/// After how many tokens a text repeats itself.
const PERIOD: usize = 500;
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
        let of = |rows, text, rule| Shape { rows, text, vocab: 128_256, rule };
        let row = |rows, text| of(rows, text, Rule::Ngram);
        vec![
            Entry::plain(row(1, 4096)),
            Entry::goal(row(32, 4096), 6.0).quick_if(true),
            Entry::goal(row(256, 2048), 8.0),
            Entry::plain(row(32, 32_768)),
            Entry::plain(of(1, 4096, Rule::Dry)),
            Entry::goal(of(32, 4096, Rule::Dry), 8.0),
            Entry::plain(of(32, 4096, Rule::DryRepeats)),
            Entry::plain(of(256, 2048, Rule::Dry)),
            Entry::plain(of(32, 4096, Rule::Think)),
        ]
    }

    fn parse(fields: &mut Fields<'_>) -> Result<Shape, ShapeError> {
        Ok(Shape {
            rows: fields.number("rows", 32, 1..=1 << 12)?,
            text: fields.number("text", 4096, 1..=1 << 18)?,
            vocab: fields.number("vocab", 128_256, 2..=1 << 20)?,
            rule: fields.word("rule", &RULES)?,
        })
    }

    fn words(shape: &Shape) -> Words {
        let rule = match shape.rule {
            Rule::Ngram => "",
            Rule::Dry => ", DRY",
            Rule::DryRepeats => " that repeat, DRY",
            Rule::Think => ", thinking budget",
        };
        let series = format!("texts of {}{rule}, bf16 of {}", shape.text, shape.vocab);
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
        let Shape { rows, text, vocab, rule } = *shape;
        let rng = &mut Rng::new(seed(&[rows, text, vocab]), "adjust_logits");
        let logits = (0..rows * vocab).map(|_| 3.0 * rng.normal()).collect();
        let mut tokens =
            |count: usize| -> Vec<i32> { (0..count).map(|_| rng.below(vocab) as i32).collect() };
        let (mut texts, stops) = (tokens(rows * text), tokens(rows * STOPS));
        if rule == Rule::DryRepeats {
            for text in texts.chunks_mut(text) {
                (PERIOD..text.len()).for_each(|at| text[at] = text[at - PERIOD]);
            }
        }
        let starts: Vec<i32> = texts[..1].to_vec();
        if rule == Rule::Think {
            texts.chunks_mut(text).for_each(|text| text[0] = starts[0]);
        }
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
            .input("word_tokens", Tensor::vector(words));
        let all = |value: i32| Tensor::vector(vec![value; rows]);
        let case = match rule {
            Rule::Ngram => case.input("no_repeat_ngram", all(3)),
            Rule::Dry | Rule::DryRepeats => case
                .input("dry_multiplier", Tensor::vector(vec![0.8f32; rows]))
                .input("dry_base", Tensor::vector(vec![1.75f32; rows]))
                .input("dry_allowed_length", all(2))
                .input("dry_breakers", [13i32, 25, 366, 1]),
            Rule::Think => case
                .input("no_repeat_ngram", all(3))
                .input("think_budget", all(text as i32 / 2))
                .input("think_start", Tensor::vector(starts))
                .input("think_end", [-2i32])
                .input("think_forced", [1i32, 2, 3])
                .output("forced", DType::I32),
        };
        Ok(Work::new(case, Self::memory(shape)))
    }
}
