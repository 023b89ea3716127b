//! A sorted run of distinct keys on disk.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crc32fast::Hasher;
use spec::dtype::{as_bytes, as_bytes_mut};

use crate::temp::TempFolder;
use crate::watch::lock;
use crate::{Error, Key, Place, Result, Sink, os};

/// Ascending distinct keys in a file, in the machine's own byte order, divided into
/// blocks; their counts, if wanted, in a second file.
pub(crate) struct Run<K> {
    keys: PathBuf,
    counts: Option<PathBuf>,
    /// The number of keys.
    pub(crate) len: u64,
    /// The number of keys in a block; the last block may be shorter.
    pub(crate) block: usize,
    /// The heads of all blocks, which are known without reading the blocks.
    pub(crate) heads: Vec<Head<K>>,
}

/// The part of a block that stays in memory, while its keys and counts are in files.
#[derive(Clone, Copy)]
pub(crate) struct Head<K> {
    pub(crate) first: K,
    /// The checksums of the block's keys and of its counts. For a shorter last block, they are
    /// [`shifted`] as if zeros filled up a whole block.
    sums: [u32; 2],
}

/// A run whose files are open.
pub(crate) struct OpenRun<'a, K> {
    temp: &'a TempFolder,
    run: &'a Run<K>,
    keys: File,
    counts: Option<File>,
}

/// Writes a run, from several threads.
pub(crate) struct RunSink<'a, K> {
    temp: &'a TempFolder,
    keys: (PathBuf, File),
    counts: Option<(PathBuf, File)>,
    block: usize,
    heads: Mutex<Vec<Head<K>>>,
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
            heads: Mutex::new(Vec::new()),
        })
    }

    /// The run, after all its `len` keys have been written. Closes the files, because there can be
    /// more runs than files that a process may open.
    pub(crate) fn into_run(self, len: u64) -> Result<Run<K>> {
        let mut heads =
            self.heads.into_inner().map_err(|_| Error::Poisoned("what is known of a run"))?;
        heads.shrink_to_fit();
        let counts = self.counts.map(|(path, _)| path);
        Ok(Run { keys: self.keys.0, counts, len, block: self.block, heads })
    }

    /// Adds the keys from position `rank` on, and their counts, to the heads of the
    /// blocks that they are in.
    fn note(&self, rank: u64, keys: &[K], counts: &[u64]) {
        let block = self.block as u64;
        let end = rank + keys.len() as u64;
        let mut parts = Vec::with_capacity(keys.len() / self.block + 2);
        let mut at = rank;
        while at < end {
            let whole = (at / block + 1) * block;
            let range = (at - rank) as usize..(whole.min(end) - rank) as usize;
            let missing = whole - whole.min(end);
            let keys = &keys[range.clone()];
            let counts = if counts.is_empty() { counts } else { &counts[range] };
            let sums = sums(keys, counts, missing);
            // The first key of a block is in the part that begins the block.
            let first = at.is_multiple_of(block).then_some(keys[0]);
            parts.push(((at / block) as usize, first, sums));
            at = whole;
        }
        let mut heads = lock(&self.heads);
        let needed = end.div_ceil(block) as usize;
        if heads.len() < needed {
            heads.resize(needed, Head { first: K::MIN, sums: [0; 2] });
        }
        for (index, first, sums) in parts {
            let head = &mut heads[index];
            head.first = first.unwrap_or(head.first);
            for (sum, part) in head.sums.iter_mut().zip(sums) {
                *sum ^= part;
            }
        }
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
        self.note(rank, keys, counts);
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
    /// Bytes in the run's files.
    pub(crate) fn bytes(&self) -> u64 {
        let counts = if self.counts.is_some() { 8 } else { 0 };
        self.len * (K::SIZE as u64 + counts)
    }

    /// Bytes of memory that the heads take.
    pub(crate) fn index(&self) -> usize {
        self.heads.len() * size_of::<Head<K>>()
    }

    pub(crate) fn open<'a>(&'a self, temp: &'a TempFolder) -> Result<OpenRun<'a, K>> {
        let open =
            |path: &PathBuf| File::open(path).map_err(|error| temp.failed("read", path, error));
        let counts = self.counts.as_ref().map(open).transpose()?;
        Ok(OpenRun { temp, run: self, keys: open(&self.keys)?, counts })
    }

    /// The number of keys in the block at `index`.
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

impl<K: Key> OpenRun<'_, K> {
    /// Reads the keys of a block, and their counts if there are any. Checks that both are
    /// unchanged since they were written, and that the keys ascend, from the head's first key to
    /// less than the next head's first key.
    pub(crate) fn read(&self, block: usize, keys: &mut [K], counts: &mut [u64]) -> Result<()> {
        let run = self.run;
        let at = block as u64 * run.block as u64;
        self.fill(&run.keys, &self.keys, as_bytes_mut(keys), at * K::SIZE as u64)?;
        if let (Some(path), Some(file)) = (&run.counts, &self.counts) {
            self.fill(path, file, as_bytes_mut(counts), at * 8)?;
        }
        let head = &run.heads[block];
        let found = sums(keys, counts, (run.block - keys.len()) as u64);
        if found[0] != head.sums[0] {
            return Err(damaged(&run.keys, at * K::SIZE as u64));
        }
        if let Some(path) = run.counts.as_ref().filter(|_| found[1] != head.sums[1]) {
            return Err(damaged(path, at * 8));
        }
        let ends = match run.heads.get(block + 1) {
            Some(next) => keys.last() < Some(&next.first),
            None => true,
        };
        if keys.first() == Some(&head.first) && ends && ascend(keys) {
            return Ok(());
        }
        Err(self.out_of_order(block))
    }

    /// The error for keys that were already out of order when they were written, because of a
    /// faulty device or memory.
    pub(crate) fn out_of_order(&self, block: usize) -> Error {
        let at = Place::Byte(block as u64 * self.run.block as u64 * K::SIZE as u64);
        let words = "has keys that do not ascend, as they were written: the device or the memory \
                     is faulty";
        Error::data(&self.run.keys, at, words)
    }

    fn fill(&self, path: &Path, file: &File, bytes: &mut [u8], offset: u64) -> Result<()> {
        let failed = |error| self.temp.failed("read", path, error);
        let got = os::read_full(file, bytes, offset).map_err(failed)?;
        if got < bytes.len() {
            return Err(failed(std::io::Error::other("it is shorter than it was written")));
        }
        Ok(())
    }
}

/// The error for a block that has changed since it was written.
fn damaged(path: &Path, offset: u64) -> Error {
    let words = "is not what was written there: the disk or the memory is faulty, or another \
                 program has changed the file";
    Error::data(path, Place::Byte(offset), words)
}

/// Whether each key is less than the next key. The loop has no branch and goes through all keys,
/// so that the compiler vectorises it.
fn ascend<K: Key>(keys: &[K]) -> bool {
    let next = keys.get(1..).unwrap_or_default();
    keys.iter().zip(next).fold(true, |ascend, (key, next)| ascend & (key < next))
}

/// The checksums of keys and of counts, behind which `missing` more follow in their block.
fn sums<K: Key>(keys: &[K], counts: &[u64], missing: u64) -> [u32; 2] {
    let keys = shifted(as_bytes(keys), missing * K::SIZE as u64);
    [keys, if counts.is_empty() { 0 } else { shifted(as_bytes(counts), missing * 8) }]
}

/// The share of these bytes in the checksum of a block in which `behind` more
/// bytes follow. The checksum of a block is the exclusive or of the shares of its parts, so
/// several threads can write the parts in any order.
fn shifted(bytes: &[u8], behind: u64) -> u32 {
    let mut hasher = Hasher::new();
    hasher.update(bytes);
    if behind > 0 {
        hasher.combine(&Hasher::new_with_initial_len(0, behind));
    }
    hasher.finalize()
}
