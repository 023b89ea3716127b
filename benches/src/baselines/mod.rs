//! # What the operators are measured against
//!
//! Other designs of the same operators, behind the same contract, so that a
//! bench measures both in one run on one device and checks both alike:
//!
//! * on CUDA, the kernel designs of the write-ups that the operators come from,
//!   each as good as its write-up has it: the first attempts and the one it ends
//!   with ([`Role::Seed`]);
//! * on the CPU, [`spec_conformance::plain`]: each operator as a sequential loop,
//!   which the tests compare every backend with, and for `unique` the well-kept sorts that could
//!   have stood in.
//!
//! A design is a backend that has one operator, prepared and called like any
//! other:
//!
//! ```
//! use spec_bench::baselines::Designs;
//! use spec_core::ops::DeduplicateTopk;
//! use spec_core::ops::deduplicate_topk::Buffers;
//! use spec_core::{Descriptor, Stream, ViewMut};
//! use spec_cpu::Cpu;
//!
//! let operator = DeduplicateTopk::new().mtp_step(2);
//! for design in DeduplicateTopk::on_cpu(&Cpu::open(0)?) {
//!     let tensors = operator.tensors(1, 3);
//!     let descriptor = Descriptor::create(&*design.backend, &operator, &tensors)?;
//!     let mut unique = [0i32; 6];
//!     let buffers = Buffers::new(&[3i32, 1, 3, 2, 1, -1], &mut unique);
//!     descriptor.call(ViewMut::empty(), buffers)?;
//!     assert_eq!(unique, [1, 2, 3, -1, -1, -1], "{}", design.name);
//! }
//! # Ok::<(), spec_core::Error>(())
//! ```
//!
//! What a design's write-up does not cover it refuses with status 2 when a
//! descriptor is created; a bench then has no row of it. What it covers it
//! computes by the contract, to the bit: where the write-up's own result is
//! another (an approximate budget, an order that threads decide), the design has
//! what it takes to agree, and says so.

/// The archive of the kernel file with this name.
macro_rules! archive {
    ($name:literal) => {{
        let bytes = include_bytes!(concat!("../../../compiled/", $name, ".bin"));
        let manifest = include_str!("../../../compiled/manifest.txt");
        // SAFETY: `cargo xtask kernels` wrote both.
        unsafe { spec_cuda::kernel::Archive::new($name, bytes, manifest) }
    }};
}

mod ops;

use std::borrow::Cow;

use spec_conformance::Subject;
use spec_core::{
    Backend, DeviceInfo, Error, Kernel, Memory, Operator, QueueId, Result, Status, Stream,
    Supports, ViewMut,
};
use spec_cpu::Cpu;
use spec_cuda::Cuda;

/// What a design is, among those of its operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The design that the operator's write-up ends with: ratios are taken
    /// against it.
    Seed,
    /// Another design of the write-up, the plain loop, or a library's.
    Baseline,
}

/// A design of an operator on one device.
pub struct Design<O: Operator> {
    /// What people call it: "block radix sort, bitmask".
    pub name: &'static str,
    /// What it is among the others.
    pub role: Role,
    /// Whether a call waits for the device, as one that copies to the host must:
    /// no graph can capture it, only the clock can time it.
    pub waits: bool,
    /// The device, with this one operator.
    pub backend: Box<dyn Supports<O>>,
}

/// An operator that has other designs.
pub trait Designs: Operator {
    /// Those that run on an NVIDIA GPU, the simplest first.
    fn on_cuda(cuda: &Cuda) -> Vec<Design<Self>>;

    /// Those that run on the CPU, the plain loop first.
    fn on_cpu(cpu: &Cpu) -> Vec<Design<Self>>;
}

impl<O: Operator> std::fmt::Debug for Design<O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Design({} of {})", self.name, O::NAME)
    }
}

impl<O: Operator> Design<O> {
    /// A design on `backend` whose kernels `prepare` makes, as in
    /// [`Supports::prepare`].
    fn new<B, F>(name: &'static str, role: Role, backend: &B, prepare: F) -> Self
    where
        B: Backend + Clone,
        F: Fn(&B, &O::Plan) -> Result<Box<dyn Kernel<O>>> + Clone + Send + Sync + 'static,
    {
        let backend = Box::new(Only { backend: backend.clone(), prepare });
        Design { name, role, waits: false, backend }
    }

    /// As [`new`](Self::new), for a design that waits.
    fn waiting<B, F>(name: &'static str, role: Role, backend: &B, prepare: F) -> Self
    where
        B: Backend + Clone,
        F: Fn(&B, &O::Plan) -> Result<Box<dyn Kernel<O>>> + Clone + Send + Sync + 'static,
    {
        Design { waits: true, ..Design::new(name, role, backend, prepare) }
    }

    /// The plain loop, on the CPU.
    fn plain(cpu: &Cpu) -> Self
    where
        O: Subject,
    {
        Design::function("plain loop", cpu, O::plain)
    }

    /// A design on the CPU that is one function.
    fn function<F>(name: &'static str, cpu: &Cpu, run: F) -> Self
    where
        F: Fn(&O::Plan, O::Buffers<'_>) -> Result<()> + Copy + Send + Sync + 'static,
    {
        Design::new(name, Role::Baseline, cpu, move |_, plan: &O::Plan| {
            Ok(Box::new(Function { plan: plan.clone(), run }))
        })
    }
}

/// What a design does not cover: status 2.
fn uncovered(backend: &impl Backend, words: impl Into<Cow<'static, str>>) -> Error {
    Error::device(backend.info().device, Status::NotImplemented, words)
}

/// A backend with one operator.
struct Only<B, F> {
    backend: B,
    prepare: F,
}

// SAFETY: the queue and the memory are those of the backend inside.
unsafe impl<B: Backend, F: Clone + Send + Sync + 'static> Backend for Only<B, F> {
    fn info(&self) -> &DeviceInfo {
        self.backend.info()
    }

    fn queue_id(&self) -> QueueId {
        self.backend.queue_id()
    }

    fn allocate_bytes(&self, bytes: usize) -> Result<Box<dyn Memory>> {
        self.backend.allocate_bytes(bytes)
    }

    fn adopt(&self, memory: Box<dyn Memory>) -> Result<Box<dyn Memory>> {
        self.backend.adopt(memory)
    }

    fn synchronize(&self) -> Result<()> {
        self.backend.synchronize()
    }
}

// SAFETY: the kernel keeps within what the plan describes, whatever the data.
unsafe impl<O, B, F> Supports<O> for Only<B, F>
where
    O: Operator,
    B: Backend,
    F: Fn(&B, &O::Plan) -> Result<Box<dyn Kernel<O>>> + Clone + Send + Sync + 'static,
{
    unsafe fn prepare(&self, plan: &O::Plan) -> Result<Box<dyn Kernel<O>>> {
        (self.prepare)(&self.backend, plan)
    }
}

/// A function on the CPU as a kernel.
struct Function<O: Operator, F> {
    plan: O::Plan,
    run: F,
}

// SAFETY: as above.
unsafe impl<O, F> Kernel<O> for Function<O, F>
where
    O: Operator,
    F: Fn(&O::Plan, O::Buffers<'_>) -> Result<()> + Send + Sync,
{
    fn workspace_size(&self) -> usize {
        0
    }

    unsafe fn launch(
        &self,
        _: ViewMut<'_>,
        buffers: O::Buffers<'_>,
        stream: Stream<'_>,
    ) -> Result<()> {
        stream.check_host()?;
        (self.run)(&self.plan, buffers)
    }
}
