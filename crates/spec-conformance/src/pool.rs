//! Memory that is used again.

use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use spec_core::{
    Backend, DType, Device, DeviceInfo, Error, Kernel, Memory, Operator, QueueId, Result, Status,
    Supports, View, ViewMut,
};

/// Memory that nobody has, by its size.
type Free = HashMap<usize, Vec<Box<dyn Memory>>>;

/// A backend that keeps what was allocated from it for what is allocated next, and frees it
/// when it is dropped: many small cases take less time so, on a device that waits for its
/// work wherever memory is freed. Sizes are powers of two, so a call that reads or writes
/// beyond its memory is met less often by what watches allocations.
pub struct Pooled<B> {
    backend: B,
    free: Arc<Mutex<Free>>,
}

impl<B: Backend> Pooled<B> {
    /// That of a backend.
    pub fn new(backend: B) -> Self {
        Pooled { backend, free: Arc::default() }
    }
}

impl<B: Backend> std::fmt::Debug for Pooled<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pooled({})", self.backend.info().device)
    }
}

// SAFETY: the queue is the backend's own, and so is all memory: what is given out again
// was used in that queue alone, in order.
unsafe impl<B: Backend> Backend for Pooled<B> {
    fn info(&self) -> &DeviceInfo {
        self.backend.info()
    }

    fn queue_id(&self) -> QueueId {
        self.backend.queue_id()
    }

    fn allocate_bytes(&self, bytes: usize) -> Result<Box<dyn Memory>> {
        let room = bytes.max(256).checked_next_power_of_two().unwrap_or(bytes);
        let known = lock(&self.free).get_mut(&room).and_then(Vec::pop);
        let memory = match known {
            Some(memory) => memory,
            None => self.backend.allocate_bytes(room)?,
        };
        let device = self.backend.info().device;
        let free = Arc::clone(&self.free);
        Ok(Box::new(Lent { memory: Some(memory), bytes, room, device, free }))
    }

    fn adopt(&self, memory: Box<dyn Memory>) -> Result<Box<dyn Memory>> {
        match (memory as Box<dyn Any>).downcast::<Lent>() {
            Ok(mut lent) => {
                let inner = lent.memory.take().expect("until it is dropped");
                self.backend.adopt(inner)
            }
            Err(_) => {
                let words = "memory of another backend".to_owned();
                Err(Error::device(
                    self.backend.info().device,
                    Status::DeviceTypeNotSupported,
                    words,
                ))
            }
        }
    }

    fn synchronize(&self) -> Result<()> {
        self.backend.synchronize()
    }
}

// SAFETY: the kernel is the backend's.
unsafe impl<O: Operator, B: Supports<O>> Supports<O> for Pooled<B> {
    unsafe fn prepare(&self, plan: &O::Plan) -> Result<Box<dyn Kernel<O>>> {
        // SAFETY: the caller's.
        unsafe { self.backend.prepare(plan) }
    }
}

fn lock(free: &Mutex<Free>) -> MutexGuard<'_, Free> {
    free.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Memory that goes back when it is dropped.
struct Lent {
    /// `None` once it is given away.
    memory: Option<Box<dyn Memory>>,
    bytes: usize,
    room: usize,
    device: Device,
    free: Arc<Mutex<Free>>,
}

impl Lent {
    fn memory(&self) -> &dyn Memory {
        self.memory.as_deref().expect("until it is dropped")
    }

    fn memory_mut(&mut self) -> &mut dyn Memory {
        self.memory.as_deref_mut().expect("until it is dropped")
    }

    fn check(&self, offset: usize, len: usize) -> Result<()> {
        if offset.checked_add(len).is_some_and(|end| end <= self.bytes) {
            return Ok(());
        }
        let bytes = self.bytes;
        let words = format!("{len} bytes from byte {offset} on pass the {bytes} of the allocation");
        Err(Error::device(self.device, Status::BadTensorShape, words))
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            lock(&self.free).entry(self.room).or_default().push(memory);
        }
    }
}

impl Memory for Lent {
    fn size(&self) -> usize {
        self.bytes
    }

    fn view(&self, dtype: DType, len: usize) -> View<'_> {
        assert!(len.saturating_mul(dtype.size()) <= self.bytes, "{len} {dtype} do not fit");
        self.memory().view(dtype, len)
    }

    fn view_mut(&mut self, dtype: DType, len: usize) -> ViewMut<'_> {
        assert!(len.saturating_mul(dtype.size()) <= self.bytes, "{len} {dtype} do not fit");
        self.memory_mut().view_mut(dtype, len)
    }

    fn write_at(&mut self, offset: usize, bytes: &[u8]) -> Result<()> {
        self.check(offset, bytes.len())?;
        self.memory_mut().write_at(offset, bytes)
    }

    fn read_at(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        self.check(offset, bytes.len())?;
        self.memory().read_at(offset, bytes)
    }
}

#[cfg(test)]
mod tests {
    use spec_core::ops::Unique;

    use super::*;
    use crate::{plain::Plain, random};

    #[test]
    fn memory_is_given_out_again_and_no_more_of_it_than_was_asked_for() {
        let backend = Pooled::new(Plain::default());
        let mut memory = backend.allocate_bytes(12).unwrap();
        memory.write(&[7; 12]).unwrap();
        assert_eq!(memory.write_at(4, &[0; 12]).unwrap_err().status(), Status::BadTensorShape);
        assert_eq!(memory.read_at(8, &mut [0; 8]).unwrap_err().status(), Status::BadTensorShape);
        drop(memory);
        let memory = backend.allocate_bytes(200).unwrap();
        assert_eq!(memory.size(), 200);
        let mut bytes = [0; 12];
        memory.read(&mut bytes).unwrap();
        assert_eq!(bytes, [7; 12]);
    }

    #[test]
    fn cases_pass_in_memory_that_others_left() {
        let backend = Pooled::new(Plain::default());
        let report = random::check::<Unique, _>(&backend, 1, 50, &mut |_| {});
        assert_eq!(report.cases, 50);
        assert!(report.failures.is_empty(), "{:?}", report.failures);
    }
}
