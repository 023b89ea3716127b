//! Rows of scores like those of an indexer for sparse attention.

use crate::baselines::Designs;
use crate::inputs::{random, seed};
use crate::shape::{Fields, ShapeError, words_of};
use crate::work::Work;
use crate::{Entry, Measured, Words};
use spec::DType;
use spec::ops::IndexerTopk;
use spec::ops::indexer_topk::{MAX_K, MAX_POOL};
use spec_conformance::{Case, Rng, Tensor};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    rows: usize,
    cols: usize,
    k: usize,
    dtype: DType,
    scores: Scores,
    /// Scores of a block.
    pool: usize,
    /// How many of the last blocks are always chosen.
    forced_last: usize,
    /// Positions of a candidate; 0 without candidates.
    candidate: usize,
}

/// The distribution of the scores.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Scores {
    /// Approximately normal.
    Normal,
    /// Normal scores after a ReLU that keeps few of them: all others are 0.
    Relu,
    /// All equal.
    Flat,
}

impl Scores {
    fn draw(self, rng: &mut Rng) -> f32 {
        match self {
            Scores::Normal => rng.normal(),
            Scores::Relu => (rng.normal() - 2.5).max(0.0),
            Scores::Flat => 0.5,
        }
    }
}

const K: usize = 2048;
const COLS: usize = 1 << 17;
/// Positions of a row with candidates.
const CONTEXT: usize = 1 << 20;

impl Designs for IndexerTopk {}

impl Measured for IndexerTopk {
    type Shape = Shape;

    const SMALL: &str = "rows=3,cols=4096,k=64";

    fn table() -> Vec<Entry<Shape>> {
        let row = |rows, cols, dtype, scores| {
            let (pool, forced_last, candidate) = (1, 0, 0);
            Shape { rows, cols, k: K, dtype, scores, pool, forced_last, candidate }
        };
        let f32 = |rows| row(rows, COLS, DType::F32, Scores::Normal);
        vec![
            Entry::goal(f32(1), 7.0),
            Entry::goal(f32(16), 10.0).quick_if(true),
            Entry::goal(f32(64), 20.0),
            Entry::plain(row(64, COLS, DType::BF16, Scores::Normal)),
            Entry::plain(row(16, COLS, DType::F32, Scores::Relu)),
            Entry::plain(row(16, COLS, DType::F32, Scores::Flat)),
            Entry::goal(row(64, 1 << 20, DType::F32, Scores::Normal), 93.0),
            // The two levels of DeepSeek-V4.1's indexer.
            Entry::goal(Shape { pool: 8, ..f32(64) }, 22.6).quick_if(true),
            Entry::plain(Shape { pool: 8, forced_last: 1, ..f32(64) }),
            Entry::goal(Shape { cols: 1 << 14, candidate: 8, ..f32(64) }, 8.0).quick_if(true),
            // Scores of blocks, as MiniMax-M3 and NSA have them.
            Entry::goal(Shape { cols: 1024, k: 16, ..f32(64) }, 3.0).quick_if(true),
            Entry::plain(Shape { cols: 1024, k: 16, forced_last: 1, ..f32(64) }),
        ]
    }

    fn parse(fields: &mut Fields<'_>) -> Result<Shape, ShapeError> {
        Ok(Shape {
            rows: fields.number("rows", 16, 1..=1 << 20)?,
            cols: fields.number("cols", COLS, 1..=1 << 30)?,
            k: fields.number("k", K, 1..=MAX_K)?,
            dtype: fields.dtype(&[DType::F32, DType::F16, DType::BF16])?,
            scores: fields.word(
                "scores",
                &[("normal", Scores::Normal), ("relu", Scores::Relu), ("flat", Scores::Flat)],
            )?,
            pool: fields.number("pool", 1, 1..=MAX_POOL)?,
            forced_last: fields.number("forced_last", 0, 0..=MAX_K)?,
            candidate: fields.number("candidate", 0, 0..=MAX_POOL)?,
        })
    }

    fn words(shape: &Shape) -> Words {
        let Shape { rows, cols, k, dtype, scores, pool, forced_last, candidate } = shape;
        let mut series = format!("{} columns, {dtype}", words_of(*cols));
        if *k != K {
            series += &format!(", top {k}");
        }
        if *pool > 1 {
            series += &format!(", blocks of {pool}");
        }
        if *forced_last > 0 {
            series += &format!(", {forced_last} forced");
        }
        if *candidate > 0 {
            series += &format!(", candidates of {candidate}");
        }
        match scores {
            Scores::Normal => {}
            Scores::Relu => series += ", mostly zeros",
            Scores::Flat => series += ", all equal",
        }
        Words { shape: format!("{rows} rows, {series}"), series, size: *rows as f64, unit: "rows" }
    }

    fn memory(shape: &Shape) -> u64 {
        let candidates = shape.cols.checked_div(shape.candidate).unwrap_or(0);
        (shape.rows * (shape.cols * shape.dtype.size() + candidates * 4 + shape.k * 4)) as u64
    }

    fn work(shape: &Shape) -> Result<Work<Self>, String> {
        let Shape { rows, cols, k, dtype, scores, pool, forced_last, candidate } = *shape;
        let values = random(seed(&[rows, cols]), rows * cols, |rng| scores.draw(rng));
        let operator = IndexerTopk::new(k).pool(pool).forced_last(forced_last);
        let mut case = Case::new(operator.candidate_block(candidate.max(1)))
            .input("scores", Tensor::matrix(Rng::floats(dtype, values), rows, cols))
            .output("indices", DType::I32);
        if let Some(c) = cols.checked_div(candidate) {
            // One of every `apart` candidates of the context.
            let apart = (CONTEXT / cols).max(1);
            let mut rng = Rng::new(seed(&[rows, c]), "candidates");
            let candidates = (0..rows * c).map(|i| (i % c * apart + rng.below(apart)) as i32);
            let candidates = Tensor::matrix(candidates.collect::<Vec<i32>>(), rows, c);
            let lengths = Tensor::vector(vec![CONTEXT as i32; rows]);
            case = case.input("candidates", candidates).input("lengths", lengths);
        }
        let memory = Self::memory(shape);
        Ok(Work::new(case, memory).rotated(memory > 24 << 20))
    }
}
