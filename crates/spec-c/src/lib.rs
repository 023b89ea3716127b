//! # The `spec` operators for C and C++
//!
//! libspec and `spec.h`: `docs/c.md` has a page that begins with nothing, `include/spec.h`
//! documents every call. What is here:
//!
//! | module | |
//! |---|---|
//! | `status` | statuses, the last error in words, and the border that no panic crosses |
//! | `opaque` | what C holds by a pointer, and how one that was freed is seen |
//! | `structs`, `abi` | structs that begin with their own size, and the order of their fields |
//! | `device`, `memory`, `tensor` | what is not about one operator |
//! | `operator` | what every operator's functions do, generic over it |
//! | `operators` | those functions, one macro for all operators |
//!
//! `cargo xtask bindings` writes `include/spec.h` from the operators' declarations.

#![allow(non_camel_case_types, reason = "named as C has them")]

#[allow(dead_code, reason = "`cargo xtask bindings` uses the rest")]
mod abi;
mod device;
mod memory;
mod opaque;
mod operator;
pub mod operators;
mod status;
mod structs;
mod tensor;
#[cfg(test)]
mod tests;

pub use device::*;
pub use memory::*;
pub use operator::{spec_descriptor, spec_destroy, spec_workspace_size};
pub use status::{
    SPEC_ABI_VERSION, spec_abi_version, spec_last_error, spec_status, spec_status_name,
};
pub use structs::spec_struct;
pub use tensor::*;
