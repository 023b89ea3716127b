//! What else may be asked of `moe_align`: the token of each place and how far each block is filled, by
//! a dispatch after the others.

use bytemuck::{Pod, Zeroable};
#[cfg(test)]
use spec_conformance::launch_params::Header;
use spec_core::ops::moe_align::Plan;
use spec_core::{Result, launch_params};

use crate::Wgpu;
use crate::launch::Recorder;
use crate::memory::Region;
use crate::shader::Access::{Read, Write};
use crate::shader::{Program, Shader, shader};

pub(super) static SHADER: Shader = shader!("moe_align_layout");

launch_params! {
    /// What the shader of `moe_align` takes that says more of the layout.
    struct Params: Pod, Zeroable {
        /// Picks of all tokens.
        picks: u32,
        /// Picks of a token.
        k: u32,
        /// Local experts.
        locals: u32,
        /// Places of a block.
        block_size: u32,
        /// Places of `sorted_ids`.
        capacity: u32,
        /// Blocks of `sorted_ids`.
        blocks: u32,
        /// 1 where `sorted_tokens` is there, else 0.
        has_tokens: u32,
        /// 1 where `block_limits` is there, else 0.
        has_limits: u32,
        /// 1 where `num_blocks` is there, else 0.
        has_num_blocks: u32,
        unused_1: u32,
        unused_2: u32,
        unused_3: u32,
    }

    /// Threads of a workgroup.
    const THREADS: u64 = 256;
}

#[cfg(test)]
pub(super) const HEADER: Header =
    Header { name: "moe_align_layout", includes: &["bound"], structs: &[Params::DESCRIPTION] };

/// Says more of the layout.
pub(super) struct Layout {
    program: Program,
    plan: Plan,
}

impl Layout {
    pub(super) fn new(gpu: &Wgpu, plan: &Plan) -> Result<Self> {
        let bindings = [Read, Read, Read, Read, Read, Write, Write, Write];
        let program = gpu.program(&SHADER, "lay_out", &bindings, &[])?;
        Ok(Layout { program, plan: plan.clone() })
    }

    /// Records the dispatch. The regions are `sorted_ids`, `block_experts`, `counts`, `offsets` and
    /// `num_padded`, then `sorted_tokens`, `block_limits` and `num_blocks`, each of which may be
    /// nothing where it is not asked for.
    pub(super) fn record(
        &self,
        r: &mut Recorder<'_>,
        regions: [Region<'_>; 8],
        [has_tokens, has_limits, has_num_blocks]: [bool; 3],
    ) -> Result<()> {
        let Plan { params, topk_ids, capacity, .. } = &self.plan;
        let params = Params {
            picks: self.plan.picks() as u32,
            k: topk_ids.cols.max(1) as u32,
            locals: params.local_experts as u32,
            block_size: params.block_size as u32,
            capacity: *capacity as u32,
            blocks: self.plan.blocks() as u32,
            has_tokens: u32::from(has_tokens),
            has_limits: u32::from(has_limits),
            has_num_blocks: u32::from(has_num_blocks),
            unused_1: 0,
            unused_2: 0,
            unused_3: 0,
        };
        // At least one workgroup, for `num_blocks`.
        let groups = (*capacity as u64).div_ceil(THREADS).max(1);
        r.dispatch(&self.program, &regions, &params, groups)
    }
}
