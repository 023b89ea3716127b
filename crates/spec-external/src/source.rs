//! Formats to read.

use crate::{Key, Result};

/// Keys to read, divided into parts that several threads read at the same time.
///
/// Each format has one implementation. The pipeline calls [`open`](Self::open) once
/// for each part, in ascending order of the parts but from several threads, and
/// reads each part to its end from one thread at a time. Which keys are in which part, and the
/// order of keys, do not matter.
pub trait Source<K: Key>: Send + Sync {
    /// The number of keys, if it is known without reading. The pipeline then takes no more memory
    /// than these keys need.
    fn keys(&self) -> Option<u64>;

    /// The number of bytes to read in all, counted as in [`Part::bytes`], for progress
    /// reports. `None` where the number is not known, as for a pipe.
    fn bytes(&self) -> Option<u64>;

    /// The number of parts. With parts of some 16 to 64 MiB, every thread has a part, and all
    /// threads end at about the same time.
    fn parts(&self) -> usize;

    /// The largest number of bytes of host memory that an open part holds, not counting the keys
    /// that it is asked to fill.
    fn part_memory(&self) -> usize {
        0
    }

    /// The lines and nulls that were left out so far because the source was told to, and blank lines.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) where the place of the first such line
    /// cannot be found again.
    fn skipped(&self) -> Result<Skipped> {
        Ok(Skipped::default())
    }

    /// Starts to read a part. Parts count from 0.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) or [`Error::Data`](crate::Error::Data),
    /// with the path.
    fn open(&self, part: usize) -> Result<Box<dyn Part<K> + Send + '_>>;
}

/// The lines and nulls that a source left out because it was told to, and blank lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Skipped {
    /// The number of lines that are not keys.
    pub lines: u64,
    /// The first of these lines in words: file, line, column, and what is wrong.
    pub first: Option<String>,
    /// The number of nulls in columns, and of empty fields.
    pub nulls: u64,
    /// The number of blank lines in tables of several columns, which are no records.
    pub blanks: u64,
}

/// A part of a [`Source`] that is being read.
pub trait Part<K: Key> {
    /// Writes the next keys to the start of `keys`, which is not empty, and
    /// returns their number: as many as fit, or fewer where that is simpler. 0
    /// means the end of the part.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io), or [`Error::Data`](crate::Error::Data)
    /// for content that is not a key, with the path, and with line and column where the format has
    /// them.
    fn read(&mut self, keys: &mut [K]) -> Result<usize>;

    /// The number of bytes of input that this part has read so far.
    fn bytes(&self) -> u64;
}

/// Several sources one after the other: files of one format or of several formats.
pub struct Chain<'a, K: Key> {
    sources: Vec<Box<dyn Source<K> + 'a>>,
}

impl<K: Key> std::fmt::Debug for Chain<'_, K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Chain({} sources)", self.sources.len())
    }
}

impl<'a, K: Key> Chain<'a, K> {
    /// All keys of all `sources`.
    pub fn new(sources: Vec<Box<dyn Source<K> + 'a>>) -> Self {
        Chain { sources }
    }
}

impl<K: Key> Source<K> for Chain<'_, K> {
    fn keys(&self) -> Option<u64> {
        self.sources.iter().map(|source| source.keys()).sum()
    }

    fn bytes(&self) -> Option<u64> {
        self.sources.iter().map(|source| source.bytes()).sum()
    }

    fn parts(&self) -> usize {
        self.sources.iter().map(|source| source.parts()).sum()
    }

    fn part_memory(&self) -> usize {
        self.sources.iter().map(|source| source.part_memory()).max().unwrap_or(0)
    }

    fn skipped(&self) -> Result<Skipped> {
        let mut all = Skipped::default();
        for source in &self.sources {
            let Skipped { lines, first, nulls, blanks } = source.skipped()?;
            all.lines += lines;
            all.nulls += nulls;
            all.blanks += blanks;
            all.first = all.first.or(first);
        }
        Ok(all)
    }

    fn open(&self, part: usize) -> Result<Box<dyn Part<K> + Send + '_>> {
        let mut index = part;
        for source in &self.sources {
            match index.checked_sub(source.parts()) {
                None => return source.open(index),
                Some(rest) => index = rest,
            }
        }
        panic!("part {part} of {}", self.parts());
    }
}
