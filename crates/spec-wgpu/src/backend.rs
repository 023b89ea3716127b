//! What every backend does, on a wgpu device: memory, waiting, timing.

use std::any::Any;

use spec_core::{Backend, DeviceInfo, Memory, QueueId, Result, Status, Timed, Timing};

use crate::Wgpu;
use crate::memory::Allocation;
use crate::time;

// SAFETY: `info` is set when the device is opened and never changes. Clones share the device and
// its one queue, and memory names that queue; any other handle has a device of its own. An adapter
// that is opened twice has one name for two devices. Both devices come from the process's one
// instance, and there wgpu itself refuses the objects of the other device.
unsafe impl Backend for Wgpu {
    fn info(&self) -> &DeviceInfo {
        &self.0.info
    }

    fn allocate_bytes(&self, bytes: usize) -> Result<Box<dyn Memory>> {
        Ok(Box::new(Allocation::new(self, bytes)?))
    }

    fn queue_id(&self) -> QueueId {
        self.0.id
    }

    fn adopt(&self, memory: Box<dyn Memory>) -> Result<Box<dyn Memory>> {
        let any: &dyn Any = &*memory;
        match any.downcast_ref::<Allocation>() {
            Some(allocation) if allocation.queue() == self.0.id => Ok(memory),
            Some(_) => {
                let words = "memory of another wgpu device, expected memory of this one: \
                             devices of wgpu share none";
                Err(self.error(Status::BadParam, words))
            }
            None => {
                let words = "memory of another backend, expected a wgpu buffer";
                Err(self.error(Status::DeviceTypeNotSupported, words))
            }
        }
    }

    fn synchronize(&self) -> Result<()> {
        self.guarded(|| self.wait())
    }

    fn sibling(&self) -> Result<Self> {
        Ok(self.clone())
    }

    unsafe fn time(&self, samples: usize, calls: usize, work: &mut dyn Timed) -> Result<Timing> {
        time::time(self, samples, calls, work)
    }

    fn copy_rate(&self) -> Result<Option<f64>> {
        time::copy_rate(self).map(Some)
    }

    fn call_overhead(&self) -> Result<Option<f64>> {
        time::call_overhead(self).map(Some)
    }
}
