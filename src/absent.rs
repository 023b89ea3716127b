//! What stands for a backend that was not compiled in.

#![allow(dead_code, reason = "unused when every backend is compiled in")]

use spec_core::{
    Backend, Device, DeviceInfo, Error, Kernel, Memory, Operator, QueueId, Result, Status, Supports,
};

/// A backend of which no value can exist. The type implements every operator, so that code which
/// is generic over all backends compiles without the backend.
#[derive(Clone, Debug)]
pub enum Absent {}

/// Fails: this build has no backend called `name`.
pub(crate) fn devices(name: &'static str) -> Result<Vec<DeviceInfo>> {
    Err(error(name, 0))
}

/// As [`devices`].
pub(crate) fn gpus(name: &'static str) -> Result<Vec<DeviceInfo>> {
    devices(name)
}

/// As [`devices`].
pub(crate) fn open<T>(name: &'static str, index: usize) -> Result<T> {
    Err(error(name, index))
}

fn error(name: &'static str, index: usize) -> Error {
    let message = format!("this build leaves the backend out; enable the cargo feature {name}");
    Error::device(Device::new(name, index), Status::DeviceNotFound, message)
}

// SAFETY: no value of the type exists, so no method can be called.
unsafe impl Backend for Absent {
    fn info(&self) -> &DeviceInfo {
        match *self {}
    }

    fn queue_id(&self) -> QueueId {
        match *self {}
    }

    fn adopt(&self, _memory: Box<dyn Memory>) -> Result<Box<dyn Memory>> {
        match *self {}
    }

    fn allocate_bytes(&self, _bytes: usize) -> Result<Box<dyn Memory>> {
        match *self {}
    }

    fn synchronize(&self) -> Result<()> {
        match *self {}
    }

    fn sibling(&self) -> Result<Self> {
        match *self {}
    }
}

// SAFETY: no value of the type exists, so `prepare` cannot be called.
unsafe impl<O: Operator> Supports<O> for Absent {
    unsafe fn prepare(&self, _plan: &O::Plan) -> Result<Box<dyn Kernel<O>>> {
        match *self {}
    }
}
