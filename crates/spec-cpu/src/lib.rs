//! # The CPU backend
//!
//! The reference for every other backend, and fast: rayon spreads each operator
//! over requests and inside one request, and the inner loops are shaped so that
//! the compiler vectorises them, in versions for the instruction sets found at
//! run time.
//!
//! Work runs on the rayon pool that is current where
//! [`calculate`](spec_core::Descriptor::calculate) is called: the global one,
//! or the one whose `install` the caller is in. It is done when the call
//! returns. Apart from what rayon's own queues keep, nothing is allocated.
//!
//! # Arguments that change during a call
//!
//! A caller must not write to an argument during a call, and in Rust safe code cannot. Callers
//! in other languages can: nothing stops a thread of a Python program from writing to an array
//! that another thread has passed to an operator. For Rust that is undefined behaviour, since
//! the contents of a `&[T]` do not change. In practice, this crate keeps the following.
//!
//! Promised, whatever another thread writes to inputs and outputs meanwhile: the call accesses
//! no memory outside of its arguments and its workspace, it ends, and it does not panic.
//! Not promised: the results, which may be anything, keys of an earlier call that the workspace
//! still holds among them. The workspace itself belongs to the call alone.
//!
//! What the code does for that:
//!
//! * A value that decides an address, a length or an index is copied to a local variable, and
//!   the local variable is what is compared with the bound and used. Where `unsafe` code relies
//!   on the value, and wherever that costs nothing, the copy is a volatile reading
//!   (`slices::once`), which the compiler must not repeat. Elsewhere the index is checked by
//!   the language; today's compilers do not read a value again that they have in a register.
//! * Where an operator reads an input a second time, the second loop compares with its own
//!   bounds. What the first reading counted may size a buffer, but never stands in for such a
//!   comparison: a scatter stops at the end of each range, and a cut text is cut again.
//! * A result that no unchanged input gives (a match beyond the end, no candidate at all) takes
//!   some valid value and no panic.
//!
//! `tests/changing_arguments.rs` overwrites all arguments of every operator during calls.

mod memory;
mod ops;
mod select;
mod simd;
mod slices;
mod weights;
mod yardstick;

use std::any::Any;
use std::error::Error as _;
use std::sync::{Arc, OnceLock};

use spec_core::{
    Backend, Device, DeviceInfo, Error, ErrorKind, Measure, Memory, Overlap, QueueId, Result,
    Status, Yardstick,
};

/// The CPU.
#[derive(Clone, Debug)]
pub struct Cpu {
    info: Arc<DeviceInfo>,
}

/// The one device there is.
///
/// # Errors
/// Status 1 where the system starts no threads for the pool; rayon tries it once
/// in the life of a process, so that it stays so.
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

/// Starts rayon's global pool, unless it runs already or this thread is in
/// another one: where rayon does so by itself, it panics if the system refuses.
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
            // Somebody has started it.
            None => Ok(()),
        },
    };
    STARTED.get_or_init(start).clone()
}

impl Cpu {
    /// Opens the CPU, whose index is 0.
    ///
    /// # Errors
    /// Status 6 for any other index; those of [`devices`].
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

// SAFETY: work is done when a call returns, so there is no order to keep.
unsafe impl Backend for Cpu {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn allocate_bytes(&self, bytes: usize) -> Result<Box<dyn Memory>> {
        Ok(Box::new(memory::HostMemory::new(bytes)?))
    }

    fn queue_id(&self) -> QueueId {
        QueueId::HOST
    }

    fn adopt(&self, memory: Box<dyn Memory>) -> Result<Box<dyn Memory>> {
        let any: &dyn Any = &*memory;
        if any.is::<memory::HostMemory>() {
            return Ok(memory);
        }
        let words = "memory of another backend, expected host memory";
        Err(Error::device(Device::CPU, Status::DeviceTypeNotSupported, words))
    }

    fn synchronize(&self) -> Result<()> {
        Ok(())
    }
}

impl Overlap for Cpu {
    fn sibling(&self) -> Result<Self> {
        Ok(self.clone())
    }
}

impl Measure for Cpu {
    fn yardstick(&self) -> Result<Yardstick> {
        yardstick::measure(self)
    }
}
