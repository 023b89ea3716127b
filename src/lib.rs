//! # spec
//!
//! The operators that decide an LLM server's next tokens and experts:
//!
//! * sampling: [`adjust_logits`](ops::adjust_logits) (penalties, DRY, biases, bad words, thinking budgets),
//!   [`sample_logits`](ops::sample_logits) (temperature, top-k, top-p, min-p, log-probabilities);
//! * drafting: [`prompt_lookup`](ops::prompt_lookup), [`suffix_lookup`](ops::suffix_lookup) with a
//!   [`Corpus`], [`ngram_match`](ops::ngram_match), [`hybrid_mtp_ngram`](ops::hybrid_mtp_ngram),
//!   [`deduplicate_topk`](ops::deduplicate_topk), and [`draft_tree`](ops::draft_tree), which makes
//!   trees of the drafts and shares a budget among requests;
//! * verification: [`tree_verify`](ops::tree_verify) for chains and trees of drafts,
//!   [`rejection_sample`](ops::rejection_sample), and [`append_tokens`](ops::append_tokens) to the
//!   texts;
//! * mixture of experts: [`topk_router`](ops::topk_router), [`moe_align`](ops::moe_align);
//! * sparse attention: [`indexer_topk`](ops::indexer_topk), and [`hot_slots`](ops::hot_slots) for KV
//!   offload;
//! * the distinct values of large sets of 64-bit features: [`unique`](ops::unique).
//!
//! All operators have the same interface, modelled on InfiniOp and CUB. A **descriptor** is
//! created once from parameters and tensor descriptors, and validates them. The descriptor states
//! the size of the **workspace** that a call needs. A **call** enqueues the work on memory and a
//! stream that belong to the caller. A [`Handle`] is a device that is chosen at run time. Integer
//! results are the same bits on every device.
//!
//! ```
//! use spec::ops::topk_router::{Buffers, preset};
//! use spec::{DType, Handle};
//!
//! # fn main() -> spec::Result<()> {
//! let handle: Handle = "cpu".parse()?;
//!
//! // Two tokens and eight experts; the router chooses two experts per token, as in Mixtral.
//! let logits: [f32; 16] = [
//!     0.1, 2.0, 0.3, 0.4, 1.5, 0.0, -1.0, 0.2, //
//!     3.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 3.5,
//! ];
//! let (mut weights, mut indices) = ([0f32; 4], [0i32; 4]);
//!
//! let model = preset::MIXTRAL;
//! let router = handle.create(&model.router(), &model.tensors(DType::F32, 2))?;
//! let mut workspace = router.workspace(&handle)?;
//! router.call(&mut workspace, Buffers::new(&logits, &mut weights, &mut indices))?;
//! assert_eq!(indices, [1, 4, 7, 0]);
//! # Ok(())
//! # }
//! ```
//!
//! In this example the buffers are host slices, which the call borrows. On another device the
//! buffers are memory that the caller already has on that device (raw device pointers, a wgpu
//! buffer), or [`Buffer`]s that the handle allocates.

// On docs.rs, each item is marked with the cargo feature that the item needs.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod absent;
pub mod corpus;
mod handle;

pub use corpus::Corpus;
pub use handle::{Handle, Listing, Portable, devices};
pub use spec_core::{
    Address, Argument, Backend, Buffer, DType, Descriptor, Device, DeviceInfo, DeviceName,
    DtypeRule, Element, Error, ErrorKind, InOrder, Kernel, Matrix, Memory, Operator, Place,
    PlaceMut, QueueId, Ready, Result, Role, Shape, Signature, Site, Source, Staging, Status,
    Stream, Supports, TensorDesc, Timed, Timing, Vector, View, ViewMut, bf16, dtype, exact, f16,
    flags, for_each_operator, memory, ngram, ops, options, philox, race, shape, sizes, stream,
    timing,
};

#[cfg(feature = "cpu")]
pub use spec_cpu as cpu;
#[cfg(feature = "cuda")]
pub use spec_cuda as cuda;
#[cfg(feature = "wgpu")]
pub use spec_wgpu as wgpu;

/// Compiles and runs the README's example as a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
