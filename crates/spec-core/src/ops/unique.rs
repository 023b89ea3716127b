//! The distinct keys of a set, ascending, how often each occurs, and where each key went.
//!
//! ```text
//! keys     7 3 7 9        count   3
//! unique   3 7 9 .        counts  1 2 1 .        inverse  1 0 1 2
//! ```
//!
//! Signed keys order as signed numbers. The distinct keys are written from the
//! start of `unique`; what lies behind `count` of them is unspecified, there
//! and in `counts`. `inverse` has an element for every key: `unique[inverse[i]]`
//! is `keys[i]`. If another program writes to `keys` during the call, each element
//! of `inverse` is some number in `0 .. n`.
//!
//! Source: `torch.unique` with `return_inverse` and `return_counts`, and
//! `numpy.unique`, whose `inverse_indices` are `inverse`.
//!
//! # Example
//! ```
//! use spec::ops::Unique;
//! use spec::ops::unique::Buffers;
//! use spec::{DType, Handle, TensorDesc};
//!
//! // Hashes of features, as they come.
//! let keys = [0x9E37_79B9u64, 7, 0x9E37_79B9, 0xDEAD_BEEF];
//! let params = Unique::new();
//! let tensors = params
//!     .tensors(DType::U64, 4)
//!     .counts(TensorDesc::new(DType::U64, [4]))
//!     .inverse(TensorDesc::new(DType::I64, [4]));
//! let handle = Handle::cpu()?;
//! let distinct = handle.create(&params, &tensors)?;
//! let mut workspace = distinct.workspace(&handle)?;
//! let (mut unique, mut count, mut counts) = ([0u64; 4], [0u64], [0u64; 4]);
//! let mut inverse = [0i64; 4];
//! let buffers =
//!     Buffers::new(&keys, &mut unique, &mut count).counts(&mut counts).inverse(&mut inverse);
//! distinct.call(&mut workspace, buffers)?;
//! assert_eq!((count, &unique[..3]), ([3], &[7, 0x9E37_79B9, 0xDEAD_BEEF][..]));
//! assert_eq!(counts[..3], [1, 2, 1]);
//! assert_eq!(inverse, [1, 0, 1, 2]);
//! # Ok::<(), spec::Error>(())
//! ```

use crate::check::{Checker, MAX_I32};
use crate::declare::operator;
use crate::{DType, Operator, Result, Status, TensorDesc, Vector};

operator! {
    /// The distinct keys of a set, ascending, how often each occurs, and where each key went.
    pub struct Unique = "unique";

    options {}

    arguments by position {
        /// Keys `[n]`, u64, i64, u32 or i32, in any order.
        required keys: in [U64, I64, U32, I32] "[n]",
        /// Distinct keys `[n]`, as `keys`; the first `count` are written.
        required unique: out [U64, I64, U32, I32] as keys "[n]",
        /// How many distinct keys there are `[1]`, u64.
        required count: out [U64] "[1]",
        /// Occurrences of each distinct key `[n]`, u64.
        optional counts: out [U64] "[n]",
        /// Where each key is among the distinct keys `[n]`, i64, or i32 for at most 2^31 - 1
        /// keys: `unique[inverse[i]]` is `keys[i]`.
        optional inverse: out [I64, I32] "[n]",
    }
}

impl Unique {
    /// Descriptors for `n` keys, without counts and without the inverse.
    pub fn tensors(&self, dtype: DType, n: usize) -> Tensors {
        let keys = TensorDesc::new(dtype, [n]);
        Tensors::new(keys, keys, TensorDesc::new(DType::U64, [1]))
    }
}

/// A validated call: what a backend makes ready.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Plan {
    /// The keys.
    pub keys: Vector,
    /// Whether occurrences are counted.
    pub has_counts: bool,
    /// The element type of the inverse, if it is wanted: i64 or i32.
    pub inverse: Option<DType>,
}

impl Operator for Unique {
    type Plan = Plan;

    fn plan(&self, tensors: &Tensors) -> Result<Plan> {
        let (c, _) = Checker::declared(self, tensors)?;
        let keys = tensors.keys.vector();
        let inverse = tensors.inverse.as_ref().map(TensorDesc::dtype);
        if inverse == Some(DType::I32) && keys.len > MAX_I32 {
            let expected = format!("i64, since an i32 numbers at most {MAX_I32} keys");
            let value = format!("i32 for {} keys", keys.len);
            return Err(c.error(Status::BadTensorDtype, "inverse", value, expected));
        }
        Ok(Plan { keys, has_counts: tensors.counts.is_some(), inverse })
    }
}
