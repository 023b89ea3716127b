//! The one way to turn views into what a kernel takes.
//!
//! The kernels' side of these structs is in `kernels/common.cuh`, under the
//! same names.

use spec_core::launch_params::{Field, Part};
use spec_core::{DType, Error, Matrix, Place, PlaceMut, Result, Status, View, ViewMut};

use crate::Cuda;

/// Lets a parameter struct have fields of a struct, whose parts stand in the kernels' struct of the
/// same name in the same order.
macro_rules! field {
    ($name:ident: $($part:ident),+) => {
        impl Field for $name {
            const DEVICE: &'static str = stringify!($name);
            const PARTS: &'static [Part] = &[$(
                Part { name: stringify!($part), offset: std::mem::offset_of!($name, $part) }
            ),+];
        }
    };
}

field!(Rows: data, stride);
field!(Integers: data, wide);
field!(Truths: data, wide);
field!(IntegerRows: data, stride, wide);

/// A matrix: address of the first row, elements from one row to the next.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    /// Address of the first element.
    pub data: u64,
    /// Elements from one row to the next.
    pub stride: u64,
}

impl Rows {
    /// What stands for a matrix that is not there.
    pub(crate) const ABSENT: Rows = Rows { data: 0, stride: 0 };
}

/// Integers of either width, which the kernel reads as 64 bits; a u32 as the i32
/// that shares its bits.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Integers {
    /// Address of the first.
    pub data: u64,
    /// 1 for 64 bits, 0 for 32.
    pub wide: u64,
}

/// Truth values of one byte or of four: what is not 0 is true.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Truths {
    /// Address of the first; 0 for none.
    pub data: u64,
    /// 1 for four bytes, 0 for one.
    pub wide: u64,
}

/// A matrix of integers of either width, which the kernel writes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct IntegerRows {
    /// Address of the first element.
    pub data: u64,
    /// Elements from one row to the next.
    pub stride: u64,
    /// 1 for 64 bits, 0 for 32.
    pub wide: u64,
}

/// An argument of an operator, present or not, and where it is on the device.
pub trait Located {
    /// The address; 0 for what is absent or empty, `None` for memory that has
    /// no device address.
    fn address(self) -> Option<u64>;
}

impl Located for View<'_> {
    fn address(self) -> Option<u64> {
        match self.place() {
            Place::Address { address, .. } => Some(address),
            _ => None,
        }
    }
}

impl Located for ViewMut<'_> {
    fn address(self) -> Option<u64> {
        match self.into_place() {
            PlaceMut::Address { address, .. } => Some(address),
            _ => None,
        }
    }
}

impl<L: Located> Located for Option<L> {
    fn address(self) -> Option<u64> {
        self.map_or(Some(0), Located::address)
    }
}

impl Cuda {
    /// The device address of an argument; 0 for an absent one.
    ///
    /// # Errors
    /// Status 5 for memory on the device that is no raw address.
    #[inline]
    pub fn pointer(&self, argument: impl Located) -> Result<u64> {
        argument.address().ok_or_else(|| {
            let words = "an argument is a buffer object, expected device memory";
            Error::device(self.device(), Status::DeviceTypeNotSupported, words)
        })
    }

    /// A matrix argument as its plan has it.
    ///
    /// # Errors
    /// As [`Cuda::pointer`].
    #[inline]
    pub fn rows(&self, argument: impl Located, matrix: &Matrix) -> Result<Rows> {
        Ok(Rows { data: self.pointer(argument)?, stride: matrix.row_stride as u64 })
    }

    /// An i32, u32 or i64 matrix argument as its plan has it, whose width the
    /// kernel looks up.
    ///
    /// # Errors
    /// As [`Cuda::pointer`].
    #[inline]
    pub fn integer_rows(&self, argument: impl Located, matrix: &Matrix) -> Result<IntegerRows> {
        let Rows { data, stride } = self.rows(argument, matrix)?;
        Ok(IntegerRows { data, stride, wide: u64::from(matrix.dtype.size() == 8) })
    }

    /// A bool, u8, i8 or i32 argument of which only matters what is not 0.
    ///
    /// # Errors
    /// As [`Cuda::pointer`].
    #[inline]
    pub fn truths(&self, argument: impl Located, dtype: DType) -> Result<Truths> {
        Ok(Truths { data: self.pointer(argument)?, wide: u64::from(dtype.size() == 4) })
    }

    /// An i32, u32 or i64 argument whose width the kernel looks up.
    ///
    /// # Errors
    /// As [`Cuda::pointer`].
    #[inline]
    pub fn integers(&self, argument: impl Located, dtype: DType) -> Result<Integers> {
        Ok(Integers { data: self.pointer(argument)?, wide: u64::from(dtype.size() == 8) })
    }

    /// The address of a workspace of at least `needed` bytes, aligned as every
    /// CUDA allocator aligns; 0 where none is needed.
    ///
    /// # Errors
    /// Status 3 where it is not aligned to 256 bytes; as [`Cuda::pointer`].
    #[inline]
    pub fn workspace(&self, workspace: ViewMut<'_>, needed: usize) -> Result<u64> {
        if needed == 0 {
            return Ok(0);
        }
        let address = self.pointer(workspace)?;
        if address.is_multiple_of(256) {
            return Ok(address);
        }
        let words = format!("`workspace` is at {address:#x}, expected a multiple of 256");
        Err(Error::device(self.device(), Status::BadParam, words))
    }
}
