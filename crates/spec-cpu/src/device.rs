//! The CPU as a device: [`Cpu`].

use std::any::Any;
use std::error::Error as _;
use std::sync::{Arc, OnceLock};

use spec_core::{
    Backend, Device, DeviceInfo, Error, ErrorKind, Memory, QueueId, Result, Status, Timed, Timing,
    timing,
};

use crate::memory::HostMemory;
use crate::{simd, time};

/// The CPU.
#[derive(Clone, Debug)]
pub struct Cpu {
    info: Arc<DeviceInfo>,
}

/// The CPU, which is the only device of this backend.
///
/// # Errors
/// Status 1 if the system refuses to start the pool's threads. rayon tries once in the life of
/// a process, so every later call fails too.
pub fn devices() -> Result<Vec<DeviceInfo>> {
    start_pool()?;
    let threads = rayon::current_num_threads();
    Ok(vec![DeviceInfo {
        device: Device::CPU,
        name: format!("{} on {threads} threads", std::env::consts::ARCH),
        software: false,
        memory: None,
        facts: vec![("threads", threads.to_string()), ("vectors", simd::level().to_owned())],
    }])
}

/// Starts rayon's global pool, unless the pool runs already or this thread belongs to another
/// pool. rayon would start its pool at first use, but panics if the system refuses threads.
fn start_pool() -> Result<()> {
    static STARTED: OnceLock<Result<()>> = OnceLock::new();
    if rayon::current_thread_index().is_some() {
        return Ok(());
    }
    let start = || match rayon::ThreadPoolBuilder::new().build_global() {
        Ok(()) => Ok(()),
        Err(error) => match error.source() {
            Some(refused) => {
                let words = format!("cannot start a thread: {refused}; is `ulimit -u` too low?");
                Err(Error::failure(Device::CPU, ErrorKind::Failed, words))
            }
            // The pool runs already.
            None => Ok(()),
        },
    };
    STARTED.get_or_init(start).clone()
}

impl Cpu {
    /// Opens the CPU, whose index is 0.
    ///
    /// # Errors
    /// Status 6 for any other index; the errors of [`devices`].
    pub fn open(index: usize) -> Result<Cpu> {
        match devices()?.into_iter().nth(index) {
            Some(info) => Ok(Cpu { info: Arc::new(info) }),
            None => Err(Error::device(
                Device::new("cpu", index),
                Status::DeviceNotFound,
                "there is only one CPU device, `cpu`",
            )),
        }
    }
}

// SAFETY: the device is always the CPU, and all memory belongs to the host's queue. Work is done
// when a call returns, so all handles share one order: the order of the calls.
unsafe impl Backend for Cpu {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn allocate_bytes(&self, bytes: usize) -> Result<Box<dyn Memory>> {
        Ok(Box::new(HostMemory::new(bytes)?))
    }

    fn queue_id(&self) -> QueueId {
        QueueId::HOST
    }

    fn adopt(&self, memory: Box<dyn Memory>) -> Result<Box<dyn Memory>> {
        let any: &dyn Any = &*memory;
        if any.is::<HostMemory>() {
            return Ok(memory);
        }
        let words = "memory of another backend, expected host memory";
        Err(Error::device(Device::CPU, Status::DeviceTypeNotSupported, words))
    }

    fn synchronize(&self) -> Result<()> {
        Ok(())
    }

    fn sibling(&self) -> Result<Self> {
        Ok(self.clone())
    }

    unsafe fn time(&self, samples: usize, calls: usize, work: &mut dyn Timed) -> Result<Timing> {
        timing::by_clock(&|| Ok(()), samples, calls, work)
    }

    fn copy_rate(&self) -> Result<Option<f64>> {
        time::copy_rate().map(Some)
    }
}
