//! # The CPU backend
//!
//! The reference for every other backend, and fast: rayon spreads each operator
//! over requests, and over parts of a single request. The inner loops are written so that the
//! compiler vectorises them. They are compiled for several instruction sets, one of
//! which is picked at run time.
//!
//! Work runs on the rayon pool that is current where
//! [`call`](spec_core::Descriptor::call) is called: the global pool,
//! or the pool whose `install` runs the caller. The work is done when the call
//! returns. A call allocates nothing, except for the entries of rayon's own queues.
//!
//! # The floating-point environment
//!
//! A process may have told the floating-point units of its threads to take subnormal numbers as
//! zeros: loading a shared object that was linked with `-ffast-math` does that. On x86-64, a call
//! computes in the usual environment nevertheless. It gives the calling thread its own environment
//! back. Workers of the pool keep the usual one.
//!
//! # Arguments that change during a call
//!
//! A caller must not write to an argument during a call, and in Rust safe code cannot. Callers
//! in other languages can: nothing stops a thread of a Python program from writing to an array
//! that another thread has passed to an operator. In Rust that is undefined behaviour, since
//! the contents of a `&[T]` must not change. In practice, this crate keeps the following promise.
//!
//! Whatever another thread writes to inputs and outputs during a call, the call accesses
//! no memory outside its arguments and its workspace, it ends, and it does not panic.
//! The results are not promised: they may be anything, also keys of an earlier call that the
//! workspace still holds. No other thread may write to the workspace.
//!
//! The code keeps the promise by these rules:
//!
//! * A value that decides an address, a length or an index is copied to a local variable. The
//!   code compares that variable with the bound and then uses the same variable. Where `unsafe`
//!   code relies on the value, and wherever it costs nothing, the copy is a volatile read
//!   (`slices::once`), which the compiler must not repeat. Elsewhere Rust checks the index;
//!   today's compilers do not read a value again that they have in a register.
//! * Where an operator reads an input a second time, the second loop has bounds of its own.
//!   A count from the first read may size a buffer, but never replaces a comparison in the second:
//!   a scatter stops at the end of each range, and a cut text is cut again.
//! * A result that unchanged inputs cannot give (a match beyond the end, or no candidate)
//!   becomes some valid value and no panic.
//!
//! The test `tests/changing_arguments.rs` overwrites all arguments of every operator during calls.

mod device;
mod environment;
mod memory;
mod ops;
mod race;
mod select;
mod simd;
mod slices;
mod time;
mod weights;

pub use device::{Cpu, devices};
