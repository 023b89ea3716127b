//! # InfiniOp's C ABI
//!
//! A program that was written against InfiniOp's C API for `topkrouter` or `topksoftmax` runs
//! against this library without a change: the symbols, the struct layouts, and the numbers of
//! dtypes, devices and statuses are the same. InfiniCore has two libraries, `libinfiniop.so` and
//! `libinfinirt.so`; here the second is a link to the first. `docs/c.md` describes the
//! installation.
//!
//! | module | |
//! |---|---|
//! | `runtime` | `infinirt..`: the current device, memory, streams |
//! | `descriptor` | handles and descriptors of tensors |
//! | `routers` | `topkrouter` and `topksoftmax` |
//! | `missing` | other functions that programs look up; each returns status 2 |

#![allow(non_snake_case, reason = "named as InfiniOp has them")]

#[cfg(feature = "cuda")]
mod cuda;
mod descriptor;
mod missing;
mod routers;
mod runtime;

pub use descriptor::*;
pub use missing::*;
pub use routers::*;
pub use runtime::*;

use std::panic::{AssertUnwindSafe, catch_unwind};

use spec::{Result, Status};

/// `infiniStatus_t`: a number of [`Status`].
pub type Code = i32;

/// Runs the body of a call and returns its status. A panic is status 1, because a panic must not
/// unwind into C.
fn guard(body: impl FnOnce() -> Result<(), Status>) -> Code {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => Status::Success.code(),
        Ok(Err(status)) => status.code(),
        Err(payload) => {
            // Dropping the payload could panic again, so it leaks.
            std::mem::forget(payload);
            Status::InternalError.code()
        }
    }
}

/// The object behind a pointer; an error if the pointer is null.
///
/// # Safety
/// `pointer` is null or valid for reading during `'a`.
unsafe fn at<'a, T>(pointer: *const T) -> Result<&'a T, Status> {
    // SAFETY: the caller promises that `pointer` is null or valid for reading.
    unsafe { pointer.as_ref() }.ok_or(Status::NullPointer)
}

/// Writes a call's result through the caller's pointer; an error if the pointer is null.
///
/// # Safety
/// `to` is null or valid for writing.
unsafe fn put<T>(to: *mut T, value: T) -> Result<(), Status> {
    if to.is_null() {
        return Err(Status::NullPointer);
    }
    // SAFETY: `to` is not null, so the caller promises that it is valid for writing.
    unsafe { to.write(value) };
    Ok(())
}

/// Destroys an object that was given to C by `Box::into_raw`.
///
/// # Safety
/// `pointer` is null or from `Box::into_raw`, and nobody uses the object any more.
unsafe fn destroy<T>(pointer: *mut T) -> Code {
    guard(|| {
        if pointer.is_null() {
            return Err(Status::NullPointer);
        }
        // SAFETY: `pointer` is not null, so the caller promises that it is from `Box::into_raw` and
        // that nobody uses the object any more.
        drop(unsafe { Box::from_raw(pointer) });
        Ok(())
    })
}
