//! Lines that are no key and are left out.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Result;
use crate::watch::lock;

/// How many there are, and the first of them.
#[derive(Debug, Default)]
pub(crate) struct BadLines {
    count: AtomicU64,
    first: Mutex<Option<First>>,
}

/// The first bad line that was met so far.
#[derive(Clone, Debug)]
pub(crate) struct First {
    /// What says which one is first: its line, or where it starts in the file.
    pub(crate) at: u64,
    /// The column, from 1.
    pub(crate) column: u64,
    pub(crate) message: String,
}

impl BadLines {
    /// One more, at `at`. `what` is asked for column and message if it is the
    /// first so far.
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
