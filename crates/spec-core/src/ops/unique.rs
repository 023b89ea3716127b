//! The distinct keys of a set, ascending, and how often each occurs.
//!
//! Signed keys order as signed numbers. The distinct keys are written from the
//! start of `unique`; what lies behind `count` of them is unspecified, there
//! and in `counts`.
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
//! let tensors = params.tensors(DType::U64, 4).counts(TensorDesc::new(DType::U64, [4]));
//! let handle = Handle::cpu()?;
//! let distinct = handle.create(&params, &tensors)?;
//! let mut workspace = distinct.workspace(&handle)?;
//! let (mut unique, mut count, mut counts) = ([0u64; 4], [0u64], [0u64; 4]);
//! let buffers = Buffers::new(&keys, &mut unique, &mut count).counts(&mut counts);
//! distinct.call(&mut workspace, buffers)?;
//! assert_eq!((count, &unique[..3]), ([3], &[7, 0x9E37_79B9, 0xDEAD_BEEF][..]));
//! assert_eq!(counts[..3], [1, 2, 1]);
//! # Ok::<(), spec::Error>(())
//! ```

use crate::check::Checker;
use crate::declare::operator;
use crate::{DType, Operator, Result, TensorDesc, Vector};

operator! {
    /// The distinct keys of a set, ascending, and how often each occurs.
    pub struct Unique = "unique";

    options {}

    arguments by position {
        /// Keys `[n]`, u64, i64, u32 or i32, in any order.
        required keys: in [U64, I64, U32, I32] "[n]",
        /// Distinct keys `[n]`, as `keys`; the first `count` are written.
        required unique: out [U64, I64, U32, I32] "[n]",
        /// How many distinct keys there are `[1]`, u64.
        required count: out [U64] "[1]",
        /// Occurrences of each distinct key `[n]`, u64.
        optional counts: out [U64] "[n]",
    }
}

impl Default for Unique {
    fn default() -> Self {
        Unique::new()
    }
}

impl Unique {
    /// Descriptors for `n` keys, without counts.
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
}

impl Operator for Unique {
    type Plan = Plan;

    fn plan(&self, tensors: &Tensors) -> Result<Plan> {
        let c = Checker::of::<Self>();
        let keys = c.vector(arg::keys, &tensors.keys)?;
        c.same_dtype(arg::unique, &tensors.unique, keys.dtype, arg::keys)?;
        c.vector_of(arg::unique, &tensors.unique, keys.len)?;
        c.vector_of(arg::count, &tensors.count, 1)?;
        if let Some(counts) = &tensors.counts {
            c.vector_of(arg::counts, counts, keys.len)?;
        }
        Ok(Plan { keys, has_counts: tensors.counts.is_some() })
    }
}
