//! What a caller can choose.

use std::num::NonZeroUsize;
use std::path::PathBuf;

/// Distinct keys of a source of any size: the options, with fields to set.
///
/// [`run`](Self::run) does the work; the crate's front page says how.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Distinct {
    /// Bytes of host memory that the run may take, everything that it
    /// allocates itself included; what the process holds already is not.
    /// It takes less where memory costs more time than files do.
    pub memory: u64,
    /// Bytes of device memory that the run may take. `None`: three quarters of
    /// what the device has. Means nothing to the CPU, whose memory is the
    /// host's.
    pub device_memory: Option<u64>,
    /// The folder in which the run makes one of its own for what does not fit
    /// in memory.
    pub temp: PathBuf,
    /// Threads that read, merge and write. `None`: as many as there are cores.
    pub threads: Option<NonZeroUsize>,
}

impl Default for Distinct {
    /// 1 GiB, the folder for temporary files that the system names.
    fn default() -> Self {
        Distinct { memory: 1 << 30, device_memory: None, temp: std::env::temp_dir(), threads: None }
    }
}
