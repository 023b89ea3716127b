//! # The CPU backend
//!
//! The reference for every other backend, and fast: rayon spreads each operator
//! over requests and inside one request, and the inner loops are shaped so that
//! the compiler vectorises them, in versions for the instruction sets found at
//! run time.
//!
//! Work runs on the rayon pool that is current where
//! [`calculate`](spec_core::Descriptor::calculate) is called: the global one,
//! or the one whose `install` the caller is in. It is done when the call
//! returns. Apart from what rayon's own queues keep, nothing is allocated.

mod device;
mod memory;
mod ops;
mod select;
mod simd;
mod slices;
mod time;
mod weights;

pub use device::{Cpu, devices};
