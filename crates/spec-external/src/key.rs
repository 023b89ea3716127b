//! The types of keys.

use std::fmt::{Debug, Display};
use std::str::FromStr;

use spec::Element;

mod sealed {
    pub trait Sealed {}
}

/// A key: u64, i64, u32 or i32, ordered as the type itself is. Sealed.
pub trait Key: Element + Ord + Display + Debug + FromStr + sealed::Sealed {
    /// The type's name: `u64`.
    const NAME: &'static str;
    /// Bytes of a key in a raw file.
    const SIZE: usize = size_of::<Self>();
    /// The smallest key.
    const MIN: Self;
    /// The largest key.
    const MAX: Self;

    /// Converts between a key in memory and the same key in a raw file, which is little-endian.
    /// The conversion is its own inverse.
    #[must_use]
    fn little_endian(self) -> Self;

    /// The key with this sign and magnitude, if the type has it.
    fn from_sign_magnitude(negative: bool, magnitude: u64) -> Option<Self>;

    /// Whether the key is negative, and its absolute value.
    fn sign_magnitude(self) -> (bool, u64);
}

macro_rules! key {
    ($($ty:ident),+) => {$(
        impl sealed::Sealed for $ty {}
        impl Key for $ty {
            const NAME: &'static str = stringify!($ty);
            const MIN: Self = $ty::MIN;
            const MAX: Self = $ty::MAX;

            #[inline]
            fn little_endian(self) -> Self {
                self.to_le()
            }

            #[inline]
            fn from_sign_magnitude(negative: bool, magnitude: u64) -> Option<Self> {
                let number = i128::from(magnitude);
                $ty::try_from(if negative { -number } else { number }).ok()
            }

            #[inline]
            fn sign_magnitude(self) -> (bool, u64) {
                let number = i128::from(self);
                (number < 0, number.unsigned_abs() as u64)
            }
        }
    )+};
}

key!(u64, i64, u32, i32);

/// Converts keys in place to or from their form in a raw file. Does nothing on a
/// little-endian machine.
pub(crate) fn little_endian<K: Key>(keys: &mut [K]) {
    if cfg!(target_endian = "big") {
        for key in keys {
            *key = key.little_endian();
        }
    }
}
