//! Constants that the host code and the kernels of several operators need.

#[cfg(test)]
use spec_conformance::launch_params::Header;
use spec_core::launch_params::float_code;
use spec_core::{DType, launch_params};

use crate::shape;

launch_params! {
    /// The largest number of blocks in a cluster. More than 8 blocks are not portable: only some
    /// devices run them, and only kernels that ask for them.
    const MAX_CLUSTER: u32 = shape::MAX_CLUSTER;
    /// The codes of float types, for kernels that take several types.
    const F32: u32 = float_code(DType::F32);
    const F16: u32 = float_code(DType::F16);
    const BF16: u32 = float_code(DType::BF16);
}

#[cfg(test)]
pub(super) const HEADER: Header =
    Header { name: "shared", includes: &["common.cuh"], structs: &[CONSTANTS] };
