//! The floating-point environment of a call: the one that Rust promises its programs, in which
//! subnormal numbers are numbers and results are rounded to the nearest.
//!
//! A shared object that was linked with `-ffast-math` changes the environment of the thread that
//! loads it, and of all threads that this thread starts later: subnormal numbers become zeros. The
//! scores of two tokens may then compare as equal, so calls would give other tokens and experts than
//! in other processes.

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{UsualDuringCall, make_workers_usual};

/// Processors whose environment is left as it is.
#[cfg(not(target_arch = "x86_64"))]
mod other {
    pub(crate) struct UsualDuringCall;

    impl UsualDuringCall {
        pub(crate) fn begin() -> Self {
            UsualDuringCall
        }
    }

    pub(crate) fn make_workers_usual() {}
}
#[cfg(not(target_arch = "x86_64"))]
pub(crate) use other::{UsualDuringCall, make_workers_usual};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::asm;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Bits of MXCSR that change results: subnormal results become zeros, subnormal operands count
    /// as zeros, and the direction of rounding.
    const CHANGING: u32 = 1 << 15 | 1 << 6 | 0b11 << 13;

    fn environment() -> u32 {
        let mut found = 0_u32;
        // SAFETY: the instruction writes the four bytes of `found` and nothing else.
        unsafe {
            asm!("stmxcsr [{}]", in(reg) &raw mut found, options(nostack, preserves_flags));
        }
        found
    }

    fn set_environment(wanted: u32) {
        // SAFETY: the instruction reads the four bytes of `wanted`, which `environment` returned
        // but for bits of `CHANGING`. So no reserved bit is set, which would be a fault.
        unsafe {
            asm!(
                "ldmxcsr [{}]",
                in(reg) &raw const wanted,
                options(nostack, readonly, preserves_flags),
            );
        }
    }

    fn make_usual() {
        let found = environment();
        if found & CHANGING != 0 {
            set_environment(found & !CHANGING);
        }
    }

    /// Gives the workers of rayon's current pool the usual environment, once in a process: they
    /// have the environment of the thread that started them.
    pub(crate) fn make_workers_usual() {
        static DONE: AtomicBool = AtomicBool::new(false);
        // Two threads may both come here first. Neither waits for the other: a worker that waits
        // could not be reached by the other's broadcast.
        if !DONE.load(Ordering::Acquire) {
            rayon::broadcast(|_| make_usual());
            DONE.store(true, Ordering::Release);
        }
    }

    /// The usual environment in the thread that calls, until this is dropped.
    pub(crate) struct UsualDuringCall {
        /// What the thread had before; `None` if it stays as it is now.
        before: Option<u32>,
    }

    impl UsualDuringCall {
        pub(crate) fn begin() -> Self {
            let found = environment();
            if found & CHANGING == 0 {
                return UsualDuringCall { before: None };
            }
            if rayon::current_thread_index().is_some() {
                // A worker of a pool whose other workers are most likely like this one. Workers run
                // only Rust, so their environment need not come back.
                rayon::broadcast(|_| make_usual());
                return UsualDuringCall { before: None };
            }
            set_environment(found & !CHANGING);
            UsualDuringCall { before: Some(found) }
        }
    }

    impl Drop for UsualDuringCall {
        fn drop(&mut self) {
            if let Some(before) = self.before {
                set_environment(before);
            }
        }
    }
}
