//! Ranks with a GPU of their own, connected by NCCL.
//!
//! cudarc loads NCCL when the program runs, by the name `libnccl.so`, from `LD_LIBRARY_PATH`. The
//! wheel nvidia-nccl-cu13 has `libnccl.so.2` only, to which a link of the other name is needed.

use std::fmt::Debug;
use std::ptr;
use std::sync::{Arc, Barrier};

use cudarc::driver::sys::{self as driver, CUmemorytype, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaGraph, CudaStream, DriverError};
use cudarc::nccl::result::{self, NcclError};
use cudarc::nccl::sys::{self, ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclUniqueId};
use spec::cuda::{Cuda, devices};
use spec::{Backend, Buffer, Device, Element, Error, Handle, Place, Result, Status};

use super::{Communicator, Options};

/// Runs the ranks on the first GPUs. To be called while the program has one thread.
pub fn run(options: &Options) -> Result<usize> {
    if std::env::var_os("NCCL_NVLS_ENABLE").is_none() {
        // NVLink multicast stays off, as in python/bench/sharded.py.
        // SAFETY: the program has one thread, so none reads the environment meanwhile.
        unsafe { std::env::set_var("NCCL_NVLS_ENABLE", "0") };
    }
    let (world, gpus) = (options.world, devices()?);
    let device = gpus[0].device;
    let absent = |words| Err(Error::device(device, Status::DeviceNotFound, words));
    if gpus.len() < world {
        let words = format!("{world} ranks need as many GPUs; the driver shows {}", gpus.len());
        return absent(words);
    }
    // SAFETY: loading NCCL runs only its own initialisers, which are safe to run.
    if !unsafe { sys::is_culib_present() } {
        let words = "NCCL was not found: LD_LIBRARY_PATH must name a folder with libnccl.so, \
                     which may be a link to libnccl.so.2";
        return absent(words.to_owned());
    }
    let version = check_nccl(device, result::get_nccl_version())?;
    let id = check_nccl(device, result::get_uniqueid())?;
    println!("{world} ranks on {}, NCCL {version}", gpus[0].name);
    let barrier = Arc::new(Barrier::new(world));
    Ok(super::run(options, |rank| Nccl::join(rank, world, id, barrier.clone())))
}

fn failure(device: Device, library: &str, code: impl Debug) -> Error {
    Error::device(device, Status::InternalError, format!("{library} failed: {code:?}"))
}

fn check_nccl<T>(device: Device, done: Result<T, NcclError>) -> Result<T> {
    done.map_err(|error| failure(device, "NCCL", error.0))
}

fn check_driver<T>(device: Device, done: Result<T, DriverError>) -> Result<T> {
    done.map_err(|error| failure(device, "the driver", error.0))
}

/// The address of a CUDA handle's buffer.
fn address<T: Element>(buffer: &Buffer<T>) -> u64 {
    match buffer.view().place() {
        Place::Address { address, .. } => address,
        _ => unreachable!("memory of a CUDA device has an address"),
    }
}

/// A rank. Its buffers are those of `cuda`, and all work is enqueued on the stream of `cuda`.
struct Nccl {
    comm: ncclComm_t,
    stream: Arc<CudaStream>,
    device: Device,
    world: usize,
    barrier: Arc<Barrier>,
    /// Keeps the stream alive.
    cuda: Cuda,
}

impl Nccl {
    /// Makes this thread a rank. Returns when every rank has called.
    fn join(
        rank: usize,
        world: usize,
        id: ncclUniqueId,
        barrier: Arc<Barrier>,
    ) -> Result<(Handle, Self)> {
        let handle = Cuda::open(rank)?;
        let device = handle.info().device;
        // The device's primary context becomes current on this thread: NCCL takes its device, and
        // `handle` works in the same context.
        let context = check_driver(device, CudaContext::new(rank))?;
        let raw = ptr::without_provenance_mut(handle.raw_stream() as usize);
        // SAFETY: the stream belongs to this context and lives as long as `Nccl::cuda`.
        let stream = unsafe { context.wrap_borrowed_stream(raw) };
        let mut comm = ptr::null_mut();
        // SAFETY: `comm` has room for the communicator, and the id is the same on every rank.
        check_nccl(device, unsafe {
            result::comm_init_rank(&mut comm, world as i32, id, rank as i32)
        })?;
        let ranks = Nccl { comm, stream, device, world, barrier, cuda: handle.clone() };
        Ok((handle.into(), ranks))
    }

    fn all_reduce<T: Element>(
        &self,
        numbers: &mut Buffer<T>,
        dtype: ncclDataType_t,
        with: ncclRedOp_t,
    ) -> Result<()> {
        let (at, stream) = (address(numbers) as *mut _, self.stream.cu_stream().cast());
        // SAFETY: the buffer has as many elements of this type, and belongs to this stream.
        let done =
            unsafe { result::all_reduce(at, at, numbers.len(), dtype, with, self.comm, stream) };
        check_nccl(self.device, done).map(drop)
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        // SAFETY: every rank destroys its communicator once, after the graphs that use it.
        let _ = unsafe { result::comm_destroy(self.comm) };
    }
}

impl Communicator for Nccl {
    type Graph = CudaGraph;

    fn all_reduce_max(&self, numbers: &mut Buffer<f32>) -> Result<()> {
        self.all_reduce(numbers, ncclDataType_t::ncclFloat32, ncclRedOp_t::ncclMax)
    }

    fn all_reduce_min(&self, numbers: &mut Buffer<i64>) -> Result<()> {
        self.all_reduce(numbers, ncclDataType_t::ncclInt64, ncclRedOp_t::ncclMin)
    }

    fn all_gather<T: Element>(&self, part: &Buffer<T>, parts: &mut Buffer<T>) -> Result<()> {
        assert_eq!(parts.len(), self.world * part.len(), "room for the parts of all ranks");
        let (from, to) = (address(part) as *const _, address(parts) as *mut _);
        let (bytes, byte) = (size_of::<T>() * part.len(), ncclDataType_t::ncclUint8);
        let stream = self.stream.cu_stream().cast();
        // SAFETY: the buffers have these sizes, and belong to this stream.
        check_nccl(self.device, unsafe {
            result::all_gather(from, to, bytes, byte, self.comm, stream)
        })?;
        Ok(())
    }

    fn copy_to_rows<T: Element>(
        &self,
        parts: &Buffer<T>,
        rows: usize,
        whole: &mut Buffer<T>,
    ) -> Result<()> {
        assert_eq!(parts.len(), whole.len(), "as many elements in another order");
        let width = size_of::<T>() * parts.len() / self.world / rows;
        for rank in 0..self.world {
            let copy = driver::CUDA_MEMCPY2D {
                srcXInBytes: 0,
                srcY: rank * rows,
                srcMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
                srcHost: ptr::null(),
                srcDevice: address(parts),
                srcArray: ptr::null_mut(),
                srcPitch: width,
                dstXInBytes: rank * width,
                dstY: 0,
                dstMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
                dstHost: ptr::null_mut(),
                dstDevice: address(whole),
                dstArray: ptr::null_mut(),
                dstPitch: self.world * width,
                WidthInBytes: width,
                Height: rows,
            };
            // SAFETY: each buffer has `world * rows` pieces of `width` bytes, and belongs to this
            // stream.
            let code = unsafe { driver::cuMemcpy2DAsync_v2(&copy, self.stream.cu_stream()) };
            check_driver(self.device, code.result())?;
        }
        Ok(())
    }

    fn wait(&self) -> Result<()> {
        self.cuda.synchronize()?;
        self.barrier.wait();
        Ok(())
    }

    fn capture(&self, step: &mut dyn FnMut() -> Result<()>) -> Result<CudaGraph> {
        // Before its first steps, NCCL connects the ranks and allocates memory.
        for _ in 0..3 {
            step()?;
        }
        self.wait()?;
        // Threads of other ranks may do meanwhile what this thread may not.
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        check_driver(self.device, self.stream.begin_capture(mode))?;
        let enqueued = step();
        // A capture that failed must be ended too.
        let graph = self.stream.end_capture(driver::CUgraphInstantiate_flags(0));
        enqueued?;
        let graph = check_driver(self.device, graph)?;
        // Making a graph allocates memory.
        self.wait()?;
        graph.ok_or_else(|| failure(self.device, "the driver", "no graph"))
    }

    fn replay(&self, graph: &CudaGraph, _step: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        check_driver(self.device, graph.launch())
    }
}
