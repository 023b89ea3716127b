//! One file an operator. How such a file looks:
//!
//! ```text
//! static KERNELS: Archive = archive!("name");     kernels/name.cu, compiled
//!
//! #[repr(C)]                                       what the kernel takes, once here and
//! #[derive(Clone, Copy)]                           once in name.cu, field by field; both
//! struct Params { x: Rows, flags: u64, .. }        sides assert the same size
//! const _: () = assert!(size_of::<Params>() == 72);
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
//!   Params p)`: one argument, the dtype of the data as suffix (`SPEC_KERNEL` in
//!   `kernels/common.cuh` makes them from a template). Integer arguments of either
//!   width are no template parameter: pass [`Integers`](crate::kernel::Integers).
//! * **Arguments** come from [`Cuda::pointer`](crate::Cuda), `rows`, `integers` and
//!   `workspace`; what is absent is a null pointer.
//! * **Shapes** ([`Shape`](crate::kernel::Shape)) are chosen in `prepare` from a small
//!   table with the measurement that set it. `cuda.limits()` has the number of
//!   multiprocessors, the shared memory of a block, whether there are clusters;
//!   `SPEC_CUDA_LIMITS` lowers them for tests, so use nothing else.
//!   A shape with no blocks enqueues nothing.
//! * **Counters** that must start at zero are workspace, cleared by
//!   `queue.zero(address, bytes)`, which a graph captures as a memset; nothing
//!   belongs to the descriptor, since two streams may run it at once.

mod deduplicate_topk;
mod hybrid_mtp_ngram;
mod indexer_topk;
mod moe_align;
mod ngram;
mod ngram_match;
mod prompt_lookup;
mod rejection_sample;
mod sample_logits;
mod topk_router;
mod tree_verify;
mod unique;
