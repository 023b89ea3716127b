//! Memory and streams of other frameworks, checked as far as the driver can tell.
//!
//! A caller who holds a device pointer from PyTorch, CuPy or cudarc and a
//! `CUstream` wraps the pointer and the stream here and passes the results to
//! [`Descriptor::call_on`](spec_core::Descriptor::call_on). Wrapping is the
//! one unsafe step, since nobody can check how long foreign memory lives.
//! Wrapping does check that the pointer is device memory, of this device, and
//! that the allocation around the pointer is large enough.
//!
//! Wrapping asks the driver and costs about a microsecond. A caller who knows
//! that the pointer is right can use [`View::from_address`] instead, or pass only
//! addresses to [`Descriptor::call_at`](spec_core::Descriptor::call_at), which
//! knows dtypes and sizes from the descriptor. An example with cudarc, whose slices
//! also hold the data of candle's CUDA tensors:
//!
//! ```no_run
//! use cudarc::driver::{CudaContext, DevicePtr, DevicePtrMut};
//! use spec_core::ops::deduplicate_topk::Addresses;
//! use spec_core::ops::DeduplicateTopk;
//! use spec_core::{Backend, Descriptor, Stream};
//! use spec_cuda::Cuda;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let context = CudaContext::new(0)?;
//! let stream = context.default_stream();
//! let indices = stream.clone_htod(&[3i32, 1, 3, -1])?;
//! let mut unique = stream.alloc_zeros::<i32>(4)?;
//!
//! let cuda = Cuda::open(0)?;
//! let params = DeduplicateTopk::new().mtp_step(1);
//! let operator = Descriptor::create(&cuda, &params, &params.tensors(1, 4))?;
//! let mut workspace = stream.alloc_zeros::<u8>(operator.workspace_size().max(1))?;
//! {
//!     // cudarc orders these slices by events while the guards live.
//!     let (indices, _read) = indices.device_ptr(&stream);
//!     let (unique, _written) = unique.device_ptr_mut(&stream);
//!     let (workspace, _used) = workspace.device_ptr_mut(&stream);
//!     let on = stream.cu_stream().addr() as u64;
//!     // SAFETY: slices and stream are alive and as described, and cudarc orders
//!     // every other use of them against this stream.
//!     unsafe {
//!         let addresses =
//!             Addresses::new(indices, unique);
//!         let stream = Stream::from_raw(cuda.info().device, on);
//!         operator.call_at(workspace.into(), addresses, stream)?;
//!     }
//! }
//! assert_eq!(stream.clone_dtoh(&unique)?, [1, 3, -1, -1]);
//! # Ok(())
//! # }
//! ```

use std::ffi::c_void;

use cudarc::driver::sys;
use spec_core::{DType, Error, Result, Status, Stream, View, ViewMut};

use crate::Cuda;
use crate::driver::{Text, check};

use sys::CUpointer_attribute_enum as Attribute;

/// What the driver reports about the allocation around an address.
struct Allocation {
    device: i32,
    /// The address one past the last byte of the allocation.
    end: u64,
    /// Whether neighbouring mappings may belong to one allocation, as with virtual
    /// memory management (PyTorch's expandable segments).
    mapped: bool,
}

impl Cuda {
    /// Foreign device memory to read: `len` elements of `dtype` at `address`.
    ///
    /// # Errors
    /// Status 4 for a null pointer, 5 for an address that is no device memory,
    /// 3 for memory of another device, 11 if the allocation is too small for
    /// `len` elements from `address` on.
    ///
    /// # Safety
    /// Until the work that uses the view has finished on the device, the memory
    /// must stay allocated, and every write to it must be ordered before or after
    /// that work.
    pub unsafe fn foreign_view<'a>(
        &self,
        dtype: DType,
        len: usize,
        address: u64,
    ) -> Result<View<'a>> {
        self.check_foreign(dtype, len, address)?;
        // SAFETY: the range was just checked; the caller promised that the memory stays
        // allocated and is not written while it is read.
        Ok(unsafe { View::from_address(dtype, len, self.device(), address) })
    }

    /// Foreign device memory to write: `len` elements of `dtype` at `address`.
    ///
    /// # Errors
    /// As [`Cuda::foreign_view`].
    ///
    /// # Safety
    /// Until the work that uses the view has finished on the device, the memory
    /// must stay allocated, and every other access to it must be ordered before
    /// or after that work.
    pub unsafe fn foreign_view_mut<'a>(
        &self,
        dtype: DType,
        len: usize,
        address: u64,
    ) -> Result<ViewMut<'a>> {
        self.check_foreign(dtype, len, address)?;
        // SAFETY: the range was just checked; the caller promised that the memory stays
        // allocated and that nothing else uses it meanwhile.
        Ok(unsafe { ViewMut::from_address(dtype, len, self.device(), address) })
    }

    /// A foreign `CUstream` (or `cudaStream_t`, which is the same). 0 is the
    /// device's legacy default stream, 2 this thread's default stream.
    ///
    /// # Errors
    /// Status 3 for a stream of any context but the device's primary context.
    ///
    /// # Safety
    /// The stream must be alive, and stay so until work enqueued on it has
    /// finished.
    pub unsafe fn foreign_stream<'a>(&self, handle: u64) -> Result<Stream<'a>> {
        // The handles 0 to 2 name default streams. CUDA takes a default stream to be of the
        // context that is current at the launch, which this backend makes its device's, so that
        // only other handles can belong to another context.
        if handle > 2 {
            let stream = std::ptr::without_provenance_mut(handle as usize);
            let mut context = std::ptr::null_mut();
            let _current = self.gpu().enter()?;
            // SAFETY: the caller promised that the stream is alive; `context` has room
            // for a handle.
            let asked = unsafe { sys::cuStreamGetCtx(stream, &mut context) };
            check(self.device(), "could not ask for a stream's context", asked)?;
            if context != self.gpu().context() {
                let words = "`stream` belongs to another context, \
                             expected one of the device's primary context";
                return Err(Error::device(self.device(), Status::BadParam, words));
            }
        }
        // SAFETY: the context was checked above; the caller promised that the stream is alive
        // and stays so until its work has finished.
        Ok(unsafe { Stream::from_raw(self.device(), handle) })
    }

    fn check_foreign(&self, dtype: DType, len: usize, address: u64) -> Result<()> {
        let refuse = |status, words: String| Err(Error::device(self.device(), status, words));
        if len == 0 {
            return Ok(());
        }
        if address == 0 {
            return refuse(Status::NullPointer, format!("a null pointer to {len} {dtype}"));
        }
        let bytes = (len as u64).checked_mul(dtype.size() as u64);
        let Some(end) = bytes.and_then(|bytes| address.checked_add(bytes)) else {
            let words = format!("{len} {dtype} are more than any memory holds");
            return refuse(Status::BadTensorShape, words);
        };
        let _current = self.gpu().enter()?;
        let mut at = address;
        while at < end {
            let allocation = self.allocation(at)?;
            let index = self.device().index();
            if usize::try_from(allocation.device) != Ok(index) {
                let words = format!("{address:#x} is memory of cuda:{}", allocation.device);
                return refuse(Status::BadParam, words);
            }
            if allocation.end < end && !allocation.mapped {
                let words = format!(
                    "the allocation at {address:#x} ends after {} bytes, expected {} for {len} {dtype}",
                    allocation.end - address,
                    end - address
                );
                return refuse(Status::BadTensorShape, words);
            }
            at = allocation.end;
        }
        Ok(())
    }

    fn allocation(&self, address: u64) -> Result<Allocation> {
        let mut kind: u32 = 0;
        let mut device: i32 = -1;
        let mut start: u64 = 0;
        let mut size: usize = 0;
        let mut managed: u32 = 0;
        let mut ipc: u32 = 0;
        let mut pool: *mut c_void = std::ptr::null_mut();
        let mut names = [
            Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
            Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
            Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
            Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE,
            Attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED,
            Attribute::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
            Attribute::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
        ];
        let mut places: [*mut c_void; 7] = [
            (&raw mut kind).cast(),
            (&raw mut device).cast(),
            (&raw mut start).cast(),
            (&raw mut size).cast(),
            (&raw mut managed).cast(),
            (&raw mut ipc).cast(),
            (&raw mut pool).cast(),
        ];
        // SAFETY: `places` has one pointer per attribute, each to a value of the
        // attribute's type or larger; the driver leaves zeros for an address it does
        // not know.
        let code = unsafe {
            sys::cuPointerGetAttributes(7, names.as_mut_ptr(), places.as_mut_ptr(), address)
        };
        let device_memory = sys::CUmemorytype_enum::CU_MEMORYTYPE_DEVICE as u32;
        if code != sys::CUresult::CUDA_SUCCESS || kind != device_memory || size == 0 {
            let why = match code {
                sys::CUresult::CUDA_SUCCESS => String::new(),
                code => format!(": {}", Text(code)),
            };
            let words = format!("{address:#x} is no device memory{why}");
            return Err(Error::device(self.device(), Status::DeviceTypeNotSupported, words));
        }
        let mapped = managed == 0 && ipc == 0 && pool.is_null();
        Ok(Allocation { device, end: start.saturating_add(size as u64), mapped })
    }
}
