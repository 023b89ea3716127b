//! The functions `infinirt..`: the thread's current device, its memory and its streams.
//!
//! On the CPU the memory is host memory; on NVIDIA the functions call the CUDA driver. Events and
//! graphs are not implemented (status 2).

use std::cell::Cell;
use std::ffi::c_void;

use spec::Status;

#[cfg(feature = "cuda")]
use crate::cuda;
use crate::{Code, guard, put};

/// `INFINI_DEVICE_CPU`.
const CPU: i32 = 0;
/// `INFINI_DEVICE_NVIDIA`.
const NVIDIA: i32 = 1;
/// `INFINI_DEVICE_TYPE_COUNT`.
const KINDS: usize = 11;

thread_local! {
    static CURRENT: Cell<(i32, i32)> = const { Cell::new((CPU, 0)) };
}

/// The thread's current device: its kind and its number.
pub(crate) fn current() -> (i32, i32) {
    CURRENT.try_with(Cell::get).unwrap_or((CPU, 0))
}

/// The name of a device in `spec`, for example `cuda:0`.
pub(crate) fn name(device: i32, device_id: i32) -> Result<String, Status> {
    match device {
        CPU => Ok("cpu".to_owned()),
        NVIDIA => Ok(format!("cuda:{device_id}")),
        _ => Err(Status::DeviceTypeNotSupported),
    }
}

fn count(device: i32) -> i32 {
    let backend = match device {
        CPU => "cpu",
        NVIDIA => "cuda",
        _ => return 0,
    };
    let listing = spec::devices().into_iter().find(|listing| listing.backend == backend);
    let found = listing.and_then(|listing| listing.devices.ok());
    found.map_or(0, |found| found.len() as i32)
}

/// Runs `host` if the CPU is current. If an NVIDIA device is current, makes its CUDA context
/// current and runs `gpu`.
fn on_current(
    host: impl FnOnce() -> Result<(), Status>,
    #[cfg(feature = "cuda")] gpu: impl FnOnce() -> Result<(), Status>,
) -> Code {
    guard(|| match current() {
        (CPU, _) => host(),
        #[cfg(feature = "cuda")]
        (NVIDIA, id) => {
            cuda::enter(id)?;
            gpu()
        }
        _ => Err(Status::DeviceTypeNotSupported),
    })
}

/// Calls the function `on_current`, and drops the second body in a build without CUDA.
macro_rules! on_current {
    ($host:expr, $gpu:expr) => {
        on_current(
            || $host,
            #[cfg(feature = "cuda")]
            || $gpu,
        )
    };
}

/// Does nothing, because devices are opened at their first use.
#[unsafe(no_mangle)]
pub extern "C" fn infinirtInit() -> Code {
    Status::Success.code()
}

/// Writes the number of devices of each kind.
///
/// # Safety
/// `counts` is null or has room for `INFINI_DEVICE_TYPE_COUNT` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn infinirtGetAllDeviceCount(counts: *mut i32) -> Code {
    guard(|| {
        if counts.is_null() {
            return Err(Status::NullPointer);
        }
        for kind in 0..KINDS {
            // SAFETY: the caller promises room for a number of each kind.
            unsafe { counts.add(kind).write(count(kind as i32)) };
        }
        Ok(())
    })
}

/// Writes the number of devices of a kind.
///
/// # Safety
/// `to` is null or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn infinirtGetDeviceCount(device: i32, to: *mut i32) -> Code {
    // SAFETY: the caller promises that `to` is null or valid for writing.
    guard(|| unsafe { put(to, count(device)) })
}

/// Makes a device the thread's current one.
#[unsafe(no_mangle)]
pub extern "C" fn infinirtSetDevice(device: i32, device_id: i32) -> Code {
    guard(|| {
        name(device, device_id)?;
        if device == CPU && device_id != 0 {
            return Err(Status::DeviceNotFound);
        }
        if device == NVIDIA {
            #[cfg(feature = "cuda")]
            cuda::enter(device_id)?;
            #[cfg(not(feature = "cuda"))]
            return Err(Status::DeviceNotFound);
        }
        CURRENT.with(|current| current.set((device, device_id)));
        Ok(())
    })
}

/// Writes the kind and the number of the thread's current device.
///
/// # Safety
/// `device` and `device_id` are null or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn infinirtGetDevice(device: *mut i32, device_id: *mut i32) -> Code {
    guard(|| {
        let (kind, number) = current();
        // SAFETY: the caller promises that both pointers are null or valid for writing.
        unsafe {
            put(device, kind)?;
            put(device_id, number)
        }
    })
}

/// Waits for all work on the current device.
#[unsafe(no_mangle)]
pub extern "C" fn infinirtDeviceSynchronize() -> Code {
    on_current!(Ok(()), cuda::synchronize())
}

/// Makes a stream of the current device; NULL on the CPU.
///
/// # Safety
/// `stream` is null or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn infinirtStreamCreate(stream: *mut *mut c_void) -> Code {
    // SAFETY: the caller promises that `stream` is null or valid for writing.
    let give = |made| unsafe { put(stream, made) };
    on_current!(give(std::ptr::null_mut()), cuda::make_stream().and_then(give))
}

/// Destroys a stream.
///
/// # Safety
/// `stream` is null or from `infinirtStreamCreate`, and nobody uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn infinirtStreamDestroy(stream: *mut c_void) -> Code {
    // SAFETY: the caller promises that the stream is null or used by nobody any more.
    on_current!(Ok(()), unsafe { cuda::end_stream(stream) })
}

/// Waits for all work on a stream.
///
/// # Safety
/// `stream` is null or a stream of the current device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn infinirtStreamSynchronize(stream: *mut c_void) -> Code {
    // SAFETY: the caller promises that the stream is null or one of the current device.
    on_current!(Ok(()), unsafe { cuda::synchronize_stream(stream) })
}

/// Allocates memory on the current device.
///
/// # Safety
/// `to` is null or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn infinirtMalloc(to: *mut *mut c_void, size: usize) -> Code {
    // SAFETY: the caller promises that `to` is null or valid for writing.
    let give = |made| unsafe { put(to, made) };
    // SAFETY: the caller promises that `to` is null or valid for writing.
    on_current!(unsafe { allocate(to, size) }, cuda::allocate(size).and_then(give))
}

/// Allocates host memory.
///
/// # Safety
/// `to` is null or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn infinirtMallocHost(to: *mut *mut c_void, size: usize) -> Code {
    // SAFETY: the caller promises that `to` is null or valid for writing.
    guard(|| unsafe { allocate(to, size) })
}

/// Frees memory of the current device.
///
/// # Safety
/// `memory` is null or from `infinirtMalloc`, and nobody uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn infinirtFree(memory: *mut c_void) -> Code {
    on_current!(
        {
            // SAFETY: the caller promises that `memory` is null, or from the allocating function
            // and used by nobody any more.
            unsafe { libc::free(memory) };
            Ok(())
        },
        // SAFETY: the caller promises that `memory` is null, or from `infinirtMalloc` and used by
        // nobody any more.
        unsafe { cuda::free(memory) }
    )
}

/// Frees host memory.
///
/// # Safety
/// `memory` is null or from `infinirtMallocHost`, and nobody uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn infinirtFreeHost(memory: *mut c_void) -> Code {
    guard(|| {
        // SAFETY: the caller promises that `memory` is null, or from the allocating function and
        // used by nobody any more.
        unsafe { libc::free(memory) };
        Ok(())
    })
}

/// Copies `size` bytes and waits for the copy. The direction `kind` is not needed: on the CPU all
/// memory is the host's, and the CUDA driver sees from the addresses which memory is the host's.
///
/// # Safety
/// `to` and `from` are each null or have `size` bytes, on the host or on the current device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn infinirtMemcpy(
    to: *mut c_void,
    from: *const c_void,
    size: usize,
    _kind: i32,
) -> Code {
    // SAFETY: the caller promises `size` bytes at both addresses.
    on_current!(unsafe { copy(to, from, size) }, unsafe { cuda::copy(to, from, size) })
}

/// Enqueues a copy of `size` bytes on a stream. On the CPU the copy is done when the function
/// returns.
///
/// # Safety
/// As for [`infinirtMemcpy`], until the copy is done. `stream` is null or a stream of the current
/// device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn infinirtMemcpyAsync(
    to: *mut c_void,
    from: *const c_void,
    size: usize,
    _kind: i32,
    stream: *mut c_void,
) -> Code {
    // SAFETY: the caller promises that both addresses have `size` bytes until the copy is done.
    on_current!(unsafe { copy(to, from, size) }, unsafe { cuda::copy_on(to, from, size, stream) })
}

/// Sets `count` bytes to the lowest byte of `value`.
///
/// # Safety
/// `memory` is null or has `count` bytes on the current device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn infinirtMemset(memory: *mut c_void, value: i32, count: usize) -> Code {
    // SAFETY: the caller promises that `memory` has `count` bytes.
    on_current!(unsafe { set(memory, value, count) }, unsafe { cuda::set(memory, value, count) })
}

unsafe fn allocate(to: *mut *mut c_void, size: usize) -> Result<(), Status> {
    // SAFETY: `malloc` accepts any size.
    let made = unsafe { libc::malloc(size.max(1)) };
    if made.is_null() {
        return Err(Status::InternalError);
    }
    // SAFETY: the caller promises that `to` is null or valid for writing. If `to` is null, the
    // memory has no other owner and is freed here.
    unsafe { put(to, made).inspect_err(|_| libc::free(made)) }
}

unsafe fn copy(to: *mut c_void, from: *const c_void, size: usize) -> Result<(), Status> {
    if size > 0 && (to.is_null() || from.is_null()) {
        return Err(Status::NullPointer);
    }
    if size > 0 {
        // SAFETY: neither is null, and the caller promises `size` bytes at both.
        unsafe { to.cast::<u8>().copy_from(from.cast(), size) };
    }
    Ok(())
}

unsafe fn set(memory: *mut c_void, value: i32, count: usize) -> Result<(), Status> {
    if count > 0 && memory.is_null() {
        return Err(Status::NullPointer);
    }
    if count > 0 {
        // SAFETY: not null, and the caller promises `count` bytes.
        unsafe { memory.cast::<u8>().write_bytes(value as u8, count) };
    }
    Ok(())
}

/// Exports functions of InfiniCore's runtime that are not implemented: each returns status 2.
macro_rules! missing {
    ($($name:ident)+) => {$(
        /// Not implemented: status 2.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> Code {
            Status::NotImplemented.code()
        }
    )+};
}

missing! {
    infinirtEventCreate
    infinirtEventCreateWithFlags
    infinirtEventDestroy
    infinirtEventElapsedTime
    infinirtEventQuery
    infinirtEventRecord
    infinirtEventSynchronize
    infinirtFreeAsync
    infinirtGetDeviceResourceSnapshot
    infinirtGetMemInfo
    infinirtGraphDestroy
    infinirtGraphExecDestroy
    infinirtGraphInstantiate
    infinirtGraphLuanch
    infinirtMallocAsync
    infinirtMemsetAsync
    infinirtStreamBeginCapture
    infinirtStreamEndCapture
    infinirtStreamWaitEvent
}
