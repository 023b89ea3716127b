//! What every thread of a run looks at: how far it is, and whether to go on.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, Scope};
use std::time::{Duration, Instant};

use crate::{Error, Phase, Progress, Result};

/// How often progress is reported, at most.
const REPORT: Duration = Duration::from_millis(20);
/// How long a thread waits before it looks whether another one has failed.
const PATIENCE: Duration = Duration::from_millis(20);

/// Locks, whatever happened to the thread that had it before.
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

    /// A phase begins; so much of it is done already.
    pub(crate) fn begin(&self, phase: Phase, done: u64, total: Option<u64>) -> Result<()> {
        self.done.store(done, Ordering::Relaxed);
        *lock(&self.now) = Now { phase, total, reported: Instant::now() };
        self.report(phase, done, total)
    }

    /// So many more bytes are done.
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

    /// Whether to go on.
    pub(crate) fn check(&self) -> Result<()> {
        if self.failed.load(Ordering::Relaxed) { Err(Error::Stopped) } else { Ok(()) }
    }

    /// Keeps the first error of all threads; the others stop because of it.
    pub(crate) fn fail(&self, error: Error) {
        let mut first = lock(&self.error);
        if !self.failed.swap(true, Ordering::Relaxed) {
            *first = Some(error);
        }
    }

    /// Runs a thread's work and keeps its error. Others stop if it panics, too:
    /// they would wait for it.
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

    /// Runs a thread's work in one of its own, as [`guard`](Self::guard) does.
    /// Where the system starts none, that is the run's error.
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

    /// So many bytes of the result are written: progress of the phase that
    /// counts those.
    pub(crate) fn advance_written(&self, bytes: u64) -> Result<()> {
        if lock(&self.now).phase == Phase::Write { self.advance(bytes) } else { self.check() }
    }

    /// What a run ends with: the first error of all threads, if there is one.
    pub(crate) fn outcome<T>(&self, result: Result<T>) -> Result<T> {
        match lock(&self.error).take() {
            Some(error) => Err(error),
            None => result,
        }
    }
}

/// Things that threads take and give back: what bounds the memory.
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

/// Lets threads pass one after the other in the order of their numbers, each
/// with what its predecessor left.
pub(crate) struct Turns<T> {
    state: Mutex<(u64, T)>,
    passed: Condvar,
}

impl<T> Turns<T> {
    pub(crate) fn new(value: T) -> Self {
        Turns { state: Mutex::new((0, value)), passed: Condvar::new() }
    }

    /// Waits until all before `number` have passed, then does `act`.
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

/// Waits for a notification, or a moment.
pub(crate) fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar.wait_timeout(guard, PATIENCE).unwrap_or_else(PoisonError::into_inner).0
}
