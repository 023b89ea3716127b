//! Reads the column of keys from the fields of records.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::Options;
use super::grammar::{Grammar, Mode};
use super::machine::{Fault, Machine, Reached, Record, Wanted};
use super::window::Window;
use crate::content::MARK;
use crate::error::{SHOWN, missing, twice};
use crate::text::bad::{BadLines, First};
use crate::text::parse::number;
use crate::{Error, Key, Place, Result, Skipped};

/// The largest number of columns in a header.
const MAX_COLUMNS: usize = 100_000;
/// The largest number of bytes of a field that an error shows.
const MAX_SHOWN: usize = 40;

/// The column of a file that is read, and the records without a key that were left out.
pub(super) struct Column {
    pub(super) path: PathBuf,
    name: String,
    options: Options,
    grammar: Grammar,
    /// The column's index, and the number of columns.
    index: usize,
    columns: usize,
    bad: BadLines,
    nulls: AtomicU64,
    blanks: AtomicU64,
    /// Whether the input can be read only once.
    is_stream: bool,
}

/// The content of a record's field in the column.
enum Value<K> {
    Empty,
    Key(K),
    /// The start of a field that is not a number.
    Other(String),
}

/// The reason why a record has no key. It is about the record as a whole, or about the byte at
/// `at`.
struct Bad {
    at: u64,
    is_whole: bool,
    message: String,
}

/// A function that gives the line and column of a byte of the file, both from 1.
pub(super) type Locate<'a> = &'a dyn Fn(u64) -> Result<(u64, u64)>;

/// Reads the column's keys from pieces of the file.
pub(super) struct Reader<'a, K> {
    column: &'a Column,
    pub(super) machine: Machine<'a>,
    value: Value<K>,
}

/// Where a call of a [`Reader`] stops.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Until {
    /// At the end of the piece, or when there is no more room for keys.
    Full,
    /// As [`Full`](Self::Full), and also at the end of a record.
    Record,
}

impl Column {
    /// Reads the header and finds the column `name`. `more` reads the next piece into an empty
    /// buffer, and nothing at the end of the input; the first piece must be long enough for a byte
    /// order mark. Also returns the last piece, and how many of its bytes belong to the header.
    pub(super) fn find(
        path: &Path,
        name: &str,
        options: Options,
        is_stream: bool,
        mut more: impl FnMut(&mut Vec<u8>) -> Result<()>,
    ) -> Result<(Self, Window, usize)> {
        let grammar = Grammar::new(options.delimiter);
        let bad = |message: String| Error::data(path, Place::Whole, message);
        let (mut window, mut at) = (Window::default(), 0);
        more(&mut window.piece)?;
        if window.piece.starts_with(MARK) {
            at = MARK.len();
        }
        let mut machine = Machine::new(&grammar, Wanted::All, at as u64);
        let (mut names, mut found, mut columns, mut blanks) = (Vec::new(), Vec::new(), 0, 0);
        let record = loop {
            let mut note = |field: &[u8]| {
                if field == name.as_bytes() {
                    found.push(columns);
                }
                if names.len() <= SHOWN {
                    names.push(String::from_utf8_lossy(&field[..field.len().min(80)]).into_owned());
                }
            };
            let (taken, reached) = machine.field(&window.piece[at..], &mut note);
            at += taken;
            match reached {
                Reached::Piece => {
                    more(window.slide(machine.places()))?;
                    at = 0;
                    if window.piece.is_empty() {
                        break machine.finish(note);
                    }
                }
                Reached::Record(record) if record.is_blank => {
                    (names, found) = (Vec::new(), Vec::new());
                    blanks += 1;
                }
                Reached::Record(record) => break Some(record),
                Reached::Field => columns += 1,
            }
            if columns > MAX_COLUMNS {
                return Err(bad("has no header that could be one".to_owned()));
            }
        };
        let record = record.filter(|record| !record.is_blank);
        let Some(Record { fields, fault, .. }) = record else {
            return Err(bad(format!("is empty: it has no column {name}")));
        };
        if let Some(fault) = fault {
            let (at, message) = in_words(fault);
            let (line, column) = window.place(at);
            return Err(Error::data(path, Place::Line { line, column }, message));
        }
        let index = match found[..] {
            [index] => index,
            [] => return Err(missing(path, name, names.iter().map(String::as_str))),
            _ => return Err(twice(path, name)),
        };
        let column = Column {
            path: path.to_owned(),
            name: name.to_owned(),
            options,
            index,
            columns: fields,
            bad: BadLines::default(),
            nulls: AtomicU64::new(0),
            blanks: AtomicU64::new(blanks),
            grammar: grammar.clone(),
            is_stream,
        };
        Ok((column, window, at))
    }

    pub(super) fn grammar(&self) -> &Grammar {
        &self.grammar
    }

    /// A reader of the keys from `offset` on, where a record begins.
    pub(super) fn reader<K: Key>(&self, offset: u64) -> Reader<'_, K> {
        let machine = Machine::new(&self.grammar, Wanted::One(self.index), offset);
        Reader { column: self, machine, value: Value::Empty }
    }

    /// The records that were left out. `locate` is given for a file, whose lines are counted only
    /// now.
    pub(super) fn skipped(&self, locate: Option<Locate<'_>>) -> Result<Skipped> {
        let first = match (self.bad.first(), locate) {
            (Some(First { at, column, message }), Some(locate)) => {
                let bad = Bad { at, is_whole: column == 0, message };
                Some(self.error(bad, locate)?.to_string())
            }
            (first, _) => first.map(|first| first.message),
        };
        let [nulls, blanks] =
            [&self.nulls, &self.blanks].map(|count| count.load(Ordering::Relaxed));
        Ok(Skipped { lines: self.bad.count(), first, nulls, blanks })
    }

    /// The key of a record; `None` for a blank line or a null that is left out. In a table of one
    /// column, a blank line is a record whose field is empty.
    fn key<K: Key>(
        &self,
        record: &Record,
        value: &Value<K>,
        machine: &Machine<'_>,
    ) -> Result<Option<K>, Bad> {
        let marks = machine.marks();
        let bad = |at, is_whole, message| Bad { at, is_whole, message };
        let name = &self.name;
        if record.is_blank && self.columns > 1 {
            self.blanks.fetch_add(1, Ordering::Relaxed);
            return Ok(None);
        }
        if let Some(fault) = record.fault {
            let (at, message) = in_words(fault);
            return Err(bad(at, false, message));
        }
        if record.fields != self.columns {
            let (fields, expected) = (record.fields, self.columns);
            let message = format!("has {fields} fields where the header has {expected}");
            return Err(bad(marks.record, true, message));
        }
        match value {
            Value::Key(key) => Ok(Some(*key)),
            Value::Empty if self.options.skip_nulls => {
                self.nulls.fetch_add(1, Ordering::Relaxed);
                Ok(None)
            }
            Value::Empty => {
                let message =
                    format!("the field `{name}` is empty, and nothing is no key (--skip-nulls)");
                Err(bad(marks.wanted, false, message))
            }
            Value::Other(shown) => {
                let (min, max) = (K::MIN, K::MAX);
                let message = format!(
                    "the field `{name}` is \"{shown}\", which is no number from {min} to {max}"
                );
                Err(bad(marks.wanted, false, message))
            }
        }
    }

    /// Handles a record without a key: it is left out, or an error.
    fn without_key(&self, bad: Bad, locate: Locate<'_>) -> Result<()> {
        if !self.options.lenient {
            return Err(self.error(bad, locate)?);
        }
        self.bad.add(bad.at, || {
            let column = u64::from(!bad.is_whole);
            if !self.is_stream {
                return Ok((column, bad.message));
            }
            // The place is computed now, because the bytes of a stream are not kept.
            Ok((column, self.error(bad, locate)?.to_string()))
        })
    }

    fn error(&self, bad: Bad, locate: Locate<'_>) -> Result<Error> {
        let (line, column) = locate(bad.at)?;
        let place = if bad.is_whole { Place::Row(line) } else { Place::Line { line, column } };
        Ok(Error::data(&self.path, place, bad.message))
    }
}

impl<K: Key> Value<K> {
    fn of(field: &[u8]) -> Self {
        if field.is_empty() {
            return Value::Empty;
        }
        number(field).map_or_else(
            || {
                let shown = String::from_utf8_lossy(&field[..field.len().min(MAX_SHOWN)]);
                let more = if field.len() > MAX_SHOWN { ".." } else { "" };
                Value::Other(format!("{shown}{more}"))
            },
            Value::Key,
        )
    }
}

impl<K: Key> Reader<'_, K> {
    /// Parses bytes from the start of `piece` and writes keys to the start of `keys`. Returns the
    /// number of bytes and of keys.
    pub(super) fn read(
        &mut self,
        piece: &[u8],
        keys: &mut [K],
        until: Until,
        locate: Locate<'_>,
    ) -> Result<(usize, usize)> {
        let (mut at, mut done) = (0, 0);
        while done < keys.len() {
            let value = &mut self.value;
            let (taken, reached) =
                self.machine.field(&piece[at..], |field| *value = Value::of(field));
            at += taken;
            match reached {
                Reached::Field => {}
                Reached::Piece => break,
                Reached::Record(record) => {
                    if let Some(key) = self.settle(&record, locate)? {
                        keys[done] = key;
                        done += 1;
                    }
                    if until == Until::Record {
                        break;
                    }
                }
            }
        }
        Ok((at, done))
    }

    /// The key of the last record of a file, if that record has no line's end and has a key.
    pub(super) fn finish(&mut self, locate: Locate<'_>) -> Result<Option<K>> {
        let value = &mut self.value;
        let record = self.machine.finish(|field| *value = Value::of(field));
        record.map_or(Ok(None), |record| self.settle(&record, locate))
    }

    /// Whether a record has begun and not ended.
    pub(super) fn is_inside(&self) -> bool {
        self.machine.mode() != Mode::Record
    }

    #[inline]
    fn settle(&mut self, record: &Record, locate: Locate<'_>) -> Result<Option<K>> {
        match self.column.key(record, &self.value, &self.machine) {
            Ok(key) => Ok(key),
            Err(bad) => self.column.without_key(bad, locate).map(|()| None),
        }
    }
}

/// The offset of a fault in a record, and the fault in words.
fn in_words(fault: Fault) -> (u64, String) {
    match fault {
        Fault::Behind(at, byte) => {
            let words = format!(
                "'{}' stands behind the closing quote of a field; within quotes, a quote is \
                 written twice",
                byte.escape_ascii()
            );
            (at, words)
        }
        Fault::Open(at) => (at, "a quote that is never closed".to_owned()),
    }
}
