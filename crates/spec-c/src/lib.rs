//! # The `spec` operators for C and C++
//!
//! This crate builds libspec. `docs/c.md` shows its use from the start, and `include/spec.h`
//! documents every function. The modules are:
//!
//! | module | |
//! |---|---|
//! | `status` | statuses, the last error as a sentence, and the catching of panics |
//! | `opaque` | objects to which C has pointers, and the detection of freed objects |
//! | `structs`, `abi` | structs that begin with their own size, and the order of their fields |
//! | `device`, `memory`, `tensor` | functions and structs that all operators share |
//! | `corpus` | finished texts in device memory, from which `suffix_lookup` drafts |
//! | `operator` | the bodies of every operator's functions, generic over the operator |
//! | `operators` | every operator's exported functions, written by one macro |
//!
//! `cargo xtask bindings` writes `include/spec.h` from the operators' declarations.

#![allow(non_camel_case_types, reason = "named as C has them")]

#[allow(dead_code, reason = "`cargo xtask bindings` uses the rest")]
mod abi;
mod corpus;
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

pub use corpus::*;
pub use device::*;
pub use memory::*;
pub use operator::{spec_descriptor, spec_destroy, spec_route, spec_workspace_size};
pub use status::{
    SPEC_ABI_VERSION, spec_abi_version, spec_last_error, spec_status, spec_status_name,
};
pub use structs::spec_struct;
pub use tensor::*;
