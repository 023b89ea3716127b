//! The distinct keys of a set, ascending, and how often each occurs.
//!
//! Signed keys order as signed numbers. The distinct keys are written from the
//! start of `unique`; what lies behind `count` of them is unspecified, there
//! and in `counts`.

use crate::check::{Checker, arguments};
use crate::{DType, Device, Operator, Result, TensorDesc, Vector};

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
    {
        /// Keys `[n]`, u64, i64, u32 or i32, in any order.
        keys: I,
        /// Distinct keys `[n]`, as `keys`; the first `count` are written.
        unique: O,
        /// How many distinct keys there are `[1]`, u64.
        count: O,
        /// Occurrences of each distinct key `[n]`, u64.
        counts: Option<O>,
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
    const NAME: &'static str = "unique";
    type Tensors = Tensors;
    type Buffers<'a> = Buffers<'a>;
    type Plan = Plan;

    fn plan(&self, tensors: &Tensors) -> Result<Plan> {
        let c = Checker::new(Self::NAME);
        let integers = [DType::U64, DType::I64, DType::U32, DType::I32];
        let keys = c.vector("keys", &tensors.keys, &integers, "[n]")?;
        c.vector_of("unique", &tensors.unique, &[keys.dtype], keys.len, "[n]")?;
        c.vector_of("count", &tensors.count, &[DType::U64], 1, "[1]")?;
        if let Some(counts) = &tensors.counts {
            c.vector_of("counts", counts, &[DType::U64], keys.len, "[n]")?;
        }
        Ok(Plan { keys, has_counts: tensors.counts.is_some() })
    }

    fn fit(tensors: &Tensors, buffers: &mut Buffers<'_>, device: Device) -> Result<()> {
        fit_buffers(Self::NAME, tensors, buffers, device)
    }
}
