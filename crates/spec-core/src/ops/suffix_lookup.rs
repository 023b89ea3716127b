//! Drafts from the longest suffix that occurred before, weighed by how often each continuation
//! followed: in a request's own text and in a corpus that requests share, as chains or as trees.
//!
//! A **window** ends before place `e` of a text (`1 <= e <` the text's length), where the token at `e`
//! is not negative. Its match is the longest `n` such that the `n` tokens before `e` equal the last `n`
//! tokens of the request, none of them negative, at most `max_match`. Of all windows, those with the longest match
//! count, if that match is at least `min_match`, and of these the `max_windows` most recent: own text is more
//! recent than the corpus, and a later place more recent than an earlier one.
//!
//! A **node** at depth `d` of the tree holds the windows that agree with the drafts down to it. Its
//! children are the tokens at `e + d` of these windows, the `width` most frequent; among equally
//! frequent tokens the one whose most recent window is more recent. A child is offered where its windows are at
//! least `min_share` of all, and where `d` is below the limit: the columns of `drafts`, or
//! `drafts_per_match` times the match, rounded down, where that is less. Offered children become
//! drafts in the order of their number of windows (descending), their depth, and the recency of
//! their most recent window, until the columns are full.
//!
//! ```text
//! text           1 2 3 4 . 1 2 3 5 . 1 2 3 5 8 1 2 3      the last three tokens occurred three times
//! windows              ^         ^         ^
//! width 1        5 (2 of 3)  8 (1 of 3)  1  2
//! width 2        5 (2 of 3)  4 (1 of 3), beside 5  8 (1 of 3), behind 5 ..
//! ```
//!
//! Nothing is kept between calls: a scan for the request's last token finds the few windows to look
//! at, so that a call costs one reading of the texts and of the corpus.
//!
//! Source: SuffixDecoding (Oliaro et al., 2024), whose suffix trees and shared trie this replaces by
//! searching.
//!
//! # Bad data
//! Negative tokens match nothing and separate texts. Flag 4: a length outside `0 ..= max_len`, or a
//! `corpus_length` outside `0 ..=` the corpus's size: cut to the range.
//!
//! # Privacy
//! With a shared corpus, what one user wrote becomes a draft of another. Verification leaves every
//! text as it would be without drafts, but the time of an answer tells whether drafts were
//! accepted. Keep a corpus for each tenant where that matters.
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
use crate::{DType, Matrix, Operator, Result, Status, TensorDesc, Vector};

/// The longest match that is told from a longer one.
pub const MAX_MATCH: usize = 64;
/// The most windows that are weighed.
pub const MAX_WINDOWS: usize = 1024;
/// The most drafts of a request.
pub const MAX_DRAFTS: usize = 64;

operator! {
    /// Drafts from the longest suffix that occurred before, in a request's own text and in a shared
    /// corpus, weighed by how often each continuation followed.
    pub struct SuffixLookup = "suffix_lookup";

    options {
        /// The shortest match that gives drafts, at least 1.
        optional min_match: usize = 1,
        /// The longest match that is told from a longer one, `min_match` to 64.
        optional max_match: usize = 16,
        /// How many windows are weighed at most, 1 to 1024.
        optional max_windows: usize = 64,
        /// How many children a node may have; 1 makes chains.
        optional width: usize = 1,
        /// The least share of all windows that a draft needs, 0 to 1.
        optional min_share: f32 = 0.0,
        /// Drafts on a path for each token of the match, at least 0. The default never binds, since
        /// there are at most 64 drafts.
        optional drafts_per_match: f32 = 64.0,
    }

    arguments by position {
        /// The text of each request: its prompt, then every token generated so far. What lies behind
        /// `lengths` is not read.
        required tokens: in [I64, I32, U32] "[batch, max_len]",
        /// How many tokens each text has.
        required lengths: in [I32, I64] "[batch] or [batch, 1]",
        /// Texts of other requests, of the tokens' type, with a negative token between two texts.
        optional corpus: in [I64, I32, U32] "[m]",
        /// How much of the corpus there is; absent, all of it.
        optional corpus_length: in [I32, I64] "[1]",
        /// The drafts, of the tokens' type, then -1 (in u32 the largest value).
        required drafts: out [I64, I32, U32] "[batch, n]",
        /// How many drafts there are.
        required counts: out [I32] "[batch] or [batch, 1]",
        /// What each draft follows: 0 for the text's last token, i for draft i - 1; then -1.
        optional parents: out [I32] "[batch, n]",
        /// The first child of each node, of which node 0 is the text's last token and node i draft
        /// i - 1; -1 for none. As `tree_verify` takes it.
        optional first_child: out [I32] "[batch, n + 1]",
        /// The next child of the same parent; -1 for none. As `tree_verify` takes it.
        optional next_sibling: out [I32] "[batch, n + 1]",
        /// The share of all windows that agree with the text down to each draft; then 0.
        optional shares: out [F32] "[batch, n]",
        /// The length of the longest match, 0 where it is below `min_match`.
        optional match_lengths: out [I32] "[batch]",
        /// Flags, OR-ed: 4 a length out of range.
        optional flags: inout [U32] "[1]",
    }
}

impl Default for SuffixLookup {
    /// Chains, matches of 1 to 16 tokens, 64 windows.
    fn default() -> Self {
        SuffixLookup::new()
    }
}

impl SuffixLookup {
    /// Packed descriptors for tokens of that type in rows of `max_len`, lengths of i32, and `n`
    /// drafts for each request; nothing optional.
    pub fn tensors(&self, dtype: DType, batch: usize, max_len: usize, n: usize) -> Tensors {
        let per_request = TensorDesc::new(DType::I32, [batch]);
        Tensors::new(
            TensorDesc::new(dtype, [batch, max_len]),
            per_request,
            TensorDesc::new(dtype, [batch, n]),
            per_request,
        )
    }

    /// The least number of windows, in 65536ths of all windows, that a draft needs.
    pub fn share_floor(&self) -> u32 {
        // The product is exact, and at most 65536.
        (self.min_share * 65536.0) as u32
    }

    /// How deep drafts may lie where the longest match has this length and `drafts` has `n` columns.
    pub fn depth_limit(&self, length: usize, n: usize) -> usize {
        // A number that usize does not hold saturates.
        n.min((self.drafts_per_match * length as f32).floor() as usize)
    }
}

/// A validated call: what a backend makes ready.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Plan {
    /// The parameters.
    pub params: SuffixLookup,
    /// The texts; rows are requests.
    pub tokens: Matrix,
    /// The dtype of lengths.
    pub lengths: DType,
    /// The corpus, if there is one.
    pub corpus: Option<Vector>,
    /// The dtype of its length, if that is given.
    pub corpus_length: Option<DType>,
    /// The drafts.
    pub drafts: Matrix,
    /// What each draft follows.
    pub parents: Option<Matrix>,
    /// First children.
    pub first_child: Option<Matrix>,
    /// Next siblings.
    pub next_sibling: Option<Matrix>,
    /// Shares of windows.
    pub shares: Option<Matrix>,
}

impl Operator for SuffixLookup {
    type Plan = Plan;

    fn plan(&self, t: &Tensors) -> Result<Plan> {
        let c = Checker::of::<Self>();
        let SuffixLookup { min_match, max_match, max_windows, width, min_share, drafts_per_match } =
            *self;
        let longest = format!("a number in {min_match} ..= {MAX_MATCH}");
        c.param(min_match >= 1, "min_match", min_match, "a number from 1 on")?;
        c.param((min_match..=MAX_MATCH).contains(&max_match), "max_match", max_match, longest)?;
        let windows = "a number in 1 ..= 1024";
        c.param((1..=MAX_WINDOWS).contains(&max_windows), "max_windows", max_windows, windows)?;
        c.param(width >= 1, "width", width, "a number from 1 on")?;
        let share = "a number in 0.0 ..= 1.0";
        c.param((0.0..=1.0).contains(&min_share), "min_share", min_share, share)?;
        let is_number = drafts_per_match >= 0.0 && drafts_per_match.is_finite();
        let finite = "a finite number from 0 on";
        c.param(is_number, "drafts_per_match", drafts_per_match, finite)?;

        let tokens = c.matrix(arg::tokens, &t.tokens)?;
        let batch = tokens.rows;
        let lengths = c.per_request(arg::lengths, &t.lengths, batch)?.dtype;
        let corpus = t.corpus.as_ref().map(|corpus| {
            c.same_dtype(arg::corpus, corpus, tokens.dtype, arg::tokens)?;
            c.vector(arg::corpus, corpus)
        });
        let corpus = corpus.transpose()?;
        // Places are i32, and so are lengths.
        let sizes = [("tokens", tokens.cols), ("corpus", corpus.map_or(0, |corpus| corpus.len))];
        for (name, size) in sizes {
            if size > MAX_I32 {
                let expected = "at most 2^31 - 1 tokens";
                return Err(c.error(Status::BadTensorShape, name, size, expected));
            }
        }
        let corpus_length = t.corpus_length.as_ref().map(|length| {
            c.required("corpus", &t.corpus, "present, since `corpus_length` is")?;
            c.vector_of(arg::corpus_length, length, 1)
        });
        c.same_dtype(arg::drafts, &t.drafts, tokens.dtype, arg::tokens)?;
        let n = c.matrix(arg::drafts, &t.drafts)?.cols;
        if n > MAX_DRAFTS {
            let expected = format!("at most {MAX_DRAFTS} drafts");
            return Err(c.error(Status::BadTensorShape, "drafts", n, expected));
        }
        let drafts = c.matrix_of(arg::drafts, &t.drafts, [batch, n])?;
        c.per_request(arg::counts, &t.counts, batch)?;
        let matrix = |argument, desc: &Option<TensorDesc>, cols| {
            desc.as_ref().map(|desc| c.matrix_of(argument, desc, [batch, cols])).transpose()
        };
        if let Some(lengths) = &t.match_lengths {
            c.vector_of(arg::match_lengths, lengths, batch)?;
        }
        if let Some(flags) = &t.flags {
            c.vector_of(arg::flags, flags, 1)?;
        }
        Ok(Plan {
            params: *self,
            tokens,
            lengths,
            corpus,
            corpus_length: corpus_length.transpose()?.map(|length| length.dtype),
            drafts,
            parents: matrix(arg::parents, &t.parents, n)?,
            first_child: matrix(arg::first_child, &t.first_child, n + 1)?,
            next_sibling: matrix(arg::next_sibling, &t.next_sibling, n + 1)?,
            shares: matrix(arg::shares, &t.shares, n)?,
        })
    }
}
