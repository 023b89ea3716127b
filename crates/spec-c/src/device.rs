//! Devices: listing them, opening them, waiting for their work.

use std::ffi::{c_char, c_void};

use spec::{DeviceInfo, Handle, Status};

use crate::opaque::{Slot, get, give, opaque, take};
use crate::status::{guard, out_pointer, spec_status};

/// An open device. `spec_open` makes a handle, `spec_close` closes it; threads may share it.
pub struct spec_handle(Slot<Handle>);

opaque!(spec_handle: Handle, b"spechand", "handle");

/// Properties of a device.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct spec_device {
    /// The name that `spec_open` takes, for example "cuda:0"; for a backend without a device,
    /// the backend's name, for example "cuda".
    pub name: [c_char; 32],
    /// The vendor's name of the device; for a backend without a device, the reason why it has
    /// none.
    pub description: [c_char; 216],
    /// Size of the device's memory in bytes, 0 if unknown.
    pub memory: u64,
    /// 0 for a device; for a backend without a device, the status of the failed search.
    pub status: i32,
    /// 1 for a software renderer, which is a GPU's interface on a CPU, otherwise 0.
    pub software: u32,
    /// Zeros, reserved for later versions.
    pub reserved: [u64; 4],
}

impl std::fmt::Debug for spec_device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("spec_device").field("status", &self.status).finish_non_exhaustive()
    }
}

/// Text as an array of C characters with a zero at the end. Text that is too long is cut between
/// two characters.
fn array<const N: usize>(words: &str) -> [c_char; N] {
    let mut cut = words.len().min(N - 1);
    while !words.is_char_boundary(cut) {
        cut -= 1;
    }
    let mut array = [0; N];
    for (to, &byte) in array.iter_mut().zip(&words.as_bytes()[..cut]) {
        *to = byte.cast_signed() as c_char;
    }
    array
}

impl spec_device {
    fn of(info: &DeviceInfo) -> Self {
        spec_device {
            name: array(&info.device.to_string()),
            description: array(&info.name),
            memory: info.memory.unwrap_or(0),
            status: Status::Success.code(),
            software: u32::from(info.software),
            reserved: [0; 4],
        }
    }

    fn absent(backend: &str, error: &spec::Error) -> Self {
        spec_device {
            name: array(backend),
            description: array(&error.to_string()),
            memory: 0,
            status: error.status().code(),
            software: 0,
            reserved: [0; 4],
        }
    }
}

/// Lists the devices of each backend. A backend without a device gets one entry with the reason.
/// Every call searches for devices again, which takes time.
///
/// `count` becomes the number of entries; at most `capacity` of them are written to `devices`,
/// which may be NULL if `capacity` is 0.
///
/// # Errors
/// Status 4 for a null pointer.
///
/// # Safety
/// `devices` has room for `capacity` entries; `count` is NULL or points to memory for a `size_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_devices(
    devices: *mut spec_device,
    capacity: usize,
    count: *mut usize,
) -> spec_status {
    let call = "spec_devices";
    guard(call, || {
        // SAFETY: the caller promises that `count` is null or valid for writing.
        let count = unsafe { out_pointer(call, "count", count)? };
        let mut found = Vec::new();
        for listing in spec::devices() {
            match listing.devices {
                Ok(infos) => found.extend(infos.iter().map(spec_device::of)),
                Err(error) => found.push(spec_device::absent(listing.backend, &error)),
            }
        }
        if capacity > 0 {
            // SAFETY: the caller promises that `devices` has room for `capacity` entries.
            let first = unsafe { out_pointer(call, "devices", devices)? }.as_mut_ptr();
            for (at, device) in found.iter().take(capacity).enumerate() {
                // SAFETY: `at` is less than `capacity`, for which the caller promises room.
                unsafe { first.add(at).write(*device) };
            }
        }
        count.write(found.len());
        Ok(())
    })
}

/// Opens a device by name: "cpu", "cuda", "cuda:1", "wgpu:0", or "auto" for the first GPU, or
/// the CPU on a machine without one.
///
/// On CUDA the handle retains the device's primary context, which CUDA's runtime and PyTorch use
/// too. Opening a device again is cheap and makes another handle with a queue of its own.
///
/// Where the call fails, `*handle` is NULL, whatever it was: a handle that is still open
/// has to be kept elsewhere.
///
/// # Errors
/// Status 3 for a name that names no device, 4 for a null pointer, 6 if the machine has no such
/// device, 8 if the device is too old, 1 if opening the device fails.
///
/// # Safety
/// `device` is NULL or text that ends with a zero; `handle` is NULL or points to memory for a
/// pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_open(
    device: *const c_char,
    handle: *mut *mut spec_handle,
) -> spec_status {
    let call = "spec_open";
    guard(call, || {
        // SAFETY: the caller promises that `handle` is null or valid for writing.
        let handle = unsafe { out_pointer(call, "handle", handle)? };
        handle.write(std::ptr::null_mut());
        // SAFETY: the caller promises that `device` is null or ends with a zero.
        let opened: Handle = unsafe { crate::status::text(call, "device", device)? }.parse()?;
        handle.write(give(opened));
        Ok(())
    })
}

/// Closes a handle. Descriptors and memory that were made with the handle stay valid until they
/// are destroyed or freed themselves.
///
/// # Errors
/// Status 4 for NULL, 3 for a handle that is closed already.
///
/// # Safety
/// No other thread uses the handle, now or later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_close(handle: *mut spec_handle) -> spec_status {
    let call = "spec_close";
    guard(call, || {
        // SAFETY: the caller promises that no other thread uses the handle, now or later.
        drop(unsafe { take(call, handle)? });
        Ok(())
    })
}

/// Writes the properties of an open device.
///
/// # Errors
/// Status 4 for a null pointer, 3 for a handle that is closed.
///
/// # Safety
/// `handle` is from `spec_open`; `device` is NULL or points to memory for a `spec_device`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_handle_device(
    handle: *const spec_handle,
    device: *mut spec_device,
) -> spec_status {
    let call = "spec_handle_device";
    guard(call, || {
        // SAFETY: the caller promises that `handle` is from `spec_open` and `device` null or valid
        // for writing.
        let (handle, device) =
            unsafe { (get(call, handle)?, out_pointer(call, "device", device)?) };
        device.write(spec_device::of(handle.info()));
        Ok(())
    })
}

/// Writes the handle's own stream: a `cudaStream_t` on CUDA, NULL on other backends. The stream
/// lives as long as the handle and does not wait for the default stream. `spec_synchronize` waits
/// for this stream, and memory from `spec_allocate` is allocated and freed in its order.
///
/// # Errors
/// Status 4 for a null pointer, 3 for a handle that is closed.
///
/// # Safety
/// `handle` is from `spec_open`; `stream` is NULL or points to memory for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_handle_stream(
    handle: *const spec_handle,
    stream: *mut *mut c_void,
) -> spec_status {
    let call = "spec_handle_stream";
    guard(call, || {
        // SAFETY: the caller promises that `handle` is from `spec_open` and `stream` null or valid
        // for writing.
        let (handle, stream) =
            unsafe { (get(call, handle)?, out_pointer(call, "stream", stream)?) };
        stream.write(own_stream(handle));
        Ok(())
    })
}

#[cfg(feature = "cuda")]
fn own_stream(handle: &Handle) -> *mut c_void {
    let raw = handle.backend_as::<spec::cuda::Cuda>().map_or(0, spec::cuda::Cuda::raw_stream);
    std::ptr::with_exposed_provenance_mut(raw as usize)
}

#[cfg(not(feature = "cuda"))]
fn own_stream(_handle: &Handle) -> *mut c_void {
    std::ptr::null_mut()
}

/// Waits for all work that was enqueued on the handle's own stream. Work on the caller's own
/// streams is not waited for: use CUDA's functions for those.
///
/// # Errors
/// Status 1, with the device's own message, if work failed since the last call; 4 for a null
/// pointer, 3 for a handle that is closed.
///
/// # Safety
/// `handle` is from `spec_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_synchronize(handle: *const spec_handle) -> spec_status {
    let call = "spec_synchronize";
    guard(call, || {
        // SAFETY: the caller promises that `handle` is from `spec_open`.
        unsafe { get(call, handle)? }.synchronize()
    })
}
