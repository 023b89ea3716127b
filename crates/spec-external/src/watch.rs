//! The state that all threads of a run share: its progress, and whether to stop.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, Scope};
use std::time::{Duration, Instant};

use crate::{Error, Phase, Progress, Result};

/// The shortest time between two reports of progress.
const REPORT: Duration = Duration::from_millis(20);
/// The time after which a waiting thread checks whether another thread has failed.
const PATIENCE: Duration = Duration::from_millis(20);

/// Locks a mutex, also if a thread panicked while it held the lock.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The progress of a run, and its first error.
pub(crate) struct Watch<'a> {
    progress: &'a dyn Progress,
    now: Mutex<Now>,
    done: AtomicU64,
    failed: AtomicBool,
    error: Mutex<Option<Error>>,
}

struct Now {
    phase: Phase,
    total: Option<u64>,
    reported: Instant,
}

impl<'a> Watch<'a> {
    pub(crate) fn new(progress: &'a dyn Progress) -> Self {
        let now = Now { phase: Phase::Read, total: None, reported: Instant::now() };
        Watch {
            progress,
            now: Mutex::new(now),
            done: AtomicU64::new(0),
            failed: AtomicBool::new(false),
            error: Mutex::new(None),
        }
    }

    /// Begins a phase, of which `done` bytes are already done.
    pub(crate) fn begin(&self, phase: Phase, done: u64, total: Option<u64>) -> Result<()> {
        self.done.store(done, Ordering::Relaxed);
        *lock(&self.now) = Now { phase, total, reported: Instant::now() };
        self.report(phase, done, total)
    }

    /// Adds `bytes` to the bytes that are done.
    ///
    /// # Errors
    /// [`Error::Stopped`], also where another thread has failed.
    pub(crate) fn advance(&self, bytes: u64) -> Result<()> {
        let done = self.done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.check()?;
        let Ok(mut now) = self.now.try_lock() else { return Ok(()) };
        if now.reported.elapsed() < REPORT {
            return Ok(());
        }
        now.reported = Instant::now();
        self.report(now.phase, done, now.total)
    }

    fn report(&self, phase: Phase, done: u64, total: Option<u64>) -> Result<()> {
        if self.progress.report(phase, done, total).is_break() {
            return Err(Error::Stopped);
        }
        Ok(())
    }

    /// Fails with [`Error::Stopped`] if a thread has failed.
    pub(crate) fn check(&self) -> Result<()> {
        if self.failed.load(Ordering::Relaxed) { Err(Error::Stopped) } else { Ok(()) }
    }

    /// Keeps the first error of all threads, which makes the other threads stop.
    pub(crate) fn fail(&self, error: Error) {
        let mut first = lock(&self.error);
        if !self.failed.swap(true, Ordering::Relaxed) {
            *first = Some(error);
        }
    }

    /// Runs a thread's work and keeps its error. If the work panics, other threads stop too:
    /// they would wait for this thread.
    pub(crate) fn guard(&self, work: impl FnOnce() -> Result<()>) {
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                if std::thread::panicking() {
                    self.0.store(true, Ordering::Relaxed);
                }
            }
        }
        let _stop = Stop(&self.failed);
        if let Err(error) = work() {
            self.fail(error);
        }
    }

    /// Starts a thread that runs `work` as [`guard`](Self::guard) does. If the system refuses to
    /// start a thread, the run fails.
    pub(crate) fn spawn<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        work: impl FnOnce() -> Result<()> + Send + 'scope,
    ) {
        let started = Builder::new().spawn_scoped(scope, move || self.guard(work));
        if let Err(error) = started {
            self.fail(Error::Thread(error));
        }
    }

    /// Adds `bytes` of the result that were written. Only the phase `Write` counts these as
    /// progress.
    pub(crate) fn advance_written(&self, bytes: u64) -> Result<()> {
        if lock(&self.now).phase == Phase::Write { self.advance(bytes) } else { self.check() }
    }

    /// The result of a run: the first error of all threads, or else `result`.
    pub(crate) fn outcome<T>(&self, result: Result<T>) -> Result<T> {
        match lock(&self.error).take() {
            Some(error) => Err(error),
            None => result,
        }
    }
}

/// A fixed number of things that threads take and give back, which bounds the memory of a run.
pub(crate) struct Pool<T> {
    free: Mutex<Vec<T>>,
    freed: Condvar,
}

impl<T> Pool<T> {
    pub(crate) fn new(things: Vec<T>) -> Self {
        Pool { free: Mutex::new(things), freed: Condvar::new() }
    }

    pub(crate) fn take(&self, watch: &Watch<'_>) -> Result<T> {
        let mut free = lock(&self.free);
        loop {
            watch.check()?;
            if let Some(thing) = free.pop() {
                return Ok(thing);
            }
            free = wait(&self.freed, free);
        }
    }

    pub(crate) fn give(&self, thing: T) {
        lock(&self.free).push(thing);
        self.freed.notify_one();
    }
}

/// Lets threads act one after the other in the order of their numbers, on a value that they
/// share.
pub(crate) struct Turns<T> {
    state: Mutex<(u64, T)>,
    passed: Condvar,
}

impl<T> Turns<T> {
    pub(crate) fn new(value: T) -> Self {
        Turns { state: Mutex::new((0, value)), passed: Condvar::new() }
    }

    /// Waits until all smaller numbers have passed, then runs `act`.
    pub(crate) fn pass<R>(
        &self,
        number: u64,
        watch: &Watch<'_>,
        act: impl FnOnce(&mut T) -> Result<R>,
    ) -> Result<R> {
        let mut state = lock(&self.state);
        while state.0 != number {
            watch.check()?;
            state = wait(&self.passed, state);
        }
        let result = act(&mut state.1)?;
        state.0 += 1;
        self.passed.notify_all();
        Ok(result)
    }

    pub(crate) fn into_inner(self) -> T {
        self.state.into_inner().unwrap_or_else(PoisonError::into_inner).1
    }
}

/// Waits for a notification, but at most for [`PATIENCE`].
pub(crate) fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar.wait_timeout(guard, PATIENCE).unwrap_or_else(PoisonError::into_inner).0
}
