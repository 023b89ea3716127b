//! The raw format: little-endian keys, one after the other, without anything else.
//!
//! Each thread reads a part of a file with large positioned reads. Files are not mapped, because
//! mapped pages count as memory of the process, and a run could not keep its memory limit.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use spec::dtype::{as_bytes, as_bytes_mut};

use crate::input::Data;
use crate::key::little_endian;
use crate::sized::SizedFile;
use crate::{Error, Input, Key, Output, Part, Place, Result, Sink, Source};

/// The number of bytes in a part: enough to be read at the disk's rate.
const PART: u64 = 32 << 20;

/// Opens a file of raw keys. Its first bytes are not checked for another form.
///
/// # Errors
/// [`Error::Io`] where the file cannot be read, [`Error::Data`] where its size is not a
/// multiple of a key's size.
pub fn open<K: Key>(path: &Path) -> Result<Box<dyn Source<K>>> {
    read(Input::open(path)?)
}

/// Reads an input as raw keys. Its first bytes are not checked for another form. Several threads
/// read a regular file; a stream is read from its start.
///
/// # Errors
/// [`Error::Data`] where the size is known and not a multiple of a key's size.
pub fn read<K: Key>(input: Input) -> Result<Box<dyn Source<K>>> {
    let Input { name, data, memory, .. } = input;
    match data {
        Data::File(file, bytes) => {
            whole::<K>(&name, bytes)?;
            Ok(Box::new(RawFile(SizedFile::new(&name, file, bytes))))
        }
        Data::Stream(reader) => {
            Ok(Box::new(RawStream { name, reader: Mutex::new(reader), memory }))
        }
    }
}

fn whole<K: Key>(path: &Path, bytes: u64) -> Result<()> {
    if bytes.is_multiple_of(K::SIZE as u64) {
        return Ok(());
    }
    let (size, name) = (K::SIZE, K::NAME);
    let message =
        format!("is {bytes} bytes long, which is no multiple of the {size} bytes of a {name} key");
    Err(Error::data(path, Place::Whole, message))
}

struct RawFile(SizedFile);

struct RawPart<'a> {
    file: &'a SizedFile,
    start: u64,
    at: u64,
    end: u64,
}

impl<K: Key> Source<K> for RawFile {
    fn keys(&self) -> Option<u64> {
        Some(self.0.bytes / K::SIZE as u64)
    }

    fn bytes(&self) -> Option<u64> {
        Some(self.0.bytes)
    }

    fn parts(&self) -> usize {
        self.0.bytes.div_ceil(PART) as usize
    }

    fn open(&self, part: usize) -> Result<Box<dyn Part<K> + Send + '_>> {
        let start = part as u64 * PART;
        let end = (start + PART).min(self.0.bytes);
        Ok(Box::new(RawPart { file: &self.0, start, at: start, end }))
    }
}

impl<K: Key> Part<K> for RawPart<'_> {
    fn read(&mut self, keys: &mut [K]) -> Result<usize> {
        let left = ((self.end - self.at) / K::SIZE as u64) as usize;
        let len = keys.len().min(left);
        let keys = &mut keys[..len];
        self.file.read(as_bytes_mut(keys), self.at)?;
        little_endian(keys);
        self.at += (len * K::SIZE) as u64;
        Ok(len)
    }

    fn bytes(&self) -> u64 {
        self.at - self.start
    }
}

/// Raw keys from an input that can only be read from start to end, such as a pipe.
struct RawStream {
    name: PathBuf,
    reader: Mutex<Box<dyn Read + Send>>,
    memory: usize,
}

struct StreamPart<'a> {
    stream: &'a RawStream,
    bytes: u64,
}

impl<K: Key> Source<K> for RawStream {
    fn keys(&self) -> Option<u64> {
        None
    }

    fn bytes(&self) -> Option<u64> {
        None
    }

    fn parts(&self) -> usize {
        1
    }

    fn part_memory(&self) -> usize {
        self.memory
    }

    fn open(&self, _part: usize) -> Result<Box<dyn Part<K> + Send + '_>> {
        Ok(Box::new(StreamPart { stream: self, bytes: 0 }))
    }
}

impl<K: Key> Part<K> for StreamPart<'_> {
    fn read(&mut self, keys: &mut [K]) -> Result<usize> {
        let name = &self.stream.name;
        let mut reader = self.stream.reader.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = as_bytes_mut(keys);
        let mut done = 0;
        while done < bytes.len() {
            match reader.read(&mut bytes[done..]) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::io("read", name, error)),
            }
        }
        self.bytes += done as u64;
        whole::<K>(name, self.bytes)?;
        let keys = &mut keys[..done / K::SIZE];
        little_endian(keys);
        Ok(keys.len())
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Writes raw keys. With counts, the number of occurrences of each key follows it as
/// a little-endian u64.
#[derive(Debug)]
pub struct RawSink {
    output: Output,
    counts: bool,
}

impl RawSink {
    /// Writes to `output`.
    pub fn new(output: Output, counts: bool) -> Self {
        RawSink { output, counts }
    }
}

impl<K: Key> Sink<K> for RawSink {
    /// The bytes of a block for a stream, which takes them only in order; empty for a file.
    type Encoded = Vec<u8>;

    fn counts(&self) -> bool {
        self.counts
    }

    fn key_memory(&self) -> usize {
        let counts = if self.counts { 8 } else { 0 };
        if self.counts || self.output.is_stream() { K::SIZE + counts } else { 0 }
    }

    fn encode(&self, rank: u64, keys: &[K], counts: &[u64]) -> Result<Vec<u8>> {
        let is_stream = self.output.is_stream();
        let plain = !self.counts && cfg!(target_endian = "little");
        let at = |record: usize| rank * record as u64;
        if plain && !is_stream {
            self.output.write_at(as_bytes(keys), at(K::SIZE))?;
            return Ok(Vec::new());
        }
        let bytes = if plain { as_bytes(keys).to_vec() } else { records(keys, counts) };
        if is_stream {
            return Ok(bytes);
        }
        self.output.write_at(&bytes, at(if self.counts { K::SIZE + 8 } else { K::SIZE }))?;
        Ok(Vec::new())
    }

    fn append(&self, block: Vec<u8>) -> Result<()> {
        if block.is_empty() { Ok(()) } else { self.output.append(&block) }
    }

    fn finish(self, _distinct: u64) -> Result<u64> {
        self.output.commit()
    }
}

/// Keys as they are in a file, each followed by its count if there are counts.
fn records<K: Key>(keys: &[K], counts: &[u64]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(keys.len() * (K::SIZE + 8));
    for (index, key) in keys.iter().enumerate() {
        bytes.extend_from_slice(as_bytes(&[key.little_endian()]));
        if let Some(count) = counts.get(index) {
            bytes.extend_from_slice(&count.to_le_bytes());
        }
    }
    bytes
}
