//! # The `spec` operators on NVIDIA GPUs
//!
//! This crate needs a driver of CUDA 12.0 or later at run time, and no part of
//! CUDA at build time: the crate contains the kernels of `kernels/` in compiled
//! form, under `compiled/` (`cargo xtask kernels` compiles them), and opening a
//! device looks for the library libcuda.
//!
//! ## Layers
//!
//! | module | what it does |
//! |---|---|
//! | `driver` | texts for the driver's errors; properties of a device; the current context |
//! | `device` | a handle to a device, with a stream of its own: [`Cuda`] |
//! | `gpu` | an open device, shared by every handle to it: context, limits, loaded kernels |
//! | `archive` | the compiled kernels, and which of them a device can run |
//! | `cubin` | what machine code says of its kernels, for a handle without a device |
//! | `limits` | the properties of a device that launch shapes depend on |
//! | `cluster` | how large a cluster the device can run for a kernel |
//! | `launch` | **the** way to enqueue a kernel |
//! | `args` | **the** way to turn views into a kernel's arguments |
//! | `memory`, [`foreign`] | memory and streams of this crate and of other frameworks |
//! | [`kernel`] | public parts of `archive`, `limits`, `launch`, `args`: operators out of tree |
//! | `time` | times calls in a CUDA graph between two events; the copy rate; an empty kernel |
//! | `ops` | one file per operator: from plan to launch shape, from buffers to parameters |
//!
//! ## Streams and order
//!
//! A handle ([`Cuda`]) has one stream of its own, which does not wait for the
//! legacy default stream. Work with [`Stream::default`](spec_core::Stream) goes
//! there, in order. Work on a foreign stream ([`Cuda::foreign_stream`]) is
//! ordered by that stream alone.
//!
//! ## Errors that come late
//!
//! A kernel runs after the call that enqueued it has returned. If the kernel
//! fails, the next call that talks to the device (a launch, a copy,
//! [`synchronize`](spec_core::Backend::synchronize)) reports status 1 with the
//! driver's text.

mod archive;
mod args;
mod backend;
mod cluster;
mod cubin;
mod device;
mod driver;
pub mod foreign;
mod function;
mod gpu;
pub mod kernel;
mod launch;
mod limits;
mod memory;
mod ops;
mod shape;
mod time;

pub use device::{Cuda, devices};

/// The oldest compute capability that the kernels run on.
pub const MIN_COMPUTE: (u32, u32) = (8, 0);
