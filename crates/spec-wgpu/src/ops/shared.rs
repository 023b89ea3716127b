//! Constants that the host code and the shaders of several operators need.

#[cfg(test)]
use spec_conformance::launch_params::Header;
use spec_core::launch_params::float_code;
use spec_core::philox::Purpose;
use spec_core::{DType, exact, flags, launch_params, race};

launch_params! {
    /// Bits of `flags`: the data has a NaN or an infinity where the operator needs a finite number.
    const NON_FINITE: u32 = flags::NON_FINITE;
    /// A token or an index is outside its range.
    const OUT_OF_RANGE: u32 = flags::OUT_OF_RANGE;
    /// An offset, a length or a step does not fit its tensor, and was cut.
    const BAD_LENGTHS: u32 = flags::BAD_LENGTHS;
    /// The codes of float types.
    const F32: u32 = float_code(DType::F32);
    const F16: u32 = float_code(DType::F16);
    const BF16: u32 = float_code(DType::BF16);
    /// `exp` returns 0 for arguments below this one.
    const EXP_MIN: f32 = exact::EXP_MIN;
    /// The number of tokens whose noise is drawn together.
    const RACE_GROUP: usize = race::GROUP;
    /// Index of the first block of random numbers with the low bits of a group's least noise.
    const GROUP_BLOCKS: u32 = race::GROUP_BLOCKS;
    /// Index of the first block of random numbers with the differences between tokens' noise and the
    /// least noise.
    const TOKEN_BLOCKS: u32 = race::TOKEN_BLOCKS;
    /// The kinds of decisions that random numbers make: which token is sampled, whether a draft is
    /// accepted, and which token replaces a rejected draft.
    const PURPOSE_SAMPLE: u32 = Purpose::Sample as u32;
    const PURPOSE_ACCEPT: u32 = Purpose::Accept as u32;
    const PURPOSE_RECOVER: u32 = Purpose::Recover as u32;
}

#[cfg(test)]
pub(super) const HEADER: Header = Header { name: "shared", includes: &[], structs: &[CONSTANTS] };
