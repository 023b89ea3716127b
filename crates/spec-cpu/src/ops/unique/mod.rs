//! Distinct keys on the CPU.

mod key;
mod ordered;
mod partition;
mod piece;
mod pieces;

use rayon::prelude::*;
use spec_core::ops::Unique;
use spec_core::ops::unique::{Buffers, Plan};
use spec_core::{DType, Kernel, Result, Stream, Supports, ViewMut};

use crate::Cpu;
use crate::slices::{Workspace, slice, slice_mut, workspace_size};
use key::Key;
use partition::{Books, Level, Split};
use pieces::{Output, ROUND};

/// Keys of a piece that one thread sorts in cache, as a partition aims at.
const PIECE: usize = 8 * 1024;
/// Most keys of a piece, where there are so many that a partition makes them larger.
const LONGEST: usize = 256 * 1024;
/// Fewest and most buckets of a partition, as powers of two.
const BUCKET_BITS: [u32; 2] = [4, 12];
/// Keys of a sample at most.
const SAMPLE: usize = 4096;

/// What a call needs besides the keys, by how many of them there are.
#[derive(Clone, Copy)]
struct Sizes {
    /// Most buckets of a partition.
    buckets: usize,
    /// Parts that a partition reads in parallel.
    parts: usize,
    /// Threads that sort pieces, and the keys of each one's scratch.
    workers: usize,
    scratch: usize,
    /// Partitions of a bucket of a bucket that there may be.
    levels: usize,
    /// Chunks of keys that come in order.
    chunks: usize,
}

impl Sizes {
    fn new(n: usize, threads: usize) -> Self {
        let chunks = n.div_ceil(ordered::CHUNK);
        if n <= 2 * PIECE {
            return Sizes { buckets: 0, parts: 0, workers: 1, scratch: n.next_multiple_of(8), levels: 0, chunks };
        }
        let buckets = buckets_for(n);
        // The books and the scratch shall be small beside the keys.
        let parts = (threads * 2).min(n / (128 * buckets)).max(1);
        let scratch = (2 * n / buckets).next_power_of_two().clamp(PIECE, LONGEST);
        let workers = threads.min(n / (16 * scratch)).max(1);
        // Each has one bit less than the other if its range lies badly.
        let levels = 64usize.div_ceil(buckets.ilog2() as usize - 1) + 2;
        Sizes { buckets, parts, workers, scratch, levels, chunks }
    }
}

/// How many buckets a partition of so many keys has.
fn buckets_for(n: usize) -> usize {
    let [fewest, most] = BUCKET_BITS.map(|bits| 1 << bits);
    n.div_ceil(PIECE).next_power_of_two().clamp(fewest, most)
}

struct Prepared {
    plan: Plan,
    sizes: Sizes,
}

// SAFETY: the kernel keeps within what the plan describes, whatever the data.
unsafe impl Supports<Unique> for Cpu {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<Unique>>> {
        let sizes = Sizes::new(plan.keys.len, rayon::current_num_threads());
        Ok(Box::new(Prepared { plan: plan.clone(), sizes }))
    }
}

// SAFETY: as above.
unsafe impl Kernel<Unique> for Prepared {
    fn workspace_size(&self) -> usize {
        let Sizes { buckets, parts, workers, scratch, levels, chunks } = self.sizes;
        let size = self.plan.keys.dtype.size();
        workspace_size(&[
            self.plan.keys.len * size,
            workers * scratch * size,
            parts * 2 * buckets * 8,
            parts * buckets * 64,
            levels * buckets * 2 * 8,
            levels * buckets * size,
            chunks * 8,
        ])
    }

    unsafe fn launch(
        &self,
        workspace: ViewMut<'_>,
        buffers: Buffers<'_>,
        stream: Stream<'_>,
    ) -> Result<()> {
        stream.check_host()?;
        match self.plan.keys.dtype {
            DType::I32 => self.run::<i32>(workspace, buffers),
            DType::U32 => self.run::<u32>(workspace, buffers),
            DType::I64 => self.run::<i64>(workspace, buffers),
            _ => self.run::<u64>(workspace, buffers),
        }
    }
}

impl Prepared {
    fn run<K: Key>(&self, workspace: ViewMut<'_>, buffers: Buffers<'_>) -> Result<()> {
        let n = self.plan.keys.len;
        let Sizes { buckets, parts, workers, scratch, levels, chunks } = self.sizes;
        let keys = &slice::<K>(buffers.keys)?[..n];
        let count = &mut slice_mut::<u64>(buffers.count)?[0];
        let counts = buffers.counts.map(slice_mut::<u64>).transpose()?;
        let mut output = Output {
            keys: &mut slice_mut::<K>(buffers.unique)?[..n],
            counts: counts.map(|counts| &mut counts[..n]),
            count: 0,
        };
        let mut workspace = Workspace::new(workspace)?;
        let sorted = workspace.take::<K>(n)?;
        let length = scratch;
        let scratch = workspace.take::<K>(workers * length)?;
        let books = Books {
            count: parts,
            parts: workspace.take::<u64>(parts * 2 * buckets)?,
            lines: workspace.take::<K>(parts * buckets * K::LINE)?,
        };
        let tables = workspace.take::<u64>(levels * buckets * 2)?;
        let heavy = workspace.take::<K>(levels * buckets)?;
        let chunks = workspace.take::<u64>(chunks)?;
        if !ordered::settle(keys, chunks, &mut output) {
            let mut call = Call { books, scratch, length, output };
            if n <= length {
                sorted.copy_from_slice(keys);
                call.settle(sorted, &[n as u64]);
            } else {
                call.scatter(keys, sorted, tables, heavy);
            }
            output = call.output;
        }
        *count = output.count as u64;
        Ok(())
    }
}

/// What one call works with, besides the keys.
struct Call<'a, K> {
    books: Books<'a, K>,
    /// A piece for each worker, so many keys each.
    scratch: &'a mut [K],
    length: usize,
    output: Output<'a, K>,
}

impl<K: Key> Call<'_, K> {
    /// Places the distinct ones of all keys, through `sorted`.
    fn scatter(&mut self, keys: &[K], sorted: &mut [K], tables: &mut [u64], heavy: &mut [K]) {
        let sample = sample(keys, self.scratch);
        let (low, high) = (sample[0].bits(), sample[sample.len() - 1].bits());
        let split = Split::new(low, high, buckets_for(keys.len()));
        let buckets = buckets_for(keys.len());
        let (mut level, tables, heavy) = level(buckets, tables, heavy);
        let drop = partition::find_heavy(sample, split, level.heavy);
        let kept = partition::partition(keys, sorted, split, drop, &mut level, &mut self.books);
        self.buckets(&mut sorted[..kept], 0, &level, tables, heavy);
        if drop {
            self.count_dropped(0, &level);
        }
    }

    /// The same of a bucket that is too large for one thread, where it lies:
    /// `start` keys came before it.
    fn scatter_again(&mut self, keys: &mut [K], start: usize, tables: &mut [u64], heavy: &mut [K]) {
        let (low, high) = bounds(keys);
        let done = self.output.count;
        if low == high {
            let (unique, counts) = self.output.rest().take(1);
            unique[0] = keys[0];
            if let Some(counts) = counts {
                counts[0] = keys.len() as u64;
            }
            self.output.count += 1;
            return;
        }
        let sample = sample(keys, self.scratch);
        let buckets = buckets_for(keys.len());
        let split = Split::new(low, high, buckets);
        let (mut level, tables, heavy) = level(buckets, tables, heavy);
        let drop = partition::find_heavy(sample, split, level.heavy);
        // The results end before what is not placed yet.
        let spare = &mut self.output.keys[start..][..keys.len()];
        let kept = partition::partition(keys, spare, split, drop, &mut level, &mut self.books);
        let (keys, spare) = (&mut keys[..kept], &spare[..kept]);
        keys.par_chunks_mut(ordered::CHUNK).zip(spare.par_chunks(ordered::CHUNK)).for_each(
            |(to, from)| to.copy_from_slice(from),
        );
        self.buckets(keys, start, &level, tables, heavy);
        if drop {
            self.count_dropped(done, &level);
        }
    }

    /// Places the distinct ones of a partition's buckets in their order.
    fn buckets(
        &mut self,
        keys: &mut [K],
        start: usize,
        level: &Level<'_, K>,
        tables: &mut [u64],
        heavy: &mut [K],
    ) {
        let mut ends = &*level.ends;
        let mut at = 0;
        let is_small = |start: usize, end: u64, length| end as usize - start <= length;
        while let Some(&end) = ends.first() {
            if !is_small(at, end, self.length) {
                let range = at..end as usize;
                self.scatter_again(&mut keys[range], start + at, tables, heavy);
                at = end as usize;
                ends = &ends[1..];
                continue;
            }
            let mut before = at;
            let small = ends.iter().take(ROUND).take_while(|end| {
                let before = std::mem::replace(&mut before, **end as usize);
                is_small(before, **end, self.length)
            });
            let (round, rest) = ends.split_at(small.count());
            let end = round[round.len() - 1] as usize;
            pieces::settle(&mut keys[at..end], at as u64, round, (self.scratch, self.length), &mut self.output);
            at = end;
            ends = rest;
        }
    }

    fn settle(&mut self, keys: &mut [K], ends: &[u64]) {
        pieces::settle(keys, 0, ends, (self.scratch, self.length), &mut self.output);
    }

    /// Counts what a partition dropped, among the results from `done` on.
    fn count_dropped(&mut self, done: usize, level: &Level<'_, K>) {
        let Some(counts) = &mut self.output.counts else { return };
        let keys = &self.output.keys[done..self.output.count];
        for (heavy, &dropped) in level.heavy.iter().zip(&*level.dropped) {
            if dropped > 0 && let Ok(slot) = keys.binary_search(heavy) {
                counts[done + slot] += dropped - 1;
            }
        }
    }
}

/// The tables of one partition, and the rest of them.
fn level<'a, K: Key>(
    buckets: usize,
    tables: &'a mut [u64],
    heavy: &'a mut [K],
) -> (Level<'a, K>, &'a mut [u64], &'a mut [K]) {
    let (own, tables) = tables.split_at_mut(2 * buckets);
    let (ends, dropped) = own.split_at_mut(buckets);
    let (own, heavy) = heavy.split_at_mut(buckets);
    (Level { ends, heavy: own, dropped }, tables, heavy)
}

/// Some of the keys, sorted, in the front of `scratch`.
fn sample<'a, K: Key>(keys: &[K], scratch: &'a mut [K]) -> &'a [K] {
    let len = (keys.len() / 64).clamp(1, SAMPLE).min(scratch.len());
    let sample = &mut scratch[..len];
    let stride = keys.len() / len;
    for (i, key) in sample.iter_mut().enumerate() {
        // Off the beat of keys that come in columns.
        let jitter = (i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        *key = keys[i * stride + (jitter as usize % stride)];
    }
    sample.sort_unstable();
    sample
}

/// The least and the greatest of keys, as bits.
fn bounds<K: Key>(keys: &[K]) -> (u64, u64) {
    let of = |keys: &[K]| {
        keys.iter().fold((u64::MAX, 0), |(low, high), key| (low.min(key.bits()), high.max(key.bits())))
    };
    keys.par_chunks(ordered::CHUNK)
        .map(of)
        .reduce(|| (u64::MAX, 0), |a, b| (a.0.min(b.0), a.1.max(b.1)))
}
