//! The piece of a file that is being parsed, and where its bytes are in the file.

use crate::lines::Lines;

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
