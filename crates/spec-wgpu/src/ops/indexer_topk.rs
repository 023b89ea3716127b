//! The best positions of rows: a radix select, a workgroup a chunk of a row.

use bytemuck::{Pod, Zeroable};
use spec_core::ops::IndexerTopk;
use spec_core::ops::indexer_topk::{Buffers, Plan};
use spec_core::{Kernel, Result, Status, Stream, Supports, Vector, ViewMut};

use super::float_code;
use crate::Wgpu;
use crate::memory::Region;
use crate::shader::Access::{Read, Write};
use crate::shader::{Program, Shader, shader};

pub(super) static SHADER: Shader = shader!("indexer_topk");

/// Scores of a chunk, words of a row's state, and digits, as the shader has them.
const CHUNK: usize = 4096;
const STATE: u64 = 4;
const DIGITS: u64 = 256;
/// Bits of a key below each digit.
const LOW: [u32; 4] = [24, 16, 8, 0];

/// The shader's parameters, in its order.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    cols: u32,
    k: u32,
    stride: u32,
    chunks: u32,
    dtype: u32,
    length_words: u32,
    start_words: u32,
    index_words: u32,
    index_stride: u32,
    has_flags: u32,
    low: u32,
    rows: u32,
}

struct Selector {
    gpu: Wgpu,
    plan: Plan,
    clear: Program,
    count: Program,
    pick: Program,
    tally: Program,
    place: Program,
    /// Rows whose scores, positions and intermediate results fit a binding each.
    window: u64,
}

// SAFETY: the kernel keeps within what the plan describes, whatever the data.
unsafe impl Supports<IndexerTopk> for Wgpu {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<IndexerTopk>>> {
        let program = |entry| {
            let bindings = [Write, Read, Read, Read, Write, Write];
            self.program(&SHADER, entry, &bindings, &[])
        };
        let window = self
            .window_of_rows(&plan.scores, 1)
            .min(self.window_of_rows(&plan.indices, 1))
            .min(self.window(4) / words_of_row(plan));
        if window == 0 {
            let words = format!(
                "indexer_topk: a row of {} scores needs more than a binding of {} bytes",
                plan.scores.cols, self.0.max_binding
            );
            return Err(self.error(Status::NotImplemented, words));
        }
        Ok(Box::new(Selector {
            gpu: self.clone(),
            plan: plan.clone(),
            clear: program("clear")?,
            count: program("count")?,
            pick: program("pick")?,
            tally: program("tally")?,
            place: program("place")?,
            window,
        }))
    }
}

/// Chunks of a row: one also where it has no scores, to write what there is to write.
fn chunks(plan: &Plan) -> u64 {
    plan.scores.cols.div_ceil(CHUNK).max(1) as u64
}

/// Words of workspace of a row.
fn words_of_row(plan: &Plan) -> u64 {
    STATE + DIGITS + 2 * chunks(plan)
}

fn words(vector: &Option<Vector>) -> u32 {
    vector.map_or(0, |vector| (vector.dtype.size() / 4) as u32)
}

// SAFETY: as above.
unsafe impl Kernel<IndexerTopk> for Selector {
    fn workspace_size(&self) -> usize {
        let rows = self.window.min(self.plan.scores.rows as u64);
        (rows * words_of_row(&self.plan)) as usize * 4
    }

    unsafe fn launch(
        &self,
        workspace: ViewMut<'_>,
        buffers: Buffers<'_>,
        stream: Stream<'_>,
    ) -> Result<()> {
        let Selector { gpu, plan, .. } = self;
        let none = Ok(Region::nothing());
        let work = gpu.region_of_workspace(workspace)?;
        let scores = gpu.region(&buffers.scores)?;
        let lengths = buffers.lengths.as_ref().map_or(none, |view| gpu.region(view))?;
        let none = Ok(Region::nothing());
        let starts = buffers.starts.as_ref().map_or(none, |view| gpu.region(view))?;
        let indices = gpu.region_mut(buffers.indices)?;
        let flags = buffers.flags.map_or(Ok(Region::nothing()), |flags| gpu.region_mut(flags))?;
        let all = plan.scores.rows as u64;
        gpu.record("indexer_topk", stream, |r| {
            let mut start = 0;
            while start < all {
                let rows = self.window.min(all - start);
                let regions = [
                    work,
                    scores.rows(&plan.scores, start, rows),
                    lengths.elements(start, rows),
                    starts.elements(start, rows),
                    indices.rows(&plan.indices, start, rows),
                    flags,
                ];
                let mut params = Params {
                    cols: plan.scores.cols as u32,
                    k: plan.k as u32,
                    stride: plan.scores.row_stride as u32,
                    chunks: chunks(plan) as u32,
                    dtype: float_code(plan.scores.dtype),
                    length_words: words(&plan.lengths),
                    start_words: words(&plan.starts),
                    index_words: (plan.indices.dtype.size() / 4) as u32,
                    index_stride: plan.indices.row_stride as u32,
                    has_flags: u32::from(flags.bytes > 0),
                    low: 0,
                    rows: rows as u32,
                };
                let jobs = rows * chunks(plan);
                r.dispatch(&self.clear, &regions, &params, rows)?;
                for low in LOW {
                    params.low = low;
                    r.dispatch(&self.count, &regions, &params, jobs)?;
                    r.dispatch(&self.pick, &regions, &params, rows)?;
                }
                r.dispatch(&self.tally, &regions, &params, jobs)?;
                r.dispatch(&self.place, &regions, &params, jobs)?;
                start += rows;
            }
            Ok(())
        })
    }
}
