//! CUDA graphs and a foreign stream, through the driver itself, as an engine
//! would use them.

use std::time::{Duration, Instant};

use cudarc::driver::sys;
use spec_core::{Backend, Stream};
use spec_cuda::Cuda;

fn ok(code: sys::CUresult) {
    assert_eq!(code, sys::CUresult::CUDA_SUCCESS);
}

/// A stream that is not the handle's.
pub struct Foreign {
    cuda: Cuda,
    raw: sys::CUstream,
}

impl Foreign {
    pub fn new(cuda: &Cuda) -> Self {
        let index = cuda.info().device.index() as i32;
        let mut context = std::ptr::null_mut();
        let mut raw = std::ptr::null_mut();
        // SAFETY: plain driver calls with places for their results; the
        // primary context stays retained until the process ends.
        unsafe {
            ok(sys::cuDevicePrimaryCtxRetain(&mut context, index));
            ok(sys::cuCtxSetCurrent(context));
            let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
            ok(sys::cuStreamCreate(&mut raw, flags));
        }
        Foreign { cuda: cuda.clone(), raw }
    }

    /// For `call_on`.
    pub fn stream(&self) -> Stream<'static> {
        // SAFETY: every test waits for its work before the stream is dropped.
        unsafe { self.cuda.foreign_stream(self.raw.addr() as u64) }.expect("a foreign stream")
    }

    pub fn synchronize(&self) {
        // SAFETY: the stream is alive.
        ok(unsafe { sys::cuStreamSynchronize(self.raw) });
    }

    /// Whether all work that was enqueued on this stream has ended.
    pub fn is_idle(&self) -> bool {
        // SAFETY: the stream is alive.
        let state = unsafe { sys::cuStreamQuery(self.raw) };
        if state != sys::CUresult::CUDA_ERROR_NOT_READY {
            ok(state);
        }
        state == sys::CUresult::CUDA_SUCCESS
    }

    /// Waits until all work that was enqueued on this stream has ended, but no longer than `limit`;
    /// true if the work has ended.
    pub fn ends_within(&self, limit: Duration) -> bool {
        let start = Instant::now();
        while !self.is_idle() {
            if start.elapsed() > limit {
                return false;
            }
            std::thread::yield_now();
        }
        true
    }

    /// Enqueues on this stream a store of `value` into the first `width` words, of 32 bits each, of
    /// each of `rows` rows of a matrix. The first row begins at the device address `address`; each
    /// further row begins `pitch` bytes behind the row before.
    ///
    /// # Safety
    /// All words that the store writes are device memory that stays allocated until the store has
    /// ended.
    pub unsafe fn overwrite(
        &self,
        address: u64,
        pitch: usize,
        value: u32,
        width: usize,
        rows: usize,
    ) {
        // SAFETY: the stream is alive; the caller vouches for the memory.
        ok(unsafe { sys::cuMemsetD2D32Async(address, pitch, value, width, rows, self.raw) });
    }

    /// What `enqueue` puts on this stream, as a graph. Capturing refuses what
    /// would allocate or wait, so it is also the test that nothing does. Tests
    /// beside this one, in threads of their own, are left alone.
    pub fn capture(&self, mut enqueue: impl FnMut(Stream<'static>)) -> Graph {
        let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        let mut graph = std::ptr::null_mut();
        let mut executable = std::ptr::null_mut();
        // SAFETY: plain driver calls on live handles with places for results.
        unsafe {
            ok(sys::cuStreamBeginCapture_v2(self.raw, mode));
            enqueue(self.stream());
            ok(sys::cuStreamEndCapture(self.raw, &mut graph));
            ok(sys::cuGraphInstantiateWithFlags(&mut executable, graph, 0));
            ok(sys::cuGraphDestroy(graph));
        }
        Graph { stream: self.raw, executable }
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        // SAFETY: the stream is ours, destroyed once.
        _ = unsafe { sys::cuStreamDestroy_v2(self.raw) };
    }
}

/// A graph ready to run on the stream it was captured from.
pub struct Graph {
    stream: sys::CUstream,
    executable: sys::CUgraphExec,
}

impl Graph {
    pub fn launch(&self) {
        // SAFETY: graph and stream are alive; what they use, the test keeps.
        ok(unsafe { sys::cuGraphLaunch(self.executable, self.stream) });
    }

    /// Runs it and waits.
    pub fn replay(&self) {
        self.launch();
        // SAFETY: the stream is alive.
        ok(unsafe { sys::cuStreamSynchronize(self.stream) });
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: the graph is ours, destroyed once, and has finished.
        _ = unsafe { sys::cuGraphExecDestroy(self.executable) };
    }
}
