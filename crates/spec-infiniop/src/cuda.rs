//! Memory and streams of NVIDIA devices: the driver's own calls.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

use cudarc::driver::sys::{self, CUresult};
use spec::Status;

fn check(code: CUresult) -> Result<(), Status> {
    if code == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(Status::InternalError) }
}

/// Makes the device's primary context this thread's, as CUDA's runtime does; a context
/// that was asked for once is kept.
pub(crate) fn enter(id: i32) -> Result<(), Status> {
    static KEPT: Mutex<Option<HashMap<i32, usize>>> = Mutex::new(None);
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    let kept = kept.get_or_insert_default();
    let context = match kept.get(&id) {
        Some(&context) => context,
        None => {
            let found = spec::cuda::devices().map_err(|error| error.status())?;
            let there = found.iter().any(|info| i32::try_from(info.device.index()) == Ok(id));
            if !there {
                return Err(Status::DeviceNotFound);
            }
            let (mut device, mut context) = (0, std::ptr::null_mut());
            // SAFETY: the driver is there, since it has this device; both are places.
            unsafe {
                check(sys::cuDeviceGet(&mut device, id))?;
                check(sys::cuDevicePrimaryCtxRetain(&mut context, device))?;
            }
            let context = context.expose_provenance();
            kept.insert(id, context);
            context
        }
    };
    // SAFETY: retained above, and kept.
    check(unsafe { sys::cuCtxSetCurrent(std::ptr::with_exposed_provenance_mut(context)) })
}

fn address(memory: *const c_void) -> u64 {
    memory.expose_provenance() as u64
}

pub(crate) fn synchronize() -> Result<(), Status> {
    // SAFETY: a context is current.
    check(unsafe { sys::cuCtxSynchronize() })
}

pub(crate) fn make_stream() -> Result<*mut c_void, Status> {
    let mut stream = std::ptr::null_mut();
    // SAFETY: a context is current, and `stream` is a place.
    check(unsafe { sys::cuStreamCreate(&mut stream, 0) })?;
    Ok(stream.cast())
}

/// # Safety
/// The stream is the driver's, and nobody uses it any more.
pub(crate) unsafe fn end_stream(stream: *mut c_void) -> Result<(), Status> {
    // SAFETY: the caller's.
    check(unsafe { sys::cuStreamDestroy_v2(stream.cast()) })
}

/// # Safety
/// The stream is the driver's.
pub(crate) unsafe fn synchronize_stream(stream: *mut c_void) -> Result<(), Status> {
    // SAFETY: the caller's.
    check(unsafe { sys::cuStreamSynchronize(stream.cast()) })
}

pub(crate) fn allocate(size: usize) -> Result<*mut c_void, Status> {
    let mut memory = 0;
    // SAFETY: a context is current, and `memory` is a place.
    check(unsafe { sys::cuMemAlloc_v2(&mut memory, size.max(1)) })?;
    Ok(std::ptr::with_exposed_provenance_mut(memory as usize))
}

/// # Safety
/// The memory is from [`allocate`], and nobody uses it any more.
pub(crate) unsafe fn free(memory: *mut c_void) -> Result<(), Status> {
    if memory.is_null() {
        return Ok(());
    }
    // SAFETY: the caller's.
    check(unsafe { sys::cuMemFree_v2(address(memory)) })
}

/// # Safety
/// Both have so many bytes.
pub(crate) unsafe fn copy(to: *mut c_void, from: *const c_void, size: usize) -> Result<(), Status> {
    // SAFETY: the caller's.
    check(unsafe { sys::cuMemcpy(address(to), address(from), size) })
}

/// # Safety
/// Both have so many bytes until the copy is done; the stream is the driver's.
pub(crate) unsafe fn copy_on(
    to: *mut c_void,
    from: *const c_void,
    size: usize,
    stream: *mut c_void,
) -> Result<(), Status> {
    // SAFETY: the caller's.
    check(unsafe { sys::cuMemcpyAsync(address(to), address(from), size, stream.cast()) })
}

/// # Safety
/// The memory has so many bytes.
pub(crate) unsafe fn set(memory: *mut c_void, value: i32, count: usize) -> Result<(), Status> {
    // SAFETY: the caller's.
    check(unsafe { sys::cuMemsetD8_v2(address(memory), value as u8, count) })
}
