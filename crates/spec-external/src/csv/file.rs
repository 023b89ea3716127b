//! A CSV file, read by several threads at once.

use std::fs::File;
use std::path::Path;
use std::sync::{Condvar, Mutex, PoisonError};

use super::Options;
use super::column::{Column, Reader, Until};
use super::grammar::{Mode, Passage};
use crate::sized::SizedFile;
use crate::watch::lock;
use crate::{Key, Part, Result, Skipped, Source};

/// The number of bytes in a part, not counting the rest of its last record.
const PART: u64 = 1 << 20;
/// The number of bytes that are read at once behind a part, for the rest of its last record.
const MORE: usize = 64 << 10;

/// A regular file of records.
///
/// A part has the records that begin in its bytes. Whether a line's end
/// is the end of a record depends on all bytes before it, because it may be in quotes. So each
/// thread computes to which [`Mode`] its part's bytes would lead from every mode. Then the threads
/// tell one another, in the order of the parts, in which mode the next part begins.
pub(super) struct CsvFile {
    file: SizedFile,
    column: Column,
    /// The offset of the first record behind the header.
    start: u64,
    part: u64,
    /// The first part whose begin is not decided, and the mode in which it begins. `None` after a
    /// part has failed: the other parts are not needed any more, and may never be opened.
    border: Mutex<Option<(usize, Mode)>>,
    passed: Condvar,
    /// Buffers of parts that have ended, to be used again.
    buffers: Mutex<Vec<Vec<u8>>>,
}

impl CsvFile {
    pub(super) fn new(
        path: &Path,
        file: File,
        bytes: u64,
        name: &str,
        options: Options,
    ) -> Result<Self> {
        let file = SizedFile::new(path, file, bytes);
        let mut next = 0;
        let more = |piece: &mut Vec<u8>| {
            piece.resize(MORE.min((bytes - next) as usize), 0);
            file.read(piece, next)?;
            next += piece.len() as u64;
            Ok(())
        };
        let (column, window, taken) = Column::find(path, name, options, false, more)?;
        let start = window.lines.offset + taken as u64;
        Ok(CsvFile {
            file,
            column,
            start,
            part: PART,
            border: Mutex::new(Some((0, Mode::Record))),
            passed: Condvar::new(),
            buffers: Mutex::default(),
        })
    }

    /// The offset of a part's end.
    fn end(&self, part: usize) -> u64 {
        (self.start + (part as u64 + 1) * self.part).min(self.file.bytes)
    }

    /// Waits until all earlier parts are decided, and returns the mode in which a part begins.
    /// `None` where an earlier part could not be read.
    fn pass(&self, part: usize, passage: &Passage) -> Option<Mode> {
        let mut border = lock(&self.border);
        loop {
            match *border {
                None => return None,
                Some((next, mode)) if next == part => {
                    *border = Some((next + 1, passage.from(mode)));
                    self.passed.notify_all();
                    return Some(mode);
                }
                Some(_) => {
                    border = self.passed.wait(border).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    fn open<K: Key>(&self, part: usize) -> Result<Records<'_, K>> {
        let start = self.start + part as u64 * self.part;
        let end = self.end(part);
        let mut buffer = lock(&self.buffers).pop().unwrap_or_default();
        buffer.resize((end - start) as usize, 0);
        self.file.read(&mut buffer, start)?;
        let grammar = self.column.grammar();
        let first = match self.pass(part, &grammar.passage(&buffer)) {
            Some(Mode::Record) => Some(0),
            Some(mode) => grammar.first_end(mode, &buffer),
            None => None,
        };
        // If no record ends in the part, all its bytes belong to a record that began before.
        let at = first.unwrap_or(buffer.len());
        let reader = self.column.reader(start + at as u64);
        Ok(Records { file: self, reader, start, end, buffer, at, filled: start })
    }
}

/// Ends the wait of other threads if a part fails or panics.
struct Failing<'a>(Option<&'a CsvFile>);

impl Failing<'_> {
    fn unless<T>(mut self, result: Result<T>) -> Result<T> {
        if result.is_ok() {
            self.0 = None;
        }
        result
    }
}

impl Drop for Failing<'_> {
    fn drop(&mut self) {
        if let Some(file) = self.0 {
            *lock(&file.border) = None;
            file.passed.notify_all();
        }
    }
}

impl<K: Key> Source<K> for CsvFile {
    fn keys(&self) -> Option<u64> {
        None
    }

    fn bytes(&self) -> Option<u64> {
        Some(self.file.bytes - self.start)
    }

    fn parts(&self) -> usize {
        (self.file.bytes - self.start).div_ceil(self.part) as usize
    }

    fn part_memory(&self) -> usize {
        PART as usize
    }

    fn skipped(&self) -> Result<Skipped> {
        self.column.skipped(Some(&|at| self.file.place(at)))
    }

    fn open(&self, part: usize) -> Result<Box<dyn Part<K> + Send + '_>> {
        let failing = Failing(Some(self));
        let records = failing.unless(self.open::<K>(part))?;
        Ok(Box::new(records))
    }
}

/// The records that begin in a part.
struct Records<'a, K> {
    file: &'a CsvFile,
    reader: Reader<'a, K>,
    /// The offsets of the part's start and end in the file.
    start: u64,
    end: u64,
    buffer: Vec<u8>,
    /// The number of bytes of the buffer that have been parsed.
    at: usize,
    /// The offset of the buffer's start in the file.
    filled: u64,
}

impl<K: Key> Records<'_, K> {
    fn read(&mut self, keys: &mut [K]) -> Result<usize> {
        let Records { file: CsvFile { file, .. }, reader, end, buffer, at, filled, .. } = self;
        let locate = |at| file.place(at);
        let mut done = 0;
        while done < keys.len() {
            if *at < buffer.len() {
                // Behind the part, only the rest of its last record is read.
                let until = if *filled < *end { Until::Full } else { Until::Record };
                let (taken, count) =
                    reader.read(&buffer[*at..], &mut keys[done..], until, &locate)?;
                *at += taken;
                done += count;
                if until == Until::Record && !reader.is_inside() {
                    *at = buffer.len();
                }
                continue;
            }
            let next = *filled + buffer.len() as u64;
            if !reader.is_inside() {
                break;
            }
            if next == file.bytes {
                if let Some(key) = reader.finish(&locate)? {
                    keys[done] = key;
                    done += 1;
                }
                continue;
            }
            buffer.resize(MORE.min((file.bytes - next) as usize), 0);
            file.read(buffer, next)?;
            (*at, *filled) = (0, next);
        }
        Ok(done)
    }
}

impl<K: Key> Part<K> for Records<'_, K> {
    fn read(&mut self, keys: &mut [K]) -> Result<usize> {
        Failing(Some(self.file)).unless(self.read(keys))
    }

    fn bytes(&self) -> u64 {
        (self.filled + self.at as u64).min(self.end) - self.start
    }
}

impl<K> Drop for Records<'_, K> {
    fn drop(&mut self) {
        lock(&self.file.buffers).push(std::mem::take(&mut self.buffer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Input;

    const LETTERS: &[u8] = b"7,\"\r\nx";

    /// All texts of four letters, and some longer texts.
    fn texts() -> impl Iterator<Item = Vec<u8>> {
        let of = |mut number: u64, len: u64| {
            let letter = || {
                let letter = LETTERS[(number % LETTERS.len() as u64) as usize];
                number /= LETTERS.len() as u64;
                letter
            };
            let header = if len.is_multiple_of(2) { "id\n" } else { "id,b\n" };
            header.bytes().chain(std::iter::repeat_with(letter).take(len as usize)).collect()
        };
        let every = (0..(LETTERS.len() as u64).pow(4)).map(move |number| of(number, 4));
        let some = (1..4000u64).map(move |seed| {
            let hash = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
            of(hash ^ hash >> 29, 5 + seed % 18)
        });
        every.chain(some)
    }

    /// The keys in order and the records that were left out, or the error.
    fn all(source: &dyn Source<u64>) -> Result<(Vec<u64>, Skipped), String> {
        let mut keys = Vec::new();
        for part in 0..source.parts() {
            let mut part = source.open(part).map_err(|error| error.to_string())?;
            let mut some = [0; 3];
            loop {
                match part.read(&mut some).map_err(|error| error.to_string())? {
                    0 => break,
                    count => keys.extend_from_slice(&some[..count]),
                }
            }
        }
        Ok((keys, source.skipped().map_err(|error| error.to_string())?))
    }

    /// For all sizes of parts, and as a stream, a file gives the same keys, leaves
    /// out the same records, and fails with the same words.
    #[test]
    fn parts_are_whole_records_and_all_of_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        let (mut read, mut failed) = (0, 0);
        for text in texts() {
            std::fs::write(&path, &text).unwrap();
            for lenient in [false, true] {
                let options = Options { lenient, skip_nulls: lenient, ..Options::default() };
                let stream = Input::stream(&path, std::io::Cursor::new(text.clone())).unwrap();
                let expected = all(&*super::super::read(stream, "id", options).unwrap());
                read += usize::from(expected.as_ref().is_ok_and(|(keys, _)| !keys.is_empty()));
                failed += usize::from(expected.is_err());
                for part in [1, 2, 5] {
                    let file = File::open(&path).unwrap();
                    let bytes = text.len() as u64;
                    let file = CsvFile::new(&path, file, bytes, "id", options).unwrap();
                    let found = all(&CsvFile { part, ..file });
                    let text = text.escape_ascii();
                    assert_eq!(found, expected, "{text} in parts of {part} bytes");
                }
            }
        }
        assert!(read > 300 && failed > 1000, "{read} read, {failed} failed");
    }

    /// Several threads open parts in a random order.
    #[test]
    fn threads_wait_for_what_is_before_them_and_no_longer() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        let text: String = (0..5000).map(|key| format!("{key},\"a\n\"\"{key},\n\"\n")).collect();
        std::fs::write(&path, format!("id,b\n{text}")).unwrap();
        let open = || {
            let file = File::open(&path).unwrap();
            let bytes = file.metadata().unwrap().len();
            let file = CsvFile::new(&path, file, bytes, "id", Options::default()).unwrap();
            CsvFile { part: 997, ..file }
        };
        let file = open();
        let parts = Source::<u64>::parts(&file);
        let next = Mutex::new(0..parts);
        let keys = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    loop {
                        let Some(part) = lock(&next).next() else { return };
                        let mut part: Box<dyn Part<u64> + Send> =
                            Source::open(&file, part).unwrap();
                        let mut some = [0; 100];
                        loop {
                            let count = part.read(&mut some).unwrap();
                            if count == 0 {
                                break;
                            }
                            lock(&keys).extend_from_slice(&some[..count]);
                        }
                    }
                });
            }
        });
        let mut keys = keys.into_inner().unwrap();
        keys.sort_unstable();
        assert_eq!(keys, (0..5000).collect::<Vec<u64>>());
        // A part that cannot be read ends the wait of later parts.
        let file = open();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut part: Box<dyn Part<u64> + Send> = Source::open(&file, 2).unwrap();
                assert_eq!(part.read(&mut [0; 10]).unwrap(), 0);
            });
            std::thread::sleep(std::time::Duration::from_millis(100));
            File::options().write(true).open(&path).unwrap().set_len(1500).unwrap();
            drop(Source::<u64>::open(&file, 0).unwrap());
            assert!(Source::<u64>::open(&file, 1).is_err());
        });
    }
}
