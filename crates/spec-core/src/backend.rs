//! The contract between an operator, a backend and a caller.

use crate::check::{Checker, Site};
use crate::memory::{Locate, Memory, Staging};
use crate::signature::Signature;
use crate::stream::Kind;
use crate::{Address, DType, Device, DeviceInfo, QueueId, Result, Route, Status, Stream, ViewMut};

/// An operator: its parameters, and the plan that follows from parameters and descriptors.
///
/// This crate implements the trait once for each operator, on the struct that holds the
/// operator's parameters. Backends never validate: they are given a [`Plan`](Self::Plan).
pub trait Operator: Signature + Clone + Send + Sync + 'static {
    /// The validated sizes, strides and options. Cheap to clone.
    type Plan: Clone + Send + Sync + 'static;

    /// Checks parameters against descriptors, in the same way for every backend.
    ///
    /// # Errors
    /// Status 3, 4, 10, 11 or 12 with the argument's name, its value and what
    /// was expected.
    fn plan(&self, tensors: &Self::Tensors) -> Result<Self::Plan>;
}

/// An open handle on a device, with a queue of its own that runs enqueued work in order.
///
/// # Safety
/// A [`Descriptor`] decides which memory and which streams to refuse by [`info`](Self::info) and
/// [`queue_id`](Self::queue_id) alone. As long as the handle and its descriptors live, an
/// implementor must therefore guarantee:
///
/// * [`info`](Self::info) always names the same device, `info().device`. A kernel that the
///   handle prepares can use all memory and every stream that bear this name, or refuses them
///   itself: a buffer of a device that was opened a second time, for instance, bears the name
///   and may still be unusable.
/// * [`queue_id`](Self::queue_id) is always the identity of exactly that queue: two handles
///   share it only if work enqueued through either runs in one order.
/// * Memory that [`allocate_bytes`](Self::allocate_bytes) and [`adopt`](Self::adopt) return says
///   that it belongs to that queue.
pub unsafe trait Backend: Send + Sync + 'static {
    /// The device's name, memory and other facts.
    fn info(&self) -> &DeviceInfo;

    /// The identity of the handle's own queue.
    fn queue_id(&self) -> QueueId;

    /// Allocates device memory that belongs to the handle's queue, with unspecified contents.
    ///
    /// # Errors
    /// Status 1, kind [`OutOfMemory`](crate::ErrorKind::OutOfMemory), when there
    /// is not enough memory.
    fn allocate_bytes(&self, bytes: usize) -> Result<Box<dyn Memory>>;

    /// Moves memory that another handle on the same device allocated to this handle's queue:
    /// work enqueued on this queue from now on runs after all work enqueued so far on the other
    /// handle's queue.
    ///
    /// # Errors
    /// Status 3 for memory of another device, 5 for memory of another backend,
    /// 1 when the device fails.
    fn adopt(&self, memory: Box<dyn Memory>) -> Result<Box<dyn Memory>>;

    /// Waits for all work enqueued on the handle's own queue, and reports failures since the last
    /// call.
    ///
    /// # Errors
    /// Status 1 with the device's own words.
    fn synchronize(&self) -> Result<()>;

    /// Opens another handle on the same device. Where a device has several queues, the new
    /// handle has a queue of its own, so that one thread copies while another thread computes.
    ///
    /// # Errors
    /// Status 1 when the device refuses.
    fn sibling(&self) -> Result<Self>
    where
        Self: Sized;

    /// Allocates `bytes` bytes of page-locked host memory, contents unspecified: copies to and
    /// from the device's memory are fastest with it. `None` on a device where page-locked memory
    /// is no faster than other host memory.
    ///
    /// # Errors
    /// Status 1 when there is not enough memory.
    fn staging(&self, _bytes: usize) -> Result<Option<Box<dyn Staging>>> {
        Ok(None)
    }
}

/// A backend that has the operator `O`. One `impl` in the operator's own file is all
/// that a backend needs to add; if the backend lacks the operator, that
/// `impl` returns [`Error::not_implemented`](crate::Error::not_implemented).
///
/// Callers use a [`Descriptor`], which keeps the promises that these methods
/// rely on.
///
/// # Safety
/// The kernel that [`prepare`](Self::prepare) returns must keep within the
/// buffers and the workspace that its plan describes, whatever they contain.
pub unsafe trait Supports<O: Operator>: Backend {
    /// Chooses kernels and launch shapes for a plan, and loads the kernels.
    ///
    /// # Errors
    /// Status 1, 2 or 8.
    ///
    /// # Safety
    /// `plan` is what [`Operator::plan`] made, unchanged.
    unsafe fn prepare(&self, plan: &O::Plan) -> Result<Box<dyn Kernel<O>>>;
}

/// An operator made ready for one plan on one device.
///
/// # Safety
/// [`launch`](Self::launch) must keep within the buffers and the workspace that
/// it is given, whatever they contain, and access neither on a stream of kind
/// [`Route`](Kind::Route). [`workspace_size`](Self::workspace_size) must return the
/// same number each time, on every thread and in every thread pool: callers allocate a workspace
/// once for many calls, and the size behind a raw address cannot be checked.
pub unsafe trait Kernel<O: Operator>: Send + Sync {
    /// Bytes of workspace that [`launch`](Self::launch) needs, fixed when the kernel was
    /// prepared. A workspace in host memory may have any alignment; one in device memory must be
    /// aligned as the backend's own allocations are.
    fn workspace_size(&self) -> usize;

    /// Enqueues the work and does nothing else: no allocation, no
    /// synchronisation, no copy from the device.
    ///
    /// On a stream of kind [`Route`](Kind::Route), the kernel appends to the route what it would
    /// enqueue instead, and accesses neither buffers nor workspace: these are
    /// [`Nowhere`](crate::Place::Nowhere).
    ///
    /// # Errors
    /// Status 1 when the device refuses, 5 for a stream of another backend.
    ///
    /// # Safety
    /// The stream is of kind [`Route`](Kind::Route), or the following holds. [`Signature::fit`] has
    /// checked the buffers against the descriptors that the plan was made from. The workspace has
    /// at least [`workspace_size`](Self::workspace_size) bytes and is on the same device. Buffers
    /// and workspace stay usable until the work is done.
    unsafe fn launch(
        &self,
        workspace: ViewMut<'_>,
        buffers: O::Buffers<'_>,
        stream: Stream<'_>,
    ) -> Result<()>;
}

/// An operator that was validated, planned and made ready on a device.
///
/// Immutable, `Send` and `Sync`. A second descriptor of the same kind costs about as much as a
/// call, because backends cache what is slow to make. So an engine whose shapes change at each
/// step creates a new descriptor at each step.
pub struct Descriptor<O: Operator> {
    tensors: O::Tensors,
    plan: O::Plan,
    device: Device,
    queue: QueueId,
    kernel: Box<dyn Kernel<O>>,
}

impl<O: Operator> Descriptor<O> {
    /// Validates, plans, and makes the operator ready on `backend`.
    ///
    /// # Errors
    /// The errors of [`Operator::plan`] and [`Supports::prepare`].
    pub fn create<B: Supports<O> + ?Sized>(
        backend: &B,
        operator: &O,
        tensors: &O::Tensors,
    ) -> Result<Self> {
        let plan = operator.plan(tensors)?;
        // SAFETY: the plan was made a line above.
        let kernel = unsafe { backend.prepare(&plan)? };
        let (device, queue) = (backend.info().device, backend.queue_id());
        Ok(Descriptor { tensors: tensors.clone(), plan, device, queue, kernel })
    }

    /// The device that the descriptor was created on.
    pub fn device(&self) -> Device {
        self.device
    }

    /// The plan: validated sizes, strides and options.
    pub fn plan(&self) -> &O::Plan {
        &self.plan
    }

    /// The tensor descriptors that this was created from.
    pub fn tensors(&self) -> &O::Tensors {
        &self.tensors
    }

    /// Bytes of workspace that [`call_on`](Self::call_on) needs; may be 0.
    pub fn workspace_size(&self) -> usize {
        self.kernel.workspace_size()
    }

    /// The kernels that a call enqueues, with their launch shapes, as far as the host decides: what
    /// the data decide is not known, and memory counts as aligned to 256 bytes. On the CPU, the
    /// loops that a call runs.
    ///
    /// # Errors
    /// Status 5 from a kernel of another crate that cannot say it.
    pub fn route(&self) -> Result<Route> {
        let mut route = Route::default();
        let workspace = ViewMut::nowhere(DType::U8, self.workspace_size());
        let stream = Stream::of_route(&mut route);
        // SAFETY: the stream is of kind `Route`.
        unsafe { self.kernel.launch(workspace, O::nowhere(&self.tensors), stream)? };
        Ok(route)
    }

    /// Checks the buffers and enqueues the work on the queue of the handle that the descriptor
    /// was created on.
    ///
    /// # Errors
    /// As [`call_on`](Self::call_on).
    pub fn call<'a>(
        &self,
        workspace: impl Into<ViewMut<'a>>,
        buffers: O::Buffers<'_>,
    ) -> Result<()> {
        self.call_on(workspace, buffers, Stream::default())
    }

    /// Checks the buffers and enqueues the work on `stream`.
    ///
    /// On the CPU the work is done when the call returns. On other devices the call does not
    /// wait, allocate or copy, so on CUDA it can be captured into a
    /// graph. Memory that a handle allocated must come from the handle that the descriptor was
    /// created on, since that handle's queue orders all use of the memory.
    ///
    /// # Errors
    /// Status 3, 4, 5, 10 or 11 for a buffer that does not fit its descriptor, 3 for a written
    /// argument in the memory of another argument or of the workspace, 13 for a workspace that is
    /// too small, 1 when the device refuses.
    pub fn call_on<'a>(
        &self,
        workspace: impl Into<ViewMut<'a>>,
        buffers: O::Buffers<'_>,
        stream: Stream<'_>,
    ) -> Result<()> {
        self.checked(workspace.into(), buffers, stream, O::apart)
    }

    /// Checks the buffers, `apart` whether they share memory, and enqueues the work.
    fn checked(
        &self,
        workspace: ViewMut<'_>,
        mut buffers: O::Buffers<'_>,
        stream: Stream<'_>,
        apart: impl FnOnce(&O::Buffers<'_>, &ViewMut<'_>) -> Result<()>,
    ) -> Result<()> {
        // On a raw stream the caller orders all memory that is used there.
        let ordered = !matches!(stream.kind(), Kind::Raw { .. });
        let site = Site { device: self.device, queue: ordered.then_some(self.queue) };
        O::fit(&self.tensors, &mut buffers, site)?;
        let workspace = self.fit_workspace(workspace, site)?;
        apart(&buffers, &workspace)?;
        // SAFETY: `fit`, `fit_workspace` and `apart` have just checked buffers and workspace. All
        // memory stays usable until the work is done: borrowed host memory outlives the call;
        // memory that a handle allocated is freed in the order of its queue, so after the work;
        // for foreign memory, the caller of its unsafe constructor promised it.
        unsafe { self.kernel.launch(workspace, buffers, stream) }
    }

    /// [`call_on`](Self::call_on) with raw addresses, such as those that another framework
    /// holds. Types and sizes are those of the tensor descriptors.
    ///
    /// ```
    /// use spec::ops::Unique;
    /// use spec::ops::unique::Addresses;
    /// use spec::{Backend, Descriptor, Stream, Supports};
    ///
    /// /// Distinct keys in memory that another framework holds.
    /// ///
    /// /// # Safety
    /// /// The addresses hold `len` keys, `len` keys and one u64 on the device of `backend` until
    /// /// the work is done, and nobody else uses that memory meanwhile.
    /// unsafe fn distinct<B: Supports<Unique>>(
    ///     backend: &B,
    ///     keys: u64,
    ///     len: usize,
    ///     out: u64,
    ///     count: u64,
    ///     workspace: impl FnOnce(usize) -> u64,
    ///     stream: Stream<'_>,
    /// ) -> spec::Result<()> {
    ///     let operator = Unique::new();
    ///     let tensors = operator.tensors(spec::DType::I64, len);
    ///     let unique = Descriptor::create(backend, &operator, &tensors)?;
    ///     let workspace = workspace(unique.workspace_size()).into();
    ///     // SAFETY: the caller vouches for the addresses, and the workspace has the size that
    ///     // the descriptor asked for.
    ///     unsafe { unique.call_at(workspace, Addresses::new(keys, out, count), stream) }
    /// }
    /// ```
    ///
    /// # Errors
    /// As [`call_on`](Self::call_on); status 5 on a device whose memory has no
    /// addresses.
    ///
    /// # Safety
    /// Until the work is done, each address is valid on this device for the elements that its
    /// descriptor spans, and the workspace for [`workspace_size`](Self::workspace_size) bytes.
    /// The caller orders every other use of that memory before or after the work, replays of
    /// captured graphs included.
    pub unsafe fn call_at(
        &self,
        workspace: Address,
        addresses: O::Addresses,
        stream: Stream<'_>,
    ) -> Result<()> {
        let bytes = self.workspace_size();
        O::apart_at(&self.tensors, &addresses, workspace, bytes)?;
        // SAFETY: by this function's own contract, the addresses are valid for what the
        // descriptors span, and the workspace for `workspace_size` bytes, until the work is done.
        let (workspace, buffers) = unsafe {
            (
                ViewMut::from_address(DType::U8, bytes, self.device, workspace.0),
                O::at(&self.tensors, addresses, self.device),
            )
        };
        self.checked(workspace, buffers, stream, |_, _| Ok(()))
    }

    /// The workspace, checked and cut to the size that the kernel needs; an empty one where the
    /// kernel needs none.
    fn fit_workspace<'a>(&self, workspace: ViewMut<'a>, site: Site) -> Result<ViewMut<'a>> {
        let needed = self.workspace_size();
        if needed == 0 {
            return Ok(ViewMut::empty());
        }
        let checker = Checker::of::<O>();
        let given = workspace.len().saturating_mul(workspace.dtype().size());
        if given < needed {
            return Err(checker.error(
                Status::InsufficientWorkspace,
                "workspace",
                format!("{given} bytes"),
                format!("at least {needed} bytes"),
            ));
        }
        let location = workspace.location();
        checker.place("workspace", &location, site)?;
        if location.null {
            let expected = format!("{needed} bytes on {}", self.device);
            return Err(checker.error(
                Status::NullPointer,
                "workspace",
                "a null pointer",
                expected,
            ));
        }
        Ok(workspace.cast(DType::U8).split_at(needed).0)
    }
}

impl<O: Operator> std::fmt::Debug for Descriptor<O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Descriptor({} on {})", O::NAME, self.device)
    }
}
