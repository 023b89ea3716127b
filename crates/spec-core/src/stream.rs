//! Where work is enqueued.

use std::any::Any;

use crate::{Device, Error, Result, Status};

/// Where [`Descriptor::call_on`](crate::Descriptor::call_on) enqueues its work.
///
/// The default is the backend's own stream. A caller with a stream of its own
/// passes it: a raw handle (a `CUstream` from any framework) or a recording
/// object (a `wgpu::CommandEncoder`). The backend crates have the typed
/// constructors.
#[derive(Debug, Default)]
pub struct Stream<'a> {
    kind: Kind<'a>,
    dependent: bool,
}

/// What a [`Stream`] is, for backends to match on.
#[derive(Debug, Default)]
#[non_exhaustive]
pub enum Kind<'a> {
    /// The backend's own.
    #[default]
    Own,
    /// A foreign stream by its raw handle.
    Raw {
        /// The device it belongs to.
        device: Device,
        /// The handle as the device's API has it.
        handle: u64,
    },
    /// An object that records.
    Object {
        /// The device it belongs to.
        device: Device,
        /// The object; its backend knows the type.
        object: &'a mut dyn Any,
    },
}

impl<'a> Stream<'a> {
    /// A foreign stream by its raw handle.
    ///
    /// # Safety
    /// `handle` must be a live stream of `device` for as long as work enqueued
    /// on it has not finished. The caller orders every other use of the buffers
    /// that are passed with it against that work, those that a handle of this
    /// library allocated included (their `to_vec` and `write` wait for the
    /// handle's own queue alone); where the stream is being captured, against
    /// every replay of the graph.
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

    /// Lets the device launch a call while the kernel before it in the stream still
    /// runs, and wait only then (CUDA's programmatic dependent launch): calls that
    /// follow one another, in a captured graph too, overlap their launches. Results
    /// are the same, whatever comes before and after. CUDA devices from compute
    /// capability 9.0 on do so; others take no notice.
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

    /// What this is, for backends.
    pub fn into_kind(self) -> Kind<'a> {
        self.kind
    }

    /// Refuses all but the backend's own stream, for backends on the CPU, which have
    /// no other.
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
