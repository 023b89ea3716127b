//! What every backend does, on a CUDA device: memory, waiting, timing.

use std::any::Any;

use cudarc::driver::sys;
use spec_core::{
    Backend, DeviceInfo, Error, Memory, QueueId, Result, Staging, Status, Timed, Timing,
};

use crate::Cuda;
use crate::driver::check;
use crate::memory::{DeviceMemory, PageLocked};
use crate::time;

// SAFETY: `info` is set when the device is opened, and never changes. All handles to a device
// share its primary context, in which the memory and the streams of all handles are valid. Each
// handle has a stream of its own; `queue_id` identifies this stream, and so do the views of the
// handle's memory.
unsafe impl Backend for Cuda {
    fn info(&self) -> &DeviceInfo {
        self.gpu().info()
    }

    fn queue_id(&self) -> QueueId {
        self.queue()
    }

    fn adopt(&self, memory: Box<dyn Memory>) -> Result<Box<dyn Memory>> {
        match (memory as Box<dyn Any>).downcast::<DeviceMemory>() {
            Ok(memory) => Ok(Box::new(memory.moved_to(self)?)),
            Err(_) => {
                let words = "memory of another backend, expected device memory";
                Err(Error::device(self.device(), Status::DeviceTypeNotSupported, words))
            }
        }
    }

    fn allocate_bytes(&self, bytes: usize) -> Result<Box<dyn Memory>> {
        Ok(Box::new(DeviceMemory::allocate(self, bytes)?))
    }

    fn synchronize(&self) -> Result<()> {
        let _current = self.gpu().enter()?;
        // SAFETY: this handle owns the stream, so the stream is alive.
        let done = unsafe { sys::cuStreamSynchronize(self.own_stream()) };
        check(self.device(), "enqueued work failed", done)
    }

    fn sibling(&self) -> Result<Self> {
        Self::open(self.device().index())
    }

    fn staging(&self, bytes: usize) -> Result<Option<Box<dyn Staging>>> {
        Ok(Some(Box::new(PageLocked::allocate(self, bytes)?)))
    }

    unsafe fn time(&self, samples: usize, calls: usize, work: &mut dyn Timed) -> Result<Timing> {
        // SAFETY: the caller promised that the calls' memory stays and is not used otherwise.
        unsafe { time::time(self, samples, calls, work) }
    }

    fn copy_rate(&self) -> Result<Option<f64>> {
        time::copy_rate(self)
    }

    fn call_overhead(&self) -> Result<Option<f64>> {
        time::call_overhead(self)
    }
}
