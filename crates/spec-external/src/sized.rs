//! A regular file whose length must not shrink after it was opened.

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::lines::Lines;
use crate::{Error, Place, Result, os};

/// The number of bytes that are read at once to find a line.
const BUFFER: usize = 1 << 20;

pub(crate) struct SizedFile {
    pub(crate) path: PathBuf,
    file: File,
    pub(crate) bytes: u64,
}

impl SizedFile {
    pub(crate) fn new(path: &Path, file: File, bytes: u64) -> Self {
        SizedFile { path: path.to_owned(), file, bytes }
    }

    /// Fills `bytes` from `offset` on. Fails where the file has become shorter.
    pub(crate) fn read(&self, bytes: &mut [u8], offset: u64) -> Result<()> {
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

    /// The line and column of the byte at `offset`, both counted from 1. Reads all bytes before it.
    pub(crate) fn place(&self, offset: u64) -> Result<(u64, u64)> {
        let mut lines = Lines::default();
        let mut buffer = vec![0; BUFFER.min(offset as usize)];
        while lines.offset < offset {
            let length = buffer.len().min((offset - lines.offset) as usize);
            self.read(&mut buffer[..length], lines.offset)?;
            lines.pass(&buffer[..length]);
        }
        Ok(lines.place())
    }
}
