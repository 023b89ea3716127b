//! Chains with a confidence for each draft, and trees of a draft model's best candidates.

use crate::baselines::Designs;
use crate::inputs::seed;
use crate::shape::{Fields, ShapeError};
use crate::work::Work;
use crate::{Entry, Measured, Words};
use spec::DType;
use spec::ops::DraftTree;
use spec_conformance::{Case, Rng, Tensor};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    batch: usize,
    candidates: usize,
    drafts: usize,
    form: Form,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    /// Each candidate follows the one before it.
    Chain,
    /// Levels of `WIDTH` candidates, each of which follows one of the level before it, as a draft
    /// model with a beam gives them.
    Tree,
}

/// Candidates of a level.
const WIDTH: usize = 64;
const VOCAB: usize = 128_256;

impl Shape {
    /// The largest number of drafts of the whole batch: half of what all trees hold.
    fn budget(&self) -> usize {
        self.batch * self.drafts / 2
    }

    /// Packed rows: those of the budget, and a root for each request.
    fn rows(&self) -> usize {
        self.budget() + self.batch
    }
}

impl Designs for DraftTree {}

impl Measured for DraftTree {
    type Shape = Shape;

    const SMALL: &str = "batch=3,candidates=20,drafts=6";

    fn table() -> Vec<Entry<Shape>> {
        let chain = |batch| Shape { batch, candidates: 8, drafts: 8, form: Form::Chain };
        let tree = |batch| Shape { batch, candidates: 512, drafts: 64, form: Form::Tree };
        vec![
            Entry::goal(chain(1), 3.0),
            Entry::goal(chain(32), 3.5),
            Entry::goal(chain(256), 5.0),
            Entry::goal(tree(1), 5.0),
            Entry::goal(tree(32), 7.0).quick_if(true),
            Entry::goal(tree(256), 16.0),
        ]
    }

    fn parse(fields: &mut Fields<'_>) -> Result<Shape, ShapeError> {
        Ok(Shape {
            batch: fields.number("batch", 32, 1..=1 << 16)?,
            candidates: fields.number("candidates", 512, 1..=4096)?,
            drafts: fields.number("drafts", 64, 1..=256)?,
            form: fields.word("form", &[("tree", Form::Tree), ("chain", Form::Chain)])?,
        })
    }

    fn words(shape: &Shape) -> Words {
        let Shape { batch, candidates, drafts, form } = *shape;
        let series = match form {
            Form::Chain => format!("chains of {drafts} in a budget"),
            Form::Tree => format!("trees of {drafts} of {candidates} in a budget"),
        };
        Words {
            shape: format!("{batch} requests, {series}"),
            series,
            size: batch as f64,
            unit: "requests",
        }
    }

    fn memory(shape: &Shape) -> u64 {
        let Shape { batch, candidates, drafts, form } = *shape;
        let parent = if form == Form::Tree { 4 } else { 0 };
        let nodes = batch * (drafts + 1);
        let masks = nodes * (drafts + 1).div_ceil(32) * 4;
        let of_request = candidates * (8 + 4 + parent) + drafts * 8 + 8;
        (batch * of_request + nodes * 8 + masks + shape.rows() * (8 + 3 * 4)) as u64
    }

    /// i64 candidates. A share is likelier to be high than low, as those of drafts that engines run
    /// are.
    fn work(shape: &Shape) -> Result<Work<Self>, String> {
        let Shape { batch, candidates, drafts, form } = *shape;
        let rng = &mut Rng::new(seed(&[batch, candidates, drafts]), "draft_tree");
        let all = batch * candidates;
        let tokens: Vec<i64> = (0..all).map(|_| rng.below(VOCAB) as i64).collect();
        let shares: Vec<f32> = (0..all).map(|_| 1.0 - rng.unit() * rng.unit()).collect();
        let mut case = Case::new(DraftTree::new())
            .input("candidates", Tensor::matrix(tokens, batch, candidates))
            .input("shares", Tensor::matrix(shares, batch, candidates))
            .input("budget", [shape.budget() as i32])
            .input("starts", Tensor::vector(vec![1000_i32; batch]));
        // Chains need no parents.
        if form == Form::Tree {
            let parent = |at: usize| match (at % candidates).checked_sub(WIDTH) {
                None => 0,
                Some(above) => (above / WIDTH * WIDTH + rng.below(WIDTH)) as i32 + 1,
            };
            let parents: Vec<i32> = (0..all).map(parent).collect();
            case = case.input("parents", Tensor::matrix(parents, batch, candidates));
        }
        let case = case
            .output_of("drafts", DType::I64, &[batch, drafts])
            .output("num_drafts", DType::I32)
            .output("first_child", DType::I32)
            .output("next_sibling", DType::I32)
            .output("masks", DType::I32)
            .output("row_offsets", DType::I32)
            .output_of("row_requests", DType::I32, &[shape.rows()])
            .output("row_parents", DType::I32)
            .output("row_tokens", DType::I64)
            .output("row_positions", DType::I32);
        Ok(Work::new(case, Self::memory(shape)))
    }
}
