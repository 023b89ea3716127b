//! Host side of `kernels/sample_logits.cu`.
//!
//! Its design: RadixSelect (Alabi et al., 2012) over sums of integer weights beside
//! counts of keys, so that top-k and top-p are one search for where a row is cut, where
//! FlashInfer (Ye et al., 2025) draws and rejects until a token is within the cut.

use spec_core::ops::SampleLogits;
use spec_core::ops::sample_logits::{Buffers, Plan};
use spec_core::{DType, Error, Kernel, Matrix, Result, Status, Stream, Supports, ViewMut};

use crate::Cuda;
use crate::archive::{Archive, archive};
use crate::args::{IntegerRows, Integers, Rows};
use crate::launch::{Function, Shape};

static KERNELS: Archive = archive!("sample_logits");

#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    logits: Rows,
    positions: Integers,
    temperature: u64,
    seeds: u64,
    top_k: u64,
    top_p: u64,
    min_p: u64,
    of_rows: Integers,
    mask: Rows,
    tokens: IntegerRows,
    probs: Rows,
    logprobs: u64,
    flags: u64,
    requests: u64,
    vocab: u32,
    min_p_first: u32,
    cached: u32,
    reserved: u32,
}
const _: () = assert!(size_of::<Params>() == 184);

/// Threads of a block: `SELECT_THREADS`.
const THREADS: u32 = 512;
/// Shared memory of a block that the kernel declares, with room to spare.
const FIXED: u32 = 30 * 1024;
/// Rows up to which they stay in shared memory.
const CACHED_ROWS: usize = 4;

struct Prepared {
    cuda: Cuda,
    plan: Plan,
    function: Function,
    shape: Shape,
    /// Whether rows stay in shared memory.
    cached: bool,
}

/// Blocks that own a row: a cluster. On an H200, rows of 128256, in microseconds, f32
/// without filters and bf16 with top-k 50 and top-p 0.9, launched with so many blocks a
/// row (with another number returned here, `spec bench sample_logits --device cuda:0
/// --shape rows=64,vocab=128256` times one of them):
///
/// ```text
/// rows   1             2             4             8             16
/// 4      45.7  23.8    26.9  16.9    16.9  12.8    12.8  11.0    10.3  10.1
/// 8      46.0  24.0    27.2  17.0    17.0  13.0    12.9  11.1    13.1  12.4
/// 16     49.9  24.6    29.6  17.3    18.9  13.2    18.3  13.5    20.9  20.4
/// 32     50.8  26.5    30.7  18.9    26.6  17.8    28.9  21.8    35.4  30.8
/// 64     53.5  27.2    34.2  20.0    42.1  27.3    46.1  33.5
/// 128    69.8  32.1    56.6  28.9    64.0  40.5    78.1  56.8
/// 256    97.9  53.6    107   54.2    110   71.5    144   106
/// ```
fn blocks_for(rows: usize, clusters: bool) -> u32 {
    match rows {
        _ if !clusters => 1,
        0..=4 => 16,
        5..=16 => 8,
        17..=48 => 4,
        49..=192 => 2,
        _ => 1,
    }
}

/// The shared memory that keeps a block's pieces, as f32: its share of the row's
/// vectors, of which the row's edges may add one, and one more where shares are
/// uneven.
fn piece_bytes(plan: &Plan, blocks: u32) -> usize {
    let entries = 16 / plan.logits.dtype.size();
    let vectors = plan.vocab().div_ceil(entries) + 1;
    (vectors.div_ceil(blocks as usize) + 1) * entries * 4
}

impl Prepared {
    fn new(cuda: &Cuda, plan: &Plan) -> Result<Self> {
        let name = format!("sample_logits_{}", plan.logits.dtype.name());
        let function = cuda.function(&KERNELS, &name)?;
        let limits = cuda.limits();
        let with = |blocks: u32| {
            let bytes = piece_bytes(plan, blocks);
            // More blocks a multiprocessor are worth more than rereading from L2 costs.
            let few = plan.rows() <= CACHED_ROWS;
            let cached = few && bytes <= limits.shared.saturating_sub(FIXED) as usize;
            let shared = if cached { bytes as u32 } else { 0 };
            (Shape::new(blocks, THREADS).shared(shared).cluster(blocks), cached)
        };
        let mut blocks = blocks_for(plan.rows(), limits.clusters);
        // More than 8 blocks are not portable: a device may not hold them.
        if blocks > 8 && !cuda.holds(&function, with(blocks).0)? {
            blocks = 8;
        }
        let (shape, cached) = with(blocks);
        let grid = plan.rows().checked_mul(blocks as usize);
        let grid = grid.and_then(|grid| u32::try_from(grid).ok()).filter(|&grid| grid < 1 << 31);
        let grid = grid.ok_or_else(|| {
            let words = format!("{} rows are more than a grid holds", plan.rows());
            Error::device(cuda.device(), Status::NotImplemented, words)
        })?;
        let shape = Shape { grid: [grid, 1], ..shape };
        Ok(Prepared { cuda: cuda.clone(), plan: plan.clone(), function, shape, cached })
    }
}

// SAFETY: the kernel keeps within what the plan describes, whatever the data.
unsafe impl Supports<SampleLogits> for Cuda {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<SampleLogits>>> {
        Ok(Box::new(Prepared::new(self, plan)?))
    }
}

// SAFETY: as above.
unsafe impl Kernel<SampleLogits> for Prepared {
    fn workspace_size(&self) -> usize {
        0
    }

    unsafe fn launch(
        &self,
        _: ViewMut<'_>,
        buffers: Buffers<'_>,
        stream: Stream<'_>,
    ) -> Result<()> {
        let Prepared { cuda, plan, .. } = self;
        let absent = Rows { data: 0, stride: 0 };
        let mask = match (buffers.mask, &plan.mask) {
            (Some(view), Some(matrix)) => cuda.rows(view, matrix)?,
            _ => absent,
        };
        let probs = match (buffers.probs, &plan.probs) {
            (Some(view), Some(matrix)) => cuda.rows(view, matrix)?,
            _ => absent,
        };
        // Of what is absent it does not matter.
        let index = plan.of_rows.map_or(DType::I32, |of_rows| of_rows.dtype);
        // A column of its own.
        let tokens = Matrix { dtype: plan.tokens.dtype, rows: plan.rows(), cols: 1, row_stride: 1 };
        let params = Params {
            logits: cuda.rows(buffers.logits, &plan.logits)?,
            positions: cuda.integers(buffers.positions, plan.positions.dtype)?,
            temperature: cuda.pointer(buffers.temperature)?,
            seeds: cuda.pointer(buffers.seeds)?,
            top_k: cuda.pointer(buffers.top_k)?,
            top_p: cuda.pointer(buffers.top_p)?,
            min_p: cuda.pointer(buffers.min_p)?,
            of_rows: cuda.integers(buffers.requests, index)?,
            mask,
            tokens: cuda.integer_rows(buffers.tokens, &tokens)?,
            probs,
            logprobs: cuda.pointer(buffers.logprobs)?,
            flags: cuda.pointer(buffers.flags)?,
            requests: plan.requests as u64,
            vocab: plan.vocab() as u32,
            min_p_first: u32::from(plan.params.min_p_first),
            cached: u32::from(self.cached),
            reserved: 0,
        };
        // SAFETY: `Params` is the kernel's, field by field; the buffers were
        // checked against the plan, and the kernel checks requests, which are
        // data, against the plan's number of them.
        cuda.enqueue(stream, |queue| unsafe { queue.launch(&self.function, self.shape, &params) })
    }
}
