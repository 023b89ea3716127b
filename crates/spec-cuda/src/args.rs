//! The one way to turn views into arguments of a kernel.
//!
//! `kernels/common.cuh` declares the same structs for the kernels, under the
//! same names.

use spec_core::launch_params::{Field, Part};
use spec_core::{DType, Error, Matrix, Place, PlaceMut, Result, Status, View, ViewMut};

use crate::Cuda;

/// Lets a parameter struct have fields of the struct `$name`. The kernels declare a struct of the
/// same name with the same parts in the same order.
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
field!(Bools: data, wide);
field!(IntegerRows: data, stride, wide);

/// A matrix: the address of its first row and its row stride.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    /// Address of the first element.
    pub data: u64,
    /// Elements from one row to the next.
    pub stride: u64,
}

impl Rows {
    /// Stands for an optional matrix that the caller did not pass.
    pub(crate) const ABSENT: Rows = Rows { data: 0, stride: 0 };

    /// Whether each of `count` rows of 32-bit elements begins at a multiple of 16 bytes.
    pub(crate) fn are_aligned(&self, count: usize) -> bool {
        self.data.is_multiple_of(16) && (self.stride.is_multiple_of(4) || count <= 1)
    }
}

/// Integers of 32 or 64 bits, which the kernel reads as 64 bits. The kernel reads a
/// u32 as the i32 with the same bits.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Integers {
    /// Address of the first integer.
    pub data: u64,
    /// 1 for 64 bits, 0 for 32.
    pub wide: u64,
}

/// Truth values of one byte or of four bytes: every value but 0 is true.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Bools {
    /// Address of the first value; 0 if the argument is absent.
    pub data: u64,
    /// 1 for values of four bytes, 0 for values of one byte.
    pub wide: u64,
}

/// A matrix of integers of 32 or 64 bits.
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

impl IntegerRows {
    /// Stands for an optional matrix that the caller did not pass.
    pub(crate) const ABSENT: IntegerRows = IntegerRows { data: 0, stride: 0, wide: 0 };
}

/// An argument of an operator that has an address on the device; the argument may be absent.
pub trait Located {
    /// The address; 0 for an absent or empty argument, `None` for memory
    /// that has no device address.
    fn address(self) -> Option<u64>;
}

/// The address of memory that is not there, where the kernels of a call are listed. It is aligned
/// as the memory that CUDA allocates.
const NOWHERE: u64 = 256;

impl Located for View<'_> {
    fn address(self) -> Option<u64> {
        match self.place() {
            Place::Address { address, .. } => Some(address),
            Place::Nowhere => Some(NOWHERE),
            _ => None,
        }
    }
}

impl Located for ViewMut<'_> {
    fn address(self) -> Option<u64> {
        match self.into_place() {
            PlaceMut::Address { address, .. } => Some(address),
            PlaceMut::Nowhere => Some(NOWHERE),
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
    /// The device address of an argument; 0 for an absent argument.
    ///
    /// # Errors
    /// Status 5 for a buffer object, which has no raw device address.
    #[inline]
    pub fn pointer(&self, argument: impl Located) -> Result<u64> {
        argument.address().ok_or_else(|| {
            let words = "an argument is a buffer object, expected device memory";
            Error::device(self.device(), Status::DeviceTypeNotSupported, words)
        })
    }

    /// A matrix argument with the row stride of `matrix`.
    ///
    /// # Errors
    /// As [`Cuda::pointer`].
    #[inline]
    pub fn rows(&self, argument: impl Located, matrix: &Matrix) -> Result<Rows> {
        Ok(Rows { data: self.pointer(argument)?, stride: matrix.row_stride as u64 })
    }

    /// A matrix argument that may be absent.
    ///
    /// # Errors
    /// As [`Cuda::pointer`].
    #[inline]
    pub(crate) fn optional_rows(
        &self,
        argument: impl Located,
        matrix: Option<Matrix>,
    ) -> Result<Rows> {
        matrix.map_or(Ok(Rows::ABSENT), |matrix| self.rows(argument, &matrix))
    }

    /// An i32, u32 or i64 matrix argument with the row stride and the width of
    /// `matrix`. The kernel reads the width at run time.
    ///
    /// # Errors
    /// As [`Cuda::pointer`].
    #[inline]
    pub fn integer_rows(&self, argument: impl Located, matrix: &Matrix) -> Result<IntegerRows> {
        let Rows { data, stride } = self.rows(argument, matrix)?;
        Ok(IntegerRows { data, stride, wide: u64::from(matrix.dtype.size() == 8) })
    }

    /// A bool, u8, i8 or i32 argument whose values are read as truth values: all but 0 are true.
    ///
    /// # Errors
    /// As [`Cuda::pointer`].
    #[inline]
    pub fn bools(&self, argument: impl Located, dtype: DType) -> Result<Bools> {
        Ok(Bools { data: self.pointer(argument)?, wide: u64::from(dtype.size() == 4) })
    }

    /// An i32, u32 or i64 argument with the width of `dtype`. The kernel reads the width at
    /// run time.
    ///
    /// # Errors
    /// As [`Cuda::pointer`].
    #[inline]
    pub fn integers(&self, argument: impl Located, dtype: DType) -> Result<Integers> {
        Ok(Integers { data: self.pointer(argument)?, wide: u64::from(dtype.size() == 8) })
    }

    /// The address of a workspace of at least `needed` bytes; 0 if `needed` is 0.
    /// The address must be a multiple of 256, as every CUDA allocator returns.
    ///
    /// # Errors
    /// Status 3 if the address is not a multiple of 256; those of [`Cuda::pointer`].
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
