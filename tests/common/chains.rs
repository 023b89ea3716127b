//! The arguments of a decode step whose requests have a chain of drafts each.

use spec_core::{DType, TensorDesc};

/// The arguments of a step's operators for requests with a chain of drafts each. Node 0 of a
/// chain is the last token of the text, and each node has a row of logits.
#[derive(Clone, Debug)]
pub struct Chains {
    /// The request of each row.
    pub requests: Vec<i32>,
    /// The row before each row; -1 for the first row of a chain.
    pub parents: Vec<i32>,
}

impl Chains {
    /// Chains of `nodes` nodes for `batch` requests.
    pub fn new(batch: usize, nodes: usize) -> Self {
        let rows = 0..batch * nodes;
        let parent = |row: usize| if row.is_multiple_of(nodes) { -1 } else { row as i32 - 1 };
        Chains {
            requests: rows.clone().map(|row| (row / nodes) as i32).collect(),
            parents: rows.map(parent).collect(),
        }
    }

    /// The descriptor of `drafts` with which `prompt_lookup` writes them where `tree_verify` and
    /// `adjust_logits` read `draft_tokens`: the rows of `draft_tokens` without the first column.
    pub fn drafts(batch: usize, nodes: usize) -> TensorDesc {
        TensorDesc::with_strides(DType::I32, [batch, nodes - 1], [nodes as isize, 1])
    }
}
