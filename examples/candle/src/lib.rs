//! spec's operators on candle's tensors, without copies.
//!
//! A [`Queue`] is the device and the stream of a call: the CPU or, with the feature `cuda`, a GPU.
//! The tensors of a call decide which. [`Queue::call`] calls any operator, with the arguments by
//! their names in the contract. [`Held`] is a tensor to read, in candle's own memory, with packed
//! rows or rows with a stride. [`Made`] is memory to write, which becomes a tensor without a copy.
//! Three functions show how an operator's arguments become a function's: [`topk_router`],
//! [`moe_align`] and [`sample_logits`]. Each call creates a new descriptor; an engine would keep the
//! descriptor of a shape.
//!
//! candle's indices are u32, which the operators also accept; -1 is then the largest u32.

mod operators;
mod tensors;

pub use operators::*;
pub use tensors::{Argument, Error, Held, Made, Queue, Result};
