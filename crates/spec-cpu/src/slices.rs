//! Checked views as slices, rows and workspace.

use std::ops::Range;
use std::sync::atomic::AtomicI32;

use rayon::iter::Either;
use rayon::prelude::*;
use spec_core::{DType, Device, Element, Error, Matrix, Place, Result, Status, View, ViewMut};

fn not_host() -> Error {
    // Not reached by way of a `Descriptor`: `Signature::fit` compares dtype, device and
    // alignment before a launch.
    Error::device(Device::CPU, Status::InternalError, "a checked view is no host slice")
}

/// A checked view as a slice.
pub(crate) fn slice<T: Element>(view: View<'_>) -> Result<&[T]> {
    view.host().ok_or_else(not_host)
}

/// A checked mutable view as a slice.
pub(crate) fn slice_mut<T: Element>(view: ViewMut<'_>) -> Result<&mut [T]> {
    view.host().ok_or_else(not_host)
}

/// Reads a value that decides an address, a length or an index.
///
/// The compiler may repeat an ordinary read of a shared slice, since the contents of a
/// shared slice do not change. A volatile read happens exactly once: the value that was
/// compared with a bound is the value that is used, even if another thread writes to the
/// caller's memory during the call. (See "Arguments that change during a call" in the
/// documentation of the crate.)
#[inline(always)]
pub(crate) fn once<T: Element>(value: &T) -> T {
    // SAFETY: a reference is aligned and valid for reading.
    unsafe { std::ptr::read_volatile(value) }
}

/// A slice as atomics, to which several threads can write at the same time.
pub(crate) fn shared(slice: &mut [i32]) -> &[AtomicI32] {
    let (data, len) = (slice.as_mut_ptr().cast::<AtomicI32>(), slice.len());
    // SAFETY: an `AtomicI32` has the size and the alignment of an i32, and the result borrows
    // the slice exclusively.
    unsafe { std::slice::from_raw_parts(data, len) }
}

/// ORs bits into the caller's flags word, if there is one.
pub(crate) fn raise(flags: Option<ViewMut<'_>>, bits: u32) -> Result<()> {
    if let Some(flags) = flags {
        slice_mut::<u32>(flags)?[0] |= bits;
    }
    Ok(())
}

/// A matrix to read.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a, T> {
    data: &'a [T],
    cols: usize,
    stride: usize,
}

impl<'a, T: Element> Rows<'a, T> {
    pub(crate) fn new(view: View<'a>, matrix: Matrix) -> Result<Self> {
        Ok(Rows { data: slice(view)?, cols: matrix.cols, stride: matrix.row_stride })
    }

    pub(crate) fn row(&self, index: usize) -> &'a [T] {
        &self.data[index * self.stride..][..self.cols]
    }

    /// The given rows, in order: as one slice if they lie without gaps, else one slice per row.
    pub(crate) fn spans(&self, rows: Range<usize>) -> impl Iterator<Item = &'a [T]> {
        let Rows { data, cols, stride } = *self;
        let packed = stride == cols && !rows.is_empty();
        let (count, cols) = if packed { (1, cols * rows.len()) } else { (rows.len(), cols) };
        (0..count).map(move |index| &data[(rows.start + index) * stride..][..cols])
    }
}

/// The rows of a matrix to write, in parallel. There are no items if the rows have no columns.
pub(crate) fn rows_mut<T: Element>(
    data: &mut [T],
    matrix: Matrix,
) -> impl IndexedParallelIterator<Item = &mut [T]> {
    let step = matrix.row_stride.max(matrix.cols).max(1);
    let cols = matrix.cols;
    data.par_chunks_mut(step).take(matrix.rows).map(move |row| &mut row[..cols])
}

/// The rows of a matrix to write, in parallel shares of `share` rows.
pub(crate) fn shares_mut<T: Element>(
    data: &mut [T],
    matrix: Matrix,
    share: usize,
) -> impl IndexedParallelIterator<Item = impl Iterator<Item = &mut [T]>> {
    let step = matrix.row_stride.max(matrix.cols).max(1);
    let (rows, cols) = (matrix.rows, matrix.cols);
    // The last row may end without the gap that follows other rows.
    let used = rows.checked_sub(1).map_or(0, |last| last * matrix.row_stride + cols);
    let shares = data[..used].par_chunks_mut(step * share.max(1));
    shares.map(move |share| share.chunks_mut(step).map(move |row| &mut row[..cols]))
}

/// As [`shares_mut`], for a matrix that may be absent: then there are `shares` items, all `None`.
pub(crate) fn optional_shares_mut<'a, T: Element>(
    view: Option<ViewMut<'a>>,
    matrix: Option<Matrix>,
    share: usize,
    shares: usize,
) -> Result<impl IndexedParallelIterator<Item = Option<impl Iterator<Item = &'a mut [T]>>>> {
    Ok(match (view, matrix) {
        (Some(view), Some(matrix)) => {
            Either::Left(shares_mut(slice_mut(view)?, matrix, share).map(Some))
        }
        _ => Either::Right((0..shares).into_par_iter().map(|_| None)),
    })
}

/// The rows of an output that may be absent.
pub(crate) struct Out<'a, T> {
    data: &'a mut [T],
    rows: Option<Matrix>,
}

impl<'a, T: Element> Out<'a, T> {
    pub(crate) fn new(view: Option<ViewMut<'a>>, rows: Option<Matrix>) -> Result<Self> {
        Ok(Out { data: view.map(slice_mut::<T>).transpose()?.unwrap_or_default(), rows })
    }

    pub(crate) fn fill(&mut self, row: usize, value: T) {
        if let Some(rows) = self.rows {
            self.data[row * rows.row_stride..][..rows.cols].fill(value);
        }
    }

    pub(crate) fn set(&mut self, row: usize, column: usize, value: T) {
        if let Some(rows) = self.rows {
            self.data[row * rows.row_stride + column] = value;
        }
    }
}

/// u32 words as the i32 values of the same bits: the largest u32 is -1.
fn signed(words: &[u32]) -> &[i32] {
    // `from_bytes` succeeds: size and alignment of both types are the same.
    spec_core::dtype::from_bytes(spec_core::dtype::as_bytes(words)).unwrap_or_default()
}

/// A type that ids and indices may have. A u32 is read as the i32 of the same bits.
pub(crate) trait Int: Element {
    fn wide(self) -> i64;
    fn of(value: i32) -> Self;
}

impl Int for i32 {
    fn wide(self) -> i64 {
        i64::from(self)
    }

    fn of(value: i32) -> Self {
        value
    }
}

impl Int for u32 {
    fn wide(self) -> i64 {
        i64::from(self.cast_signed())
    }

    fn of(value: i32) -> Self {
        value.cast_unsigned()
    }
}

impl Int for i64 {
    fn wide(self) -> i64 {
        self
    }

    fn of(value: i32) -> Self {
        i64::from(value)
    }
}

/// Integers of 32 or 64 bits. An integer may decide an address, so each is read once.
#[derive(Clone, Copy)]
pub(crate) enum Ints<'a> {
    I32(&'a [i32]),
    I64(&'a [i64]),
}

impl<'a> Ints<'a> {
    pub(crate) fn new(view: View<'a>) -> Result<Self> {
        match view.dtype() {
            DType::I64 => Ok(Ints::I64(slice(view)?)),
            DType::U32 => Ok(Ints::I32(signed(slice(view)?))),
            _ => Ok(Ints::I32(slice(view)?)),
        }
    }

    pub(crate) fn get(&self, index: usize) -> i64 {
        match self {
            Ints::I32(values) => i64::from(once(&values[index])),
            Ints::I64(values) => once(&values[index]),
        }
    }

    pub(crate) fn has(&self, value: i64) -> bool {
        match self {
            Ints::I32(values) => values.iter().any(|other| i64::from(*other) == value),
            Ints::I64(values) => values.contains(&value),
        }
    }
}

/// Truth values of any size in bytes. A value is true if any of its bytes is not 0.
#[derive(Clone, Copy)]
pub(crate) struct Bools<'a> {
    bytes: &'a [u8],
    size: usize,
}

impl<'a> Bools<'a> {
    pub(crate) fn new(view: View<'a>) -> Result<Self> {
        match view.place() {
            Place::Host(bytes) => Ok(Bools { bytes, size: view.dtype().size() }),
            _ => Err(not_host()),
        }
    }

    pub(crate) fn get(&self, index: usize) -> bool {
        self.bytes[index * self.size..][..self.size].iter().any(|byte| *byte != 0)
    }
}

const ALIGN: usize = 64;

/// Bytes of a workspace from which [`Workspace`] can take pieces of the given sizes in bytes,
/// each aligned. A sum that overflows becomes `usize::MAX`, a size that no caller can allocate.
pub(crate) fn workspace_size(pieces: &[usize]) -> usize {
    let bytes = pieces.iter().fold(0usize, |sum, &piece| sum.saturating_add(piece));
    if bytes == 0 { 0 } else { bytes.saturating_add(pieces.len() * (ALIGN - 1)) }
}

/// A workspace, from whose front pieces are taken.
pub(crate) struct Workspace<'a>(&'a mut [u8]);

impl<'a> Workspace<'a> {
    pub(crate) fn new(view: ViewMut<'a>) -> Result<Self> {
        match view.into_place() {
            spec_core::PlaceMut::Host(bytes) => Ok(Workspace(bytes)),
            _ => Err(not_host()),
        }
    }

    /// The next `len` elements. Their contents are unspecified.
    pub(crate) fn take<T: Element>(&mut self, len: usize) -> Result<&'a mut [T]> {
        let bytes = std::mem::take(&mut self.0);
        let skip = bytes.as_ptr().align_offset(ALIGN).min(bytes.len());
        let size = len * size_of::<T>();
        let (piece, rest) = bytes[skip..].split_at_mut_checked(size).ok_or_else(|| {
            Error::device(Device::CPU, Status::InsufficientWorkspace, "a piece is missing")
        })?;
        self.0 = rest;
        spec_core::dtype::from_bytes_mut(piece).ok_or_else(not_host)
    }
}
