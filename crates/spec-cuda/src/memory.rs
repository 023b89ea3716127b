//! Device memory and page-locked host memory that this crate allocates.

use cudarc::driver::sys;
use spec_core::{Backend, DType, Error, Memory, Result, Staging, Status, Stream, View, ViewMut};

use crate::Cuda;
use crate::driver::check;

/// An allocation on the device. Dropping the allocation frees its memory after
/// the device's outstanding work has finished.
pub(crate) struct DeviceMemory {
    cuda: Cuda,
    address: sys::CUdeviceptr,
    size: usize,
}

/// A guard that lets this thread allocate, copy and free while another stream is
/// being captured; such calls do not become part of the capture.
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
        // SAFETY: restores the mode that this thread had before.
        let _ = unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut self.0) };
    }
}

impl DeviceMemory {
    pub(crate) fn allocate(cuda: &Cuda, size: usize) -> Result<Self> {
        let _current = cuda.gpu().enter()?;
        let _uncaptured = Uncaptured::new();
        let mut address = 0;
        // A null address would look like an absent argument, so an allocation of
        // 0 bytes gets an address too.
        let bytes = size.max(1);
        // SAFETY: the context is current and `address` has room for an address.
        let got = unsafe { sys::cuMemAlloc_v2(&mut address, bytes) };
        check(cuda.device(), &format!("could not allocate {bytes} bytes"), got)?;
        Ok(DeviceMemory { cuda: cuda.clone(), address, size })
    }

    /// The same memory, now ordered by the stream of `cuda`, a handle to the same device.
    pub(crate) fn moved_to(mut self, cuda: &Cuda) -> Result<Self> {
        if cuda.device() != self.cuda.device() {
            let words = format!("memory on {}, expected memory of this device", self.cuda.device());
            return Err(Error::device(cuda.device(), Status::BadParam, words));
        }
        cuda.wait_for(&self.cuda)?;
        self.cuda = cuda.clone();
        Ok(self)
    }

    /// The address of a range of the allocation; an error if the range passes its end.
    fn fitting(&self, offset: usize, len: usize) -> Result<sys::CUdeviceptr> {
        if offset.checked_add(len).is_some_and(|end| end <= self.size) {
            return Ok(self.address + offset as u64);
        }
        let size = self.size;
        let words = format!("{len} bytes from byte {offset} on pass the {size} of the allocation");
        Err(Error::device(self.cuda.device(), Status::BadTensorShape, words))
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if let Ok(_current) = self.cuda.gpu().enter() {
            let _uncaptured = Uncaptured::new();
            // SAFETY: this crate allocated the memory and frees it once; cuMemFree
            // waits for work that was enqueued before.
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
        // view; freeing waits for the work that uses the memory. The memory
        // belongs to the handle's stream.
        unsafe {
            View::from_address(dtype, len, self.cuda.device(), self.address)
                .of_queue(self.cuda.queue_id())
        }
    }

    fn view_mut(&mut self, dtype: DType, len: usize) -> ViewMut<'_> {
        assert!(len.saturating_mul(dtype.size()) <= self.size, "{len} {dtype} do not fit");
        // SAFETY: the same holds as in `view`, and the borrow is exclusive.
        unsafe {
            ViewMut::from_address(dtype, len, self.cuda.device(), self.address)
                .of_queue(self.cuda.queue_id())
        }
    }

    fn write_at(&mut self, offset: usize, bytes: &[u8]) -> Result<()> {
        let at = self.fitting(offset, bytes.len())?;
        let _uncaptured = Uncaptured::new();
        // SAFETY: `fitting` checked that the bytes lie inside the allocation, and
        // the borrow is exclusive.
        self.cuda.enqueue(Stream::default(), |queue| unsafe { queue.write(at, bytes) })
    }

    fn read_at(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        let at = self.fitting(offset, bytes.len())?;
        let _uncaptured = Uncaptured::new();
        // SAFETY: `fitting` checked that the bytes lie inside the allocation; writes
        // to it are ordered by the same stream.
        self.cuda.enqueue(Stream::default(), |queue| unsafe { queue.read(at, bytes) })
    }
}

/// Page-locked host memory.
pub(crate) struct PageLocked {
    cuda: Cuda,
    address: *mut u8,
    size: usize,
}

// SAFETY: `self` owns the allocation, and access to it needs a borrow of `self`.
unsafe impl Send for PageLocked {}
// SAFETY: as above.
unsafe impl Sync for PageLocked {}

impl PageLocked {
    pub(crate) fn allocate(cuda: &Cuda, size: usize) -> Result<Self> {
        let _current = cuda.gpu().enter()?;
        let _uncaptured = Uncaptured::new();
        let mut address = std::ptr::null_mut();
        let bytes = size.max(1);
        // SAFETY: the context is current and `address` has room for an address.
        let got =
            unsafe { sys::cuMemHostAlloc(&mut address, bytes, sys::CU_MEMHOSTALLOC_PORTABLE) };
        check(cuda.device(), &format!("could not allocate {bytes} page-locked bytes"), got)?;
        let address = address.cast::<u8>();
        // SAFETY: the allocation has `bytes` bytes. The bytes are zeroed because a slice
        // may only be made of initialised memory.
        unsafe { address.write_bytes(0, bytes) };
        Ok(PageLocked { cuda: cuda.clone(), address, size })
    }
}

impl Drop for PageLocked {
    fn drop(&mut self) {
        if let Ok(_current) = self.cuda.gpu().enter() {
            let _uncaptured = Uncaptured::new();
            // SAFETY: this crate allocated the memory and frees it once; every copy
            // from or to it waited for its end.
            let _ = unsafe { sys::cuMemFreeHost(self.address.cast()) };
        }
    }
}

impl Staging for PageLocked {
    fn bytes(&self) -> &[u8] {
        // SAFETY: the allocation has at least `size` bytes, all initialised.
        unsafe { std::slice::from_raw_parts(self.address, self.size) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the allocation has at least `size` bytes, all initialised, and the
        // borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.address, self.size) }
    }
}
