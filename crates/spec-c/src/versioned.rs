//! Structs that begin with their own size, so that they can grow.

use spec::{Result, Status};

use crate::status::refuse;

/// No struct comes near this: a larger size is garbage.
const MOST: usize = 1 << 16;

/// A struct of the caller's: `repr(C)`, its first field `size: usize`.
///
/// # Safety
/// That, and any bytes are a valid value.
pub(crate) unsafe trait Versioned: Copy {}

/// Reads a struct of the size that it says it has. What an older caller does not
/// know stays as in `default`; what a newer one knows and this library does not must
/// be zero.
///
/// # Safety
/// `from` is null or points to `size` bytes.
#[inline]
pub(crate) unsafe fn read<T: Versioned>(
    call: &'static str,
    argument: &'static str,
    from: *const T,
    default: T,
) -> Result<T> {
    // SAFETY: the caller's.
    let size = unsafe { size_of(call, argument, from)? };
    if size == std::mem::size_of::<T>() {
        // SAFETY: so many bytes are there, aligned, and any are a value.
        return Ok(unsafe { from.read() });
    }
    // SAFETY: as above.
    unsafe { read_other(call, argument, from, size, default) }
}

/// Writes a struct as far as the caller's reaches, whose size stays.
///
/// # Safety
/// `to` is null or points to `size` bytes.
pub(crate) unsafe fn write<T: Versioned>(
    call: &'static str,
    argument: &'static str,
    to: *mut T,
    value: &T,
) -> Result<()> {
    // SAFETY: the caller's.
    let size = unsafe { size_of(call, argument, to)? };
    let known = size.min(std::mem::size_of::<T>());
    let start = std::mem::size_of::<usize>();
    // SAFETY: `known` bytes are in both, of which the first are the size; what the
    // caller knows beyond is zeroed.
    unsafe {
        let to = to.cast::<u8>();
        let from = std::ptr::from_ref(value).cast::<u8>();
        to.add(start).copy_from_nonoverlapping(from.add(start), known - start);
        to.add(known).write_bytes(0, size - known);
    }
    Ok(())
}

/// The size that a struct says it has, if it may be one.
#[inline]
unsafe fn size_of<T>(call: &'static str, argument: &'static str, at: *const T) -> Result<usize> {
    if at.is_null() {
        return Err(refuse(Status::NullPointer, call, argument, "a null pointer", "a struct"));
    }
    if !at.is_aligned() {
        let value = format!("at {at:p}");
        return Err(refuse(Status::BadParam, call, argument, value, "an aligned address"));
    }
    // SAFETY: by the caller's word a struct that begins with its size.
    let size = unsafe { at.cast::<usize>().read() };
    if !(std::mem::size_of::<usize>()..=MOST).contains(&size) {
        let value = format!("a struct of size {size}");
        let expected = "its sizeof in the field `size`";
        return Err(refuse(Status::BadParam, call, argument, value, expected));
    }
    Ok(size)
}

/// A struct of another version.
#[cold]
unsafe fn read_other<T: Versioned>(
    call: &'static str,
    argument: &'static str,
    from: *const T,
    size: usize,
    default: T,
) -> Result<T> {
    let known = size.min(std::mem::size_of::<T>());
    let mut value = default;
    // SAFETY: `known` bytes are in both, and any are a value.
    unsafe {
        let to = std::ptr::from_mut(&mut value).cast::<u8>();
        to.copy_from_nonoverlapping(from.cast(), known);
    }
    for at in known..size {
        // SAFETY: within the caller's struct.
        if unsafe { from.cast::<u8>().add(at).read() } != 0 {
            let value = format!("a struct of size {size} with something at byte {at}");
            let expected = "zeros there: this library is older than the header";
            return Err(refuse(Status::BadParam, call, argument, value, expected));
        }
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq)]
    #[repr(C)]
    struct Grown {
        size: usize,
        first: usize,
        second: usize,
    }

    // SAFETY: integers.
    unsafe impl Versioned for Grown {}

    const DEFAULT: Grown = Grown { size: 0, first: 7, second: 8 };

    fn read_words(words: &[usize]) -> Result<Grown> {
        // SAFETY: as many words as the first says, or refused before they are read.
        unsafe { read("spec_test", "params", words.as_ptr().cast(), DEFAULT) }
    }

    const WORD: usize = std::mem::size_of::<usize>();

    #[test]
    fn older_callers_get_defaults() {
        assert_eq!(read_words(&[WORD]).unwrap(), Grown { size: WORD, ..DEFAULT });
        assert_eq!(
            read_words(&[2 * WORD, 1]).unwrap(),
            Grown { size: 2 * WORD, first: 1, second: 8 }
        );
        assert_eq!(
            read_words(&[3 * WORD, 1, 2]).unwrap(),
            Grown { size: 3 * WORD, first: 1, second: 2 }
        );
    }

    #[test]
    fn newer_callers_may_leave_zeros() {
        assert_eq!(read_words(&[4 * WORD, 1, 2, 0]).unwrap().second, 2);
        let error = read_words(&[4 * WORD, 1, 2, 3]).unwrap_err();
        assert_eq!(error.status(), Status::BadParam);
        assert!(error.to_string().contains("older than the header"));
    }

    #[test]
    fn garbage_is_refused() {
        for size in [0, 1, WORD - 1, MOST + 1, usize::MAX] {
            assert_eq!(read_words(&[size, 0, 0]).unwrap_err().status(), Status::BadParam);
        }
        // SAFETY: null, and an address that is not aligned, are refused unread.
        unsafe {
            let null = read("spec_test", "params", std::ptr::null(), DEFAULT);
            assert_eq!(null.unwrap_err().status(), Status::NullPointer);
            let odd = std::ptr::without_provenance(17);
            let odd = read("spec_test", "params", odd, DEFAULT);
            assert_eq!(odd.unwrap_err().status(), Status::BadParam);
        }
    }

    #[test]
    fn writing_stays_within_the_callers_struct() {
        let value = Grown { size: 0, first: 1, second: 2 };
        let mut words = [2 * WORD, 9, 9, 9];
        // SAFETY: two words are there.
        unsafe { write("spec_test", "params", words.as_mut_ptr().cast(), &value).unwrap() };
        assert_eq!(words, [2 * WORD, 1, 9, 9]);
        words = [4 * WORD, 9, 9, 9];
        // SAFETY: four are.
        unsafe { write("spec_test", "params", words.as_mut_ptr().cast(), &value).unwrap() };
        assert_eq!(words, [4 * WORD, 1, 2, 0]);
    }
}
