//! A column of a CSV file.
//!
//! The first record names the columns. Fields may be quoted, as RFC 4180 has it;
//! lines end with a newline, or a carriage return and a newline; blank lines are
//! skipped. A field of the column is a decimal number, as in
//! [text](crate::text).

use std::io::Read;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use csv_core::{ReadFieldResult, Reader, ReaderBuilder};
use memchr::memchr_iter;

use crate::error::{SHOWN, missing};
use crate::input::Data;
use crate::text::bad::{BadLines, First};
use crate::text::parse::{LONGEST, number};
use crate::watch::lock;
use crate::{Error, Input, Key, Part, Place, Result, Skipped, Source};

/// Bytes that are read at once.
const BUFFER: usize = 256 << 10;
/// The most columns that a header may have.
const MOST_COLUMNS: usize = 100_000;

/// How a file is read.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Options {
    /// The byte between fields: a comma.
    pub delimiter: u8,
    /// Leaves out records that have no key in the column, or more or fewer fields
    /// than the header, and counts them ([`Skipped`]).
    pub lenient: bool,
    /// Leaves out records whose field is empty, and counts them.
    pub skip_nulls: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { delimiter: b',', lenient: false, skip_nulls: false }
    }
}

/// Reads column `column`; several files are read at once, one file by one thread.
///
/// # Errors
/// [`Error::Io`] where it cannot be read, [`Error::Data`] where the column is
/// missing or there twice.
pub fn read<K: Key>(input: Input, column: &str, options: Options) -> Result<Box<dyn Source<K>>> {
    let Input { name: path, data, memory, .. } = input;
    let (reader, bytes): (Box<dyn Read + Send>, _) = match data {
        Data::File(file, bytes) => (Box::new(file), Some(bytes)),
        Data::Stream(reader) => (reader, None),
    };
    let core = ReaderBuilder::new().delimiter(options.delimiter).build();
    let buffer = vec![0; BUFFER];
    let mut records =
        Records { path, core, reader, buffer, at: 0, filled: 0, ended: false, line: 1, bytes: 0 };
    let (index, columns) = records.header(column)?;
    Ok(Box::new(Csv {
        path: records.path.clone(),
        column: column.to_owned(),
        index,
        columns,
        options,
        bytes,
        memory,
        bad: BadLines::default(),
        nulls: AtomicU64::new(0),
        records: Mutex::new(records),
    }))
}

struct Csv {
    path: PathBuf,
    column: String,
    /// The column's place among so many.
    index: usize,
    columns: usize,
    options: Options,
    bytes: Option<u64>,
    memory: usize,
    bad: BadLines,
    nulls: AtomicU64,
    records: Mutex<Records>,
}

/// A file that is being read, field by field.
struct Records {
    path: PathBuf,
    core: Reader,
    reader: Box<dyn Read + Send>,
    buffer: Vec<u8>,
    at: usize,
    filled: usize,
    ended: bool,
    /// The line that `at` is in, from 1.
    line: u64,
    bytes: u64,
}

/// Where a field stands.
#[derive(PartialEq, Eq)]
enum Stands {
    /// Others follow in its record.
    Inside,
    /// It is the last of its record.
    Last,
    /// There is no field: the file has ended.
    Nowhere,
}

impl Records {
    fn take(&mut self, bytes: usize) {
        let taken = &self.buffer[self.at..self.at + bytes];
        self.line += memchr_iter(b'\n', taken).count() as u64;
        self.at += bytes;
        self.bytes += bytes as u64;
    }

    /// Reads on where everything has been taken.
    fn fill(&mut self) -> Result<()> {
        while self.at == self.filled && !self.ended {
            match self.reader.read(&mut self.buffer) {
                Ok(count) => (self.at, self.filled, self.ended) = (0, count, count == 0),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::io("read", &self.path, error)),
            }
        }
        Ok(())
    }

    /// Goes to the next record, over what is left of the last one's end and over
    /// blank lines, so that its line is known.
    fn start(&mut self) -> Result<()> {
        loop {
            self.fill()?;
            let rest = &self.buffer[self.at..self.filled];
            let ends = rest.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
            if ends == 0 {
                return Ok(());
            }
            self.take(ends);
        }
    }

    /// The next field, to `field`; of a longer one as much as shows that.
    fn field(&mut self, field: &mut Vec<u8>) -> Result<Stands> {
        let mut piece = [0; 1024];
        field.clear();
        loop {
            self.fill()?;
            let rest = &self.buffer[self.at..self.filled];
            let (result, taken, given) = self.core.read_field(rest, &mut piece);
            self.take(taken);
            if field.len() <= LONGEST {
                field.extend_from_slice(&piece[..given]);
            }
            match result {
                ReadFieldResult::InputEmpty | ReadFieldResult::OutputFull => {}
                ReadFieldResult::Field { record_end: false } => return Ok(Stands::Inside),
                ReadFieldResult::Field { record_end: true } => return Ok(Stands::Last),
                ReadFieldResult::End => return Ok(Stands::Nowhere),
            }
        }
    }

    /// The place of a column, and how many there are.
    fn header(&mut self, column: &str) -> Result<(usize, usize)> {
        let (mut field, mut names, mut found) = (Vec::new(), Vec::new(), None);
        let mut columns = 0;
        self.start()?;
        loop {
            let stands = self.field(&mut field)?;
            if stands == Stands::Nowhere {
                break;
            }
            if field == column.as_bytes() && found.replace(columns).is_some() {
                return Err(self.bad_header(format!("has two columns {column}")));
            }
            if names.len() <= SHOWN {
                names.push(String::from_utf8_lossy(&field[..field.len().min(80)]).into_owned());
            }
            columns += 1;
            if columns > MOST_COLUMNS {
                return Err(self.bad_header("has no header that could be one".to_owned()));
            }
            if stands == Stands::Last {
                break;
            }
        }
        match found {
            Some(index) => Ok((index, columns)),
            None if columns == 0 => {
                Err(self.bad_header(format!("is empty: it has no column {column}")))
            }
            None => Err(missing(&self.path, column, names.iter().map(String::as_str))),
        }
    }

    fn bad_header(&self, message: String) -> Error {
        Error::data(&self.path, Place::Whole, message)
    }
}

impl Csv {
    /// The record in that line has no key: left out, or an error.
    fn bad_record(&self, line: u64, what: impl FnOnce() -> String) -> Result<()> {
        if self.options.lenient {
            self.bad.add(line, || (1, what()));
            return Ok(());
        }
        Err(Error::data(&self.path, Place::Row(line), what()))
    }

    /// The key of a record, if it has one.
    fn key<K: Key>(&self, line: u64, field: &[u8]) -> Result<Option<K>> {
        let column = &self.column;
        if field.is_empty() {
            if self.options.skip_nulls {
                self.nulls.fetch_add(1, Ordering::Relaxed);
            } else {
                self.bad_record(line, || {
                    format!("column {column} is empty, and nothing is no key (--skip-nulls)")
                })?;
            }
            return Ok(None);
        }
        let key = number::<K>(field);
        if key.is_none() {
            self.bad_record(line, || {
                let shown = String::from_utf8_lossy(&field[..field.len().min(40)]);
                let more = if field.len() > 40 { ".." } else { "" };
                let (least, most) = (K::MIN, K::MAX);
                format!("column {column} is \"{shown}{more}\", no number from {least} to {most}")
            })?;
        }
        Ok(key)
    }
}

impl<K: Key> Source<K> for Csv {
    fn keys(&self) -> Option<u64> {
        None
    }

    fn bytes(&self) -> Option<u64> {
        self.bytes
    }

    fn parts(&self) -> usize {
        1
    }

    fn part_memory(&self) -> usize {
        BUFFER + 2 * LONGEST + self.memory
    }

    fn skipped(&self) -> Result<Skipped> {
        let first = self.bad.first().map(|First { at: line, message, .. }| {
            Error::data(&self.path, Place::Row(line), message).to_string()
        });
        let nulls = self.nulls.load(Ordering::Relaxed);
        Ok(Skipped { lines: self.bad.count(), first, nulls })
    }

    fn open(&self, _part: usize) -> Result<Box<dyn Part<K> + Send + '_>> {
        Ok(Box::new(Fields { csv: self, field: Vec::new(), other: Vec::new(), bytes: 0 }))
    }
}

/// The fields of the column, one after the other.
struct Fields<'a> {
    csv: &'a Csv,
    field: Vec<u8>,
    /// A field of another column.
    other: Vec<u8>,
    bytes: u64,
}

impl<K: Key> Part<K> for Fields<'_> {
    fn read(&mut self, keys: &mut [K]) -> Result<usize> {
        let Fields { csv, field, other, bytes } = self;
        let mut records = lock(&csv.records);
        let mut done = 0;
        while done < keys.len() {
            records.start()?;
            let mut line = records.line;
            let mut fields = 0;
            field.clear();
            loop {
                let is_column = fields == csv.index;
                if is_column {
                    line = records.line;
                }
                let stands = records.field(if is_column { &mut *field } else { &mut *other })?;
                fields += usize::from(stands != Stands::Nowhere);
                if stands != Stands::Inside {
                    break;
                }
            }
            if fields == 0 {
                break;
            }
            if fields != csv.columns {
                let expected = csv.columns;
                csv.bad_record(line, || {
                    format!("has {fields} fields where the header has {expected}")
                })?;
            } else if let Some(key) = csv.key(line, field)? {
                keys[done] = key;
                done += 1;
            }
        }
        *bytes = records.bytes;
        Ok(done)
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }
}
