//! Merges runs: blocks are read in the order in which their keys are needed,
//! and every thread merges pieces independently.
//!
//! ```text
//! forecast   the order of all blocks of all runs, by their first keys
//! readers    read the blocks in that order into a pool, several at once
//! planner    all keys below the first key of the next block have been read: cuts
//!            them off every run, in pieces of about the same size
//! workers    merge a piece in cache, equal keys into one; learn the piece's rank,
//!            in the order of the pieces; encode and write the piece
//! ```
//!
//! Each block is read once, and a run never has more than one block that is partly
//! used. So the pool needs only one block for each run and some more, however keys are
//! distributed.

mod forecast;
mod plan;
mod tree;

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};

use self::forecast::{Forecast, Task};
use self::plan::{Piece, Planner};
use self::tree::{Columns, merge_all};
use crate::run::{OpenRun, Run};
use crate::temp::TempFolder;
use crate::watch::{Pool, Turns, Watch, lock};
use crate::{Key, Result, Sink};

/// The largest number of keys in a piece: two buffers of 512 KiB of u64, which a core's cache
/// holds.
const PIECE: u64 = 64 * 1024;
/// The smallest number of keys in a piece for which another thread is worth its cost.
const LEAST_PIECE: u64 = 4 * 1024;
/// The largest number of runs that are merged at once. Each has one or two open files.
const MAX_RUNS: u64 = 400;
/// The number of blocks that each reading thread reads ahead.
const AHEAD: usize = 4;

/// How a merge divides its memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    threads: usize,
    readers: usize,
    /// The largest number of keys in a piece.
    piece: usize,
    /// Bytes of memory for blocks.
    pool: u64,
    key_bytes: u64,
}

impl Shape {
    /// The shape of a merge within `budget` bytes. `key_memory` is the number of bytes that the
    /// sink holds for each key.
    pub(crate) fn new<K: Key>(
        budget: u64,
        threads: usize,
        has_counts: bool,
        key_memory: usize,
    ) -> Shape {
        let key_bytes = (K::SIZE + if has_counts { 8 } else { 0 }) as u64;
        let each = 2 * key_bytes + key_memory as u64;
        let share = budget / 4;
        let threads = (threads as u64).clamp(1, (share / (each * LEAST_PIECE)).max(1));
        let piece = (share / threads / each).clamp(LEAST_PIECE, PIECE) as usize;
        let pool = budget - budget / 4 - budget / 8;
        let threads = threads as usize;
        Shape { threads, readers: threads.clamp(2, 8), piece, pool, key_bytes }
    }

    /// The number of bytes in a block of a run, for a memory limit of `budget` bytes, of which
    /// heads of earlier runs already take `index` bytes. Blocks are so small that hundreds of runs
    /// can be merged at once, and so large that heads take little memory.
    pub(crate) fn block_bytes(budget: u64, index: u64) -> u64 {
        let block = (budget / 2048).clamp(16 << 10, 1 << 20).next_multiple_of(4096);
        let mut grown = block;
        let mut allowed = budget / 64;
        while index > allowed && grown < budget / 64 {
            allowed += budget / 64;
            grown *= 2;
        }
        grown
    }

    /// The number of runs with blocks of `block` keys that can be merged at once.
    pub(crate) fn max_runs(&self, block: usize) -> usize {
        let blocks = self.pool / (block as u64 * self.key_bytes);
        (blocks * 2 / 3).clamp(2, MAX_RUNS) as usize
    }

    fn blocks(&self, block: usize, runs: usize) -> usize {
        let max = (self.pool / (block as u64 * self.key_bytes)) as usize;
        // More blocks than keep all threads busy are of no use.
        let piece = self.piece.div_ceil(block);
        let useful = runs + (self.threads * 4 + 2) * piece + self.readers * AHEAD;
        useful.min(max).max(runs + 3)
    }
}

/// A block of a run that has been read.
pub(crate) struct Block<K> {
    columns: Columns<K>,
    len: usize,
}

/// A block that returns to its pool when all its pieces have been copied.
pub(crate) struct Loaded<'a, K: Key> {
    block: Option<Block<K>>,
    pool: &'a Pool<Block<K>>,
}

impl<K: Key> Loaded<'_, K> {
    fn keys(&self) -> &[K] {
        self.block.as_ref().map_or(&[], |block| &block.columns.keys[..block.len])
    }

    fn counts(&self) -> &[u64] {
        self.block.as_ref().map_or(&[], |block| &block.columns.counts)
    }
}

impl<K: Key> Drop for Loaded<'_, K> {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            self.pool.give(block);
        }
    }
}

/// A block that a reader has read, and its task.
struct Read<'a, K: Key> {
    task: Task<K>,
    loaded: Arc<Loaded<'a, K>>,
}

/// Merges `runs` into `sink`; returns the number of distinct keys.
pub(crate) fn merge<K: Key, T: Sink<K>>(
    runs: &[Run<K>],
    temp: &TempFolder,
    shape: Shape,
    sink: &T,
    watch: &Watch<'_>,
) -> Result<u64> {
    let has_counts = sink.counts();
    let open = runs.iter().map(|run| run.open(temp)).collect::<Result<Vec<_>>>()?;
    let block = runs.iter().map(|run| run.block).max().unwrap_or(1);
    let blocks = shape.blocks(block, runs.len());
    let pool = Pool::new(
        (0..blocks)
            .map(|_| Ok(Block { columns: Columns::new(block, has_counts)?, len: 0 }))
            .collect::<Result<Vec<_>>>()?,
    );
    // After a cut, each run has at most one block that is partly used. A third of the other
    // blocks are for a batch, the rest are for pieces that are being merged meanwhile.
    let spare = (blocks - runs.len()) / 3;
    let batch = spare.min((shape.piece * shape.threads).div_ceil(block)).max(1);
    let forecast = Mutex::new(Forecast::new(runs));
    let ranks = Turns::new(0u64);
    let order = Turns::new(());
    // The pool bounds the readers. One waiting piece for each worker bounds the planner.
    let (read, reads) = sync_channel::<Read<'_, K>>(blocks);
    let (cut, pieces) = sync_channel::<Piece<'_, K>>(shape.threads);
    // Only the workers hold the receiver, so the planner's sends fail once all workers have left.
    let pieces = Arc::new(Mutex::new(pieces));
    std::thread::scope(|scope| {
        for _ in 0..shape.readers {
            let read = read.clone();
            let (open, forecast, pool) = (&open, &forecast, &pool);
            watch.spawn(scope, move || read_blocks(open, forecast, pool, &read, watch));
        }
        drop(read);
        for _ in 0..shape.threads {
            let (pieces, ranks, order) = (pieces.clone(), &ranks, &order);
            watch.spawn(scope, move || {
                merge_pieces(&pieces, shape.piece, sink, ranks, order, watch)
            });
        }
        drop(pieces);
        watch.guard(|| plan(&open, batch, shape.piece, reads, &cut));
        drop(cut);
    });
    watch.check()?;
    Ok(ranks.into_inner())
}

fn read_blocks<'a, K: Key>(
    open: &[OpenRun<'_, K>],
    forecast: &Mutex<Forecast<'_, K>>,
    pool: &'a Pool<Block<K>>,
    read: &SyncSender<Read<'a, K>>,
    watch: &Watch<'_>,
) -> Result<()> {
    loop {
        let (task, mut block) = {
            // Blocks of the pool are taken in the order of the tasks, so an earlier task never
            // waits for a block that a later task holds.
            let mut forecast = lock(forecast);
            let Some(task) = forecast.next() else { return Ok(()) };
            (task, pool.take(watch)?)
        };
        block.len = task.len;
        let Columns { keys, counts } = &mut block.columns;
        let wanted = task.len.min(counts.len());
        let counts = &mut counts[..wanted];
        open[task.run].read(task.block, &mut keys[..task.len], counts)?;
        let bytes = task.len * K::SIZE + counts.len() * 8;
        watch.advance(bytes as u64)?;
        let loaded = Arc::new(Loaded { block: Some(block), pool });
        // The channel is closed only if the planner has failed.
        if read.send(Read { task, loaded }).is_err() {
            return Ok(());
        }
    }
}

fn plan<'a, K: Key>(
    open: &[OpenRun<'_, K>],
    batch: usize,
    piece: usize,
    reads: Receiver<Read<'a, K>>,
    cut: &SyncSender<Piece<'a, K>>,
) -> Result<()> {
    let mut planner = Planner::new(open.len(), batch, piece);
    for read in reads {
        let Task { run, block, .. } = read.task;
        let pieces = planner.take(read.task, read.loaded);
        // Each block was checked when it was read, but the order between blocks of a run was not.
        for piece in pieces.ok_or_else(|| open[run].out_of_order(block))? {
            // The channel is closed only if a worker has failed.
            if cut.send(piece).is_err() {
                return Ok(());
            }
        }
    }
    Ok(())
}

fn merge_pieces<K: Key, T: Sink<K>>(
    pieces: &Mutex<Receiver<Piece<'_, K>>>,
    capacity: usize,
    sink: &T,
    ranks: &Turns<u64>,
    order: &Turns<()>,
    watch: &Watch<'_>,
) -> Result<()> {
    let has_counts = sink.counts();
    let mut a = Columns::new(capacity, has_counts)?;
    let mut b = Columns::new(capacity, has_counts)?;
    let mut ends = Vec::new();
    loop {
        let received = lock(pieces).recv();
        let Ok(piece) = received else { return Ok(()) };
        let number = piece.number;
        gather(&piece, &mut a, &mut ends);
        // The blocks of the piece are free from here on.
        drop(piece);
        let (in_b, len) = merge_all(&mut a, &mut b, &mut ends);
        let result = if in_b { &b } else { &a };
        let rank = ranks.pass(number, watch, |rank| {
            *rank += len as u64;
            Ok(*rank - len as u64)
        })?;
        let counts = if has_counts { &result.counts[..len] } else { &[] };
        let block = sink.encode(rank, &result.keys[..len], counts)?;
        order.pass(number, watch, |()| sink.append(block))?;
    }
}

/// Copies the slices of a piece to `to`, so that the slices of each run form one sequence. `ends`
/// are the ends of the sequences.
fn gather<K: Key>(piece: &Piece<'_, K>, to: &mut Columns<K>, ends: &mut Vec<usize>) {
    ends.clear();
    let mut at = 0;
    let mut last = None;
    for slice in &piece.slices {
        let end = at + slice.range.len();
        to.keys[at..end].copy_from_slice(&slice.loaded.keys()[slice.range.clone()]);
        if !to.counts.is_empty() {
            to.counts[at..end].copy_from_slice(&slice.loaded.counts()[slice.range.clone()]);
        }
        if last == Some(slice.run) {
            ends.pop();
        }
        ends.push(end);
        last = Some(slice.run);
        at = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Discard;
    use crate::run::RunSink;

    /// Writes runs in blocks of `block` keys and merges them. Returns the number of distinct keys,
    /// or the error.
    fn merged(runs: &[Vec<u64>], block: usize) -> Result<u64> {
        let folder = tempfile::tempdir().unwrap();
        let temp = TempFolder::make(folder.path()).unwrap();
        let write = |(number, keys): (usize, &Vec<u64>)| {
            let sink = RunSink::new(&temp, number, block, false).unwrap();
            // Keys are written in parts that are not blocks, and out of order.
            let parts = keys.chunks(block / 3 + 1).enumerate();
            for (part, keys) in parts.rev() {
                sink.encode((part * (block / 3 + 1)) as u64, keys, &[]).unwrap();
            }
            sink.into_run(keys.len() as u64).unwrap()
        };
        let runs: Vec<_> = runs.iter().enumerate().map(write).collect();
        let shape = Shape::new::<u64>(8 << 20, 2, false, 0);
        let watch = Watch::new(&());
        let result = merge(&runs, &temp, shape, &Discard, &watch);
        watch.outcome(result)
    }

    /// Runs of keys as a defective device might give them: with the right checksum, but not
    /// ascending. Without a check, each of these runs made the merge hang, overflow its stack, or
    /// return a wrong number.
    #[test]
    fn keys_that_do_not_ascend_are_an_error() {
        let n = 200_000;
        let good: Vec<u64> = (0..n).map(|key| key * 5).collect();
        let hash = |key: u64| key.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let bad: [Vec<u64>; 7] = [
            vec![0; n as usize],
            vec![u64::MAX; n as usize],
            (0..n).rev().collect(),
            (0..n).map(hash).collect(),
            (0..n).map(|key| key / 2).collect(),
            // Keys in order except for one place, within a block or between two blocks.
            (0..n).map(|key| if key == 77_777 { 0 } else { key * 3 }).collect(),
            (0..n).map(|key| if key < 3 * 2048 { key } else { key - 1 }).collect(),
        ];
        assert_eq!(merged(&[good.clone(), good.clone()], 2048).unwrap(), n);
        for keys in bad {
            for runs in [vec![keys.clone()], vec![good.clone(), keys.clone()], vec![keys; 3]] {
                let error = merged(&runs, 2048).unwrap_err().to_string();
                assert!(
                    error.contains(".keys: byte ") && error.contains("do not ascend"),
                    "{error}"
                );
            }
        }
    }

    #[test]
    fn runs_of_every_length_are_what_was_written() {
        for block in [500, 2048] {
            for len in [0u64, 1, 499, 500, 501, 2047, 2048, 2049, 5000] {
                let keys: Vec<u64> = (0..len).map(|key| key * key).collect();
                assert_eq!(merged(&[keys.clone(), vec![], keys], block).unwrap(), len);
            }
        }
    }

    #[test]
    fn a_planner_gives_up_on_keys_that_cannot_be_divided() {
        let pool = Pool::new(Vec::new());
        let block = Block { columns: Columns::new(10_000, false).unwrap(), len: 10_000 };
        let loaded = Arc::new(Loaded { block: Some(block), pool: &pool });
        let task = Task { number: 0, run: 0, block: 0, len: 10_000, bound: None };
        assert!(Planner::<u64>::new(1, 1, 4096).take(task, loaded).is_none());
    }
}
