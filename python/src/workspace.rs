//! Memory that calls use besides their arguments, and the streams and threads that calls run on.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use spec::{Buffer, Result, Stream};

use crate::device;
use crate::library::{Arrays, Fresh};

/// The workspaces of the calls of a plan, or of a pipeline, on one device.
pub struct Workspaces {
    handle: spec::Handle,
    /// Workspaces in host memory that no call uses now. A call on the CPU takes long, so each
    /// call has a workspace of its own and threads that share a plan never wait for each other.
    host: Mutex<Vec<Buffer<u8>>>,
    /// Workspaces on a CUDA device: for each stream one, and a larger one where calls came to need
    /// it.
    streams: Mutex<Vec<Arc<Lane>>>,
}

/// The workspace that a call needs.
#[derive(Debug)]
pub struct Need {
    bytes: usize,
    /// The array that holds it on a CUDA device.
    new: Fresh,
}

impl Need {
    /// A workspace of so many bytes.
    ///
    /// # Errors
    /// Python's, without memory for a tuple.
    pub fn new(py: Python<'_>, bytes: usize) -> PyResult<Self> {
        let shape = (bytes,).into_pyobject(py)?.into_any().unbind();
        Ok(Need { bytes, new: Fresh::new(shape, "u8") })
    }

    /// The bytes of the workspace.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// A plan's workspace on one CUDA stream. The plan owns the workspace until the plan ends, so
/// that graphs which were captured with the plan may be replayed for as long as the plan lives.
struct Lane {
    stream: StreamKey,
    /// Keeps the memory alive: an array of the library whose stream it is.
    _workspace: Py<PyAny>,
    /// The address of the workspace's first byte.
    start: u64,
    bytes: usize,
    /// Held while one call's kernels are enqueued. The stream runs calls one after the other in
    /// the order in which their kernels were enqueued, so calls may share a workspace if and
    /// only if all kernels of one call are enqueued before the first kernel of the next.
    turn: Mutex<()>,
}

/// A stream. Handle 2 is the default stream of a thread, which is another stream in each thread.
#[derive(Clone, Copy, PartialEq, Eq)]
struct StreamKey(u64, Option<std::thread::ThreadId>);

impl StreamKey {
    fn new(stream: u64) -> Self {
        StreamKey(stream, (stream == 2).then(|| std::thread::current().id()))
    }
}

/// Who keeps a call's workspace on a CUDA device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeps {
    /// The plan, for its next call on the stream.
    Plan,
    /// Nobody: the workspace goes back to its library, whose allocator orders reuse by the
    /// stream and takes account of graph captures.
    Nobody,
}

/// Where a call's kernels are enqueued: the stream of its arrays, or host memory.
#[derive(Clone, Copy, Debug)]
pub struct Enqueue {
    device: spec::Device,
    /// The current stream of the library that the call's arrays are of.
    stream: Option<u64>,
}

impl Enqueue {
    /// The stream, for one operator.
    pub fn stream(self) -> Stream<'static> {
        // SAFETY: `run` made this of a library's current stream, which outlives the work on it, and
        // whose order with the arrays of the call is the library's.
        self.stream
            .map_or_else(Stream::default, |stream| unsafe { Stream::from_raw(self.device, stream) })
    }
}

impl Workspaces {
    /// No workspaces yet, for calls on a device.
    pub fn new(handle: spec::Handle) -> Self {
        Workspaces { handle, host: Mutex::default(), streams: Mutex::default() }
    }

    /// The open device.
    pub fn handle(&self) -> &spec::Handle {
        &self.handle
    }

    /// The device of the calls.
    pub fn device(&self) -> spec::Device {
        self.handle.device()
    }

    /// Runs `work` with the address of a workspace, which is 0 where a call needs none, and with
    /// what makes the stream of `lent`. Python's lock is released meanwhile. The outer result
    /// reports that no workspace was made.
    ///
    /// # Errors
    /// Those of an array's library that makes no workspace, and those of `work`.
    ///
    /// # Safety
    /// `work` uses the workspace on that stream only, and in host memory only until it returns.
    pub unsafe fn run(
        &self,
        lent: &Arrays<'_>,
        need: &Need,
        keeps: Keeps,
        work: impl FnOnce(u64, Enqueue) -> Result<()> + Send,
    ) -> PyResult<Result<()>> {
        match lent.stream() {
            // SAFETY: the caller promised what `on_stream` needs.
            Some(stream) => unsafe { self.on_stream(lent, stream, need, keeps, work) },
            None => Ok(self.on_host(lent.py(), need.bytes, work)),
        }
    }

    fn on_host(
        &self,
        py: Python<'_>,
        bytes: usize,
        work: impl FnOnce(u64, Enqueue) -> Result<()> + Send,
    ) -> Result<()> {
        let mut workspace = None;
        if bytes > 0 {
            let free = self.host.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let free = free.filter(|free| free.len() >= bytes);
            workspace = Some(free.map_or_else(|| self.handle.allocate(bytes), Ok)?);
        }
        let start = workspace.as_mut().and_then(|buffer| buffer.view_mut().host::<u8>());
        let start = start.map_or(0, |host| host.as_mut_ptr().expose_provenance() as u64);
        let (threads, device) = (device::threads(), self.device());
        // No lock is held while Python's lock is released, because another thread may then fork
        // the process.
        let done = py.detach(|| match &threads {
            Some(pool) => pool.install(|| work(start, Enqueue { device, stream: None })),
            None => work(start, Enqueue { device, stream: None }),
        });
        self.host.lock().unwrap_or_else(PoisonError::into_inner).extend(workspace);
        done
    }

    /// # Safety
    /// As for [`run`](Self::run).
    unsafe fn on_stream(
        &self,
        lent: &Arrays<'_>,
        stream: u64,
        need: &Need,
        keeps: Keeps,
        work: impl FnOnce(u64, Enqueue) -> Result<()> + Send,
    ) -> PyResult<Result<()>> {
        let (py, device) = (lent.py(), self.device());
        let mut own = None;
        let mut lane = None;
        match keeps {
            _ if need.bytes == 0 => {}
            Keeps::Nobody => own = Some(self.allocate(lent, need)?),
            Keeps::Plan => lane = Some(self.lane(lent, stream, need)?),
        }
        let start = match (&own, &lane) {
            (Some((_, start)), _) => *start,
            (None, Some(lane)) => lane.start,
            (None, None) => 0,
        };
        let done = py.detach(|| {
            // The turn is taken after Python's lock is released, and given back before Python's
            // lock is taken again. So the thread that has the turn never waits for a thread that
            // waits for the turn. All uses of the workspace are ordered: only this call uses
            // `own`, and a lane is used on its own stream by one call at a time, the call that
            // holds the turn.
            let _turn = lane.as_ref().map(|lane| lane.turn.lock());
            work(start, Enqueue { device, stream: Some(stream) })
        });
        // The library's allocator reuses the memory only after the work enqueued on this stream.
        drop(own);
        Ok(done)
    }

    /// The plan's workspace on a stream, allocated by the first call on this stream that needs so
    /// many bytes. Smaller workspaces stay, for graphs that were captured with them; each is at
    /// least twice as large as those before, so that all of them take at most twice the largest.
    fn lane(&self, lent: &Arrays<'_>, stream: u64, need: &Need) -> PyResult<Arc<Lane>> {
        let stream = StreamKey::new(stream);
        if let Some(lane) = find(&self.streams(), stream, need.bytes) {
            return Ok(lane);
        }
        let largest =
            self.streams().iter().filter(|lane| lane.stream == stream).map(|lane| lane.bytes).max();
        let larger =
            largest.map(|bytes| Need::new(lent.py(), need.bytes.max(2 * bytes))).transpose()?;
        let need = larger.as_ref().unwrap_or(need);
        // The lock of `streams` is not held while the library's code runs, which may let other
        // threads run. If two threads both allocate, the first workspace is kept.
        let (workspace, start) = self.allocate(lent, need)?;
        let mut streams = self.streams();
        if let Some(lane) = find(&streams, stream, need.bytes) {
            return Ok(lane);
        }
        let (bytes, turn) = (need.bytes, Mutex::default());
        let lane = Arc::new(Lane { stream, _workspace: workspace, start, bytes, turn });
        streams.push(lane.clone());
        Ok(lane)
    }

    /// Allocates a workspace with the arrays' own library; returns the array and its address.
    fn allocate(&self, lent: &Arrays<'_>, need: &Need) -> PyResult<(Py<PyAny>, u64)> {
        let (workspace, read) = lent.make(&need.new, self.device())?;
        let read = match read {
            Some(read) => Some(read),
            None => Arrays::new(lent.py()).read(&workspace).ok(),
        };
        let bytes = need.bytes;
        match read {
            Some(array) if array.desc.span() >= bytes => Ok((workspace.unbind(), array.address)),
            _ => {
                let words = format!("{} made no {bytes} bytes of workspace", lent.maker());
                Err(crate::error::internal(lent.py(), &words))
            }
        }
    }

    fn streams(&self) -> MutexGuard<'_, Vec<Arc<Lane>>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn find(streams: &[Arc<Lane>], stream: StreamKey, bytes: usize) -> Option<Arc<Lane>> {
    streams.iter().find(|lane| lane.stream == stream && lane.bytes >= bytes).cloned()
}

impl std::fmt::Debug for Workspaces {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Workspaces(on {})", self.device())
    }
}
