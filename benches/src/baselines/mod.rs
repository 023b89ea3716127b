//! # The designs that the operators are compared with
//!
//! Other designs of the same operators, with the same contract, so that a benchmark
//! times this library and the other designs in one run on one device, and checks all
//! results in the same way:
//!
//! * on CUDA, the kernel designs of the write-ups that the operators come from. Each
//!   design is as fast as its write-up makes it: the first attempts, and the design that
//!   the write-up ends with ([`Role::Seed`]);
//! * on the CPU, [`spec_conformance::plain`]: each operator as a sequential loop, with
//!   which the tests compare every backend; and for `unique` also well-known sorting
//!   libraries.
//!
//! A design is a backend that supports a single operator. A design is prepared and
//! called like any other backend:
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
//! A design supports only the shapes and options that its write-up covers. Creating a
//! descriptor for anything else fails with status 2, and the benchmark then has no row of
//! the design. The design's results follow the contract to the bit. If the write-up itself
//! has other results (an approximate budget, an order that depends on the timing of
//! threads), the design here has the changes that the contract needs, and its comments
//! name them.

/// The archive of the kernel file with this name.
macro_rules! archive {
    ($name:literal) => {{
        let bytes = include_bytes!(concat!("../../../compiled/", $name, ".bin"));
        let manifest = include_str!("../../../compiled/manifest.txt");
        // SAFETY: `cargo xtask kernels` wrote the archive and the manifest.
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

/// The role of a design among the designs of its operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The design that the operator's write-up ends with. Tables show times relative
    /// to this design.
    Seed,
    /// Another design of the write-up, the plain loop, or the design of a library.
    Baseline,
}

/// A design of an operator on one device.
pub struct Design<O: Operator> {
    /// The design's name in tables: "block radix sort, bitmask".
    pub name: &'static str,
    /// The role among the designs of the operator.
    pub role: Role,
    /// Whether a call waits for the device, as a call that copies to the host must.
    /// No graph can capture such a call; only the host's clock can time it.
    pub waits: bool,
    /// The backend of the device, with this single operator.
    pub backend: Box<dyn Supports<O>>,
}

/// The other designs of an operator. An operator without a write-up has only the plain loop.
pub trait Designs: Subject {
    /// The designs that run on an NVIDIA GPU, the simplest first.
    fn on_cuda(_cuda: &Cuda) -> Vec<Design<Self>> {
        Vec::new()
    }

    /// The designs that run on the CPU, the plain loop first.
    fn on_cpu(cpu: &Cpu) -> Vec<Design<Self>> {
        vec![Design::plain(cpu)]
    }
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

/// The error of status 2 for a shape or option that a design does not cover.
fn uncovered(backend: &impl Backend, words: impl Into<Cow<'static, str>>) -> Error {
    Error::device(backend.info().device, Status::NotImplemented, words)
}

/// A backend that supports a single operator.
struct Only<B, F> {
    backend: B,
    prepare: F,
}

// SAFETY: every method forwards to `backend`, which keeps the promises of a backend.
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

    fn sibling(&self) -> Result<Self> {
        Ok(Only { backend: self.backend.sibling()?, prepare: self.prepare.clone() })
    }
}

// SAFETY: the kernels of designs access only the memory that the plan describes, whatever the data.
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

// SAFETY: `run` is safe code, so it accesses only the plan and the buffers.
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
        match stream.into_route() {
            Ok(route) => route.push(O::NAME, "another design"),
            Err(stream) => {
                stream.check_host()?;
                (self.run)(&self.plan, buffers)?;
            }
        }
        Ok(())
    }
}
