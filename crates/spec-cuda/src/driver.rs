//! The CUDA driver: finding it, the properties of its devices, the texts of its errors.

use std::ffi::CStr;
use std::fmt;
use std::marker::PhantomData;
use std::sync::OnceLock;

use cudarc::driver::sys;
use libloading::Library;
use spec_core::{Device, DeviceInfo, Error, ErrorKind, Result, Status};

use crate::MIN_COMPUTE;
use crate::limits::Limits;
use crate::shape::MAX_CLUSTER;

/// The oldest version of the driver interface that this crate accepts: CUDA 12.0.
const MIN_DRIVER: i32 = 12_000;

/// The device named by errors that concern the driver and no particular device.
const ANY: Device = Device::new("cuda", 0);

/// Displays a driver error as its name and its description.
pub(crate) struct Text(pub sys::CUresult);

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut name = std::ptr::null();
        let mut text = std::ptr::null();
        // SAFETY: `name` and `text` each have room for a pointer to a static string;
        // the pointers stay null for a code that the driver does not know.
        unsafe {
            let _ = sys::cuGetErrorName(self.0, &mut name);
            let _ = sys::cuGetErrorString(self.0, &mut text);
        }
        if name.is_null() || text.is_null() {
            return write!(f, "CUDA error {}", self.0 as u32);
        }
        // SAFETY: neither pointer is null, so both point to the driver's static strings,
        // which end with a zero.
        let (name, text) = unsafe { (CStr::from_ptr(name), CStr::from_ptr(text)) };
        write!(f, "{} ({})", name.to_string_lossy(), text.to_string_lossy())
    }
}

/// The kind of a driver error, which says how a program can react.
pub(crate) fn kind(code: sys::CUresult) -> ErrorKind {
    use sys::CUresult as C;
    match code {
        C::CUDA_ERROR_OUT_OF_MEMORY => ErrorKind::OutOfMemory,
        // After these errors the context and all memory in it are unusable.
        C::CUDA_ERROR_DEINITIALIZED
        | C::CUDA_ERROR_CONTEXT_IS_DESTROYED
        | C::CUDA_ERROR_ECC_UNCORRECTABLE
        | C::CUDA_ERROR_NVLINK_UNCORRECTABLE
        | C::CUDA_ERROR_ILLEGAL_ADDRESS
        | C::CUDA_ERROR_ILLEGAL_INSTRUCTION
        | C::CUDA_ERROR_MISALIGNED_ADDRESS
        | C::CUDA_ERROR_INVALID_ADDRESS_SPACE
        | C::CUDA_ERROR_INVALID_PC
        | C::CUDA_ERROR_HARDWARE_STACK_ERROR
        | C::CUDA_ERROR_ASSERT
        | C::CUDA_ERROR_LAUNCH_TIMEOUT
        | C::CUDA_ERROR_LAUNCH_FAILED => ErrorKind::DeviceLost,
        _ => ErrorKind::Failed,
    }
}

/// The error for a driver call that returned `code`, with the driver's own text.
fn failure(device: Device, doing: &str, code: sys::CUresult) -> Error {
    Error::failure(device, kind(code), format!("{doing}: {}", Text(code)))
}

/// `Ok` for success; for any other code an error of status 1 with the driver's text.
#[inline]
pub(crate) fn check(device: Device, doing: &str, code: sys::CUresult) -> Result<()> {
    match code {
        sys::CUresult::CUDA_SUCCESS => Ok(()),
        code => Err(failure(device, doing, code)),
    }
}

/// The driver's library, looked up by the same names as cudarc uses. cudarc opens the library
/// at run time. But if another crate makes cudarc link to the library instead, as candle does,
/// cudarc has no function that tells whether the library is there.
fn library() -> Option<Library> {
    let names =
        if cfg!(windows) { ["nvcuda.dll"].as_slice() } else { &["libcuda.so", "libcuda.so.1"] };
    // SAFETY: loading libcuda runs only the library's own initialisers, which are safe to run.
    names.iter().find_map(|name| unsafe { Library::new(*name) }.ok())
}

/// Loads and initialises the driver on the first call; later calls return the same result.
fn initialise() -> Result<()> {
    static DONE: OnceLock<Result<()>> = OnceLock::new();
    let absent = |message: String| Error::device(ANY, Status::DeviceNotFound, message);
    DONE.get_or_init(|| {
        // cudarc would panic if the library is missing.
        let library = library().ok_or_else(|| {
            let words = "there is no NVIDIA driver on this machine (libcuda was not found)";
            absent(words.to_owned())
        })?;
        // cudarc does not check either that a library of this name is the driver. The two
        // functions that run before the version is known are looked up here; a driver of a
        // sufficient version has all the others.
        // SAFETY: the symbols are looked up, not called.
        let broken = ["cuDriverGetVersion", "cuInit"]
            .into_iter()
            .find(|name| unsafe { library.get::<unsafe extern "C" fn()>(*name).is_err() });
        if let Some(name) = broken {
            return Err(absent(format!("the library libcuda on this machine has no {name}")));
        }
        let mut version = 0;
        // SAFETY: the library is loaded and has the function; `version` has room for an int.
        let asked = unsafe { sys::cuDriverGetVersion(&mut version) };
        check(ANY, "could not ask the driver its version", asked)?;
        if version < MIN_DRIVER {
            return Err(absent(format!(
                "the NVIDIA driver supports CUDA {}.{}, and 12.0 is the oldest that will do",
                version / 1000,
                version % 1000 / 10
            )));
        }
        // SAFETY: the library is loaded and has the function; 0 is the only value for flags.
        match unsafe { sys::cuInit(0) } {
            sys::CUresult::CUDA_SUCCESS => Ok(()),
            code => Err(absent(format!("the NVIDIA driver did not start: {}", Text(code)))),
        }
    })
    .clone()
}

/// Milliseconds from one event to another. The function is looked up by the name that every
/// driver has: cudarc's bindings of CUDA 13 have only a newer name, which drivers before
/// CUDA 12.8 lack.
///
/// # Safety
/// Both events are alive, were recorded, and have completed.
pub(crate) unsafe fn elapsed(
    device: Device,
    start: sys::CUevent,
    end: sys::CUevent,
) -> Result<f32> {
    type Function = unsafe extern "C" fn(*mut f32, sys::CUevent, sys::CUevent) -> sys::CUresult;
    let mut milliseconds = 0.0;
    // SAFETY: `Function` is the type of `cuEventElapsedTime`; `milliseconds` has room for the
    // time; the caller promised that the events are alive and completed.
    let code = library().and_then(|library| unsafe {
        let function = library.get::<Function>("cuEventElapsedTime").ok()?;
        Some(function(&mut milliseconds, start, end))
    });
    check(device, "could not read a time", code.unwrap_or(sys::CUresult::CUDA_ERROR_NOT_FOUND))?;
    Ok(milliseconds)
}

/// The number of devices.
pub(crate) fn device_count() -> Result<usize> {
    initialise()?;
    let mut count = 0;
    // SAFETY: the driver is initialised and `count` has room for an int.
    check(ANY, "could not count devices", unsafe { sys::cuDeviceGetCount(&mut count) })?;
    if count <= 0 {
        let words = "the NVIDIA driver is there, but it shows no device";
        return Err(Error::device(ANY, Status::DeviceNotFound, words));
    }
    Ok(count.unsigned_abs() as usize)
}

/// The properties of a device, queried once when the device is opened.
pub(crate) struct Facts {
    pub ordinal: sys::CUdevice,
    pub info: DeviceInfo,
    pub limits: Limits,
}

/// Queries the properties of a device.
pub(crate) fn describe(index: usize) -> Result<Facts> {
    let count = device_count()?;
    let device = Device::new("cuda", index);
    if index >= count {
        let words = format!("there is no such device; the driver shows {count}, from cuda:0");
        return Err(Error::device(device, Status::DeviceNotFound, words));
    }
    let mut ordinal = 0;
    // SAFETY: the index is below the count and `ordinal` has room for an int.
    let got = unsafe { sys::cuDeviceGet(&mut ordinal, index as i32) };
    check(device, "could not get the device", got)?;
    let mut name = [0; 256];
    // SAFETY: the buffer has as many bytes as the call says.
    let named = unsafe { sys::cuDeviceGetName(name.as_mut_ptr(), name.len() as i32, ordinal) };
    check(device, "could not ask for the name", named)?;
    // SAFETY: the driver ended the name with a zero inside the buffer.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
    let mut memory = 0;
    // SAFETY: `memory` has room for a size.
    let asked = unsafe { sys::cuDeviceTotalMem_v2(&mut memory, ordinal) };
    check(device, "could not ask for the memory", asked)?;

    use sys::CUdevice_attribute_enum as A;
    let attribute = |attribute| {
        let mut value = 0;
        // SAFETY: `value` has room for an int and the ordinal came from the driver.
        let asked = unsafe { sys::cuDeviceGetAttribute(&mut value, attribute, ordinal) };
        check(device, "could not ask for an attribute", asked).map(|()| value.unsigned_abs())
    };
    let compute = (
        attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
    );
    if compute < MIN_COMPUTE {
        return Err(Error::device(
            device,
            Status::DeviceArchitectureNotSupported,
            format!(
                "{name} has compute capability {}.{}, and {}.{} is the oldest that will do",
                compute.0, compute.1, MIN_COMPUTE.0, MIN_COMPUTE.1
            ),
        ));
    }
    let limits = Limits {
        compute,
        multiprocessors: attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        shared: attribute(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        cluster: if compute >= (9, 0) { MAX_CLUSTER } else { 1 },
        l2: attribute(A::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?,
        sass: true,
    };
    let limits = limits.lowered_by_env().map_err(|words| {
        Error::device(device, Status::BadParam, format!("{}: {words}", Limits::VARIABLE))
    })?;
    let mut version = 0;
    // SAFETY: `version` has room for an int.
    let asked = unsafe { sys::cuDriverGetVersion(&mut version) };
    check(device, "could not ask the driver its version", asked)?;
    let mut facts = limits.facts();
    facts.push(("driver", format!("CUDA {}.{}", version / 1000, version % 1000 / 10)));
    let info = DeviceInfo { device, name, software: false, memory: Some(memory as u64), facts };
    Ok(Facts { ordinal, info, limits })
}

/// Makes a context current on this thread until the guard is dropped. Dropping
/// the guard restores the previous context: a library must not change its
/// caller's current device.
pub(crate) struct Current {
    pushed: bool,
    /// Keeps the guard on the thread whose context it restores (not `Send`).
    _thread: PhantomData<*const ()>,
}

impl Current {
    /// # Safety
    /// The context is retained until the guard is dropped.
    #[inline]
    pub(crate) unsafe fn enter(device: Device, context: sys::CUcontext) -> Result<Self> {
        let mut current = std::ptr::null_mut();
        // SAFETY: `current` has room for a handle; the driver is initialised,
        // since a context exists.
        let asked = unsafe { sys::cuCtxGetCurrent(&mut current) };
        check(device, "could not ask for the current context", asked)?;
        if current == context {
            return Ok(Current { pushed: false, _thread: PhantomData });
        }
        // SAFETY: the caller promised that the context is retained.
        let pushed = unsafe { sys::cuCtxPushCurrent_v2(context) };
        check(device, "could not make its context current", pushed)?;
        Ok(Current { pushed: true, _thread: PhantomData })
    }
}

impl Drop for Current {
    #[inline]
    fn drop(&mut self) {
        if self.pushed {
            let mut popped = std::ptr::null_mut();
            // SAFETY: the top context of this thread is the context that `enter`
            // pushed: guards are locals of this crate's functions, dropped in
            // reverse order, and never sent to another thread.
            let _ = unsafe { sys::cuCtxPopCurrent_v2(&mut popped) };
        }
    }
}
