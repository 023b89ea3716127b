//! Devices: which there are, opening them, waiting for them.

use std::ffi::{c_char, c_void};

use spec::{DeviceInfo, Handle, Status};

use crate::opaque::{Place, get, give, opaque, take};
use crate::status::{guard, place_for, spec_status};

/// An open device. From `spec_open`, to `spec_close`; threads may share it.
pub struct spec_handle(Place<Handle>);

opaque!(spec_handle: Handle, b"spechand", "handle");

/// What is known of a device.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct spec_device {
    /// As `spec_open` takes it: "cuda:0". Of a backend that has no device, its
    /// name: "cuda".
    pub name: [c_char; 32],
    /// The vendor's name of the device; where there is none, the reason.
    pub description: [c_char; 216],
    /// Memory in bytes, 0 where it is not known.
    pub memory: u64,
    /// 0, or why the backend has no device.
    pub status: i32,
    /// 1 for a software renderer: a GPU's interface on a CPU.
    pub software: u32,
    /// Zeros, for later.
    pub reserved: [u64; 4],
}

impl std::fmt::Debug for spec_device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("spec_device").field("status", &self.status).finish_non_exhaustive()
    }
}

/// Text in an array of C, cut between two characters and ended by a zero.
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

/// Lists the devices of each backend, and a line for each backend that has none,
/// with the reason. Looks for them anew at each call, which takes time.
///
/// `count` becomes how many there are; at most `capacity` of them are written to
/// `devices`, which may be NULL if that is 0.
///
/// # Errors
/// Status 4 for a null pointer.
///
/// # Safety
/// `devices` has room for `capacity`; `count` is a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_devices(
    devices: *mut spec_device,
    capacity: usize,
    count: *mut usize,
) -> spec_status {
    let call = "spec_devices";
    guard(call, || {
        // SAFETY: the caller's.
        let count = unsafe { place_for(call, "count", count)? };
        let mut found = Vec::new();
        for listing in spec::devices() {
            match listing.devices {
                Ok(infos) => found.extend(infos.iter().map(spec_device::of)),
                Err(error) => found.push(spec_device::absent(listing.backend, &error)),
            }
        }
        if capacity > 0 {
            // SAFETY: the caller's.
            let first = unsafe { place_for(call, "devices", devices)? }.as_mut_ptr();
            for (at, device) in found.iter().take(capacity).enumerate() {
                // SAFETY: within the caller's array.
                unsafe { first.add(at).write(*device) };
            }
        }
        count.write(found.len());
        Ok(())
    })
}

/// Opens a device: "cpu", "cuda", "cuda:1", "wgpu:0", or "auto" for the best there is.
///
/// On CUDA, retains the primary context, which CUDA's runtime and PyTorch use too.
/// Opening a device again is cheap and gives another handle with a queue of its own.
///
/// Where the call fails, `*handle` is NULL, whatever it was: a handle that is still open
/// has to be kept elsewhere.
///
/// # Errors
/// Status 3 for a name that is none, 4 for a null pointer, 6 where there is no such
/// device, 8 where it is too old, 1 where it fails.
///
/// # Safety
/// `device` is text that ends with a zero; `handle` is a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_open(
    device: *const c_char,
    handle: *mut *mut spec_handle,
) -> spec_status {
    let call = "spec_open";
    guard(call, || {
        // SAFETY: the caller's.
        let handle = unsafe { place_for(call, "handle", handle)? };
        handle.write(std::ptr::null_mut());
        // SAFETY: the caller's.
        let opened: Handle = unsafe { crate::status::text(call, "device", device)? }.parse()?;
        handle.write(give(opened));
        Ok(())
    })
}

/// Closes a handle. Descriptors and memory made with it stay good until they are
/// destroyed themselves.
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
        // SAFETY: the caller's.
        drop(unsafe { take(call, handle)? });
        Ok(())
    })
}

/// What is known of an open device.
///
/// # Errors
/// Status 4 for a null pointer, 3 for a handle that is closed.
///
/// # Safety
/// `handle` is from `spec_open`; `device` is a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_handle_device(
    handle: *const spec_handle,
    device: *mut spec_device,
) -> spec_status {
    let call = "spec_handle_device";
    guard(call, || {
        // SAFETY: the caller's.
        let (handle, device) = unsafe { (get(call, handle)?, place_for(call, "device", device)?) };
        device.write(spec_device::of(handle.info()));
        Ok(())
    })
}

/// The handle's own stream: a `cudaStream_t` on CUDA, NULL elsewhere. It lives as long
/// as the handle, does not wait for the default stream, and is the one that
/// `spec_synchronize` and memory from `spec_allocate` are ordered by.
///
/// # Errors
/// Status 4 for a null pointer, 3 for a handle that is closed.
///
/// # Safety
/// `handle` is from `spec_open`; `stream` is a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_handle_stream(
    handle: *const spec_handle,
    stream: *mut *mut c_void,
) -> spec_status {
    let call = "spec_handle_stream";
    guard(call, || {
        // SAFETY: the caller's.
        let (handle, stream) = unsafe { (get(call, handle)?, place_for(call, "stream", stream)?) };
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

/// Waits for what was enqueued on the handle's own stream, and for no other stream:
/// for yours, ask CUDA.
///
/// # Errors
/// Status 1 with the device's own words for what failed since the last call, 4 for a
/// null pointer, 3 for a handle that is closed.
///
/// # Safety
/// `handle` is from `spec_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_synchronize(handle: *const spec_handle) -> spec_status {
    let call = "spec_synchronize";
    guard(call, || {
        // SAFETY: the caller's.
        unsafe { get(call, handle)? }.synchronize()
    })
}
