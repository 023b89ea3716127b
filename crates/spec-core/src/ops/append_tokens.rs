//! Appends the tokens that a decode step emitted to the texts of its requests, on the device.
//!
//! A request takes its first `new_counts` tokens of `new_tokens` in order. `tree_verify` emits such
//! tokens and counts. The request stops behind the first stop token, which it takes, or where its
//! text is full: at `max_lengths` or at the end of its row, whichever comes first. `finished` then
//! holds the reason: 1 for a stop token, 2 for the length. A request that has finished in an
//! earlier call takes nothing, so a captured graph can be replayed many times before the host reads
//! `finished`.
//!
//! ```text
//! tokens      | 5 3 8 . . . |      new_tokens  | 9 2 7 |   new_counts 3   stop_tokens 2
//! lengths 3
//!
//! tokens      | 5 3 8 9 2 . |      appended 2              last_tokens 2  finished 1
//! lengths 5
//! ```
//!
//! Source: the decode loops of vLLM, SGLang and transformers, which do this on the host between two
//! steps: appending, stop tokens and length limits.
//!
//! # Bad data
//! Flag 2: a new token that is negative, or too large for 31 bits. The request takes the tokens
//! before it.
//!
//! Flag 4: a length outside `0 ..= max_len`, or, in a request that has not finished, a count
//! outside `0 ..= n`. Both are cut to their range. The cut length is written back, also that of a
//! finished request.
//!
//! `max_lengths` sets no flag: where it is at or below the text's length, or negative, the request
//! takes nothing and has finished.
//!
//! # Example
//! ```
//! use spec::ops::AppendTokens;
//! use spec::ops::append_tokens::{Buffers, Required};
//! use spec::{DType, Handle, TensorDesc};
//!
//! let params = AppendTokens::new();
//! // 2 requests, texts of up to 6 tokens, up to 3 new ones.
//! let tensors = params
//!     .tensors(DType::I32, 2, 6, 3)
//!     .stop_tokens(TensorDesc::new(DType::I32, [2, 1]))
//!     .finished(TensorDesc::new(DType::I32, [2]));
//! let handle = Handle::cpu()?;
//! let append = handle.create(&params, &tensors)?;
//! let mut workspace = append.workspace(&handle)?;
//!
//! let mut tokens = [5, 3, 8, 0, 0, 0, /* the second text */ 4, 4, 4, 4, 4, 0];
//! let (mut lengths, mut finished, mut appended) = ([3, 5], [0, 0], [0, 0]);
//! let buffers = Buffers::new(Required {
//!     tokens: (&mut tokens).into(),
//!     lengths: (&mut lengths).into(),
//!     new_tokens: (&[9, 2, 7, 6, 6, 6]).into(),
//!     new_counts: (&[3, 3]).into(),
//!     appended: (&mut appended).into(),
//! });
//! append.call(&mut workspace, buffers.stop_tokens(&[2, 2]).finished(&mut finished))?;
//! // The first request stops at token 2, the second where its row ends.
//! assert_eq!(tokens, [5, 3, 8, 9, 2, 0, 4, 4, 4, 4, 4, 6]);
//! assert_eq!((lengths, appended, finished), ([5, 6], [2, 1], [1, 2]));
//! # Ok::<(), spec::Error>(())
//! ```

use crate::check::{Checker, MAX_I32};
use crate::declare::operator;
use crate::{DType, Matrix, Operator, Result, TensorDesc};

/// The value of `finished` for a request that goes on.
pub const RUNNING: i32 = 0;
/// The value of `finished` for a request that has taken a stop token.
pub const STOPPED: i32 = 1;
/// The value of `finished` for a request whose text has reached its largest length.
pub const AT_LENGTH: i32 = 2;

operator! {
    /// Appends the tokens of a decode step to the texts of its requests, up to stop tokens and
    /// length limits.
    pub struct AppendTokens = "append_tokens";

    options {}

    sizes {
        max_len in 0..=MAX_I32,
        n in 0..=MAX_I32,
    }

    arguments by name {
        /// The text of each request. Tokens behind the new length keep their values.
        required tokens: inout [I64, I32, U32] "[batch, max_len]",
        /// How many tokens each text has: read as before the call, written as after it.
        required lengths: inout [I32, I64] "[batch] or [batch, 1]",
        /// The tokens to append, as `tree_verify` emits them.
        required new_tokens: in [I32, U32, I64] "[batch, n]",
        /// How many of `new_tokens` each request has.
        required new_counts: in [I32, I64] "[batch] or [batch, 1]",
        /// Tokens that end the text of each request; -1 for none. Stop strings stay the caller's,
        /// since a string may begin within a token: find it in the decoded text, cut the text there,
        /// and set the request's `finished`.
        optional stop_tokens: in [I32, U32, I64] "[batch, stops]",
        /// The largest length of each text; absent: `max_len`.
        optional max_lengths: in [I32, I64] "[batch] or [batch, 1]",
        /// Why each request has finished: 0 for not finished, 1 for a stop token, 2 for the length.
        /// A request with a value other than 0 takes nothing and keeps its value.
        optional finished: inout [I32] "[batch]",
        /// How many tokens each request took.
        required appended: out [I32] "[batch]",
        /// The last token of each text after the call, with which the next forward pass begins; -1
        /// (the largest value in u32) for an empty text.
        optional last_tokens: out [I64, I32, U32] as tokens "[batch]",
        /// Bits for bad data, OR-ed into the previous value; only the caller clears them. 2: a new
        /// token is negative or above 2^31 - 1; the request takes those before it. 4: a length or a
        /// count is out of range and was cut.
        optional flags: inout [U32] "[1]",
    }
}

impl AppendTokens {
    /// Packed descriptors for `batch` texts of the type `dtype` in rows of `max_len` tokens, and
    /// `n` i32 new tokens for each request. Lengths and counts are i32, and no optional argument is
    /// given.
    pub fn tensors(&self, dtype: DType, batch: usize, max_len: usize, n: usize) -> Tensors {
        let per_request = TensorDesc::new(DType::I32, [batch]);
        Tensors::new(Required {
            tokens: TensorDesc::new(dtype, [batch, max_len]),
            lengths: per_request,
            new_tokens: TensorDesc::new(DType::I32, [batch, n]),
            new_counts: per_request,
            appended: per_request,
        })
    }
}

/// A validated call, from which a backend prepares a kernel.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Plan {
    /// The texts; rows are requests.
    pub tokens: Matrix,
    /// The dtype of lengths.
    pub lengths: DType,
    /// The new tokens.
    pub new_tokens: Matrix,
    /// The dtype of counts.
    pub new_counts: DType,
    /// The stop tokens, where given.
    pub stop_tokens: Option<Matrix>,
    /// The dtype of `max_lengths`, where given.
    pub max_lengths: Option<DType>,
}

impl Plan {
    /// The number of requests.
    pub fn batch(&self) -> usize {
        self.tokens.rows
    }
}

impl Operator for AppendTokens {
    type Plan = Plan;

    fn plan(&self, t: &Tensors) -> Result<Plan> {
        Checker::declared(self, t)?;
        Ok(Plan {
            tokens: t.tokens.matrix(),
            lengths: t.lengths.dtype(),
            new_tokens: t.new_tokens.matrix(),
            new_counts: t.new_counts.dtype(),
            stop_tokens: t.stop_tokens.as_ref().map(TensorDesc::matrix),
            max_lengths: t.max_lengths.as_ref().map(TensorDesc::dtype),
        })
    }
}
