//! Host memory through which data moves between files and a device.

use spec::{Backend, Staging};

use crate::Result;
use crate::watch::Pool;

/// The largest number of bytes in a stage: enough for a copy at the link's full rate.
const STAGE: u64 = 4 << 20;
const LEAST_STAGE: u64 = 64 << 10;
/// The number of stages for each thread: one that it reads into or writes from, and others
/// that are being copied.
const EACH: usize = 3;

/// A piece of page-locked memory, or of plain memory where that is as fast.
pub(crate) enum Stage {
    Locked(Box<dyn Staging>),
    Plain(Vec<u64>),
}

impl Stage {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Stage::Locked(memory) => memory.bytes(),
            Stage::Plain(words) => spec::dtype::as_bytes(words),
        }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Stage::Locked(memory) => memory.bytes_mut(),
            Stage::Plain(words) => spec::dtype::as_bytes_mut(words),
        }
    }
}

/// Stages within `budget` bytes for `threads` threads that read and as many that
/// write.
pub(crate) fn pool<B: Backend>(backend: &B, threads: usize, budget: u64) -> Result<Pool<Stage>> {
    let count = (2 * threads * EACH) as u64;
    let bytes = (budget / count).clamp(LEAST_STAGE, STAGE) & !4095;
    let stages = (0..count).map(|_| {
        Ok(match backend.staging(bytes as usize)? {
            Some(memory) => Stage::Locked(memory),
            None => Stage::Plain(vec![0; bytes as usize / 8]),
        })
    });
    Ok(Pool::new(stages.collect::<Result<Vec<_>>>()?))
}
