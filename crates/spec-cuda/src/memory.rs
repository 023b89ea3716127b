//! Device memory of our own.

use cudarc::driver::sys;
use spec_core::{DType, Error, Memory, Result, Status, Stream, View, ViewMut};

use crate::Cuda;
use crate::driver::check;

/// An allocation on the device; freed, after the device's outstanding work,
/// when it is dropped.
pub(crate) struct DeviceMemory {
    cuda: Cuda,
    address: sys::CUdeviceptr,
    size: usize,
}

/// Lets this thread allocate, copy and free while some other stream is being
/// captured, which does not concern the capture, until dropped.
struct Uncaptured(sys::CUstreamCaptureMode);

impl Uncaptured {
    fn new() -> Self {
        let mut mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: exchanges this thread's mode with the one in `mode`.
        let _ = unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) };
        Uncaptured(mode)
    }
}

impl Drop for Uncaptured {
    fn drop(&mut self) {
        // SAFETY: puts the thread's mode back.
        let _ = unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut self.0) };
    }
}

impl DeviceMemory {
    pub(crate) fn allocate(cuda: &Cuda, size: usize) -> Result<Self> {
        let _current = cuda.gpu().enter()?;
        let _uncaptured = Uncaptured::new();
        let mut address = 0;
        // A null address would look like a missing argument, so even nothing
        // gets one.
        let bytes = size.max(1);
        // SAFETY: the context is current and `address` is a place for it.
        let got = unsafe { sys::cuMemAlloc_v2(&mut address, bytes) };
        check(cuda.device(), &format!("could not allocate {bytes} bytes"), got)?;
        Ok(DeviceMemory { cuda: cuda.clone(), address, size })
    }

    /// A length that was checked to lie inside the allocation.
    fn fitting(&self, len: usize) -> Result<usize> {
        if len <= self.size {
            return Ok(len);
        }
        let words = format!("{len} bytes are more than the {} of the allocation", self.size);
        Err(Error::device(self.cuda.device(), Status::BadTensorShape, words))
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if let Ok(_current) = self.cuda.gpu().enter() {
            let _uncaptured = Uncaptured::new();
            // SAFETY: allocated by us, freed once; cuMemFree waits for work
            // that was enqueued before.
            let _ = unsafe { sys::cuMemFree_v2(self.address) };
        }
    }
}

impl Memory for DeviceMemory {
    fn size(&self) -> usize {
        self.size
    }

    fn view(&self, dtype: DType, len: usize) -> View<'_> {
        assert!(len.saturating_mul(dtype.size()) <= self.size, "{len} {dtype} do not fit");
        // SAFETY: the allocation holds that many elements and outlives the
        // view; freeing waits for the work that uses it.
        unsafe { View::from_address(dtype, len, self.cuda.device(), self.address) }
    }

    fn view_mut(&mut self, dtype: DType, len: usize) -> ViewMut<'_> {
        assert!(len.saturating_mul(dtype.size()) <= self.size, "{len} {dtype} do not fit");
        // SAFETY: as in `view`, and the borrow is exclusive.
        unsafe { ViewMut::from_address(dtype, len, self.cuda.device(), self.address) }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let len = self.fitting(bytes.len())?;
        let queue = self.cuda.queue(Stream::default())?;
        let _uncaptured = Uncaptured::new();
        // SAFETY: the allocation holds `len` bytes and the borrow is exclusive.
        unsafe { queue.write(self.address, &bytes[..len]) }
    }

    fn read(&self, bytes: &mut [u8]) -> Result<()> {
        let len = self.fitting(bytes.len())?;
        let queue = self.cuda.queue(Stream::default())?;
        let _uncaptured = Uncaptured::new();
        // SAFETY: the allocation holds `len` bytes, written in stream order.
        unsafe { queue.read(self.address, &mut bytes[..len]) }
    }
}
