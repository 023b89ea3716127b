//! Lines from a pipe, parsed by several threads at once.

use std::io::Read;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use memchr::{memchr_iter, memrchr};

use super::parse::{LONGEST, diagnose, parse};
use crate::{Error, Key, Part, Place, Result, Source};

/// Bytes of a block.
const BLOCK: usize = 1 << 20;

/// Anything that can be read once, with one number a line: standard input.
///
/// Each part takes the next block of whole lines whenever it has parsed the one
/// before, so all threads parse while one of them reads.
#[derive(Debug)]
pub struct TextStream<R> {
    name: PathBuf,
    parts: usize,
    state: Mutex<State<R>>,
}

#[derive(Debug)]
struct State<R> {
    reader: R,
    /// The start of a line that has not ended yet.
    rest: Vec<u8>,
    /// The line that `rest` is the start of, from 1.
    line: u64,
    ended: bool,
}

impl<R: Read + Send> TextStream<R> {
    /// `name` is what errors call it.
    pub fn new(name: impl AsRef<Path>, reader: R) -> Self {
        let parts = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let state = State { reader, rest: Vec::new(), line: 1, ended: false };
        TextStream { name: name.as_ref().to_owned(), parts, state: Mutex::new(state) }
    }

    /// The next whole lines, none at the end; and the line that is first.
    fn block(&self, block: &mut Vec<u8>) -> Result<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        block.clear();
        let first = self.next(&mut state, block);
        if first.is_err() {
            // Lines are lost: what other threads found now, they would place wrongly.
            block.clear();
            state.rest.clear();
            state.ended = true;
        }
        first
    }

    /// Reads the next whole lines to `block`, which is empty.
    fn next(&self, state: &mut State<R>, block: &mut Vec<u8>) -> Result<u64> {
        let State { reader, rest, line, ended } = state;
        block.append(rest);
        let first = *line;
        if !*ended {
            let room = (BLOCK - block.len()) as u64;
            let read = reader.by_ref().take(room).read_to_end(block);
            let read = read.map_err(|error| Error::io("read", &self.name, error))?;
            *ended = (read as u64) < room;
        }
        if !*ended {
            let end = memrchr(b'\n', block).map_or(0, |newline| newline + 1);
            rest.extend_from_slice(&block[end..]);
            if rest.len() > LONGEST {
                let line = first + memchr_iter(b'\n', block).count() as u64;
                let place = Place::Line { line, column: LONGEST as u64 + 1 };
                let message = format!("a line of more than {LONGEST} bytes is no number");
                return Err(Error::data(&self.name, place, message));
            }
            block.truncate(end);
        }
        *line += memchr_iter(b'\n', block).count() as u64;
        Ok(first)
    }
}

impl<K: Key, R: Read + Send> Source<K> for TextStream<R> {
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
        BLOCK + LONGEST
    }

    fn open(&self, _part: usize) -> Result<Box<dyn Part<K> + Send + '_>> {
        let block = Vec::with_capacity(BLOCK);
        Ok(Box::new(Blocks { stream: self, block, at: 0, first: 1, bytes: 0 }))
    }
}

struct Blocks<'a, R> {
    stream: &'a TextStream<R>,
    block: Vec<u8>,
    /// Bytes of the block that have been parsed.
    at: usize,
    /// The line that the block starts with.
    first: u64,
    bytes: u64,
}

impl<K: Key, R: Read + Send> Part<K> for Blocks<'_, R> {
    fn read(&mut self, keys: &mut [K]) -> Result<usize> {
        if self.at == self.block.len() {
            self.first = self.stream.block(&mut self.block)?;
            self.at = 0;
        }
        match parse(&self.block[self.at..], keys) {
            Ok((parsed, bytes)) => {
                self.at += bytes;
                self.bytes += bytes as u64;
                Ok(parsed)
            }
            Err(bad) => {
                let bad = self.at + bad;
                let line = self.first + memchr_iter(b'\n', &self.block[..bad]).count() as u64;
                let (column, message) = diagnose::<K>(&self.block[bad..]);
                Err(Error::data(&self.stream.name, Place::Line { line, column }, message))
            }
        }
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }
}
