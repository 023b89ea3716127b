//! The distinct keys of a set, ascending, and how often each occurs.
//!
//! Signed keys order as signed numbers. The distinct keys are written from the
//! start of `unique`; what lies behind `count` of them is unspecified, there
//! and in `counts`.
//!
//! # Example
//! ```
//! use spec_core::ops::Unique;
//! use spec_core::ops::unique::{Buffers, Tensors};
//! use spec_core::{DType, Descriptor, Stream, TensorDesc};
//!
//! // Hashes of features, as they come.
//! let keys = [0x9E37_79B9u64, 7, 0x9E37_79B9, 0xDEAD_BEEF];
//! let counts = Some(TensorDesc::new(DType::U64, [4]));
//! let tensors = Tensors { counts, ..Unique.tensors(DType::U64, 4) };
//! let distinct = Descriptor::create(&spec_cpu::Cpu::open(0)?, &Unique, &tensors)?;
//! let mut workspace = vec![0u8; distinct.workspace_size()];
//! let (mut unique, mut count, mut counts) = ([0u64; 4], [0u64], [0u64; 4]);
//! let buffers = Buffers {
//!     keys: (&keys).into(),
//!     unique: (&mut unique).into(),
//!     count: (&mut count).into(),
//!     counts: Some((&mut counts).into()),
//! };
//! distinct.calculate(&mut workspace, buffers, Stream::default())?;
//! assert_eq!((count, &unique[..3]), ([3], &[7, 0x9E37_79B9, 0xDEAD_BEEF][..]));
//! assert_eq!(counts[..3], [1, 2, 1]);
//! # Ok::<(), spec_core::Error>(())
//! ```

use crate::arguments::arguments;
use crate::check::Checker;
use crate::{DType, Operator, Result, TensorDesc, Vector};

/// The parameters of `unique`: it has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unique;

impl Unique {
    /// Descriptors for `n` keys, without counts.
    pub fn tensors(&self, dtype: DType, n: usize) -> Tensors {
        Tensors {
            keys: TensorDesc::new(dtype, [n]),
            unique: TensorDesc::new(dtype, [n]),
            count: TensorDesc::new(DType::U64, [1]),
            counts: None,
        }
    }
}

arguments! {
    /// The arguments of `unique`.
    Unique = "unique" {
        /// Keys `[n]`, u64, i64, u32 or i32, in any order.
        keys: in [U64, I64, U32, I32] "[n]",
        /// Distinct keys `[n]`, as `keys`; the first `count` are written.
        unique: out [U64, I64, U32, I32] "[n]",
        /// How many distinct keys there are `[1]`, u64.
        count: out [U64] "[1]",
        /// Occurrences of each distinct key `[n]`, u64.
        counts: out optional [U64] "[n]",
    }
}

/// What was validated.
#[derive(Clone, Debug)]
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
