//! Memory that the library allocates, for callers who hold none, and for wgpu,
//! whose memory has no addresses.

use std::ffi::c_void;

use spec::{Backend, Memory, PlaceMut as Where, Result, Status};

use crate::device::spec_handle;
use crate::opaque::{Place, get, get_mut, give, opaque, take};
use crate::status::{guard, place_for, refuse, spec_status};

/// Memory on a device. From `spec_allocate`, to `spec_free`. One thread at a time
/// passes it to a call.
pub struct spec_memory(Place<Box<dyn Memory>>);

opaque!(spec_memory: Box<dyn Memory>, b"specmemo", "memory");

impl spec_memory {
    /// The memory itself, to be written.
    ///
    /// # Safety
    /// As for [`get_mut`].
    pub(crate) unsafe fn exclusive<'a>(
        call: &'static str,
        pointer: *mut spec_memory,
    ) -> Result<&'a mut dyn Memory> {
        // SAFETY: the caller's.
        Ok(unsafe { get_mut(call, pointer)? }.as_mut())
    }
}

/// Allocates memory on the device, contents unspecified.
///
/// On CUDA it is ordered by the handle's own stream: use it there (`spec_handle_stream`),
/// or order the streams yourself.
///
/// # Errors
/// Status 1 where there is not enough, 4 for a null pointer, 3 for a handle that is
/// closed.
///
/// # Safety
/// `handle` is from `spec_open`; `memory` is a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_allocate(
    handle: *const spec_handle,
    bytes: usize,
    memory: *mut *mut spec_memory,
) -> spec_status {
    let call = "spec_allocate";
    guard(call, || {
        // SAFETY: the caller's.
        let memory = unsafe { place_for(call, "memory", memory)? };
        memory.write(std::ptr::null_mut());
        // SAFETY: the caller's.
        let handle = unsafe { get(call, handle)? };
        memory.write(give(handle.allocate_bytes(bytes)?));
        Ok(())
    })
}

/// Frees memory, after the work on the handle's own stream that uses it.
///
/// # Errors
/// Status 4 for NULL, 3 for memory that was freed already.
///
/// # Safety
/// No other thread uses the memory, now or later, nor does work on other streams.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_free(memory: *mut spec_memory) -> spec_status {
    let call = "spec_free";
    guard(call, || {
        // SAFETY: the caller's.
        drop(unsafe { take(call, memory)? });
        Ok(())
    })
}

/// Where memory is: a host pointer on the CPU, a device pointer on CUDA. As long as it
/// is not freed.
///
/// # Errors
/// Status 2 on wgpu, whose memory has no addresses, 4 for a null pointer, 3 for memory
/// that was freed.
///
/// # Safety
/// `memory` is from `spec_allocate`; `address` is a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_memory_address(
    memory: *mut spec_memory,
    address: *mut *mut c_void,
) -> spec_status {
    let call = "spec_memory_address";
    guard(call, || {
        // SAFETY: the caller's.
        let (memory, address) = unsafe {
            (spec_memory::exclusive(call, memory)?, place_for(call, "address", address)?)
        };
        let bytes = memory.size();
        let raw = match memory.view_mut(spec::DType::U8, bytes).into_place() {
            Where::Host(bytes) => bytes.as_mut_ptr().expose_provenance(),
            Where::Address { address, .. } => address as usize,
            _ => {
                let expected = "memory of the CPU or of CUDA";
                let value = "an object without an address";
                return Err(refuse(Status::NotImplemented, call, "memory", value, expected));
            }
        };
        address.write(std::ptr::with_exposed_provenance_mut(raw));
        Ok(())
    })
}

/// Copies `bytes` bytes from the host to memory, from byte `offset` of it on, a multiple
/// of 4. Ordered after what was enqueued on the handle's own stream; `from` may be reused
/// when this returns.
///
/// # Errors
/// Status 11 where they do not fit, 4 for a null pointer, 3 for memory that was freed or
/// an odd offset, 1 where the device fails.
///
/// # Safety
/// `memory` is from `spec_allocate`; `from` has so many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_write(
    memory: *mut spec_memory,
    offset: usize,
    from: *const c_void,
    bytes: usize,
) -> spec_status {
    let call = "spec_write";
    guard(call, || {
        // SAFETY: the caller's.
        let memory = unsafe { spec_memory::exclusive(call, memory)? };
        check(call, "from", offset, from, bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: not null, and so many bytes by the caller's word.
        memory.write_at(offset, unsafe { std::slice::from_raw_parts(from.cast(), bytes) })
    })
}

/// Waits for what was enqueued on the handle's own stream, then copies `bytes` bytes
/// from byte `offset` on, a multiple of 4, to the host.
///
/// # Errors
/// As `spec_write`.
///
/// # Safety
/// `memory` is from `spec_allocate`; `to` has room for so many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_read(
    memory: *const spec_memory,
    offset: usize,
    to: *mut c_void,
    bytes: usize,
) -> spec_status {
    let call = "spec_read";
    guard(call, || {
        // SAFETY: the caller's.
        let memory = unsafe { get(call, memory)? };
        check(call, "to", offset, to, bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: not null, and room for so many bytes by the caller's word.
        memory.read_at(offset, unsafe { std::slice::from_raw_parts_mut(to.cast(), bytes) })
    })
}

/// Whether a range of host memory may be one.
fn check(
    call: &'static str,
    argument: &'static str,
    offset: usize,
    host: *const c_void,
    bytes: usize,
) -> Result<()> {
    if !offset.is_multiple_of(4) {
        let value = offset.to_string();
        return Err(refuse(Status::BadParam, call, "offset", value, "a multiple of 4"));
    }
    if host.is_null() && bytes > 0 {
        return Err(refuse(Status::NullPointer, call, argument, "a null pointer", "memory"));
    }
    if isize::try_from(bytes).is_err() {
        let value = bytes.to_string();
        return Err(refuse(Status::BadParam, call, "bytes", value, "what memory can hold"));
    }
    Ok(())
}
