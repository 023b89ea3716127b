//! A matrix on the host with room between its rows.

use spec::{DType, Element, TensorDesc};

/// Rows of `cols` elements, `stride` apart; the gaps hold a poison value that
/// nobody may read as data or overwrite.
#[derive(Clone, Debug)]
pub struct Grid<T> {
    pub rows: usize,
    pub cols: usize,
    pub stride: usize,
    pub data: Vec<T>,
    poison: T,
}

impl<T: Element + PartialEq> Grid<T> {
    /// Lays packed rows out with `gap` elements between them.
    pub fn new(rows: usize, cols: usize, gap: usize, packed: &[T], poison: T) -> Self {
        assert_eq!(packed.len(), rows * cols);
        let stride = cols + gap;
        let mut data = vec![poison; rows * stride];
        for row in 0..rows {
            data[row * stride..][..cols].copy_from_slice(&packed[row * cols..][..cols]);
        }
        Grid { rows, cols, stride, data, poison }
    }

    /// Only poison: an output.
    pub fn output(rows: usize, cols: usize, gap: usize, poison: T) -> Self {
        Self::new(rows, cols, gap, &vec![poison; rows * cols], poison)
    }

    pub fn desc(&self) -> TensorDesc {
        self.desc_as(T::DTYPE)
    }

    pub fn desc_as(&self, dtype: DType) -> TensorDesc {
        let strides = [self.stride as isize, 1];
        TensorDesc::with_strides(dtype, [self.rows, self.cols], strides)
    }

    /// The rows without their gaps, from what a device gave back.
    pub fn packed(&self, data: &[T]) -> Vec<T> {
        let mut packed = Vec::with_capacity(self.rows * self.cols);
        for row in data.chunks(self.stride.max(1)).take(self.rows) {
            let (row, gap) = row.split_at(self.cols);
            packed.extend_from_slice(row);
            assert!(gap.iter().all(|v| *v == self.poison), "a gap between rows was written");
        }
        packed
    }
}
