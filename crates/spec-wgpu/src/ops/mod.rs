//! The operators: one file per operator, under the operator's own name, with a shader of the same
//! name in `shaders/`.
//!
//! # How an operator's file looks
//!
//! ```ignore
//! use crate::shader::{Access, Program, Shader, shader};
//!
//! static SHADER: Shader = shader!("deduplicate_topk");
//!
//! impl Supports<DeduplicateTopk> for Wgpu {
//!     fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<DeduplicateTopk>>> {
//!         // Pipelines: entry point, accesses of @binding(1).., overrides.
//!         let main = self.program(&SHADER, "main", &[Access::Read, Access::Write], &[("TILE", 2048)])?;
//!         Ok(Box::new(Deduplicate { gpu: self.clone(), plan: plan.clone(), main }))
//!     }
//! }
//!
//! impl Kernel<DeduplicateTopk> for Deduplicate {
//!     fn workspace_size(&self) -> usize { .. }
//!
//!     fn launch(&self, workspace: ViewMut<'_>, buffers: Buffers<'_>, stream: Stream<'_>) -> Result<()> {
//!         // 1. Regions: byte ranges of buffers. A workspace is shared out by `take`.
//!         let indices = self.gpu.region(&buffers.indices)?;
//!         let unique = self.gpu.region_mut(buffers.unique)?;
//!         let mut workspace = self.gpu.region_of_workspace(workspace)?;
//!         let counters = workspace.take(256);
//!         // 2. Dispatches, in order, each seeing what those before wrote. `params` is the
//!         //    struct of `launch_params!`: the shader's parameters, of 32 bits each.
//!         let params = Params { n: self.plan.batch as u32 };
//!         self.gpu.record("deduplicate_topk", stream, |r| {
//!             r.dispatch(&self.main, &[indices, unique], &params, workgroups)
//!         })
//!     }
//! }
//! ```
//!
//! The shader declares `@group(0) @binding(0) var<uniform> params: Params`. The struct `Params`
//! begins with `at: At` (`include/bound.wgsl`) and goes on with the parameters. The shader gets it
//! by `//!include params/NAME`; `cargo xtask params` writes that file from the struct in Rust, with
//! the constants that follow the struct. The constants of several operators are `params/shared`.
//! Storage buffers follow from `@binding(1)` on, as `array<u32>`, `array<vec2<u32>>` (64-bit
//! elements) or atomics. Element `i` of the region at `@binding(n)` is at index `params.at.bN + i`.
//! For f16 and bf16, this index counts halves of 32-bit words.
//!
//! # Rules
//! * A dispatch binds at most eight storage buffers (more only where another way exists without
//!   them: see `unique`). An operator with more small vectors gathers them into its workspace in
//!   early dispatches and writes its results in late ones. Shaders do this, not the encoder's copy
//!   commands: those commands would need usages beyond `STORAGE` on the caller's buffers.
//! * Every part of a workspace is bound with `Access::Write`: a buffer cannot be read-only and
//!   written in the same dispatch. ([`crate::shader::Program`] handles arguments that share one
//!   buffer.)
//! * No bound region is larger than [`crate::Wgpu::window`] allows: split larger regions over
//!   several dispatches with [`crate::memory::Region::elements`].
//! * Workgroup memory is not zeroed. A workgroup has at most 256 threads and 16 KiB unless the
//!   program was made for larger limits.
//! * Parameters are cached by content: keep values that vary from call to call (a random seed, say)
//!   in buffers.
//! * A thread makes fewer than 65536 loop iterations in one dispatch, all loops together: Mesa's
//!   lavapipe (seen with 22.3) silently leaves every loop after that many iterations. For more
//!   work, use more threads or more dispatches.
//! * A workgroup whose number is not below `params.at.groups` returns before its first barrier.

mod indexer_topk_blocks;
mod moe_align_layout;
mod ngram;
#[cfg(test)]
mod routes;
mod shared;
mod unique_inverse;

macro_rules! modules {
    ($($module:ident: $operator:ident,)+) => { $( mod $module; )+ };
}

spec_core::for_each_operator!(modules);

use bytemuck::{Pod, Zeroable};
use spec_core::Matrix;
use spec_core::launch_params::{Field, Part};

/// How a shader finds the elements of a matrix of integers.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Layout {
    /// Words of an element.
    words: u32,
    /// Elements from one row to the next.
    stride: u32,
}

impl Field for Layout {
    const DEVICE: &'static str = "u32";
    const PARTS: &'static [Part] = &[
        Part { name: "words", offset: std::mem::offset_of!(Layout, words) },
        Part { name: "stride", offset: std::mem::offset_of!(Layout, stride) },
    ];
}

impl Layout {
    fn of(matrix: &Matrix) -> Self {
        Layout { words: (matrix.dtype.size() / 4) as u32, stride: matrix.row_stride as u32 }
    }
}

/// The shader of every operator, and further shaders, for the test that validates them.
#[cfg(test)]
pub(crate) fn shaders() -> impl Iterator<Item = &'static crate::shader::Shader> {
    macro_rules! shaders {
        ($($module:ident: $operator:ident,)+) => { [$( &$module::SHADER ),+] };
    }
    let further = [
        &indexer_topk::GATHER_SHADER,
        &indexer_topk_blocks::SHADER,
        &moe_align_layout::SHADER,
        &sample_logits::REPORT_SHADER,
    ];
    let by_keys = unique::SHADERS.iter().flatten().chain(&unique_inverse::SHADERS);
    spec_core::for_each_operator!(shaders).into_iter().chain(further).chain(by_keys)
}

#[cfg(test)]
mod tests {
    use spec_conformance::launch_params::{Header, Language, check};

    use super::*;

    /// Headers of further shaders, beside the header that each operator has.
    const FURTHER: [Header; 5] = [
        indexer_topk::GATHER_HEADER,
        indexer_topk_blocks::HEADER,
        moe_align_layout::HEADER,
        shared::HEADER,
        unique_inverse::HEADER,
    ];

    #[test]
    fn launch_params_are_those_of_the_shaders() {
        macro_rules! headers {
            ($($module:ident: $operator:ident,)+) => { [$( $module::HEADER ),+] };
        }
        let headers = [&spec_core::for_each_operator!(headers)[..], &FURTHER].concat();
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/shaders/params");
        check(folder, Language::Wgsl, &headers).unwrap();
    }
}
