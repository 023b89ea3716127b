//! Matrices larger than a binding, as windows of rows and columns.

use std::ops::Range;

use spec_core::Matrix;

use crate::Wgpu;
use crate::memory::Region;

/// A part of a matrix that one binding holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) rows: Range<usize>,
    pub(crate) cols: Range<usize>,
}

impl Wgpu {
    /// Windows that cover matrices of equally many rows, so that each window of
    /// each matrix fits a binding. Columns are split at multiples of `unit`,
    /// and only where a single row is too large; `None` where that is not
    /// enough. A matrix without elements takes no part.
    pub(crate) fn windows(&self, matrices: &[Matrix], unit: usize) -> Option<Vec<Window>> {
        let rows = matrices.iter().map(|m| m.rows).max().unwrap_or(0);
        let cols = matrices.iter().map(|m| m.cols).max().unwrap_or(0);
        let fits = |matrix: &Matrix| self.window(matrix.dtype.size() as u64) as usize;
        let whole = matrices.iter().all(|m| m.cols <= fits(m));
        if whole {
            let rows_of = |m: &Matrix| match m.row_stride {
                0 => rows,
                stride => 1 + (fits(m) - m.cols) / stride,
            };
            let height = matrices.iter().map(rows_of).min().unwrap_or(1).max(1);
            let starts = (0..rows).step_by(height);
            let window = |row| Window { rows: row..rows.min(row + height), cols: 0..cols };
            return Some(starts.map(window).collect());
        }
        let width = matrices.iter().map(fits).min().unwrap_or(0) / unit * unit;
        if width == 0 {
            return None;
        }
        let columns = || (0..cols).step_by(width).map(|col| col..cols.min(col + width));
        Some(
            (0..rows)
                .flat_map(|row| columns().map(move |cols| Window { rows: row..row + 1, cols }))
                .collect(),
        )
    }
}

impl Window {
    /// The elements of `matrix`, which starts where `region` does, that lie in
    /// this window.
    pub(crate) fn of<'a>(&self, matrix: &Matrix, region: Region<'a>) -> Region<'a> {
        let cols = self.cols.start.min(matrix.cols)..self.cols.end.min(matrix.cols);
        if self.rows.is_empty() || cols.is_empty() {
            return Region::nothing();
        }
        let stride = matrix.row_stride as u64;
        let start = self.rows.start as u64 * stride + cols.start as u64;
        region.elements(start, (self.rows.len() as u64 - 1) * stride + cols.len() as u64)
    }

    /// The distance between rows of `matrix` inside this window, for the
    /// shader: it fits a word wherever there is a second row.
    pub(crate) fn stride(&self, matrix: &Matrix) -> u32 {
        if self.rows.len() < 2 { 0 } else { matrix.row_stride as u32 }
    }
}
