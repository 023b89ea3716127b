//! Where keys come from.

use crate::{Key, Result};

/// Keys to read, in any order, as parts that several threads read at once.
///
/// One implementation a format. The pipeline calls [`open`](Self::open) once
/// for each part, in ascending order of the parts but from several threads, and
/// reads each part to its end from one thread at a time. Nothing depends on
/// which keys are in which part, or on their order.
pub trait Source<K: Key>: Send + Sync {
    /// Number of keys, where that is known without reading: lets the pipeline
    /// take as much memory as is needed and no more.
    fn keys(&self) -> Option<u64>;

    /// Bytes to read in all, in the unit of [`Part::bytes`]; for the progress
    /// bar. `None` where it is not known, as of a pipe.
    fn bytes(&self) -> Option<u64>;

    /// Number of parts. Parts of some 16 to 64 MiB let every thread have one and
    /// all of them end at about the same time.
    fn parts(&self) -> usize;

    /// Bytes of host memory that an open part holds at most, beside the keys
    /// that it is asked to fill.
    fn part_memory(&self) -> usize {
        0
    }

    /// What was left out so far because the source was told to leave it out.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) where the place of the first such line
    /// cannot be found any more.
    fn skipped(&self) -> Result<Skipped> {
        Ok(Skipped::default())
    }

    /// Starts to read a part, counted from 0.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) or [`Error::Data`](crate::Error::Data),
    /// with the path.
    fn open(&self, part: usize) -> Result<Box<dyn Part<K> + Send + '_>>;
}

/// What a source left out because it was told to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Skipped {
    /// Lines that are no key.
    pub lines: u64,
    /// The first of those: file, line, column, and what is wrong with it.
    pub first: Option<String>,
    /// Nulls in columns, and fields without a character.
    pub nulls: u64,
}

/// A part of a [`Source`] that is being read.
pub trait Part<K: Key> {
    /// Writes the next keys to the start of `keys`, which is not empty, and
    /// returns how many: as many as fit, or fewer where that is convenient. 0
    /// is the end.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io), or [`Error::Data`](crate::Error::Data)
    /// for what is no key, with the path, and line and column where there are
    /// such.
    fn read(&mut self, keys: &mut [K]) -> Result<usize>;

    /// Bytes of input that this part has taken so far.
    fn bytes(&self) -> u64;
}

/// Several sources one after the other: files of one format, or of several.
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
            let Skipped { lines, first, nulls } = source.skipped()?;
            all.lines += lines;
            all.nulls += nulls;
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
