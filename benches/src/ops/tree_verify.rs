//! Trees of drafts; the target follows some of them to a leaf.

use crate::baselines::Designs;
use crate::inputs::seed;
use crate::shape::{Fields, ShapeError};
use crate::work::Work;
use crate::{Entry, Measured, Words};
use spec::DType;
use spec::ops::TreeVerify;
use spec::ops::tree_verify::Links;
use spec_conformance::{Case, Rng, Tensor};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    batch: usize,
    nodes: usize,
    form: Form,
}

/// The shape of the trees.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    /// Each node has two children, until all nodes are used.
    Binary,
    /// Each draft follows the one before.
    Chain,
}

const VOCAB: usize = 128_256;

impl Form {
    fn name(self) -> &'static str {
        match self {
            Form::Binary => "binary trees",
            Form::Chain => "chains",
        }
    }

    fn parent(self, node: usize) -> i32 {
        match self {
            Form::Binary => (node as i32 - 1) / 2,
            Form::Chain => node as i32 - 1,
        }
    }

    /// The depth of the deepest node.
    fn depth(self, nodes: usize) -> usize {
        match self {
            Form::Binary => nodes.ilog2() as usize,
            Form::Chain => nodes - 1,
        }
    }
}

impl Designs for TreeVerify {}

impl Measured for TreeVerify {
    type Shape = Shape;

    const SMALL: &str = "batch=3,nodes=9";

    fn table() -> Vec<Entry<Shape>> {
        let row = |batch, nodes, form| Shape { batch, nodes, form };
        vec![
            Entry::goal(row(1, 64, Form::Binary), 3.0),
            Entry::goal(row(256, 64, Form::Binary), 3.0).quick_if(true),
            Entry::goal(row(256, 8, Form::Chain), 3.0),
            Entry::plain(row(1024, 64, Form::Binary)),
        ]
    }

    fn parse(fields: &mut Fields<'_>) -> Result<Shape, ShapeError> {
        Ok(Shape {
            batch: fields.number("batch", 256, 1..=1 << 20)?,
            nodes: fields.number("nodes", 64, 1..=1 << 16)?,
            form: fields.word("form", &[("binary", Form::Binary), ("chain", Form::Chain)])?,
        })
    }

    fn words(shape: &Shape) -> Words {
        let series = format!("{} of {}", shape.form.name(), shape.nodes);
        Words {
            shape: format!("{} requests, {series}", shape.batch),
            series,
            size: shape.batch as f64,
            unit: "requests",
        }
    }

    fn memory(shape: &Shape) -> u64 {
        let path = shape.form.depth(shape.nodes) + 1;
        let links = if shape.form == Form::Chain { 0 } else { 8 + 8 };
        (shape.batch * (shape.nodes * (8 + 4 + links) + path * 8 + 4)) as u64
    }

    /// i64 trees, as in SGLang, and i32 targets. At seven of eight nodes with children, the
    /// target chooses one of the drafts.
    fn work(shape: &Shape) -> Result<Work<Self>, String> {
        let Shape { batch, nodes, form } = *shape;
        let rng = &mut Rng::new(seed(&[batch, nodes]), "tree_verify");
        let parents: Vec<i32> = (0..nodes).map(|node| form.parent(node)).collect();
        let links = Links::from_parents(&parents).map_err(|error| error.to_string())?;
        let mut draft = Vec::with_capacity(batch * nodes);
        let mut target = Vec::with_capacity(batch * nodes);
        for _ in 0..batch {
            let tokens: Vec<i64> = (0..nodes).map(|_| rng.below(VOCAB) as i64).collect();
            for &child in &links.first_child {
                // The target chooses the last child, so that all children are looked at.
                let mut last = child;
                while let Some(&next) = usize::try_from(last).ok().map(|at| &links.next_sibling[at])
                    && next >= 0
                {
                    last = next;
                }
                let followed = usize::try_from(last).ok().filter(|_| !rng.chance(8));
                let other = rng.below(VOCAB) as i32;
                target.push(followed.map_or(other, |at| tokens[at] as i32));
            }
            draft.extend(tokens);
        }
        let every = |links: &[i32]| -> Vec<i64> {
            links.iter().map(|&at| i64::from(at)).cycle().take(batch * nodes).collect()
        };
        let tree = |values: Vec<i64>| Tensor::matrix(values, batch, nodes);
        let max_depth = form.depth(nodes);
        let mut case = Case::new(TreeVerify::new(max_depth))
            .input("draft_tokens", tree(draft))
            .input("target_tokens", Tensor::matrix(target, batch, nodes));
        // Chains need no links.
        if form != Form::Chain {
            case = case
                .input("first_child", tree(every(&links.first_child)))
                .input("next_sibling", tree(every(&links.next_sibling)));
        }
        let case = case
            .output("tokens", DType::I32)
            .output("nodes", DType::I32)
            .output("num_tokens", DType::I32);
        Ok(Work::new(case, Self::memory(shape)))
    }
}
