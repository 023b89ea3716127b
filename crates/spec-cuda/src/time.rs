//! Timing on the device: calls are captured into a CUDA graph, and the graph is replayed
//! between two events.

use std::ffi::CStr;
use std::time::{Duration, Instant};

use cudarc::driver::sys;
use spec_core::stream::Kind;
use spec_core::{Backend, DType, Memory, Place, Result, Stream, Timed, Timing, timing};

use crate::Cuda;
use crate::driver::{check, elapsed};
use crate::memory::DeviceMemory;

/// The number of replays before the first sample, and the time after which warming up ends
/// earlier.
const WARM_UPS: (usize, Duration) = (3, Duration::from_millis(50));

/// Sizes of the measured copy, in bytes, in the order of trying: the first is too large for any
/// cache, the others are for devices with little free memory.
const COPIES: [usize; 3] = [1 << 30, 256 << 20, 64 << 20];

/// PTX for every architecture: a kernel that does nothing, and a kernel whose blocks of 256
/// threads copy 16 KiB each.
const KERNELS: &CStr = c"
.version 7.0
.target sm_80
.address_size 64
.visible .entry empty() { ret; }
.visible .entry copy(.param .u64 from, .param .u64 to) {
    .reg .b32 %at, %block, %a<4>, %b<4>, %c<4>, %d<4>;
    .reg .b64 %offset, %from, %to;
    mov.u32 %block, %ctaid.x;
    mov.u32 %at, %tid.x;
    mad.lo.u32 %at, %block, 1024, %at;
    mul.wide.u32 %offset, %at, 16;
    ld.param.u64 %from, [from];
    ld.param.u64 %to, [to];
    add.u64 %from, %from, %offset;
    add.u64 %to, %to, %offset;
    ld.global.v4.u32 {%a0, %a1, %a2, %a3}, [%from];
    ld.global.v4.u32 {%b0, %b1, %b2, %b3}, [%from + 4096];
    ld.global.v4.u32 {%c0, %c1, %c2, %c3}, [%from + 8192];
    ld.global.v4.u32 {%d0, %d1, %d2, %d3}, [%from + 12288];
    st.global.v4.u32 [%to], {%a0, %a1, %a2, %a3};
    st.global.v4.u32 [%to + 4096], {%b0, %b1, %b2, %b3};
    st.global.v4.u32 [%to + 8192], {%c0, %c1, %c2, %c3};
    st.global.v4.u32 [%to + 12288], {%d0, %d1, %d2, %d3};
    ret;
}
";

/// Bytes that each block of the kernel `copy` copies.
const OF_BLOCK: usize = 16 << 10;

/// The stream, the events and the graph of one measurement, which dropping the harness
/// destroys. The context must be current for as long as the harness lives.
struct Harness<'a> {
    cuda: &'a Cuda,
    stream: sys::CUstream,
    events: [sys::CUevent; 2],
    graph: sys::CUgraph,
    executable: sys::CUgraphExec,
}

impl Drop for Harness<'_> {
    fn drop(&mut self) {
        // SAFETY: each handle is null or was created by this harness, and is destroyed
        // once; the driver lets the stream's work finish first.
        unsafe {
            if !self.executable.is_null() {
                let _ = sys::cuGraphExecDestroy(self.executable);
            }
            if !self.graph.is_null() {
                let _ = sys::cuGraphDestroy(self.graph);
            }
            for event in self.events.into_iter().filter(|event| !event.is_null()) {
                let _ = sys::cuEventDestroy_v2(event);
            }
            if !self.stream.is_null() {
                let _ = sys::cuStreamDestroy_v2(self.stream);
            }
        }
    }
}

impl<'a> Harness<'a> {
    fn new(cuda: &'a Cuda) -> Result<Self> {
        let mut harness = Harness {
            cuda,
            stream: std::ptr::null_mut(),
            events: [std::ptr::null_mut(); 2],
            graph: std::ptr::null_mut(),
            executable: std::ptr::null_mut(),
        };
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the context is current; the fields of `harness` have room for the handles.
        unsafe {
            check(
                cuda.device(),
                "could not make a stream",
                sys::cuStreamCreate(&mut harness.stream, flags),
            )?;
            for event in &mut harness.events {
                check(cuda.device(), "could not make an event", sys::cuEventCreate(event, 0))?;
            }
        }
        Ok(harness)
    }

    /// Captures `calls` calls of `work` into the graph.
    fn capture(&mut self, calls: usize, work: &mut dyn Timed) -> Result<()> {
        let device = self.cuda.device();
        let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the harness owns the stream, and the stream is idle.
        let begun = unsafe { sys::cuStreamBeginCapture_v2(self.stream, mode) };
        check(device, "could not capture", begun)?;
        let mut enqueued = Ok(());
        for _ in 0..calls {
            // SAFETY: the stream outlives the call, and the call only enqueues.
            let stream = unsafe { Stream::from_raw(device, self.stream.addr() as u64) };
            enqueued = work.call(stream);
            if enqueued.is_err() {
                break;
            }
        }
        // SAFETY: the harness owns the stream. A capture that failed must be ended too.
        let ended = unsafe { sys::cuStreamEndCapture(self.stream, &mut self.graph) };
        enqueued?;
        check(device, "could not capture", ended)?;
        // SAFETY: the graph was just captured; `executable` has room for the handle.
        let made = unsafe { sys::cuGraphInstantiateWithFlags(&mut self.executable, self.graph, 0) };
        check(device, "could not make a graph", made)
    }

    /// Seconds of one replay.
    fn replay(&self) -> Result<f64> {
        let device = self.cuda.device();
        let [start, end] = self.events;
        // SAFETY: stream, events and graph are alive. The caller of `time` promised that the
        // memory that the graph uses stays in place while the work is timed.
        let milliseconds = unsafe {
            let steps = [
                sys::cuEventRecord(start, self.stream),
                sys::cuGraphLaunch(self.executable, self.stream),
                sys::cuEventRecord(end, self.stream),
            ];
            for step in steps {
                check(device, "could not replay a graph", step)?;
            }
            check(device, "timed work failed", sys::cuEventSynchronize(end))?;
            elapsed(device, start, end)?
        };
        Ok(f64::from(milliseconds) * 1e-3)
    }
}

/// Does the work of [`Cuda::time`].
///
/// # Safety
/// The conditions of [`Cuda::time`].
pub(crate) unsafe fn time(
    cuda: &Cuda,
    samples: usize,
    calls: usize,
    work: &mut dyn Timed,
) -> Result<Timing> {
    let calls = calls.max(1);
    let _current = cuda.gpu().enter()?;
    // Copies of the inputs may still be pending on the handle's own stream.
    cuda.synchronize()?;
    let mut harness = Harness::new(cuda)?;
    harness.capture(calls, work)?;
    let started = Instant::now();
    for _ in 0..WARM_UPS.0 {
        work.reset()?;
        harness.replay()?;
        if started.elapsed() > WARM_UPS.1 {
            break;
        }
    }
    let mut seconds = Vec::with_capacity(samples);
    for _ in 0..samples {
        work.reset()?;
        // The reset must have finished before the replay starts on another stream.
        cuda.synchronize()?;
        seconds.push(harness.replay()? / calls as f64);
    }
    let method = format!("{} in a CUDA graph, events", timing::count(calls));
    Ok(Timing { seconds, method })
}

/// Does the work of [`Cuda::copy_rate`], with the largest copy that there is memory for.
pub(crate) fn copy_rate(cuda: &Cuda) -> Result<Option<f64>> {
    let _current = cuda.gpu().enter()?;
    let Ok(module) = Module::load(cuda) else {
        return Ok(None);
    };
    let mut rate = Ok(None);
    for bytes in COPIES {
        rate = rate_of_copy(cuda, &module, bytes).map(Some);
        if rate.is_ok() {
            break;
        }
    }
    // If all copies failed, the error is that of the smallest copy.
    rate
}

/// Does the work of [`Cuda::call_overhead`].
pub(crate) fn call_overhead(cuda: &Cuda) -> Result<Option<f64>> {
    let _current = cuda.gpu().enter()?;
    let Ok(module) = Module::load(cuda) else {
        return Ok(None);
    };
    empty_kernel(cuda, &module).map(Some)
}

/// The loaded [`KERNELS`]. The context must be current while a module lives, and every
/// launch must have finished before the module is dropped.
struct Module<'a> {
    cuda: &'a Cuda,
    raw: sys::CUmodule,
}

impl<'a> Module<'a> {
    fn load(cuda: &'a Cuda) -> Result<Self> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: `KERNELS` is PTX ended by a zero; `raw` has room for the handle.
        let loaded = unsafe { sys::cuModuleLoadData(&mut raw, KERNELS.as_ptr().cast()) };
        check(cuda.device(), "could not load the kernels that measure", loaded)?;
        Ok(Module { cuda, raw })
    }

    fn function(&self, name: &CStr) -> Result<sys::CUfunction> {
        let mut function = std::ptr::null_mut();
        // SAFETY: the module is loaded; `function` has room for the handle.
        let found = unsafe { sys::cuModuleGetFunction(&mut function, self.raw, name.as_ptr()) };
        check(self.cuda.device(), "could not get a kernel that measures", found)?;
        Ok(function)
    }
}

impl Drop for Module<'_> {
    fn drop(&mut self) {
        // SAFETY: `time` waited for every launch, or the device has failed.
        let _ = unsafe { sys::cuModuleUnload(self.raw) };
    }
}

/// Bytes per second that the kernel `copy` reads and writes, added up.
fn rate_of_copy(cuda: &Cuda, module: &Module<'_>, bytes: usize) -> Result<f64> {
    let function = module.function(c"copy")?;
    let blocks = (bytes / OF_BLOCK) as u32;
    let address = |memory: &DeviceMemory| match memory.view(DType::U8, bytes).place() {
        Place::Address { address, .. } => address,
        _ => unreachable!("device memory has an address"),
    };
    let memory = [DeviceMemory::allocate(cuda, bytes)?, DeviceMemory::allocate(cuda, bytes)?];
    let [from, to] = memory.each_ref().map(address);
    // SAFETY: both allocations hold `bytes` bytes.
    check(cuda.device(), "could not fill memory", unsafe {
        sys::cuMemsetD8_v2(from, 0x5A, bytes)
    })?;
    let mut copy = |stream: Stream<'_>| {
        let (stream, none) = (raw(cuda, stream), std::ptr::null_mut());
        let mut arguments = [&raw const from, &raw const to].map(|at| at.cast_mut().cast());
        // SAFETY: the kernel takes two addresses; both allocations hold `bytes` bytes, at
        // least the `blocks` times `OF_BLOCK` that are copied, and outlive the timing.
        let code = unsafe {
            let arguments = arguments.as_mut_ptr();
            sys::cuLaunchKernel(function, blocks, 1, 1, 256, 1, 1, 0, stream, arguments, none)
        };
        check(cuda.device(), "could not copy on the device", code)
    };
    // SAFETY: both allocations outlive the timing.
    let timing = unsafe { time(cuda, 9, 4, &mut copy)? };
    Ok(2.0 * bytes as f64 / timing.median())
}

/// Seconds per launch of a kernel that does nothing, timed like all other work.
fn empty_kernel(cuda: &Cuda, module: &Module<'_>) -> Result<f64> {
    let function = module.function(c"empty")?;
    let mut launch = |stream: Stream<'_>| {
        let (stream, none) = (raw(cuda, stream), std::ptr::null_mut());
        // SAFETY: the kernel takes no arguments and stays loaded until after the timing.
        let code =
            unsafe { sys::cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, none, none) };
        check(cuda.device(), "could not launch an empty kernel", code)
    };
    // SAFETY: the kernel uses no memory.
    Ok(unsafe { time(cuda, 15, 200, &mut launch)? }.median())
}

/// The stream that [`time`] passes to its work.
fn raw(cuda: &Cuda, stream: Stream<'_>) -> sys::CUstream {
    match stream.into_kind() {
        Kind::Raw { handle, .. } => std::ptr::without_provenance_mut(handle as usize),
        _ => cuda.own_stream(),
    }
}
