//! Grouping by expert, in four dispatches. In the large dispatches, each workgroup handles a tile
//! of picks.

use bytemuck::{Pod, Zeroable};
#[cfg(test)]
use spec_conformance::launch_params::Header;
use spec_core::launch_params;
use spec_core::ops::MoeAlign;
use spec_core::ops::moe_align::{Buffers, Plan};
use spec_core::{Kernel, Result, Status, Stream, Supports, ViewMut};

use crate::Wgpu;
use crate::memory::Region;
use crate::ops::moe_align_layout::Layout;
use crate::shader::Access::{Read, Write};
use crate::shader::{Program, Shader, shader};

pub(super) static SHADER: Shader = shader!("moe_align");

/// The largest number of iterations of a workgroup, each of which looks at the pick of every
/// thread: few enough for the rules in [`super`].
const MAX_TURNS: usize = 128;
/// The number of tiles that fill a large GPU: above this number, tiles grow instead.
const FULL: usize = 512;

launch_params! {
    /// What the shaders of `moe_align` take.
    struct Params: Pod, Zeroable {
        /// Picks of all tokens.
        picks: u32,
        /// Picks of a token.
        k: u32,
        /// Picks from one token's first to the next one's.
        stride: u32,
        /// Words of an id.
        words: u32,
        /// Experts.
        experts: u32,
        /// Local experts.
        locals: u32,
        /// Places that a run's length is a multiple of.
        block_size: u32,
        /// Places of `sorted_ids`.
        capacity: u32,
        /// Blocks of `sorted_ids`.
        blocks: u32,
        /// Tiles of the picks, a workgroup each.
        tiles: u32,
        /// Picks of a thread, at most.
        turns: u32,
        /// 1 where `expert_map` is there, else 0.
        has_map: u32,
        /// 1 where `inverse` is there, else 0.
        has_inverse: u32,
        /// 1 where `flags` is there, else 0.
        has_flags: u32,
    }

    /// Threads of a workgroup.
    const THREADS: usize = 256;
}

#[cfg(test)]
pub(super) const HEADER: Header =
    Header { name: "moe_align", includes: &["bound"], structs: &[Params::DESCRIPTION] };

struct Aligner {
    gpu: Wgpu,
    plan: Plan,
    count: Program,
    sum: Program,
    lay_out: Program,
    place: Program,
    tiles: usize,
    turns: usize,
    layout: Option<Layout>,
}

// SAFETY: the kernel keeps within the buffers and the workspace of the plan, whatever the data.
unsafe impl Supports<MoeAlign> for Wgpu {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<MoeAlign>>> {
        let program = |entry| {
            let bindings = [Write, Read, Read, Write, Write, Write, Write, Write];
            self.program(&SHADER, entry, &bindings, &[])
        };
        let turns = plan.picks().div_ceil(FULL * THREADS).clamp(1, MAX_TURNS);
        let aligner = Aligner {
            gpu: self.clone(),
            plan: plan.clone(),
            count: program("count")?,
            sum: program("sum")?,
            lay_out: program("lay_out")?,
            place: program("place")?,
            tiles: plan.picks().div_ceil(turns * THREADS),
            turns,
            layout: plan.has_layout.then(|| Layout::new(self, plan)).transpose()?,
        };
        // A thread that fills the outputs, or places the picks of a tile, has the most iterations.
        let limit = 60_000;
        let filled = aligner.groups() as usize * THREADS * limit;
        let fits = self.window_of_rows(&plan.topk_ids, 1) >= plan.topk_ids.rows as u64
            && plan.capacity as u64 <= self.window(4)
            && plan.params.experts as u64 <= self.window(4)
            && aligner.words() <= self.window(4)
            && aligner.tiles <= limit
            && plan.capacity <= filled;
        if !fits {
            let words = format!(
                "moe_align: {} picks to {} places are more than a binding of {} bytes or a \
                 thread's turns",
                plan.picks(),
                plan.capacity,
                self.0.max_binding,
            );
            return Err(self.error(Status::NotImplemented, words));
        }
        Ok(Box::new(aligner))
    }
}

impl Aligner {
    /// 32-bit words of the workspace: counts of each tile, sums, offsets.
    fn words(&self) -> u64 {
        (self.tiles as u64 + 2) * self.plan.params.local_experts as u64 + 1
    }

    /// The number of workgroups that count and place: one per tile, and enough to fill the outputs.
    fn groups(&self) -> u64 {
        let places = self.plan.capacity.div_ceil(THREADS * 64);
        self.tiles.max(places.min(FULL)).max(1) as u64
    }

    fn params(&self, has_inverse: bool, has_flags: bool) -> Params {
        let Plan { params, topk_ids, has_map, capacity, .. } = &self.plan;
        Params {
            picks: self.plan.picks() as u32,
            k: topk_ids.cols.max(1) as u32,
            stride: topk_ids.row_stride as u32,
            words: (topk_ids.dtype.size() / 4) as u32,
            experts: params.experts as u32,
            locals: params.local_experts as u32,
            block_size: params.block_size as u32,
            capacity: *capacity as u32,
            blocks: self.plan.blocks() as u32,
            tiles: self.tiles as u32,
            turns: self.turns as u32,
            has_map: u32::from(*has_map),
            has_inverse: u32::from(has_inverse),
            has_flags: u32::from(has_flags),
        }
    }
}

// SAFETY: as for `Supports` above.
unsafe impl Kernel<MoeAlign> for Aligner {
    fn workspace_size(&self) -> usize {
        self.words() as usize * 4
    }

    unsafe fn launch(
        &self,
        workspace: ViewMut<'_>,
        buffers: Buffers<'_>,
        stream: Stream<'_>,
    ) -> Result<()> {
        let gpu = &self.gpu;
        let none = Region::nothing();
        let work = gpu.region_of_workspace(workspace)?;
        let ids = gpu.region(&buffers.topk_ids)?;
        let map = buffers.expert_map.as_ref().map_or(Ok(none), |map| gpu.region(map))?;
        let sorted = gpu.region_mut(buffers.sorted_ids)?;
        let blocks = gpu.region_mut(buffers.block_experts)?;
        let counts = gpu.region_mut(buffers.counts)?;
        let offsets = gpu.region_mut(buffers.offsets)?;
        let num_padded = gpu.region_mut(buffers.num_padded)?;
        let inverse = buffers.inverse.map_or(Ok(none), |inverse| gpu.region_mut(inverse))?;
        let flags = buffers.flags.map_or(Ok(none), |flags| gpu.region_mut(flags))?;
        let more = [buffers.sorted_tokens, buffers.block_limits, buffers.num_blocks];
        let has_more = more.each_ref().map(Option::is_some);
        let [tokens, limits, used] = more.map(|output| gpu.optional_mut(output));
        let [tokens, limits, used] = [tokens?, limits?, used?];
        let params = self.params(inverse.bytes > 0, flags.bytes > 0);
        let groups = self.groups();
        gpu.record("moe_align", stream, |r| {
            let count = [work, ids, map, sorted, none, none, none, flags];
            r.dispatch(&self.count, &count, &params, groups)?;
            let sum = [work, none, none, none, none, none, none, none];
            r.dispatch(&self.sum, &sum, &params, self.plan.params.local_experts as u64)?;
            let lay_out = [work, none, none, none, none, counts, offsets, num_padded];
            r.dispatch(&self.lay_out, &lay_out, &params, 1)?;
            let place = [work, ids, map, sorted, blocks, inverse, none, none];
            r.dispatch(&self.place, &place, &params, groups)?;
            let Some(layout) = &self.layout else { return Ok(()) };
            let regions = [sorted, blocks, counts, offsets, num_padded, tokens, limits, used];
            layout.record(r, regions, has_more)
        })
    }
}
