//! Which drafts of which request the target model verifies: candidates with probabilities become
//! trees, within a budget that all requests share.
//!
//! The operator stands between a drafter (`suffix_lookup`, or a draft model) and the target model.
//! It writes what verification needs: the trees' links, depths and masks, and the packed rows of
//! the whole batch.
//!
//! Candidate `j` of a request follows its parent: the request's last token where `parents[j]` is 0,
//! or candidate `parents[j] - 1`. A **share** is the probability of a candidate given its parent. The
//! **survival** of a candidate is the probability that the target model keeps it: the parent's
//! survival times the candidate's share, and times the request's `trust`, an acceptance rate. With
//! `cumulative`, shares are of the whole way from the root: the survival is the share times
//! `trust` to the power of the depth, but at most the parent's survival.
//!
//! Each request orders its candidates by survival (descending), then depth, then index. So a parent
//! comes before its children, whatever is equal. The first `n` are offered. Those with a survival
//! below `min_survival` are dropped, except the first `min_drafts`. With `budget`, the whole batch
//! keeps no more drafts than that: first the first `min_drafts` of each request, by their rank in
//! the request and then by request; then all others by survival, depth, request and index.
//!
//! Kept candidates become the drafts of their request in the order of their indices. **Node** 0 of
//! a request is its last token; node `i` is draft `i - 1`. Packed rows are the nodes of all requests,
//! one request after the other.
//!
//! ```text
//! candidates      a 0.6   b 0.3   c 0.5 below a   d 0.9 below b     budget 3, shared by two requests
//! survival        0.6     0.3     0.3             0.27
//!
//! request 0       a  b  c          0 ─┬ 1 a ── 3 c                  three nodes besides the root
//!                                     └ 2 b
//! request 1       e 0.2            0                                no draft: 0.2 comes too late
//! row_offsets     0           4  5
//! ```
//!
//! Two launches do this on CUDA, without the host: a captured graph runs a fixed number of rows, and
//! every shape in it is decided on the device. Rows behind the last one are -1, which
//! `adjust_logits` and `sample_logits` take as padding.
//!
//! Source: SGLang's `organize_draft_results` and `build_tree_kernel_efficient`, TensorRT-LLM's
//! `build_dynamic_tree`, and the adaptive verification of vLLM. `docs/trees.md` says how their
//! arguments map to those of this operator.
//!
//! # Bad data
//! A candidate is **none** where it is at or behind its request's count, where its token is negative,
//! where its parent is not in `0 ..= j` for candidate `j`, or where its parent is none. A request with
//! `finished` other than 0 has no drafts and no rows, and nothing else of it is looked at.
//!
//! Flag 1: a share or a trust that is NaN or infinite. NaN and negative numbers count as 0, numbers
//! above 1 as 1. The share of a candidate that is none for its parent alone is looked at too.
//!
//! Flag 4: a count outside `0 ..= c`, which is cut; a budget below 0, which counts as 0; the parent
//! of a candidate below its request's count, with a token that is not negative, outside
//! `0 ..= j`; more rows than `cap`, which are not written while `row_offsets` and all else stand.
//!
//! # Example
//! ```
//! use spec::ops::DraftTree;
//! use spec::ops::draft_tree::Buffers;
//! use spec::{DType, Handle, TensorDesc};
//!
//! let params = DraftTree::new();
//! // Two requests with four candidates each, and at most three drafts.
//! let tensors = params
//!     .tensors(DType::I32, 2, 4, 3)
//!     .parents(TensorDesc::new(DType::I32, [2, 4]))
//!     .shares(TensorDesc::new(DType::F32, [2, 4]))
//!     .budget(TensorDesc::new(DType::I32, [1]))
//!     .draft_parents(TensorDesc::new(DType::I32, [2, 3]))
//!     .row_offsets(TensorDesc::new(DType::I32, [3]));
//! let handle = Handle::cpu()?;
//! let tree = handle.create(&params, &tensors)?;
//! let mut workspace = tree.workspace(&handle)?;
//!
//! let candidates = [10, 11, 12, 13, 20, 21, 22, 23];
//! let parents = [0, 0, 1, 2, 0, 1, 2, 3];
//! let shares = [0.6, 0.3, 0.5, 0.9, 0.2, 1.0, 1.0, 1.0f32];
//! let (mut drafts, mut num_drafts) = ([0i32; 6], [0i32; 2]);
//! let (mut draft_parents, mut row_offsets) = ([0i32; 6], [0i32; 3]);
//! let buffers = Buffers::new(&candidates, &mut drafts, &mut num_drafts)
//!     .parents(&parents)
//!     .shares(&shares)
//!     .budget(&[3])
//!     .draft_parents(&mut draft_parents)
//!     .row_offsets(&mut row_offsets);
//! tree.call(&mut workspace, buffers)?;
//! assert_eq!(drafts, [10, 11, 12, -1, -1, -1]);
//! // Token 12 follows draft 0, whose node is 1.
//! assert_eq!(draft_parents, [0, 0, 1, -1, -1, -1]);
//! assert_eq!((num_drafts, row_offsets), ([3, 0], [0, 4, 5]));
//! # Ok::<(), spec::Error>(())
//! ```

use crate::check::{Checker, MAX_I32};
use crate::declare::operator;
use crate::{DType, Matrix, Operator, Result, TensorDesc, Vector};

/// The largest number of candidates of a request.
pub const MAX_CANDIDATES: usize = 4096;
/// The largest number of drafts of a request.
pub const MAX_DRAFTS: usize = 256;
/// A survival below this counts as 0, so that no product is a subnormal number: 2^-100.
pub const MIN_SURVIVAL: f32 = f32::from_bits((127 - 100) << 23);

operator! {
    /// Makes trees of drafts from candidates with probabilities, within a budget that all requests
    /// share, with the links, masks and packed rows that verification needs.
    pub struct DraftTree = "draft_tree";

    options {
        /// The smallest survival of a draft.
        optional min_survival: f32 [0.0..=1.0] = 0.0,
        /// How many drafts of each request come before all others: they need no `min_survival`, and
        /// the budget serves them first.
        optional min_drafts: usize = 0,
        /// Whether `shares` are probabilities of the whole way from the root, as `suffix_lookup`
        /// gives them, not of each candidate given its parent.
        optional cumulative: bool = false,
    }

    presence {
        row_positions needs starts;
    }

    sizes {
        c in 0..=MAX_CANDIDATES,
        n in 0..=MAX_DRAFTS,
        nodes = "batch * (n + 1)" in 0..=MAX_I32,
    }

    arguments by position {
        /// The tokens that may become drafts; a negative one is no candidate.
        required candidates: in [I64, I32, U32] "[batch, c]",
        /// What each candidate follows: 0 for the text's last token, i for candidate i - 1. Absent:
        /// each candidate follows the one before it.
        optional parents: in [I32, I64] "[batch, c]",
        /// The probability of each candidate given its parent, or of the whole way to it with
        /// `cumulative`. Absent: 1.
        optional shares: in [F32] "[batch, c]",
        /// How many candidates each request has. Absent: c.
        optional counts: in [I32, I64] "[batch] or [batch, 1]",
        /// A factor for each step of depth, 0 to 1: an acceptance rate that was measured, or
        /// match / (match + 1) of `suffix_lookup`'s `match_lengths`. Absent: 1.
        optional trust: in [F32] "[batch]",
        /// Requests with a value other than 0 have no drafts and no rows.
        optional finished: in [I32] "[batch]",
        /// The largest number of drafts of all requests together. Absent: no limit.
        optional budget: in [I32] "[1]",
        /// The last token of each text, for `row_tokens`. Absent: -1.
        optional roots: in [I64, I32, U32] as candidates "[batch]",
        /// The position of each request's node 0, for `row_positions`.
        optional starts: in [I32, I64] "[batch] or [batch, 1]",
        /// The drafts, then -1 (the largest value in u32).
        required drafts: out [I64, I32, U32] as candidates "[batch, n]",
        /// The number of drafts of each request.
        required num_drafts: out [I32] "[batch]",
        /// The candidate that each draft is; then -1.
        optional picked: out [I32] "[batch, n]",
        /// The node that each draft follows: 0 for the text's last token, i for draft i - 1; then
        /// -1.
        optional draft_parents: out [I32] "[batch, n]",
        /// The first child of each node; -1 for none. `tree_verify` takes this argument.
        optional first_child: out [I32] "[batch, n + 1]",
        /// The next child of the same parent; -1 for none. `tree_verify` takes this argument.
        optional next_sibling: out [I32] "[batch, n + 1]",
        /// The number of steps from node 0 to each node; then -1.
        optional depths: out [I32] "[batch, n + 1]",
        /// The nodes that each node attends to: bit `v % 32` of word `v / 32` is set where node v is
        /// on the way from node 0 to the node, both included. Behind the nodes: 0.
        optional masks: out [I32] "[batch, n + 1, ceil((n + 1) / 32)]",
        /// The survival of each draft; then 0.
        optional survivals: out [F32] "[batch, n]",
        /// Where the packed rows of each request begin, and where the last ones end. A request has
        /// `num_drafts + 1` rows, or none if it has finished. `tree_verify` takes this argument.
        optional row_offsets: out [I32] "[batch + 1]",
        /// The node of each packed row, as request * (n + 1) + node; then -1.
        optional rows: out [I32] "[cap]",
        /// The request of each row; then -1.
        optional row_requests: out [I32] "[cap]",
        /// The row of the parent of each row's node, -1 for node 0; then -1. `adjust_logits` takes
        /// this argument as `parents`.
        optional row_parents: out [I32] "[cap]",
        /// The token of each row, which the target model reads: `roots` for node 0; then -1.
        optional row_tokens: out [I64, I32, U32] as candidates "[cap]",
        /// `starts` plus the depth of each row's node, wrapping; then -1.
        optional row_positions: out [I32, I64] as starts "[cap]",
        /// Bits for bad data, OR-ed into the previous value; only the caller clears them. 1: a
        /// share or a trust is not finite; it counts as 0 or 1. 4: a count, a parent or the budget
        /// is out of range, and was cut or left out, or there are more rows than `cap`.
        optional flags: inout [U32] "[1]",
    }
}

impl DraftTree {
    /// Packed descriptors for `batch` requests with `c` candidates of the type `dtype`, and `n`
    /// drafts for each request, without optional arguments.
    pub fn tensors(&self, dtype: DType, batch: usize, c: usize, n: usize) -> Tensors {
        Tensors::new(
            TensorDesc::new(dtype, [batch, c]),
            TensorDesc::new(dtype, [batch, n]),
            TensorDesc::new(DType::I32, [batch]),
        )
    }
}

/// A share or a trust as it counts: NaN and negative numbers as 0, numbers above 1 as 1.
pub fn cut_probability(value: f32) -> f32 {
    // A comparison with NaN is false.
    if value > 0.0 { value.min(1.0) } else { 0.0 }
}

/// The product of two numbers from 0 to 1, rounded once; 0 where the product is below
/// [`MIN_SURVIVAL`].
pub fn survival_product(a: f32, b: f32) -> f32 {
    let product = a * b;
    if product < MIN_SURVIVAL { 0.0 } else { product }
}

/// A validated call, from which a backend prepares a kernel.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Plan {
    /// The parameters.
    pub params: DraftTree,
    /// The candidates; rows are requests.
    pub candidates: Matrix,
    /// The parents of candidates, where given.
    pub parents: Option<Matrix>,
    /// The shares, where given.
    pub shares: Option<Matrix>,
    /// The dtype of `counts`, where given.
    pub counts: Option<DType>,
    /// The dtype of `starts`, where given.
    pub starts: Option<DType>,
    /// Whether `budget` is given.
    pub has_budget: bool,
    /// The drafts.
    pub drafts: Matrix,
    /// The candidate of each draft, where asked for.
    pub picked: Option<Matrix>,
    /// The parents of drafts, where asked for.
    pub draft_parents: Option<Matrix>,
    /// The first children, where asked for.
    pub first_child: Option<Matrix>,
    /// The next siblings, where asked for.
    pub next_sibling: Option<Matrix>,
    /// The depths, where asked for.
    pub depths: Option<Matrix>,
    /// The masks, where asked for.
    pub masks: Option<Masks>,
    /// The survivals, where asked for.
    pub survivals: Option<Matrix>,
    /// Whether `row_offsets` is asked for.
    pub has_row_offsets: bool,
    /// How many packed rows the outputs of rows hold; `None` where no such output is asked for.
    pub cap: Option<usize>,
}

/// How the masks of nodes lie in memory: a row of words for each node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Masks {
    /// The words of a node.
    pub words: usize,
    /// Words from the first node of a request to that of the next.
    pub batch_stride: usize,
    /// Words from a node to the next.
    pub row_stride: usize,
}

impl Masks {
    fn of(desc: &TensorDesc) -> Self {
        // Shape and strides were checked.
        let size = |at: usize| desc.shape().get(at).copied().unwrap_or(1);
        let stride = |at: usize| match size(at) {
            0 | 1 => 0,
            _ => desc.strides().get(at).map_or(0, |stride| stride.unsigned_abs()),
        };
        Masks { words: size(2), batch_stride: stride(0), row_stride: stride(1) }
    }
}

impl Plan {
    /// The number of requests.
    pub fn batch(&self) -> usize {
        self.drafts.rows
    }

    /// The largest number of drafts of a request.
    pub fn n(&self) -> usize {
        self.drafts.cols
    }

    /// The number of candidates that a request has room for.
    pub fn c(&self) -> usize {
        self.candidates.cols
    }

    /// How many drafts of a request come before all others.
    pub fn min_drafts(&self) -> usize {
        self.params.min_drafts.min(self.n())
    }

    /// Whether packed rows or their offsets are asked for.
    pub fn has_rows(&self) -> bool {
        self.has_row_offsets || self.cap.is_some()
    }
}

impl Operator for DraftTree {
    type Plan = Plan;

    fn plan(&self, t: &Tensors) -> Result<Plan> {
        Checker::declared(self, t)?;
        let matrix = |desc: &Option<TensorDesc>| desc.as_ref().map(TensorDesc::matrix);
        let dtype = |desc: &Option<TensorDesc>| desc.as_ref().map(TensorDesc::dtype);
        let rows = [&t.rows, &t.row_requests, &t.row_parents, &t.row_tokens, &t.row_positions];
        let cap = rows.into_iter().flatten().map(TensorDesc::vector).next();
        Ok(Plan {
            params: *self,
            candidates: t.candidates.matrix(),
            parents: matrix(&t.parents),
            shares: matrix(&t.shares),
            counts: dtype(&t.counts),
            starts: dtype(&t.starts),
            has_budget: t.budget.is_some(),
            drafts: t.drafts.matrix(),
            picked: matrix(&t.picked),
            draft_parents: matrix(&t.draft_parents),
            first_child: matrix(&t.first_child),
            next_sibling: matrix(&t.next_sibling),
            depths: matrix(&t.depths),
            masks: t.masks.as_ref().map(Masks::of),
            survivals: matrix(&t.survivals),
            has_row_offsets: t.row_offsets.is_some(),
            cap: cap.map(|Vector { len, .. }| len),
        })
    }
}
