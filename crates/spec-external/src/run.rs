//! A sorted run of distinct keys on disk.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Mutex;

use spec_core::dtype::{as_bytes, as_bytes_mut};

use crate::temp::TempFolder;
use crate::watch::lock;
use crate::{Error, Key, Result, Sink, os};

/// Ascending distinct keys in a file, in the machine's own byte order, in
/// blocks of so many; their counts, if there are any, in a second file.
pub(crate) struct Run<K> {
    keys: PathBuf,
    counts: Option<PathBuf>,
    /// Number of keys.
    pub(crate) len: u64,
    /// Keys of a block; the last one may be shorter.
    pub(crate) block: usize,
    /// The first key of every block.
    pub(crate) firsts: Vec<K>,
}

/// A run whose files are open.
pub(crate) struct OpenRun<'a> {
    temp: &'a TempFolder,
    keys: (PathBuf, File),
    counts: Option<(PathBuf, File)>,
}

/// Writes a run, from several threads.
pub(crate) struct RunSink<'a, K> {
    temp: &'a TempFolder,
    keys: (PathBuf, File),
    counts: Option<(PathBuf, File)>,
    block: usize,
    firsts: Mutex<Vec<K>>,
}

impl<'a, K: Key> RunSink<'a, K> {
    pub(crate) fn new(
        temp: &'a TempFolder,
        number: usize,
        block: usize,
        counts: bool,
    ) -> Result<Self> {
        let make = |kind: &str| {
            let path = temp.file(&format!("{number}.{kind}"));
            let made = os::create_private(&path);
            made.map_err(|error| temp.failed("write", &path, error)).map(|file| (path, file))
        };
        Ok(RunSink {
            temp,
            keys: make("keys")?,
            counts: counts.then(|| make("counts")).transpose()?,
            block,
            firsts: Mutex::new(Vec::new()),
        })
    }

    /// All `len` keys are written. The files are closed: there can be more runs
    /// than a process may have files open.
    pub(crate) fn into_run(self, len: u64) -> Result<Run<K>> {
        let mut firsts =
            self.firsts.into_inner().map_err(|_| Error::Poisoned("a run's first keys"))?;
        firsts.shrink_to_fit();
        let counts = self.counts.map(|(path, _)| path);
        Ok(Run { keys: self.keys.0, counts, len, block: self.block, firsts })
    }

    fn write(&self, (path, file): &(PathBuf, File), bytes: &[u8], offset: u64) -> Result<()> {
        os::write_at(file, bytes, offset).map_err(|error| self.temp.failed("write", path, error))
    }
}

impl<K: Key> Sink<K> for RunSink<'_, K> {
    type Encoded = ();

    fn counts(&self) -> bool {
        self.counts.is_some()
    }

    fn encode(&self, rank: u64, keys: &[K], counts: &[u64]) -> Result<()> {
        let block = self.block as u64;
        let mut at = rank.next_multiple_of(block);
        let end = rank + keys.len() as u64;
        if at < end {
            let mut firsts = lock(&self.firsts);
            let needed = end.div_ceil(block) as usize;
            if firsts.len() < needed {
                firsts.resize(needed, K::MIN);
            }
            while at < end {
                firsts[(at / block) as usize] = keys[(at - rank) as usize];
                at += block;
            }
        }
        self.write(&self.keys, as_bytes(keys), rank * K::SIZE as u64)?;
        match &self.counts {
            Some(file) => self.write(file, as_bytes(counts), rank * 8),
            None => Ok(()),
        }
    }

    fn append(&self, _block: ()) -> Result<()> {
        Ok(())
    }

    fn finish(self, distinct: u64) -> Result<u64> {
        Ok(distinct * K::SIZE as u64)
    }
}

impl<K: Key> Run<K> {
    /// Bytes in its files.
    pub(crate) fn bytes(&self) -> u64 {
        let counts = if self.counts.is_some() { 8 } else { 0 };
        self.len * (K::SIZE as u64 + counts)
    }

    pub(crate) fn open<'a>(&self, temp: &'a TempFolder) -> Result<OpenRun<'a>> {
        let open = |path: &PathBuf| {
            let file = File::open(path).map_err(|error| temp.failed("read", path, error));
            file.map(|file| (path.clone(), file))
        };
        let counts = self.counts.as_ref().map(open).transpose()?;
        Ok(OpenRun { temp, keys: open(&self.keys)?, counts })
    }

    /// Keys of a block.
    pub(crate) fn block_len(&self, index: usize) -> usize {
        let left = self.len - index as u64 * self.block as u64;
        left.min(self.block as u64) as usize
    }

    /// Removes the files.
    pub(crate) fn remove(self) {
        _ = std::fs::remove_file(self.keys);
        if let Some(counts) = self.counts {
            _ = std::fs::remove_file(counts);
        }
    }
}

impl OpenRun<'_> {
    /// Reads keys from position `at` on, and their counts.
    pub(crate) fn read<K: Key>(&self, at: u64, keys: &mut [K], counts: &mut [u64]) -> Result<()> {
        self.fill(&self.keys, as_bytes_mut(keys), at * K::SIZE as u64)?;
        match &self.counts {
            Some(file) => self.fill(file, as_bytes_mut(counts), at * 8),
            None => Ok(()),
        }
    }

    fn fill(&self, (path, file): &(PathBuf, File), bytes: &mut [u8], offset: u64) -> Result<()> {
        let failed = |error| self.temp.failed("read", path, error);
        let got = os::read_full(file, bytes, offset).map_err(failed)?;
        if got < bytes.len() {
            return Err(failed(std::io::Error::other("it is shorter than it was written")));
        }
        Ok(())
    }
}
