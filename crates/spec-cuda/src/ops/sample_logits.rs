//! Host side of `kernels/sample_logits.cu`, and, for rows that no filter cuts, of
//! `sample_logits_plain.cu`, `sample_logits_draw_report.cu` and `sample_logits_probs.cu`;
//! `sample_logits_report.cu` reports what the kernel that draws does not report. Rows by columns
//! ([`Plan::by_column`]) have kernels of their own: `sample_logits_shard.cu` draws one token of a shard
//! as `sample_logits_plain.cu` does, `sample_logits_ids.cu` one of a row whose columns have ids, and
//! `sample_logits_columns.cu` does all else.
//!
//! A cluster of blocks reads a row once, and most often a single block ends it, by the largest
//! logit of each group of 64 tokens (`race_leader_block.cuh`, `sample_logits_leader_block.cuh`).
//! Like FlashInfer (Ye et al., 2025), a row with top-p alone draws tokens before it is known which
//! tokens top-p keeps, and then tests whether top-p keeps them (`sample_logits_nucleus.cuh`). A row
//! that neither way ends is cut by RadixSelect (Alabi et al., 2012), which here adds up integer
//! weights in addition to counting keys. So a single search finds where top-k and top-p cut a row.

#[cfg(test)]
use spec_conformance::launch_params::Header;
use spec_core::launch_params::Field;
use spec_core::ops::SampleLogits;
use spec_core::ops::sample_logits::{self, Buffers, Plan};
use spec_core::{
    DType, Error, Kernel, Matrix, Result, Status, Stream, Supports, ViewMut, launch_params,
};

use super::race::{GROUP, SELECT_THREADS, blocks_for, blocks_for_leader, blocks_that_stay};
use crate::Cuda;
use crate::archive::{Archive, archive};
use crate::args::{IntegerRows, Integers, Rows};
use crate::kernel::{Function, Shape};

static PLAIN: Archive = archive!("sample_logits_plain");
static PROBS: Archive = archive!("sample_logits_probs");
static DRAW_REPORT: Archive = archive!("sample_logits_draw_report");
static GENERAL: Archive = archive!("sample_logits");
static REPORT: Archive = archive!("sample_logits_report");
static COLUMNS: Archive = archive!("sample_logits_columns");
static SHARD: Archive = archive!("sample_logits_shard");
static IDS: Archive = archive!("sample_logits_ids");

launch_params! {
    /// The parameters of the kernels of `sample_logits` that draw tokens. `T` is the type of the
    /// logits.
    struct Params<T> {
        /// Logits, [rows, vocab].
        logits: Rows as "Rows<const T>",
        /// The position of each row's token in its text, in tokens, [rows].
        positions: Integers,
        /// Temperatures, [requests].
        temperature: u64 as "const float*",
        /// Seeds, [requests].
        seeds: u64 as "const u64*",
        /// The number of tokens that top-k keeps, [requests]; 0 and below, or null: all tokens.
        top_k: u64 as "const i32*",
        /// The share of the probability that top-p keeps, [requests]; 1 and above, or null: all of
        /// it.
        top_p: u64 as "const float*",
        /// The least weight that min-p keeps, as a share of the row's largest weight, [requests]; 0
        /// and below, or null: all tokens are kept.
        min_p: u64 as "const float*",
        /// The request of each row, [rows], -1 for padding; null: row i belongs to request i.
        of_rows: Integers,
        /// One bit for each token, 1 if it is allowed, [rows, ceil(vocab / 32)]; null: all are
        /// allowed.
        mask: Rows as "Rows<const u32>",
        /// The tokens that each row draws, in the order in which they finish, [rows, draws].
        tokens: IntegerRows,
        /// The distribution that the tokens were drawn from, [rows, vocab], or null.
        probs: Rows as "Rows<float>",
        /// The logarithm of the probability with which each token was drawn, [rows, draws], or
        /// null.
        processed_logprobs: Rows as "Rows<float>",
        /// The tokens that race, [rows, kept], or null.
        kept_tokens: Rows as "Rows<i32>",
        /// How many tokens race, [rows], or null.
        kept_counts: u64 as "i32*",
        /// One word of flags, or null.
        flags: u64 as "u32*",
        /// The flags of each row, [rows], zeroed before the launch; or null.
        row_flags: u64 as "u32*",
        /// The number of requests.
        requests: u64,
        /// The number of tokens in the vocabulary.
        vocab: u32,
        /// The number of tokens that a row draws.
        draws: u32,
        /// 1 if min-p filters before top-k and top-p, else 0.
        min_p_first: u32,
        /// The number of kept tokens that a row lists.
        kept: u32,
    }

    /// Blocks that fit a multiprocessor, of the kernels in which one block ends a row.
    const SHARING: u32 = 2;
    /// Tokens of the largest vocabulary that a kernel takes whose rows no filter cuts.
    const MAX_PLAIN: usize = 4096 * GROUP;
    /// The largest number of likeliest tokens that a row reports.
    const MAX_TOP: usize = sample_logits::MAX_TOP;
    /// The largest number of tokens that a row draws in the kernel that also reports them.
    const MAX_REPORTED_DRAWS: usize = 16;
}

launch_params! {
    /// The parameters of the kernels that report the drawn tokens. `T` is the type of the logits.
    struct Report<T> {
        /// Logits, [rows, vocab].
        logits: Rows as "Rows<const T>",
        /// The drawn tokens of each row, [rows, draws], -1 for no token.
        tokens: IntegerRows,
        /// The request of each row, [rows], -1 for padding; null: row i belongs to request i.
        of_rows: Integers,
        /// The log-probability of each token, [rows, draws], or null.
        logprobs: Rows as "Rows<float>",
        /// The rank of each token: the number of logits at least as large, [rows, draws], or null.
        ranks: Rows as "Rows<i32>",
        /// The most likely tokens of each row, [rows, top], or null.
        top_tokens: Rows as "Rows<i32>",
        /// The log-probabilities of `top_tokens`, [rows, top], or null.
        top_logprobs: Rows as "Rows<float>",
        /// The number of tokens in the vocabulary.
        vocab: u32,
        /// The number of tokens that a row draws.
        draws: u32,
        /// The number of most likely tokens to report for each row.
        top: u32,
        reserved: u32,
    }
}

impl Report {
    /// Reports nothing.
    fn of_nothing(self) -> Self {
        let (logprobs, top_logprobs) = (Rows::ABSENT, Rows::ABSENT);
        let (ranks, top_tokens) = (Rows::ABSENT, Rows::ABSENT);
        Report { logprobs, ranks, top_tokens, top_logprobs, top: 0, ..self }
    }
}

impl Field for Params {
    const DEVICE: &'static str = "Params<T>";
}

impl Field for Report {
    const DEVICE: &'static str = "Report<T>";
}

launch_params! {
    /// The parameters of the kernels that draw tokens and report them. `T` is the type of the
    /// logits.
    struct DrawAndReport<T> {
        /// The parameters for drawing.
        drawing: Params,
        /// The parameters for the report.
        report: Report,
    }
}

launch_params! {
    /// The parameters of the kernels of rows by columns. `T` is the type of the logits.
    struct Columns<T> {
        /// The parameters for drawing.
        drawing: Params,
        /// The parameters for the report.
        report: Report,
        /// The token of each column, [rows, vocab], -1 for none; a stride of 0: those of all rows;
        /// null: column c stands for token first_token + c.
        token_ids: IntegerRows,
        /// The largest logit of each row over all ranks, [rows], or null.
        maxima: u64 as "const float*",
        /// The token that each row takes instead of a drawn one, [rows], -1 for none; or null.
        forced: u64 as "const i32*",
        /// The place of each row's token and the token, [rows], or null.
        winners: u64 as "u64*",
        /// The largest logit of each row, [rows], or null.
        largest: u64 as "float*",
        /// What is known of the ids of 64 columns each, [id_rows, ceil(vocab / 64)], in the
        /// workspace, [`ID_GROUP`] bytes for each; null: nothing.
        id_groups: u64 as "u64*",
        /// The number of rows of ids: 1 if all rows have the same.
        id_rows: u64,
        /// The token of column 0, where no ids are given.
        first_token: u32,
        /// The number of words of a row of the mask.
        mask_words: u32,
        /// 1 if a report needs the largest logit whatever the mask, else 0.
        needs_raw: u32,
    }

    /// Values of `winners` that are no time: the row takes its forced token; a row without randomness
    /// has its token; no token may win.
    const PLACE_FORCED: u64 = sample_logits::PLACE_FORCED as u64;
    const PLACE_CERTAIN: u64 = sample_logits::PLACE_CERTAIN as u64;
    const PLACE_NOTHING: u64 = sample_logits::PLACE_NOTHING as u64;
    /// Threads of a block of the kernel that looks at the ids.
    const ID_THREADS: u32 = 256;
    /// Bytes of what is known of the ids of [`GROUP`] columns.
    const ID_GROUP: usize = 16 + 8 * 8;
}

#[cfg(test)]
pub(super) const HEADER: Header = Header {
    name: "sample_logits",
    includes: &["ids.cuh"],
    structs: &[Params::DESCRIPTION, Report::DESCRIPTION, DrawAndReport::DESCRIPTION],
};
/// In a file of its own, so that the kernels of whole rows do not depend on it.
#[cfg(test)]
pub(super) const COLUMNS_HEADER: Header = Header {
    name: "sample_logits_columns",
    includes: &["params/sample_logits.cuh"],
    structs: &[Columns::DESCRIPTION],
};

/// A kernel in whose launch each cluster owns one row.
struct ByRow {
    function: Function,
    shape: Shape,
}

/// The kernel that draws a row's tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Draws one token from all that the mask allows, or takes the likeliest.
    Plain,
    /// Draws several tokens of a row without a mask, or adds up the weights of a row, and takes
    /// [`DrawAndReport`]. Where it `reports`, it takes the place of the kernel that reports, too.
    DrawReport { reports: bool },
    /// Draws one token of a row without a mask, or takes the likeliest, and writes the probabilities
    /// of all tokens.
    Probs,
    /// Draws one token of a shard from all that the mask allows, takes the likeliest, or takes a
    /// forced token.
    Shard,
    /// Draws one token as [`Kind::Shard`] does, of a row whose columns have ids.
    Ids,
    /// Draws and reports rows by columns.
    Columns,
    /// Finds the largest logit of each row and draws nothing.
    Largest,
    /// All else.
    General,
}

impl Kind {
    /// `uncached`: whether the kernel that reports would read the logits from memory, as the kernel
    /// that draws has done before. Otherwise it is quicker to have both: the kernel that reports
    /// reads the logits from the second-level cache while tokens are drawn.
    fn new(plan: &Plan, uncached: bool) -> Self {
        if plan.largest {
            return Kind::Largest;
        }
        let by_token = plan.token_ids.is_some() || plan.params.first_token != 0;
        let is_part = by_token || plan.maxima || plan.forced || plan.winners;
        // The general kernel lists what filters keep.
        if is_part || (plan.keeps() && !plan.filters) {
            let is_cut = plan.filters || plan.keeps();
            let sums = plan.probs.is_some() || plan.processed_logprobs.is_some();
            let has_ids = plan.token_ids.is_some();
            // The kernel that reports takes tokens for columns.
            let reports = plan.reports() && (has_ids || plan.params.first_token != 0);
            // A shard is read from a multiple of 256 tokens on.
            let is_short = plan.vocab() + 255 <= MAX_PLAIN;
            return match !is_cut && !sums && !reports && plan.draws() == 1 && is_short {
                true if has_ids => Kind::Ids,
                true => Kind::Shard,
                false => Kind::Columns,
            };
        }
        if plan.filters || plan.vocab() > MAX_PLAIN {
            return Kind::General;
        }
        if plan.probs.is_some() {
            let probs = plan.mask.is_none() && plan.draws() == 1;
            return if probs { Kind::Probs } else { Kind::General };
        }
        let weighs = plan.processed_logprobs.is_some();
        // The kernel adds up one sum of weights.
        let sums =
            u32::from(weighs) + u32::from(plan.logprobs.is_some() || plan.top_logprobs.is_some());
        let reports = plan.reports() && uncached && sums <= 1;
        let one = plan.draws() == 1 && !weighs;
        let draw_report = plan.mask.is_none() && plan.draws() <= MAX_REPORTED_DRAWS;
        match (draw_report, one) {
            (true, false) => Kind::DrawReport { reports },
            (true, true) if reports => Kind::DrawReport { reports },
            (_, true) => Kind::Plain,
            (false, false) => Kind::General,
        }
    }
}

struct Prepared {
    cuda: Cuda,
    plan: Plan,
    kind: Kind,
    /// The kernel that looks at the ids before a token is drawn ([`Kind::Ids`]).
    look: Option<ByRow>,
    draw: ByRow,
    /// The kernel that reports log-probabilities, ranks or the likeliest tokens, if any are wanted
    /// and the kernel that draws does not report them.
    report: Option<ByRow>,
}

impl ByRow {
    /// `blocks` says how many blocks a row has, of how many clusters of so many blocks run at a time.
    fn new(
        cuda: &Cuda,
        archive: &'static Archive,
        name: &str,
        rows: usize,
        blocks: impl FnOnce(&dyn Fn(u32) -> Result<u32>) -> Result<u32>,
    ) -> Result<Self> {
        Self::with_shared(cuda, archive, name, rows, |_| 0, blocks)
    }

    /// As [`new`](Self::new), with the bytes of dynamic shared memory that `shared` returns.
    fn with_shared(
        cuda: &Cuda,
        archive: &'static Archive,
        name: &str,
        rows: usize,
        shared: impl FnOnce(&Function) -> u32,
        blocks: impl FnOnce(&dyn Fn(u32) -> Result<u32>) -> Result<u32>,
    ) -> Result<Self> {
        let function = cuda.function(archive, name)?;
        let block = Shape::new(1, SELECT_THREADS).shared(shared(&function));
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

/// Bytes of dynamic shared memory for a block of the kernel that writes probabilities: for the
/// largest logit of each group of 64 tokens, and for as many logits as leave room for a second block
/// on the multiprocessor. `dynamic` is the most that the kernel can have, `shared` the most that a
/// block can have; the multiprocessor has 1 KiB more, and keeps 1 KiB for each block.
fn shared_for_probs(vocab: usize, dynamic: u32, shared: u32) -> u32 {
    // Four groups at a time.
    let tops = 16 * vocab.div_ceil(4 * 64) as u32;
    dynamic.saturating_sub(shared / 2 + 512).max(tops)
}

/// The number of rows of ids, 1 if all rows have the same ids; 0 without ids.
fn id_rows(plan: &Plan) -> usize {
    plan.token_ids.map_or(0, |ids| if ids.row_stride == 0 { 1 } else { ids.rows })
}

/// The number of groups of 64 columns for which the kernel that looks at the ids writes a word.
fn id_groups(plan: &Plan) -> usize {
    id_rows(plan).saturating_mul(plan.vocab().div_ceil(GROUP))
}

/// The kernel that looks at the ids: a warp for each group.
fn look_at_ids(cuda: &Cuda, plan: &Plan) -> Result<ByRow> {
    let function = cuda.function(&IDS, "sample_logits_id_groups")?;
    let blocks = id_groups(plan).div_ceil(ID_THREADS as usize / 32);
    let blocks = u32::try_from(blocks).ok().filter(|&blocks| blocks < 1 << 31);
    let blocks = blocks.ok_or_else(|| {
        let words = format!("{} rows of ids are more than a grid holds", id_rows(plan));
        Error::device(cuda.device(), Status::NotImplemented, words)
    })?;
    Ok(ByRow { function, shape: Shape::new(blocks, ID_THREADS) })
}

impl Prepared {
    fn new(cuda: &Cuda, plan: &Plan) -> Result<Self> {
        let dtype = plan.logits.dtype.name();
        let rows = plan.rows();
        let bytes = plan.vocab() * plan.logits.dtype.size();
        let leader_blocks = |at_once: &dyn Fn(u32) -> Result<u32>| {
            blocks_for_leader(rows, bytes, cuda.limits().multiprocessors, SHARING, at_once)
        };
        let kind = Kind::new(plan, rows.saturating_mul(bytes) > cuda.limits().l2 as usize);
        let draw = match kind {
            Kind::Plain => {
                let masked = if plan.mask.is_some() { "masked_" } else { "" };
                let name = format!("sample_logits_plain_{masked}{dtype}");
                ByRow::new(cuda, &PLAIN, &name, rows, leader_blocks)
            }
            Kind::DrawReport { .. } => ByRow::new(
                cuda,
                &DRAW_REPORT,
                &format!("sample_logits_draw_report_{dtype}"),
                rows,
                leader_blocks,
            ),
            Kind::Probs => {
                let shared = |function: &Function| {
                    shared_for_probs(plan.vocab(), function.dynamic, cuda.limits().shared)
                };
                ByRow::with_shared(
                    cuda,
                    &PROBS,
                    &format!("sample_logits_probs_{dtype}"),
                    rows,
                    shared,
                    |at_once| blocks_that_stay(rows, plan.vocab(), SHARING, at_once),
                )
            }
            Kind::Shard => {
                let masked = if plan.mask.is_some() { "masked_" } else { "" };
                let name = format!("sample_logits_shard_{masked}{dtype}");
                ByRow::new(cuda, &SHARD, &name, rows, leader_blocks)
            }
            Kind::Ids => {
                let name = format!("sample_logits_ids_{dtype}");
                ByRow::new(cuda, &IDS, &name, rows, leader_blocks)
            }
            Kind::Columns => {
                let name = format!("sample_logits_columns_{dtype}");
                ByRow::new(cuda, &COLUMNS, &name, rows, |at_once| blocks_for(rows, at_once))
            }
            Kind::Largest => {
                let name = format!("sample_logits_largest_{dtype}");
                ByRow::new(cuda, &COLUMNS, &name, rows, |at_once| blocks_for(rows, at_once))
            }
            Kind::General => {
                let name = format!("sample_logits_{dtype}");
                ByRow::new(cuda, &GENERAL, &name, rows, |at_once| blocks_for(rows, at_once))
            }
        };
        let look = (kind == Kind::Ids).then(|| look_at_ids(cuda, plan)).transpose()?;
        let reported = matches!(kind, Kind::DrawReport { reports: true } | Kind::Columns);
        let separate = plan.reports() && !reported;
        let name = format!("sample_logits_report_{dtype}");
        let report = separate.then(|| ByRow::new(cuda, &REPORT, &name, rows, leader_blocks));
        Ok(Prepared {
            cuda: cuda.clone(),
            plan: plan.clone(),
            kind,
            look,
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
        if self.kind == Kind::Ids { id_groups(&self.plan).saturating_mul(ID_GROUP) } else { 0 }
    }

    unsafe fn launch(
        &self,
        workspace: ViewMut<'_>,
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
        // An absent `requests` is not read, so any dtype will do.
        let index = plan.of_rows.map_or(DType::I32, |of_rows| of_rows.dtype);
        let of_rows = cuda.integers(buffers.requests, index)?;
        let row_flags = cuda.pointer(buffers.row_flags)?;
        let report = Report {
            logits,
            tokens,
            of_rows,
            logprobs: written(buffers.logprobs, &plan.logprobs)?,
            ranks: written(buffers.ranks, &plan.ranks)?,
            top_tokens: written(buffers.top_tokens, &plan.top_tokens)?,
            top_logprobs: written(buffers.top_logprobs, &plan.top_logprobs)?,
            vocab: plan.vocab() as u32,
            draws: plan.draws() as u32,
            top: plan.top() as u32,
            reserved: 0,
        };
        let params = Params {
            logits,
            positions: cuda.integers(buffers.positions, plan.positions.dtype)?,
            temperature: cuda.pointer(buffers.temperature)?,
            seeds: cuda.pointer(buffers.seeds)?,
            top_k: cuda.pointer(buffers.top_k)?,
            top_p: cuda.pointer(buffers.top_p)?,
            min_p: cuda.pointer(buffers.min_p)?,
            of_rows,
            mask,
            tokens,
            probs: written(buffers.probs, &plan.probs)?,
            processed_logprobs: written(buffers.processed_logprobs, &plan.processed_logprobs)?,
            kept_tokens: written(buffers.kept_tokens, &plan.kept_tokens)?,
            kept_counts: cuda.pointer(buffers.kept_counts)?,
            flags: cuda.pointer(buffers.flags)?,
            row_flags,
            requests: plan.requests as u64,
            vocab: plan.vocab() as u32,
            draws: plan.draws() as u32,
            min_p_first: u32::from(plan.params.min_p_first),
            kept: plan.kept_tokens.map_or(0, |kept| kept.cols as u32),
        };
        let columns = Columns {
            drawing: params,
            report,
            token_ids: match (buffers.token_ids, &plan.token_ids) {
                // One row of ids for all rows has a stride of 0.
                (Some(view), Some(matrix)) => cuda.integer_rows(view, matrix)?,
                _ => IntegerRows::ABSENT,
            },
            maxima: cuda.pointer(buffers.maxima)?,
            forced: cuda.pointer(buffers.forced)?,
            winners: cuda.pointer(buffers.winners)?,
            largest: cuda.pointer(buffers.largest)?,
            id_groups: cuda.workspace(workspace, self.workspace_size())?,
            id_rows: id_rows(plan) as u64,
            first_token: plan.params.first_token.cast_unsigned(),
            mask_words: plan.mask.map_or(0, |mask| mask.cols as u32),
            needs_raw: u32::from(plan.reports()),
        };
        // SAFETY: `Params`, `Report`, `DrawAndReport` and `Columns` have the layout of the kernels' structs; the
        // buffers were checked against the plan, and the kernels check requests and tokens, which
        // are data, against the plan's sizes. `row_flags` has a word for each row.
        cuda.enqueue(stream, |queue| unsafe {
            if row_flags != 0 {
                queue.zero(row_flags, plan.rows() * 4)?;
            }
            let ByRow { function, shape } = &self.draw;
            match self.kind {
                Kind::DrawReport { reports } => {
                    let report = if reports { report } else { report.of_nothing() };
                    queue.launch(function, *shape, &DrawAndReport { drawing: params, report })?;
                }
                Kind::Shard | Kind::Ids | Kind::Columns | Kind::Largest => match &self.look {
                    // The kernel reads logits while the kernel before looks at the ids.
                    Some(look) => {
                        queue.launch(&look.function, look.shape, &columns)?;
                        queue.launch_next(function, *shape, &columns)?;
                    }
                    None => queue.launch(function, *shape, &columns)?,
                },
                Kind::Plain | Kind::Probs | Kind::General => {
                    queue.launch(function, *shape, &params)?;
                }
            }
            match &self.report {
                // The kernel reads logits while the kernel before still draws.
                Some(by_row) => queue.launch_next(&by_row.function, by_row.shape, &report),
                None => Ok(()),
            }
        })
    }
}

#[cfg(test)]
mod routes;
#[cfg(test)]
mod tests {
    use spec_core::ops::sample_logits::Tensors;
    use spec_core::{Operator, TensorDesc};

    use super::*;

    const VOCAB: usize = 128_256;

    fn rows(draws: usize, vocab: usize) -> Tensors {
        let mut tensors = SampleLogits::new().tensors(4, vocab);
        tensors.tokens = TensorDesc::new(DType::I32, [4, draws]);
        tensors
    }

    fn floats(draws: usize) -> TensorDesc {
        TensorDesc::new(DType::F32, [4, draws])
    }

    fn kind(tensors: Tensors, uncached: bool) -> Kind {
        Kind::new(&SampleLogits::new().plan(&tensors).expect("a plan"), uncached)
    }

    #[test]
    fn kernels_take_the_rows_that_they_know() {
        let of_requests = || TensorDesc::new(DType::F32, [4]);
        let several = |count| TensorDesc::new(DType::I32, [4, count]);
        let mask = || several(VOCAB / 32);
        for uncached in [false, true] {
            let kind = |tensors| kind(tensors, uncached);
            let one = || rows(1, VOCAB);
            let draws = Kind::DrawReport { reports: false };
            let reported = if uncached { Kind::DrawReport { reports: true } } else { Kind::Plain };
            assert_eq!(kind(one()), Kind::Plain);
            assert_eq!(kind(one().min_p(of_requests())), Kind::Plain);
            assert_eq!(kind(one().mask(mask())), Kind::Plain);
            assert_eq!(kind(rows(1, MAX_PLAIN)), Kind::Plain);
            assert_eq!(kind(rows(MAX_REPORTED_DRAWS, VOCAB)), draws);
            assert_eq!(kind(one().processed_logprobs(floats(1))), draws);
            assert_eq!(kind(one().logprobs(floats(1))), reported);
            assert_eq!(kind(one().ranks(several(1))), reported);
            assert_eq!(kind(one().top_tokens(several(20))), reported);
            assert_eq!(
                kind(rows(2, VOCAB).ranks(several(2))),
                Kind::DrawReport { reports: uncached }
            );
            // Two sums.
            let both = one().logprobs(floats(1)).processed_logprobs(floats(1));
            assert_eq!(kind(both), draws);

            assert_eq!(kind(one().mask(mask()).logprobs(floats(1))), Kind::Plain);
            assert_eq!(kind(rows(2, VOCAB).mask(mask())), Kind::General);
            assert_eq!(kind(rows(MAX_REPORTED_DRAWS + 1, VOCAB)), Kind::General);
            assert_eq!(kind(rows(1, MAX_PLAIN + 1)), Kind::General);
            assert_eq!(kind(one().top_p(of_requests())), Kind::General);

            let probs = |tensors: Tensors| kind(tensors.probs(floats(VOCAB)));
            assert_eq!(probs(one().min_p(of_requests())), Kind::Probs);
            assert_eq!(probs(one().processed_logprobs(floats(1))), Kind::Probs);
            assert_eq!(probs(one().logprobs(floats(1))), Kind::Probs);
            assert_eq!(probs(one().mask(mask())), Kind::General);
            assert_eq!(probs(one().top_p(of_requests())), Kind::General);
            assert_eq!(probs(rows(2, VOCAB)), Kind::General);
            let by_column = |tensors| kind(tensors) == Kind::Columns;
            let ints = || TensorDesc::new(DType::I32, [4]);
            let shard = |tensors| kind(tensors) == Kind::Shard;
            assert!(shard(one().forced(ints())) && shard(one().mask(mask()).forced(ints())));
            assert!(shard(one().forced(ints()).logprobs(floats(1))));
            assert!(shard(one().maxima(of_requests()).winners(TensorDesc::new(DType::I64, [4]))));
            assert!(by_column(one().forced(ints()).probs(floats(VOCAB))));
            assert!(by_column(rows(2, VOCAB).forced(ints())));
            let ids = || TensorDesc::new(DType::I32, [VOCAB]);
            assert_eq!(kind(one().token_ids(ids())), Kind::Ids);
            assert_eq!(kind(one().token_ids(ids()).mask(mask()).forced(ints())), Kind::Ids);
            assert!(by_column(rows(4, VOCAB).token_ids(ids())));
            assert!(by_column(one().token_ids(ids()).logprobs(floats(1))));
            assert!(by_column(one().token_ids(ids()).top_p(of_requests())));
            assert!(by_column(one().kept_counts(ints())));
            assert_eq!(kind(one().top_p(of_requests()).kept_counts(ints())), Kind::General);
            assert!(by_column(one().top_p(of_requests()).kept_counts(ints()).forced(ints())));
            let largest = rows(0, VOCAB).largest(TensorDesc::new(DType::F32, [4]));
            assert_eq!(kind(largest), Kind::Largest);
            let mut half = one();
            half.logits = TensorDesc::new(DType::BF16, [4, VOCAB]);
            assert_eq!(probs(half), Kind::Probs);
        }
    }
}
