//! What a `flags` word can say about bad data.

/// A NaN or an infinity was met where a number belongs.
pub const NON_FINITE: u32 = 1;
/// A token or index lies outside its range.
pub const OUT_OF_RANGE: u32 = 2;
/// An offset, length or step does not fit its tensor and was cut.
pub const BAD_LENGTHS: u32 = 4;
