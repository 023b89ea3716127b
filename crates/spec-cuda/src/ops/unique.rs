//! Host side of `kernels/unique.cu`. The host launches every kernel that the keys may
//! need. The kernels decide on the device, by the data, which of them work; the others
//! return at once. So the host reads nothing back.
//!
//! The design has three routes. Keys that lie close together set one bit per position of
//! their range. Other keys are partitioned by their high bits until each bucket fits shared
//! memory, as in the hybrid radix sort of Stehle and Jacobsen (2017); keys within a bucket
//! are in no order until the bucket is sorted. If buckets would not fit, all keys are sorted
//! digit by digit with Onesweep (Adinets and Merrill, 2022), which uses the look-back of
//! Merrill and Garland (2016).
//!
//! `unique_inverse.rs` looks each key up among the distinct keys, after all of these.

#[cfg(test)]
use spec_conformance::launch_params::Header;
use spec_core::ops::Unique;
use spec_core::ops::unique::{Buffers, Plan};
use spec_core::{DType, Kernel, Result, Stream, Supports, ViewMut, launch_params};

use crate::Cuda;
use crate::archive::{Archive, archive};
use crate::kernel::{Function, Queue, Shape};
use crate::ops::unique_inverse::{self, Inverse};

static KERNELS: Archive = archive!("unique");

/// Keys that a thread holds in a pass, for keys of 8 and of 4 bytes: as many as registers
/// allow if two blocks share a multiprocessor.
const PASS_ITEMS: [usize; 2] = [PASS_ITEMS_64, PASS_ITEMS_32];
/// Shared memory of a pass in addition to the keys of a tile: the warps' counters and the
/// target positions.
const PASS_SHARED: usize = WARPS * RADIX * 4 + RADIX * 8;
/// Tiles of a portion: a look-back word can count up to 2^30 keys.
const PORTION_TILES: usize = 1 << 16;

/// The shared memory of a block of `unique_check`: a hash table of 8-byte slots, two slots for each
/// sample.
const CHECK_SHARED: u32 = 2 * SAMPLES * 8;
/// Shared memory of `unique_survey` in addition to its counters.
const SURVEY_STATIC: usize = 8 * 1024;
/// The shared memory of a partition in addition to the keys.
const SPLIT_SHARED: usize = 3 * MAX_SPLIT * 4 + THIN_SLOTS * 2;
/// Of a wide partition: the keys of a tile (of 8 and of 4 bytes), the permitted bits of a bucket's
/// number, and the shared memory in addition to two tiles, the current tile and the next.
const WIDE_KEYS: [usize; 2] = [WIDE_KEYS_64, WIDE_KEYS_32];
const WIDE_BITS: std::ops::RangeInclusive<u32> = 10..=WIDE_SPLIT.ilog2();
const WIDE_SHARED: usize = 2 * WIDE_SPLIT * 4;
/// The shared memory of `unique_spread` in addition to the keys.
const SPREAD_SHARED: usize = SPREAD_KEYS * 4 + 3 * MAX_PARTS * 4;
/// Shared memory for the bits of a part, and for the lists of the bits that are set.
const PART_BYTES: usize = 192 * 1024;
const PART_SHARED: usize = 32 * 32 * 16 * 2;
/// Room for the static shared memory of the kernels, in addition to the dynamic shared memory.
const STATIC: usize = 1024;
/// The smallest number of keys for the route by bits.
const MIN_KEYS_BY_BITS: usize = 1 << 22;
/// The shared memory of a block that sorts a bucket, in addition to `BUCKET_KEYS` keys.
const BUCKET_SHARED: usize = BUCKET_KEYS * 2;
/// The largest average number of keys in a bucket: for random keys, `BUCKET_KEYS` is 8 standard
/// deviations above this average, so that every bucket fits.
const BUCKET_AVERAGE: usize = 8300;
/// The largest number of bits in a bucket's number.
const MAX_BITS: u32 = 16;

launch_params! {
    /// The parameters of all kernels of `unique`.
    struct Params {
        /// Keys, [n] of the kernel's type.
        keys: u64 as "const void*",
        /// Room for n keys. Passes alternate between `unique` and `buffer`; at the end `unique` has
        /// the distinct keys.
        unique: u64 as "void*",
        /// The number of distinct keys, one number.
        count: u64 as "u64*",
        /// The number of occurrences of each distinct key, [n], or null.
        counts: u64 as "u64*",
        /// The number of keys.
        n: u64,
        /// The sign bit of signed keys, else 0.
        flip: u64,
        /// Values that the kernels pass to each other; all zero before the first kernel.
        plan: u64 as "Plan*",
        /// The number of keys of each bucket, [2^bits]; zero before the first kernel.
        bucket_counts: u64 as "u32*",
        /// The progress of each phase, [2 + digits * portions]; zero before the first kernel.
        phases: u64 as "Phase*",
        /// Words of look-back, one for each tile of `unique_compact` or for each bucket, whichever
        /// are more; zero before the first kernel.
        tile_sums: u64 as "u64*",
        /// The number of keys before each bucket, [2^bits + 1].
        bucket_starts: u64 as "u32*",
        /// The place of the next key of each bucket; after the partitions, the end of the bucket,
        /// [2^bits].
        bucket_ends: u64 as "u32*",
        /// The place of the next key of each digit of the first partition, or of each part of the
        /// range, [MAX_PARTS].
        digit_ends: u64 as "u32*",
        /// The number of tiles of the second partition before those of each digit, [MAX_SPLIT + 1].
        digit_tiles: u64 as "u32*",
        /// The places of the keys of each bin of each digit, [portions + 1, digits, RADIX].
        offsets: u64 as "u64*",
        /// Two arrays of words of look-back, [tiles of a portion, RADIX]; passes alternate between
        /// them. If keys ascend: the number of distinct keys before each tile within its span, and
        /// before each span.
        sums: [u64; 2] as "u32*",
        /// Room for n keys.
        buffer: u64 as "void*",
        /// The position, among all keys, of the first of each CHUNK distinct keys, [ceil(n /
        /// CHUNK)].
        firsts: u64 as "u64*",
        /// The number of keys of a portion, a multiple of the number of keys of a tile.
        portion_keys: u64,
        /// The number of portions of a pass.
        portions: u32,
        /// The number of bits of a bucket's number.
        bits: u32,
        /// The number of these bits that are the digit of the second partition; 0: there is no
        /// second partition.
        low_bits: u32,
        /// The number of positions (unique_plan.cuh) for which a block has one bit each in shared
        /// memory; 0 if keys are sorted instead.
        part_bits: u32,
        /// The number of tiles that a block of `unique_check` reads.
        span_tiles: u32,
        unused: u32,
    }

    /// Values of a digit.
    const RADIX: usize = 256;
    /// Threads of a block, unless another number is given below.
    const THREADS: usize = 512;
    const WARPS: usize = THREADS / 32;
    /// Size in bytes of the struct `Plan` of the kernels.
    const PLAN_BYTES: usize = 8 * RADIX * 8 + 192;
    /// Phases in addition to the passes: counting digits, and dropping equal keys.
    const PHASES: usize = 2;
    /// Keys of 8 and of 4 bytes that a thread holds in a pass.
    const PASS_ITEMS_64: usize = 16;
    const PASS_ITEMS_32: usize = 24;
    /// Blocks per multiprocessor of `unique_by_digits` and of `unique_compact`.
    const DIGITS_BLOCKS: u32 = 2;
    const COMPACT_BLOCKS: u32 = 2;
    /// Size of the keys of a tile in `unique_compact`, in bytes.
    const COMPACT_TILE_BYTES: usize = 32 * 1024;
    /// Distinct keys whose positions a block turns into counts.
    const CHUNK: usize = 4096;
    /// Keys of the sample of `unique_check`, and its blocks per multiprocessor.
    const SAMPLES: u32 = 4096;
    const CHECK_BLOCKS: u32 = 3;
    /// Threads of a block of `unique_survey`, and keys that a block takes in one step.
    const SURVEY_THREADS: u32 = 1024;
    const SURVEY_KEYS: usize = 8 * 1024;
    /// Keys of a tile of a partition.
    const SPLIT_KEYS: usize = 16 * THREADS;
    /// The largest number of digits of a partition.
    const MAX_SPLIT: usize = THREADS;
    /// Blocks of a partition per multiprocessor, if a block takes several tiles in turn.
    const SPLIT_BLOCKS: u32 = 2;
    /// Slots of a tile for dropping equal keys.
    const THIN_SLOTS: usize = 4096;
    /// Threads of a block of a wide partition, and keys of a tile, of 8 and of 4 bytes.
    const WIDE_THREADS: u32 = 1024;
    const WIDE_KEYS_64: usize = 12 * WIDE_THREADS as usize;
    const WIDE_KEYS_32: usize = 16 * WIDE_THREADS as usize;
    /// The largest number of digits of a wide partition.
    const WIDE_SPLIT: usize = 2048;
    /// Keys that fit a bucket.
    const BUCKET_KEYS: usize = 18 * THREADS;
    /// The route by bits: threads of a block, and keys of a tile.
    const BITS_THREADS: u32 = 1024;
    const SPREAD_KEYS: usize = 16 * BITS_THREADS as usize;
    /// The route by bits: the largest number of parts of the range.
    const MAX_PARTS: usize = 1024;
}

#[cfg(test)]
pub(super) const HEADER: Header =
    Header { name: "unique", includes: &["common.cuh"], structs: &[Params::DESCRIPTION] };

/// How a set of keys is split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Split {
    /// So few keys that one block sorts all of them: one bucket and one launch.
    One,
    /// Into 2^`bits` buckets. If `low` is not 0, two partitions are needed, the second by
    /// `low` bits. If `wide`, a single wide partition does the work, unless the partitions
    /// drop equal keys on the way.
    Buckets { bits: u32, low: u32, wide: bool },
    /// More keys than the largest number of buckets can hold.
    None,
}

impl Split {
    /// The split of `n` keys of `size` bytes each, on a device whose blocks have `shared` bytes
    /// of shared memory.
    fn new(n: usize, size: usize, shared: u32) -> Self {
        if n <= BUCKET_KEYS {
            return Split::One;
        }
        let shared = shared as usize;
        let counters = shared.saturating_sub(SURVEY_STATIC) / 2;
        let max_bits = counters.ilog2().min(MAX_BITS);
        // Few keys are split into smaller buckets, so that there are enough blocks to fill the
        // device.
        let average = if n > 1 << 22 { BUCKET_AVERAGE } else { BUCKET_AVERAGE / 2 };
        match (6..=max_bits).find(|bits| n >> bits <= average) {
            Some(bits) => {
                let fits = wide_shared(size) + STATIC <= shared;
                let wide = WIDE_BITS.contains(&bits) && fits;
                let low = if bits > 9 { bits / 2 } else { 0 };
                Split::Buckets { bits, low, wide }
            }
            None => Split::None,
        }
    }

    fn bits(self) -> u32 {
        match self {
            Split::Buckets { bits, .. } => bits,
            _ => 0,
        }
    }
}

/// Keys in a tile of a wide partition, for keys of `size` bytes.
fn wide_keys(size: usize) -> usize {
    if size == 8 { WIDE_KEYS[0] } else { WIDE_KEYS[1] }
}

/// Shared memory of a block of a wide partition, in bytes, for keys of `size` bytes.
fn wide_shared(size: usize) -> usize {
    2 * wide_keys(size) * size + WIDE_SHARED
}

/// Offsets of the arrays in the workspace, in bytes. The arrays that must start
/// at zero come first; `zeroed` is their size together.
#[derive(Clone, Copy, Default)]
struct Layout {
    bucket_counts: usize,
    phases: usize,
    tile_sums: usize,
    zeroed: usize,
    bucket_starts: usize,
    bucket_ends: usize,
    digit_ends: usize,
    digit_tiles: usize,
    offsets: usize,
    sums: [usize; 2],
    buffer: usize,
    firsts: usize,
    size: usize,
}

struct Prepared {
    cuda: Cuda,
    n: usize,
    digits: usize,
    portions: usize,
    tile_keys: usize,
    flip: u64,
    split: Split,
    layout: Layout,
    check: Function,
    survey: Function,
    spread: Function,
    map_parts: Function,
    partition_high: Function,
    partition_low: Function,
    partition_wide: Function,
    thinned_high: Function,
    thinned_low: Function,
    sort_buckets: Function,
    by_digits: Function,
    compact: Function,
    firsts: Function,
    counts: Function,
    has_counts: bool,
    inverse: Option<Inverse>,
}

impl Layout {
    fn new(plan: &Plan, portions: usize, tile_keys: usize, split: Split) -> Self {
        let n = plan.keys.len;
        let mut end = 0usize;
        let mut take = |bytes: usize| {
            let start = end.next_multiple_of(256);
            end = start + bytes;
            start
        };
        if n == 0 {
            return Layout::default();
        }
        if split == Split::One {
            let tile_sums = take(8);
            return Layout { tile_sums, size: end, ..Layout::default() };
        }
        let digits = plan.keys.dtype.size();
        let buckets = 1 << split.bits();
        take(PLAN_BYTES);
        let bucket_counts = take(buckets * 4);
        let phases = take((digits * portions + PHASES) * 8);
        let tile_sums = take(n.div_ceil(COMPACT_TILE_BYTES / digits).max(buckets) * 8);
        let bucket_starts = take((buckets + 1) * 4);
        let bucket_ends = take(buckets * 4);
        let digit_ends = take(MAX_PARTS * 4);
        let digit_tiles = take((MAX_SPLIT + 1) * 4);
        let offsets = take((portions + 1) * digits * RADIX * 8);
        let rows = n.div_ceil(tile_keys).min(PORTION_TILES);
        let sums = [take(rows * RADIX * 4), take(rows * RADIX * 4)];
        let buffer = take(n * digits);
        let firsts = take(if plan.has_counts { n.div_ceil(CHUNK) * 8 } else { 0 });
        Layout {
            bucket_counts,
            phases,
            tile_sums,
            zeroed: bucket_starts,
            bucket_starts,
            bucket_ends,
            digit_ends,
            digit_tiles,
            offsets,
            sums,
            buffer,
            firsts,
            size: end,
        }
    }
}

// SAFETY: the kernels access only the memory that the plan describes, whatever the data.
unsafe impl Supports<Unique> for Cuda {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<Unique>>> {
        let size = plan.keys.dtype.size();
        let bits = size * 8;
        let tile_keys = THREADS * if size == 8 { PASS_ITEMS[0] } else { PASS_ITEMS[1] };
        let portions = plan.keys.len.div_ceil(tile_keys * PORTION_TILES);
        let sign = match plan.keys.dtype {
            DType::I32 | DType::I64 => 1 << (bits - 1),
            _ => 0,
        };
        let split = Split::new(plan.keys.len, size, self.limits().shared);
        let function = |name: &str| self.function(&KERNELS, &format!("unique_{name}_{bits}"));
        Ok(Box::new(Prepared {
            cuda: self.clone(),
            n: plan.keys.len,
            digits: size,
            portions,
            tile_keys,
            flip: sign,
            split,
            layout: Layout::new(plan, portions, tile_keys, split),
            check: function("check")?,
            survey: function("survey")?,
            spread: function("spread")?,
            map_parts: function("map_parts")?,
            partition_high: function("partition_high")?,
            partition_low: function("partition_low")?,
            partition_wide: function("partition_wide")?,
            thinned_high: function("thinned_high")?,
            thinned_low: function("thinned_low")?,
            sort_buckets: function("sort_buckets")?,
            by_digits: function("by_digits")?,
            compact: function("compact")?,
            firsts: self.function(&KERNELS, "unique_firsts")?,
            counts: self.function(&KERNELS, "unique_counts")?,
            has_counts: plan.has_counts,
            inverse: plan.inverse.map(|to| Inverse::new(self, &plan.keys, to)).transpose()?,
        }))
    }
}

// SAFETY: the kernels access only the memory that the plan describes, whatever the data.
unsafe impl Kernel<Unique> for Prepared {
    fn workspace_size(&self) -> usize {
        let table = self.inverse.as_ref().map_or(0, Inverse::workspace_bytes);
        if table == 0 { self.layout.size } else { self.table_offset() + table }
    }

    unsafe fn launch(
        &self,
        workspace: ViewMut<'_>,
        buffers: Buffers<'_>,
        stream: Stream<'_>,
    ) -> Result<()> {
        let (cuda, layout) = (&self.cuda, &self.layout);
        let count = cuda.pointer(buffers.count)?;
        if self.n == 0 {
            // SAFETY: `count` was checked to be one u64.
            return cuda.enqueue(stream, |queue| unsafe { queue.zero(count, 8) });
        }
        let base = cuda.workspace(workspace, self.workspace_size())?;
        let at = |offset: usize| base + offset as u64;
        let (bits, low_bits) = match self.split {
            Split::Buckets { bits, low, .. } => (bits, low),
            _ => (0, 0),
        };
        let max_spans = cuda.limits().multiprocessors * CHECK_BLOCKS;
        let params = Params {
            keys: cuda.pointer(buffers.keys)?,
            unique: cuda.pointer(buffers.unique)?,
            count,
            counts: cuda.pointer(buffers.counts)?,
            n: self.n as u64,
            flip: self.flip,
            plan: base,
            bucket_counts: at(layout.bucket_counts),
            phases: at(layout.phases),
            tile_sums: at(layout.tile_sums),
            bucket_starts: at(layout.bucket_starts),
            bucket_ends: at(layout.bucket_ends),
            digit_ends: at(layout.digit_ends),
            digit_tiles: at(layout.digit_tiles),
            offsets: at(layout.offsets),
            sums: layout.sums.map(at),
            buffer: at(layout.buffer),
            firsts: at(layout.firsts),
            portion_keys: (self.tile_keys * PORTION_TILES) as u64,
            portions: self.portions as u32,
            bits,
            low_bits,
            part_bits: self.part_bytes() as u32 * 8,
            span_tiles: self.compact_tiles().div_ceil(max_spans),
            unused: 0,
        };
        let places = cuda.pointer(buffers.inverse)?;
        // SAFETY: `Params` has the layout of the kernels' struct; buffers and
        // workspace were checked against the plan.
        cuda.enqueue(stream, |queue| unsafe {
            queue.zero(base, layout.zeroed)?;
            self.enqueue(queue, &params)?;
            let Some(inverse) = &self.inverse else { return Ok(()) };
            let Params { keys, unique, count, n, flip, .. } = params;
            let table = at(self.table_offset());
            let marks = table + inverse.table_bytes() as u64;
            let params = unique_inverse::Params {
                keys,
                unique,
                count,
                inverse: places,
                n,
                flip,
                table,
                marks,
            };
            inverse.enqueue(queue, &params)
        })
    }
}

impl Prepared {
    /// Where the table of `inverse` is in the workspace, in bytes.
    fn table_offset(&self) -> usize {
        self.layout.size.next_multiple_of(256)
    }

    /// Shared memory for the bits of a part of the range, in bytes; 0 if the route by bits is
    /// not used.
    fn part_bytes(&self) -> usize {
        let shared = self.cuda.limits().shared as usize;
        let spread = SPREAD_KEYS * self.digits + SPREAD_SHARED;
        let fits = (PART_BYTES + PART_SHARED).max(spread) + STATIC <= shared;
        if fits && !self.has_counts && self.n >= MIN_KEYS_BY_BITS && self.split.bits() != 0 {
            PART_BYTES
        } else {
            0
        }
    }

    /// Tiles of `unique_compact`, which drops equal keys.
    fn compact_tiles(&self) -> u32 {
        blocks(self.n, COMPACT_TILE_BYTES / self.digits)
    }

    /// # Safety
    /// The addresses in `params` are those of the plan's buffers and of a
    /// workspace whose first bytes have been cleared.
    unsafe fn enqueue(&self, queue: &Queue<'_>, params: &Params) -> Result<()> {
        let threads = THREADS as u32;
        let bucket = |buckets: u32| {
            let shared = BUCKET_KEYS * self.digits + BUCKET_SHARED;
            Shape::new(buckets, threads).shared(shared as u32)
        };
        if self.split == Split::One {
            // SAFETY: the caller promised that the addresses in `params` are valid.
            return unsafe { queue.launch(&self.sort_buckets, bucket(1), params) };
        }
        if let Split::Buckets { bits, low, wide } = self.split {
            let max_blocks = self.cuda.limits().multiprocessors;
            // One more block than spans: the additional block looks at a sample.
            let spans = self.compact_tiles().div_ceil(params.span_tiles);
            let check = Shape::new(spans + 1, threads).shared(CHECK_SHARED);
            let survey = Shape::new(blocks(self.n, SURVEY_KEYS).min(max_blocks), SURVEY_THREADS)
                .shared(2u32 << bits);
            let split = |tiles: usize| {
                Shape::new(tiles as u32, threads)
                    .shared((SPLIT_KEYS * self.digits + SPLIT_SHARED) as u32)
            };
            let tiles = self.n.div_ceil(SPLIT_KEYS);
            // SAFETY: the caller promised that the addresses in `params` are valid.
            unsafe {
                queue.launch(&self.check, check, params)?;
                queue.launch(&self.survey, survey, params)?;
                if params.part_bits > 0 {
                    let spread =
                        Shape::new(blocks(self.n, SPREAD_KEYS).min(max_blocks), BITS_THREADS)
                            .shared((SPREAD_KEYS * self.digits + SPREAD_SHARED) as u32);
                    let parts = Shape::new(MAX_PARTS as u32, BITS_THREADS)
                        .shared((PART_BYTES + PART_SHARED) as u32);
                    queue.launch(&self.spread, spread, params)?;
                    queue.launch(&self.map_parts, parts, params)?;
                }
                if wide {
                    let blocks = blocks(self.n, wide_keys(self.digits)).min(max_blocks);
                    let shape =
                        Shape::new(blocks, WIDE_THREADS).shared(wide_shared(self.digits) as u32);
                    queue.launch(&self.partition_wide, shape, params)?;
                    // If equal keys are counted, none of them may be dropped here.
                    if !self.has_counts {
                        let shape = split(tiles.min((max_blocks * SPLIT_BLOCKS) as usize));
                        queue.launch(&self.thinned_high, shape, params)?;
                        queue.launch(&self.thinned_low, shape, params)?;
                    }
                } else {
                    queue.launch(&self.partition_high, split(tiles), params)?;
                    if low > 0 {
                        // Each digit begins a tile of its own, so each has at most one tile that is
                        // not full.
                        let tiles = tiles + (1 << (bits - low));
                        queue.launch(&self.partition_low, split(tiles), params)?;
                    }
                }
                queue.launch(&self.sort_buckets, bucket(1 << bits), params)?;
            }
        }
        // SAFETY: the caller promised what `enqueue_passes` needs.
        unsafe { self.enqueue_passes(queue, params) }
    }

    /// # Safety
    /// As for `enqueue`.
    unsafe fn enqueue_passes(&self, queue: &Queue<'_>, params: &Params) -> Result<()> {
        let threads = THREADS as u32;
        let multiprocessors = self.cuda.limits().multiprocessors;
        let passes = blocks(self.n, self.tile_keys).min(multiprocessors * DIGITS_BLOCKS);
        let passes =
            Shape::new(passes, threads).shared((PASS_SHARED + self.tile_keys * self.digits) as u32);
        let compact = self.compact_tiles().min(multiprocessors * COMPACT_BLOCKS);
        let compact = Shape::new(compact, threads);
        // SAFETY: the caller promised that the addresses in `params` are valid.
        unsafe {
            queue.launch(&self.by_digits, passes, params)?;
            queue.launch(&self.compact, compact, params)?;
        }
        if self.has_counts {
            let chunks = self.n.div_ceil(CHUNK);
            let firsts = Shape::new(blocks(chunks, THREADS), threads);
            let counts = Shape::new(blocks(self.n, CHUNK), threads);
            // SAFETY: the caller promised that the addresses in `params` are valid.
            unsafe {
                queue.launch(&self.firsts, firsts, params)?;
                queue.launch(&self.counts, counts, params)?;
            }
        }
        Ok(())
    }
}

/// The number of blocks for `n` items if each block takes `per` items.
fn blocks(n: usize, per: usize) -> u32 {
    u32::try_from(n.div_ceil(per)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod routes;
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_split_into_buckets_that_fit() {
        for (shared, size) in [(99, 8), (163, 8), (163, 4), (227, 8), (227, 4)] {
            let shared = shared * 1024;
            let mut n = 1;
            while n < 1 << 34 {
                match Split::new(n, size, shared) {
                    Split::One => assert!(n <= BUCKET_KEYS),
                    Split::Buckets { bits, low, wide } => {
                        assert!(n > BUCKET_KEYS && n >> bits <= BUCKET_AVERAGE);
                        assert!(bits - low <= 9 && low <= 9 && (low > 0) == (bits > 9));
                        assert!(!wide || wide_shared(size) + STATIC <= shared as usize);
                        assert!((2 << bits) + SURVEY_STATIC <= shared as usize);
                        // The kernels count positions in 32 bits.
                        assert!(n < 1 << 31);
                    }
                    Split::None => assert!(n > 1 << 27, "{n} keys, {shared} bytes"),
                }
                n += n / 3 + 1;
            }
        }
    }
}
