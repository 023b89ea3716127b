//! Distinct keys on the CPU: scatter the keys into buckets that fit in cache, sort each bucket
//! there, write its distinct keys.
//!
//! ```text
//! ordered    keys that ascend or descend as they come: repeats are dropped, nothing is sorted
//! partition  keys  --scatter by a digit-->  buckets, in the workspace
//! piece      a bucket  --radix sort or bitmap, one thread, in cache-->  sorted keys
//! pieces     sorted keys  --one bucket after another-->  unique, counts
//! inverse    keys  --looked up in unique-->  inverse
//! ```
//!
//! * A sorted sample of the keys tells which bits make a useful digit, so that no pass over all
//!   keys looks for them. The sample also tells which keys come often: of each such key, a
//!   partition keeps one occurrence.
//! * A bucket is written to the results as soon as the buckets before it are counted. By then the
//!   bucket mostly lies in the cache in which it was sorted, so that memory sees a key once
//!   after the scatter, not four times.
//! * A bucket too large for one thread is scattered again, by all threads, into the part of
//!   the output that no result has reached yet.
//!
//! Bits in which all keys of a bucket agree cost nothing. The workspace is one copy of the keys,
//! plus at most half of that if there are many threads.

mod inverse;
mod key;
mod ordered;
mod partition;
mod piece;
mod pieces;

use rayon::prelude::*;
use spec_core::ops::Unique;
use spec_core::ops::unique::{Buffers, Plan};
use spec_core::{DType, Kernel, Result, Route, Supports, ViewMut};

use super::kernel;
use crate::Cpu;
use crate::slices::{Workspace, slice, slice_mut, workspace_size};
use key::Key;
use partition::{Books, Level, Split};
use pieces::Output;

/// Keys of a piece, which one thread sorts in cache: partitions aim at this length. It is
/// 256 KiB of u64, and as much scratch.
const PIECE: usize = 32 * 1024;
/// Keys of a piece if there are too many keys for pieces of [`PIECE`]: partitions then aim at this
/// length.
const LARGE: usize = 256 * 1024;
/// Maximal keys of a piece.
const LONGEST: usize = 2 * LARGE;
/// Minimal and maximal buckets of a partition. More buckets cost a scatter more than smaller
/// pieces save: 2^24 keys of 64 bits on two cores of a Zen 3 took as much processor time with 256
/// buckets as with 512, 15 % more with 1024 and 30 % more with 2048 (with another number here,
/// `time spec-bench unique --device cpu --shape keys=16777216`).
const BUCKETS: [usize; 2] = [16, 512];
/// Maximal buckets of a partition whose pieces would be longer than [`LARGE`] otherwise.
const MAX_BUCKETS: usize = 2048;
/// Maximal keys of a sample.
const SAMPLE: usize = 16 * 1024;

/// The sizes of a call's tables and scratch, which follow from the number of keys and threads.
#[derive(Clone, Copy)]
struct Sizes {
    /// Maximal buckets of a partition.
    buckets: usize,
    /// Parts of the keys that a partition reads in parallel.
    parts: usize,
    /// Threads that sort pieces.
    workers: usize,
    /// Keys of a worker's scratch.
    scratch: usize,
    /// How deep partitions can be nested: a bucket may be partitioned again, and one of its
    /// buckets again.
    levels: usize,
    /// Chunks of [`ordered::CHUNK`] keys.
    chunks: usize,
}

impl Sizes {
    fn new(n: usize, threads: usize) -> Self {
        let chunks = n.div_ceil(ordered::CHUNK);
        if n <= PIECE {
            return Sizes {
                buckets: 0,
                parts: 0,
                workers: 1,
                scratch: n.next_multiple_of(8),
                levels: 0,
                chunks,
            };
        }
        let [min, max] = BUCKETS;
        let buckets = (n / 1024).next_power_of_two().clamp(min, max).max(buckets_for(n));
        // The tables and the scratch are to be small beside the keys.
        let parts = (threads * 2).min(n / (128 * buckets)).max(1);
        let scratch = (n / buckets_for(n) * 2).next_power_of_two().min(LONGEST);
        let workers = threads.min(n / (4 * scratch)).max(1);
        // Each level takes at least one bit less than its buckets have: a range that does not
        // start at a multiple of a bucket's width needs one more bucket.
        let levels = 64usize.div_ceil(buckets.ilog2() as usize - 1) + 2;
        Sizes { buckets, parts, workers, scratch, levels, chunks }
    }

    /// Bytes of workspace besides one copy of the keys, which have `size` bytes each: the
    /// workers' scratch, the parts' tables and lines, the levels' tables and heavy keys, and
    /// the chunks' counts.
    fn pieces(self, size: usize) -> [usize; 6] {
        let Sizes { buckets, parts, workers, scratch, levels, chunks } = self;
        [
            workers * scratch * size,
            parts * partition::part_words(buckets) * 8,
            parts * buckets * 64,
            levels * buckets * 2 * 8,
            levels * buckets * size,
            chunks * 8,
        ]
    }
}

/// How many buckets a partition of `n` keys has.
fn buckets_for(n: usize) -> usize {
    let [min, max] = BUCKETS;
    let usual = n.div_ceil(PIECE).next_power_of_two().clamp(min, max);
    usual.max((n / LARGE).next_power_of_two()).min(MAX_BUCKETS)
}

struct Prepared {
    plan: Plan,
    sizes: Sizes,
}

// SAFETY: `launch` works on checked slices of the workspace and the buffers; where it writes
// through a pointer, in `partition`, ranges are counted and then kept to.
unsafe impl Supports<Unique> for Cpu {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<Unique>>> {
        let sizes = Sizes::new(plan.keys.len, rayon::current_num_threads());
        let size = plan.keys.dtype.size();
        let [scratch, parts, lines, tables, heavy, chunks] = sizes.pieces(size);
        let copy = plan.keys.len * size;
        let places = plan.inverse.map(|_| inverse::table_bytes(plan.keys.len));
        let pieces = [copy, scratch, parts, lines, tables, heavy, chunks];
        let size = match places {
            Some(places) => workspace_size(&[&pieces[..], &[places]].concat()),
            None => workspace_size(&pieces),
        };
        let prepared = Prepared { plan: plan.clone(), sizes };
        // SAFETY: as for the `impl`.
        Ok(unsafe { kernel::<Unique, _>(prepared, size, launch, loops) })
    }
}

fn loops(Prepared { plan, sizes }: &Prepared, route: &mut Route) {
    let Sizes { buckets, parts, workers, scratch, .. } = sizes;
    if plan.keys.len <= *scratch {
        route.push("unique.piece", format_args!("{} keys", plan.keys.len));
    } else {
        let words = format!("{buckets} buckets at most, {parts} parts, {workers} workers");
        route.push("unique.scatter", words);
    }
    if plan.inverse.is_some() {
        route.push("unique.inverse", format_args!("{} keys", plan.keys.len));
    }
}

fn launch(prepared: &Prepared, workspace: ViewMut<'_>, buffers: Buffers<'_>) -> Result<()> {
    match prepared.plan.keys.dtype {
        DType::I32 => prepared.run::<i32>(workspace, buffers),
        DType::U32 => prepared.run::<u32>(workspace, buffers),
        DType::I64 => prepared.run::<i64>(workspace, buffers),
        _ => prepared.run::<u64>(workspace, buffers),
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
            parts: workspace.take::<u64>(parts * partition::part_words(buckets))?,
            lines: workspace.take::<K>(parts * buckets * K::LINE)?,
        };
        let tables = workspace.take::<u64>(levels * buckets * 2)?;
        let heavy = workspace.take::<K>(levels * buckets)?;
        let chunks = workspace.take::<u64>(chunks)?;
        if !ordered::settle(keys, chunks, &mut output) {
            let mut call = Call { books, scratch, length, buckets, output };
            if n <= length {
                sorted.copy_from_slice(keys);
                call.settle(sorted, 0, &[n as u64]);
            } else {
                call.scatter(keys, sorted, tables, heavy);
            }
            output = call.output;
        }
        let written = output.count;
        *count = written as u64;
        let Some(inverse) = buffers.inverse else { return Ok(()) };
        let table = workspace.take::<u8>(inverse::table_bytes(n))?;
        inverse::find(keys, &output.keys[..written], table, inverse)
    }
}

/// The memory of one call besides the keys.
struct Call<'a, K> {
    books: Books<'a, K>,
    /// The workers' scratch.
    scratch: &'a mut [K],
    /// Keys of one worker's scratch, and so the maximal keys of a piece.
    length: usize,
    /// Maximal buckets of a partition.
    buckets: usize,
    output: Output<'a, K>,
}

impl<K: Key> Call<'_, K> {
    /// Writes the distinct keys of all keys. `sorted` has room for all keys.
    fn scatter(&mut self, keys: &[K], sorted: &mut [K], tables: &mut [u64], heavy: &mut [K]) {
        let sample = sample(keys, self.scratch);
        let split = Split::like(sample, buckets_for(keys.len()), self.buckets);
        let (mut level, tables, heavy) = level(split.buckets(), tables, heavy);
        let drop = partition::find_heavy(sample, split, level.heavy);
        let kept = partition::partition(keys, sorted, split, drop, &mut level, &mut self.books);
        self.buckets(&mut sorted[..kept], 0, &level, tables, heavy);
        if drop {
            self.count_dropped(0, &level);
        }
    }

    /// Writes the distinct keys of a bucket that is too large for one thread. `start` keys lie in
    /// the buckets before it.
    fn scatter_again(&mut self, keys: &mut [K], start: usize, tables: &mut [u64], heavy: &mut [K]) {
        let (low, high) = bounds(keys);
        let done = self.output.count;
        // Each partition narrows the range of a bucket, so there are tables for every one, unless
        // another thread writes to the output, where the keys lie meanwhile. Then any result will do.
        let has_tables = tables.len() >= 2 * self.buckets;
        if low == high || !has_tables {
            let (unique, counts) = self.output.rest().take(1);
            unique[0] = keys[0];
            if let Some(counts) = counts {
                counts[0] = keys.len() as u64;
            }
            self.output.count += 1;
            return;
        }
        let sample = sample(keys, self.scratch);
        let split = Split::even(low, high, self.buckets);
        let (mut level, tables, heavy) = level(self.buckets, tables, heavy);
        let drop = partition::find_heavy(sample, split, level.heavy);
        // The results so far have at most `start` keys, so the output from `start` on is free.
        let spare = &mut self.output.keys[start..][..keys.len()];
        let kept = partition::partition(keys, spare, split, drop, &mut level, &mut self.books);
        let (keys, spare) = (&mut keys[..kept], &spare[..kept]);
        keys.par_chunks_mut(ordered::CHUNK)
            .zip(spare.par_chunks(ordered::CHUNK))
            .for_each(|(to, from)| to.copy_from_slice(from));
        self.buckets(keys, start, &level, tables, heavy);
        if drop {
            self.count_dropped(done, &level);
        }
    }

    /// Writes the distinct keys of a partition's buckets, in the buckets' order.
    fn buckets(
        &mut self,
        keys: &mut [K],
        start: usize,
        level: &Level<'_, K>,
        tables: &mut [u64],
        heavy: &mut [K],
    ) {
        let (mut at, mut next) = (0, 0);
        while let Some(&end) = level.ends.get(next) {
            let end = end as usize;
            if end - at > self.length {
                self.scatter_again(&mut keys[at..end], start + at, tables, heavy);
                (at, next) = (end, next + 1);
                continue;
            }
            let mut before = at;
            let is_small = |end: &&u64| {
                let len = **end as usize - std::mem::replace(&mut before, **end as usize);
                len <= self.length
            };
            let small = level.ends[next..].iter().take_while(is_small).count();
            next += self.settle(&mut keys[at..], at, &level.ends[next..next + small]);
            at = level.ends[next - 1] as usize;
        }
    }

    /// Writes the distinct keys of the first buckets, which end at `ends`. Returns how many
    /// buckets were done.
    fn settle(&mut self, keys: &mut [K], start: usize, ends: &[u64]) -> usize {
        pieces::settle(keys, start, ends, (self.scratch, self.length), &mut self.output)
    }

    /// Adds the keys that a partition dropped to the counts of the results from `done` on.
    fn count_dropped(&mut self, done: usize, level: &Level<'_, K>) {
        let Some(counts) = &mut self.output.counts else { return };
        let keys = &self.output.keys[done..self.output.count];
        for (heavy, &dropped) in level.heavy.iter().zip(&*level.dropped) {
            if dropped > 0
                && let Ok(slot) = keys.binary_search(heavy)
            {
                let count = &mut counts[done + slot];
                *count = count.wrapping_add(dropped - 1);
            }
        }
    }
}

/// Splits the tables of one partition off the front.
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

/// A sorted sample of the keys, in the front of `scratch`.
fn sample<'a, K: Key>(keys: &[K], scratch: &'a mut [K]) -> &'a [K] {
    let len = (keys.len() / 1024).clamp(256, SAMPLE).min(scratch.len()).min(keys.len());
    let sample = &mut scratch[..len];
    let stride = keys.len() / len;
    for (i, key) in sample.iter_mut().enumerate() {
        // A pseudo-random offset: with a fixed stride, keys that repeat with the same period
        // would give the same key each time.
        let jitter = (i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        *key = keys[i * stride + (jitter as usize % stride)];
    }
    sample.sort_unstable();
    sample
}

/// The smallest and the largest key, as bits.
fn bounds<K: Key>(keys: &[K]) -> (u64, u64) {
    let of = |keys: &[K]| {
        keys.iter()
            .fold((u64::MAX, 0), |(low, high), key| (low.min(key.bits()), high.max(key.bits())))
    };
    keys.par_chunks(ordered::CHUNK)
        .map(of)
        .reduce(|| (u64::MAX, 0), |a, b| (a.0.min(b.0), a.1.max(b.1)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use spec_core::{Descriptor, TensorDesc};

    use super::*;

    /// The distinct keys and their counts, by the operator on `threads` threads.
    fn unique<K: Key>(keys: &[K], threads: usize, counted: bool) -> (Vec<K>, Vec<u64>) {
        let n = keys.len();
        let counts = counted.then(|| TensorDesc::new(DType::U64, [n]));
        let mut tensors = Unique::new().tensors(K::DTYPE, n);
        tensors.counts = counts;
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let descriptor =
                Descriptor::create(&Cpu::open(0).unwrap(), &Unique::new(), &tensors).unwrap();
            let mut workspace = vec![0xA5u8; descriptor.workspace_size()];
            // Not at the start of a cache line.
            let mut unique = vec![K::default(); n + 1];
            let mut counts = vec![0u64; n];
            let mut count = [0u64];
            let mut buffers = Buffers::new(keys, &mut unique[1..], &mut count);
            buffers.counts = counted.then(|| (&mut counts[..]).into());
            descriptor.call(&mut workspace, buffers).unwrap();
            let count = count[0] as usize;
            (unique[1..1 + count].to_vec(), counts[..count].to_vec())
        })
    }

    fn check<K: Key + std::fmt::Debug>(name: &str, bits: impl Iterator<Item = u64>) {
        let keys: Vec<K> = bits.map(|bits| K::of(bits >> (64 - 8 * size_of::<K>()))).collect();
        let mut expected = BTreeMap::new();
        for key in &keys {
            *expected.entry(*key).or_insert(0) += 1;
        }
        let (distinct, counts): (Vec<K>, Vec<u64>) = expected.into_iter().unzip();
        for threads in [1, 3] {
            let name = format!("{name}, {} keys, {threads} threads", keys.len());
            assert!(unique(&keys, threads, false).0 == distinct, "{name}");
            let (got, got_counts) = unique(&keys, threads, true);
            assert!(got == distinct && got_counts == counts, "{name}, counted");
        }
    }

    #[test]
    fn keys_of_every_distribution_are_found_once() {
        let hash = |i: u64| (i + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23);
        let x = |i: u64| hash(hash(i));
        for n in [PIECE as u64 - 1, PIECE as u64 + 1, 300_001] {
            let i = || 0..n;
            check::<u64>("anywhere", i().map(x));
            check::<u32>("anywhere", i().map(x));
            check::<i64>(
                "on both sides of zero",
                i().map(|i| (x(i) >> 40) + (1 << 63) - (1 << 23)),
            );
            check::<i32>("few", i().map(|i| (x(i) % 1000) << 50));
            check::<u64>("a bit for each", i().map(|i| x(i) >> 40));
            check::<i64>(
                "nearly in order",
                i().map(|i| if i % 5000 == 4999 { x(i) } else { (i & !1) * (u64::MAX / n) }),
            );
            check::<u64>("one of two", i().map(|i| (x(i) >> 63) * u64::MAX));
            // One bucket is larger than one thread sorts, and so is one of its buckets.
            check::<u64>("of all lengths", i().map(|i| x(i) >> (x(i + n) % 64)));
            check::<u64>(
                "heavy in one bucket",
                i().map(|i| match x(i) % 4 {
                    0 => x(i),
                    1 => 1 << 62,
                    2 => (1 << 62) + 1,
                    _ => (1 << 62) + (x(i) >> 48),
                }),
            );
            // Keys that the sample mostly misses.
            let stride = (n / 1024).max(1);
            check::<u64>(
                "far from the sample",
                i().map(|i| match i % stride {
                    0 => 1 << 60 | i,
                    _ => x(i) >> 32 | u64::MAX << 32,
                }),
            );
        }
        check::<u64>("none", 0..0);
        check::<i64>("one", 5..6);
    }

    #[test]
    fn keys_in_order_are_compacted_across_chunks() {
        const CHUNK: u64 = ordered::CHUNK as u64;
        let n = 3 * CHUNK + 5;
        for repeats in [1, 3, CHUNK / 2, CHUNK, 2 * CHUNK + 1, n] {
            check::<u64>("ascending", (0..n).map(|i| i / repeats));
            check::<i64>("descending", (0..n).rev().map(|i| i / repeats));
        }
    }

    #[test]
    fn one_key_out_of_order_is_seen_wherever_it_is() {
        const CHUNK: u64 = ordered::CHUNK as u64;
        let n = 2 * CHUNK + 5;
        let borders = [0, CHUNK, 2 * CHUNK, n - 1];
        for at in borders.into_iter().flat_map(|at| [at.saturating_sub(1), at, at + 1]) {
            let stray = |i, key| if i == at { n - key } else { key };
            check::<u64>("ascending but for one", (0..n).map(|i| stray(i, i / 3)));
            check::<u64>("descending but for one", (0..n).map(|i| stray(i, (n - i) / 3)));
        }
    }

    #[test]
    fn the_workspace_is_one_copy_and_little_more() {
        for threads in [1, 2, 16, 128, 1024] {
            for n in [1 << 20, 1 << 24, 1 << 28, 1usize << 33] {
                let more: usize = Sizes::new(n, threads).pieces(8).iter().sum();
                assert!(more <= n * 8 / 2, "{threads} threads, {n} keys: {more} bytes more");
            }
        }
    }
}
