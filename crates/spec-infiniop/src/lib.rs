//! # InfiniOp's C ABI
//!
//! A program that was written against InfiniOp's C API for `topkrouter` or `topksoftmax`
//! runs against this library without a change: the same symbols, struct layouts, dtype,
//! device and status numbers. One library has both of InfiniCore's names: `libinfinirt.so`
//! is a link to `libinfiniop.so`. `docs/c.md` says how to install them.
//!
//! | module | |
//! |---|---|
//! | `runtime` | `infinirt..`: the current device, memory, streams |
//! | `descriptor` | handles and descriptors of tensors |
//! | `routers` | `topkrouter` and `topksoftmax` |
//! | `missing` | everything else that programs look up: status 2 |

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

/// Runs what a call does; a panic is status 1.
fn guard(body: impl FnOnce() -> Result<(), Status>) -> Code {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => Status::Success.code(),
        Ok(Err(status)) => status.code(),
        Err(payload) => {
            // What is inside might panic again as it is dropped.
            std::mem::forget(payload);
            Status::InternalError.code()
        }
    }
}

/// What a pointer points to.
///
/// # Safety
/// It is null, or good for reading as long as `'a`.
unsafe fn at<'a, T>(pointer: *const T) -> Result<&'a T, Status> {
    // SAFETY: the caller's.
    unsafe { pointer.as_ref() }.ok_or(Status::NullPointer)
}

/// Writes a result.
///
/// # Safety
/// `to` is null or a place.
unsafe fn put<T>(to: *mut T, value: T) -> Result<(), Status> {
    if to.is_null() {
        return Err(Status::NullPointer);
    }
    // SAFETY: a place by the caller's word.
    unsafe { to.write(value) };
    Ok(())
}

/// Ends what `Box::into_raw` began.
///
/// # Safety
/// `pointer` is null or from there, and nobody uses it any more.
unsafe fn destroy<T>(pointer: *mut T) -> Code {
    guard(|| {
        if pointer.is_null() {
            return Err(Status::NullPointer);
        }
        // SAFETY: the caller's.
        drop(unsafe { Box::from_raw(pointer) });
        Ok(())
    })
}
