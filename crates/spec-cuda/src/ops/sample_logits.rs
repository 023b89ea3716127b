//! Host side of `kernels/sample_logits.cu`.
//!
//! A cluster of blocks reads a row once, and most often a single block ends it, by the largest
//! logit of each group of 64 tokens (`race_lead.cuh`, `sample_logits_lead.cuh`). Like FlashInfer
//! (Ye et al., 2025), a row with top-p alone draws tokens before it knows which are kept, and asks
//! whether top-p keeps them (`sample_logits_nucleus.cuh`). What neither way ends is selected by
//! RadixSelect (Alabi et al., 2012), which here adds up integer weights in addition to counting
//! keys. So a single search finds where top-k and top-p cut a row.

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
use crate::cluster::largest;
use crate::launch::{Function, Shape};

static PLAIN: Archive = archive!("sample_logits_plain");
static GENERAL: Archive = archive!("sample_logits");
static REPORT: Archive = archive!("sample_logits_report");

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
        /// The tokens of each row in the order in which they finish, [rows, draws].
        tokens: IntegerRows,
        /// Probabilities that the tokens were drawn from, [rows, vocab], or null.
        probs: Rows as "Rows<float>",
        /// The logarithm of each token's share of them, [rows, draws], or null.
        processed_logprobs: Rows as "Rows<float>",
        /// One word of flags, or null.
        flags: u64 as "u32*",
        /// Requests.
        requests: u64,
        /// Tokens of the vocabulary.
        vocab: u32,
        /// Tokens that a row draws.
        draws: u32,
        /// 1 where min-p filters before top-k and top-p, else 0.
        min_p_first: u32,
        reserved: u32,
    }
}

launch_params! {
    /// What the kernels take that report of the tokens drawn. `T` is the type of the logits.
    struct Report<T> {
        /// Logits, [rows, vocab].
        logits: Rows as "Rows<const T>",
        /// The tokens of each row, [rows, draws], -1 for none.
        tokens: IntegerRows,
        /// The log-probability of each token, [rows, draws], or null.
        logprobs: Rows as "Rows<float>",
        /// How many logits are as large as each token's, [rows, draws], or null.
        ranks: Rows as "Rows<i32>",
        /// The likeliest tokens, [rows, top], or null.
        top_tokens: Rows as "Rows<i32>",
        /// Their log-probabilities, [rows, top], or null.
        top_logprobs: Rows as "Rows<float>",
        /// Tokens of the vocabulary.
        vocab: u32,
        /// Tokens that a row draws.
        draws: u32,
        /// How many of the likeliest tokens are reported.
        top: u32,
        reserved: u32,
    }
}

#[cfg(test)]
pub(super) const HEADER: Header = Header {
    name: "sample_logits",
    includes: &["ids.cuh"],
    structs: &[Params::DESCRIPTION, Report::DESCRIPTION],
};

/// Threads of a block: `SELECT_THREADS`.
const THREADS: u32 = 512;

/// Blocks of the largest cluster.
const LARGEST: u32 = 16;

/// Blocks of a long row in the plain kernel where every multiprocessor has a row of its own.
const SHARING: u32 = 4;

/// Bytes of a long row: between 250 and 501 KiB, which are the rows of `plain_blocks`.
const LONG_ROW: usize = 384 << 10;

/// Tokens of the largest vocabulary that the plain kernel takes: those of `RaceLead::MAX_GROUPS` groups.
const MAX_PLAIN: usize = 4096 * 64;

/// A kernel in whose launch each cluster owns one row.
struct ByRow {
    function: Function,
    shape: Shape,
}

struct Prepared {
    cuda: Cuda,
    plan: Plan,
    draw: ByRow,
    /// The kernel that reports log-probabilities, ranks or the likeliest tokens, if any are wanted.
    report: Option<ByRow>,
}

/// How many blocks own a row: the largest cluster of which the device runs at least `rows` at a
/// time, so that no row waits for another. `at_once` tells, for a number of blocks, how many
/// clusters of this size run at a time.
fn blocks_for(rows: usize, at_once: impl Fn(u32) -> Result<u32>) -> Result<u32> {
    for blocks in [LARGEST, 8, 4, 2] {
        if rows.max(1) <= at_once(blocks)? as usize {
            return Ok(blocks);
        }
    }
    Ok(1)
}

/// How many blocks own a row of so many bytes in the plain kernel, and in that of
/// `rejection_sample`, where a single block ends the row as well. Where every multiprocessor has a
/// row of its own, a row needs a cluster no more to occupy the device, and a block that reads a row
/// alone spares the exchange. But a block takes long to read a long row, and blocks that start
/// together read together and end their rows together, while nothing is read. Blocks of a cluster,
/// all but one, end once they have read, and blocks of other rows read in their place.
///
/// Two blocks of these kernels fit a multiprocessor, where they read no faster than one. So a row is
/// given a cluster of [`LARGEST`] only if no two blocks need to share: on an H100, 8 requests of
/// `rejection_sample` with rows of 128,256 f32 take 13.0 us with 16 blocks each, and 10.5 with 8.
///
/// Microseconds on an H100 (132 multiprocessors) with 1, 2 and 4 blocks:
///
/// | Rows | 125 KiB a row    | 250 KiB          | 501 KiB             |
/// |-----:|------------------|------------------|---------------------|
/// |   96 |                  | 20.6, 20.7, 22.9 | 28.8, 29.0, 29.5    |
/// |  132 |                  | 23.6, 25.8, 28.0 | 36.9, 38.5, 36.9    |
/// |  256 | 23.3, 27.0, 33.8 | 39.6, 42.5, 43.6 | 70.4, 65.9, 59.2    |
/// |  512 |                  | 69.9, 72.9, 76.1 | 116.7, 115.8, 105.9 |
pub(super) fn plain_blocks(
    rows: usize,
    bytes: usize,
    multiprocessors: u32,
    at_once: impl Fn(u32) -> Result<u32>,
) -> Result<u32> {
    if rows < multiprocessors as usize {
        return blocks_for(rows, |blocks| {
            let clusters = at_once(blocks)?;
            Ok(if blocks == LARGEST { clusters / 2 } else { clusters })
        });
    }
    if bytes >= LONG_ROW { largest(SHARING, at_once) } else { Ok(1) }
}

impl ByRow {
    fn new(
        cuda: &Cuda,
        archive: &'static Archive,
        name: &str,
        rows: usize,
        blocks: impl FnOnce(&dyn Fn(u32) -> Result<u32>) -> Result<u32>,
    ) -> Result<Self> {
        let function = cuda.function(archive, name)?;
        let block = Shape::new(1, THREADS);
        let blocks = blocks(&|blocks| cuda.active_clusters(&function, block.cluster(blocks)))?;
        let grid = rows.checked_mul(blocks as usize);
        let grid = grid.and_then(|grid| u32::try_from(grid).ok()).filter(|&grid| grid < 1 << 31);
        let grid = grid.ok_or_else(|| {
            let words = format!("{rows} rows are more than a grid holds");
            Error::device(cuda.device(), Status::NotImplemented, words)
        })?;
        let shape = Shape { grid: [grid, 1], ..block.cluster(blocks) };
        Ok(ByRow { function, shape })
    }
}

impl Prepared {
    fn new(cuda: &Cuda, plan: &Plan) -> Result<Self> {
        // The plain kernel is quicker, and suffices if a row draws one token from all tokens, or
        // takes the likeliest token.
        let weighs = plan.probs.is_some() || plan.processed_logprobs.is_some();
        let plain = !plan.filters && !weighs && plan.draws() == 1 && plan.vocab() <= MAX_PLAIN;
        let dtype = plan.logits.dtype.name();
        let rows = plan.rows();
        let draw = if plain {
            let masked = if plan.mask.is_some() { "masked_" } else { "" };
            let name = format!("sample_logits_plain_{masked}{dtype}");
            let bytes = plan.vocab() * plan.logits.dtype.size();
            let multiprocessors = cuda.limits().multiprocessors;
            ByRow::new(cuda, &PLAIN, &name, rows, |at_once| {
                plain_blocks(rows, bytes, multiprocessors, at_once)
            })
        } else {
            let name = format!("sample_logits_{dtype}");
            ByRow::new(cuda, &GENERAL, &name, rows, |at_once| blocks_for(rows, at_once))
        };
        let name = format!("sample_logits_report_{dtype}");
        let report = plan
            .reports()
            .then(|| ByRow::new(cuda, &REPORT, &name, rows, |at_once| blocks_for(rows, at_once)));
        Ok(Prepared {
            cuda: cuda.clone(),
            plan: plan.clone(),
            draw: draw?,
            report: report.transpose()?,
        })
    }
}

// SAFETY: the kernels access only the memory that the plan describes, whatever the data.
unsafe impl Supports<SampleLogits> for Cuda {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<SampleLogits>>> {
        Ok(Box::new(Prepared::new(self, plan)?))
    }
}

// SAFETY: the kernels access only the memory that the plan describes, whatever the data.
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
        let mask = match (buffers.mask, &plan.mask) {
            (Some(view), Some(matrix)) => cuda.rows(view, matrix)?,
            _ => Rows::ABSENT,
        };
        let written = |view: Option<ViewMut<'_>>, matrix: &Option<Matrix>| match (view, matrix) {
            (Some(view), Some(matrix)) => cuda.rows(view, matrix),
            _ => Ok(Rows::ABSENT),
        };
        let logits = cuda.rows(buffers.logits, &plan.logits)?;
        let tokens = cuda.integer_rows(buffers.tokens, &plan.tokens)?;
        let report = Report {
            logits,
            tokens,
            logprobs: written(buffers.logprobs, &plan.logprobs)?,
            ranks: written(buffers.ranks, &plan.ranks)?,
            top_tokens: written(buffers.top_tokens, &plan.top_tokens)?,
            top_logprobs: written(buffers.top_logprobs, &plan.top_logprobs)?,
            vocab: plan.vocab() as u32,
            draws: plan.draws() as u32,
            top: plan.top() as u32,
            reserved: 0,
        };
        // An absent `requests` is not read, so any dtype will do.
        let index = plan.of_rows.map_or(DType::I32, |of_rows| of_rows.dtype);
        let params = Params {
            logits,
            positions: cuda.integers(buffers.positions, plan.positions.dtype)?,
            temperature: cuda.pointer(buffers.temperature)?,
            seeds: cuda.pointer(buffers.seeds)?,
            top_k: cuda.pointer(buffers.top_k)?,
            top_p: cuda.pointer(buffers.top_p)?,
            min_p: cuda.pointer(buffers.min_p)?,
            of_rows: cuda.integers(buffers.requests, index)?,
            mask,
            tokens,
            probs: written(buffers.probs, &plan.probs)?,
            processed_logprobs: written(buffers.processed_logprobs, &plan.processed_logprobs)?,
            flags: cuda.pointer(buffers.flags)?,
            requests: plan.requests as u64,
            vocab: plan.vocab() as u32,
            draws: plan.draws() as u32,
            min_p_first: u32::from(plan.params.min_p_first),
            reserved: 0,
        };
        // SAFETY: `Params` and `Report` have the layout of the kernels' structs; the buffers were
        // checked against the plan, and the kernels check requests and tokens, which are data,
        // against the plan's sizes.
        cuda.enqueue(stream, |queue| unsafe {
            queue.launch(&self.draw.function, self.draw.shape, &params)?;
            match &self.report {
                Some(by_row) => queue.launch(&by_row.function, by_row.shape, &report),
                None => Ok(()),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many clusters of so many blocks an H100 runs at a time.
    fn h100(blocks: u32) -> Result<u32> {
        Ok([132, 62, 30, 14][blocks.ilog2() as usize - 1])
    }

    #[test]
    fn no_row_waits_while_smaller_teams_are_left() {
        for (rows, expected) in [(0, 16), (14, 16), (15, 8), (62, 4), (63, 2), (133, 1)] {
            assert_eq!(blocks_for(rows, h100).unwrap(), expected, "{rows} rows");
        }
        assert_eq!(blocks_for(1, |_| Ok(0)).unwrap(), 1);
    }

    #[test]
    fn blocks_share_long_rows_where_every_multiprocessor_has_one() {
        let long = 128_256 * 4;
        for bytes in [32_000 * 4, 128_256 * 2, long] {
            let many = if bytes == long { 4 } else { 1 };
            let few = [(0, 16), (7, 16), (8, 8), (32, 4), (64, 2), (131, 2)];
            for (rows, expected) in
                few.into_iter().chain([(132, many), (300, many), (1 << 20, many)])
            {
                let blocks = plain_blocks(rows, bytes, 132, h100).unwrap();
                assert_eq!(blocks, expected, "{rows} rows of {bytes} bytes");
            }
        }
        let small = |blocks: u32| Ok(if blocks == 2 { 8 } else { 0 });
        assert_eq!(plain_blocks(1000, long, 16, small).unwrap(), 2);
        assert_eq!(plain_blocks(1000, long, 16, |_| Ok(0)).unwrap(), 1);
    }
}
