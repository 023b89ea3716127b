//! Finds the line and column of a byte in a file that is read piece by piece.

use memchr::{memchr_iter, memrchr};

/// A position in a file: the byte at `offset` is in line `line`, which starts at the byte
/// `start`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lines {
    pub(crate) offset: u64,
    line: u64,
    start: u64,
}

impl Default for Lines {
    /// The start of a file.
    fn default() -> Self {
        Lines { offset: 0, line: 1, start: 0 }
    }
}

impl Lines {
    /// Moves the position over the bytes that follow.
    pub(crate) fn pass(&mut self, bytes: &[u8]) {
        self.line += memchr_iter(b'\n', bytes).count() as u64;
        if let Some(last) = memrchr(b'\n', bytes) {
            self.start = self.offset + last as u64 + 1;
        }
        self.offset += bytes.len() as u64;
    }

    /// The line, and the column in bytes; both count from 1.
    pub(crate) fn place(&self) -> (u64, u64) {
        (self.line, self.offset - self.start + 1)
    }
}
