//! What every operator's functions do: one body each, generic over the operator.

use std::any::Any;
use std::ffi::c_void;

use spec::{
    Address, Argument, DType, Descriptor, Device, Handle, Portable, Result, Source, Status, Stream,
    TensorDesc, View, ViewMut,
};

use crate::device::spec_handle;
use crate::memory::spec_memory;
use crate::opaque::{Place, get, give, opaque, take};
use crate::status::{guard, place_for, refuse, spec_status};
use crate::structs::{self, Fields, Layout, spec_struct};
use crate::tensor::{InOrder, describe, spec_tensor};

/// An operator that was created for its tensors on a device. From
/// `spec_<operator>_create`, to `spec_destroy`. It never changes: threads may share it,
/// each with a workspace and buffers of its own.
pub struct spec_descriptor(Place<Box<dyn Created>>);

opaque!(spec_descriptor: Box<dyn Created>, b"specdesc", "descriptor");

/// A descriptor, whichever operator's it is.
pub(crate) trait Created: Any + Send + Sync {
    fn workspace_size(&self) -> usize;
    fn operator(&self) -> &'static str;
}

struct Ready<O: Portable> {
    descriptor: Descriptor<O>,
    layout: &'static Layout,
    /// In the order of the contract's list.
    tensors: Vec<Option<TensorDesc>>,
    /// The bytes that each of them spans, 0 for one that is not described.
    spans: Vec<usize>,
}

impl<O: Portable> Created for Ready<O> {
    fn workspace_size(&self) -> usize {
        self.descriptor.workspace_size()
    }

    fn operator(&self) -> &'static str {
        O::NAME
    }
}

/// # Safety
/// `params` is null or has its size set.
pub(crate) unsafe fn defaults<O: Portable>(
    call: &'static str,
    params: *mut spec_struct,
) -> spec_status {
    guard(call, || {
        let usual = Layout::of::<O>().params(&O::usual())?;
        // SAFETY: this function's own contract is the other's.
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
        let descriptor = unsafe { place_for(call, "descriptor", descriptor)? };
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
    let bytes = |desc: &TensorDesc| desc.span().saturating_mul(desc.dtype().size());
    let spans = tensors.iter().map(|desc| desc.as_ref().map_or(0, bytes)).collect();
    Ok(Ready { descriptor: handle.create(operator, &described)?, layout, tensors, spans })
}

/// Refuses an argument that is written where it shares memory with another argument or with the
/// workspace. What has no memory overlaps nothing: null pointers are refused elsewhere.
fn check_overlap(
    call: &'static str,
    arguments: &[Argument],
    spans: &[usize],
    pointer: impl Fn(usize) -> *mut c_void,
    workspace: (*mut c_void, usize),
) -> Result<()> {
    let range = |pointer: *mut c_void, bytes: usize| {
        let start = pointer.addr();
        let bytes = if pointer.is_null() { 0 } else { bytes };
        (start, start.saturating_add(bytes))
    };
    for (at, argument) in arguments.iter().enumerate().filter(|(_, a)| a.is_written()) {
        let (start, end) = range(pointer(at), spans[at]);
        let shared = |(from, to): (usize, usize)| start < to && from < end && from < to;
        if start == end {
            continue;
        }
        let other = (0..arguments.len())
            .find(|&other| other != at && shared(range(pointer(other), spans[other])))
            .map(|other| arguments[other].name)
            .or_else(|| shared(range(workspace.0, workspace.1)).then_some("workspace"));
        if let Some(other) = other {
            let value = format!("in the memory of `{other}`");
            let expected = "memory of its own, since it is written";
            return Err(refuse(Status::BadParam, call, argument.name, value, expected));
        }
    }
    Ok(())
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
            return Err(small(call, workspace_size, needed));
        }
        if ready.descriptor.device().backend() == "wgpu" {
            let pointers: Vec<_> = (0..layout.arguments()).map(pointer).collect();
            // SAFETY: the header asks for pointers to `spec_memory` on wgpu.
            return unsafe { with_objects(call, ready, workspace, needed, &pointers, stream) };
        }
        check_overlap(call, O::ARGUMENTS, &ready.spans, pointer, (workspace, needed))?;
        let addresses = O::addresses_from(&mut InOrder::new(|at| {
            let address = pointer(at);
            // What is described is there, if perhaps empty: `fit` looks at it.
            let given = !address.is_null() || ready.tensors[at].is_some();
            given.then(|| Address::from(address))
        }))?;
        // SAFETY: the caller's: addresses, workspace and stream are good until the
        // work is done.
        unsafe {
            let stream = stream_of(call, ready.descriptor.device(), stream)?;
            ready.descriptor.call_at(Address::from(workspace), addresses, stream)
        }
    })
}

#[cold]
fn small(call: &'static str, given: usize, needed: usize) -> spec::Error {
    spec::Error::Argument {
        status: Status::InsufficientWorkspace,
        operator: call,
        argument: "workspace_size",
        value: given.to_string(),
        expected: format!("at least {needed}").into(),
    }
}

/// The caller's stream: on CUDA NULL is the legacy default stream; where devices have
/// none it is all that there is.
///
/// # Safety
/// As for [`Stream::from_raw`].
unsafe fn stream_of<'a>(
    call: &'static str,
    device: Device,
    stream: *mut c_void,
) -> Result<Stream<'a>> {
    if device.backend() == "cuda" {
        // SAFETY: the caller's.
        return Ok(unsafe { Stream::from_raw(device, stream.expose_provenance() as u64) });
    }
    if stream.is_null() {
        return Ok(Stream::default());
    }
    let expected = "NULL, since this device has no streams";
    let value = format!("{stream:p}");
    Err(refuse(Status::DeviceTypeNotSupported, call, "stream", value, expected))
}

/// The call on a device whose memory has no addresses: each pointer is to a
/// `spec_memory`.
///
/// # Safety
/// That, and nobody else uses that memory meanwhile.
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
        // SAFETY: the caller's, and no argument that is written is the same memory.
        let memory = unsafe { spec_memory::exclusive(call, workspace.cast())? };
        if memory.size() < needed {
            return Err(small(call, memory.size(), needed));
        }
        memory.view_mut(DType::U8, needed)
    };
    // SAFETY: no device that comes here has raw streams: one that is given is refused.
    let stream = unsafe { stream_of(call, ready.descriptor.device(), stream)? };
    ready.descriptor.call_on(workspace, buffers?, stream)
}

/// Arguments in memory that the library allocated.
struct Objects<'c> {
    call: &'static str,
    tensors: &'c [Option<TensorDesc>],
    pointers: &'c [*mut c_void],
    next: usize,
    error: Option<spec::Error>,
}

impl Objects<'_> {
    /// The next argument: its memory, and the type and number of elements to view
    /// there.
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
            // What is given and not described is refused by the descriptor.
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
        // SAFETY: by the word of `with_objects`' caller.
        let open = |call, pointer: *mut spec_memory| unsafe { get(call, pointer.cast_const()) };
        let (memory, dtype, len) = self.next(argument, open, |memory| memory.size())?;
        Some(memory.view(dtype, len))
    }

    fn output(&mut self, argument: &'static Argument) -> Option<ViewMut<'a>> {
        // SAFETY: by the word of `with_objects`' caller, and nothing else of the call is
        // the same memory.
        let open = |call, pointer| unsafe { spec_memory::exclusive(call, pointer) };
        let (memory, dtype, len) = self.next(argument, open, |memory| memory.size())?;
        Some(memory.view_mut(dtype, len))
    }
}

/// The bytes of workspace that a call needs; may be 0. Of host memory on the CPU, of
/// device memory as `cudaMalloc` aligns it on CUDA, in a `spec_memory` on wgpu.
///
/// # Errors
/// Status 4 for a null pointer, 3 for a descriptor that was destroyed.
///
/// # Safety
/// `descriptor` is from `spec_<operator>_create`; `bytes` is a place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_workspace_size(
    descriptor: *const spec_descriptor,
    bytes: *mut usize,
) -> spec_status {
    let call = "spec_workspace_size";
    guard(call, || {
        // SAFETY: the caller's.
        let (created, bytes) =
            unsafe { (get(call, descriptor)?, place_for(call, "bytes", bytes)?) };
        bytes.write(created.workspace_size());
        Ok(())
    })
}

/// Destroys a descriptor. Work that it enqueued goes on.
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
        // SAFETY: the caller's.
        drop(unsafe { take(call, descriptor)? });
        Ok(())
    })
}
