//! Memory that the library allocates: for callers who allocate none themselves, and for wgpu,
//! whose memory has no addresses that a caller could pass.

use std::ffi::c_void;

use spec::{Backend, Memory, PlaceMut, Result, Status};

use crate::device::spec_handle;
use crate::opaque::{Slot, get, get_mut, give, opaque, take};
use crate::status::{guard, out_pointer, refuse, spec_status};

/// Memory on a device. `spec_allocate` allocates it, `spec_free` frees it. Only one thread at a
/// time may pass it to a call.
pub struct spec_memory(Slot<Box<dyn Memory>>);

opaque!(spec_memory: Box<dyn Memory>, b"specmemo", "memory");

impl spec_memory {
    /// The memory behind a pointer, for writing.
    ///
    /// # Safety
    /// As for [`get_mut`].
    pub(crate) unsafe fn exclusive<'a>(
        call: &'static str,
        pointer: *mut spec_memory,
    ) -> Result<&'a mut dyn Memory> {
        // SAFETY: the caller promises what `get_mut` asks for.
        Ok(unsafe { get_mut(call, pointer)? }.as_mut())
    }
}

/// Allocates `bytes` bytes on the device, contents unspecified.
///
/// On CUDA the memory is allocated and freed in the order of the handle's own stream: use the
/// memory on that stream (`spec_handle_stream`), or order other streams against it.
///
/// # Errors
/// Status 1 if the device has not enough memory, 4 for a null pointer, 3 for a handle that is
/// closed.
///
/// # Safety
/// `handle` is from `spec_open`; `memory` is NULL or points to memory for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_allocate(
    handle: *const spec_handle,
    bytes: usize,
    memory: *mut *mut spec_memory,
) -> spec_status {
    let call = "spec_allocate";
    guard(call, || {
        // SAFETY: the caller promises that `memory` is null or valid for writing.
        let memory = unsafe { out_pointer(call, "memory", memory)? };
        memory.write(std::ptr::null_mut());
        // SAFETY: the caller promises that `handle` is from `spec_open`.
        let handle = unsafe { get(call, handle)? };
        memory.write(give(handle.allocate_bytes(bytes)?));
        Ok(())
    })
}

/// Frees memory once the work that the handle's own stream has enqueued so far is done.
///
/// # Errors
/// Status 4 for NULL, 3 for memory that was freed already.
///
/// # Safety
/// No other thread uses the memory, now or later, nor does any work on other streams.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_free(memory: *mut spec_memory) -> spec_status {
    let call = "spec_free";
    guard(call, || {
        // SAFETY: the caller promises that nobody else uses the memory, now or later.
        drop(unsafe { take(call, memory)? });
        Ok(())
    })
}

/// Writes the address of memory: a host pointer on the CPU, a device pointer on CUDA. The address
/// is valid until the memory is freed.
///
/// # Errors
/// Status 2 on wgpu, whose memory has no addresses, 4 for a null pointer, 3 for memory
/// that was freed.
///
/// # Safety
/// `memory` is from `spec_allocate`; `address` is NULL or points to memory for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_memory_address(
    memory: *mut spec_memory,
    address: *mut *mut c_void,
) -> spec_status {
    let call = "spec_memory_address";
    guard(call, || {
        // SAFETY: the caller promises that `memory` is from `spec_allocate`, used by nobody else,
        // and `address` null or valid for writing.
        let (memory, address) = unsafe {
            (spec_memory::exclusive(call, memory)?, out_pointer(call, "address", address)?)
        };
        let bytes = memory.size();
        let raw = match memory.view_mut(spec::DType::U8, bytes).into_place() {
            PlaceMut::Host(bytes) => bytes.as_mut_ptr().expose_provenance(),
            PlaceMut::Address { address, .. } => address as usize,
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

/// Copies `bytes` bytes from the host to memory, beginning at byte `offset` of the memory, a
/// multiple of 4. The copy runs after all work that was enqueued on the handle's own stream;
/// `from` may be reused when the function returns.
///
/// # Errors
/// Status 11 if the bytes do not fit, 4 for a null pointer, 3 for memory that was freed or an
/// offset that is no multiple of 4, 1 if the device fails.
///
/// # Safety
/// `memory` is from `spec_allocate`; `from` points to `bytes` readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_write(
    memory: *mut spec_memory,
    offset: usize,
    from: *const c_void,
    bytes: usize,
) -> spec_status {
    let call = "spec_write";
    guard(call, || {
        // SAFETY: the caller promises that `memory` is from `spec_allocate` and used by nobody
        // else.
        let memory = unsafe { spec_memory::exclusive(call, memory)? };
        check(call, "from", offset, from, bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: `check` found `from` not null, and the caller promises `bytes` readable bytes.
        memory.write_at(offset, unsafe { std::slice::from_raw_parts(from.cast(), bytes) })
    })
}

/// Waits for the work that was enqueued on the handle's own stream, then copies `bytes` bytes of
/// memory to the host, beginning at byte `offset` of the memory, a multiple of 4.
///
/// # Errors
/// As `spec_write`.
///
/// # Safety
/// `memory` is from `spec_allocate`; `to` points to `bytes` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_read(
    memory: *const spec_memory,
    offset: usize,
    to: *mut c_void,
    bytes: usize,
) -> spec_status {
    let call = "spec_read";
    guard(call, || {
        // SAFETY: the caller promises that `memory` is from `spec_allocate` and freed by nobody
        // meanwhile.
        let memory = unsafe { get(call, memory)? };
        check(call, "to", offset, to, bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: `check` found `to` not null, and the caller promises `bytes` writable bytes.
        memory.read_at(offset, unsafe { std::slice::from_raw_parts_mut(to.cast(), bytes) })
    })
}

/// Refuses an offset that is no multiple of 4, a null pointer to host memory, and a size that no
/// memory has.
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
