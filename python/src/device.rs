//! Opens each device once; and provides threads for a process that was forked.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rayon::{ThreadPool, ThreadPoolBuilder};
use spec::{Device, Error, ErrorKind, Handle, Result};

/// Calls `ask`, which asks a driver, and turns a panic into an error: the bindings of a driver
/// panic if the driver lacks functions.
///
/// # Errors
/// The errors of `ask`; status 1 if `ask` panics.
pub fn caught<T>(device: Device, ask: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(ask)).unwrap_or_else(|panic| {
        let words = panic.downcast_ref::<String>().map(String::as_str);
        let words = words.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic");
        let words = format!("the driver is broken: {words}");
        Err(Error::failure(device, ErrorKind::Failed, words))
    })
}

/// The handle of a device, which stays open as long as the process lives.
///
/// # Errors
/// As the device's `open` reports.
pub fn open(device: Device) -> Result<Handle> {
    static OPEN: Mutex<Option<HashMap<Device, Handle>>> = Mutex::new(None);
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    let open = open.get_or_insert_default();
    if let Some(handle) = open.get(&device) {
        return Ok(handle.clone());
    }
    let handle: Handle = caught(device, || device.to_string().parse())?;
    open.insert(device, handle.clone());
    Ok(handle)
}

/// Whether this process was forked, so that it lacks the threads of its parent.
static FORKED: AtomicBool = AtomicBool::new(false);
/// The threads of a forked process, made when they are first needed.
static POOL: Mutex<Option<Arc<ThreadPool>>> = Mutex::new(None);

/// Records that this process was just forked.
pub fn forked() {
    FORKED.store(true, Ordering::Relaxed);
    // The pool of a parent that was forked itself has no threads in this process, so the pool
    // must not be dropped.
    std::mem::forget(POOL.lock().unwrap_or_else(PoisonError::into_inner).take());
}

/// The thread pool to work on; `None` for rayon's global pool.
///
/// rayon's global pool does not survive a fork: its threads belong to the parent, and work
/// given to the pool would wait forever. So a forked process uses a pool of its own.
pub fn threads() -> Option<Arc<ThreadPool>> {
    if !FORKED.load(Ordering::Relaxed) {
        return None;
    }
    let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
    if pool.is_none() {
        let threads = rayon::current_num_threads();
        *pool = ThreadPoolBuilder::new().num_threads(threads).build().ok().map(Arc::new);
    }
    pool.clone()
}
