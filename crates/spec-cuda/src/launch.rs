//! The one way to enqueue work.

use std::cell::RefCell;
use std::ffi::c_void;
use std::fmt;

use cudarc::driver::sys;
use spec_core::stream::Kind;
use spec_core::{Error, Result, Route, Status, Stream};

use crate::Cuda;
use crate::driver::check;
use crate::function::{Code, Function};
use crate::gpu::Gpu;
use crate::shape::{NO_ATTRIBUTES, Shape};

/// A stream that is ready to take work, with its context current. [`Cuda::enqueue`] lends
/// a queue to its closure.
pub struct Queue<'a> {
    gpu: &'a Gpu,
    stream: sys::CUstream,
    /// Where work is listed instead of enqueued, for a stream of kind [`Kind::Route`].
    route: Option<RefCell<&'a mut Route>>,
    /// Whether a kernel may be launched while the previous kernel still runs. Each kernel waits
    /// for the previous kernel (`follow` in `kernels/common.cuh`): most kernels as they start, a
    /// few after work that needs nothing of the previous kernel.
    dependent: bool,
    /// Whether the device and its driver support such launches.
    can_depend: bool,
}

impl Cuda {
    /// Calls `work` with a queue for `stream`. The device's context is current on
    /// this thread until `work` returns.
    ///
    /// # Errors
    /// Status 3 for a stream of another device, 5 for a stream of another backend;
    /// the errors of `work`.
    #[inline]
    pub fn enqueue<T>(
        &self,
        stream: Stream<'_>,
        work: impl FnOnce(&Queue<'_>) -> Result<T>,
    ) -> Result<T> {
        let can_depend = self.limits().has_dependent_launches();
        let dependent = stream.is_dependent() && can_depend;
        let gpu = self.gpu();
        let kind = match stream.into_kind() {
            Kind::Route(route) => {
                let (stream, route) = (std::ptr::null_mut(), Some(RefCell::new(route)));
                return work(&Queue { gpu, stream, route, dependent, can_depend });
            }
            kind => kind,
        };
        let stream = self.resolve(&kind)?;
        let _current = gpu.enter()?;
        work(&Queue { gpu, stream, route: None, dependent, can_depend })
    }

    #[inline]
    fn resolve(&self, stream: &Kind<'_>) -> Result<sys::CUstream> {
        let refuse = |status, words: String| Err(Error::device(self.device(), status, words));
        match *stream {
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

    /// Makes the own stream of this handle wait for all work that was enqueued so far
    /// on the own stream of `other`.
    pub(crate) fn wait_for(&self, other: &Cuda) -> Result<()> {
        let _current = self.gpu().enter()?;
        let mut event = std::ptr::null_mut();
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: the context is current and `event` has room for the handle.
        let made = unsafe { sys::cuEventCreate(&mut event, flags) };
        check(self.device(), "could not make an event", made)?;
        // SAFETY: event and streams are alive; the driver keeps the recorded work
        // that a stream waits for after the event is destroyed.
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

impl fmt::Debug for Queue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
    /// `function` was loaded on the device of this queue. The kernel takes one argument,
    /// a struct with the layout of `P`. Until the kernel has run, every address in
    /// `params` is valid for all accesses that the kernel makes under this shape.
    #[inline]
    pub unsafe fn launch<P: Copy>(
        &self,
        function: &Function,
        shape: Shape,
        params: &P,
    ) -> Result<()> {
        // SAFETY: as promised by the caller.
        unsafe { self.launch_as(self.dependent, function, shape, params) }
    }

    /// Enqueues a kernel whose predecessor on the stream is another kernel of the same call: the
    /// device may launch the kernel while its predecessor still runs, on every stream.
    ///
    /// # Errors
    /// As [`launch`](Self::launch).
    ///
    /// # Safety
    /// As [`launch`](Self::launch). The kernel waits for its predecessor (`follow` in
    /// `kernels/common.cuh`) before it writes, and before it reads what the predecessor wrote.
    #[inline]
    pub unsafe fn launch_next<P: Copy>(
        &self,
        function: &Function,
        shape: Shape,
        params: &P,
    ) -> Result<()> {
        // SAFETY: as promised by the caller.
        unsafe { self.launch_as(self.can_depend, function, shape, params) }
    }

    #[inline]
    unsafe fn launch_as<P: Copy>(
        &self,
        dependent: bool,
        function: &Function,
        shape: Shape,
        params: &P,
    ) -> Result<()> {
        if shape.grid.contains(&0) {
            return Ok(());
        }
        if let Some(route) = &self.route {
            route.borrow_mut().push(&function.name, shape);
            return Ok(());
        }
        let Code::Loaded { raw, .. } = function.code else {
            return Err(self.gpu.absent());
        };
        let mut attributes = NO_ATTRIBUTES;
        let config = shape.config(self.stream, dependent, &mut attributes);
        let mut arguments = [std::ptr::from_ref(params).cast_mut().cast::<c_void>()];
        // SAFETY: the function is loaded and takes one `P`, which the driver
        // copies before it returns; the caller promised that its addresses are valid.
        let code = unsafe {
            sys::cuLaunchKernelEx(&config, raw, arguments.as_mut_ptr(), std::ptr::null_mut())
        };
        check(self.gpu.device(), function.operator, code)
    }

    /// Enqueues setting `bytes` bytes at `address` to zero.
    ///
    /// # Errors
    /// Status 1 when the driver refuses.
    ///
    /// # Safety
    /// The range is valid device memory until the work has run, and every other access
    /// to the range is ordered before or after the work.
    #[inline]
    pub unsafe fn zero(&self, address: u64, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        if let Some(route) = &self.route {
            route.borrow_mut().push("memset", format_args!("{bytes} bytes"));
            return Ok(());
        }
        // SAFETY: the caller promised that the range is valid and used by nothing else.
        let code = unsafe { sys::cuMemsetD8Async(address, 0, bytes, self.stream) };
        check(self.gpu.device(), "could not clear memory", code)
    }

    /// Copies host bytes to `address` and waits for the copy. The launch of an operator
    /// must not call this function, because it waits.
    ///
    /// # Errors
    /// Status 1 when the driver refuses, as it does while the stream is captured.
    ///
    /// # Safety
    /// As for [`zero`](Self::zero), for `bytes.len()` bytes at `address`.
    pub unsafe fn write(&self, address: u64, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.refuse_copy()?;
        let from = bytes.as_ptr().cast();
        // SAFETY: the caller promised that the range is valid; this function waits, so
        // the host bytes outlive the copy.
        let sent = unsafe { sys::cuMemcpyHtoDAsync_v2(address, from, bytes.len(), self.stream) };
        check(self.gpu.device(), "could not copy to the device", sent)?;
        self.wait()
    }

    /// Copies from `address` to the host after all work enqueued before, and waits.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    ///
    /// # Safety
    /// `bytes.len()` bytes from `address` are valid device memory, and every write to
    /// the range is ordered by the stream.
    pub unsafe fn read(&self, address: u64, bytes: &mut [u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.refuse_copy()?;
        let to = bytes.as_mut_ptr().cast();
        // SAFETY: the caller promised that the range is valid; this function waits, so
        // `bytes` outlives the copy.
        let sent = unsafe { sys::cuMemcpyDtoHAsync_v2(to, address, bytes.len(), self.stream) };
        check(self.gpu.device(), "could not copy from the device", sent)?;
        self.wait()
    }

    /// Refuses copies and waits where work is listed instead of enqueued.
    fn refuse_copy(&self) -> Result<()> {
        if self.route.is_none() {
            return Ok(());
        }
        let words = "a call that copies to or from the host has no route";
        Err(Error::device(self.gpu.device(), Status::NotImplemented, words))
    }

    /// Waits for all work that was enqueued on the stream.
    ///
    /// # Errors
    /// Status 1 when the driver refuses or the work failed.
    pub fn wait(&self) -> Result<()> {
        self.refuse_copy()?;
        // SAFETY: the stream is the handle's own stream, or the caller who made a
        // `Stream` of it promised that it is alive.
        let done = unsafe { sys::cuStreamSynchronize(self.stream) };
        check(self.gpu.device(), "enqueued work failed", done)
    }
}
