//! The operators around the sampler, the router and the indexer.

use spec_core::ops::{IndexerTopk, MoeAlign, TreeVerify, indexer_topk, moe_align, tree_verify};
use spec_core::{DType, Stream};
use spec_cuda::Cuda;

use super::{Case, bytes};
use crate::common::random::Random;
use crate::common::{Array, Ready};

/// Binary trees whose target follows a child now and then.
pub struct Trees {
    draft: Array<i32>,
    target: Array<i32>,
    first_child: Array<i32>,
    next_sibling: Array<i32>,
    tokens: Array<i32>,
    nodes: Array<i32>,
    counts: Array<i32>,
    ready: Ready<TreeVerify>,
}

impl Trees {
    const BATCH: usize = 33;
    const NODES: usize = 63;
    const PATH: usize = 6;

    pub fn new(cuda: &Cuda) -> Self {
        let operator = TreeVerify { max_depth: Self::PATH - 1 };
        let tensors = operator.tensors(Self::BATCH, Self::NODES);
        let tree = || Array::new(cuda, Self::BATCH * Self::NODES);
        Trees {
            draft: tree(),
            target: tree(),
            first_child: tree(),
            next_sibling: tree(),
            tokens: Array::new(cuda, Self::BATCH * Self::PATH),
            nodes: Array::new(cuda, Self::BATCH * Self::PATH),
            counts: Array::new(cuda, Self::BATCH),
            ready: Ready::new(cuda, &operator, &tensors),
        }
    }
}

impl Case for Trees {
    twin!();

    fn fill(&mut self, seed: u64) {
        let mut random = Random(seed);
        let parents: Vec<i32> = (0..Self::NODES as i32).map(|node| (node - 1) / 2).collect();
        let links = tree_verify::Links::from_parents(&parents).expect("a tree");
        self.first_child.set(&links.first_child.repeat(Self::BATCH));
        self.next_sibling.set(&links.next_sibling.repeat(Self::BATCH));
        self.draft.set(&random.vec(Self::BATCH * Self::NODES, |r| r.below(2) as i32));
        self.target.set(&random.vec(Self::BATCH * Self::NODES, |r| r.below(2) as i32));
    }

    fn run(&mut self, stream: Stream<'_>) {
        let buffers = tree_verify::Buffers {
            draft_tokens: self.draft.view(),
            target_tokens: self.target.view(),
            first_child: self.first_child.view(),
            next_sibling: self.next_sibling.view(),
            tokens: self.tokens.view_mut(),
            nodes: self.nodes.view_mut(),
            num_tokens: self.counts.view_mut(),
            flags: None,
        };
        self.ready.run(buffers, stream);
    }

    fn outputs(&self) -> Vec<u8> {
        bytes(&[&self.tokens, &self.nodes, &self.counts])
    }
}

/// More picks than a cluster takes, so that three launches follow one another.
pub struct Align {
    ids: Array<i32>,
    sorted: Array<i32>,
    blocks: Array<i32>,
    counts: Array<i32>,
    offsets: Array<i32>,
    padded: Array<i32>,
    inverse: Array<i32>,
    ready: Ready<MoeAlign>,
}

impl Align {
    const TOKENS: usize = 40_000;
    const TOPK: usize = 8;
    const EXPERTS: usize = 300;

    pub fn new(cuda: &Cuda) -> Self {
        let operator = MoeAlign::new(Self::EXPERTS, 16);
        let picks = Self::TOKENS * Self::TOPK;
        let capacity = operator.capacity(picks).expect("fits an i32");
        let tensors = operator.tensors(DType::I32, Self::TOKENS, Self::TOPK);
        Align {
            ids: Array::new(cuda, picks),
            sorted: Array::new(cuda, capacity),
            blocks: Array::new(cuda, capacity / 16),
            counts: Array::new(cuda, Self::EXPERTS),
            offsets: Array::new(cuda, Self::EXPERTS + 1),
            padded: Array::new(cuda, 1),
            inverse: Array::new(cuda, picks),
            ready: Ready::new(cuda, &operator, &tensors),
        }
    }
}

impl Case for Align {
    twin!();

    fn fill(&mut self, seed: u64) {
        let mut random = Random(seed);
        let picks = Self::TOKENS * Self::TOPK;
        self.ids.set(&random.vec(picks, |r| r.below(Self::EXPERTS as u64) as i32));
    }

    fn run(&mut self, stream: Stream<'_>) {
        let buffers = moe_align::Buffers {
            topk_ids: self.ids.view(),
            expert_map: None,
            sorted_ids: self.sorted.view_mut(),
            block_experts: self.blocks.view_mut(),
            counts: self.counts.view_mut(),
            offsets: self.offsets.view_mut(),
            num_padded: self.padded.view_mut(),
            inverse: Some(self.inverse.view_mut()),
            flags: None,
        };
        self.ready.run(buffers, stream);
    }

    fn outputs(&self) -> Vec<u8> {
        let runs = bytes(&[&self.sorted, &self.blocks, &self.counts, &self.offsets]);
        [runs, bytes(&[&self.padded, &self.inverse])].concat()
    }
}

/// Rows with many ties, two of them longer than a block keeps.
pub struct Indexer {
    scores: Array<f32>,
    indices: Array<i32>,
    ready: Ready<IndexerTopk>,
}

impl Indexer {
    const ROWS: usize = 5;
    const COLS: usize = 150_000;
    const K: usize = 2048;

    pub fn new(cuda: &Cuda) -> Self {
        let operator = IndexerTopk { k: Self::K };
        let tensors = operator.tensors(DType::F32, Self::ROWS, Self::COLS);
        Indexer {
            scores: Array::new(cuda, Self::ROWS * Self::COLS),
            indices: Array::new(cuda, Self::ROWS * Self::K),
            ready: Ready::new(cuda, &operator, &tensors),
        }
    }
}

impl Case for Indexer {
    twin!();

    fn fill(&mut self, seed: u64) {
        let mut random = Random(seed);
        let scores = random.vec(Self::ROWS * Self::COLS, |r| r.below(3000) as f32);
        self.scores.set(&scores);
    }

    fn run(&mut self, stream: Stream<'_>) {
        let buffers = indexer_topk::Buffers {
            scores: self.scores.view(),
            lengths: None,
            starts: None,
            indices: self.indices.view_mut(),
            flags: None,
        };
        self.ready.run(buffers, stream);
    }

    fn outputs(&self) -> Vec<u8> {
        bytes(&[&self.indices])
    }
}
