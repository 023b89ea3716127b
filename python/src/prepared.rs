//! An operator created for certain shapes, dtypes and a device, with the workspaces of its calls.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use spec::{Address, Buffer, Device, Result, Stream, TensorDesc};

use crate::call::{Call, Create, MAX_ARGUMENTS};
use crate::contract::Contract;
use crate::device;
use crate::dlpack::Array;
use crate::library::{Arrays, Fresh};

/// Descriptors of an operator's arguments, in the contract's order; `None` for absent arguments.
pub type Descs = [Option<TensorDesc>; MAX_ARGUMENTS];

/// An operator that is ready to be called.
pub struct Prepared {
    call: Box<dyn Call>,
    handle: spec::Handle,
    /// The descriptors that the operator was created for.
    pub descs: Descs,
    /// For each argument, the output to make if the caller gives none.
    pub outputs: [Option<Fresh>; MAX_ARGUMENTS],
    /// The workspace that a call or a plan makes on a CUDA device.
    workspace: Fresh,
    /// Workspaces in host memory that no call uses now. A call on the CPU takes long, so each
    /// call has a workspace of its own and threads that share a plan never wait for each other.
    host: Mutex<Vec<Buffer<u8>>>,
    /// Workspaces on a CUDA device, one for each stream.
    streams: Mutex<Vec<Arc<Lane>>>,
}

/// A plan's workspace on one CUDA stream. The plan owns the workspace until the plan ends, so
/// that graphs which were captured with the plan may be replayed for as long as the plan lives.
struct Lane {
    stream: StreamKey,
    /// Keeps the memory alive: an array of the library whose stream it is.
    _workspace: Py<PyAny>,
    /// The address of the workspace's first byte.
    start: u64,
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

impl Prepared {
    /// Creates the operator for `descs` on `device`.
    ///
    /// # Errors
    /// As [`spec::Handle::create`].
    pub fn new(
        py: Python<'_>,
        operator: &dyn Create,
        device: Device,
        descs: Descs,
        outputs: [Option<Fresh>; MAX_ARGUMENTS],
    ) -> PyResult<Self> {
        let raise = |error| crate::error::raise(py, &error);
        let handle = device::open(device).map_err(raise)?;
        let count = operator.arguments().len();
        let call = operator.create(&handle, &descs[..count]).map_err(raise)?;
        let bytes = (call.workspace_size(),).into_pyobject(py)?.into_any().unbind();
        let workspace = Fresh::new(bytes, "u8");
        let (host, streams) = (Mutex::default(), Mutex::default());
        Ok(Prepared { call, handle, descs, outputs, workspace, host, streams })
    }

    /// The device that the operator was created for.
    pub fn device(&self) -> Device {
        self.handle.device()
    }

    /// Bytes that a call uses besides its arguments.
    pub fn workspace_size(&self) -> usize {
        self.call.workspace_size()
    }

    /// The kernels that a call runs, in words.
    ///
    /// # Errors
    /// As [`spec::Descriptor::route`].
    pub fn route(&self) -> Result<String> {
        self.call.route()
    }

    /// Enqueues a call on arrays that have the descriptors `descs`.
    ///
    /// # Safety
    /// The arrays are on the plan's device and valid for the shapes and strides of `descs`. All
    /// other work on the arrays is ordered against the stream of `lent`.
    pub unsafe fn run(
        &self,
        py: Python<'_>,
        contract: &Contract,
        lent: &Arrays<'_>,
        arrays: &[Option<Array>],
        keeps: Keeps,
    ) -> PyResult<()> {
        let mut addresses = [None; MAX_ARGUMENTS];
        for (address, array) in addresses.iter_mut().zip(arrays) {
            *address = array.map(|array| Address::from(array.address));
        }
        let addresses = &addresses[..arrays.len()];
        let done = if let Some(stream) = lent.stream() {
            // SAFETY: the caller promised what `run` needs.
            let done = unsafe { self.on_stream(py, lent, addresses, stream, keeps) };
            done.map_err(|raised| contract.foreign(py, "no workspace", raised))?
        } else {
            // SAFETY: the caller promised what `run` needs.
            unsafe { self.on_host(py, addresses) }
        };
        done.map_err(|error| crate::error::raise(py, &error))
    }

    /// # Safety
    /// As for [`run`](Self::run).
    unsafe fn on_host(&self, py: Python<'_>, addresses: &[Option<Address>]) -> Result<()> {
        let bytes = self.workspace_size();
        let mut workspace = None;
        if bytes > 0 {
            let free = self.host.lock().unwrap_or_else(PoisonError::into_inner).pop();
            workspace = Some(free.map_or_else(|| self.handle.allocate(bytes), Ok)?);
        }
        let start = workspace.as_mut().and_then(|buffer| buffer.view_mut().host::<u8>());
        let start = Address::from(start.map_or(std::ptr::null_mut(), |host| host.as_mut_ptr()));
        let threads = device::threads();
        // No lock is held while Python's lock is released, because another thread may then fork
        // the process.
        let done = py.detach(|| {
            // SAFETY: the caller promised what `run` needs; only this call uses the workspace
            // until the call returns.
            let work = || unsafe { self.call.call(start, addresses, Stream::default()) };
            match &threads {
                Some(pool) => pool.install(work),
                None => work(),
            }
        });
        self.host.lock().unwrap_or_else(PoisonError::into_inner).extend(workspace);
        done
    }

    /// # Safety
    /// As for [`run`](Self::run).
    unsafe fn on_stream(
        &self,
        py: Python<'_>,
        lent: &Arrays<'_>,
        addresses: &[Option<Address>],
        stream: u64,
        keeps: Keeps,
    ) -> PyResult<Result<()>> {
        let bytes = self.workspace_size();
        let mut own = None;
        let mut lane = None;
        match keeps {
            _ if bytes == 0 => {}
            Keeps::Nobody => own = Some(self.allocate(py, lent)?),
            Keeps::Plan => lane = Some(self.lane(py, lent, stream)?),
        }
        let device = self.device();
        let start = match (&own, &lane) {
            (Some((_, start)), _) => *start,
            (None, Some(lane)) => lane.start,
            (None, None) => 0,
        };
        let done = py.detach(|| {
            // The turn is taken after Python's lock is released, and given back before Python's
            // lock is taken again. So the thread that has the turn never waits for a thread that
            // waits for the turn.
            let _turn = lane.as_ref().map(|lane| lane.turn.lock());
            // SAFETY: the caller of `run` promised that arrays and stream are valid. All uses of
            // the workspace are ordered: only this call uses `own`, and a lane is used on its own
            // stream by one call at a time, the call that holds the turn.
            unsafe {
                let stream = Stream::from_raw(device, stream);
                self.call.call(Address::from(start), addresses, stream)
            }
        });
        // The library's allocator reuses the memory only after the work enqueued on this stream.
        drop(own);
        Ok(done)
    }

    /// The plan's workspace on a stream, allocated by the first call on this stream.
    fn lane(&self, py: Python<'_>, lent: &Arrays<'_>, stream: u64) -> PyResult<Arc<Lane>> {
        let stream = StreamKey::new(stream);
        if let Some(lane) = find(&self.streams(), stream) {
            return Ok(lane);
        }
        // The lock of `streams` is not held while the library's code runs, which may let other
        // threads run. If two threads both allocate, the first workspace is kept.
        let (workspace, start) = self.allocate(py, lent)?;
        let mut streams = self.streams();
        if let Some(lane) = find(&streams, stream) {
            return Ok(lane);
        }
        let lane = Arc::new(Lane { stream, _workspace: workspace, start, turn: Mutex::default() });
        streams.push(lane.clone());
        Ok(lane)
    }

    /// Allocates a workspace with the arrays' own library; returns the array and its address.
    fn allocate(&self, py: Python<'_>, lent: &Arrays<'_>) -> PyResult<(Py<PyAny>, u64)> {
        let (workspace, read) = lent.make(&self.workspace, self.device())?;
        let read = match read {
            Some(read) => Some(read),
            None => Arrays::new(py).read(&workspace).ok(),
        };
        let bytes = self.workspace_size();
        match read {
            Some(array) if array.desc.span() >= bytes => Ok((workspace.unbind(), array.address)),
            _ => {
                let words = format!("{} made no {bytes} bytes of workspace", lent.maker());
                Err(crate::error::internal(py, &words))
            }
        }
    }

    fn streams(&self) -> MutexGuard<'_, Vec<Arc<Lane>>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn find(streams: &[Arc<Lane>], stream: StreamKey) -> Option<Arc<Lane>> {
    streams.iter().find(|lane| lane.stream == stream).cloned()
}

impl std::fmt::Debug for Prepared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Prepared(on {})", self.device())
    }
}

/// A prepared operator, shared by the plans and calls that use it.
pub type Shared = Arc<Prepared>;
