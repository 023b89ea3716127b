//! Splits matrices that are larger than a binding into windows of rows and columns.

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
    /// Windows that together cover `matrices`, which all have the same number of rows. Each window
    /// of each matrix fits a binding. Columns are split only where a single row is too large for a
    /// binding, and only at multiples of `unit`; `None` where even `unit` columns are too large.
    /// [`Window::of`] is empty for a matrix without elements.
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
    /// Splits the window into windows of at most `max_rows` rows.
    pub(crate) fn parts(&self, max_rows: usize) -> impl Iterator<Item = Window> {
        let (rows, cols) = (self.rows.clone(), self.cols.clone());
        let end = rows.end;
        rows.step_by(max_rows).map(move |row| Window {
            rows: row..end.min(row.saturating_add(max_rows)),
            cols: cols.clone(),
        })
    }

    /// The elements of `matrix` that lie in this window. `region` starts at the matrix's first
    /// element.
    pub(crate) fn of<'a>(&self, matrix: &Matrix, region: Region<'a>) -> Region<'a> {
        let cols = self.cols.start.min(matrix.cols)..self.cols.end.min(matrix.cols);
        if self.rows.is_empty() || cols.is_empty() {
            return Region::nothing();
        }
        let stride = matrix.row_stride as u64;
        let start = self.rows.start as u64 * stride + cols.start as u64;
        region.elements(start, (self.rows.len() as u64 - 1) * stride + cols.len() as u64)
    }

    /// The row stride of `matrix` inside this window, in elements, for the shader; 0 where the
    /// window has no second row. Two rows in one binding have a stride that fits 32 bits.
    pub(crate) fn stride(&self, matrix: &Matrix) -> u32 {
        if self.rows.len() < 2 { 0 } else { matrix.row_stride as u32 }
    }
}
