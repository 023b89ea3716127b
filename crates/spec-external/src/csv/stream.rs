//! Records from a pipe, parsed by several threads at once.

use std::io::Read;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use super::Options;
use super::column::{Column, Reader, Until};
use super::window::Window;
use crate::lines::Lines;
use crate::watch::lock;
use crate::{Error, Key, Part, Result, Skipped, Source};

/// The number of bytes in a block.
const BLOCK: usize = 1 << 20;

/// An input that can be read only once, such as standard input or a compressed file.
///
/// Each part takes the next block of whole records whenever it has parsed the one
/// before, so all threads parse while one of them reads.
pub(super) struct CsvStream {
    column: Column,
    parts: usize,
    memory: usize,
    state: Mutex<State>,
}

struct State {
    input: Reading,
    /// The start of a record that has not ended yet.
    rest: Vec<u8>,
    /// The position of `rest` in the input.
    lines: Lines,
}

impl CsvStream {
    pub(super) fn new(
        path: &Path,
        reader: Box<dyn Read + Send>,
        memory: usize,
        name: &str,
        options: Options,
    ) -> Result<Self> {
        let parts = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let mut input = Reading { path: path.to_owned(), reader, ended: false };
        let more = |piece: &mut Vec<u8>| input.fill(piece, BLOCK / 4);
        let (column, window, taken) = Column::find(path, name, options, true, more)?;
        let mut lines = window.lines;
        lines.pass(&window.piece[..taken]);
        let state = State { input, rest: window.piece[taken..].to_vec(), lines };
        Ok(CsvStream { column, parts, memory, state: Mutex::new(state) })
    }

    /// Reads the next whole records into the window of `blocks`, none at the end. Of a record that
    /// is longer than a block, only the last part is in the window; the machine of the reader has
    /// parsed the parts before.
    fn next<'a, K: Key>(&'a self, blocks: &mut Blocks<'a, K>) -> Result<()> {
        let mut state = lock(&self.state);
        let result = self.next_of(&mut state, blocks);
        if result.is_err() {
            // Records are lost, so other threads would report wrong line numbers. They get no more
            // records.
            blocks.window.piece.clear();
            state.rest.clear();
            state.input.ended = true;
        }
        result
    }

    fn next_of<'a, K: Key>(&'a self, state: &mut State, blocks: &mut Blocks<'a, K>) -> Result<()> {
        let Blocks { reader, window, at, .. } = blocks;
        *at = 0;
        *reader = self.column.reader(state.lines.offset);
        window.jump(state.lines);
        loop {
            window.piece.append(&mut state.rest);
            state.input.fill(&mut window.piece, BLOCK)?;
            let mode = reader.machine.mode();
            let end = self.column.grammar().last_end(mode, &window.piece);
            let end = if state.input.ended { Some(window.piece.len()) } else { end };
            if let Some(end) = end {
                state.rest.extend_from_slice(&window.piece[end..]);
                window.piece.truncate(end);
                state.lines = window.lines;
                state.lines.pass(&window.piece);
                return Ok(());
            }
            // The whole piece is inside one record, which gives no key before its end.
            let Window { piece, .. } = &*window;
            reader.read(piece, &mut [K::MIN], Until::Full, &|_| Ok((0, 0)))?;
            window.slide(reader.machine.places());
        }
    }
}

/// The reader of the input.
struct Reading {
    path: PathBuf,
    reader: Box<dyn Read + Send>,
    ended: bool,
}

impl Reading {
    /// Reads until `piece` has `bytes` bytes, or the input ends.
    fn fill(&mut self, piece: &mut Vec<u8>, bytes: usize) -> Result<()> {
        let room = bytes.saturating_sub(piece.len()) as u64;
        if self.ended || room == 0 {
            return Ok(());
        }
        let read = self.reader.by_ref().take(room).read_to_end(piece);
        let read = read.map_err(|error| Error::io("read", &self.path, error))?;
        self.ended = (read as u64) < room;
        Ok(())
    }
}

impl<K: Key> Source<K> for CsvStream {
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
        2 * BLOCK + self.memory
    }

    fn skipped(&self) -> Result<Skipped> {
        self.column.skipped(None)
    }

    fn open(&self, _part: usize) -> Result<Box<dyn Part<K> + Send + '_>> {
        let reader = self.column.reader(0);
        Ok(Box::new(Blocks { stream: self, reader, window: Window::default(), at: 0, bytes: 0 }))
    }
}

/// A part: takes the next block of records whenever it has parsed the block before.
struct Blocks<'a, K> {
    stream: &'a CsvStream,
    reader: Reader<'a, K>,
    /// The current block.
    window: Window,
    /// The number of bytes of the block that have been parsed.
    at: usize,
    bytes: u64,
}

impl<K: Key> Part<K> for Blocks<'_, K> {
    fn read(&mut self, keys: &mut [K]) -> Result<usize> {
        let mut done = 0;
        while done < keys.len() {
            let Blocks { reader, window, at, bytes, .. } = self;
            let locate = |at| Ok(window.place(at));
            if *at < window.piece.len() {
                let piece = &window.piece[*at..];
                let (taken, count) = reader.read(piece, &mut keys[done..], Until::Full, &locate)?;
                *at += taken;
                *bytes += taken as u64;
                done += count;
            } else if reader.is_inside() {
                // A block ends inside a record only at the end of the stream.
                if let Some(key) = reader.finish(&locate)? {
                    keys[done] = key;
                    done += 1;
                }
            } else if done > 0 {
                break;
            } else {
                self.stream.next(self)?;
                if self.window.piece.is_empty() && !self.reader.is_inside() {
                    break;
                }
            }
        }
        Ok(done)
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }
}
