//! Statuses, the last error as a sentence, and the catching of panics, which must not unwind into
//! C.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use spec::{Error, Result, Status};

/// The version of this header's structs and functions. The version grows with a change that breaks
/// programs which were compiled with an older header. Additions alone do not change it.
pub const SPEC_ABI_VERSION: u32 = 1;

/// The `SPEC_ABI_VERSION` that the library was built with.
#[unsafe(no_mangle)]
pub extern "C" fn spec_abi_version() -> u32 {
    SPEC_ABI_VERSION
}

/// The result of a call. The numbers are those of InfiniOp. `spec_last_error` has a sentence for
/// each failure.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum spec_status {
    /// The call succeeded.
    SPEC_STATUS_SUCCESS = 0,
    /// The device or the system failed: a driver error, a lost device, not enough memory.
    SPEC_STATUS_INTERNAL_ERROR = 1,
    /// The operator or option exists, but the device's backend does not have it.
    SPEC_STATUS_NOT_IMPLEMENTED = 2,
    /// A parameter is out of its range.
    SPEC_STATUS_BAD_PARAM = 3,
    /// A required argument is absent, or a pointer is null.
    SPEC_STATUS_NULL_POINTER = 4,
    /// The memory or stream belongs to another kind of device.
    SPEC_STATUS_DEVICE_TYPE_NOT_SUPPORTED = 5,
    /// There is no such device on this machine.
    SPEC_STATUS_DEVICE_NOT_FOUND = 6,
    /// The device exists but has not been opened.
    SPEC_STATUS_DEVICE_NOT_INITIALIZED = 7,
    /// The device is older than what the kernels need.
    SPEC_STATUS_DEVICE_ARCHITECTURE_NOT_SUPPORTED = 8,
    /// The operator does not take a tensor's element type.
    SPEC_STATUS_BAD_TENSOR_DTYPE = 10,
    /// A tensor's shape, or a buffer's size, does not fit.
    SPEC_STATUS_BAD_TENSOR_SHAPE = 11,
    /// The operator does not take a tensor's strides.
    SPEC_STATUS_BAD_TENSOR_STRIDES = 12,
    /// The workspace is smaller than the descriptor's workspace size.
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
            // Internal errors, and statuses that later versions may add.
            _ => SPEC_STATUS_INTERNAL_ERROR,
        }
    }
}

/// The name of a status, for example "bad tensor shape"; NULL for a number that is no status. The
/// text is never freed.
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

/// Copies the last error of this thread to `buffer`: a sentence in UTF-8 that names the call, the
/// argument, its value and the expected value. The sentence ends with a zero and is cut if
/// `buffer` is too small.
///
/// Returns the number of bytes that the whole sentence needs, including its zero; 1 if no call of
/// this thread has failed. A call that succeeds does not change the sentence.
///
/// # Safety
/// `buffer` is NULL or has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_last_error(buffer: *mut c_char, size: usize) -> usize {
    // SAFETY: the caller promises room for `size` bytes in `buffer`.
    let copy = |last: &RefCell<String>| unsafe { copy_words(&last.borrow(), buffer, size) };
    // A thread that is ending may have destroyed its sentence already: as if there were none.
    LAST.try_with(copy).unwrap_or(1)
}

/// Copies a text to `buffer`, with a zero at its end, cut if the buffer is too small. Returns the number
/// of bytes that the whole text needs, including its zero.
///
/// # Safety
/// `buffer` is NULL or has room for `size` bytes. It is apart from the text, as every buffer of a
/// caller is.
pub(crate) unsafe fn copy_words(text: &str, buffer: *mut c_char, size: usize) -> usize {
    if !buffer.is_null() && size > 0 {
        let mut cut = text.len().min(size - 1);
        while !text.is_char_boundary(cut) {
            cut -= 1;
        }
        // SAFETY: `cut` is less than `size`, for which the caller promises room in `buffer`, and at
        // most `text.len()`.
        unsafe {
            buffer.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), cut);
            *buffer.add(cut) = 0;
        }
    }
    text.len() + 1
}

fn remember(words: String) {
    // A thread that is ending may have destroyed its sentence already.
    let _ = LAST.try_with(|last| *last.borrow_mut() = words);
}

/// Runs the body of a call. An error becomes the thread's last error; a panic becomes one too,
/// with status 1.
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
    // Dropping the payload could panic again, so it leaks.
    std::mem::forget(payload);
    let words = words.unwrap_or_else(|| "no words".to_owned());
    remember(format!("{call}: a defect of this library: {words}: {}", Status::InternalError));
    SPEC_STATUS_INTERNAL_ERROR
}

/// The error for a wrong argument of a call.
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

/// The memory that a call's output parameter points to, or an error if the pointer is null or not
/// aligned.
///
/// # Safety
/// `out` is null or valid for writing a `T` during `'a`.
#[inline]
pub(crate) unsafe fn out_pointer<'a, T>(
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
    // SAFETY: `out` is not null and aligned, as checked above, and the caller promises that it is
    // valid for writing.
    Ok(unsafe { &mut *out.cast() })
}

/// Text that C passes to a call.
///
/// # Safety
/// `text` is null or points to text that ends with a zero and stays unchanged during `'a`.
pub(crate) unsafe fn text<'a>(
    call: &'static str,
    argument: &'static str,
    text: *const c_char,
) -> Result<&'a str> {
    if text.is_null() {
        return Err(refuse(Status::NullPointer, call, argument, "a null pointer", "a name"));
    }
    // SAFETY: `text` is not null, as checked above, and the caller promises that it ends with a
    // zero.
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
        // SAFETY: no buffer, and so none is written: the call returns the size that is needed.
        let needed = unsafe { spec_last_error(std::ptr::null_mut(), 0) };
        let mut bytes = vec![0xFFu8; needed];
        // SAFETY: `bytes` has `needed` bytes.
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
        // A success does not change the sentence.
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
