//! Statuses, the last error in words, and the border that no panic crosses.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use spec::{Error, Result, Status};

/// The version of this header's structs and functions. It grows where a program that was
/// compiled with an older header could misunderstand; not where there is only more.
pub const SPEC_ABI_VERSION: u32 = 1;

/// The `SPEC_ABI_VERSION` that the library was built with.
#[unsafe(no_mangle)]
pub extern "C" fn spec_abi_version() -> u32 {
    SPEC_ABI_VERSION
}

/// What a call comes to. The numbers are InfiniOp's. `spec_last_error` says the
/// same in words.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum spec_status {
    /// The call did what it says.
    SPEC_STATUS_SUCCESS = 0,
    /// Something failed underneath: a driver, a lost device, out of memory.
    SPEC_STATUS_INTERNAL_ERROR = 1,
    /// The operator or option exists but this backend does not have it.
    SPEC_STATUS_NOT_IMPLEMENTED = 2,
    /// A parameter is out of its range.
    SPEC_STATUS_BAD_PARAM = 3,
    /// A required argument is absent, or a pointer is null.
    SPEC_STATUS_NULL_POINTER = 4,
    /// The memory or stream belongs to another kind of device.
    SPEC_STATUS_DEVICE_TYPE_NOT_SUPPORTED = 5,
    /// There is no such device on this machine.
    SPEC_STATUS_DEVICE_NOT_FOUND = 6,
    /// The device is there but has not been opened.
    SPEC_STATUS_DEVICE_NOT_INITIALIZED = 7,
    /// The device is older than what the kernels need.
    SPEC_STATUS_DEVICE_ARCHITECTURE_NOT_SUPPORTED = 8,
    /// A tensor's element type is not one the operator takes.
    SPEC_STATUS_BAD_TENSOR_DTYPE = 10,
    /// A tensor's shape, or a buffer's size, does not fit.
    SPEC_STATUS_BAD_TENSOR_SHAPE = 11,
    /// A tensor's strides are not ones the operator takes.
    SPEC_STATUS_BAD_TENSOR_STRIDES = 12,
    /// The workspace is smaller than the descriptor asked for.
    SPEC_STATUS_INSUFFICIENT_WORKSPACE = 13,
}

use spec_status::*;

impl From<Status> for spec_status {
    fn from(status: Status) -> Self {
        match status {
            Status::Success => SPEC_STATUS_SUCCESS,
            Status::NotImplemented => SPEC_STATUS_NOT_IMPLEMENTED,
            Status::BadParam => SPEC_STATUS_BAD_PARAM,
            Status::NullPointer => SPEC_STATUS_NULL_POINTER,
            Status::DeviceTypeNotSupported => SPEC_STATUS_DEVICE_TYPE_NOT_SUPPORTED,
            Status::DeviceNotFound => SPEC_STATUS_DEVICE_NOT_FOUND,
            Status::DeviceNotInitialized => SPEC_STATUS_DEVICE_NOT_INITIALIZED,
            Status::DeviceArchitectureNotSupported => SPEC_STATUS_DEVICE_ARCHITECTURE_NOT_SUPPORTED,
            Status::BadTensorDtype => SPEC_STATUS_BAD_TENSOR_DTYPE,
            Status::BadTensorShape => SPEC_STATUS_BAD_TENSOR_SHAPE,
            Status::BadTensorStrides => SPEC_STATUS_BAD_TENSOR_STRIDES,
            Status::InsufficientWorkspace => SPEC_STATUS_INSUFFICIENT_WORKSPACE,
            // Internal errors, and what later versions may add.
            _ => SPEC_STATUS_INTERNAL_ERROR,
        }
    }
}

/// A status in words that stay: "bad tensor shape". NULL for a number that is no
/// status.
#[unsafe(no_mangle)]
pub extern "C" fn spec_status_name(status: i32) -> *const c_char {
    let name: &CStr = match status {
        0 => c"success",
        1 => c"internal error",
        2 => c"not implemented",
        3 => c"bad param",
        4 => c"null pointer",
        5 => c"device type not supported",
        6 => c"device not found",
        7 => c"device not initialized",
        8 => c"device architecture not supported",
        10 => c"bad tensor dtype",
        11 => c"bad tensor shape",
        12 => c"bad tensor strides",
        13 => c"insufficient workspace",
        _ => return std::ptr::null(),
    };
    name.as_ptr()
}

thread_local! {
    static LAST: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Copies the last error of this thread to `buffer`: a sentence in UTF-8 that names
/// the call, the argument, its value and what was expected, ended by a zero and cut
/// where it does not fit.
///
/// Returns the bytes that the whole sentence needs, its zero included; 1 where
/// no call of this thread has failed. Calls that succeed leave the sentence alone.
///
/// # Safety
/// `buffer` is NULL, with `size` 0, or has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_last_error(buffer: *mut c_char, size: usize) -> usize {
    let copy = |last: &RefCell<String>| {
        let text = last.borrow();
        if !buffer.is_null() && size > 0 {
            let mut cut = text.len().min(size - 1);
            while !text.is_char_boundary(cut) {
                cut -= 1;
            }
            // SAFETY: `cut` bytes and a zero are at most `size`, which the caller
            // vouches for; the text is ours.
            unsafe {
                buffer.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), cut);
                *buffer.add(cut) = 0;
            }
        }
        text.len() + 1
    };
    // A thread that ends has nothing to say.
    LAST.try_with(copy).unwrap_or(1)
}

fn remember(words: String) {
    // As above.
    let _ = LAST.try_with(|last| *last.borrow_mut() = words);
}

/// Runs what a call does: its error becomes the thread's last one, and a panic
/// becomes status 1.
#[inline]
pub(crate) fn guard(call: &'static str, body: impl FnOnce() -> Result<()>) -> spec_status {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => SPEC_STATUS_SUCCESS,
        Ok(Err(error)) => fail(&error),
        Err(payload) => panicked(call, payload),
    }
}

#[cold]
fn fail(error: &Error) -> spec_status {
    remember(error.to_string());
    error.status().into()
}

#[cold]
fn panicked(call: &'static str, payload: Box<dyn Any + Send>) -> spec_status {
    let words = payload.downcast_ref::<&str>().map(|words| (*words).to_owned());
    let words = words.or_else(|| payload.downcast_ref::<String>().cloned());
    // What is inside might panic again as it is dropped.
    std::mem::forget(payload);
    let words = words.unwrap_or_else(|| "no words".to_owned());
    remember(format!("{call}: a defect of this library: {words}: {}", Status::InternalError));
    SPEC_STATUS_INTERNAL_ERROR
}

/// An argument that is not what a call asks for.
#[cold]
pub(crate) fn refuse(
    status: Status,
    call: &'static str,
    argument: &'static str,
    value: impl Into<String>,
    expected: &'static str,
) -> Error {
    let (value, expected) = (value.into(), expected.into());
    Error::Argument { status, operator: call, argument, value, expected }
}

/// A place that a call writes its result to.
///
/// # Safety
/// `out` is null or valid for writing a `T` as long as `'a`.
#[inline]
pub(crate) unsafe fn place_for<'a, T>(
    call: &'static str,
    argument: &'static str,
    out: *mut T,
) -> Result<&'a mut std::mem::MaybeUninit<T>> {
    if out.is_null() {
        return Err(refuse(Status::NullPointer, call, argument, "a null pointer", "a place"));
    }
    if !out.is_aligned() {
        let value = format!("at {out:p}");
        return Err(refuse(Status::BadParam, call, argument, value, "an aligned address"));
    }
    // SAFETY: not null, aligned, and valid by the caller's word.
    Ok(unsafe { &mut *out.cast() })
}

/// Text that C passes.
///
/// # Safety
/// It is null or ends with a zero, and stays as long as `'a`.
pub(crate) unsafe fn text<'a>(
    call: &'static str,
    argument: &'static str,
    text: *const c_char,
) -> Result<&'a str> {
    if text.is_null() {
        return Err(refuse(Status::NullPointer, call, argument, "a null pointer", "a name"));
    }
    // SAFETY: not null, and by the caller's word ended by a zero.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| {
        let value = text.to_string_lossy().into_owned();
        refuse(Status::BadParam, call, argument, value, "text in UTF-8")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last() -> String {
        // SAFETY: no buffer, then one of the size that was asked for.
        let needed = unsafe { spec_last_error(std::ptr::null_mut(), 0) };
        let mut bytes = vec![0xFFu8; needed];
        // SAFETY: as above.
        assert_eq!(unsafe { spec_last_error(bytes.as_mut_ptr().cast(), needed) }, needed);
        CStr::from_bytes_with_nul(&bytes).unwrap().to_str().unwrap().to_owned()
    }

    #[test]
    fn a_panic_is_a_status() {
        std::panic::set_hook(Box::new(|_| {}));
        assert_eq!(last(), "");
        let status = guard("spec_test", || panic!("went wrong"));
        assert_eq!(status, SPEC_STATUS_INTERNAL_ERROR);
        assert!(last().starts_with("spec_test: a defect of this library: went wrong"));
        // A success leaves it.
        assert_eq!(guard("spec_test", || Ok(())), SPEC_STATUS_SUCCESS);
        assert!(last().contains("went wrong"));
    }

    #[test]
    fn a_short_buffer_gets_whole_characters() {
        remember("aä".to_owned());
        let mut bytes = [0xFFu8; 3];
        // SAFETY: three bytes are there.
        assert_eq!(unsafe { spec_last_error(bytes.as_mut_ptr().cast(), 3) }, 4);
        assert_eq!(&bytes[..2], b"a\0");
    }

    #[test]
    fn numbers_and_names_are_those_of_the_contract() {
        let all = [
            Status::Success,
            Status::InternalError,
            Status::NotImplemented,
            Status::BadParam,
            Status::NullPointer,
            Status::DeviceTypeNotSupported,
            Status::DeviceNotFound,
            Status::DeviceNotInitialized,
            Status::DeviceArchitectureNotSupported,
            Status::BadTensorDtype,
            Status::BadTensorShape,
            Status::BadTensorStrides,
            Status::InsufficientWorkspace,
        ];
        for status in all {
            assert_eq!(spec_status::from(status) as i32, status.code());
            // SAFETY: names are literals.
            let name = unsafe { CStr::from_ptr(spec_status_name(status.code())) };
            assert_eq!(
                format!("{} (status {})", name.to_str().unwrap(), status.code()),
                status.to_string()
            );
        }
        assert!(spec_status_name(9).is_null() && spec_status_name(-1).is_null());
    }
}
