//! Appends the tokens that a decode step emitted to the texts of its requests, on the device.
//!
//! A request takes its first `new_counts` tokens of `new_tokens`, as `tree_verify` emits them, in
//! order. It stops behind the first stop token, which it takes, and where its text is full: at
//! `max_lengths` or at the end of its row, whichever comes first. Where it stopped for one of these
//! reasons, `finished` says so: 1 for a stop token, 2 for the length. A request that has finished
//! before takes nothing, so that a captured graph can be replayed while the host looks at
//! `finished` only now and then.
//!
//! ```text
//! tokens      | 5 3 8 . . . |      new_tokens  | 9 2 7 |   new_counts 3   stop_tokens 2
//! lengths 3
//!
//! tokens      | 5 3 8 9 2 . |      appended 2              last_tokens 2  finished 1
//! lengths 5
//! ```
//!
//! Source: what the decode loops of vLLM, SGLang and transformers do on the host between two steps:
//! appending, stop tokens and length limits.
//!
//! # Bad data
//! Flag 2: a new token that is negative, or that 31 bits do not hold: the request takes the tokens before it. Flag
//! 4: a length outside `0 ..= max_len` or, in a request that has not finished, a count outside
//! `0 ..= n`: cut to the range. A length is written back cut, that of a finished request too.
//! `max_lengths` sets no flag: where it is at or below the text's length, negative too, nothing is
//! taken and the request is finished.
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
use crate::{DType, Matrix, Operator, Result, Status, TensorDesc};

/// `finished` of a request that goes on.
pub const RUNNING: i32 = 0;
/// `finished` of a request that has taken a stop token.
pub const STOPPED: i32 = 1;
/// `finished` of a request whose text is as long as it may be.
pub const AT_LENGTH: i32 = 2;

operator! {
    /// Appends the tokens of a decode step to the texts of its requests, up to stop tokens and
    /// length limits.
    pub struct AppendTokens = "append_tokens";

    options {}

    arguments by name {
        /// The text of each request. What lies behind its new length stays as it is.
        required tokens: inout [I64, I32, U32] "[batch, max_len]",
        /// How many tokens each text has: before the call, then after it.
        required lengths: inout [I32, I64] "[batch] or [batch, 1]",
        /// The tokens to append, as `tree_verify` emits them.
        required new_tokens: in [I32, U32, I64] "[batch, n]",
        /// How many of these each request has.
        required new_counts: in [I32, I64] "[batch] or [batch, 1]",
        /// Tokens that end a text, -1 for none.
        optional stop_tokens: in [I32, U32, I64] "[batch, stops]",
        /// The length that each text may reach; absent, `max_len`.
        optional max_lengths: in [I32, I64] "[batch] or [batch, 1]",
        /// Why each request has ended: 0 it has not, 1 by a stop token, 2 by its length. A request
        /// with any other value than 0 takes nothing and keeps its value.
        optional finished: inout [I32] "[batch]",
        /// How many tokens each request took.
        required appended: out [I32] "[batch]",
        /// The last token of each text after the call, -1 for an empty text (in u32 the largest
        /// value): what the next forward pass begins with.
        optional last_tokens: out [I64, I32, U32] "[batch]",
        /// Bits of bad data, OR-ed into what is there: 2 a new token below 0, 4 a length or a count
        /// out of range.
        optional flags: inout [U32] "[1]",
    }
}

impl AppendTokens {
    /// Packed descriptors for texts of that type in rows of `max_len`, and `n` new tokens of i32 for
    /// each request; lengths and counts of i32, nothing optional.
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

/// A validated call: what a backend makes ready.
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
    /// The stop tokens, if there are any.
    pub stop_tokens: Option<Matrix>,
    /// The dtype of the largest lengths, if there are any.
    pub max_lengths: Option<DType>,
}

impl Plan {
    /// Requests.
    pub fn batch(&self) -> usize {
        self.tokens.rows
    }
}

impl Operator for AppendTokens {
    type Plan = Plan;

    fn plan(&self, t: &Tensors) -> Result<Plan> {
        let c = Checker::of::<Self>();
        let tokens = c.matrix(arg::tokens, &t.tokens)?;
        let batch = tokens.rows;
        let new_tokens = c.matrix(arg::new_tokens, &t.new_tokens)?;
        let new_tokens = c.matrix_of(arg::new_tokens, &t.new_tokens, [batch, new_tokens.cols])?;
        // Lengths and counts are i32.
        for (matrix, name) in [(&tokens, "tokens"), (&new_tokens, "new_tokens")] {
            if matrix.cols > MAX_I32 {
                let expected = "rows of at most 2^31 - 1 tokens";
                return Err(c.error(Status::BadTensorShape, name, matrix.cols, expected));
            }
        }
        let stop_tokens = t.stop_tokens.as_ref().map(|stops| {
            let stop_tokens = c.matrix(arg::stop_tokens, stops)?;
            c.matrix_of(arg::stop_tokens, stops, [batch, stop_tokens.cols])
        });
        let max_lengths =
            t.max_lengths.as_ref().map(|lengths| c.per_request(arg::max_lengths, lengths, batch));
        if let Some(finished) = &t.finished {
            c.vector_of(arg::finished, finished, batch)?;
        }
        c.vector_of(arg::appended, &t.appended, batch)?;
        if let Some(last) = &t.last_tokens {
            c.same_dtype(arg::last_tokens, last, tokens.dtype, arg::tokens)?;
            c.vector_of(arg::last_tokens, last, batch)?;
        }
        if let Some(flags) = &t.flags {
            c.vector_of(arg::flags, flags, 1)?;
        }
        Ok(Plan {
            tokens,
            lengths: c.per_request(arg::lengths, &t.lengths, batch)?.dtype,
            new_tokens,
            new_counts: c.per_request(arg::new_counts, &t.new_counts, batch)?.dtype,
            stop_tokens: stop_tokens.transpose()?,
            max_lengths: max_lengths.transpose()?.map(|lengths| lengths.dtype),
        })
    }
}
