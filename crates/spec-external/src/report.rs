//! The reports of a run: its progress, and the summary at the end.

use std::fmt;
use std::ops::ControlFlow;
use std::time::Duration;

use crate::Skipped;

/// A phase of a run. If all keys fit into memory, the phases are [`Read`](Self::Read),
/// [`Unique`](Self::Unique), [`Write`](Self::Write) and
/// [`Finish`](Self::Finish); otherwise [`Sort`](Self::Sort), one or more
/// [`Merge`](Self::Merge), and [`Finish`](Self::Finish).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// Reads the whole input into memory.
    Read,
    /// Runs the operator on the device.
    Unique,
    /// Writes the result.
    Write,
    /// Reads the input, sorts it chunk by chunk on the device, and writes runs of
    /// distinct keys to temporary files, all at the same time.
    Sort,
    /// Reads runs, merges them, and writes the result (or fewer, longer runs), all
    /// at the same time.
    Merge,
    /// Waits until the result is safe on disk.
    Finish,
}

impl Phase {
    /// The phase's name, one word.
    pub const fn name(self) -> &'static str {
        match self {
            Phase::Read => "read",
            Phase::Unique => "unique",
            Phase::Write => "write",
            Phase::Sort => "sort",
            Phase::Merge => "merge",
            Phase::Finish => "finish",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Receives the progress of a run, and can stop it. A run reports from any thread, normally at
/// most 50 times per second.
pub trait Progress: Sync {
    /// `done` of `total` bytes of `phase` are done: bytes of input in `Read` and `Sort`, of
    /// runs in `Merge`, of keys in `Write`; 0 in other phases. Returning `Break` stops the
    /// run with [`Error::Stopped`](crate::Error::Stopped).
    fn report(&self, phase: Phase, done: u64, total: Option<u64>) -> ControlFlow<()>;
}

/// Ignores reports and never stops a run.
impl Progress for () {
    fn report(&self, _phase: Phase, _done: u64, _total: Option<u64>) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

impl<F: Fn(Phase, u64, Option<u64>) -> ControlFlow<()> + Sync> Progress for F {
    fn report(&self, phase: Phase, done: u64, total: Option<u64>) -> ControlFlow<()> {
        self(phase, done, total)
    }
}

/// The results of a run.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Summary {
    /// The number of keys read.
    pub keys: u64,
    /// The number of distinct keys among them.
    pub distinct: u64,
    /// The lines and nulls that the source left out because it was told to.
    pub skipped: Skipped,
    /// Bytes of the result; 0 where keys were only counted.
    pub output_bytes: u64,
    /// The number of sorted runs that were written to temporary files; 0 where all keys fitted.
    pub runs: usize,
    /// The phases, in order.
    pub phases: Vec<PhaseSummary>,
    /// The time of the whole run, opening files and cleaning up included.
    pub elapsed: Duration,
}

impl Summary {
    /// The number of keys that are not distinct: all occurrences of a key but one.
    pub fn duplicates(&self) -> u64 {
        self.keys - self.distinct
    }
}

/// The time and the amounts of data of a phase.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct PhaseSummary {
    /// The phase.
    pub phase: Phase,
    /// The time from its start to its end.
    pub elapsed: Duration,
    /// Bytes of files read in it.
    pub read: u64,
    /// Bytes of files written in it.
    pub written: u64,
    /// Bytes of keys that went through the phase, from which its rate is computed.
    pub keys: u64,
}
