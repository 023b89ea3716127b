//! Finds the ends of records and fields, byte by byte.
//!
//! A field that begins with a quote ends at the next single quote; two quotes in a row stand for
//! a quote in the field. Such a field may contain delimiters and line ends.
//! In other fields a quote is an ordinary character. Behind the closing quote of a
//! field, only a delimiter or a line's end may follow. Any other byte is a
//! fault of the record, and the field goes on like a field without quotes.

use memchr::{memchr, memrchr, memrchr2};

/// The state of the parser between two bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// At the start of a record, or the end of the file.
    Record,
    /// At the start of a field that is not the first of its record.
    Field,
    /// In a field without quotes.
    Bare,
    /// As [`Bare`](Self::Bare), in a record that consists of one carriage return so far, and so
    /// may be a blank line.
    Blank,
    /// In a field with quotes.
    Quoted,
    /// Behind a quote in a field with quotes, which closes the field unless another quote follows.
    Closed,
    /// Behind a carriage return that follows the closing quote of a field.
    Return,
}

use Mode::{Bare, Blank, Closed, Field, Quoted, Record, Return};

const MODES: [Mode; 7] = [Record, Field, Bare, Blank, Quoted, Closed, Return];

/// The end that a byte makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The end of a field that is not the last of its record.
    Field,
    /// The end of a field and of its record.
    Record,
}

/// The effect of a byte.
pub(super) struct Step {
    pub(super) mode: Mode,
    pub(super) end: Option<End>,
    /// Whether the byte is not allowed at its place.
    pub(super) fault: bool,
}

/// For some bytes: the mode behind them for every [`Mode`] before them.
pub(super) struct Passage([Mode; MODES.len()]);

impl Passage {
    pub(super) fn from(&self, mode: Mode) -> Mode {
        self.0[mode as usize]
    }
}

#[derive(Clone, Debug)]
pub(super) struct Grammar {
    delimiter: u8,
    /// The bytes that end a field without quotes.
    ends: [bool; 256],
}

impl Grammar {
    pub(super) fn new(delimiter: u8) -> Self {
        let mut ends = [false; 256];
        ends[usize::from(delimiter)] = true;
        ends[usize::from(b'\n')] = true;
        Grammar { delimiter, ends }
    }

    /// The number of bytes at the start that do not change the mode.
    #[inline]
    pub(super) fn skip(&self, mode: Mode, bytes: &[u8]) -> usize {
        let end = match mode {
            Bare => bytes.iter().position(|byte| self.ends[usize::from(*byte)]),
            Quoted => memchr(b'"', bytes),
            _ => return 0,
        };
        end.unwrap_or(bytes.len())
    }

    /// The effect of one byte.
    #[inline]
    pub(super) fn step(&self, mode: Mode, byte: u8) -> Step {
        let to = |mode, end| Step { mode, end, fault: false };
        match (mode, byte) {
            (Quoted, b'"') => to(Closed, None),
            (Quoted, _) => to(Quoted, None),
            (Closed, b'"') => to(Quoted, None),
            (Record | Field, b'"') => to(Quoted, None),
            (_, b'\n') => to(Record, Some(End::Record)),
            (Return, byte) => Step { fault: true, ..self.step(Bare, byte) },
            (_, byte) if byte == self.delimiter => to(Field, Some(End::Field)),
            (Closed, b'\r') => to(Return, None),
            (Closed, _) => Step { mode: Bare, end: None, fault: true },
            (Record, b'\r') => to(Blank, None),
            _ => to(Bare, None),
        }
    }

    /// The mode behind `bytes`.
    fn behind(&self, mut mode: Mode, bytes: &[u8]) -> Mode {
        let mut at = 0;
        loop {
            at += self.skip(mode, &bytes[at..]);
            let Some(&byte) = bytes.get(at) else { return mode };
            mode = self.step(mode, byte).mode;
            at += 1;
        }
    }

    /// The modes behind `bytes` for all modes before them.
    pub(super) fn passage(&self, bytes: &[u8]) -> Passage {
        /// The number of bytes, some fields, after which all modes have mostly become the same.
        const SOME: usize = 512;
        let mut modes = MODES;
        if memchr(b'"', bytes).is_none() {
            // Without quotes, the mode depends only on the bytes from the last delimiter or newline
            // on.
            let last = memrchr2(self.delimiter, b'\n', bytes).unwrap_or(0);
            for mode in modes.iter_mut().filter(|mode| **mode != Quoted) {
                *mode = self.behind(*mode, &bytes[last..]);
            }
            return Passage(modes);
        }
        let mut at = 0;
        while at < bytes.len() {
            let before = modes;
            let is_one = before.iter().all(|mode| *mode == before[0]);
            let end = if is_one { bytes.len() } else { (at + SOME).min(bytes.len()) };
            for (index, mode) in before.into_iter().enumerate() {
                let same = before[..index].iter().position(|other| *other == mode);
                modes[index] = match same {
                    Some(same) => modes[same],
                    None => self.behind(mode, &bytes[at..end]),
                };
            }
            at = end;
        }
        Passage(modes)
    }

    /// The index behind the end of the first record; `None` if no record ends in `bytes`.
    pub(super) fn first_end(&self, mut mode: Mode, bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        loop {
            at += self.skip(mode, &bytes[at..]);
            let step = self.step(mode, *bytes.get(at)?);
            (mode, at) = (step.mode, at + 1);
            if step.end == Some(End::Record) {
                return Some(at);
            }
        }
    }

    /// The index behind the end of the last record; `None` if no record ends in `bytes`.
    pub(super) fn last_end(&self, mut mode: Mode, bytes: &[u8]) -> Option<usize> {
        if mode != Quoted && memchr(b'"', bytes).is_none() {
            return memrchr(b'\n', bytes).map(|newline| newline + 1);
        }
        let (mut at, mut last) = (0, None);
        loop {
            at += self.skip(mode, &bytes[at..]);
            let Some(&byte) = bytes.get(at) else { return last };
            let step = self.step(mode, byte);
            (mode, at) = (step.mode, at + 1);
            if step.end == Some(End::Record) {
                last = Some(at);
            }
        }
    }
}
