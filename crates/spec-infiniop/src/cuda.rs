//! Memory and streams of NVIDIA devices, by calls to the CUDA driver.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

use cudarc::driver::sys::{self, CUresult};
use spec::Status;

fn check(code: CUresult) -> Result<(), Status> {
    if code == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(Status::InternalError) }
}

/// Makes the device's primary context current on this thread, as CUDA's runtime does. A context is
/// retained at its first use and never released.
pub(crate) fn enter(id: i32) -> Result<(), Status> {
    static CONTEXTS: Mutex<Option<HashMap<i32, usize>>> = Mutex::new(None);
    let mut contexts = CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    let contexts = contexts.get_or_insert_default();
    let context = match contexts.get(&id) {
        Some(&context) => context,
        None => {
            let found = spec::cuda::devices().map_err(|error| error.status())?;
            let there = found.iter().any(|info| i32::try_from(info.device.index()) == Ok(id));
            if !there {
                return Err(Status::DeviceNotFound);
            }
            let (mut device, mut context) = (0, std::ptr::null_mut());
            // SAFETY: the driver is loaded, since `spec::cuda::devices` found this device, and both
            // pointers are to local variables.
            unsafe {
                check(sys::cuDeviceGet(&mut device, id))?;
                check(sys::cuDevicePrimaryCtxRetain(&mut context, device))?;
            }
            let context = context.expose_provenance();
            contexts.insert(id, context);
            context
        }
    };
    // SAFETY: the context was retained above and is never released.
    check(unsafe { sys::cuCtxSetCurrent(std::ptr::with_exposed_provenance_mut(context)) })
}

fn address(memory: *const c_void) -> u64 {
    memory.expose_provenance() as u64
}

pub(crate) fn synchronize() -> Result<(), Status> {
    // SAFETY: the caller made a context current with `enter`.
    check(unsafe { sys::cuCtxSynchronize() })
}

pub(crate) fn make_stream() -> Result<*mut c_void, Status> {
    let mut stream = std::ptr::null_mut();
    // SAFETY: the caller made a context current with `enter`, and `stream` is a local variable.
    check(unsafe { sys::cuStreamCreate(&mut stream, 0) })?;
    Ok(stream.cast())
}

/// # Safety
/// The stream is one of the driver's, and nobody uses it any more.
pub(crate) unsafe fn end_stream(stream: *mut c_void) -> Result<(), Status> {
    // SAFETY: the caller promises a stream of the driver that nobody uses any more.
    check(unsafe { sys::cuStreamDestroy_v2(stream.cast()) })
}

/// # Safety
/// The stream is one of the driver's.
pub(crate) unsafe fn synchronize_stream(stream: *mut c_void) -> Result<(), Status> {
    // SAFETY: the caller promises a stream of the driver.
    check(unsafe { sys::cuStreamSynchronize(stream.cast()) })
}

pub(crate) fn allocate(size: usize) -> Result<*mut c_void, Status> {
    let mut memory = 0;
    // SAFETY: the caller made a context current with `enter`, and `memory` is a local variable.
    check(unsafe { sys::cuMemAlloc_v2(&mut memory, size.max(1)) })?;
    Ok(std::ptr::with_exposed_provenance_mut(memory as usize))
}

/// # Safety
/// The memory is from [`allocate`], and nobody uses it any more.
pub(crate) unsafe fn free(memory: *mut c_void) -> Result<(), Status> {
    if memory.is_null() {
        return Ok(());
    }
    // SAFETY: the caller promises memory from `allocate` that nobody uses any more.
    check(unsafe { sys::cuMemFree_v2(address(memory)) })
}

/// # Safety
/// `to` and `from` have `size` bytes each.
pub(crate) unsafe fn copy(to: *mut c_void, from: *const c_void, size: usize) -> Result<(), Status> {
    // SAFETY: the caller promises `size` bytes at both addresses.
    check(unsafe { sys::cuMemcpy(address(to), address(from), size) })
}

/// # Safety
/// `to` and `from` have `size` bytes each until the copy is done. The stream is one of the
/// driver's.
pub(crate) unsafe fn copy_on(
    to: *mut c_void,
    from: *const c_void,
    size: usize,
    stream: *mut c_void,
) -> Result<(), Status> {
    // SAFETY: the caller promises `size` bytes at both addresses until the copy is done, and a
    // stream of the driver.
    check(unsafe { sys::cuMemcpyAsync(address(to), address(from), size, stream.cast()) })
}

/// # Safety
/// The memory has `count` bytes.
pub(crate) unsafe fn set(memory: *mut c_void, value: i32, count: usize) -> Result<(), Status> {
    // SAFETY: the caller promises `count` bytes.
    check(unsafe { sys::cuMemsetD8_v2(address(memory), value as u8, count) })
}
