//! What the driver has loaded: a context, a module in it, a kernel of the module.

use std::sync::Arc;

use cudarc::driver::sys;
use spec_core::{Device, Result};

use crate::cubin::Facts;
use crate::driver::Current;

/// A retained primary context of a device.
#[derive(Debug)]
pub(crate) struct Context {
    pub device: Device,
    pub ordinal: sys::CUdevice,
    pub raw: sys::CUcontext,
}

/// Kernels that are loaded into a context. The module keeps the context retained.
#[derive(Debug)]
pub(crate) struct Module {
    pub context: Arc<Context>,
    pub raw: sys::CUmodule,
}

// SAFETY: contexts may be used from any thread; the driver locks inside.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}
// SAFETY: modules may be used from any thread; the driver locks inside.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Context {
    #[inline]
    pub(crate) fn enter(&self) -> Result<Current> {
        // SAFETY: retained until `self` is dropped.
        unsafe { Current::enter(self.device, self.raw) }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once in `Gpu::open`, released once here.
        let _ = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.ordinal) };
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // If the context cannot be entered, the context is gone, and so is the module.
        if let Ok(_current) = self.context.enter() {
            // SAFETY: each `Function` of the module keeps the module alive, so no function of
            // the module is left to launch.
            let _ = unsafe { sys::cuModuleUnload(self.raw) };
        }
    }
}

/// A loaded kernel, which stays loaded while any clone of its `Function` exists.
#[derive(Clone, Debug)]
pub struct Function {
    pub(crate) code: Code,
    /// The name of the kernel.
    pub(crate) name: Arc<str>,
    /// The largest dynamic shared memory of a block, in bytes.
    pub(crate) dynamic: u32,
    /// The name of the operator, for error messages.
    pub(crate) operator: &'static str,
}

/// The code of a kernel.
#[derive(Clone, Debug)]
pub(crate) enum Code {
    Loaded {
        raw: sys::CUfunction,
        /// The module of `raw`, which is unloaded after the last of its functions is dropped.
        _module: Arc<Module>,
    },
    /// The code was only looked at: there is no device ([`Cuda::without_device`]).
    Unloaded(Facts),
}

// SAFETY: a CUfunction may be used from any thread.
unsafe impl Send for Code {}
// SAFETY: as above.
unsafe impl Sync for Code {}
