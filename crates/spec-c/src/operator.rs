//! The bodies of every operator's functions, generic over the operator.

use std::any::Any;
use std::ffi::{c_char, c_void};

use spec::{
    Address, Argument, DType, Descriptor, Device, Handle, InOrder, Portable, Result, Source,
    Status, Stream, TensorDesc, View, ViewMut,
};

use crate::device::spec_handle;
use crate::memory::spec_memory;
use crate::opaque::{Slot, get, give, opaque, take};
use crate::status::{copy_words, guard, out_pointer, refuse, spec_status};
use crate::structs::{self, Fields, Layout, spec_struct};
use crate::tensor::{describe, spec_tensor};

/// An operator that was created for its tensors on a device. `spec_<operator>_create` makes a
/// descriptor, `spec_destroy` destroys it. A descriptor never changes: threads may share it, each
/// with a workspace and buffers of its own.
pub struct spec_descriptor(Slot<Box<dyn Created>>);

opaque!(spec_descriptor: Box<dyn Created>, b"specdesc", "descriptor");

/// A descriptor of any operator.
pub(crate) trait Created: Any + Send + Sync {
    fn workspace_size(&self) -> usize;
    fn route(&self) -> Result<String>;
    fn operator(&self) -> &'static str;
}

struct Ready<O: Portable> {
    descriptor: Descriptor<O>,
    layout: &'static Layout,
    /// The tensor of each argument, in the order of the contract's list; `None` for absent ones.
    tensors: Vec<Option<TensorDesc>>,
}

impl<O: Portable> Created for Ready<O> {
    fn workspace_size(&self) -> usize {
        self.descriptor.workspace_size()
    }

    fn route(&self) -> Result<String> {
        Ok(self.descriptor.route()?.to_string())
    }

    fn operator(&self) -> &'static str {
        O::NAME
    }
}

/// # Safety
/// `params` is null or points to a struct with its size set.
pub(crate) unsafe fn defaults<O: Portable>(
    call: &'static str,
    params: *mut spec_struct,
) -> spec_status {
    guard(call, || {
        let usual = Layout::of::<O>().params(&O::usual())?;
        // SAFETY: the caller promises that `params` is null or has its size set.
        unsafe { structs::write(call, "params", params, &usual) }
    })
}

/// # Safety
/// Each pointer is null or good for what the header says.
pub(crate) unsafe fn create<O: Portable>(
    call: &'static str,
    handle: *const spec_handle,
    params: *const spec_struct,
    tensors: *const spec_struct,
    descriptor: *mut *mut spec_descriptor,
) -> spec_status {
    guard(call, || {
        // SAFETY: the header asks for a place.
        let descriptor = unsafe { out_pointer(call, "descriptor", descriptor)? };
        descriptor.write(std::ptr::null_mut());
        let layout = Layout::of::<O>();
        // SAFETY: the header asks for an open handle and for structs that have their sizes set.
        let (handle, params, tensors) = unsafe {
            (
                get(call, handle)?,
                Fields::read(call, "params", params, O::OPTIONS.len())?,
                Fields::read(call, "tensors", tensors, layout.arguments())?,
            )
        };
        let created = make::<O>(handle, layout, &layout.operator(params)?, tensors)?;
        descriptor.write(give(Box::new(created) as Box<dyn Created>));
        Ok(())
    })
}

fn make<O: Portable>(
    handle: &Handle,
    layout: &'static Layout,
    operator: &O,
    tensors: Fields<spec_tensor>,
) -> Result<Ready<O>> {
    let tensors = describe(O::NAME, O::ARGUMENTS, layout, tensors)?;
    let described = O::tensors_from(&mut InOrder::new(|at| tensors[at]))?;
    Ok(Ready { descriptor: handle.create(operator, &described)?, layout, tensors })
}

/// # Safety
/// Each pointer is null or good for what the header says.
#[inline]
pub(crate) unsafe fn calculate<O: Portable>(
    call: &'static str,
    descriptor: *const spec_descriptor,
    workspace: *mut c_void,
    workspace_size: usize,
    buffers: *const spec_struct,
    stream: *mut c_void,
) -> spec_status {
    guard(call, || {
        // SAFETY: the header asks for a descriptor that was created.
        let created = unsafe { get(call, descriptor)? };
        let any: &dyn Any = &**created;
        let Some(ready) = any.downcast_ref::<Ready<O>>() else {
            let value = format!("of {}", created.operator());
            let expected = "one of the operator that is called";
            return Err(refuse(Status::BadParam, call, "descriptor", value, expected));
        };
        let layout = ready.layout;
        // SAFETY: the header asks for a struct that has its size set.
        let buffers: Fields<*mut c_void> =
            unsafe { Fields::read(call, "buffers", buffers, layout.arguments())? };
        let pointer = |at| buffers.get(layout.field(at)).unwrap_or(std::ptr::null_mut());
        let needed = ready.descriptor.workspace_size();
        if workspace_size < needed {
            return Err(workspace_too_small(call, workspace_size, needed));
        }
        if ready.descriptor.device().backend() == "wgpu" {
            let pointers: Vec<_> = (0..layout.arguments()).map(pointer).collect();
            // SAFETY: the header asks for pointers to `spec_memory` on wgpu.
            return unsafe { with_objects(call, ready, workspace, needed, &pointers, stream) };
        }
        let addresses = O::addresses_from(&mut InOrder::new(|at| {
            let address = pointer(at);
            // An argument that was described counts as given even if its address is null:
            // `call_at` accepts a null address for an empty tensor and refuses it for any other.
            let given = !address.is_null() || ready.tensors[at].is_some();
            given.then(|| Address::from(address))
        }))?;
        // SAFETY: the caller promises that addresses, workspace and stream stay valid until the
        // work is done. Sizes and addresses are checked above and by `call_at`.
        unsafe {
            let stream = stream_of(call, ready.descriptor.device(), stream)?;
            ready.descriptor.call_at(Address::from(workspace), addresses, stream)
        }
    })
}

#[cold]
fn workspace_too_small(call: &'static str, given: usize, needed: usize) -> spec::Error {
    spec::Error::Argument {
        status: Status::InsufficientWorkspace,
        operator: call,
        argument: "workspace_size",
        value: given.to_string(),
        expected: format!("at least {needed}").into(),
    }
}

/// The caller's stream. On CUDA NULL means the legacy default stream; on devices without streams
/// only NULL is accepted.
///
/// # Safety
/// As for [`Stream::from_raw`].
unsafe fn stream_of<'a>(
    call: &'static str,
    device: Device,
    stream: *mut c_void,
) -> Result<Stream<'a>> {
    if device.backend() == "cuda" {
        // SAFETY: the caller promises what `Stream::from_raw` asks for.
        return Ok(unsafe { Stream::from_raw(device, stream.expose_provenance() as u64) });
    }
    if stream.is_null() {
        return Ok(Stream::default());
    }
    let expected = "NULL, since this device has no streams";
    let value = format!("{stream:p}");
    Err(refuse(Status::DeviceTypeNotSupported, call, "stream", value, expected))
}

/// The call on a device whose memory has no addresses: each pointer points to a `spec_memory`.
///
/// # Safety
/// Each pointer is null or points to a `spec_memory`, which nobody else uses during the call.
unsafe fn with_objects<O: Portable>(
    call: &'static str,
    ready: &Ready<O>,
    workspace: *mut c_void,
    needed: usize,
    pointers: &[*mut c_void],
    stream: *mut c_void,
) -> Result<()> {
    for (at, argument) in O::ARGUMENTS.iter().enumerate().filter(|(_, a)| a.is_written()) {
        let twice = |&(other, pointer): &(usize, &*mut c_void)| {
            other != at && !pointer.is_null() && *pointer == pointers[at]
        };
        if pointers.iter().enumerate().any(|pair| twice(&pair))
            || !workspace.is_null() && pointers[at] == workspace
        {
            let expected = "memory that the call uses for nothing else, since it is written";
            let value = "given twice";
            return Err(refuse(Status::BadParam, call, argument.name, value, expected));
        }
    }
    let mut objects = Objects { call, tensors: &ready.tensors, pointers, next: 0, error: None };
    let buffers = O::buffers_from(&mut objects);
    if let Some(error) = objects.error {
        return Err(error);
    }
    let workspace = if needed == 0 {
        ViewMut::empty()
    } else {
        // SAFETY: the caller promises a `spec_memory` that nobody else uses, and the loop above
        // refused a workspace that is also an output.
        let memory = unsafe { spec_memory::exclusive(call, workspace.cast())? };
        if memory.size() < needed {
            return Err(workspace_too_small(call, memory.size(), needed));
        }
        memory.view_mut(DType::U8, needed)
    };
    // SAFETY: this device has no raw streams, and `stream_of` refuses a stream that is not null.
    let stream = unsafe { stream_of(call, ready.descriptor.device(), stream)? };
    ready.descriptor.call_on(workspace, buffers?, stream)
}

/// The call's arguments, in memory that the library allocated.
struct Objects<'c> {
    call: &'static str,
    tensors: &'c [Option<TensorDesc>],
    pointers: &'c [*mut c_void],
    next: usize,
    error: Option<spec::Error>,
}

impl Objects<'_> {
    /// The next argument: its memory, and the type and number of elements to view in that memory.
    fn next<M>(
        &mut self,
        argument: &'static Argument,
        open: impl FnOnce(&'static str, *mut spec_memory) -> Result<M>,
        size: impl FnOnce(&M) -> usize,
    ) -> Option<(M, DType, usize)> {
        let (pointer, tensor) = (self.pointers[self.next], self.tensors[self.next]);
        self.next += 1;
        if pointer.is_null() {
            return None;
        }
        let opened = open(self.call, pointer.cast()).and_then(|memory| {
            // The descriptor refuses a buffer whose tensor was not described, so any view will
            // do for it here.
            let (dtype, span) = tensor.map_or((DType::U8, 0), |t| (t.dtype(), t.span()));
            let room = size(&memory) / dtype.size();
            if span <= room {
                return Ok((memory, dtype, span));
            }
            Err(spec::Error::Argument {
                status: Status::BadTensorShape,
                operator: self.call,
                argument: argument.name,
                value: format!("memory for {room} elements"),
                expected: format!("at least {span}").into(),
            })
        });
        opened.map_err(|error| self.error.get_or_insert(error)).ok()
    }
}

impl<'a> Source<View<'a>, ViewMut<'a>> for Objects<'_> {
    fn input(&mut self, argument: &'static Argument) -> Option<View<'a>> {
        // SAFETY: `with_objects`' caller promises a `spec_memory` that nobody else uses.
        let open = |call, pointer: *mut spec_memory| unsafe { get(call, pointer.cast_const()) };
        let (memory, dtype, len) = self.next(argument, open, |memory| memory.size())?;
        Some(memory.view(dtype, len))
    }

    fn output(&mut self, argument: &'static Argument) -> Option<ViewMut<'a>> {
        // SAFETY: `with_objects`' caller promises a `spec_memory` that nobody else uses, and
        // `with_objects` refused an output that is used for anything else in the call.
        let open = |call, pointer| unsafe { spec_memory::exclusive(call, pointer) };
        let (memory, dtype, len) = self.next(argument, open, |memory| memory.size())?;
        Some(memory.view_mut(dtype, len))
    }
}

/// Writes the size in bytes of the workspace that a call needs, which may be 0. The workspace is
/// host memory on the CPU, device memory with the alignment of `cudaMalloc` on CUDA, and a
/// `spec_memory` on wgpu.
///
/// # Errors
/// Status 4 for a null pointer, 3 for a descriptor that was destroyed.
///
/// # Safety
/// `descriptor` is from `spec_<operator>_create`; `bytes` is NULL or points to memory for a
/// `size_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_workspace_size(
    descriptor: *const spec_descriptor,
    bytes: *mut usize,
) -> spec_status {
    let call = "spec_workspace_size";
    guard(call, || {
        // SAFETY: the caller promises that `descriptor` is from `spec_<operator>_create` and
        // `bytes` null or valid for writing.
        let (created, bytes) =
            unsafe { (get(call, descriptor)?, out_pointer(call, "bytes", bytes)?) };
        bytes.write(created.workspace_size());
        Ok(())
    })
}

/// Copies to `buffer` which kernels a call runs, with their launch shapes, in words: what the data
/// decide is not known, and memory counts as aligned to 256 bytes. The words end with a zero and are
/// cut if `buffer` is too small. They are for people and tests, and change with the kernels. `bytes`,
/// unless it is NULL, is set to the number of bytes that all words need, including their zero.
///
/// # Errors
/// Status 4 for a descriptor that is NULL, 3 for a descriptor that was destroyed.
///
/// # Safety
/// `descriptor` is from `spec_<operator>_create`; `buffer` is NULL or has room for `size` bytes;
/// `bytes` is NULL or points to memory for a `size_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_route(
    descriptor: *const spec_descriptor,
    buffer: *mut c_char,
    size: usize,
    bytes: *mut usize,
) -> spec_status {
    let call = "spec_route";
    guard(call, || {
        // SAFETY: the caller promises that `descriptor` is from `spec_<operator>_create`.
        let words = unsafe { get(call, descriptor)? }.route()?;
        // SAFETY: the caller promises that `buffer` is NULL or has room for `size` bytes.
        let needed = unsafe { copy_words(&words, buffer, size) };
        if !bytes.is_null() {
            // SAFETY: the caller promises that `bytes` is NULL or valid for writing.
            unsafe { out_pointer(call, "bytes", bytes)? }.write(needed);
        }
        Ok(())
    })
}

/// Destroys a descriptor. Work that was enqueued with the descriptor continues.
///
/// # Errors
/// Status 4 for NULL, 3 for a descriptor that was destroyed already.
///
/// # Safety
/// No other thread uses the descriptor, now or later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_destroy(descriptor: *mut spec_descriptor) -> spec_status {
    let call = "spec_destroy";
    guard(call, || {
        // SAFETY: the caller promises that no other thread uses the descriptor, now or later.
        drop(unsafe { take(call, descriptor)? });
        Ok(())
    })
}
