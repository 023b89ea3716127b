//! Converts views of host memory to packed vectors of the types that the plain loops take. Memory
//! that already has this type and is packed is borrowed.

use std::borrow::Cow;

use half::{bf16, f16};
use spec_core::{DType, Device, Element, Error, Matrix, Place, Result, Status, View, ViewMut};

/// The error for a view that is not host memory. Only a defect of this library can cause it.
pub fn not_host() -> Error {
    Error::device(Device::CPU, Status::InternalError, "a checked view is no host slice")
}

/// A checked view as a slice.
///
/// # Errors
/// For what is no host memory of that type.
pub fn slice<T: Element>(view: View<'_>) -> Result<&[T]> {
    view.host().ok_or_else(not_host)
}

/// A checked mutable view as a slice.
///
/// # Errors
/// For what is no host memory of that type.
pub fn slice_mut<T: Element>(view: ViewMut<'_>) -> Result<&mut [T]> {
    view.host().ok_or_else(not_host)
}

/// The rows of a matrix without the gaps between them.
pub fn packed<'a, T: Element>(data: &'a [T], matrix: &Matrix) -> Cow<'a, [T]> {
    let Matrix { rows, cols, row_stride, .. } = *matrix;
    if rows <= 1 || row_stride == cols {
        return Cow::Borrowed(&data[..rows * cols]);
    }
    let row = |row: usize| &data[row * row_stride..][..cols];
    Cow::Owned((0..rows).flat_map(row).copied().collect())
}

/// Writes packed rows to the rows of a matrix.
pub fn unpack<T: Element>(data: &mut [T], matrix: &Matrix, rows: &[T]) {
    let step = matrix.row_stride.max(matrix.cols).max(1);
    for (to, from) in data.chunks_mut(step).zip(rows.chunks(matrix.cols.max(1))) {
        to[..from.len()].copy_from_slice(from);
    }
}

fn convert<T: Element, U: Clone>(values: &[T], wide: impl Fn(T) -> U) -> Cow<'_, [U]> {
    Cow::Owned(values.iter().map(|&value| wide(value)).collect())
}

/// A matrix of any float type as packed f32.
///
/// # Errors
/// For what is no host memory of that type.
pub fn floats<'a>(view: View<'a>, matrix: &Matrix) -> Result<Cow<'a, [f32]>> {
    Ok(match matrix.dtype {
        DType::F16 => packed_as(slice(view)?, matrix, f16::to_f32),
        DType::BF16 => packed_as(slice(view)?, matrix, bf16::to_f32),
        _ => packed(slice(view)?, matrix),
    })
}

/// A matrix of any integer type as packed i64; a u32 is read as the i32 of the same
/// bits.
///
/// # Errors
/// For what is no host memory of that type.
pub fn tokens<'a>(view: View<'a>, matrix: &Matrix) -> Result<Cow<'a, [i64]>> {
    Ok(match matrix.dtype {
        DType::I32 => packed_as(slice(view)?, matrix, |token: i32| i64::from(token)),
        DType::U32 => packed_as(slice(view)?, matrix, |token: u32| i64::from(token.cast_signed())),
        _ => packed(slice(view)?, matrix),
    })
}

fn packed_as<'a, T: Element, U: Clone>(
    data: &[T],
    matrix: &Matrix,
    wide: impl Fn(T) -> U,
) -> Cow<'a, [U]> {
    Cow::Owned(convert(&packed(data, matrix), wide).into_owned())
}

/// Writes packed integers, each of which fits an i32, to a matrix of any integer
/// type.
///
/// # Errors
/// For what is no host memory of that type.
pub fn put_tokens(view: ViewMut<'_>, matrix: &Matrix, values: &[i64]) -> Result<()> {
    match matrix.dtype {
        DType::I32 => unpack(slice_mut(view)?, matrix, &convert(values, |value| value as i32)),
        DType::U32 => {
            unpack(slice_mut(view)?, matrix, &convert(values, |value| value as i32 as u32));
        }
        _ => unpack(slice_mut(view)?, matrix, values),
    }
    Ok(())
}

/// Writes packed f32 to a matrix of any float type, each rounded once to the nearest.
///
/// # Errors
/// For what is no host memory of that type.
pub fn put_floats(view: ViewMut<'_>, matrix: &Matrix, values: &[f32]) -> Result<()> {
    match matrix.dtype {
        DType::F16 => unpack(slice_mut(view)?, matrix, &convert(values, f16::from_f32)),
        DType::BF16 => unpack(slice_mut(view)?, matrix, &convert(values, bf16::from_f32)),
        _ => unpack(slice_mut(view)?, matrix, values),
    }
    Ok(())
}

/// A vector of any integer type as i64; a u32 is read as the i32 of the same bits.
///
/// # Errors
/// For what is no host memory of that type.
pub fn ints(view: View<'_>) -> Result<Cow<'_, [i64]>> {
    Ok(match view.dtype() {
        DType::I32 => convert(slice(view)?, |value: i32| i64::from(value)),
        DType::U32 => convert(slice(view)?, |value: u32| i64::from(value.cast_signed())),
        _ => Cow::Borrowed(slice(view)?),
    })
}

/// A vector of truth values, each true if it is not 0.
///
/// # Errors
/// For what is no host memory.
pub fn truths(view: View<'_>) -> Result<Vec<bool>> {
    let (Place::Host(bytes), size) = (view.place(), view.dtype().size()) else {
        return Err(not_host());
    };
    Ok(bytes.chunks(size).map(|value| value.iter().any(|byte| *byte != 0)).collect())
}

/// OR-s bits into the caller's flags word, if there is one.
///
/// # Errors
/// For what is no host memory of that type.
pub fn raise(flags: Option<ViewMut<'_>>, bits: u32) -> Result<()> {
    if let Some(flags) = flags {
        slice_mut::<u32>(flags)?[0] |= bits;
    }
    Ok(())
}
