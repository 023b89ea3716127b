//! Splits pieces of a file into records and fields. A piece may end anywhere in a record.
//!
//! The crate csv-core, with which tests compare, accepts every text. It does not tell where a quote
//! was opened that is never closed, which byte stands behind a closing quote, or that a line was
//! blank, and a reader of it cannot start within quotes, as a part of a file may.

use super::grammar::{End, Grammar, Mode};
use crate::text::parse::LONGEST;

/// Reads fields of records. A field may be longer than memory: only the wanted
/// field is kept, and only as many bytes of it as a number may have.
pub(super) struct Machine<'a> {
    grammar: &'a Grammar,
    wanted: Wanted,
    mode: Mode,
    /// The offset of the next byte in the file.
    offset: u64,
    /// The number of fields of the record that have ended.
    fields: usize,
    /// The bytes of the wanted field that are kept so far: those from earlier pieces, and those in
    /// quotes.
    value: Vec<u8>,
    marks: Marks,
    fault: Option<Fault>,
}

/// The fields whose bytes are kept.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// Every field.
    All,
    /// The field with this index.
    One(usize),
}

/// The offsets of the starts of the record, of its wanted field, and of its last quoted field.
#[derive(Clone, Copy, Default)]
pub(super) struct Marks {
    pub(super) record: u64,
    pub(super) wanted: u64,
    quote: u64,
}

/// The first fault of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// A byte behind the closing quote of a field: its offset and value.
    Behind(u64, u8),
    /// A quote that is never closed: its offset.
    Open(u64),
}

/// A record that has ended.
pub(super) struct Record {
    pub(super) fields: usize,
    pub(super) is_blank: bool,
    pub(super) fault: Option<Fault>,
}

/// Where [`Machine::field`] stopped.
pub(super) enum Reached {
    /// At the end of the piece.
    Piece,
    /// At the end of a field that is not the last of its record.
    Field,
    /// At the end of a record.
    Record(Record),
}

impl<'a> Machine<'a> {
    /// A machine at the start of a record, which is at `offset` in the file.
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

    /// The offsets in the file that an error about the current record may name.
    pub(super) fn places(&self) -> impl Iterator<Item = u64> {
        let Marks { record, wanted, quote } = self.marks;
        let fault = self.fault.map(|fault| match fault {
            Fault::Behind(at, _) | Fault::Open(at) => at,
        });
        [record, wanted, quote].into_iter().chain(fault)
    }

    /// Parses the rest of a field from the start of `bytes`. Returns the number of bytes parsed,
    /// and where it stopped. If the field is wanted and ends, `value` is called with the field,
    /// without its quotes.
    #[inline]
    pub(super) fn field(&mut self, bytes: &[u8], value: impl FnOnce(&[u8])) -> (usize, Reached) {
        let is_wanted = self.is_wanted();
        // `from` is the index of the first byte of the field that is not kept yet.
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

    /// Called at the end of the file. Returns the last record if it had no line's end.
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

    /// Calls `value` with a field, whose last bytes are `rest`.
    #[inline]
    fn give(&mut self, rest: &[u8], before: Mode, end: End, value: impl FnOnce(&[u8])) {
        let field = if self.value.is_empty() {
            rest
        } else {
            self.keep(rest);
            &self.value
        };
        // A carriage return at the end of a record belongs to the line's end, unless it is in
        // quotes.
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
