//! Streams, on which work is enqueued.

use std::any::Any;

use crate::{Device, Error, Result, Route, Status};

/// The stream on which [`Descriptor::call_on`](crate::Descriptor::call_on) enqueues its work.
///
/// The default is the handle's own stream. Callers can pass a stream of their own: a raw
/// handle (a `CUstream` from any framework) or a recording object (a
/// `wgpu::CommandEncoder`). The backend crates have typed constructors for these.
#[derive(Debug, Default)]
pub struct Stream<'a> {
    kind: Kind<'a>,
    dependent: bool,
}

/// The kind of a [`Stream`], for backends to match on.
#[derive(Debug, Default)]
#[non_exhaustive]
pub enum Kind<'a> {
    /// The handle's own stream.
    #[default]
    Own,
    /// A foreign stream by its raw handle.
    Raw {
        /// The device that the stream belongs to.
        device: Device,
        /// The handle as the device's API has it.
        handle: u64,
    },
    /// An object that records work, such as a command encoder.
    Object {
        /// The device that the object belongs to.
        device: Device,
        /// The object; its backend knows the type.
        object: &'a mut dyn Any,
    },
    /// A list of the kernels that a call would enqueue. Nothing is enqueued, and the memory of the
    /// call is not there: see [`Kernel::launch`](crate::Kernel::launch).
    Route(&'a mut Route),
}

impl<'a> Stream<'a> {
    /// A foreign stream by its raw handle.
    ///
    /// # Safety
    /// `handle` must be a live stream of `device` until all work that is enqueued on it has
    /// finished. The caller orders every other use of the buffers of a call before or after the
    /// work of the call, also of buffers that a handle of this library allocated: their `to_vec`
    /// and `write` wait for the handle's own queue only. Where the stream is being captured, the
    /// same holds for every replay of the graph.
    pub unsafe fn from_raw(device: Device, handle: u64) -> Self {
        Stream { kind: Kind::Raw { device, handle }, dependent: false }
    }

    /// An object that records work, such as a command encoder. For backends, which check
    /// the type of `object` when it is used.
    ///
    /// # Safety
    /// `object` belongs to `device`.
    pub unsafe fn from_object(device: Device, object: &'a mut dyn Any) -> Self {
        Stream { kind: Kind::Object { device, object }, dependent: false }
    }

    pub(crate) fn of_route(route: &'a mut Route) -> Self {
        Stream { kind: Kind::Route(route), dependent: false }
    }

    /// Lets the device launch a call while the kernel before it in the stream still runs (CUDA's
    /// programmatic dependent launch). The launched kernel then waits for the earlier kernel, so
    /// calls that follow one another, also in a captured graph, overlap their launches. Results
    /// do not depend on this, whatever comes before and after. CUDA devices from compute
    /// capability 9.0 on support it; other devices ignore it.
    #[must_use]
    pub fn dependent_launch(self) -> Self {
        Stream { dependent: true, ..self }
    }

    /// Whether [`dependent_launch`](Self::dependent_launch) was asked for.
    pub fn is_dependent(&self) -> bool {
        self.dependent
    }

    pub(crate) fn kind(&self) -> &Kind<'a> {
        &self.kind
    }

    /// The kind of the stream, for backends.
    pub fn into_kind(self) -> Kind<'a> {
        self.kind
    }

    /// The route that a call appends its kernels to instead of enqueuing them; the stream itself
    /// where work is to be enqueued. For backends on the CPU, whose calls return when they are done.
    ///
    /// # Errors
    /// The stream.
    pub fn into_route(self) -> std::result::Result<&'a mut Route, Self> {
        match self.kind {
            Kind::Route(route) => Ok(route),
            kind => Err(Stream { kind, ..self }),
        }
    }

    /// Refuses every stream but the backend's own, for backends on the CPU, which have no other
    /// streams.
    ///
    /// # Errors
    /// Status 5 for another stream.
    pub fn check_host(self) -> Result<()> {
        match self.kind {
            Kind::Own => Ok(()),
            _ => Err(Error::device(
                Device::CPU,
                Status::DeviceTypeNotSupported,
                "the stream belongs to another backend; the CPU takes `Stream::default()`",
            )),
        }
    }
}
