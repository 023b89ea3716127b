//! Where records and fields end, byte by byte.
//!
//! A field that begins with a quote ends at the next quote that stands alone: two of
//! them are a quote of the field. Such a field may hold delimiters and ends of lines;
//! in all others a quote is a character like any other. Behind the quote that ends a
//! field only a delimiter may follow, or the end of the line: everything else is a
//! fault of the record, whose field goes on as one without quotes.

use memchr::{memchr, memrchr, memrchr2};

/// What the bytes before a place mean for those behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// A record begins, or the file ends.
    Record,
    /// A field begins that is not the first of its record.
    Field,
    /// In a field without quotes.
    Bare,
    /// As [`Bare`](Self::Bare), in a record that has one carriage return so far: a
    /// blank line, perhaps.
    Blank,
    /// In a field with quotes.
    Quoted,
    /// Behind a quote in such a field, which ends there unless another one follows.
    Closed,
    /// Behind a carriage return that follows the end of such a field.
    Return,
}

use Mode::{Bare, Blank, Closed, Field, Quoted, Record, Return};

const MODES: [Mode; 7] = [Record, Field, Bare, Blank, Quoted, Closed, Return];

/// What a byte ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// A field that others follow in its record.
    Field,
    /// A field and its record.
    Record,
}

/// What a byte does.
pub(super) struct Step {
    pub(super) mode: Mode,
    pub(super) end: Option<End>,
    /// Whether it may not stand there.
    pub(super) fault: bool,
}

/// The mode behind some bytes for every [`Mode`] before them.
pub(super) struct Passage([Mode; MODES.len()]);

impl Passage {
    pub(super) fn from(&self, mode: Mode) -> Mode {
        self.0[mode as usize]
    }
}

#[derive(Clone, Debug)]
pub(super) struct Grammar {
    delimiter: u8,
    /// The bytes that a field without quotes does not have.
    ends: [bool; 256],
}

impl Grammar {
    pub(super) fn new(delimiter: u8) -> Self {
        let mut ends = [false; 256];
        ends[usize::from(delimiter)] = true;
        ends[usize::from(b'\n')] = true;
        Grammar { delimiter, ends }
    }

    /// How many of the first bytes leave the mode as it is.
    #[inline]
    pub(super) fn skip(&self, mode: Mode, bytes: &[u8]) -> usize {
        let end = match mode {
            Bare => bytes.iter().position(|byte| self.ends[usize::from(*byte)]),
            Quoted => memchr(b'"', bytes),
            _ => return 0,
        };
        end.unwrap_or(bytes.len())
    }

    /// What one byte does.
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

    /// The mode behind `bytes`, whatever it is before them.
    pub(super) fn passage(&self, bytes: &[u8]) -> Passage {
        /// Bytes after which modes are mostly one: some fields.
        const SOME: usize = 512;
        let mut modes = MODES;
        if memchr(b'"', bytes).is_none() {
            // Nothing begins or ends quotes, so that the last field says it.
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

    /// Where the first record ends.
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

    /// Where the last record ends.
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
