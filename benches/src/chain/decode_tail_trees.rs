//! What follows the forward pass of a decode step whose requests have trees of drafts and share a
//! budget: the six operators from logits to the packed rows of the next step. How many rows each
//! request has is decided on the device.

use half::bf16;
use spec::ops::{
    DraftTree, SampleLogits, SuffixLookup, TreeVerify, draft_tree, sample_logits, suffix_lookup,
    tree_verify,
};
use spec::{Buffer, DType, Handle, Ready, Result, Stream, TensorDesc};

use spec_conformance::Tensor;

use super::Chain;
use super::decode_tail::{CAPACITY, DISTINCT, Shape, TEXT, Texts};
use crate::Goal;
use crate::inputs::{random, seed};
use crate::shape::{Fields, ShapeError};

/// The budget of a step, per request: all requests share `requests * BUDGET` drafts.
const BUDGET: usize = 4;
/// Candidates of each request, and the largest number of its drafts.
const CANDIDATES: usize = 16;
const NODES: usize = CANDIDATES + 1;
/// The largest number of drafts behind each node.
const WIDTH: usize = 2;
/// Texts have only tokens below WORDS, and these tokens have the largest logits. So the last tokens of
/// a text have occurred before; otherwise requests would have no drafts.
const WORDS: usize = 64;
/// Added to the logits of tokens below WORDS.
const PREFERENCE: f32 = 30.0;

/// The number of packed rows: a root for each request, and the budget.
fn rows_of(shape: &Shape) -> usize {
    shape.requests * (1 + BUDGET)
}

/// adjust_logits with all penalties, sample_logits with a temperature, tree_verify of trees,
/// append_tokens, suffix_lookup and draft_tree.
pub(crate) struct DecodeTailTrees {
    requests: usize,
    texts: Texts,
    sample: Ready<SampleLogits>,
    verify: Ready<TreeVerify>,
    lookup: Ready<SuffixLookup>,
    tree: Ready<DraftTree>,
    candidates: Buffer<i32>,
    parents: Buffer<i32>,
    shares: Buffer<f32>,
    counts: Buffer<i32>,
    budget: Buffer<i32>,
    draft_tokens: Buffer<i32>,
    draft_counts: Buffer<i32>,
    first_child: Buffer<i32>,
    next_sibling: Buffer<i32>,
    row_offsets: Buffer<i32>,
    row_requests: Buffer<i32>,
    row_parents: Buffer<i32>,
    row_tokens: Buffer<i32>,
    row_positions: Buffer<i32>,
    target_tokens: Buffer<i32>,
    path: Buffer<i32>,
}

impl Chain for DecodeTailTrees {
    const NAME: &'static str = "decode_tail_trees";
    const PARTS: &'static [&'static str] = &[
        "adjust_logits alone",
        "sample_logits alone",
        "tree_verify alone",
        "append_tokens alone",
        "suffix_lookup alone",
        "draft_tree alone",
    ];
    type Shape = Shape;

    fn table() -> Vec<Shape> {
        Shape::table()
    }

    fn parse(fields: &mut Fields<'_>) -> Result<Shape, ShapeError> {
        Shape::parse(fields, WORDS)
    }

    fn words(shape: &Shape) -> crate::Words {
        let Shape { requests, vocab } = *shape;
        let series = format!("{BUDGET} drafts each, shared, texts of {TEXT}, bf16 of {vocab}");
        let shape = format!("{requests} requests, {series}");
        crate::Words { shape, series, size: requests as f64, unit: "requests" }
    }

    /// The goals of `decode_tail` with as many rows, and of `draft_tree`'s trees.
    fn goal(shape: &Shape) -> Goal {
        match (shape.requests, shape.vocab) {
            (1, 128_256) => Goal::Hopper(16.0 + 5.0),
            (32, 128_256) => Goal::Hopper(35.0 + 7.0),
            (256, 128_256) => Goal::Hopper(110.0 + 16.0),
            _ => Goal::Unknown,
        }
    }

    /// The logits of all rows once, though some rows may be padding, and each text by the operators
    /// that read it.
    fn bytes(shape: &Shape) -> u64 {
        (rows_of(shape) * shape.vocab * 2 + shape.requests * 2 * TEXT * 4) as u64
    }

    fn upload(shape: &Shape, handle: &Handle) -> Result<Self> {
        let Shape { requests, vocab } = *shape;
        let rows = rows_of(shape);
        let ints = |len: usize| TensorDesc::new(DType::I32, [len]);
        let table = |columns: usize| TensorDesc::new(DType::I32, [requests, columns]);
        let shares = TensorDesc::new(DType::F32, [requests, CANDIDATES]);

        let sample = SampleLogits::new();
        let mut sampled = sample.tensors_of(rows, requests, vocab);
        sampled.logits = TensorDesc::new(DType::BF16, [rows, vocab]);
        sampled.positions = ints(rows);
        let verify = TreeVerify::new(CANDIDATES);
        let mut verified = verify.tensors(requests, NODES).row_offsets(ints(requests + 1));
        verified.target_tokens = ints(rows);
        let lookup = SuffixLookup::new().width(WIDTH);
        let looked_up = lookup
            .tensors(DType::I32, requests, CAPACITY, CANDIDATES)
            .parents(table(CANDIDATES))
            .shares(shares);
        // Shares of `suffix_lookup` are of the whole way from the root.
        let tree = DraftTree::new().cumulative(true);
        let mut drafted = tree
            .tensors(DType::I32, requests, CANDIDATES, CANDIDATES)
            .parents(table(CANDIDATES))
            .shares(shares)
            .counts(ints(requests))
            .budget(ints(1))
            .roots(ints(requests))
            .starts(ints(requests))
            .first_child(table(NODES))
            .next_sibling(table(NODES))
            .row_offsets(ints(requests + 1))
            .row_requests(ints(rows))
            .row_parents(ints(rows))
            .row_tokens(ints(rows))
            .row_positions(ints(rows));
        // Drafts are written where `tree_verify` reads them: behind the root.
        drafted.drafts =
            TensorDesc::with_strides(DType::I32, [requests, CANDIDATES], [NODES as isize, 1]);

        let seed = seed(&[requests, vocab]);
        let distinct = rows.min(DISTINCT);
        let logits = random(seed, distinct * vocab, spec_conformance::Rng::normal);
        let logits = logits.chunks(vocab).flat_map(|row| {
            let preferred = row.iter().take(WORDS).map(|logit| logit + PREFERENCE);
            preferred.chain(row.iter().skip(WORDS).copied()).map(bf16::from_f32)
        });
        let distinct_rows: Vec<bf16> = logits.collect();
        let row = |row: usize| &distinct_rows[row % distinct * vocab..][..vocab];
        let logits: Vec<bf16> = (0..rows).flat_map(row).copied().collect();
        let ints = |len: usize| handle.allocate(len);
        let mut chain = DecodeTailTrees {
            requests,
            texts: Texts::upload(handle, [requests, rows, NODES], WORDS, &logits)?,
            sample: Ready::new(handle, &sample, &sampled)?,
            verify: Ready::new(handle, &verify, &verified)?,
            lookup: Ready::new(handle, &lookup, &looked_up)?,
            tree: Ready::new(handle, &tree, &drafted)?,
            candidates: ints(requests * CANDIDATES)?,
            parents: ints(requests * CANDIDATES)?,
            shares: handle.allocate(requests * CANDIDATES)?,
            counts: ints(requests)?,
            budget: handle.upload(&[(requests * BUDGET) as i32])?,
            draft_tokens: handle.upload(&vec![0; requests * NODES])?,
            draft_counts: ints(requests)?,
            first_child: ints(requests * NODES)?,
            next_sibling: ints(requests * NODES)?,
            row_offsets: ints(requests + 1)?,
            row_requests: ints(rows)?,
            row_parents: ints(rows)?,
            row_tokens: ints(rows)?,
            row_positions: ints(rows)?,
            target_tokens: ints(rows)?,
            path: ints(requests * NODES)?,
        };
        // The trees that the first call verifies.
        chain.call(4, Stream::default())?;
        chain.call(5, Stream::default())?;
        handle.synchronize()?;
        Ok(chain)
    }

    fn call(&mut self, part: usize, stream: Stream<'static>) -> Result<()> {
        match part {
            0 => {
                self.texts.adjust([&self.row_requests, &self.row_tokens, &self.row_parents], stream)
            }
            1 => {
                let buffers = sample_logits::Buffers::new(
                    &self.texts.logits,
                    &self.row_positions,
                    &self.texts.temperature,
                    &self.texts.seeds,
                    &mut self.target_tokens,
                )
                .requests(&self.row_requests);
                self.sample.call_on(buffers, stream)
            }
            2 => {
                let buffers = tree_verify::Buffers::new(tree_verify::Required {
                    draft_tokens: (&self.draft_tokens).into(),
                    target_tokens: (&self.target_tokens).into(),
                    tokens: (&mut self.texts.emitted).into(),
                    nodes: (&mut self.path).into(),
                    num_tokens: (&mut self.texts.num_tokens).into(),
                })
                .first_child(&self.first_child)
                .next_sibling(&self.next_sibling)
                .row_offsets(&self.row_offsets);
                self.verify.call_on(buffers, stream)
            }
            3 => self.texts.append(stream),
            4 => {
                let buffers = suffix_lookup::Buffers::new(
                    &self.texts.tokens,
                    &self.texts.lengths,
                    &mut self.candidates,
                    &mut self.counts,
                )
                .parents(&mut self.parents)
                .shares(&mut self.shares);
                self.lookup.call_on(buffers, stream)
            }
            _ => {
                let (_, behind_the_root) = self.draft_tokens.view_mut().split_at(1);
                let buffers = draft_tree::Buffers::new(
                    &self.candidates,
                    behind_the_root,
                    &mut self.draft_counts,
                )
                .parents(&self.parents)
                .shares(&self.shares)
                .counts(&self.counts)
                .budget(&self.budget)
                .roots(&self.texts.last_tokens)
                .starts(&self.texts.lengths)
                .first_child(&mut self.first_child)
                .next_sibling(&mut self.next_sibling)
                .row_offsets(&mut self.row_offsets)
                .row_requests(&mut self.row_requests)
                .row_parents(&mut self.row_parents)
                .row_tokens(&mut self.row_tokens)
                .row_positions(&mut self.row_positions);
                self.tree.call_on(buffers, stream)
            }
        }
    }

    fn inputs(&self) -> Result<Vec<(&'static str, Tensor)>> {
        let (requests, rows) = (self.requests, self.row_requests.len());
        let (logits, tokens) = (self.texts.logits.to_vec()?, self.texts.tokens.to_vec()?);
        let vocab = logits.len() / rows;
        Ok(vec![
            ("logits", Tensor::matrix(logits, rows, vocab)),
            ("tokens", Tensor::matrix(tokens, requests, CAPACITY)),
            ("row_requests", Tensor::vector(self.row_requests.to_vec()?)),
            ("draft_tokens", Tensor::matrix(self.draft_tokens.to_vec()?, requests, NODES)),
        ])
    }

    fn reset(&mut self) -> Result<()> {
        self.texts.reset()
    }

    fn results(&self) -> Result<Vec<Vec<i32>>> {
        let Texts { appended, lengths, last_tokens, .. } = &self.texts;
        [
            &self.target_tokens,
            appended,
            lengths,
            last_tokens,
            &self.row_offsets,
            &self.row_tokens,
            &self.row_positions,
        ]
        .into_iter()
        .map(Buffer::to_vec)
        .collect()
    }
}
