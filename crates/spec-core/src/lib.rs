//! # The contract of the `spec` operators
//!
//! This crate holds what every backend shares: status codes and errors, dtypes, tensor
//! descriptors, devices, and the traits between operators and backends. It also holds, for each
//! operator, the parameters, their validation, and the exact integer rules by which every backend
//! gives the same answer. The crate depends on no GPU crate.
//!
//! ## Who does what
//!
//! | | does | does not |
//! |---|---|---|
//! | an [`Operator`] (in this crate) | holds parameters, checks them against [`TensorDesc`]s, makes a plan | know any backend |
//! | a [`Backend`] | owns a device; [`Supports`] an operator by making a [`Kernel`] for a plan | validate |
//! | a [`Descriptor`] (in this crate) | checks that buffers fit, hands them to the kernel | copy, allocate or wait |
//! | the caller | owns memory ([`View`], [`ViewMut`]), workspace and [`Stream`] | give up ownership of any |
//!
//! Memory is host memory, a raw device address or a buffer object
//! ([`Place`]); a stream is the backend's own, a raw handle or a recording
//! object ([`Stream`]). These kinds cover a rayon pool, a CUDA stream and a wgpu
//! encoder without a special case for any of them.
//!
//! ## Which errors exist
//!
//! [`Descriptor::create`] reports every mistake that descriptors and parameters
//! can show, with the same status on every backend: 3, 4, 10, 11 or 12.
//! [`Descriptor::call`] reports buffers that do not fit their descriptors
//! (3, 4, 5, 10, 11), a workspace that is too small (13) and a device that fails (1). Bad
//! values in the data are not errors: each operator defines what they mean, and
//! sets a bit of the optional `flags` word ([`flags`]).
//!
//! ## What is unsafe
//!
//! * For callers: wrapping foreign memory ([`View::from_address`],
//!   [`ViewMut::from_address`], [`View::from_object`], [`ViewMut::from_object`]),
//!   calling with addresses ([`Descriptor::call_at`]), wrapping a foreign
//!   stream ([`Stream::from_raw`], [`Stream::from_object`]), and timing with
//!   replays (each backend's method `time`).
//! * For backends: implementing [`Backend`], [`Supports`] and [`Kernel`], and
//!   calling [`Supports::prepare`] and [`Kernel::launch`]; only a [`Descriptor`]
//!   needs to call them.
//!
//! Nothing else is unsafe: no sequence of other calls reaches undefined behaviour. Memory
//! that a handle allocated belongs to that handle's queue ([`QueueId`]); a
//! descriptor of another handle refuses it until
//! [`adopt`](Backend::adopt) has moved it.
//!
//! ```compile_fail,E0133
//! # use spec_core::{ops::Unique, ops::unique::Plan, Supports};
//! fn by_hand(backend: &impl Supports<Unique>, plan: &Plan) {
//!     let _ = backend.prepare(plan); // unsafe: whoever calls `prepare` vouches for the plan
//! }
//! ```
//!
//! ```compile_fail,E0133
//! # use spec_core::{ops::Unique, ops::unique::Buffers, Kernel, Stream, ViewMut};
//! fn unchecked(kernel: &dyn Kernel<Unique>, buffers: Buffers<'_>) {
//!     let _ = kernel.launch(ViewMut::empty(), buffers, Stream::default());
//! }
//! ```
//!
//! ```compile_fail,E0133
//! # use spec_core::{Device, Stream};
//! fn recording(device: Device, encoder: &mut u32) -> Stream<'_> {
//!     Stream::from_object(device, encoder)
//! }
//! ```

pub mod argument;
mod backend;
mod buffer;
mod check;
mod declare;
mod device;
mod device_name;
pub mod dtype;
mod error;
pub mod exact;
pub mod flags;
#[doc(hidden)]
pub mod launch_params;
pub mod memory;
pub mod ngram;
pub mod ops;
pub mod options;
pub mod philox;
pub mod race;
mod ready;
mod route;
pub mod segments;
pub mod shape;
mod signature;
pub mod sizes;
pub mod stream;
mod tensor;
pub mod timing;

pub use argument::{Address, Argument, DtypeRule, InOrder, Role, Source};
pub use backend::{Backend, Descriptor, Kernel, Operator, Supports};
pub use buffer::Buffer;
pub use check::{Matrix, Site, Vector};
pub use device::{Device, DeviceInfo, QueueId};
pub use device_name::DeviceName;
pub use dtype::{DType, Element};
pub use error::{Error, ErrorKind, Result, Status};
pub use half::{bf16, f16};
pub use memory::{Memory, Place, PlaceMut, Staging, View, ViewMut};
pub use ready::Ready;
pub use route::Route;
pub use signature::Signature;
pub use stream::Stream;
pub use tensor::{MAX_RANK, Shape, TensorDesc};
pub use timing::{Timed, Timing};
