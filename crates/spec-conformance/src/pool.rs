//! A backend that reuses memory.

use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use spec_core::{
    Backend, DType, Device, DeviceInfo, Error, Kernel, Memory, Operator, QueueId, Result, Staging,
    Status, Supports, View, ViewMut,
};

/// Memory that is free to be used again, by its size.
type Free = HashMap<usize, Vec<Block>>;

/// Memory of a device, and host memory of the same size for copies to and from it, where the
/// device copies faster with such memory.
struct Block {
    memory: Box<dyn Memory>,
    staging: Option<Mutex<Box<dyn Staging>>>,
}

/// A backend that keeps freed memory and reuses it for later allocations. It frees the memory
/// when it is dropped.
///
/// Many small cases take less time on it, because a device may wait for all its work when memory
/// is freed, and because copies go through page-locked memory. Sizes are powers of two. The
/// arguments of a case share one allocation, with poison between them: this needs fewer copies,
/// but a tool that checks allocations does not see a call that reads beyond an argument.
pub struct Pooled<B> {
    backend: B,
    free: Arc<Mutex<Free>>,
}

impl<B: Backend> Pooled<B> {
    /// A pool for the memory of `backend`.
    pub fn new(backend: B) -> Self {
        Pooled { backend, free: Arc::default() }
    }
}

impl<B: Backend> std::fmt::Debug for Pooled<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pooled({})", self.backend.info().device)
    }
}

// SAFETY: device, queue and memory are those of the inner backend, which is a `Backend` itself.
// Reused memory belongs to the inner backend's queue, which orders its old and new uses.
unsafe impl<B: Backend> Backend for Pooled<B> {
    fn info(&self) -> &DeviceInfo {
        self.backend.info()
    }

    fn queue_id(&self) -> QueueId {
        self.backend.queue_id()
    }

    fn allocate_bytes(&self, bytes: usize) -> Result<Box<dyn Memory>> {
        let class = bytes.max(256).checked_next_power_of_two().unwrap_or(bytes);
        let known = lock(&self.free).get_mut(&class).and_then(Vec::pop);
        let block = match known {
            Some(block) => block,
            None => Block {
                memory: self.backend.allocate_bytes(class)?,
                staging: self.backend.staging(class)?.map(Mutex::new),
            },
        };
        let device = self.backend.info().device;
        let free = Arc::clone(&self.free);
        Ok(Box::new(Lent { block: Some(block), bytes, class, device, free }))
    }

    fn adopt(&self, memory: Box<dyn Memory>) -> Result<Box<dyn Memory>> {
        match (memory as Box<dyn Any>).downcast::<Lent>() {
            Ok(mut lent) => {
                let block = lent.block.take().expect("until it is dropped");
                self.backend.adopt(block.memory)
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

    fn sibling(&self) -> Result<Self> {
        Ok(Pooled::new(self.backend.sibling()?))
    }

    fn staging(&self, bytes: usize) -> Result<Option<Box<dyn Staging>>> {
        self.backend.staging(bytes)
    }
}

// SAFETY: the kernel is made by the inner backend, whose own `Supports` promises the same.
unsafe impl<O: Operator, B: Supports<O>> Supports<O> for Pooled<B> {
    unsafe fn prepare(&self, plan: &O::Plan) -> Result<Box<dyn Kernel<O>>> {
        // SAFETY: the caller promises that `Operator::plan` made the plan.
        unsafe { self.backend.prepare(plan) }
    }
}

/// Whether memory was allocated by a pool.
pub(crate) fn is_pooled(memory: &dyn Memory) -> bool {
    (memory as &dyn Any).is::<Lent>()
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Memory that returns to its pool when it is dropped.
struct Lent {
    /// `None` once `adopt` has taken the memory out.
    block: Option<Block>,
    bytes: usize,
    /// The size of the memory in bytes, which is at least `bytes`.
    class: usize,
    device: Device,
    free: Arc<Mutex<Free>>,
}

impl Lent {
    fn block(&self) -> &Block {
        self.block.as_ref().expect("until it is dropped")
    }

    fn block_mut(&mut self) -> &mut Block {
        self.block.as_mut().expect("until it is dropped")
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
        if let Some(block) = self.block.take() {
            lock(&self.free).entry(self.class).or_default().push(block);
        }
    }
}

impl Memory for Lent {
    fn size(&self) -> usize {
        self.bytes
    }

    fn view(&self, dtype: DType, len: usize) -> View<'_> {
        assert!(len.saturating_mul(dtype.size()) <= self.bytes, "{len} {dtype} do not fit");
        self.block().memory.view(dtype, len)
    }

    fn view_mut(&mut self, dtype: DType, len: usize) -> ViewMut<'_> {
        assert!(len.saturating_mul(dtype.size()) <= self.bytes, "{len} {dtype} do not fit");
        self.block_mut().memory.view_mut(dtype, len)
    }

    fn write_at(&mut self, offset: usize, bytes: &[u8]) -> Result<()> {
        self.check(offset, bytes.len())?;
        let Block { memory, staging } = self.block_mut();
        let Some(staging) = staging else { return memory.write_at(offset, bytes) };
        let mut staging = lock(staging);
        staging.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
        memory.write_at(offset, &staging.bytes()[..bytes.len()])
    }

    fn read_at(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        self.check(offset, bytes.len())?;
        let Block { memory, staging } = self.block();
        let Some(staging) = staging else { return memory.read_at(offset, bytes) };
        let mut staging = lock(staging);
        let part = &mut staging.bytes_mut()[..bytes.len()];
        memory.read_at(offset, part)?;
        bytes.copy_from_slice(part);
        Ok(())
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

    struct Pages(Vec<u8>);

    impl Staging for Pages {
        fn bytes(&self) -> &[u8] {
            &self.0
        }

        fn bytes_mut(&mut self) -> &mut [u8] {
            &mut self.0
        }
    }

    #[test]
    fn copies_go_through_what_is_best_to_copy_from() {
        let memory = Plain::default().allocate_bytes(256).unwrap();
        let staging: Box<dyn Staging> = Box::new(Pages(vec![0; 256]));
        let block = Some(Block { memory, staging: Some(Mutex::new(staging)) });
        let free = Arc::default();
        let mut lent = Lent { block, bytes: 100, class: 256, device: Device::CPU, free };
        lent.write(&[3; 100]).unwrap();
        lent.write_at(40, &[9; 8]).unwrap();
        let mut bytes = [0; 12];
        lent.read_at(36, &mut bytes).unwrap();
        assert_eq!(bytes, [3, 3, 3, 3, 9, 9, 9, 9, 9, 9, 9, 9]);
        let staged = lock(lent.block().staging.as_ref().unwrap()).bytes()[..12].to_vec();
        assert_eq!(staged, bytes);
    }

    #[test]
    fn cases_pass_in_memory_that_others_left() {
        let backend = Pooled::new(Plain::default());
        let report = random::check::<Unique, _>(&backend, 1, 50, &mut |_| {});
        assert_eq!(report.cases, 50);
        assert!(report.failures.is_empty(), "{:?}", report.failures);
    }
}
