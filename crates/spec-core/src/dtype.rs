//! Element types.

use std::fmt;

use half::{bf16, f16};

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DType {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of an `f32`.
    BF16,
    /// Signed 32-bit integer.
    I32,
    /// Signed 64-bit integer.
    I64,
    /// Unsigned 32-bit integer.
    U32,
    /// Unsigned 64-bit integer.
    U64,
    /// Unsigned 8-bit integer, and untyped bytes: workspaces.
    U8,
    /// Signed 8-bit integer.
    I8,
    /// A byte that is 0 for false; anything else is true.
    Bool,
}

impl DType {
    /// Size of one element in bytes, which is also the alignment it needs.
    pub const fn size(self) -> usize {
        match self {
            DType::U8 | DType::I8 | DType::Bool => 1,
            DType::F16 | DType::BF16 => 2,
            DType::F32 | DType::I32 | DType::U32 => 4,
            DType::I64 | DType::U64 => 8,
        }
    }

    /// The usual short name: `f32`, `bf16`, `i64`.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::I32 => "i32",
            DType::I64 => "i64",
            DType::U32 => "u32",
            DType::U64 => "u64",
            DType::U8 => "u8",
            DType::I8 => "i8",
            DType::Bool => "bool",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that is the element of some [`DType`].
///
/// Sealed: every implementor is plain data for which any bit pattern is valid.
/// ([`DType::Bool`] therefore has no element type, since a Rust `bool` is only 0 or 1:
/// `View::from(&[bool])` views truth values, and `View::from_bytes` views bytes that may hold
/// any value.)
pub trait Element: sealed::Sealed + Copy + Default + Send + Sync + 'static {
    /// The matching dtype.
    const DTYPE: DType;
}

macro_rules! element {
    ($($ty:ty => $dtype:ident),+ $(,)?) => {$(
        impl sealed::Sealed for $ty {}
        impl Element for $ty {
            const DTYPE: DType = DType::$dtype;
        }
    )+};
}

element! {
    f32 => F32, f16 => F16, bf16 => BF16,
    i32 => I32, i64 => I64, u32 => U32, u64 => U64, u8 => U8, i8 => I8,
}

/// The bytes of a slice of elements.
pub fn as_bytes<T: Element>(slice: &[T]) -> &[u8] {
    // SAFETY: an `Element` is plain data without padding (the trait is sealed, and so are the
    // types above); the length in bytes is that of the same slice, and `u8` needs no alignment.
    unsafe { std::slice::from_raw_parts(slice.as_ptr().cast(), size_of_val(slice)) }
}

/// The bytes of truth values, 0 or 1 each.
pub fn bool_bytes(slice: &[bool]) -> &[u8] {
    // SAFETY: a `bool` is one initialised byte, and `u8` needs no alignment.
    unsafe { std::slice::from_raw_parts(slice.as_ptr().cast(), slice.len()) }
}

/// The bytes of a mutable slice of elements.
pub fn as_bytes_mut<T: Element>(slice: &mut [T]) -> &mut [u8] {
    // SAFETY: as in `as_bytes`; any bytes written back form valid elements.
    unsafe { std::slice::from_raw_parts_mut(slice.as_mut_ptr().cast(), size_of_val(slice)) }
}

/// Bytes as a slice of elements; `None` if the address is not aligned for `T` or the length is
/// not a multiple of its size.
pub fn from_bytes<T: Element>(bytes: &[u8]) -> Option<&[T]> {
    if bytes.is_empty() {
        return Some(&[]);
    }
    let aligned = bytes.as_ptr().addr().is_multiple_of(align_of::<T>());
    (aligned && bytes.len().is_multiple_of(size_of::<T>())).then(|| {
        // SAFETY: alignment and size were just checked; any bits are valid.
        unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len() / size_of::<T>()) }
    })
}

/// Mutable bytes as a slice of elements; `None` as in [`from_bytes`].
pub fn from_bytes_mut<T: Element>(bytes: &mut [u8]) -> Option<&mut [T]> {
    if bytes.is_empty() {
        return Some(&mut []);
    }
    let aligned = bytes.as_ptr().addr().is_multiple_of(align_of::<T>());
    (aligned && bytes.len().is_multiple_of(size_of::<T>())).then(|| {
        // SAFETY: alignment and size were just checked; any bits are valid,
        // and the borrow is exclusive.
        unsafe {
            std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), bytes.len() / size_of::<T>())
        }
    })
}
