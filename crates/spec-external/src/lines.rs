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

/// The piece of a file that is being parsed. The next piece replaces it.
#[derive(Debug, Default)]
pub(crate) struct Window {
    /// The position of the start of the piece.
    pub(crate) lines: Lines,
    pub(crate) piece: Vec<u8>,
    /// The offset, line and column of some bytes before the piece.
    kept: Vec<(u64, (u64, u64))>,
}

impl Window {
    /// The line and column of the byte at offset `at`, which is in the piece or was kept.
    pub(crate) fn place(&self, at: u64) -> (u64, u64) {
        let kept = self.kept.iter().find(|(offset, _)| *offset == at);
        if let (Some((_, place)), true) = (kept, at < self.lines.offset) {
            return *place;
        }
        let mut lines = self.lines;
        let before = at.saturating_sub(lines.offset) as usize;
        lines.pass(&self.piece[..before.min(self.piece.len())]);
        lines.place()
    }

    /// Moves the window to an empty piece that starts at another position.
    pub(crate) fn jump(&mut self, lines: Lines) {
        self.lines = lines;
        self.piece.clear();
        self.kept.clear();
    }

    /// Moves the window to the piece that follows, and returns the buffer to read it into. The
    /// line and column of the offsets `places` stay known.
    pub(crate) fn slide(&mut self, places: impl Iterator<Item = u64>) -> &mut Vec<u8> {
        self.kept = places.map(|at| (at, self.place(at))).collect();
        self.lines.pass(&self.piece);
        self.piece.clear();
        &mut self.piece
    }
}
