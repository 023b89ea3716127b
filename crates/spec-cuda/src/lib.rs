//! # The `spec` operators on NVIDIA GPUs
//!
//! Needs a driver of CUDA 12.0 or later at run time and nothing of CUDA at
//! build time: the kernels under `kernels/` are shipped compiled, under
//! `compiled/` (`cargo xtask kernels` makes them), and libcuda is looked for
//! when a device is opened.
//!
//! ## Layers
//!
//! | module | what it does |
//! |---|---|
//! | `driver` | errors of the driver in words; what a device is; whose context is current |
//! | `device` | a handle to a device, with a stream of its own: [`Cuda`] |
//! | `gpu` | a device that is open, shared by every handle to it: context, limits, loaded kernels |
//! | `archive` | the compiled kernels, and which of them a device can run |
//! | `limits` | what launch shapes depend on |
//! | `cluster` | how large a cluster of a kernel the device runs |
//! | `launch` | **the** way to enqueue a kernel |
//! | `args` | **the** way to turn views into what a kernel takes |
//! | `memory`, [`foreign`] | memory and streams, of our own and of others |
//! | [`kernel`] | `archive`, `limits`, `launch` and `args` in public: operators out of tree |
//! | `time` | calls in a graph between two events; the copy rate and an empty kernel |
//! | `ops` | one file an operator: plan to launch shape, buffers to parameters |
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
//! A kernel runs after the call that enqueued it has returned. Where one fails,
//! the next call that talks to the device (a launch, a copy,
//! [`synchronize`](spec_core::Backend::synchronize)) reports status 1 with the
//! driver's text.

mod archive;
mod args;
mod cluster;
mod device;
mod driver;
pub mod foreign;
mod gpu;
pub mod kernel;
mod launch;
mod limits;
mod memory;
mod ops;
mod time;

pub use device::{Cuda, devices};

use cudarc::driver::sys;
use spec_core::{Device, Error};

use crate::driver::Text;

/// The oldest compute capability that the kernels run on.
pub const MIN_COMPUTE: (u32, u32) = (8, 0);

/// A device's failure in the driver's own words.
pub(crate) fn failure(device: Device, doing: &str, code: sys::CUresult) -> Error {
    Error::failure(device, driver::kind(code), format!("{doing}: {}", Text(code)))
}
