//! A file of lines, read by several threads at once.

use std::fs::File;
use std::path::{Path, PathBuf};

use memchr::{memchr, memchr_iter, memrchr};

use super::parse::{LONGEST, diagnose, parse};
use crate::{Error, Key, Part, Place, Result, Source, os};

/// Bytes of a part, but for its last line.
const PART: u64 = 32 << 20;
/// Bytes that a part reads at once.
const BUFFER: usize = 1 << 20;

/// A regular file with one number a line. Parts start and end between lines, so
/// each of them is parsed on its own.
pub(super) struct TextFile {
    path: PathBuf,
    file: File,
    bytes: u64,
    part: u64,
}

impl TextFile {
    pub(super) fn new(path: &Path, file: File, bytes: u64) -> Self {
        TextFile { path: path.to_owned(), file, bytes, part: PART }
    }

    /// Reads to the end of `bytes`, all of which the file had when it was opened.
    fn read(&self, bytes: &mut [u8], offset: u64) -> Result<()> {
        let read = os::read_full(&self.file, bytes, offset)
            .map_err(|error| Error::io("read", &self.path, error))?;
        if read < bytes.len() {
            let end = Place::Byte(offset + read as u64);
            let bytes = self.bytes;
            let message = format!("ends there now, but was {bytes} bytes long when it was opened");
            return Err(Error::data(&self.path, end, message));
        }
        Ok(())
    }

    /// Where the first line starts at or after `at`, or the file ends.
    fn line_start(&self, at: u64) -> Result<u64> {
        if at == 0 || at >= self.bytes {
            return Ok(at.min(self.bytes));
        }
        // The newline before `at` makes `at` a start.
        let from = at - 1;
        let mut line = vec![0; LONGEST.min((self.bytes - from) as usize)];
        self.read(&mut line, from)?;
        match memchr(b'\n', &line) {
            Some(end) => Ok(from + end as u64 + 1),
            None if line.len() < LONGEST => Ok(self.bytes),
            None => Err(self.too_long(at)?),
        }
    }

    /// The line and column of a byte. Reads everything before it.
    fn place(&self, offset: u64) -> Result<(u64, u64)> {
        let (mut line, mut start) = (1, 0);
        let mut buffer = vec![0; BUFFER.min(offset as usize)];
        let mut at = 0;
        while at < offset {
            let length = buffer.len().min((offset - at) as usize);
            self.read(&mut buffer[..length], at)?;
            line += memchr_iter(b'\n', &buffer[..length]).count() as u64;
            if let Some(last) = memrchr(b'\n', &buffer[..length]) {
                start = at + last as u64 + 1;
            }
            at += length as u64;
        }
        Ok((line, offset - start + 1))
    }

    fn too_long(&self, at: u64) -> Result<Error> {
        let (line, _) = self.place(at)?;
        let place = Place::Line { line, column: LONGEST as u64 + 1 };
        Ok(Error::data(
            &self.path,
            place,
            format!("a line of more than {LONGEST} bytes is no number"),
        ))
    }
}

impl<K: Key> Source<K> for TextFile {
    fn keys(&self) -> Option<u64> {
        None
    }

    fn bytes(&self) -> Option<u64> {
        Some(self.bytes)
    }

    fn parts(&self) -> usize {
        self.bytes.div_ceil(self.part) as usize
    }

    fn part_memory(&self) -> usize {
        BUFFER
    }

    fn open(&self, part: usize) -> Result<Box<dyn Part<K> + Send + '_>> {
        let start = self.line_start(part as u64 * self.part)?;
        let end = self.line_start((part as u64 + 1) * self.part)?;
        let buffer = vec![0; BUFFER.min((end - start) as usize)];
        Ok(Box::new(Lines { text: self, start, end, at: start, buffer, lines: 0..0, filled: 0 }))
    }
}

/// A part: whole lines.
struct Lines<'a> {
    text: &'a TextFile,
    start: u64,
    end: u64,
    /// Where the buffer starts in the file.
    at: u64,
    buffer: Vec<u8>,
    /// Whole lines in the buffer that are to be parsed.
    lines: std::ops::Range<usize>,
    /// Bytes in the buffer.
    filled: usize,
}

impl Lines<'_> {
    /// Reads on; the start of a line at the buffer's end moves to its front.
    fn fill(&mut self) -> Result<()> {
        self.buffer.copy_within(self.lines.end..self.filled, 0);
        self.at += self.lines.end as u64;
        let kept = self.filled - self.lines.end;
        let left = self.end - self.at - kept as u64;
        self.filled =
            kept + (self.buffer.len() - kept).min(usize::try_from(left).unwrap_or(usize::MAX));
        self.text.read(&mut self.buffer[kept..self.filled], self.at + kept as u64)?;
        let last = self.at + self.filled as u64 == self.end;
        let newline = memrchr(b'\n', &self.buffer[..self.filled]).map(|newline| newline + 1);
        let end = if last { Some(self.filled) } else { newline };
        self.lines = 0..end.ok_or(()).or_else(|()| Err(self.text.too_long(self.at)?))?;
        Ok(())
    }
}

impl<K: Key> Part<K> for Lines<'_> {
    fn read(&mut self, keys: &mut [K]) -> Result<usize> {
        if self.lines.is_empty() {
            if self.at + self.lines.end as u64 == self.end {
                return Ok(0);
            }
            self.fill()?;
        }
        let lines = &self.buffer[self.lines.clone()];
        match parse(lines, keys) {
            Ok((parsed, bytes)) => {
                self.lines.start += bytes;
                Ok(parsed)
            }
            Err(bad) => {
                let (column, message) = diagnose::<K>(&lines[bad..]);
                let (line, _) = self.text.place(self.at + (self.lines.start + bad) as u64)?;
                Err(Error::data(&self.text.path, Place::Line { line, column }, message))
            }
        }
    }

    fn bytes(&self) -> u64 {
        self.at + self.lines.start as u64 - self.start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every part on its own, however the file is cut.
    #[test]
    fn parts_are_whole_lines_and_all_of_them() {
        let path = std::env::temp_dir().join(format!("spec-text-parts-{}", std::process::id()));
        let numbers: Vec<i64> = (0..2000).map(|i| i * i * i * 7919 % 1_000_003 - 500_000).collect();
        for (separator, last) in [("\n", ""), ("\n", "\n"), ("\r\n", "\r\n"), ("\r\n", "\r")] {
            let text: Vec<String> = numbers.iter().map(i64::to_string).collect();
            std::fs::write(&path, text.join(separator) + last).unwrap();
            for part in (1..40).chain([1000, 12_345, 1 << 20]) {
                let file = File::open(&path).unwrap();
                let bytes = file.metadata().unwrap().len();
                let file = TextFile { part, ..TextFile::new(&path, file, bytes) };
                let (mut keys, mut read) = (Vec::new(), 0);
                for part in 0..Source::<i64>::parts(&file) {
                    let mut part: Box<dyn Part<i64> + Send> = file.open(part).unwrap();
                    let mut some = [0; 13];
                    loop {
                        let count = part.read(&mut some).unwrap();
                        if count == 0 {
                            break;
                        }
                        keys.extend_from_slice(&some[..count]);
                    }
                    read += part.bytes();
                }
                assert_eq!(keys, numbers, "parts of {part} bytes");
                assert_eq!(read, bytes);
            }
        }
        std::fs::remove_file(&path).unwrap();
    }
}
