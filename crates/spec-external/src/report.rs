//! What a run tells of itself: while it runs, and afterwards.

use std::fmt;
use std::ops::ControlFlow;
use std::time::Duration;

use crate::Skipped;

/// A phase of a run. Where everything fits, they are [`Read`](Self::Read),
/// [`Unique`](Self::Unique), [`Write`](Self::Write) and
/// [`Finish`](Self::Finish); otherwise [`Sort`](Self::Sort), one or more
/// [`Merge`](Self::Merge), and [`Finish`](Self::Finish).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// Reads the input, all of which fits.
    Read,
    /// The operator on the device.
    Unique,
    /// Writes the result.
    Write,
    /// Reads the input, sorts chunk by chunk on the device, spills runs of
    /// distinct keys; all at the same time.
    Sort,
    /// Reads runs, merges them, writes the result (or fewer, longer runs); all
    /// at the same time.
    Merge,
    /// Waits until the result is safe on disk.
    Finish,
}

impl Phase {
    /// One word.
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

/// Is told how far a run is, some hundred times a second at most, from any
/// thread; and can stop it.
pub trait Progress: Sync {
    /// `done` of `total` bytes of `phase`: of input in `Read` and `Sort`, of
    /// runs in `Merge`, of keys in `Write`; 0 in the others. `Break` stops the
    /// run with [`Error::Stopped`](crate::Error::Stopped).
    fn report(&self, phase: Phase, done: u64, total: Option<u64>) -> ControlFlow<()>;
}

/// Reports nothing, stops nothing.
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

/// What a run did.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Summary {
    /// Keys read.
    pub keys: u64,
    /// Distinct ones among them.
    pub distinct: u64,
    /// What the source left out because it was told to.
    pub skipped: Skipped,
    /// Bytes of the result; 0 where it was only counted.
    pub output_bytes: u64,
    /// Sorted runs that were spilled; 0 where everything fitted.
    pub runs: usize,
    /// The phases, in order.
    pub phases: Vec<PhaseSummary>,
    /// The whole run, opening files and cleaning up included.
    pub elapsed: Duration,
}

impl Summary {
    /// Keys that were left out because they occurred before.
    pub fn duplicates(&self) -> u64 {
        self.keys - self.distinct
    }
}

/// What a phase took.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct PhaseSummary {
    /// Which.
    pub phase: Phase,
    /// From its start to its end.
    pub elapsed: Duration,
    /// Bytes of files read in it.
    pub read: u64,
    /// Bytes of files written in it.
    pub written: u64,
    /// Bytes of keys that went through it, which its rate counts.
    pub keys: u64,
}
