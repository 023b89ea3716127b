//! An input: a file of which any part can be read, or a stream. Its first bytes tell its form.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

#[cfg(not(all(feature = "gzip", feature = "zstd")))]
use crate::Place;
#[cfg(any(feature = "gzip", feature = "zstd"))]
use crate::packed::Decompressed;
#[cfg(feature = "gzip")]
use crate::packed::gzip;
#[cfg(feature = "zstd")]
use crate::packed::zstd;
use crate::{Content, Error, Result, os};

/// The number of first bytes that tell the form of an input.
const HEAD: usize = 4096;

/// An open input.
///
/// A regular file can be read in parts by several threads. Every other input is a stream, which is
/// read from its start to its end: a pipe, a device, a compressed file, or a file of `/proc`, whose
/// length is 0 although it has content.
pub struct Input {
    pub(crate) name: PathBuf,
    pub(crate) data: Data,
    /// The first bytes. They have been read from a stream, which repeats them.
    pub(crate) head: Vec<u8>,
    /// Bytes of memory that decompressing the input takes.
    pub(crate) memory: usize,
}

pub(crate) enum Data {
    /// A regular file, and its size in bytes.
    File(File, u64),
    Stream(Box<dyn Read + Send>),
}

impl std::fmt::Debug for Input {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Input({}, {:?})", self.name.display(), self.content())
    }
}

impl Input {
    /// Opens a file, a pipe or a device by its path.
    ///
    /// # Errors
    /// [`Error::Io`] where it cannot be read or is a folder.
    pub fn open(path: &Path) -> Result<Self> {
        let failed = |error| Error::io("read", path, error);
        let file = File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if metadata.is_dir() {
            return Err(failed(io::ErrorKind::IsADirectory.into()));
        }
        let bytes = metadata.len();
        if !metadata.is_file() {
            return Self::stream(path, file);
        }
        if bytes == 0 {
            // A file of length 0 may still have content, as those of `/proc` do: only reading
            // tells.
            let stream = Self::stream(path, file.try_clone().map_err(failed)?)?;
            let data = if stream.head.is_empty() { Data::File(file, 0) } else { stream.data };
            return Ok(Input { data, ..stream });
        }
        let mut head = vec![0; HEAD];
        let read = os::read_full(&file, &mut head, 0).map_err(failed)?;
        head.truncate(read);
        Ok(Input { name: path.to_owned(), data: Data::File(file, bytes), head, memory: 0 })
    }

    /// The data that `reader` gives; errors call it `name`.
    ///
    /// # Errors
    /// [`Error::Io`] where its first bytes cannot be read.
    pub fn stream(name: impl AsRef<Path>, mut reader: impl Read + Send + 'static) -> Result<Self> {
        let mut head = Vec::new();
        let read = reader.by_ref().take(HEAD as u64).read_to_end(&mut head);
        read.map_err(|error| Error::io("read", &name, error))?;
        let data = Data::Stream(Box::new(io::Cursor::new(head.clone()).chain(reader)));
        Ok(Input { name: name.as_ref().to_owned(), data, head, memory: 0 })
    }

    /// Standard input.
    ///
    /// # Errors
    /// [`Error::Io`] where it is closed, or not open for reading.
    pub fn stdin() -> Result<Self> {
        let name = "stdin";
        let file = os::standard(os::Standard::Input);
        Self::stream(name, file.map_err(|error| Error::io("read", name, error))?)
    }

    /// The name of the input in errors.
    pub fn name(&self) -> &Path {
        &self.name
    }

    /// The form of the input, according to its first bytes.
    pub fn content(&self) -> Content {
        Content::of(&self.head)
    }

    /// The decompressed content of a gzip or zstd input; any other input itself.
    ///
    /// Zeros may follow the last member of a gzip file. A zstd file may have windows of up to 2 GiB,
    /// and frames that are skipped.
    ///
    /// # Errors
    /// [`Error::Io`] where the first bytes of the input cannot be read or decompressed, and
    /// [`Error::Data`] where this build lacks the feature `gzip` or `zstd` that the input needs.
    pub fn decompressed(self) -> Result<Self> {
        match self.content() {
            #[cfg(feature = "gzip")]
            Content::Gzip => {
                self.through(|packed, _| Ok((Box::new(gzip::Members::new(packed)), gzip::MEMORY)))
            }
            #[cfg(feature = "zstd")]
            Content::Zstd => {
                self.through(|packed, head| Ok((Box::new(zstd::open(packed)?), zstd::memory(head))))
            }
            #[cfg(not(feature = "gzip"))]
            Content::Gzip => Err(self.left_out("gzip")),
            #[cfg(not(feature = "zstd"))]
            Content::Zstd => Err(self.left_out("zstd")),
            _ => Ok(self),
        }
    }

    /// The error for a compressed input in a build without the feature that decompresses it.
    #[cfg(not(all(feature = "gzip", feature = "zstd")))]
    fn left_out(&self, feature: &str) -> Error {
        let message = format!(
            "is a {feature} file, which this build does not decompress; one that does is made \
             with `--features {feature}`"
        );
        Error::data(&self.name, Place::Whole, message)
    }

    /// The input that `decoder` makes of the compressed bytes and of the first of them. The
    /// decoder comes with the bytes of memory that it holds.
    #[cfg(any(feature = "gzip", feature = "zstd"))]
    fn through(
        self,
        decoder: impl FnOnce(Packed, &[u8]) -> io::Result<(Box<dyn Read + Send>, usize)>,
    ) -> Result<Self> {
        let what = self.content().name();
        let (name, head) = (self.name, self.head);
        let packed: Box<dyn Read + Send> = match self.data {
            Data::File(file, _) => Box::new(file),
            Data::Stream(reader) => reader,
        };
        let decoder = decoder(io::BufReader::with_capacity(PACKED, packed), &head);
        let (reader, memory) = decoder.map_err(|error| Error::io("read", &name, error))?;
        let input = Self::stream(name, Decompressed::new(reader, what))?;
        Ok(Input { memory: PACKED + memory, ..input })
    }
}

/// The compressed bytes of an input.
#[cfg(any(feature = "gzip", feature = "zstd"))]
type Packed = io::BufReader<Box<dyn Read + Send>>;

/// The number of bytes of a compressed input that are read at once.
#[cfg(any(feature = "gzip", feature = "zstd"))]
const PACKED: usize = 256 << 10;
