//! The contract between an operator, a backend and a caller.

use crate::check::Checker;
use crate::memory::{Locate, Memory, Staging};
use crate::timing;
use crate::{Device, DeviceInfo, Result, Status, Stream, Timed, Timing, ViewMut, Yardstick};

/// An operator: its parameters, and what they and the tensors' descriptors add
/// up to.
///
/// Implemented in this crate, once an operator, by the struct that holds the
/// parameters. Backends never validate: they are given a [`Plan`](Self::Plan).
pub trait Operator: Clone + Send + Sync + 'static {
    /// The operator's name, which is also its address in every crate.
    const NAME: &'static str;
    /// Descriptors of the arguments.
    type Tensors: Clone + Send + Sync + 'static;
    /// The arguments themselves.
    type Buffers<'a>;
    /// Everything validated: sizes, strides, options. Cheap to clone.
    type Plan: Clone + Send + Sync + 'static;

    /// Checks parameters against descriptors, for every backend the same.
    ///
    /// # Errors
    /// Status 3, 4, 10, 11 or 12 with the argument's name, its value and what
    /// was expected.
    fn plan(&self, tensors: &Self::Tensors) -> Result<Self::Plan>;

    /// Checks that buffers are what the descriptors announced: there, on the
    /// right device, of the right type, large enough and aligned. Cuts them to
    /// what the descriptors span.
    ///
    /// # Errors
    /// Status 3, 4, 5, 10 or 11.
    fn fit(tensors: &Self::Tensors, buffers: &mut Self::Buffers<'_>, device: Device) -> Result<()>;
}

/// A device that is open.
pub trait Backend: Send + Sync + 'static {
    /// What is known of the device.
    fn info(&self) -> &DeviceInfo;

    /// Allocates device memory, its contents unspecified.
    ///
    /// # Errors
    /// Status 1 when there is not enough.
    fn allocate(&self, bytes: usize) -> Result<Box<dyn Memory>>;

    /// Waits for everything enqueued on the backend's own stream, and reports
    /// what failed since the last time.
    ///
    /// # Errors
    /// Status 1 with the device's own words.
    fn synchronize(&self) -> Result<()>;

    /// Another handle on the same device. Where devices have streams, its own
    /// one runs beside this handle's: for a thread that copies and computes
    /// while another one does.
    ///
    /// # Errors
    /// Status 1 when the device refuses.
    fn sibling(&self) -> Result<Self>
    where
        Self: Sized;

    /// Allocates host memory that copies to and from the device's memory are
    /// fastest with: page-locked, contents unspecified. `None` where no memory
    /// is better than any other.
    ///
    /// # Errors
    /// Status 1 when there is not enough.
    fn staging(&self, _bytes: usize) -> Result<Option<Box<dyn Staging>>> {
        Ok(None)
    }

    /// Times `calls` calls made back to back, `samples` times: seconds a call,
    /// as the device sees it. Calls run in their timed form only, at least once
    /// before the first sample, so what they write was written by such a call.
    ///
    /// Where nothing better is said: the host's clock, from the first call until
    /// all of them are done.
    ///
    /// # Errors
    /// Those of the calls, and status 1 when the device fails.
    fn time(&self, samples: usize, calls: usize, work: &mut dyn Timed) -> Result<Timing> {
        timing::by_clock(&|| self.synchronize(), samples, calls, work)
    }

    /// Measures what the device does at best. Takes a moment, and memory for as
    /// long. What a backend cannot measure is absent.
    ///
    /// # Errors
    /// Status 1 when the device fails.
    fn yardstick(&self) -> Result<Yardstick> {
        Ok(Yardstick::default())
    }
}

/// A backend that has an operator. One `impl` in the operator's own file is all
/// that a backend needs to add.
pub trait Supports<O: Operator>: Backend {
    /// Chooses kernels and launch shapes for a plan and loads what they need.
    ///
    /// # Errors
    /// Status 1, 2 or 8.
    fn prepare(&self, plan: &O::Plan) -> Result<Box<dyn Kernel<O>>>;
}

/// An operator made ready for one plan on one device.
pub trait Kernel<O: Operator>: Send + Sync {
    /// Bytes of workspace that [`launch`](Self::launch) needs. Host memory may
    /// have any alignment; device memory that of the backend's allocations.
    fn workspace_size(&self) -> usize;

    /// Enqueues the work and does nothing else: no allocation, no
    /// synchronisation, no copy from the device. Buffers and workspace have
    /// been checked against the descriptor and cut to its size.
    ///
    /// # Errors
    /// Status 1 when the device refuses, 5 for a stream of another backend.
    fn launch(
        &self,
        workspace: ViewMut<'_>,
        buffers: O::Buffers<'_>,
        stream: Stream<'_>,
    ) -> Result<()>;
}

/// An operator, created: validated, planned and made ready on a device.
///
/// Immutable, `Send` and `Sync`; create it once per shape and call
/// [`calculate`](Self::calculate) as often as needed, from any thread.
pub struct Descriptor<O: Operator> {
    tensors: O::Tensors,
    plan: O::Plan,
    device: Device,
    kernel: Box<dyn Kernel<O>>,
}

impl<O: Operator> Descriptor<O> {
    /// Validates, plans, and makes the operator ready on `backend`.
    ///
    /// # Errors
    /// What [`Operator::plan`] and [`Supports::prepare`] report.
    pub fn create<B: Supports<O> + ?Sized>(
        backend: &B,
        operator: &O,
        tensors: &O::Tensors,
    ) -> Result<Self> {
        let plan = operator.plan(tensors)?;
        let kernel = backend.prepare(&plan)?;
        Ok(Descriptor { tensors: tensors.clone(), plan, device: backend.info().device, kernel })
    }

    /// The device this was created on.
    pub fn device(&self) -> Device {
        self.device
    }

    /// What was validated.
    pub fn plan(&self) -> &O::Plan {
        &self.plan
    }

    /// Bytes of workspace to bring to [`calculate`](Self::calculate); may be 0.
    pub fn workspace_size(&self) -> usize {
        self.kernel.workspace_size()
    }

    /// Checks the buffers and enqueues the work on `stream`.
    ///
    /// On the CPU the work is done when this returns. Elsewhere the buffers
    /// must stay untouched until the stream has passed it; nothing here waits,
    /// allocates or copies, so on CUDA the call can be captured into a graph.
    ///
    /// # Errors
    /// Status 3, 4, 5, 10 or 11 for a buffer that is not what was described, 13
    /// for a workspace that is too small, 1 when the device refuses.
    pub fn calculate<'a>(
        &self,
        workspace: impl Into<ViewMut<'a>>,
        mut buffers: O::Buffers<'_>,
        stream: Stream<'_>,
    ) -> Result<()> {
        O::fit(&self.tensors, &mut buffers, self.device)?;
        let workspace = self.fit_workspace(workspace.into())?;
        self.kernel.launch(workspace, buffers, stream)
    }

    /// The workspace cut to what is needed; nothing at all where nothing is.
    fn fit_workspace<'a>(&self, workspace: ViewMut<'a>) -> Result<ViewMut<'a>> {
        let needed = self.workspace_size();
        if needed == 0 {
            return Ok(ViewMut::empty());
        }
        let checker = Checker::new(O::NAME);
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
        checker.place("workspace", &location, self.device)?;
        if location.null {
            let expected = format!("{needed} bytes on {}", self.device);
            return Err(checker.error(
                Status::NullPointer,
                "workspace",
                "a null pointer",
                expected,
            ));
        }
        Ok(workspace.into_bytes(needed))
    }
}
