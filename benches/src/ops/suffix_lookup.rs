//! Texts that repeat themselves, with and without a corpus of similar texts.

use crate::baselines::Designs;
use crate::inputs::seed;
use crate::shape::{Fields, ShapeError};
use crate::work::Work;
use crate::{Entry, Measured, Words};
use spec::DType;
use spec::ops::SuffixLookup;
use spec_conformance::{Case, Rng, Tensor};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    batch: usize,
    /// Tokens of each text.
    text: usize,
    /// Tokens of the corpus; 0 for none.
    corpus: usize,
    /// The largest number of children of a node.
    width: usize,
}

const VOCAB: usize = 128_256;
const DRAFTS: usize = 8;

impl Designs for SuffixLookup {}

impl Measured for SuffixLookup {
    type Shape = Shape;

    const SMALL: &str = "batch=3,text=300";

    fn table() -> Vec<Entry<Shape>> {
        let row = |batch, text, corpus, width| Shape { batch, text, corpus, width };
        vec![
            Entry::goal(row(1, 4096, 0, 1), 3.5),
            Entry::goal(row(32, 4096, 0, 1), 4.5).quick_if(true),
            Entry::goal(row(256, 4096, 0, 1), 6.0),
            Entry::goal(row(32, 32_768, 0, 1), 7.0),
            Entry::plain(row(32, 4096, 0, 2)),
            Entry::goal(row(1, 4096, 1 << 20, 1), 6.0),
            Entry::goal(row(32, 4096, 1 << 20, 1), 14.0),
        ]
    }

    fn parse(fields: &mut Fields<'_>) -> Result<Shape, ShapeError> {
        Ok(Shape {
            batch: fields.number("batch", 32, 1..=1 << 16)?,
            text: fields.number("text", 4096, 1..=1 << 20)?,
            corpus: fields.number("corpus", 0, 0..=1 << 26)?,
            width: fields.number("width", 1, 1..=64)?,
        })
    }

    fn words(shape: &Shape) -> Words {
        let Shape { batch, text, corpus, width } = *shape;
        let corpus = if corpus == 0 { String::new() } else { format!(", corpus of {corpus}") };
        let form = if width == 1 { "chains".to_owned() } else { format!("trees of width {width}") };
        let series = format!("texts of {text}{corpus}, {form}");
        Words {
            shape: format!("{batch} requests, {series}"),
            series,
            size: batch as f64,
            unit: "requests",
        }
    }

    fn memory(shape: &Shape) -> u64 {
        (shape.batch * (shape.text + DRAFTS + 2) * 4 + shape.corpus * 4) as u64
    }

    /// Texts made of the same phrases, like answers to similar questions. All integers are i32.
    fn work(shape: &Shape) -> Result<Work<Self>, String> {
        let Shape { batch, text, corpus, width } = *shape;
        let rng = &mut Rng::new(seed(&[batch, text, corpus, width]), "suffix_lookup");
        let phrase = |rng: &mut Rng| -> Vec<i32> {
            (0..rng.between(4, 24)).map(|_| rng.below(VOCAB) as i32).collect()
        };
        // A phrase recurs about once in a few thousand tokens of a text.
        let phrases: Vec<Vec<i32>> = (0..256).map(|_| phrase(rng)).collect();
        let words = |rng: &mut Rng, length: usize| -> Vec<i32> {
            let mut words = Vec::with_capacity(length + 24);
            while words.len() < length {
                words.extend(rng.pick(&phrases));
            }
            words.truncate(length);
            words
        };
        let texts = (0..batch).flat_map(|_| words(rng, text)).collect::<Vec<i32>>();
        let mut case = Case::new(SuffixLookup::new().width(width))
            .input("tokens", Tensor::matrix(texts, batch, text))
            .input("lengths", Tensor::vector(vec![text as i32; batch]));
        if corpus > 0 {
            case = case.input("corpus", Tensor::vector(words(rng, corpus)));
        }
        let case =
            case.output_of("drafts", DType::I32, &[batch, DRAFTS]).output("counts", DType::I32);
        Ok(Work::new(case, Self::memory(shape)))
    }
}
