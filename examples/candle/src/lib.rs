//! spec's operators on candle's tensors, without copies.
//!
//! [`Held`] is a tensor to read, in candle's own memory, with packed rows or rows with a
//! stride. [`Made`] is memory to write, which becomes a tensor without a copy. A [`Queue`] is
//! the device and the stream of a call: the CPU or, with the feature `cuda`, a GPU. The tensors
//! of a call decide which. In addition there is a short function for each operator. Each
//! function creates a new descriptor per call; an engine would keep the descriptor of a shape.
//!
//! candle's indices are u32, which the operators also accept; -1 is then the largest u32.
//! Outputs that may be -1 and are read by people are i64 here, or i32 if the operator has no
//! i64.

mod operators;
mod tensors;

pub use operators::*;
pub use tensors::{Error, Held, Made, Queue, Result};
