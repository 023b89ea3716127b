//! The bits of a `flags` word, each for one kind of bad data.

/// The data has a NaN or an infinity where the operator needs a finite number.
pub const NON_FINITE: u32 = 1;
/// A token or an index is outside its range.
pub const OUT_OF_RANGE: u32 = 2;
/// An offset, a length or a step does not fit its tensor, and was cut.
pub const BAD_LENGTHS: u32 = 4;
