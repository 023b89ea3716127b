//! The four key types.

use spec_core::Element;

/// A key: an integer whose order is that of unsigned bits after one XOR.
pub(super) trait Key: Element + Ord {
    /// How many keys a cache line holds.
    const LINE: usize = 64 / size_of::<Self>();

    /// The key as an unsigned integer that orders as the keys do.
    fn bits(self) -> u64;
    /// The key whose [`bits`](Self::bits) these are.
    fn of(bits: u64) -> Self;
}

impl Key for u64 {
    fn bits(self) -> u64 {
        self
    }

    fn of(bits: u64) -> Self {
        bits
    }
}

impl Key for i64 {
    fn bits(self) -> u64 {
        self.cast_unsigned() ^ 1 << 63
    }

    fn of(bits: u64) -> Self {
        (bits ^ 1 << 63).cast_signed()
    }
}

impl Key for u32 {
    fn bits(self) -> u64 {
        u64::from(self)
    }

    fn of(bits: u64) -> Self {
        bits as u32
    }
}

impl Key for i32 {
    fn bits(self) -> u64 {
        u64::from(self.cast_unsigned() ^ 1 << 31)
    }

    fn of(bits: u64) -> Self {
        (bits as u32 ^ 1 << 31).cast_signed()
    }
}
