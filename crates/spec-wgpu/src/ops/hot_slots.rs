//! `hot_slots` on wgpu, in four dispatches: see the shader.

use bytemuck::{Pod, Zeroable};
#[cfg(test)]
use spec_conformance::launch_params::Header;
use spec_core::launch_params;
use spec_core::ops::HotSlots;
use spec_core::ops::hot_slots::{Buffers, Plan};
use spec_core::{DType, Error, Kernel, Matrix, Result, Status, Stream, Supports, ViewMut};

use crate::Wgpu;
use crate::memory::Region;
use crate::shader::Access::{Read, Write};
use crate::shader::{Program, Shader, shader};

pub(super) static SHADER: Shader = shader!("hot_slots");

/// Words of a workspace beyond which rows are served in several windows.
const MAX_WORDS: u64 = 1 << 25;

launch_params! {
    /// What the shaders of `hot_slots` take.
    struct Params: Pod, Zeroable {
        /// The first row of this dispatch.
        row0: u32,
        /// Rows of the state that a row may have.
        tables: u32,
        /// Wanted values of a row.
        m: u32,
        /// Slots of a request.
        h: u32,
        /// Keys of a row: a power of two, at least m.
        padded: u32,
        /// Workgroups that look at the columns of a row.
        groups_per_row: u32,
        /// Words of the workspace that a row has.
        row_words: u32,
        /// Elements from one row to the next: of `wanted`.
        wanted_stride: u32,
        /// The same of `resident`.
        resident_stride: u32,
        /// The same of `used`.
        used_stride: u32,
        /// The same of `block_table`.
        block_stride: u32,
        /// The same of `pages`.
        page_stride: u32,
        /// The same of `slots`.
        slots_stride: u32,
        /// The same of `fetch_positions`.
        positions_stride: u32,
        /// The same of `fetch_slots`.
        fetch_slots_stride: u32,
        /// Words of a step.
        step_words: u32,
        /// 1 where each row has a step, else 0.
        step_by_row: u32,
        /// Words of a tail start, 0 where there are none.
        tail_words: u32,
        /// Tail slots.
        tail: u32,
        /// Slots of a block.
        block_size: u32,
        /// Columns of `block_table`.
        blocks: u32,
        /// Entries of a page.
        page_size: u32,
        /// Columns of `pages`.
        page_count: u32,
        /// The number of a page that stands for none.
        null_page: i32,
        /// 1 where `requests` is there, else 0.
        has_requests: u32,
        /// 1 where `reset` is there, else 0.
        has_reset: u32,
        /// 1 where `block_table` is there, else 0.
        has_blocks: u32,
        /// 1 where `pages` is there, else 0.
        has_pages: u32,
        /// 1 where `flags` is there, else 0.
        has_flags: u32,
    }

    /// Threads of a workgroup.
    const THREADS: u64 = 256;
    /// Words that a row of the workspace has before its keys.
    const ROW_WORDS: u64 = 8;
}

#[cfg(test)]
pub(super) const HEADER: Header =
    Header { name: "hot_slots", includes: &["bound"], structs: &[Params::DESCRIPTION] };

struct Assigner {
    gpu: Wgpu,
    plan: Plan,
    prepare: Program,
    enter: Program,
    assign: Program,
    answer: Program,
    /// Rows that a dispatch serves.
    window: u64,
}

// SAFETY: the kernel keeps within the buffers and the workspace of the plan, whatever the data.
unsafe impl Supports<HotSlots> for Wgpu {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<HotSlots>>> {
        let program = |entry, bindings: &[_]| self.program(&SHADER, entry, bindings, &[]);
        Ok(Box::new(Assigner {
            gpu: self.clone(),
            plan: plan.clone(),
            prepare: program("prepare", &[Write, Read, Read, Read, Read, Read, Read, Write])?,
            enter: program("enter", &[Write, Read, Read, Read, Write, Read, Read, Write])?,
            assign: program("assign", &[Write, Write, Write, Read, Write, Write, Write, Write])?,
            answer: program("answer", &[Write, Read, Read, Read, Write])?,
            window: window(self, plan)?,
        }))
    }
}

fn padded(plan: &Plan) -> u64 {
    (plan.m() as u64).next_power_of_two()
}

/// Words of the workspace that a row has.
fn row_words(plan: &Plan) -> u64 {
    ROW_WORDS + 3 * padded(plan) + plan.h() as u64
}

/// Rows that a dispatch serves: all matrices of these rows, and whatever is bound whole, fit a
/// binding.
fn window(gpu: &Wgpu, plan: &Plan) -> Result<u64> {
    let state = [Some(plan.resident), Some(plan.used), plan.block_table, plan.pages];
    let state = state.iter().flatten();
    let by_row = [plan.wanted, plan.slots, plan.fetch_positions, plan.fetch_slots];
    let of = |matrix: &Matrix| gpu.window_of_rows(matrix, 1);
    let words = row_words(plan);
    // A workgroup has a row and some of its columns.
    let groups = u64::from(u32::MAX) / padded(plan).div_ceil(THREADS);
    let scratch = (gpu.window(4).min(MAX_WORDS.max(words)) / words).min(groups);
    let mut window = by_row.iter().map(of).min().unwrap_or(0).min(scratch);
    // Rows that `requests` names may be anywhere.
    let mut fits = plan.batch() as u64 <= gpu.window(8);
    if plan.mapped {
        fits &= state.clone().all(|matrix| plan.tables() as u64 <= of(matrix));
    } else {
        window = state.map(of).min().unwrap_or(0).min(window);
    }
    if window > 0 && fits {
        return Ok(window);
    }
    Err(too_large(gpu, plan))
}

fn too_large(gpu: &Wgpu, plan: &Plan) -> Error {
    let words = format!(
        "hot_slots: {} rows of {} values with {} tables of {} slots are more than bindings hold",
        plan.batch(),
        plan.m(),
        plan.tables(),
        plan.h(),
    );
    gpu.error(Status::NotImplemented, words)
}

impl Assigner {
    /// The rows of a table of the state that `rows` rows from `start` on may have: all of them where
    /// `requests` names them.
    fn state<'a>(
        &self,
        table: Region<'a>,
        matrix: Option<Matrix>,
        start: u64,
        rows: u64,
    ) -> Region<'a> {
        match matrix {
            Some(matrix) if !self.plan.mapped => table.rows(&matrix, start, rows),
            _ => table,
        }
    }

    fn params(&self, start: u64, rows: u64, has_flags: bool) -> Params {
        let plan = &self.plan;
        let words = |dtype: DType| (dtype.size() / 4) as u32;
        let stride = |matrix: Option<Matrix>| matrix.map_or(0, |m| m.row_stride as u32);
        let columns = |matrix: Option<Matrix>| matrix.map_or(0, |m| m.cols as u32);
        Params {
            row0: start as u32,
            // Without `requests`, a row has the row of the state with its own number.
            tables: if plan.mapped { plan.tables() as u32 } else { rows as u32 },
            m: plan.m() as u32,
            h: plan.h() as u32,
            padded: padded(plan) as u32,
            groups_per_row: padded(plan).div_ceil(THREADS) as u32,
            row_words: row_words(plan) as u32,
            wanted_stride: plan.wanted.row_stride as u32,
            resident_stride: plan.resident.row_stride as u32,
            used_stride: plan.used.row_stride as u32,
            block_stride: stride(plan.block_table),
            page_stride: stride(plan.pages),
            slots_stride: plan.slots.row_stride as u32,
            positions_stride: plan.fetch_positions.row_stride as u32,
            fetch_slots_stride: plan.fetch_slots.row_stride as u32,
            step_words: words(plan.step.dtype),
            step_by_row: u32::from(plan.step_by_row()),
            tail_words: plan.tail_starts.map_or(0, words),
            tail: plan.params.tail as u32,
            block_size: plan.params.block_size as u32,
            blocks: columns(plan.block_table),
            page_size: plan.params.page_size as u32,
            page_count: columns(plan.pages),
            null_page: plan.params.null_page,
            has_requests: u32::from(plan.mapped),
            has_reset: u32::from(plan.has_reset),
            has_blocks: u32::from(plan.block_table.is_some()),
            has_pages: u32::from(plan.pages.is_some()),
            has_flags: u32::from(has_flags),
        }
    }
}

// SAFETY: as for `Supports` above.
unsafe impl Kernel<HotSlots> for Assigner {
    fn workspace_size(&self) -> usize {
        (self.window.min(self.plan.batch() as u64) * row_words(&self.plan) * 4) as usize
    }

    unsafe fn launch(
        &self,
        workspace: ViewMut<'_>,
        b: Buffers<'_>,
        stream: Stream<'_>,
    ) -> Result<()> {
        let Assigner { gpu, plan, .. } = self;
        let work = gpu.region_of_workspace(workspace)?;
        let [wanted, step] = [gpu.region(&b.wanted)?, gpu.region(&b.step)?];
        let [requests, reset] = [gpu.optional(&b.requests)?, gpu.optional(&b.reset)?];
        let tail_starts = gpu.optional(&b.tail_starts)?;
        let [blocks, pages] = [gpu.optional(&b.block_table)?, gpu.optional(&b.pages)?];
        let [resident, used] = [gpu.region_mut(b.resident)?, gpu.region_mut(b.used)?];
        let [slots, fetches] = [gpu.region_mut(b.slots)?, gpu.region_mut(b.fetches)?];
        let positions = gpu.region_mut(b.fetch_positions)?;
        let fetch_slots = gpu.region_mut(b.fetch_slots)?;
        let flags = gpu.optional_mut(b.flags)?;
        let none = Region::nothing();
        let batch = plan.batch() as u64;
        gpu.record("hot_slots", stream, |r| {
            let mut start = 0;
            while start < batch {
                let rows = self.window.min(batch - start);
                let params = self.params(start, rows, flags.bytes > 0);
                let work = work.elements(0, rows * row_words(plan));
                let known = [work, requests, step, reset, tail_starts];
                let known = [&known[..], &[none, none, flags]].concat();
                r.dispatch(&self.prepare, &known, &params, rows)?;
                let columns = rows * u64::from(params.groups_per_row);
                let wanted = wanted.rows(&plan.wanted, start, rows);
                let pages = self.state(pages, plan.pages, start, rows);
                let blocks = self.state(blocks, plan.block_table, start, rows);
                let slots = slots.rows(&plan.slots, start, rows);
                let entered = [work, wanted, pages, blocks, slots, none, none, flags];
                r.dispatch(&self.enter, &entered, &params, columns)?;
                let assigned = [
                    work,
                    self.state(resident, Some(plan.resident), start, rows),
                    self.state(used, Some(plan.used), start, rows),
                    blocks,
                    positions.rows(&plan.fetch_positions, start, rows),
                    fetch_slots.rows(&plan.fetch_slots, start, rows),
                    fetches.elements(start, rows),
                    flags,
                ];
                r.dispatch(&self.assign, &assigned, &params, rows)?;
                r.dispatch(&self.answer, &entered[..5], &params, columns)?;
                start += rows;
            }
            Ok(())
        })
    }
}
