//! The options of a run.

use std::num::NonZeroUsize;
use std::path::PathBuf;

/// The options for finding the distinct keys of a source of any size, with fields to set.
///
/// [`run`](Self::run) does the work; the crate's front page has an example.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Distinct {
    /// Bytes of host memory that the run may take. This includes all memory that the run
    /// allocates, but not the memory that the process already holds.
    pub memory: u64,
    /// Bytes of device memory that the run may take. `None`: three quarters of
    /// the device's memory. The CPU ignores it, since its memory is host memory.
    pub device_memory: Option<u64>,
    /// The folder in which the run makes a folder of its own for temporary files.
    pub temp: PathBuf,
    /// The number of threads that read, merge and write. `None`: the number of cores.
    pub threads: Option<NonZeroUsize>,
}

impl Default for Distinct {
    /// 1 GiB of host memory, and the system's folder for temporary files.
    fn default() -> Self {
        Distinct { memory: 1 << 30, device_memory: None, temp: std::env::temp_dir(), threads: None }
    }
}
