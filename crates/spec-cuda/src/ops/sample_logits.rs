//! Host side of `kernels/sample_logits.cu`.
//!
//! Its design: RadixSelect (Alabi et al., 2012) over sums of integer weights beside
//! counts of keys, so that top-k and top-p are one search for where a row is cut, where
//! FlashInfer (Ye et al., 2025) draws and rejects until a token is within the cut.

#[cfg(test)]
use spec_conformance::launch_params::Header;
use spec_core::ops::SampleLogits;
use spec_core::ops::sample_logits::{Buffers, Plan};
use spec_core::{
    DType, Error, Kernel, Matrix, Result, Status, Stream, Supports, ViewMut, launch_params,
};

use crate::Cuda;
use crate::archive::{Archive, archive};
use crate::args::{IntegerRows, Integers, Rows};
use crate::launch::{Function, Shape};

static KERNELS: Archive = archive!("sample_logits");

launch_params! {
    /// What the kernels of `sample_logits` take. `T` is the type of the logits.
    struct Params<T> {
        /// Logits, [rows, vocab].
        logits: Rows as "Rows<const T>",
        /// The position of each row's token in its text, in tokens, [rows].
        positions: Integers,
        /// Temperatures, [requests].
        temperature: u64 as "const float*",
        /// Seeds, [requests].
        seeds: u64 as "const u64*",
        /// How many tokens top-k keeps, [requests]; 0 and below, or null: all.
        top_k: u64 as "const i32*",
        /// Which share of the probability top-p keeps, [requests]; 1 and above, or null: all.
        top_p: u64 as "const float*",
        /// The least weight that min-p keeps, as a share of the largest, [requests]; 0 and below, or
        /// null: all.
        min_p: u64 as "const float*",
        /// The request of each row, [rows]; null: each row is a request.
        of_rows: Integers,
        /// A bit for each token that is allowed, [rows, ceil(vocab / 32)]; null: all are.
        mask: Rows as "Rows<const u32>",
        /// The token of each row, [rows, 1].
        tokens: IntegerRows,
        /// Probabilities that the token was drawn from, [rows, vocab], or null.
        probs: Rows as "Rows<float>",
        /// The log-probability of each row's token, [rows], or null.
        logprobs: u64 as "float*",
        /// One word of flags, or null.
        flags: u64 as "u32*",
        /// Requests.
        requests: u64,
        /// Tokens of the vocabulary.
        vocab: u32,
        /// 1 where min-p filters before top-k and top-p, else 0.
        min_p_first: u32,
        /// 1 where a block keeps its pieces of the row in shared memory, else 0.
        cached: u32,
        reserved: u32,
    }
}

#[cfg(test)]
pub(super) const HEADER: Header =
    Header { name: "sample_logits", includes: &["ids.cuh"], structs: &[Params::DESCRIPTION] };

/// Threads of a block: `SELECT_THREADS`.
const THREADS: u32 = 512;
/// Shared memory of a block that the kernel declares, with room to spare.
const FIXED: u32 = 30 * 1024;

struct Prepared {
    cuda: Cuda,
    plan: Plan,
    function: Function,
    shape: Shape,
    /// Whether rows stay in shared memory.
    cached: bool,
}

/// How many blocks own a row, and whether they keep it in shared memory, which is where
/// each of them has a multiprocessor to itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Team {
    blocks: u32,
    kept: bool,
}

/// A cluster a row, the largest of which there are enough at a time, `alone(blocks)` of
/// them with a multiprocessor for each block: a row that waits for another, or shares its
/// multiprocessors with another, takes twice as long, and with it the batch. On an H200,
/// where 7, 15, 30 and 66 clusters of 16, 8, 4 and 2 blocks run alone, rows of 128256, in
/// microseconds, f32 without filters and bf16 with top-k 50 and top-p 0.9, with so many
/// blocks a row, kept up to 16 rows (with another team returned here, `spec bench sample_logits
/// --device cuda:0 --shape rows=64,vocab=128256` times one of them):
///
/// ```text
/// rows   1             2             4             8             16
/// 1                                                               8.7   9.3
/// 6                                  12.3  11.2     9.9  10.0     9.0   9.6
/// 8                    21.6  16.4    12.6  11.4    10.2  10.2    12.2  12.3
/// 16     38.9  23.9    23.6  16.7    14.1  11.6    16.0  13.4    18.7  18.4
/// 30     40.1  25.4    24.9  18.1    16.9  14.0    18.8  14.7
/// 32     40.1  25.5    25.0  18.2    24.4  16.9    25.5  20.9
/// 56     42.6  26.5    28.0  19.3    28.1  18.5    35.1  30.4
/// 64     43.5  26.8    29.0  19.8    37.9  26.4    40.9  33.0
/// 128    52.0  32.3    50.6  30.2    59.1  39.0
/// 192    79.1  48.3    71.1  50.7
/// 256    83.5  54.7    90.5  55.9
/// ```
fn team_for(rows: usize, alone: impl Fn(u32) -> Result<u32>) -> Result<Team> {
    let rows = rows.max(1);
    for blocks in [16, 8, 4] {
        if rows <= alone(blocks)? as usize {
            return Ok(Team { blocks, kept: true });
        }
    }
    // Two blocks a multiprocessor, and for pairs half as many again after them.
    if rows <= 2 * alone(4)? as usize {
        return Ok(Team { blocks: 4, kept: false });
    }
    let blocks = if rows <= 3 * alone(2)? as usize { 2 } else { 1 };
    Ok(Team { blocks, kept: false })
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
        let most = limits.shared.saturating_sub(FIXED);
        let full = Shape::new(1, THREADS).shared(most);
        let alone = |blocks| cuda.active_clusters(&function, full.cluster(blocks));
        let team = team_for(plan.rows(), alone)?;
        let bytes = piece_bytes(plan, team.blocks);
        let cached = team.kept && bytes <= most as usize;
        let shared = if cached { bytes as u32 } else { 0 };
        let shape = Shape::new(team.blocks, THREADS).shared(shared).cluster(team.blocks);
        let blocks = team.blocks;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_row_waits_while_another_way_to_share_the_device_is_left() {
        let h200 = |blocks| Ok([66, 30, 15, 7][u32::ilog2(blocks) as usize - 1]);
        let team = |rows| team_for(rows, h200).unwrap();
        let kept = |blocks| Team { blocks, kept: true };
        let read_again = |blocks| Team { blocks, kept: false };
        for (rows, expected) in [
            (0, kept(16)),
            (7, kept(16)),
            (8, kept(8)),
            (16, kept(4)),
            (30, kept(4)),
            (31, read_again(4)),
            (60, read_again(4)),
            (61, read_again(2)),
            (198, read_again(2)),
            (199, read_again(1)),
        ] {
            assert_eq!(team(rows), expected, "{rows} rows");
        }
        for rows in [0, 1, 1000] {
            assert_eq!(team_for(rows, |_| Ok(0)).unwrap(), read_again(1));
        }
    }
}
