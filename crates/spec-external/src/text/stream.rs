//! Lines from a pipe, parsed by several threads at once.

use std::io::Read;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use memchr::{memchr, memchr_iter, memrchr};

use super::bad::{BadLines, First};
use super::parse::{LONGEST, diagnose, parse, too_long};
use super::{Options, in_line};
use crate::watch::lock;
use crate::{Error, Key, Part, Result, Skipped, Source};

/// The number of bytes in a block.
const BLOCK: usize = 1 << 20;

/// An input with one number per line that can be read only once, such as standard input.
///
/// Each part takes the next block of whole lines whenever it has parsed the one
/// before, so all threads parse while one of them reads.
pub(super) struct TextStream {
    name: PathBuf,
    parts: usize,
    memory: usize,
    /// The number of bytes of a byte order mark before the first line, which have been read.
    mark: u64,
    state: Mutex<State>,
    /// The lines that are left out; `None` where a bad line is an error.
    bad: Option<BadLines>,
}

struct State {
    reader: Box<dyn Read + Send>,
    /// The start of a line that has not ended yet.
    rest: Vec<u8>,
    /// The number of the line that starts with `rest`, from 1.
    line: u64,
    /// The number of line ends up to which bytes are skipped.
    skip: u64,
    ended: bool,
}

impl TextStream {
    pub(super) fn new(
        name: &Path,
        reader: Box<dyn Read + Send>,
        memory: usize,
        mark: u64,
        options: Options,
    ) -> Self {
        let parts = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let skip = options.skip_lines;
        let state = State { reader, rest: Vec::new(), line: 1, skip, ended: false };
        let bad = options.lenient.then(BadLines::default);
        TextStream { name: name.to_owned(), parts, memory, mark, state: Mutex::new(state), bad }
    }

    /// Reads the next whole lines into `block`, none at the end. Returns the number of the first
    /// line.
    fn block(&self, block: &mut Vec<u8>) -> Result<u64> {
        let mut state = lock(&self.state);
        block.clear();
        let first = self.next(&mut state, block);
        if first.is_err() {
            // Lines are lost, so other threads would report wrong line numbers. They get no more
            // lines.
            block.clear();
            state.rest.clear();
            state.ended = true;
        }
        first
    }

    /// Reads the next whole lines into `block`, which is empty.
    fn next(&self, state: &mut State, block: &mut Vec<u8>) -> Result<u64> {
        let State { reader, rest, line, skip, ended } = state;
        loop {
            block.append(rest);
            if !*ended {
                let room = (BLOCK - block.len()) as u64;
                let read = reader.by_ref().take(room).read_to_end(block);
                let read = read.map_err(|error| Error::io("read", &self.name, error))?;
                *ended = (read as u64) < room;
            }
            let mut start = 0;
            while *skip > 0 && start < block.len() {
                let newline = memchr(b'\n', &block[start..]);
                start = newline.map_or(block.len(), |newline| start + newline + 1);
                *skip -= u64::from(newline.is_some());
                *line += u64::from(newline.is_some());
            }
            block.drain(..start);
            let first = *line;
            if !*ended {
                let end = memrchr(b'\n', block).map_or(0, |newline| newline + 1);
                rest.extend_from_slice(&block[end..]);
                block.truncate(end);
            }
            *line += memchr_iter(b'\n', block).count() as u64;
            // The rest may end with a carriage return whose newline is not read yet.
            if rest.len() > LONGEST + 1 {
                self.bad_line(*line, || (LONGEST as u64 + 1, too_long()))?;
                rest.clear();
                *skip = 1;
            }
            if !block.is_empty() || *ended {
                return Ok(first);
            }
        }
    }

    /// Handles a line that is not a key: it is left out, or an error.
    fn bad_line(&self, line: u64, what: impl FnOnce() -> (u64, String)) -> Result<()> {
        if let Some(bad) = &self.bad {
            return bad.add(line, || Ok(what()));
        }
        let (column, message) = what();
        Err(Error::data(&self.name, in_line(line, column, self.mark), message))
    }
}

impl<K: Key> Source<K> for TextStream {
    fn keys(&self) -> Option<u64> {
        None
    }

    fn bytes(&self) -> Option<u64> {
        None
    }

    fn parts(&self) -> usize {
        self.parts
    }

    fn part_memory(&self) -> usize {
        BLOCK + LONGEST + 2 + self.memory
    }

    fn skipped(&self) -> Result<Skipped> {
        let Some(bad) = &self.bad else { return Ok(Skipped::default()) };
        let first = bad.first().map(|First { at: line, column, message }| {
            Error::data(&self.name, in_line(line, column, self.mark), message).to_string()
        });
        Ok(Skipped { lines: bad.count(), first, ..Skipped::default() })
    }

    fn open(&self, _part: usize) -> Result<Box<dyn Part<K> + Send + '_>> {
        let block = Vec::with_capacity(BLOCK);
        Ok(Box::new(Blocks { stream: self, block, at: 0, line: (1, 0), bytes: 0 }))
    }
}

struct Blocks<'a> {
    stream: &'a TextStream,
    block: Vec<u8>,
    /// The number of bytes of the block that have been parsed.
    at: usize,
    /// The number of a line, and the index of its start in the block.
    line: (u64, usize),
    bytes: u64,
}

impl<K: Key> Part<K> for Blocks<'_> {
    fn read(&mut self, keys: &mut [K]) -> Result<usize> {
        let mut done = 0;
        loop {
            if self.at == self.block.len() {
                if done > 0 {
                    return Ok(done);
                }
                self.line = (self.stream.block(&mut self.block)?, 0);
                self.at = 0;
                if self.block.is_empty() {
                    return Ok(0);
                }
            }
            let text = &self.block[self.at..];
            let parsed = parse(text, &mut keys[done..]);
            done += parsed.keys;
            let mut bytes = parsed.bytes;
            if parsed.bad {
                let bad = &text[bytes..];
                let start = self.at + bytes;
                let (line, from) = self.line;
                let lines = memchr_iter(b'\n', &self.block[from..start]).count() as u64;
                self.line = (line + lines, start);
                self.stream.bad_line(line + lines, || diagnose::<K>(bad))?;
                bytes += memchr(b'\n', bad).map_or(bad.len(), |newline| newline + 1);
            }
            self.at += bytes;
            self.bytes += bytes as u64;
            if done == keys.len() {
                return Ok(done);
            }
        }
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }
}
