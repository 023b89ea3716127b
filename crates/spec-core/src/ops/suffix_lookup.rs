//! Drafts from the longest suffix that occurred before, weighted by how often each continuation
//! followed: in a request's own text and in a corpus that requests share, as chains or as trees.
//!
//! A **window** is an index `e` of a text (`1 <= e <` the text's length) whose token is not
//! negative. The match of a window is the largest `n` such that the `n` tokens before `e` equal the
//! last `n` tokens of the request, with no negative token among them, and `n` is at most
//! `max_match`. Of all windows, those with the longest match count, if that match is at least
//! `min_match`. Of these, the `max_windows` most recent count: the request's own text is more
//! recent than the corpus, and a later index is more recent than an earlier one.
//!
//! A **node** at depth `d` of the tree has the windows that agree with the drafts on the path to
//! the node. Its children are the tokens at `e + d` of these windows, the `width` most frequent; of
//! equally frequent tokens, the one whose most recent window is more recent comes first. A child is
//! offered where the child's windows are at least the share `min_share` of all windows, and where
//! `d` is below the limit: the number of columns of `drafts`, or `drafts_per_match` times the
//! match, rounded down, where that is less. Offered children become drafts in the order of their
//! number of windows (descending), then their depth, then the recency of their most recent window,
//! until the columns are full.
//!
//! ```text
//! text           1 2 3 4 . 1 2 3 5 . 1 2 3 5 8 1 2 3      the last three tokens occurred three times
//! windows              ^         ^         ^
//! width 1        5 (2 of 3)  8 (1 of 3)  1  2
//! width 2        5 (2 of 3)  4 (1 of 3), beside 5  8 (1 of 3), behind 5 ..
//! ```
//!
//! With `requests`, request `b` has the text in row `requests[b]` of `tokens` and `lengths`: engines
//! keep texts in slots. `max_drafts` has a limit per request: the request keeps the first drafts of
//! those it would have without the limit. With `pad_with_last`, the text's last token stands behind
//! the drafts instead of -1, for engines that always verify a fixed number of drafts.
//!
//! Nothing is kept between calls: a scan for the request's last token finds the few windows to
//! compare, so a call costs one read of the texts and of the corpus.
//!
//! Source: SuffixDecoding (Oliaro et al., 2024). Its suffix trees and its shared trie are replaced
//! by a search.
//!
//! # Bad data
//! Negative tokens match nothing and separate texts. Flag 4: a length outside `0 ..= max_len`, or a
//! `corpus_length` outside `0 ..=` the corpus's size: cut to the range. A request of -1 is padding:
//! it drafts nothing and sets no flag, and `corpus_length` is not looked at for it. A request of
//! another number that is no row of `tokens` drafts nothing and sets flag 4. `drafts` has -1 in all
//! columns of both, and `match_lengths` 0. A limit of `max_drafts` outside `0 ..=` the columns of
//! `drafts` is cut to that range without a flag.
//!
//! # Privacy
//! With a shared corpus, the text of one user becomes a draft for another user. Verification leaves
//! every text as it would be without drafts, but the time of an answer reveals whether drafts were
//! accepted. Where that matters, keep a corpus for each tenant.
//!
//! # Example
//! ```
//! use spec::ops::SuffixLookup;
//! use spec::ops::suffix_lookup::Buffers;
//! use spec::{DType, Handle};
//!
//! let params = SuffixLookup::new().min_match(2);
//! let tensors = params.tensors(DType::I32, 1, 18, 4);
//! let handle = Handle::cpu()?;
//! let lookup = handle.create(&params, &tensors)?;
//! let mut workspace = lookup.workspace(&handle)?;
//!
//! // After 1 2 3 came 4 once and 5 twice.
//! let text = [1, 2, 3, 4, 9, 1, 2, 3, 5, 9, 1, 2, 3, 5, 8, 1, 2, 3];
//! let (mut drafts, mut counts) = ([0i32; 4], [0i32]);
//! lookup.call(&mut workspace, Buffers::new(&text, &[18], &mut drafts, &mut counts))?;
//! assert_eq!((drafts, counts), ([5, 8, 1, 2], [4]));
//! # Ok::<(), spec::Error>(())
//! ```

use crate::check::{Checker, MAX_I32};
use crate::declare::operator;
use crate::{DType, Matrix, Operator, Result, TensorDesc, Vector};

/// The largest `max_match`.
pub const MAX_MATCH: usize = 64;
/// The largest `max_windows`.
pub const MAX_WINDOWS: usize = 1024;
/// The largest number of drafts of a request.
pub const MAX_DRAFTS: usize = 64;

operator! {
    /// Drafts from the longest suffix that occurred before, in a request's own text and in a shared
    /// corpus, weighted by how often each continuation followed.
    pub struct SuffixLookup = "suffix_lookup";

    options {
        /// The shortest match that gives drafts.
        optional min_match: usize [1..=max_match] = 1,
        /// The longest match that counts; a longer match counts as this long.
        optional max_match: usize [1..=MAX_MATCH] = 16,
        /// The largest number of windows that count.
        optional max_windows: usize [1..=MAX_WINDOWS] = 64,
        /// How many children a node may have; 1 makes chains.
        optional width: usize [1..] = 1,
        /// The smallest share of all windows that a draft needs.
        optional min_share: f32 [0.0..=1.0] = 0.0,
        /// The largest depth of a draft for each token of the match. The default does not limit
        /// anything, since there are at most 64 drafts.
        optional drafts_per_match: f32 [0.0..] = 64.0,
        /// Whether the text's last token stands behind the drafts, instead of -1. A row whose text
        /// has no tokens has -1 in all columns.
        optional pad_with_last: bool = false,
    }

    presence {
        corpus_length needs corpus;
    }

    sizes {
        batch = "slots" without requests,
        max_len in 0..=MAX_I32,
        m in 0..=MAX_I32,
        n in 0..=MAX_DRAFTS,
    }

    arguments by position {
        /// The text of each request: its prompt, then every token generated so far. Tokens behind
        /// `lengths` are not read.
        required tokens: in [I64, I32, U32] "[slots, max_len]",
        /// How many tokens each text has.
        required lengths: in [I32, I64] "[slots] or [slots, 1]",
        /// The row of `tokens` and `lengths` that each request has; -1 for padding. Absent:
        /// request b has row b.
        optional requests: in [I32, U32, I64] "[batch]",
        /// The largest number of drafts of each request, cut to `0 ..= n`. Absent: n.
        optional max_drafts: in [I32] "[batch]",
        /// Texts of other requests, of the type of `tokens`, with a negative token between two
        /// texts.
        optional corpus: in [I64, I32, U32] as tokens "[m]",
        /// How many tokens of `corpus` are searched; absent: all.
        optional corpus_length: in [I32, I64] "[1]",
        /// The drafts, then -1 (the largest value in u32) or the text's last token. Of the type of
        /// `tokens`; for tokens of 32 bits also i64.
        required drafts: out [I64, I32, U32] from tokens "[batch, n]",
        /// The number of drafts of each request.
        required counts: out [I32] "[batch] or [batch, 1]",
        /// The node that each draft follows: 0 for the text's last token, i for draft i - 1; then
        /// -1.
        optional parents: out [I32] "[batch, n]",
        /// The first child of each node; -1 for none. Node 0 is the text's last token, and node i
        /// is draft i - 1. `tree_verify` takes this argument.
        optional first_child: out [I32] "[batch, n + 1]",
        /// The next child of the same parent; -1 for none. `tree_verify` takes this argument.
        optional next_sibling: out [I32] "[batch, n + 1]",
        /// The share of all windows that agree with the path to each draft, rounded down to a
        /// multiple of 2^-20; then 0.
        optional shares: out [F32] "[batch, n]",
        /// The length of the longest match, 0 where it is below `min_match`.
        optional match_lengths: out [I32] "[batch]",
        /// Bits for bad data, OR-ed into the previous value; only the caller clears them. 4: a
        /// length of a text or of the corpus is out of range and was cut, or a request has no row
        /// of `tokens` and no drafts.
        optional flags: inout [U32] "[1]",
    }
}

impl SuffixLookup {
    /// Packed descriptors for `batch` texts of the type `dtype` in rows of `max_len` tokens, and
    /// `n` drafts for each request. Lengths are i32, and no optional argument is given.
    pub fn tensors(&self, dtype: DType, batch: usize, max_len: usize, n: usize) -> Tensors {
        let per_request = TensorDesc::new(DType::I32, [batch]);
        Tensors::new(
            TensorDesc::new(dtype, [batch, max_len]),
            per_request,
            TensorDesc::new(dtype, [batch, n]),
            per_request,
        )
    }

    /// The smallest number of windows that a draft needs, in 65536ths of all windows.
    pub fn share_floor(&self) -> u32 {
        // The product of an f32 and a power of two is exact, and it is at most 65536.
        (self.min_share * 65536.0) as u32
    }

    /// The share of `count` windows among `all` windows, as `shares` has it: rounded down to a
    /// multiple of 2^-20. `count` is at most `all`, and `all` is from 1 to [`MAX_WINDOWS`].
    pub fn share_of(count: u32, all: u32) -> f32 {
        // Both factors are exact, and so is their product.
        ((count << 20) / all) as f32 * (1.0 / 1_048_576.0)
    }

    /// The largest depth of a draft where the longest match has `length` tokens and `drafts` has
    /// `n` columns.
    pub fn depth_limit(&self, length: usize, n: usize) -> usize {
        // The cast saturates for a product that `usize` cannot hold.
        n.min((self.drafts_per_match * length as f32).floor() as usize)
    }
}

/// A validated call, from which a backend prepares a kernel.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Plan {
    /// The parameters.
    pub params: SuffixLookup,
    /// The texts; rows are slots.
    pub tokens: Matrix,
    /// The dtype of lengths.
    pub lengths: DType,
    /// The corpus, where given.
    pub corpus: Option<Vector>,
    /// The dtype of `corpus_length`, where given.
    pub corpus_length: Option<DType>,
    /// The dtype of `requests`, the row of `tokens` that each request has, where given.
    pub requests: Option<DType>,
    /// Whether `max_drafts` has a limit per request.
    pub limited: bool,
    /// The drafts; rows are requests.
    pub drafts: Matrix,
    /// The parent of each draft, where asked for.
    pub parents: Option<Matrix>,
    /// The first children, where asked for.
    pub first_child: Option<Matrix>,
    /// The next siblings, where asked for.
    pub next_sibling: Option<Matrix>,
    /// The shares of windows, where asked for.
    pub shares: Option<Matrix>,
}

impl Plan {
    /// The number of requests.
    pub fn batch(&self) -> usize {
        self.drafts.rows
    }
}

impl Operator for SuffixLookup {
    type Plan = Plan;

    fn plan(&self, t: &Tensors) -> Result<Plan> {
        Checker::declared(self, t)?;
        let matrix = |desc: &Option<TensorDesc>| desc.as_ref().map(TensorDesc::matrix);
        Ok(Plan {
            params: *self,
            tokens: t.tokens.matrix(),
            lengths: t.lengths.dtype(),
            corpus: t.corpus.as_ref().map(TensorDesc::vector),
            corpus_length: t.corpus_length.as_ref().map(TensorDesc::dtype),
            requests: t.requests.as_ref().map(TensorDesc::dtype),
            limited: t.max_drafts.is_some(),
            drafts: t.drafts.matrix(),
            parents: matrix(&t.parents),
            first_child: matrix(&t.first_child),
            next_sibling: matrix(&t.next_sibling),
            shares: matrix(&t.shares),
        })
    }
}
