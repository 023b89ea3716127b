//! Tensor descriptors: dtype, shape and strides, without data.

use std::fmt;

use crate::DType;

/// The largest number of dimensions a descriptor holds.
pub const MAX_RANK: usize = 4;

/// Describes a tensor: element type, shape and strides; strides count elements.
///
/// ```
/// use spec_core::{DType, TensorDesc};
///
/// let packed = TensorDesc::new(DType::F32, [4, 256]);
/// assert_eq!(packed.strides(), [256, 1]);
///
/// // Every fourth row of a larger matrix.
/// let strided = TensorDesc::with_strides(DType::F32, [4, 256], [1024, 1]);
/// assert_eq!(strided.span(), 3 * 1024 + 256);
/// ```
///
/// More than [`MAX_RANK`] dimensions do not compile:
///
/// ```compile_fail,E0277
/// use spec_core::{DType, TensorDesc};
///
/// TensorDesc::new(DType::F32, [1, 1, 1, 1, 1]);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TensorDesc {
    dtype: DType,
    rank: usize,
    shape: [usize; MAX_RANK],
    strides: [isize; MAX_RANK],
}

/// Shapes of up to [`MAX_RANK`] dimensions, which a descriptor holds.
#[diagnostic::on_unimplemented(
    message = "a descriptor holds at most four dimensions",
    label = "too many dimensions"
)]
pub trait Shape {}

impl Shape for [usize; 0] {}
impl Shape for [usize; 1] {}
impl Shape for [usize; 2] {}
impl Shape for [usize; 3] {}
impl Shape for [usize; MAX_RANK] {}

impl TensorDesc {
    /// A packed, row-major tensor.
    pub fn new<const R: usize>(dtype: DType, shape: [usize; R]) -> Self
    where
        [usize; R]: Shape,
    {
        Self::packed(dtype, &shape)
    }

    /// A tensor with the given strides, in elements.
    pub fn with_strides<const R: usize>(
        dtype: DType,
        shape: [usize; R],
        strides: [isize; R],
    ) -> Self
    where
        [usize; R]: Shape,
    {
        Self::filled(dtype, &shape, &strides)
    }

    /// As [`new`](Self::new), with a rank that is known at run time; `None` above [`MAX_RANK`].
    pub fn from_shape(dtype: DType, shape: &[usize]) -> Option<Self> {
        (shape.len() <= MAX_RANK).then(|| Self::packed(dtype, shape))
    }

    /// As [`with_strides`](Self::with_strides), with a rank that is known at run time; `None` above
    /// [`MAX_RANK`], and if there are not as many strides as dimensions.
    pub fn from_parts(dtype: DType, shape: &[usize], strides: &[isize]) -> Option<Self> {
        let is_good = shape.len() <= MAX_RANK && strides.len() == shape.len();
        is_good.then(|| Self::filled(dtype, shape, strides))
    }

    /// A packed tensor of at most [`MAX_RANK`] dimensions.
    fn packed(dtype: DType, shape: &[usize]) -> Self {
        let mut strides = [0; MAX_RANK];
        let mut step: usize = 1;
        for (stride, &extent) in strides[..shape.len()].iter_mut().zip(shape).rev() {
            *stride = isize::try_from(step).unwrap_or(isize::MAX);
            step = step.saturating_mul(extent.max(1));
        }
        Self::filled(dtype, shape, &strides[..shape.len()])
    }

    /// A tensor of at most [`MAX_RANK`] dimensions, and as many strides.
    fn filled(dtype: DType, shape: &[usize], strides: &[isize]) -> Self {
        let rank = shape.len();
        let mut desc = TensorDesc { dtype, rank, shape: [1; MAX_RANK], strides: [1; MAX_RANK] };
        desc.shape[..rank].copy_from_slice(shape);
        desc.strides[..rank].copy_from_slice(strides);
        desc
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The extent of each dimension.
    pub fn shape(&self) -> &[usize] {
        &self.shape[..self.rank]
    }

    /// The distance between neighbours of each dimension, in elements.
    pub fn strides(&self) -> &[isize] {
        &self.strides[..self.rank]
    }

    /// The number of elements from the first to the last, both and all gaps included. A number
    /// that `usize` cannot hold is `usize::MAX`, so that no buffer is large enough.
    pub fn span(&self) -> usize {
        if self.shape().contains(&0) {
            return 0;
        }
        let mut last: usize = 0;
        for (&extent, &stride) in self.shape().iter().zip(self.strides()) {
            let reach = (extent - 1).checked_mul(stride.unsigned_abs());
            match reach.and_then(|r| last.checked_add(r)) {
                Some(sum) => last = sum,
                None => return usize::MAX,
            }
        }
        last.saturating_add(1)
    }
}

impl fmt::Display for TensorDesc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.dtype, self.shape())
    }
}

impl fmt::Debug for TensorDesc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self} strides {:?}", self.strides())
    }
}
