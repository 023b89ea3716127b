//! Follows the target model down a tree, or a chain, of drafts.
//!
//! Node 0 of a request's tree is the root: the last token that is already verified.
//! Every other node is a draft. It is reached by `first_child` of its parent, or
//! by `next_sibling` of another child of the same parent. `target_tokens` has the token that the
//! target model chose after each node, such as `sample_logits` of the node's logits gives.
//!
//! The walk starts at the root. At each node, the target's token is emitted. Where a child of the
//! node has this token, the walk goes on from the first such child in sibling order; otherwise it
//! stops. It also stops after `max_depth` steps. Every emitted token is the target's own choice at
//! its position, so the text is the same as decoding without drafts gives with
//! the same seeds, whatever the drafts are.
//!
//! **Chains.** Without `first_child` and `next_sibling`, the only child of node v is node v + 1. One
//! chain of `max_draft + 1` nodes serves any number of drafts of `prompt_lookup`: the target's token
//! never equals the -1 behind the drafts.
//!
//! **Packed rows.** Engines compute logits for the rows of all requests, one request after the
//! other. With `row_offsets`, `target_tokens` is the vector of these rows: node v of request b has
//! row `row_offsets[b] + v`. `draft_tokens` may be packed in the same way: each row then has the
//! token that the model read to compute the row's logits. Packed drafts are chains. A chain has no more nodes than its request has
//! rows, `row_offsets[b + 1] - row_offsets[b]`; reaching the last one is a normal stop.
//!
//! ```text
//! row_offsets      0            3      4                     request 0 has two drafts, request 1 none
//! draft_tokens     the  quick red     |  hello
//! target_tokens    quick brown  -     |  world               request 0 emits quick brown
//! ```
//!
//! Source: the verification of drafted trees in SpecInfer (Miao et al., 2024) and
//! SGLang's `verify_tree_greedy`, whose three outputs follow from those of this operator:
//!
//! ```text
//! accept_token_num[b] = num_tokens[b] - 1                      drafts kept; the last token is the target's
//! accept_index[b, i]  = retrieve_index[b, nodes[b, i]]         -1 where nodes[b, i] is
//! predicts[retrieve_index[b, nodes[b, i]]] = tokens[b, i]      for i < num_tokens[b]
//! ```
//!
//! # Bad data
//! Flag 2: a target token below 0. Token 0 is emitted, and the walk stops.
//!
//! Flag 4, each of which stops the walk:
//! * a pointer that is neither -1 nor in `1 .. nodes`, or a walk that would look at as many
//!   children as the tree has nodes, which happens only in a cycle;
//! * a node that has no row: its row is not below `row_offsets[b + 1]`, or lies outside
//!   `target_tokens`. Nothing is emitted for this node, so `num_tokens` is 0 where the root has no
//!   row. A request without rows, whose two offsets are equal, sets no flag. In a tree, a node is
//!   looked up once the target's token is its own; in a chain, the next node is looked up before
//!   its token is compared, and a node behind the last of the chain is none.
//!
//! Data that the walk does not reach raises no flag; the children of the node at depth `max_depth`
//! are not read.
//!
//! # Example
//! ```
//! use spec::ops::TreeVerify;
//! use spec::ops::tree_verify::{Buffers, Links, Required};
//! use spec::Handle;
//!
//! // After "the quick" a drafter proposes " brown fox", " brown dog" and " red".
//! //
//! //   0 "quick" ── 1 " brown" ── 3 " fox"
//! //            │             └── 4 " dog"
//! //            └── 2 " red"
//! let draft_tokens = [4_062, 14_198, 2_579, 39_935, 5_679];
//! let Links { first_child, next_sibling } = Links::from_parents(&[-1, 0, 0, 1, 1])?;
//! assert_eq!((&first_child[..2], &next_sibling[..2]), (&[1, 3][..], &[-1, 2][..]));
//! // The tokens that sample_logits chose from the target's logits after each of the five nodes:
//! // " brown" after "quick", " dog" after " brown", " jumps" after " dog".
//! let target_tokens = [14_198, 5_679, 3_838, 35_308, 35_308];
//!
//! let params = TreeVerify::new(2);
//! let tensors = params.tensors(1, 5);
//! let handle = Handle::cpu()?;
//! let verify = handle.create(&params, &tensors)?;
//! let mut workspace = verify.workspace(&handle)?;
//! let ([mut tokens, mut nodes], mut num_tokens) = ([[0i32; 3]; 2], [0i32]);
//! let buffers = Buffers::new(Required {
//!     draft_tokens: (&draft_tokens).into(),
//!     target_tokens: (&target_tokens).into(),
//!     tokens: (&mut tokens).into(),
//!     nodes: (&mut nodes).into(),
//!     num_tokens: (&mut num_tokens).into(),
//! });
//! let buffers = buffers.first_child(&first_child).next_sibling(&next_sibling);
//! verify.call(&mut workspace, buffers)?;
//! // Two drafts are kept, and the target's own token follows them.
//! assert_eq!((tokens, num_tokens), ([14_198, 5_679, 35_308], [3]));
//! // The KV cache keeps the entries of these nodes.
//! assert_eq!(nodes, [0, 1, 4]);
//! # Ok::<(), spec::Error>(())
//! ```

use crate::check::{Checker, MAX_I32};
use crate::declare::operator;
use crate::{DType, Matrix, Operator, Result, Status, TensorDesc, Vector};

operator! {
    /// Follows the target model down a tree, or a chain, of drafts.
    pub struct TreeVerify = "tree_verify";

    options {
        /// The largest number of drafts that are kept, which is the depth of the deepest tree.
        required max_depth: usize [0..=i32::MAX - 1],
    }

    presence {
        first_child, next_sibling together;
    }

    sizes {
        nodes in 1..=MAX_I32,
    }

    arguments by name {
        /// The token of each node. The entry of node 0, the last verified token, is not read. With
        /// `row_offsets`, chains may be packed as `target_tokens` is.
        required draft_tokens: in [I64, I32, U32]
            "[batch, nodes] or [rows] with row_offsets without first_child",
        /// The token that the target model chose after each node, by `sample_logits` of the node's
        /// logits for instance.
        required target_tokens: in [I32, U32, I64]
            "[batch, nodes] without row_offsets or [rows] with row_offsets",
        /// The first child of each node; -1 for none. `Links` makes this from parents. Absent:
        /// node v + 1 is the only child of node v.
        optional first_child: in [I64, I32, U32] "[batch, nodes]",
        /// The next child of the same parent; -1 for none.
        optional next_sibling: in [I64, I32, U32] "[batch, nodes]",
        /// Where the rows of each request begin in `target_tokens`, and where the last ones end.
        optional row_offsets: in [I32, I64] "[batch + 1]",
        /// The emitted tokens: the drafts that were kept, then the target's own token, then -1.
        required tokens: out [I32, U32, I64] "[batch, max_depth + 1]",
        /// The node after which each emitted token was chosen, node 0 first, then -1. A KV cache
        /// keeps the entries of these nodes.
        required nodes: out [I32, U32, I64] "[batch, max_depth + 1]",
        /// The number of emitted tokens: at least 1, but 0 for a request whose root has no row.
        required num_tokens: out [I32] "[batch]",
        /// Bits for bad data, OR-ed into the previous value; only the caller clears them. 2: a
        /// target token is negative; token 0 is emitted, and the path ends. 4: a child, a sibling
        /// or a row is out of range, or there is a cycle; the path ends.
        optional flags: inout [U32] "[1]",
    }
}

impl TreeVerify {
    /// Packed i32 descriptors for `batch` trees of `nodes` nodes, without `flags`.
    pub fn tensors(&self, batch: usize, nodes: usize) -> Tensors {
        let links = TensorDesc::new(DType::I32, [batch, nodes]);
        self.chain_tensors(batch, nodes).first_child(links).next_sibling(links)
    }

    /// Packed i32 descriptors for `batch` chains of `nodes` nodes, without `flags`.
    pub fn chain_tensors(&self, batch: usize, nodes: usize) -> Tensors {
        self.tensors_of(batch, TensorDesc::new(DType::I32, [batch, nodes]))
    }

    /// Packed i32 descriptors for `batch` chains that together have `rows` packed rows, without
    /// `flags`.
    pub fn packed_tensors(&self, batch: usize, rows: usize) -> Tensors {
        let offsets = TensorDesc::new(DType::I32, [batch.saturating_add(1)]);
        self.tensors_of(batch, TensorDesc::new(DType::I32, [rows])).row_offsets(offsets)
    }

    fn tensors_of(&self, batch: usize, nodes: TensorDesc) -> Tensors {
        let path = TensorDesc::new(DType::I32, [batch, self.max_depth.saturating_add(1)]);
        Tensors::new(Required {
            draft_tokens: nodes,
            target_tokens: nodes,
            tokens: path,
            nodes: path,
            num_tokens: TensorDesc::new(DType::I32, [batch]),
        })
    }
}

/// A validated call, from which a backend prepares a kernel.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Plan {
    /// The largest number of drafts that are kept.
    pub max_depth: usize,
    /// The number of requests.
    pub batch: usize,
    /// The draft tokens.
    pub draft_tokens: Nodes,
    /// The target's tokens.
    pub target_tokens: Nodes,
    /// The links of trees; `None` for chains.
    pub links: Option<LinkRows>,
    /// The dtype of `row_offsets`, where given.
    pub row_offsets: Option<DType>,
    /// The tokens to write.
    pub tokens: Matrix,
    /// The nodes to write.
    pub nodes: Matrix,
}

/// How the tokens of nodes lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nodes {
    /// A row for each request, a column for each node.
    Rows(Matrix),
    /// The rows of all requests, one request after the other; `row_offsets` says where each
    /// request's rows begin.
    Packed(Vector),
}

impl Nodes {
    /// The element type.
    pub fn dtype(&self) -> DType {
        match self {
            Nodes::Rows(matrix) => matrix.dtype,
            Nodes::Packed(vector) => vector.dtype,
        }
    }

    /// Elements from a request's node 0 to the node 0 of the next request; 0 where packed.
    pub fn row_stride(&self) -> usize {
        match self {
            Nodes::Rows(matrix) => matrix.row_stride,
            Nodes::Packed(_) => 0,
        }
    }

    /// The number of packed rows; `None` where the tokens are not packed.
    pub fn packed(&self) -> Option<usize> {
        match self {
            Nodes::Rows(_) => None,
            Nodes::Packed(vector) => Some(vector.len),
        }
    }
}

/// The links of the trees of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkRows {
    /// The first children; rows are requests, columns are nodes.
    pub first_child: Matrix,
    /// The next siblings.
    pub next_sibling: Matrix,
}

impl Plan {
    /// The largest number of nodes that a request can have, the root included.
    pub fn max_nodes(&self) -> usize {
        match self.draft_tokens {
            Nodes::Rows(matrix) => matrix.cols,
            Nodes::Packed(vector) => vector.len,
        }
    }
}

impl Operator for TreeVerify {
    type Plan = Plan;

    fn plan(&self, t: &Tensors) -> Result<Plan> {
        let (_, sizes) = Checker::declared(self, t)?;
        let nodes = |desc: &TensorDesc| match desc.shape().len() {
            1 => Nodes::Packed(desc.vector()),
            _ => Nodes::Rows(desc.matrix()),
        };
        let links = t.first_child.as_ref().zip(t.next_sibling.as_ref());
        Ok(Plan {
            max_depth: self.max_depth,
            batch: sizes.of("batch"),
            draft_tokens: nodes(&t.draft_tokens),
            target_tokens: nodes(&t.target_tokens),
            links: links.map(|(first_child, next_sibling)| LinkRows {
                first_child: first_child.matrix(),
                next_sibling: next_sibling.matrix(),
            }),
            row_offsets: t.row_offsets.as_ref().map(TensorDesc::dtype),
            tokens: t.tokens.matrix(),
            nodes: t.nodes.matrix(),
        })
    }
}

/// The links of a tree for `tree_verify`: the first child and the next sibling of each node, -1
/// for none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Links {
    /// The first child of each node.
    pub first_child: Vec<i32>,
    /// For each node, the next child of the same parent.
    pub next_sibling: Vec<i32>,
}

impl Links {
    /// The links of a tree that is given as the parent of each node. Node 0 is the root, and
    /// its entry is not read. Siblings are tried in the order of their
    /// numbers, so give likelier drafts lower numbers.
    ///
    /// # Errors
    /// Status 3 for a node whose parent is not in `0 .. parents.len()`, and for one that is not
    /// below the root, because its parents are a cycle.
    pub fn from_parents(parents: &[i32]) -> Result<Links> {
        let refused = |node: usize, expected: String| {
            let value = format!("{} for node {node}", parents[node]);
            Checker::of::<TreeVerify>().error(Status::BadParam, "parents", value, expected)
        };
        let mut links =
            Links { first_child: vec![-1; parents.len()], next_sibling: vec![-1; parents.len()] };
        // From the last node to the first, because each node becomes the head of the list of its
        // parent's children.
        for (node, &parent) in parents.iter().enumerate().skip(1).rev() {
            let at = usize::try_from(parent).ok().filter(|&at| at < parents.len());
            let at = at.ok_or_else(|| refused(node, format!("a node in 0..{}", parents.len())))?;
            links.next_sibling[node] = links.first_child[at];
            links.first_child[at] = node as i32;
        }
        match links.outside() {
            Some(node) => Err(refused(node, "a node below the root, node 0".to_owned())),
            None => Ok(links),
        }
    }

    /// The first node that no path from the root reaches. Each node is in at most one list of
    /// children.
    fn outside(&self) -> Option<usize> {
        let mut reached = vec![false; self.first_child.len()];
        let mut heads = vec![0];
        while let Some(head) = heads.pop() {
            let mut node = head;
            while let Some(seen) = usize::try_from(node).ok().and_then(|at| reached.get_mut(at)) {
                *seen = true;
                heads.push(self.first_child[node as usize]);
                node = self.next_sibling[node as usize];
            }
        }
        reached.iter().position(|&reached| !reached)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_keep_the_order_of_siblings() {
        // Parents may come after their children.
        let links = Links::from_parents(&[7, 0, 4, 0, 0, 4, 4]).unwrap();
        assert_eq!(links.first_child, [1, -1, -1, -1, 2, -1, -1]);
        assert_eq!(links.next_sibling, [-1, 3, 5, 4, -1, 6, -1]);
    }

    #[test]
    fn parents_that_are_none_are_refused() {
        for (parents, sentence) in [
            ([-1, -1, 0], "`parents` is -1 for node 1, expected a node in 0..3"),
            ([-1, 0, 3], "`parents` is 3 for node 2, expected a node in 0..3"),
            ([-1, 0, i32::MIN], "`parents` is -2147483648 for node 2, expected a node in 0..3"),
            ([-1, 1, 0], "`parents` is 1 for node 1, expected a node below the root, node 0"),
            ([-1, 2, 1], "`parents` is 2 for node 1, expected a node below the root, node 0"),
        ] {
            let error = Links::from_parents(&parents).unwrap_err();
            assert_eq!(error.status(), Status::BadParam);
            let words = format!("tree_verify: {sentence}: ");
            assert!(error.to_string().starts_with(&words), "{error}");
        }
        // A cycle with a tail behind it, beside a tree.
        let error = Links::from_parents(&[-1, 0, 4, 2, 3, 2]).unwrap_err();
        assert!(error.to_string().contains("4 for node 2, "), "{error}");
    }
}
