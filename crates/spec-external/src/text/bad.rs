//! Lines that are not keys and are left out.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Result;
use crate::watch::lock;

/// The number of bad lines, and the first of them.
#[derive(Debug, Default)]
pub(crate) struct BadLines {
    count: AtomicU64,
    first: Mutex<Option<First>>,
}

/// The first bad line of those found so far.
#[derive(Clone, Debug)]
pub(crate) struct First {
    /// The line's number, or the offset of its start in the file. Both say which line is first.
    pub(crate) at: u64,
    /// The column of the error, from 1.
    pub(crate) column: u64,
    pub(crate) message: String,
}

impl BadLines {
    /// Adds a bad line at `at`. `what` gives its column and message; it is called only if the
    /// line is the first so far.
    pub(crate) fn add(&self, at: u64, what: impl FnOnce() -> Result<(u64, String)>) -> Result<()> {
        self.count.fetch_add(1, Ordering::Relaxed);
        let mut first = lock(&self.first);
        if first.as_ref().is_none_or(|first| at < first.at) {
            let (column, message) = what()?;
            *first = Some(First { at, column, message });
        }
        Ok(())
    }

    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    pub(crate) fn first(&self) -> Option<First> {
        lock(&self.first).clone()
    }
}
