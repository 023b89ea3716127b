//! Records, piece by piece of a file, however the pieces cut them.

use super::grammar::{End, Grammar, Mode};
use crate::text::parse::LONGEST;

/// Reads fields of records. A field may be longer than memory: of the one that is
/// wanted, as much is kept as a number may have.
pub(super) struct Machine<'a> {
    grammar: &'a Grammar,
    wanted: Wanted,
    mode: Mode,
    /// Where the next byte stands in the file.
    offset: u64,
    /// Fields of the record that have ended.
    fields: usize,
    /// The start of the field that is wanted, where that is not all in one piece.
    value: Vec<u8>,
    marks: Marks,
    fault: Option<Fault>,
}

/// Whose bytes are kept.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// Those of every field.
    All,
    /// Those of the field in that place.
    One(usize),
}

/// Where the record, the field of it that is wanted, and its last quoted field begin.
#[derive(Clone, Copy, Default)]
pub(super) struct Marks {
    pub(super) record: u64,
    pub(super) wanted: u64,
    quote: u64,
}

/// The first thing in a record that may not stand there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// A byte behind the closing quote of a field.
    Behind(u64, u8),
    /// A quote that is never closed.
    Open(u64),
}

/// A record that has ended.
pub(super) struct Record {
    pub(super) fields: usize,
    pub(super) is_blank: bool,
    pub(super) fault: Option<Fault>,
}

/// How far [`Machine::field`] came.
pub(super) enum Reached {
    /// The end of the piece.
    Piece,
    /// The end of a field that others follow.
    Field,
    /// The end of a record.
    Record(Record),
}

impl<'a> Machine<'a> {
    /// At the start of a record, which stands at `offset` in the file.
    pub(super) fn new(grammar: &'a Grammar, wanted: Wanted, offset: u64) -> Self {
        Machine {
            grammar,
            wanted,
            mode: Mode::Record,
            offset,
            fields: 0,
            value: Vec::new(),
            marks: Marks::default(),
            fault: None,
        }
    }

    pub(super) fn mode(&self) -> Mode {
        self.mode
    }

    pub(super) fn marks(&self) -> Marks {
        self.marks
    }

    /// Places in the file that may be named once the record has ended.
    pub(super) fn places(&self) -> impl Iterator<Item = u64> {
        let Marks { record, wanted, quote } = self.marks;
        let fault = self.fault.map(|fault| match fault {
            Fault::Behind(at, _) | Fault::Open(at) => at,
        });
        [record, wanted, quote].into_iter().chain(fault)
    }

    /// Takes the rest of a field, of which `bytes` are the next ones. How many it
    /// took, and what ended there; `value` is given the field, without its quotes,
    /// if it is wanted.
    #[inline]
    pub(super) fn field(&mut self, bytes: &[u8], value: impl FnOnce(&[u8])) -> (usize, Reached) {
        let is_wanted = self.is_wanted();
        // What is wanted and not kept yet begins here.
        let (mut at, mut from) = (0, 0);
        if matches!(self.mode, Mode::Record | Mode::Field) {
            self.begin(is_wanted);
        }
        loop {
            at += self.grammar.skip(self.mode, &bytes[at..]);
            let Some(&byte) = bytes.get(at) else {
                if is_wanted {
                    self.keep(&bytes[from..]);
                }
                self.offset += at as u64;
                return (at, Reached::Piece);
            };
            let step = self.grammar.step(self.mode, byte);
            if step.fault {
                self.fault.get_or_insert(Fault::Behind(self.offset + at as u64, byte));
            }
            let before = std::mem::replace(&mut self.mode, step.mode);
            match (before, step.mode) {
                (Mode::Closed, Mode::Quoted) => from = at,
                (_, Mode::Quoted) => {
                    self.marks.quote = self.offset + at as u64;
                    from = at + 1;
                }
                (Mode::Quoted, Mode::Closed) => {
                    if is_wanted {
                        self.keep(&bytes[from..at]);
                    }
                    from = at + 1;
                }
                (Mode::Closed, Mode::Return) => from = at + 1,
                _ => {}
            }
            at += 1;
            if let Some(end) = step.end {
                self.offset += at as u64;
                if is_wanted {
                    self.give(&bytes[from..at - 1], before, end, value);
                }
                self.fields += 1;
                let reached = match end {
                    End::Field => Reached::Field,
                    End::Record => Reached::Record(self.end(before)),
                };
                return (at, reached);
            }
        }
    }

    /// The file has ended: the record that had not, if there is one.
    pub(super) fn finish(&mut self, value: impl FnOnce(&[u8])) -> Option<Record> {
        let before = std::mem::replace(&mut self.mode, Mode::Record);
        if before == Mode::Record {
            return None;
        }
        let is_wanted = self.is_wanted();
        if before == Mode::Field && is_wanted {
            self.marks.wanted = self.offset;
            self.value.clear();
        }
        if before == Mode::Quoted {
            self.fault.get_or_insert(Fault::Open(self.marks.quote));
        }
        if is_wanted {
            self.give(&[], before, End::Record, value);
        }
        self.fields += 1;
        Some(self.end(before))
    }

    #[inline]
    fn is_wanted(&self) -> bool {
        match self.wanted {
            Wanted::All => true,
            Wanted::One(index) => self.fields == index,
        }
    }

    #[inline]
    fn begin(&mut self, is_wanted: bool) {
        if self.mode == Mode::Record {
            self.marks.record = self.offset;
        }
        if is_wanted {
            self.marks.wanted = self.offset;
            self.value.clear();
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        let room = (LONGEST + 2).saturating_sub(self.value.len());
        self.value.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    /// Gives a field, whose last bytes are `rest`.
    #[inline]
    fn give(&mut self, rest: &[u8], before: Mode, end: End, value: impl FnOnce(&[u8])) {
        let field = if self.value.is_empty() {
            rest
        } else {
            self.keep(rest);
            &self.value
        };
        // Of a line's end, unless it is in quotes.
        let is_bare = matches!(before, Mode::Bare | Mode::Blank) && end == End::Record;
        let stripped = if is_bare { field.strip_suffix(b"\r") } else { None };
        value(stripped.unwrap_or(field));
    }

    fn end(&mut self, before: Mode) -> Record {
        let is_blank = matches!(before, Mode::Record | Mode::Blank);
        let fields = std::mem::take(&mut self.fields);
        Record { fields, is_blank, fault: self.fault.take() }
    }
}
