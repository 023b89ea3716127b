//! spec's operators on candle's tensors, where they lie.
//!
//! [`Held`] is a tensor to read: its elements where candle keeps them, rows apart or packed.
//! [`Made`] is memory to write, which becomes a tensor without a copy. A [`Queue`] is where both
//! lie, on the CPU or, with the feature `cuda`, on a GPU, and where the call runs: the tensors
//! alone decide. The rest is a function for each operator, as short as a call is. Each creates
//! its descriptor anew; an engine keeps it for the shape.
//!
//! candle indexes by u32, and so do the operators, where -1 is the largest value; what may be
//! -1 and is read by people is i64 here, or i32 where the operator has no other.

mod operators;
mod tensors;

pub use operators::*;
pub use tensors::{Error, Held, Made, Queue, Result};
