//! Distinct values of top-k rows: one workgroup per request.

use std::ops::Range;

use bytemuck::{Pod, Zeroable};
#[cfg(test)]
use spec_conformance::launch_params::Header;
use spec_core::launch_params;
use spec_core::ops::DeduplicateTopk;
use spec_core::ops::deduplicate_topk::{Buffers, Plan};
use spec_core::{DType, Error, Kernel, Matrix, Result, Status, Stream, Supports, ViewMut};

use super::unique::Sorter;
use crate::Wgpu;
use crate::launch::Recorder;
use crate::memory::Region;
use crate::shader::{Access, Program, Shader, shader};

pub(super) static SHADER: Shader = shader!("deduplicate_topk");

/// Launch shapes, by the workgroup memory that they need: threads, 32-bit words of the bitmap or
/// tile (an odd number per thread avoids bank conflicts), and values sorted at once.
const LARGE: Shape = Shape { threads: 1024, pool: 1024 * 9, tile: 8192 };
const PLAIN: Shape = Shape { threads: 256, pool: 256 * 13, tile: 2048 };

/// The largest number of values of a request that one workgroup sorts in reasonable time, and
/// within the allowed number of loop iterations: see the rules in [`super`].
const LONGEST: usize = 1 << 17;

launch_params! {
    /// What the shaders of `deduplicate_topk` take.
    struct Params: Pod, Zeroable {
        /// Rows of a request.
        rows: u32,
        /// Values of a row.
        k: u32,
        /// Values from one row to the next.
        input_stride: u32,
        /// Values from one request's output to the next.
        output_stride: u32,
        /// Values of a request: rows * k.
        n: u32,
        /// Values that are sorted at once, a power of two: TILE, or less where n is less.
        sort_size: u32,
        /// 1 where `counts` is there, else 0.
        has_counts: u32,
        /// The most turns that a bitmap may take.
        max_turns: u32,
        /// Places from one row of `inverse` to the next.
        inverse_stride: u32,
        /// Requests of this dispatch, for `locate`.
        requests: u32,
    }
}

#[cfg(test)]
pub(super) const HEADER: Header =
    Header { name: "deduplicate_topk", includes: &["bound"], structs: &[Params::DESCRIPTION] };

#[derive(Clone, Copy)]
struct Shape {
    threads: u32,
    pool: u32,
    tile: u32,
}

impl Shape {
    fn of(gpu: &Wgpu) -> Self {
        let limits = &gpu.0.limits;
        // The bitmap or tile, two words per thread for prefix sums, and a few more.
        let bytes = (LARGE.pool + 2 * LARGE.threads + 16) * 4;
        let large = limits.max_compute_workgroup_storage_size >= bytes
            && limits.max_compute_invocations_per_workgroup >= LARGE.threads
            && limits.max_compute_workgroup_size_x >= LARGE.threads;
        if large { LARGE } else { PLAIN }
    }
}

struct Deduplicate {
    gpu: Wgpu,
    plan: Plan,
    main: Program,
    locate: Option<Locate>,
    shape: Shape,
    /// The largest number of requests whose tensors fit one binding each.
    window: u64,
}

// SAFETY: the kernel keeps within the buffers and the workspace of the plan, whatever the data.
unsafe impl Supports<DeduplicateTopk> for Wgpu {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<DeduplicateTopk>>> {
        let shape = Shape::of(self);
        let constants = [("THREADS", shape.threads), ("POOL", shape.pool), ("TILE", shape.tile)];
        let bindings = [Access::Read, Access::Write, Access::Write, Access::Write];
        let of_inverse =
            plan.inverse.map_or(u64::MAX, |m| self.window_of_rows(&m, plan.mtp_step as u64));
        if plan.unique.cols == 0 {
            let clear = self.program(&SHADER, "clear", &bindings, &constants)?;
            let (gpu, threads) = (self.clone(), shape.threads);
            return Ok(Box::new(Empty { gpu, plan: plan.clone(), clear, threads }));
        }
        let main = self.program(&SHADER, "main", &bindings, &constants)?;
        if of_inverse == 0 {
            return Err(too_long(self, plan));
        }
        let locate = plan.inverse.map(|matrix| Locate::new(self, matrix, shape, &constants));
        let locate = locate.transpose()?;
        if plan.unique.cols > LONGEST {
            return Ok(Box::new(Long::new(self, plan, locate, &bindings, &constants)?));
        }
        let (gpu, plan) = (self.clone(), plan.clone());
        let mut kernel = Deduplicate { gpu, plan, main, locate, shape, window: u64::MAX };
        let plan = &kernel.plan;
        let scratch = self.window(4).checked_div(kernel.workspace_words()).unwrap_or(u64::MAX);
        kernel.window = scratch
            .min(self.window_of_rows(&plan.indices, plan.mtp_step as u64))
            .min(self.window_of_rows(&plan.unique, 1))
            .min(of_inverse);
        if kernel.window == 0 {
            return Err(too_long(self, &kernel.plan));
        }
        Ok(Box::new(kernel))
    }
}

fn too_long(gpu: &Wgpu, plan: &Plan) -> Error {
    let words = format!(
        "deduplicate_topk: a request of {} values needs more than a binding of {} bytes",
        plan.unique.cols, gpu.0.max_binding
    );
    gpu.error(Status::NotImplemented, words)
}

impl Params {
    fn of(plan: &Plan, shape: Shape) -> Self {
        let Plan { mtp_step, indices, unique, has_counts, .. } = plan;
        let n = unique.cols as u32;
        Params {
            rows: *mtp_step as u32,
            k: indices.cols as u32,
            input_stride: indices.row_stride as u32,
            output_stride: unique.row_stride as u32,
            n,
            sort_size: shape.tile.min(n.max(2).next_power_of_two()),
            has_counts: u32::from(*has_counts),
            // Values that need more bitmap turns than this are sorted instead. A turn reads all
            // values, and clears and counts the bitmap; sorting n values takes log^2 n steps.
            max_turns: 4 + (n / 1024).min(8),
            inverse_stride: plan.inverse.map_or(0, |matrix| matrix.row_stride as u32),
            requests: 0,
        }
    }
}

/// The dispatch that writes `inverse`, once the rows of `unique` are complete.
struct Locate {
    program: Program,
    inverse: Matrix,
    threads: u64,
}

impl Locate {
    fn new(
        gpu: &Wgpu,
        inverse: Matrix,
        shape: Shape,
        constants: &[(&'static str, u32)],
    ) -> Result<Self> {
        let bindings = [Access::Read, Access::Write, Access::Write, Access::Write, Access::Write];
        let program = gpu.program(&SHADER, "locate", &bindings, constants)?;
        Ok(Locate { program, inverse, threads: u64::from(shape.threads) })
    }

    /// Writes the places of some requests, whose first row is `row`.
    fn record(
        &self,
        r: &mut Recorder<'_>,
        [indices, output, inverse]: [Region<'_>; 3],
        params: &Params,
        rows: Range<u64>,
    ) -> Result<()> {
        let count = rows.end - rows.start;
        let inverse = inverse.rows(&self.inverse, rows.start, count);
        let values = count * self.inverse.cols as u64;
        let params = Params { requests: count as u32 / params.rows, ..*params };
        let regions = [indices, output, Region::nothing(), Region::nothing(), inverse];
        r.dispatch(&self.program, &regions, &params, values.div_ceil(self.threads))
    }
}

impl Deduplicate {
    /// 32-bit words of workspace that a request needs: two areas to merge between, if the request
    /// has more values than workgroup memory can sort.
    fn workspace_words(&self) -> u64 {
        let n = self.plan.unique.cols;
        if n > self.shape.tile as usize { 2 * n as u64 } else { 0 }
    }
}

// SAFETY: as for `Supports` above.
unsafe impl Kernel<DeduplicateTopk> for Deduplicate {
    fn workspace_size(&self) -> usize {
        self.plan.batch * self.workspace_words() as usize * 4
    }

    unsafe fn launch(
        &self,
        workspace: ViewMut<'_>,
        buffers: Buffers<'_>,
        stream: Stream<'_>,
    ) -> Result<()> {
        let gpu = &self.gpu;
        let indices = gpu.region(&buffers.indices)?;
        let output = gpu.region_mut(buffers.unique)?;
        let counts = buffers.counts.map_or(Ok(Region::nothing()), |c| gpu.region_mut(c))?;
        let inverse = gpu.optional_mut(buffers.inverse)?;
        let workspace = gpu.region_of_workspace(workspace)?;
        let scratch = self.workspace_words();
        let Plan { mtp_step, batch, .. } = self.plan;
        let (step, batch) = (mtp_step as u64, batch as u64);
        let params = Params::of(&self.plan, self.shape);
        gpu.record("deduplicate_topk", stream, |r| {
            let mut start = 0;
            while start < batch {
                let requests = self.window.min(batch - start);
                let regions = [
                    indices.rows(&self.plan.indices, start * step, requests * step),
                    output.rows(&self.plan.unique, start, requests),
                    counts.elements(start, requests),
                    workspace.elements(start * scratch, requests * scratch),
                ];
                r.dispatch(&self.main, &regions, &params, requests)?;
                if let Some(locate) = &self.locate {
                    let rows = start * step..(start + requests) * step;
                    locate.record(r, [regions[0], regions[1], inverse], &params, rows)?;
                }
                start += requests;
            }
            Ok(())
        })
    }
}

/// Requests without values: only their counts are written.
struct Empty {
    gpu: Wgpu,
    plan: Plan,
    clear: Program,
    threads: u32,
}

// SAFETY: as for `Supports` above.
unsafe impl Kernel<DeduplicateTopk> for Empty {
    fn workspace_size(&self) -> usize {
        0
    }

    unsafe fn launch(
        &self,
        _: ViewMut<'_>,
        buffers: Buffers<'_>,
        stream: Stream<'_>,
    ) -> Result<()> {
        let Empty { gpu, plan, clear, threads } = self;
        let counts = buffers.counts.map_or(Ok(Region::nothing()), |c| gpu.region_mut(c))?;
        let batch = if plan.has_counts { plan.batch as u64 } else { 0 };
        gpu.record("deduplicate_topk", stream, |r| {
            let window = gpu.window(4);
            let mut start = 0;
            while start < batch {
                let requests = window.min(batch - start);
                let none = Region::nothing();
                let regions = [none, none, counts.elements(start, requests), none];
                let params = Params { n: requests as u32, ..Params::zeroed() };
                r.dispatch(clear, &regions, &params, requests.div_ceil(u64::from(*threads)))?;
                start += requests;
            }
            Ok(())
        })
    }
}

/// Requests too long for a workgroup: the sort of `unique` handles one after the other.
struct Long {
    gpu: Wgpu,
    plan: Plan,
    flatten: Program,
    finish: Program,
    locate: Option<Locate>,
    threads: u32,
    params: Params,
    sorter: Sorter,
}

impl Long {
    fn new(
        gpu: &Wgpu,
        plan: &Plan,
        locate: Option<Locate>,
        bindings: &[Access],
        constants: &[(&'static str, u32)],
    ) -> Result<Self> {
        let fits = gpu.window_of_rows(&plan.indices, plan.mtp_step as u64) > 0
            && gpu.window_of_rows(&plan.unique, 1) > 0;
        if !fits {
            return Err(too_long(gpu, plan));
        }
        let shape = Shape::of(gpu);
        Ok(Long {
            gpu: gpu.clone(),
            plan: plan.clone(),
            flatten: gpu.program(&SHADER, "flatten", bindings, constants)?,
            finish: gpu.program(&SHADER, "finish", bindings, constants)?,
            locate,
            threads: shape.threads,
            params: Params::of(plan, shape),
            sorter: Sorter::new(gpu, DType::U32, plan.unique.cols as u64)?,
        })
    }
}

// SAFETY: as for `Supports` above.
unsafe impl Kernel<DeduplicateTopk> for Long {
    fn workspace_size(&self) -> usize {
        // A count of two words, the keys, and the workspace of the sort.
        (2 + self.plan.unique.cols + self.sorter.workspace_words() as usize) * 4
    }

    unsafe fn launch(
        &self,
        workspace: ViewMut<'_>,
        buffers: Buffers<'_>,
        stream: Stream<'_>,
    ) -> Result<()> {
        let gpu = &self.gpu;
        let indices = gpu.region(&buffers.indices)?;
        let output = gpu.region_mut(buffers.unique)?;
        let counts = buffers.counts.map_or(Ok(Region::nothing()), |c| gpu.region_mut(c))?;
        let inverse = gpu.optional_mut(buffers.inverse)?;
        let mut workspace = gpu.region_of_workspace(workspace)?;
        let (step, n) = (self.plan.mtp_step as u64, self.plan.unique.cols as u64);
        let count = workspace.take(2);
        let keys = workspace.take(n);
        let groups = n.div_ceil(u64::from(self.threads));
        gpu.record("deduplicate_topk", stream, |r| {
            for request in 0..self.plan.batch as u64 {
                let rows = indices.rows(&self.plan.indices, request * step, step);
                let row = output.rows(&self.plan.unique, request, 1);
                let counter = counts.elements(request, 1);
                let none = Region::nothing();
                r.dispatch(&self.flatten, &[rows, none, none, keys], &self.params, groups)?;
                self.sorter.record(r, [keys, row, count], None, workspace)?;
                let regions = [none, row, counter, count];
                r.dispatch(&self.finish, &regions, &self.params, groups)?;
                if let Some(locate) = &self.locate {
                    let tokens = request * step..(request + 1) * step;
                    locate.record(r, [rows, row, inverse], &self.params, tokens)?;
                }
            }
            Ok(())
        })
    }
}
