//! A handle to a device: [`Cuda`].

use std::sync::Arc;

use cudarc::driver::sys;
use spec_core::{Device, DeviceInfo, QueueId, Result};

use crate::driver::{self, check};
use crate::gpu::Gpu;
use crate::limits::Limits;

/// Lists the devices that the kernels run on, by their CUDA ordinals.
///
/// # Errors
/// Status 6 if there is no driver, a driver older than CUDA 12.0, or no device; 8
/// if every device is older than [`MIN_COMPUTE`](crate::MIN_COMPUTE).
pub fn devices() -> Result<Vec<DeviceInfo>> {
    let count = driver::device_count()?;
    let mut found = Vec::new();
    let mut refused = None;
    for index in 0..count {
        match driver::describe(index) {
            Ok(facts) => found.push(facts.info),
            Err(error) => refused = Some(error),
        }
    }
    match refused {
        Some(error) if found.is_empty() => Err(error),
        _ => Ok(found),
    }
}

/// A handle to an open NVIDIA GPU, with a stream of its own. Clones are cheap and
/// share the stream.
#[derive(Clone)]
pub struct Cuda {
    handle: Arc<Handle>,
}

struct Handle {
    gpu: Arc<Gpu>,
    stream: sys::CUstream,
    queue: QueueId,
}

// SAFETY: a CUstream may be used from any thread; the driver locks inside.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Cuda {
    /// Opens the device with this CUDA ordinal: retains its primary context,
    /// which other frameworks use too, and makes a stream.
    ///
    /// # Errors
    /// Status 6 if there is no driver or no such device, 8 if the device is older
    /// than [`MIN_COMPUTE`](crate::MIN_COMPUTE), 1 if the driver fails.
    pub fn open(index: usize) -> Result<Self> {
        let gpu = Gpu::open(index)?;
        let current = gpu.enter()?;
        let mut stream = std::ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the device's context is current and `stream` has room for the
        // handle.
        let made = unsafe { sys::cuStreamCreate(&mut stream, flags) };
        check(gpu.device(), "could not make a stream", made)?;
        drop(current);
        Ok(Cuda { handle: Arc::new(Handle { gpu, stream, queue: QueueId::unique() }) })
    }

    /// A handle without a device: descriptors can be created on it and asked for their
    /// [`route`](spec_core::Descriptor::route), which is that of a device with these limits. All else
    /// is an error. So a test asks on any machine which kernels a GPU would run.
    ///
    /// How many clusters a device runs at a time depends on its yield; here the numbers are those of
    /// an H100 that was measured, in proportion to the multiprocessors.
    ///
    /// ```
    /// use spec_core::{Descriptor, ops::TreeVerify};
    /// use spec_cuda::{Cuda, kernel::Limits};
    ///
    /// let (h100, operator) = (Cuda::without_device(Limits::H100), TreeVerify::new(5));
    /// let descriptor = Descriptor::create(&h100, &operator, &operator.tensors(64, 16))?;
    /// let route = descriptor.route()?.to_string();
    /// assert_eq!(route, "tree_verify_staged (64 blocks of 32 threads)");
    /// # Ok::<(), spec_core::Error>(())
    /// ```
    pub fn without_device(limits: Limits) -> Self {
        let (gpu, stream) = (Gpu::without_device(limits), std::ptr::null_mut());
        Cuda { handle: Arc::new(Handle { gpu, stream, queue: QueueId::unique() }) }
    }

    /// The handle's own stream as a `CUstream`, for callers who order their work
    /// against this stream. The stream lives as long as this handle and its clones.
    pub fn raw_stream(&self) -> u64 {
        self.own_stream().addr() as u64
    }

    pub(crate) fn gpu(&self) -> &Arc<Gpu> {
        &self.handle.gpu
    }

    pub(crate) fn queue(&self) -> QueueId {
        self.handle.queue
    }

    pub(crate) fn own_stream(&self) -> sys::CUstream {
        self.handle.stream
    }

    pub(crate) fn device(&self) -> Device {
        self.handle.gpu.device()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // If the context cannot be entered, the context is gone, and so is the stream.
        if let Ok(_current) = self.gpu.enter() {
            // SAFETY: this handle owns the stream, and no clone of the handle is left;
            // the driver lets enqueued work finish first.
            let _ = unsafe { sys::cuStreamDestroy_v2(self.stream) };
        }
    }
}

impl std::fmt::Debug for Cuda {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cuda({})", self.device())
    }
}
