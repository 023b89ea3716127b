//! Descriptors of tensors in C.

use spec::{Argument, DType, Error, Result, Status, TensorDesc};

use crate::structs::{Fields, Layout};

/// The dtype of an absent tensor. Only optional arguments may be absent.
pub const SPEC_DTYPE_NONE: u32 = 0;
/// A byte: 0 is false, every other value is true. The numbers of all dtypes are those of InfiniOp.
pub const SPEC_DTYPE_BOOL: u32 = 2;
/// Signed 8-bit integer.
pub const SPEC_DTYPE_I8: u32 = 3;
/// Signed 32-bit integer.
pub const SPEC_DTYPE_I32: u32 = 5;
/// Signed 64-bit integer.
pub const SPEC_DTYPE_I64: u32 = 6;
/// Unsigned 8-bit integer.
pub const SPEC_DTYPE_U8: u32 = 7;
/// Unsigned 32-bit integer.
pub const SPEC_DTYPE_U32: u32 = 9;
/// Unsigned 64-bit integer.
pub const SPEC_DTYPE_U64: u32 = 10;
/// IEEE half precision.
pub const SPEC_DTYPE_F16: u32 = 12;
/// IEEE single precision.
pub const SPEC_DTYPE_F32: u32 = 13;
/// bfloat16, the upper half of an IEEE single-precision number.
pub const SPEC_DTYPE_BF16: u32 = 19;

/// The largest possible `rank` of a tensor.
pub const SPEC_MAX_RANK: u32 = 4;

/// Describes a tensor. A struct of zeros describes an absent tensor.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct spec_tensor {
    /// One of `SPEC_DTYPE_..`; 0 for an absent tensor.
    pub dtype: u32,
    /// The number of dimensions, 1 to 4.
    pub rank: u32,
    /// The extent of each dimension.
    pub shape: [i64; 4],
    /// The distance in elements from one index to the next in each dimension; all zero for a
    /// packed row-major tensor.
    pub strides: [i64; 4],
}

/// The dtype with this number in C, which is InfiniOp's.
pub(crate) fn dtype(number: u32) -> Option<DType> {
    Some(match number {
        SPEC_DTYPE_BOOL => DType::Bool,
        SPEC_DTYPE_I8 => DType::I8,
        SPEC_DTYPE_I32 => DType::I32,
        SPEC_DTYPE_I64 => DType::I64,
        SPEC_DTYPE_U8 => DType::U8,
        SPEC_DTYPE_U32 => DType::U32,
        SPEC_DTYPE_U64 => DType::U64,
        SPEC_DTYPE_F16 => DType::F16,
        SPEC_DTYPE_F32 => DType::F32,
        SPEC_DTYPE_BF16 => DType::BF16,
        _ => return None,
    })
}

impl spec_tensor {
    /// The tensor's descriptor; `None` for an absent tensor.
    fn describe(
        &self,
        operator: &'static str,
        argument: &'static str,
    ) -> Result<Option<TensorDesc>> {
        let refuse = |status, value: String, expected: &'static str| {
            Err(Error::Argument { status, operator, argument, value, expected: expected.into() })
        };
        if self.dtype == SPEC_DTYPE_NONE {
            return Ok(None);
        }
        let Some(dtype) = dtype(self.dtype) else {
            let value = format!("of dtype {}", self.dtype);
            return refuse(Status::BadTensorDtype, value, "one of SPEC_DTYPE_..");
        };
        let rank = self.rank as usize;
        if !(1..=self.shape.len()).contains(&rank) {
            let value = format!("of rank {}", self.rank);
            return refuse(Status::BadTensorShape, value, "a rank of 1 to 4");
        }
        let mut shape = [0usize; 4];
        for (to, &from) in shape.iter_mut().zip(&self.shape[..rank]) {
            let Ok(extent) = usize::try_from(from) else {
                let value = format!("{:?}", &self.shape[..rank]);
                return refuse(Status::BadTensorShape, value, "extents from 0 on");
            };
            *to = extent;
        }
        if self.strides[..rank].iter().all(|&stride| stride == 0) {
            return Ok(TensorDesc::from_shape(dtype, &shape[..rank]));
        }
        let mut strides = [0isize; 4];
        for (to, &from) in strides.iter_mut().zip(&self.strides[..rank]) {
            let Ok(stride) = isize::try_from(from) else {
                let value = format!("strided {:?}", &self.strides[..rank]);
                return refuse(Status::BadTensorStrides, value, "strides that memory can hold");
            };
            *to = stride;
        }
        Ok(TensorDesc::from_parts(dtype, &shape[..rank], &strides[..rank]))
    }
}

/// The descriptor of each argument, in the order of the contract's list; `None` for absent tensors.
pub(crate) fn describe(
    operator: &'static str,
    arguments: &'static [Argument],
    layout: &Layout,
    tensors: Fields<spec_tensor>,
) -> Result<Vec<Option<TensorDesc>>> {
    let describe = |(at, argument): (usize, &Argument)| match tensors.get(layout.field(at)) {
        Some(tensor) => tensor.describe(operator, argument.name),
        None => Ok(None),
    };
    arguments.iter().enumerate().map(describe).collect()
}
