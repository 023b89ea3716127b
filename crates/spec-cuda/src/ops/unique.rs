//! Host side of `kernels/unique.cu`: a launch a digit, none of them read back.

use spec_core::ops::Unique;
use spec_core::ops::unique::{Buffers, Plan};
use spec_core::{DType, Kernel, Result, Stream, Supports, ViewMut};

use crate::Cuda;
use crate::archive::{Archive, archive};
use crate::launch::{Function, Queue, Shape};

static KERNELS: Archive = archive!("unique");

const RADIX: usize = 256;
const THREADS: usize = 512;
/// Keys a thread holds in a pass, of 8 and of 4 bytes: what registers allow
/// where two blocks share a multiprocessor.
const PASS_ITEMS: [usize; 2] = [16, 24];
/// Keys of a tile of the last pass.
const COMPACT_TILE_BYTES: usize = 32 * 1024;
/// Beside a tile's keys: counters of 16 warps, targets, the tile's number.
const PASS_SHARED: usize = 16 * RADIX * 4 + RADIX * 8 + 8;
/// Tiles of a launch: look-back words count up to 2^30 keys.
const PORTION_TILES: usize = 1 << 16;
/// Positions that a block turns into counts.
const CHUNK: usize = 4096;
/// Keys that a block of the histogram reads in one step.
const HISTOGRAM_KEYS: usize = THREADS * 8;
/// Blocks of the histogram for each multiprocessor: all that fit at once.
const HISTOGRAM_BLOCKS: u32 = 3;
/// Size of the kernels' `Plan`.
const PLAN_BYTES: usize = 8 * RADIX * 8 + 64;

#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    keys: u64,
    unique: u64,
    count: u64,
    counts: u64,
    n: u64,
    flip: u64,
    plan: u64,
    pass_tiles: u64,
    compact_sums: u64,
    offsets: u64,
    sums: [u64; 2],
    buffer: u64,
    firsts: u64,
    portion_keys: u64,
    portions: u32,
    digit: u32,
    portion: u32,
    unused: u32,
}
const _: () = assert!(size_of::<Params>() == 136);

/// Where things are in the workspace, in bytes from its start. What must be
/// zero comes first.
#[derive(Clone, Copy, Default)]
struct Layout {
    pass_tiles: usize,
    compact_sums: usize,
    zeroed: usize,
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
    has_counts: bool,
    layout: Layout,
    histogram: Function,
    pass: Function,
    compact: Function,
    firsts: Function,
    counts: Function,
}

impl Layout {
    fn new(plan: &Plan, portions: usize, tile_keys: usize) -> Self {
        let n = plan.keys.len;
        if n == 0 {
            return Layout::default();
        }
        let digits = plan.keys.dtype.size();
        let mut end = PLAN_BYTES;
        let mut take = |bytes: usize| {
            let start = end.next_multiple_of(256);
            end = start + bytes;
            start
        };
        let pass_tiles = take(digits * portions * 4);
        let compact_sums = take(n.div_ceil(COMPACT_TILE_BYTES / digits) * 8);
        let offsets = take((portions + 1) * digits * RADIX * 8);
        let rows = n.div_ceil(tile_keys).min(PORTION_TILES);
        let sums = [take(rows * RADIX * 4), take(rows * RADIX * 4)];
        let buffer = take(n * plan.keys.dtype.size());
        let firsts = take(if plan.has_counts { n.div_ceil(CHUNK) * 8 } else { 0 });
        Layout {
            pass_tiles,
            compact_sums,
            zeroed: offsets,
            offsets,
            sums,
            buffer,
            firsts,
            size: end,
        }
    }
}

// SAFETY: the kernel keeps within what the plan describes, whatever the data.
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
        let function = |name: &str| self.function(&KERNELS, name);
        Ok(Box::new(Prepared {
            cuda: self.clone(),
            n: plan.keys.len,
            digits: size,
            portions,
            tile_keys,
            flip: sign,
            has_counts: plan.has_counts,
            layout: Layout::new(plan, portions, tile_keys),
            histogram: function(&format!("unique_histogram_{bits}"))?,
            pass: function(&format!("unique_pass_{bits}"))?,
            compact: function(&format!("unique_compact_{bits}"))?,
            firsts: function("unique_firsts")?,
            counts: function("unique_counts")?,
        }))
    }
}

/// Blocks for `n` things of which each takes `per`.
fn blocks(n: usize, per: usize) -> u32 {
    u32::try_from(n.div_ceil(per)).unwrap_or(u32::MAX)
}

// SAFETY: as above.
unsafe impl Kernel<Unique> for Prepared {
    fn workspace_size(&self) -> usize {
        self.layout.size
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
        let base = cuda.workspace(workspace, layout.size)?;
        let at = |offset: usize| base + offset as u64;
        let params = Params {
            keys: cuda.pointer(buffers.keys)?,
            unique: cuda.pointer(buffers.unique)?,
            count,
            counts: cuda.pointer(buffers.counts)?,
            n: self.n as u64,
            flip: self.flip,
            plan: base,
            pass_tiles: at(layout.pass_tiles),
            compact_sums: at(layout.compact_sums),
            offsets: at(layout.offsets),
            sums: layout.sums.map(at),
            buffer: at(layout.buffer),
            firsts: at(layout.firsts),
            portion_keys: (self.tile_keys * PORTION_TILES) as u64,
            portions: self.portions as u32,
            digit: 0,
            portion: 0,
            unused: 0,
        };
        // SAFETY: `Params` is the kernels', field by field; buffers and
        // workspace were checked against the plan, and `enqueue` launches as
        // many blocks as the kernels have tiles.
        cuda.enqueue(stream, |queue| unsafe {
            queue.zero(base, layout.zeroed)?;
            self.enqueue(queue, params)
        })
    }
}

impl Prepared {
    /// # Safety
    /// The addresses in `params` are those of the plan's buffers and of a
    /// workspace whose first bytes have been cleared.
    unsafe fn enqueue(&self, queue: &Queue<'_>, mut params: Params) -> Result<()> {
        let threads = THREADS as u32;
        let resident = self.cuda.limits().multiprocessors * HISTOGRAM_BLOCKS;
        let shape = Shape::new(blocks(self.n, HISTOGRAM_KEYS).min(resident), threads);
        // SAFETY: the caller's.
        unsafe { queue.launch(&self.histogram, shape, &params)? };
        for digit in 0..self.digits {
            for portion in 0..self.portions {
                let tiles = self.n.div_ceil(self.tile_keys) - portion * PORTION_TILES;
                let shared = PASS_SHARED + self.tile_keys * self.digits;
                let shape = Shape::new(tiles.min(PORTION_TILES) as u32, threads);
                let shape = shape.shared(shared as u32);
                params.digit = digit as u32;
                params.portion = portion as u32;
                // SAFETY: the caller's.
                unsafe { queue.launch(&self.pass, shape, &params)? };
            }
        }
        let shape = Shape::new(blocks(self.n, COMPACT_TILE_BYTES / self.digits), threads);
        // SAFETY: the caller's.
        unsafe { queue.launch(&self.compact, shape, &params)? };
        if self.has_counts {
            let chunks = self.n.div_ceil(CHUNK);
            let firsts = Shape::new(blocks(chunks, THREADS), threads);
            let counts = Shape::new(blocks(self.n, CHUNK), threads);
            // SAFETY: the caller's.
            unsafe {
                queue.launch(&self.firsts, firsts, &params)?;
                queue.launch(&self.counts, counts, &params)?;
            }
        }
        Ok(())
    }
}
