//! Catches panics of the libraries that read files, which a damaged file can cause.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    /// The number of calls of [`catch`] that this thread is in.
    static CATCHING: Cell<u32> = const { Cell::new(0) };
}

/// Runs `work`. If it panics, the first line of the panic's message is the error; the caller must
/// then drop all state that `work` has changed.
pub(crate) fn catch<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    CATCHING.set(CATCHING.get() + 1);
    let result = catch_unwind(AssertUnwindSafe(work));
    CATCHING.set(CATCHING.get() - 1);
    result.map_err(|panic| words(&*panic))
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a panic").lines().next().unwrap_or_default().to_owned()
}

/// Keeps panics inside [`catch`], which become errors, off stderr for the rest of the process.
/// All other panics are reported as before.
pub(crate) fn hide_panics() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if CATCHING.get() == 0 {
            before(panic);
        }
    }));
}
