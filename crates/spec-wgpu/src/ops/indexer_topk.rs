//! The best positions of rows: selected among the scores that reach a bound, or by a radix select.
//! Each workgroup handles a chunk of a row. Where values or slots are asked for, a last dispatch
//! gathers them. Blocks and candidates take further dispatches before and after: see
//! [`indexer_topk_blocks`](super::indexer_topk_blocks).

use bytemuck::{Pod, Zeroable};
#[cfg(test)]
use spec_conformance::launch_params::Header;
use spec_core::launch_params;
use spec_core::ops::IndexerTopk;
use spec_core::ops::indexer_topk::{Buffers, Pages, Plan};
use spec_core::{Kernel, Matrix, Result, Status, Stream, Supports, ViewMut};

use super::indexer_topk_blocks::{Arguments, Prologue, Scratch, noted, words};
use crate::Wgpu;
use crate::launch::Recorder;
use crate::memory::Region;
use crate::shader::Access::{Read, Write};
use crate::shader::{Program, Shader, shader};
use spec_core::launch_params::float_code;

pub(super) static SHADER: Shader = shader!("indexer_topk");
pub(super) static GATHER_SHADER: Shader = shader!("indexer_topk_gather");

/// Threads of a workgroup that handles a row, where the device allows this many.
const WIDE: u32 = 1024;
/// The number of groups of a row: at least `GROUPS_OF_KEPT` per kept score, so that not many more
/// scores than needed reach the bound, and about `GROUPS` in all. With fewer than
/// `FEWEST_GROUPS_OF_KEPT` groups per kept score, no bound is used.
const GROUPS_OF_KEPT: usize = 4;
const GROUPS: usize = 16384;
const FEWEST_GROUPS_OF_KEPT: usize = 2;
/// The longest row that one workgroup can go over four times.
const MAX_COLS: usize = 1 << 21;
/// The largest number of rows whose intermediate results the workspace holds.
const MAX_ROWS: u64 = 512;
/// The number of key bits below each digit.
const LOW: [u32; 4] = [24, 16, 8, 0];

launch_params! {
    /// What the shaders of `indexer_topk` take.
    struct Params: Pod, Zeroable {
        /// Scores of a row.
        cols: u32,
        /// How many scores are asked for.
        k: u32,
        /// Scores from one row to the next.
        stride: u32,
        /// Chunks of a row.
        chunks: u32,
        /// Words of a length; 0: there are none.
        length_words: u32,
        /// Words of a start; 0: there are none.
        start_words: u32,
        /// Words of an index.
        index_words: u32,
        /// Indices from one row to the next.
        index_stride: u32,
        /// 1 where `flags` is there, else 0.
        has_flags: u32,
        /// Bits of a key below the digit of this pass.
        low: u32,
        /// Rows.
        rows: u32,
        /// Keys of a part's groups, a power of two of at most CHUNK_THREADS.
        groups: u32,
        /// Keys of a list.
        capacity: u32,
    }

    /// Scores of a chunk.
    const CHUNK: usize = 4096;
    /// Threads of a workgroup that handles a chunk.
    const CHUNK_THREADS: usize = 256;
    /// 32-bit words of a row's state.
    const STATE: u64 = 8;
    /// Values of a digit.
    const DIGITS: u64 = 256;
}

launch_params! {
    /// What the shader takes that gathers values and slots.
    struct Gather: Pod, Zeroable {
        /// Rows.
        rows: u32,
        /// Scores of a row.
        cols: u32,
        /// Positions of a row.
        k: u32,
        /// Scores from one row to the next.
        stride: u32,
        /// Words of a start; 0: there are none.
        start_words: u32,
        /// Words of an index.
        index_words: u32,
        /// Indices from one row to the next.
        index_stride: u32,
        /// Values from one row to the next.
        value_stride: u32,
        /// Slots from one row to the next.
        slot_stride: u32,
        /// Tables.
        tables: u32,
        /// Blocks of a table.
        blocks: u32,
        /// Blocks from one table to the next.
        table_stride: u32,
        /// Positions in a block, at least 1.
        block_size: u32,
        /// Which optional arguments are there: HAS_ bits.
        has: u32,
        /// For `finish`: rows, rounded up to the alignment of a binding.
        noted: u32,
        /// For `finish`: how many of the first blocks are always chosen.
        forced_first: u32,
        /// For `finish`: how many of the last blocks are always chosen.
        forced_last: u32,
        /// For `finish`: how many of the others are chosen, if there are enough.
        room: u32,
    }

    /// Threads of a workgroup.
    const GATHER_THREADS: u64 = 256;
    /// Bits of `has`: the arguments that are there.
    const HAS_REQUESTS: u32 = 1;
    const HAS_VALUES: u32 = 1 << 1;
    const HAS_SLOTS: u32 = 1 << 2;
    const HAS_FLAGS: u32 = 1 << 3;
    const HAS_POSITIONS: u32 = 1 << 4;
}

#[cfg(test)]
pub(super) const HEADER: Header =
    Header { name: "indexer_topk", includes: &["bound"], structs: &[Params::DESCRIPTION] };

#[cfg(test)]
pub(super) const GATHER_HEADER: Header =
    Header { name: "indexer_topk_gather", includes: &["bound"], structs: &[Gather::DESCRIPTION] };

struct Selector {
    gpu: Wgpu,
    plan: Plan,
    /// What the dispatches that choose take: the plan itself, or what the prologue leaves of it.
    chosen: Plan,
    prologue: Option<Prologue>,
    clear: Program,
    survey: Program,
    bound: Program,
    collect: Program,
    settle: Program,
    count: Program,
    pick: Program,
    count_chosen: Program,
    place: Program,
    /// The program that gathers values and slots, if any are asked for.
    gather: Option<Program>,
    /// The largest number of rows whose scores, outputs, tables and intermediate results fit a
    /// binding each.
    window: u64,
}

// SAFETY: the kernel keeps within the buffers and the workspace of the plan, whatever the data.
unsafe impl Supports<IndexerTopk> for Wgpu {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<IndexerTopk>>> {
        let limits = &self.0.limits;
        let max_threads =
            limits.max_compute_invocations_per_workgroup.min(limits.max_compute_workgroup_size_x);
        let wide = WIDE.min(max_threads) / CHUNK_THREADS as u32 * CHUNK_THREADS as u32;
        let prologue = Prologue::new(self, plan)?;
        let chosen = prologue.as_ref().map_or_else(|| plan.clone(), |p| p.chosen_from(plan));
        let program = |entry, threads| {
            let bindings = [Write, Read, Read, Read, Write, Write, Write];
            let constants = [("DTYPE", float_code(chosen.scores.dtype)), ("THREADS", threads)];
            self.program(&SHADER, entry, &bindings, &constants)
        };
        let chunked = |entry| program(entry, CHUNK_THREADS as u32);
        let rows_of = |matrix: &Matrix| self.window_of_rows(matrix, 1);
        let window = rows_of(&plan.scores)
            .min(rows_of(&plan.indices))
            .min(plan.values.as_ref().map_or(MAX_ROWS, rows_of))
            .min(plan.pages.as_ref().map_or(MAX_ROWS, |pages| self.window_of_pages(pages)))
            .min(self.window(4) / words_of_row(&chosen).max(keys_of_row(&chosen)))
            .min(prologue.as_ref().map_or(MAX_ROWS, |prologue| prologue.window(self, plan)))
            .min(MAX_ROWS);
        if window == 0 {
            let words = format!(
                "indexer_topk: a row of {} scores, or the tables of its blocks, need more than a \
                 binding of {} bytes",
                plan.scores.cols, self.0.max_binding
            );
            return Err(self.error(Status::NotImplemented, words));
        }
        let is_gathered = plan.values.is_some() || plan.pages.is_some();
        let is_finished = plan.candidates.is_some() || plan.blocks.forced() > 0;
        let gather = (is_gathered || is_finished).then(|| {
            let bindings = [Read, Read, Write, Read, Read, Write, Write, Write];
            let constants = [("DTYPE", float_code(chosen.scores.dtype))];
            let entry = if prologue.is_some() { "finish" } else { "gather" };
            self.program(&GATHER_SHADER, entry, &bindings, &constants)
        });
        Ok(Box::new(Selector {
            gpu: self.clone(),
            plan: plan.clone(),
            clear: chunked("clear")?,
            survey: chunked("survey")?,
            bound: program("bound", wide)?,
            collect: chunked("collect")?,
            settle: program("settle", wide)?,
            count: chunked("count")?,
            pick: chunked("pick")?,
            count_chosen: chunked("count_chosen")?,
            place: chunked("place")?,
            gather: gather.transpose()?,
            chosen: chosen.clone(),
            prologue,
            window,
        }))
    }
}

impl Wgpu {
    /// How many rows of slots a binding holds, and of tables, if a table belongs to each row. 0
    /// where rows name their tables and not all tables fit a binding.
    fn window_of_pages(&self, pages: &Pages) -> u64 {
        let slots = self.window_of_rows(&pages.slots, 1);
        let tables = self.window_of_rows(&pages.block_table, 1);
        match pages.mapped {
            true if tables < pages.block_table.rows as u64 => 0,
            true => slots,
            false => slots.min(tables),
        }
    }
}

impl Selector {
    /// The parameters of the dispatch that gathers for `rows` rows.
    fn gather_params(&self, rows: u64, flags: bool) -> Gather {
        let plan = &self.plan;
        let stride = |matrix: &Matrix| matrix.row_stride as u32;
        let pages = plan.pages.as_ref();
        let of_table = |size: fn(&Pages) -> usize| pages.map_or(0, |pages| size(pages) as u32);
        let mapped = pages.is_some_and(|pages| pages.mapped);
        let given = [
            (mapped, HAS_REQUESTS),
            (plan.values.is_some(), HAS_VALUES),
            (pages.is_some(), HAS_SLOTS),
            (flags, HAS_FLAGS),
            (self.prologue.as_ref().is_some_and(Prologue::has_positions), HAS_POSITIONS),
        ];
        Gather {
            rows: rows as u32,
            cols: plan.scores.cols as u32,
            k: plan.k as u32,
            stride: stride(&self.chosen.scores),
            start_words: words(&plan.starts),
            index_words: (plan.indices.dtype.size() / 4) as u32,
            index_stride: stride(&plan.indices),
            value_stride: plan.values.as_ref().map_or(0, stride),
            slot_stride: of_table(|pages| pages.slots.row_stride),
            // A table of each row: those of the window are bound.
            tables: if mapped { of_table(|pages| pages.block_table.rows) } else { rows as u32 },
            blocks: of_table(|pages| pages.block_table.cols),
            table_stride: of_table(|pages| pages.block_table.row_stride),
            block_size: of_table(|pages| pages.block_size).max(1),
            has: given.iter().filter(|(there, _)| *there).fold(0, |has, (_, bit)| has | bit),
            noted: noted(rows) as u32,
            forced_first: plan.blocks.forced_first as u32,
            forced_last: plan.blocks.forced_last as u32,
            room: plan.room() as u32,
        }
    }
}

/// The number of chunks of a row. A row without scores also has one chunk, which writes the
/// outputs.
fn chunks(plan: &Plan) -> u64 {
    plan.scores.cols.div_ceil(CHUNK).max(1) as u64
}

/// The number of groups of a part of a row, a power of two.
fn groups(plan: &Plan) -> usize {
    let wanted = GROUPS.max(GROUPS_OF_KEPT * plan.k) / chunks(plan) as usize;
    wanted.max(1).next_power_of_two().min(CHUNK_THREADS)
}

/// Whether a bound helps: there must be enough groups per kept score, and rows must be short
/// enough, since one workgroup may have to go over a whole row.
fn bounds(plan: &Plan) -> bool {
    let groups = chunks(plan) as usize * groups(plan);
    groups >= FEWEST_GROUPS_OF_KEPT * plan.k && plan.scores.cols <= MAX_COLS
}

/// The number of keys of a list: more than usually reach the bound.
fn capacity(plan: &Plan) -> usize {
    if bounds(plan) { plan.scores.cols.min(2 * plan.k + 1024) } else { 0 }
}

/// Words of workspace of a row: its state, counts, counts of chosen scores, and keys.
fn words_of_row(plan: &Plan) -> u64 {
    STATE + DIGITS + 2 * chunks(plan)
}

fn keys_of_row(plan: &Plan) -> u64 {
    CHUNK_THREADS as u64 * chunks(plan) + capacity(plan) as u64
}

/// The 32-bit words of `rows` rows, rounded up to a multiple of a binding's alignment.
fn words_of_rows(plan: &Plan, rows: u64) -> u64 {
    (rows * words_of_row(plan)).next_multiple_of(64)
}

/// The arguments of a call, and the parts of its workspace.
struct Call<'a> {
    arguments: Arguments<'a>,
    tables: Region<'a>,
    requests: Region<'a>,
    indices: Region<'a>,
    values: Region<'a>,
    slots: Region<'a>,
    work: Region<'a>,
    keys: Region<'a>,
    scratch: Option<Scratch<'a>>,
}

impl Selector {
    /// 32-bit words of the keys of `rows` rows, rounded up to a multiple of a binding's alignment.
    fn words_of_keys(&self, rows: u64) -> u64 {
        (rows * keys_of_row(&self.chosen)).next_multiple_of(64)
    }

    /// Records the dispatches for the rows `start .. start + rows`.
    fn record(&self, r: &mut Recorder<'_>, call: &Call<'_>, start: u64, rows: u64) -> Result<()> {
        let plan = &self.plan;
        let given = &call.arguments;
        let arguments = Arguments {
            scores: given.scores.rows(&plan.scores, start, rows),
            lengths: given.lengths.elements(start, rows),
            starts: given.starts.elements(start, rows),
            candidates: match &plan.candidates {
                Some(candidates) => given.candidates.rows(&candidates.matrix, start, rows),
                None => Region::nothing(),
            },
            flags: given.flags,
        };
        let Arguments { mut scores, mut lengths, mut starts, flags, .. } = arguments;
        let mut of_gather = starts;
        if let (Some(prologue), Some(scratch)) = (&self.prologue, call.scratch) {
            prologue.record(r, &arguments, scratch, rows)?;
            (starts, lengths) = scratch.ranges(rows);
            of_gather = scratch.notes;
            if prologue.is_copied {
                scores = scratch.pooled.rows(&self.chosen.scores, 0, rows);
            }
        }
        let indices = call.indices.rows(&plan.indices, start, rows);
        // Blocks that are always chosen come first.
        let chosen = indices.elements(plan.blocks.forced_first as u64, u64::MAX / 16);
        let regions = [call.work, scores, lengths, starts, chosen, flags, call.keys];
        if plan.room() > 0 {
            self.record_choice(r, &regions, rows)?;
        }
        let Some(gather) = &self.gather else { return Ok(()) };
        let params = self.gather_params(rows, flags.bytes > 0);
        let pages = plan.pages.as_ref();
        let table = match pages {
            // Rows that name their tables may name any of them.
            Some(pages) if pages.mapped => call.tables,
            Some(pages) => call.tables.rows(&pages.block_table, start, rows),
            None => Region::nothing(),
        };
        let regions = [
            scores,
            of_gather,
            indices,
            table,
            call.requests.elements(start, rows),
            plan.values.map_or(call.values, |matrix| call.values.rows(&matrix, start, rows)),
            pages.map_or(call.slots, |pages| call.slots.rows(&pages.slots, start, rows)),
            flags,
        ];
        let outputs = rows * plan.k as u64;
        r.dispatch(gather, &regions, &params, outputs.div_ceil(GATHER_THREADS))
    }

    /// Records the dispatches that choose.
    fn record_choice(
        &self,
        r: &mut Recorder<'_>,
        regions: &[Region<'_>; 7],
        rows: u64,
    ) -> Result<()> {
        let plan = &self.chosen;
        let mut params = Params {
            cols: plan.scores.cols as u32,
            k: plan.k as u32,
            stride: plan.scores.row_stride as u32,
            chunks: chunks(plan) as u32,
            length_words: words(&plan.lengths),
            start_words: words(&plan.starts),
            index_words: (plan.indices.dtype.size() / 4) as u32,
            index_stride: plan.indices.row_stride as u32,
            has_flags: u32::from(regions[5].bytes > 0),
            low: 0,
            rows: rows as u32,
            groups: groups(plan) as u32,
            capacity: capacity(plan) as u32,
        };
        let jobs = rows * chunks(plan);
        if bounds(plan) {
            r.dispatch(&self.survey, regions, &params, jobs)?;
            r.dispatch(&self.bound, regions, &params, rows)?;
            r.dispatch(&self.collect, regions, &params, jobs)?;
            r.dispatch(&self.settle, regions, &params, rows)?;
        } else {
            r.dispatch(&self.clear, regions, &params, rows)?;
            for low in LOW {
                params.low = low;
                r.dispatch(&self.count, regions, &params, jobs)?;
                r.dispatch(&self.pick, regions, &params, rows)?;
            }
        }
        r.dispatch(&self.count_chosen, regions, &params, jobs)?;
        r.dispatch(&self.place, regions, &params, jobs)
    }
}

// SAFETY: as for `Supports` above.
unsafe impl Kernel<IndexerTopk> for Selector {
    fn workspace_size(&self) -> usize {
        let rows = self.window.min(self.plan.scores.rows as u64);
        let before = self.prologue.as_ref().map_or(0, |prologue| prologue.workspace_words(rows));
        (words_of_rows(&self.chosen, rows) + self.words_of_keys(rows) + before) as usize * 4
    }

    unsafe fn launch(
        &self,
        workspace: ViewMut<'_>,
        buffers: Buffers<'_>,
        stream: Stream<'_>,
    ) -> Result<()> {
        let Selector { gpu, plan, .. } = self;
        let mut workspace = gpu.region_of_workspace(workspace)?;
        let all = plan.scores.rows as u64;
        let max_rows = self.window.min(all);
        let call = Call {
            arguments: Arguments {
                scores: gpu.region(&buffers.scores)?,
                lengths: gpu.optional(&buffers.lengths)?,
                starts: gpu.optional(&buffers.starts)?,
                candidates: gpu.optional(&buffers.candidates)?,
                flags: gpu.optional_mut(buffers.flags)?,
            },
            tables: gpu.optional(&buffers.block_table)?,
            requests: gpu.optional(&buffers.requests)?,
            indices: gpu.region_mut(buffers.indices)?,
            values: gpu.optional_mut(buffers.values)?,
            slots: gpu.optional_mut(buffers.slots)?,
            work: workspace.take(words_of_rows(&self.chosen, max_rows)),
            keys: workspace.take(self.words_of_keys(max_rows)),
            scratch: self.prologue.as_ref().map(|p| p.scratch(workspace, max_rows)),
        };
        gpu.record("indexer_topk", stream, |r| {
            let mut start = 0;
            while start < all {
                let rows = self.window.min(all - start);
                self.record(r, &call, start, rows)?;
                start += rows;
            }
            Ok(())
        })
    }
}
