//! The type that stands for a backend which was not compiled in.

use spec_core::{
    Backend, Device, DeviceInfo, Error, Kernel, Memory, Operator, QueueId, Result, Status,
    Supports, Timed, Timing,
};

/// A backend of which no value can exist. The type implements every operator, so that code which
/// is generic over all backends compiles without the backend.
#[derive(Clone, Debug)]
#[allow(dead_code, reason = "unused when every backend is compiled in")]
pub enum Absent {}

#[allow(dead_code, reason = "unused when every backend is compiled in")]
impl Absent {
    pub(crate) fn devices(name: &'static str) -> Result<Vec<DeviceInfo>> {
        Err(Self::error(name, 0))
    }

    pub(crate) fn gpus(name: &'static str) -> Result<Vec<DeviceInfo>> {
        Self::devices(name)
    }

    pub(crate) fn open(name: &'static str, index: usize) -> Result<Absent> {
        Err(Self::error(name, index))
    }

    pub(crate) unsafe fn time(&self, _: usize, _: usize, _: &mut dyn Timed) -> Result<Timing> {
        match *self {}
    }

    pub(crate) fn copy_rate(&self) -> Result<Option<f64>> {
        match *self {}
    }

    pub(crate) fn call_overhead(&self) -> Result<Option<f64>> {
        match *self {}
    }

    fn error(name: &'static str, index: usize) -> Error {
        let message = format!("this build leaves the backend out; enable the cargo feature {name}");
        Error::device(Device::new(name, index), Status::DeviceNotFound, message)
    }
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
