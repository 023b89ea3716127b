//! An operator made for shapes, types and a device, with the workspaces of its calls.

use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use spec::{Address, Buffer, Device, Result, Stream, TensorDesc};

use crate::call::{Call, Create, MOST};
use crate::device;
use crate::dlpack::Array;
use crate::library::Arrays;

/// Descriptors of an operator's arguments, in its order; `None` where one is absent.
pub type Descs = [Option<TensorDesc>; MOST];

/// An output that calls make if they are not given one.
#[derive(Debug)]
pub struct Output {
    /// Its shape, as Python has it.
    pub shape: Py<PyAny>,
    /// Its element type.
    pub dtype: String,
}

/// An operator that is ready.
pub struct Prepared {
    call: Box<dyn Call>,
    handle: spec::Handle,
    /// What it was made for.
    pub descs: Descs,
    /// By argument, what is made where nothing is given.
    pub outputs: [Option<Output>; MOST],
    /// Workspaces in host memory that no call uses now.
    host: Mutex<Vec<Buffer<u8>>>,
    /// Workspaces on a CUDA device, one a stream: they are the plan's, so that graphs that
    /// were captured with it may be replayed for as long as it lives.
    streams: Mutex<Vec<(StreamKey, Py<PyAny>, u64)>>,
}

/// A stream; the default stream of a thread (handle 2) is one for each.
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
    /// Nobody: it goes back to its library, whose allocator orders it by the stream and
    /// knows of graphs that are being captured.
    Nobody,
}

impl Prepared {
    /// Made for `descs` on `device`.
    ///
    /// # Errors
    /// As [`spec::Handle::create`].
    pub fn new(
        operator: &dyn Create,
        device: Device,
        descs: Descs,
        outputs: [Option<Output>; MOST],
    ) -> Result<Self> {
        let handle = device::open(device)?;
        let count = operator.arguments().len();
        let call = operator.create(&handle, &descs[..count])?;
        let (host, streams) = (Mutex::default(), Mutex::default());
        Ok(Prepared { call, handle, descs, outputs, host, streams })
    }

    /// The device it is made for.
    pub fn device(&self) -> Device {
        self.handle.device()
    }

    /// Bytes that a call uses besides its arguments.
    pub fn workspace_size(&self) -> usize {
        self.call.workspace_size()
    }

    /// Enqueues a call on arrays that are as `descs` has them.
    ///
    /// # Safety
    /// The arrays are on the plan's device, valid for what `descs` says, and nothing that is
    /// written overlaps anything else. All that is enqueued for them elsewhere is ordered
    /// against the stream of `lent`.
    pub unsafe fn run(
        &self,
        py: Python<'_>,
        lent: &Arrays<'_>,
        arrays: &[Option<Array>],
        keeps: Keeps,
    ) -> PyResult<()> {
        let mut addresses = [None; MOST];
        for (address, array) in addresses.iter_mut().zip(arrays) {
            *address = array.map(|array| Address::from(array.address));
        }
        let addresses = &addresses[..arrays.len()];
        let done = if let Some(stream) = lent.stream() {
            // SAFETY: the caller's.
            unsafe { self.on_stream(py, lent, addresses, stream, keeps)? }
        } else {
            // SAFETY: the caller's.
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
            workspace = Some(free.map_or_else(|| self.handle.workspace(bytes), Ok)?);
        }
        let start = workspace.as_mut().and_then(|buffer| buffer.view_mut().host::<u8>());
        let start = Address::from(start.map_or(std::ptr::null_mut(), |host| host.as_mut_ptr()));
        let threads = device::threads();
        // No lock is held while Python is let go: another thread may fork the process.
        let done = py.detach(|| {
            // SAFETY: the caller's; the workspace is this call's alone until it returns.
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
        let (kept, start) = match (self.workspace_size(), keeps) {
            (0, _) => (None, 0),
            (bytes, Keeps::Nobody) => {
                let (workspace, start) = allocate(py, lent, bytes)?;
                (Some(workspace), start)
            }
            (bytes, Keeps::Plan) => (None, self.of_stream(py, lent, bytes, stream)?),
        };
        let device = self.device();
        let done = py.detach(|| {
            // SAFETY: arrays and stream are the libraries' own and alive; the workspace is
            // this stream's alone.
            unsafe {
                let stream = Stream::from_raw(device, stream);
                self.call.call(Address::from(start), addresses, stream)
            }
        });
        drop(kept);
        Ok(done)
    }

    /// The address of the plan's workspace on a stream.
    fn of_stream(
        &self,
        py: Python<'_>,
        lent: &Arrays<'_>,
        bytes: usize,
        stream: u64,
    ) -> PyResult<u64> {
        let key = StreamKey::new(stream);
        let known = |streams: &[(StreamKey, Py<PyAny>, u64)]| {
            streams.iter().find(|(of, ..)| *of == key).map(|&(_, _, start)| start)
        };
        let streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(start) = known(&streams) {
            return Ok(start);
        }
        // Not across the library's code, which may let other threads run.
        drop(streams);
        let (workspace, start) = allocate(py, lent, bytes)?;
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(start) = known(&streams) {
            return Ok(start);
        }
        streams.push((key, workspace, start));
        Ok(start)
    }
}

/// Bytes from the arrays' own library, and where they start.
fn allocate(py: Python<'_>, lent: &Arrays<'_>, bytes: usize) -> PyResult<(Py<PyAny>, u64)> {
    let shape = (bytes,).into_pyobject(py)?.into_any().unbind();
    let workspace = lent.empty(&shape, "u8")?;
    let mut own = Arrays::new(py);
    let array = own.read(&workspace).map_err(|_| crate::error::internal("no workspace"))?;
    Ok((workspace.unbind(), array.address))
}

impl std::fmt::Debug for Prepared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Prepared(on {})", self.device())
    }
}

/// Shared by the plans and calls that use it.
pub type Shared = Arc<Prepared>;
