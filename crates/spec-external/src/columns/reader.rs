//! A file that several threads read at once, for the Parquet and Arrow crates.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::sync::Arc;

use bytes::Bytes;
use parquet::errors::{ParquetError, Result};
use parquet::file::reader::{ChunkReader, Length};

use crate::os;

/// The number of bytes that are read at once where the caller reads in small pieces.
pub(super) const BUFFER: usize = 256 << 10;

/// A file with a position. Unlike clones of a [`File`], each clone of a `Shared` has a position
/// of its own.
#[derive(Clone)]
pub(super) struct Shared {
    file: Arc<File>,
    bytes: u64,
    at: u64,
}

impl Shared {
    pub(super) fn new(file: File) -> io::Result<Self> {
        let bytes = file.metadata()?.len();
        Ok(Shared { file: Arc::new(file), bytes, at: 0 })
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    pub(super) fn size(&self) -> u64 {
        self.bytes
    }
}

impl Read for Shared {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = os::read_at(&self.file, buffer, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

impl Seek for Shared {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.bytes.checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = at.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}

impl Length for Shared {
    fn len(&self) -> u64 {
        self.bytes
    }
}

impl ChunkReader for Shared {
    type T = BufReader<Shared>;

    fn get_read(&self, start: u64) -> Result<Self::T> {
        let mut reader = self.clone();
        reader.at = start;
        Ok(BufReader::with_capacity(BUFFER, reader))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        // A damaged file may claim any length: nothing is allocated before the length is checked.
        if start.checked_add(length as u64).is_none_or(|end| end > self.bytes) {
            return Err(ParquetError::EOF(format!("{length} bytes at {start} are past the end")));
        }
        let mut buffer = vec![0; length];
        let read = os::read_full(&self.file, &mut buffer, start)?;
        if read < length {
            return Err(ParquetError::EOF("the file has become shorter".to_owned()));
        }
        Ok(buffer.into())
    }
}
