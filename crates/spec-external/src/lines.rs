//! Lines and columns of places in a file that is seen piece by piece.

use memchr::{memchr_iter, memrchr};

/// A place in a file: the byte at `offset` is in line `line`, which starts at
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
    /// Goes on over the bytes that follow.
    pub(crate) fn pass(&mut self, bytes: &[u8]) {
        self.line += memchr_iter(b'\n', bytes).count() as u64;
        if let Some(last) = memrchr(b'\n', bytes) {
            self.start = self.offset + last as u64 + 1;
        }
        self.offset += bytes.len() as u64;
    }

    /// The line, and the column in bytes, both from 1.
    pub(crate) fn place(&self) -> (u64, u64) {
        (self.line, self.offset - self.start + 1)
    }
}

/// The piece of a file that is being looked at, which is gone when the next one comes.
#[derive(Debug, Default)]
pub(crate) struct Window {
    /// Where the piece starts.
    pub(crate) lines: Lines,
    pub(crate) piece: Vec<u8>,
    /// Line and column of some bytes before it.
    kept: Vec<(u64, (u64, u64))>,
}

impl Window {
    /// The line and column of a byte of the piece, or of one that was kept.
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

    /// Goes to a piece that starts somewhere else, and is empty so far.
    pub(crate) fn jump(&mut self, lines: Lines) {
        self.lines = lines;
        self.piece.clear();
        self.kept.clear();
    }

    /// Goes on to the piece that follows, for which there is a buffer; `places` may
    /// still be asked for.
    pub(crate) fn slide(&mut self, places: impl Iterator<Item = u64>) -> &mut Vec<u8> {
        self.kept = places.map(|at| (at, self.place(at))).collect();
        self.lines.pass(&self.piece);
        self.piece.clear();
        &mut self.piece
    }
}
