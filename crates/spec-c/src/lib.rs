//! # The `spec` operators for C and C++
//!
//! libspec and `spec.h`: `docs/c.md` has a page that begins with nothing, `include/spec.h`
//! documents every call. What is here:
//!
//! | module | |
//! |---|---|
//! | `status` | statuses, the last error in words, and the border that no panic crosses |
//! | `opaque` | what C holds by a pointer, and how one that was freed is seen |
//! | `versioned` | structs that begin with their own size |
//! | `device`, `memory`, `tensor` | what is not about one operator |
//! | `params` | the parameters of each operator, by hand |
//! | `operator` | what every operator's functions do, generic over it |
//! | `generated` | those functions and the structs of arguments, which `cargo xtask bindings` writes from the contract's lists |

#![allow(non_camel_case_types, reason = "named as C has them")]

mod device;
mod generated;
mod memory;
mod opaque;
mod operator;
mod params;
mod status;
mod tensor;
#[cfg(test)]
mod tests;
mod versioned;

pub use device::*;
pub use generated::*;
pub use memory::*;
pub use operator::{spec_descriptor, spec_destroy, spec_workspace_size};
pub use params::*;
pub use status::{
    SPEC_ABI_VERSION, spec_abi_version, spec_last_error, spec_status, spec_status_name,
};
pub use tensor::*;
