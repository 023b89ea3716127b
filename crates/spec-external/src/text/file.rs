//! A file of lines, read by several threads at once.

use std::fs::File;
use std::path::Path;
use std::sync::Mutex;

use memchr::{memchr, memrchr};

use super::bad::{BadLines, First};
use super::parse::{LONGEST, diagnose, parse, too_long};
use super::{Options, in_line};
use crate::sized::SizedFile;
use crate::watch::lock;
use crate::{Error, Key, Part, Place, Result, Skipped, Source};

/// The number of bytes in a part, not counting the rest of its last line.
const PART: u64 = 32 << 20;
/// The number of bytes that a part reads at once.
const BUFFER: usize = 1 << 20;

/// A regular file with one number per line. Parts start and end between lines, so
/// each part is parsed independently.
pub(super) struct TextFile {
    file: SizedFile,
    /// The number of bytes of a byte order mark before the first line.
    mark: u64,
    /// The offset of the first line that is parsed.
    start: u64,
    part: u64,
    /// The lines that are left out; `None` where a bad line is an error.
    bad: Option<BadLines>,
    /// The longest range of bytes without a line's end that was found so far.
    stretch: Mutex<(u64, u64)>,
}

impl TextFile {
    /// The lines of a file of `bytes` bytes, the first `mark` of which are a byte order mark.
    pub(super) fn new(
        path: &Path,
        file: File,
        bytes: u64,
        mark: u64,
        options: Options,
    ) -> Result<Self> {
        let mut text = TextFile {
            file: SizedFile::new(path, file, bytes),
            mark,
            start: mark,
            part: PART,
            bad: options.lenient.then(BadLines::default),
            stretch: Mutex::default(),
        };
        let mut left = options.skip_lines;
        while left > 0 && text.start < bytes {
            text.start = text.after_newline(text.start, u64::MAX)?;
            left -= 1;
        }
        Ok(text)
    }

    /// The offset of the first line that starts behind a newline at or after `from`, or else the
    /// end of the file. If that offset is more than `max` bytes away, any offset that far away.
    fn after_newline(&self, from: u64, max: u64) -> Result<u64> {
        let mut stretch = lock(&self.stretch);
        if (stretch.0..stretch.1).contains(&from) {
            return Ok(stretch.1);
        }
        let mut bytes = vec![0; LONGEST];
        let mut at = from;
        let end = loop {
            let length = bytes.len().min((self.file.bytes - at) as usize);
            if length == 0 {
                break self.file.bytes;
            }
            self.file.read(&mut bytes[..length], at)?;
            if let Some(newline) = memchr(b'\n', &bytes[..length]) {
                break at + newline as u64 + 1;
            }
            at += length as u64;
            if at - from > max {
                return Ok(at);
            }
            bytes.resize(BUFFER, 0);
        };
        if end - from > stretch.1 - stretch.0 {
            *stretch = (from, end);
        }
        Ok(end)
    }

    /// The offset of the first line that starts at or after `at`, or else the end of the file.
    fn line_start(&self, at: u64) -> Result<u64> {
        if at <= self.start || at >= self.file.bytes {
            return Ok(at.clamp(self.start, self.file.bytes));
        }
        // If the byte before `at` is a newline, a line starts at `at`.
        let from = at - 1;
        // A line's end has at most two bytes.
        let max = if self.bad.is_none() { LONGEST as u64 + 3 } else { u64::MAX };
        let start = self.after_newline(from, max)?;
        if start - from > max { Err(self.too_long(at)?) } else { Ok(start) }
    }

    fn too_long(&self, at: u64) -> Result<Error> {
        let place = self.place(at, LONGEST as u64 + 1)?;
        Ok(Error::data(&self.file.path, place, too_long()))
    }

    /// The place of a column, counted from 1, in the line of the byte at `at`.
    fn place(&self, at: u64, column: u64) -> Result<Place> {
        let (line, _) = self.file.place(at)?;
        Ok(in_line(line, column, self.mark))
    }

    /// Handles the line that starts at `at` and is not a key: it is left out, or an error.
    fn bad_line(&self, at: u64, what: impl FnOnce() -> (u64, String)) -> Result<()> {
        if let Some(bad) = &self.bad {
            return bad.add(at, || Ok(what()));
        }
        let (column, message) = what();
        Err(Error::data(&self.file.path, self.place(at, column)?, message))
    }
}

impl<K: Key> Source<K> for TextFile {
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
        BUFFER
    }

    fn skipped(&self) -> Result<Skipped> {
        let Some(bad) = &self.bad else { return Ok(Skipped::default()) };
        let first = match bad.first() {
            None => None,
            Some(First { at, column, message }) => {
                let place = self.place(at, column)?;
                Some(Error::data(&self.file.path, place, message).to_string())
            }
        };
        Ok(Skipped { lines: bad.count(), first, ..Skipped::default() })
    }

    fn open(&self, part: usize) -> Result<Box<dyn Part<K> + Send + '_>> {
        let start = self.line_start(self.start + part as u64 * self.part)?;
        let end = self.line_start(self.start + (part as u64 + 1) * self.part)?;
        let buffer = vec![0; BUFFER.min((end - start) as usize)];
        Ok(Box::new(Lines {
            text: self,
            start,
            end,
            at: start,
            buffer,
            lines: 0..0,
            filled: 0,
            inside: false,
        }))
    }
}

/// A part of the file, which has whole lines.
struct Lines<'a> {
    text: &'a TextFile,
    start: u64,
    end: u64,
    /// The offset of the buffer's start in the file.
    at: u64,
    buffer: Vec<u8>,
    /// The range of whole lines in the buffer that are still to be parsed.
    lines: std::ops::Range<usize>,
    /// The number of bytes in the buffer.
    filled: usize,
    /// Whether the buffer starts inside a line that was left out.
    inside: bool,
}

impl Lines<'_> {
    /// Reads the next bytes into the buffer. An unfinished line at the buffer's end first moves to
    /// its front.
    fn fill(&mut self) -> Result<()> {
        self.buffer.copy_within(self.lines.end..self.filled, 0);
        self.at += self.lines.end as u64;
        let kept = self.filled - self.lines.end;
        let left = self.end - self.at - kept as u64;
        self.filled =
            kept + (self.buffer.len() - kept).min(usize::try_from(left).unwrap_or(usize::MAX));
        self.text.file.read(&mut self.buffer[kept..self.filled], self.at + kept as u64)?;
        let is_last = self.at + self.filled as u64 == self.end;
        let text = &self.buffer[..self.filled];
        let newline = memrchr(b'\n', text).map(|newline| newline + 1);
        let mut start = 0;
        if self.inside {
            start = memchr(b'\n', text).map_or(self.filled, |newline| newline + 1);
            self.inside = start == self.filled && newline != Some(start);
        }
        self.lines = match newline {
            _ if is_last => start..self.filled,
            Some(end) => start..end,
            None => {
                if start == 0 {
                    self.text.bad_line(self.at, || (LONGEST as u64 + 1, too_long()))?;
                }
                self.inside = true;
                self.filled..self.filled
            }
        };
        Ok(())
    }
}

impl<K: Key> Part<K> for Lines<'_> {
    fn read(&mut self, keys: &mut [K]) -> Result<usize> {
        let mut done = 0;
        loop {
            if self.lines.is_empty() {
                if done > 0 || self.at + self.lines.end as u64 == self.end {
                    return Ok(done);
                }
                self.fill()?;
                continue;
            }
            let lines = &self.buffer[self.lines.clone()];
            let parsed = parse(lines, &mut keys[done..]);
            done += parsed.keys;
            let mut bytes = parsed.bytes;
            if parsed.bad {
                let bad = &lines[bytes..];
                let at = self.at + (self.lines.start + bytes) as u64;
                self.text.bad_line(at, || diagnose::<K>(bad))?;
                bytes += memchr(b'\n', bad).map_or(bad.len(), |newline| newline + 1);
            }
            self.lines.start += bytes;
            if done == keys.len() {
                return Ok(done);
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

    /// Reads every part independently, for several sizes of parts.
    #[test]
    fn parts_are_whole_lines_and_all_of_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        let numbers: Vec<i64> = (0..2000).map(|i| i * i * i * 7919 % 1_000_003 - 500_000).collect();
        for (separator, last) in [("\n", ""), ("\n", "\n"), ("\r\n", "\r\n"), ("\r\n", "\r")] {
            let text: Vec<String> = numbers.iter().map(i64::to_string).collect();
            std::fs::write(&path, text.join(separator) + last).unwrap();
            for part in (1..40).chain([1000, 12_345, 1 << 20]) {
                let file = File::open(&path).unwrap();
                let bytes = file.metadata().unwrap().len();
                let options = Options::default();
                let file = TextFile::new(&path, file, bytes, 0, options).unwrap();
                let file = TextFile { part, ..file };
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
    }
}
