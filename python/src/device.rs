//! Devices, opened once; and the threads of a process that was forked.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rayon::{ThreadPool, ThreadPoolBuilder};
use spec::{Device, Error, ErrorKind, Handle, Result};

/// What a driver is asked for. One that lacks half of itself makes its bindings panic, which
/// is an error here as any other.
///
/// # Errors
/// Those of `ask`; status 1 where it panics.
pub fn caught<T>(device: Device, ask: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(ask)).unwrap_or_else(|panic| {
        let words = panic.downcast_ref::<String>().map(String::as_str);
        let words = words.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic");
        let words = format!("the driver is broken: {words}");
        Err(Error::failure(device, ErrorKind::Failed, words))
    })
}

/// The handle of a device, for as long as the process lives.
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

/// Whether this process was forked from one whose threads it does not have.
static FORKED: AtomicBool = AtomicBool::new(false);
/// The threads of a forked process, made when they are first needed.
static POOL: Mutex<Option<Arc<ThreadPool>>> = Mutex::new(None);

/// Says that this process was forked just now.
pub fn forked() {
    FORKED.store(true, Ordering::Relaxed);
    // A pool of the parent's, which was forked itself, has no threads here to end.
    std::mem::forget(POOL.lock().unwrap_or_else(PoisonError::into_inner).take());
}

/// The threads to work on, where they are not rayon's own: `None` for those.
///
/// rayon's pool does not survive a fork: its threads are the parent's, and work that is
/// given to it would wait forever. So a forked process works on a pool of its own.
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
