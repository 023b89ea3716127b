//! # The CPU backend
//!
//! The reference for every other backend, and fast: rayon spreads each operator
//! over requests and inside one request. The inner loops are shaped so that the
//! compiler vectorises them. They are compiled for several instruction sets, one of
//! which is picked at run time.
//!
//! Work runs on the rayon pool that is current where
//! [`call`](spec_core::Descriptor::call) is called: the global one,
//! or the one whose `install` the caller is in. The work is done when the call
//! returns. Apart from what rayon's own queues keep, nothing is allocated.
//!
//! # Arguments that change during a call
//!
//! A caller must not write to an argument during a call, and in Rust safe code cannot. Callers
//! in other languages can: nothing stops a thread of a Python program from writing to an array
//! that another thread has passed to an operator. For Rust that is undefined behaviour, since
//! the contents of a `&[T]` do not change. In practice, this crate keeps the following.
//!
//! Promised, whatever another thread writes to inputs and outputs meanwhile: the call accesses
//! no memory outside of its arguments and its workspace, it ends, and it does not panic.
//! Not promised: the results, which may be anything, keys of an earlier call that the workspace
//! still holds among them. The workspace itself belongs to the call alone.
//!
//! What the code does for that:
//!
//! * A value that decides an address, a length or an index is copied to a local variable, and
//!   the local variable is what is compared with the bound and used. Where `unsafe` code relies
//!   on the value, and wherever that costs nothing, the copy is a volatile reading
//!   (`slices::once`), which the compiler must not repeat. Elsewhere the index is checked by
//!   the language; today's compilers do not read a value again that they have in a register.
//! * Where an operator reads an input a second time, the second loop compares with its own
//!   bounds. What the first reading counted may size a buffer, but never stands in for such a
//!   comparison: a scatter stops at the end of each range, and a cut text is cut again.
//! * A result that no unchanged input gives (a match beyond the end, no candidate at all) takes
//!   some valid value and no panic.
//!
//! `tests/changing_arguments.rs` overwrites all arguments of every operator during calls.

mod device;
mod memory;
mod ops;
mod race;
mod select;
mod simd;
mod slices;
mod time;
mod weights;

pub use device::{Cpu, devices};
