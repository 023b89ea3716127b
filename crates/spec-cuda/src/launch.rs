//! The one way to enqueue work.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::sys;
use spec_core::stream::Kind;
use spec_core::{Error, Result, Status, Stream};

use crate::Cuda;
use crate::driver::check;
use crate::gpu::{Gpu, Module};

/// A kernel that is loaded, and that stays loaded for as long as anybody holds it.
#[derive(Clone, Debug)]
pub struct Function {
    pub(crate) raw: sys::CUfunction,
    /// The most dynamic shared memory of a block, in bytes.
    pub(crate) dynamic: u32,
    /// The operator, for error messages.
    pub(crate) operator: &'static str,
    /// What `raw` belongs to: unloaded after the last of its functions.
    pub(crate) _module: Arc<Module>,
}

// SAFETY: a CUfunction may be used from any thread.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

/// How many threads, and how they are grouped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Blocks in x (below 2^31) and y (below 2^16).
    pub grid: [u32; 2],
    /// Threads of a block.
    pub block: u32,
    /// Dynamic shared memory of a block, in bytes.
    pub shared: u32,
    /// Blocks in x that form a cluster; 1 for none, which every device has.
    pub cluster: u32,
}

impl Shape {
    /// `blocks` blocks of `threads` threads.
    pub fn new(blocks: u32, threads: u32) -> Self {
        Shape { grid: [blocks, 1], block: threads, shared: 0, cluster: 1 }
    }

    /// With dynamic shared memory.
    pub fn shared(self, bytes: u32) -> Self {
        Shape { shared: bytes, ..self }
    }

    /// With blocks grouped into clusters.
    pub fn cluster(self, blocks: u32) -> Self {
        Shape { cluster: blocks, ..self }
    }

    /// What the driver takes, which points to `attributes`.
    pub(crate) fn config(
        self,
        stream: sys::CUstream,
        dependent: bool,
        attributes: &mut Attributes,
    ) -> sys::CUlaunchConfig_st {
        use sys::CUlaunchAttributeID_enum as Id;
        let mut count = 0;
        let mut add = |id, value| {
            attributes[count] = sys::CUlaunchAttribute_st { id, pad: [0; 4], value };
            count += 1;
        };
        if self.cluster > 1 {
            let blocks =
                sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x: self.cluster, y: 1, z: 1 };
            add(
                Id::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
                sys::CUlaunchAttributeValue_union { clusterDim: blocks },
            );
        }
        if dependent {
            add(
                Id::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                sys::CUlaunchAttributeValue_union { programmaticStreamSerializationAllowed: 1 },
            );
        }
        sys::CUlaunchConfig_st {
            gridDimX: self.grid[0],
            gridDimY: self.grid[1],
            gridDimZ: 1,
            blockDimX: self.block,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: self.shared,
            hStream: stream,
            attrs: attributes.as_mut_ptr(),
            numAttrs: count as u32,
        }
    }
}

pub(crate) type Attributes = [sys::CUlaunchAttribute_st; 2];

pub(crate) const NO_ATTRIBUTES: Attributes = [sys::CUlaunchAttribute_st {
    id: sys::CUlaunchAttributeID_enum::CU_LAUNCH_ATTRIBUTE_IGNORE,
    pad: [0; 4],
    value: sys::CUlaunchAttributeValue_union { pad: [0; 64] },
}; 2];

/// A stream ready to take work: resolved, with its context current. Lent by
/// [`Cuda::enqueue`].
pub struct Queue<'a> {
    gpu: &'a Gpu,
    stream: sys::CUstream,
    /// Whether kernels may be launched while the one before them runs: each of them
    /// waits as it starts (`follow` in `kernels/common.cuh`).
    dependent: bool,
}

impl Cuda {
    /// Lets `work` enqueue on the stream that a caller passed, with the device's
    /// context current on this thread meanwhile.
    ///
    /// # Errors
    /// Status 3 for a stream of another device, 5 for one of another backend;
    /// those of `work`.
    #[inline]
    pub fn enqueue<T>(
        &self,
        stream: Stream<'_>,
        work: impl FnOnce(&Queue<'_>) -> Result<T>,
    ) -> Result<T> {
        let dependent = stream.is_dependent() && self.limits().has_dependent_launches();
        let stream = self.resolve(stream)?;
        let gpu = self.gpu();
        let _current = gpu.enter()?;
        work(&Queue { gpu, stream, dependent })
    }

    #[inline]
    fn resolve(&self, stream: Stream<'_>) -> Result<sys::CUstream> {
        let refuse = |status, words: String| Err(Error::device(self.device(), status, words));
        match stream.into_kind() {
            Kind::Own => Ok(self.own_stream()),
            Kind::Raw { device, handle } if device == self.device() => {
                Ok(std::ptr::without_provenance_mut(handle as usize))
            }
            Kind::Raw { device, .. } => {
                let status = if device.backend() == self.device().backend() {
                    Status::BadParam
                } else {
                    Status::DeviceTypeNotSupported
                };
                refuse(status, format!("`stream` belongs to {device}"))
            }
            _ => {
                let words = "`stream` is a recording object, expected a CUDA stream";
                refuse(Status::DeviceTypeNotSupported, words.to_owned())
            }
        }
    }

    /// Lets the handle's own stream go on only when another's has done what was
    /// enqueued there so far.
    pub(crate) fn wait_for(&self, other: &Cuda) -> Result<()> {
        let _current = self.gpu().enter()?;
        let mut event = std::ptr::null_mut();
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: the context is current and `event` is a place for the handle.
        let made = unsafe { sys::cuEventCreate(&mut event, flags) };
        check(self.device(), "could not make an event", made)?;
        // SAFETY: event and streams are alive; the driver keeps what a stream
        // waits for beyond the event's end.
        let (recorded, waiting) = unsafe {
            let recorded = sys::cuEventRecord(event, other.own_stream());
            let waiting = sys::cuStreamWaitEvent(self.own_stream(), event, 0);
            let _ = sys::cuEventDestroy_v2(event);
            (recorded, waiting)
        };
        check(self.device(), "could not record an event", recorded)?;
        check(self.device(), "could not wait for another handle", waiting)
    }
}

impl std::fmt::Debug for Queue<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Queue({:?} of {})", self.stream, self.gpu.device())
    }
}

impl Queue<'_> {
    /// Enqueues a kernel. A shape without blocks enqueues nothing.
    ///
    /// # Errors
    /// Status 1 when the driver refuses.
    ///
    /// # Safety
    /// The function is one of this queue's device. The kernel takes one argument, a struct laid out as `P`; every address
    /// in it is valid for what the kernel does with it under this shape, until
    /// it has run.
    #[inline]
    pub unsafe fn launch<P: Copy>(
        &self,
        function: &Function,
        shape: Shape,
        params: &P,
    ) -> Result<()> {
        if shape.grid.contains(&0) {
            return Ok(());
        }
        let mut attributes = NO_ATTRIBUTES;
        let config = shape.config(self.stream, self.dependent, &mut attributes);
        let mut arguments = [std::ptr::from_ref(params).cast_mut().cast::<c_void>()];
        // SAFETY: the function is loaded and takes one `P`, which the driver
        // copies before it returns; the caller vouches for what is inside.
        let code = unsafe {
            sys::cuLaunchKernelEx(
                &config,
                function.raw,
                arguments.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        check(self.gpu.device(), function.operator, code)
    }

    /// Enqueues zeroing `bytes` bytes at `address`.
    ///
    /// # Errors
    /// Status 1 when the driver refuses.
    ///
    /// # Safety
    /// The range is valid device memory, until the work has run, that nothing
    /// else touches unordered with it.
    #[inline]
    pub unsafe fn zero(&self, address: u64, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the caller vouches for the range.
        let code = unsafe { sys::cuMemsetD8Async(address, 0, bytes, self.stream) };
        check(self.gpu.device(), "could not clear memory", code)
    }

    /// Copies host bytes to `address` and waits. An operator's launch never does:
    /// this is for memory, and for measuring what copying costs.
    ///
    /// # Errors
    /// Status 1 when the driver refuses, as it does while the stream is captured.
    ///
    /// # Safety
    /// As for [`zero`](Self::zero), for `bytes.len()` bytes.
    pub unsafe fn write(&self, address: u64, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let from = bytes.as_ptr().cast();
        // SAFETY: the caller vouches for the range, and we wait, so the host
        // bytes outlive the copy.
        let sent = unsafe { sys::cuMemcpyHtoDAsync_v2(address, from, bytes.len(), self.stream) };
        check(self.gpu.device(), "could not copy to the device", sent)?;
        self.wait()
    }

    /// Waits for what was enqueued, then copies from `address` to the host.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    ///
    /// # Safety
    /// `bytes.len()` bytes from `address` are valid device memory that nothing
    /// writes unordered with the stream.
    pub unsafe fn read(&self, address: u64, bytes: &mut [u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let to = bytes.as_mut_ptr().cast();
        // SAFETY: as in `write`.
        let sent = unsafe { sys::cuMemcpyDtoHAsync_v2(to, address, bytes.len(), self.stream) };
        check(self.gpu.device(), "could not copy from the device", sent)?;
        self.wait()
    }

    /// Waits for everything that was enqueued.
    ///
    /// # Errors
    /// Status 1 when the driver refuses or the work failed.
    pub fn wait(&self) -> Result<()> {
        // SAFETY: the stream is the handle's own or one the caller vouched for.
        let done = unsafe { sys::cuStreamSynchronize(self.stream) };
        check(self.gpu.device(), "enqueued work failed", done)
    }
}
