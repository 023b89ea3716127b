//! `infinirt..`: the thread's current device, its memory and its streams.
//!
//! Enough for a program that brings its own tensors: host memory on the CPU, and the
//! driver's own calls on NVIDIA. Events and graphs are not there (status 2).

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

/// A device as `spec` names it.
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

/// What a call does on the CPU, and on the NVIDIA device that is current.
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

/// What `on_current` does with the body for CUDA where that was left out.
macro_rules! on_current {
    ($host:expr, $gpu:expr) => {
        on_current(
            || $host,
            #[cfg(feature = "cuda")]
            || $gpu,
        )
    };
}

/// Nothing to do: devices are opened when they are used.
#[unsafe(no_mangle)]
pub extern "C" fn infinirtInit() -> Code {
    Status::Success.code()
}

/// How many devices there are of each kind.
///
/// # Safety
/// `counts` is null or has a place for each kind of device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn infinirtGetAllDeviceCount(counts: *mut i32) -> Code {
    guard(|| {
        if counts.is_null() {
            return Err(Status::NullPointer);
        }
        for kind in 0..KINDS {
            // SAFETY: a place for each kind by the caller's word.
            unsafe { counts.add(kind).write(count(kind as i32)) };
        }
        Ok(())
    })
}

/// How many devices there are of a kind.
///
/// # Safety
/// `to` is null or a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn infinirtGetDeviceCount(device: i32, to: *mut i32) -> Code {
    // SAFETY: the caller's.
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

/// The thread's current device.
///
/// # Safety
/// Both are null or places.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn infinirtGetDevice(device: *mut i32, device_id: *mut i32) -> Code {
    guard(|| {
        let (kind, number) = current();
        // SAFETY: the caller's.
        unsafe {
            put(device, kind)?;
            put(device_id, number)
        }
    })
}

/// Waits for all work of the current device.
#[unsafe(no_mangle)]
pub extern "C" fn infinirtDeviceSynchronize() -> Code {
    on_current!(Ok(()), cuda::synchronize())
}

/// A stream; NULL on the CPU.
///
/// # Safety
/// `stream` is null or a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn infinirtStreamCreate(stream: *mut *mut c_void) -> Code {
    // SAFETY: the caller's.
    let give = |made| unsafe { put(stream, made) };
    on_current!(give(std::ptr::null_mut()), cuda::make_stream().and_then(give))
}

/// Ends a stream.
///
/// # Safety
/// `stream` is null or from `infinirtStreamCreate`, and nobody uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn infinirtStreamDestroy(stream: *mut c_void) -> Code {
    // SAFETY: the caller's.
    on_current!(Ok(()), unsafe { cuda::end_stream(stream) })
}

/// Waits for a stream.
///
/// # Safety
/// `stream` is null or a stream of the device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn infinirtStreamSynchronize(stream: *mut c_void) -> Code {
    // SAFETY: the caller's.
    on_current!(Ok(()), unsafe { cuda::synchronize_stream(stream) })
}

/// Memory of the current device.
///
/// # Safety
/// `to` is null or a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn infinirtMalloc(to: *mut *mut c_void, size: usize) -> Code {
    // SAFETY: the caller's.
    let give = |made| unsafe { put(to, made) };
    // SAFETY: the caller's.
    on_current!(unsafe { allocate(to, size) }, cuda::allocate(size).and_then(give))
}

/// Host memory.
///
/// # Safety
/// `to` is null or a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn infinirtMallocHost(to: *mut *mut c_void, size: usize) -> Code {
    // SAFETY: the caller's.
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
            // SAFETY: the caller's.
            unsafe { libc::free(memory) };
            Ok(())
        },
        // SAFETY: the caller's.
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
        // SAFETY: the caller's.
        unsafe { libc::free(memory) };
        Ok(())
    })
}

/// Copies, and waits for it.
///
/// # Safety
/// Both have so many bytes, where `kind` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn infinirtMemcpy(
    to: *mut c_void,
    from: *const c_void,
    size: usize,
    _kind: i32,
) -> Code {
    // SAFETY: the caller's. The driver sees from the addresses where they are.
    on_current!(unsafe { copy(to, from, size) }, unsafe { cuda::copy(to, from, size) })
}

/// Copies on a stream.
///
/// # Safety
/// As for `infinirtMemcpy`, until the copy is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn infinirtMemcpyAsync(
    to: *mut c_void,
    from: *const c_void,
    size: usize,
    _kind: i32,
    stream: *mut c_void,
) -> Code {
    // SAFETY: the caller's.
    on_current!(unsafe { copy(to, from, size) }, unsafe { cuda::copy_on(to, from, size, stream) })
}

/// Sets bytes.
///
/// # Safety
/// `memory` is of the current device and has so many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn infinirtMemset(memory: *mut c_void, value: i32, count: usize) -> Code {
    // SAFETY: the caller's.
    on_current!(unsafe { set(memory, value, count) }, unsafe { cuda::set(memory, value, count) })
}

unsafe fn allocate(to: *mut *mut c_void, size: usize) -> Result<(), Status> {
    // SAFETY: any size may be asked for.
    let made = unsafe { libc::malloc(size.max(1)) };
    if made.is_null() {
        return Err(Status::InternalError);
    }
    // SAFETY: the caller's; what was allocated is freed where there is no place for it.
    unsafe { put(to, made).inspect_err(|_| libc::free(made)) }
}

unsafe fn copy(to: *mut c_void, from: *const c_void, size: usize) -> Result<(), Status> {
    if size > 0 && (to.is_null() || from.is_null()) {
        return Err(Status::NullPointer);
    }
    if size > 0 {
        // SAFETY: so many bytes in both by the caller's word.
        unsafe { to.cast::<u8>().copy_from(from.cast(), size) };
    }
    Ok(())
}

unsafe fn set(memory: *mut c_void, value: i32, count: usize) -> Result<(), Status> {
    if count > 0 && memory.is_null() {
        return Err(Status::NullPointer);
    }
    if count > 0 {
        // SAFETY: so many bytes by the caller's word.
        unsafe { memory.cast::<u8>().write_bytes(value as u8, count) };
    }
    Ok(())
}

/// What InfiniCore's runtime has beyond: status 2.
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
