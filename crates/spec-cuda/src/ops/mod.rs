//! One file per operator. The outline of such a file:
//!
//! ```text
//! static KERNELS: Archive = archive!("name");     kernels/name.cu, compiled
//!
//! launch_params! {                                 what the kernel takes, and the constants that
//!     struct Params { x: Rows, .. }                host and kernel need: `cargo xtask params`
//!     const THREADS: u32 = 256;                    writes kernels/params/name.cuh from them
//! }
//!
//! struct Prepared { cuda: Cuda, plan: Plan, function: Function, shape: Shape }
//!
//! unsafe impl Supports<Name> for Cuda                   choose: kernel by dtype, shape by size
//!     prepare: cuda.function(&KERNELS, "name_f32")
//!
//! unsafe impl Kernel<Name> for Prepared                 enqueue: no allocation, no waiting
//!     workspace_size: what the plan needs
//!     launch: Params from buffers; cuda.enqueue(stream, |queue| queue.launch(&function, shape, &params))
//! ```
//!
//! * **Kernels** are `extern "C" __global__ void name_dtype(const __grid_constant__
//!   Params p)`: one argument, and the dtype of the data as suffix of the name
//!   (`SPEC_KERNEL` in `kernels/common.cuh` makes a kernel from a template). The width of
//!   an integer argument is no template parameter: pass
//!   [`Integers`](crate::kernel::Integers).
//! * **Arguments** come from [`Cuda::pointer`](crate::Cuda), `rows`, `integers` and
//!   `workspace`; an absent argument is a null pointer.
//! * **Shapes** ([`Shape`](crate::kernel::Shape)) are chosen in `prepare` from a small
//!   table, which states the measurement behind its values. `cuda.limits()` has the number
//!   of multiprocessors, the shared memory of a block and the largest number of blocks in a
//!   cluster. `SPEC_CUDA_LIMITS` lowers these limits for tests, so take them from nowhere
//!   else. A shape with no blocks enqueues nothing. Before a cluster is launched,
//!   [`Cuda::cluster_at_most`](crate::Cuda::cluster_at_most) must say that the device runs
//!   a cluster of this size.
//! * **Counters** that must start at zero lie in the workspace and are cleared by
//!   `queue.zero(address, bytes)`, which a graph captures as a memset. Counters cannot lie
//!   in the descriptor, since two streams may run one descriptor at the same time.

mod indexer_topk_blocks;
mod indexer_topk_row;
mod moe_align_layout;
mod ngram;
mod race;
#[cfg(test)]
mod routes;
mod shared;
mod unique_inverse;

macro_rules! modules {
    ($($module:ident: $operator:ident,)+) => { $( mod $module; )+ };
}

spec_core::for_each_operator!(modules);

#[cfg(test)]
mod tests {
    use spec_conformance::launch_params::{Header, Language, check};
    use spec_core::{exact, flags};

    use super::*;
    use crate::shape::WARP;

    /// Headers of further kernels, beside the header that each operator has.
    const FURTHER: [Header; 9] = [
        indexer_topk::GATHER_HEADER,
        indexer_topk_blocks::HEADER,
        indexer_topk_row::HEADER,
        moe_align_layout::HEADER,
        ngram::SEARCH_HEADER,
        race::HEADER,
        sample_logits::COLUMNS_HEADER,
        shared::HEADER,
        unique_inverse::HEADER,
    ];

    #[test]
    fn launch_params_are_those_of_the_kernels() {
        macro_rules! headers {
            ($($module:ident: $operator:ident,)+) => { [$( $module::HEADER ),+] };
        }
        let headers = [&spec_core::for_each_operator!(headers)[..], &FURTHER].concat();
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/params");
        check(folder, Language::Cuda, &headers).unwrap();
    }

    /// The kernels of the benchmarks include `common.cuh` without the folder `params`, so its few
    /// constants stand in the file itself.
    #[test]
    fn constants_of_common_cuh_are_those_of_the_host() {
        let text = include_str!("../../kernels/common.cuh");
        let has = |line: String| assert!(text.contains(&line), "common.cuh has no `{line}`");
        has(format!("constexpr u32 WARP = {WARP};"));
        has(format!("constexpr u32 NON_FINITE = {};", flags::NON_FINITE));
        has(format!("constexpr u32 OUT_OF_RANGE = {};", flags::OUT_OF_RANGE));
        has(format!("constexpr u32 BAD_LENGTHS = {};", flags::BAD_LENGTHS));
        has(format!("constexpr float EXP_MIN = {:?}f;", exact::EXP_MIN));
    }
}
