//! # The `spec` operators on wgpu
//!
//! The portable backend: Vulkan, Metal and DX12 through [`wgpu`], with shaders in WGSL. WebGPU's
//! default limits and no optional feature are enough. Where an adapter offers larger limits or
//! optional features, the backend uses them if they help; [`Options::plain`] (or
//! `SPEC_WGPU_PLAIN=1` in the environment) turns this off.
//!
//! ```no_run
//! use spec_core::ops::DeduplicateTopk;
//! use spec_core::{Backend, Descriptor, DType, Memory, Stream};
//! use spec_wgpu::Wgpu;
//!
//! # fn main() -> spec_core::Result<()> {
//! let gpu = Wgpu::open(0)?;
//! let operator = DeduplicateTopk::new().mtp_step(1);
//! let tensors = operator.tensors(1, 4);
//! let descriptor = Descriptor::create(&gpu, &operator, &tensors)?;
//! let mut indices = gpu.allocate_bytes(16)?;
//! let mut unique = gpu.allocate_bytes(16)?;
//! indices.write(&[3i32, 1, 3, -1].map(i32::to_le_bytes).concat())?;
//! let mut workspace = gpu.allocate_bytes(descriptor.workspace_size())?;
//! descriptor.call(
//!     workspace.view_mut(DType::U8, descriptor.workspace_size()),
//!     spec_core::ops::deduplicate_topk::Buffers::new(indices.view(DType::I32, 4), unique.view_mut(DType::I32, 4)),
//! )?;
//! # Ok(()) }
//! ```
//!
//! ## The caller's own buffers and queues
//!
//! A caller who already holds a wgpu device wraps it with
//! [`Wgpu::from_device`], its buffers with [`Wgpu::view`] and
//! [`Wgpu::view_mut`] (usage `STORAGE` is all they need), and passes
//! [`Wgpu::encoder`] or [`Wgpu::pass`] as the stream to record into a command
//! encoder or an open compute pass instead of submitting. Nothing is copied and
//! nothing is read back. These five functions are unsafe for one reason: wgpu does not notice an
//! object of another `wgpu::Instance`, so the caller must guarantee that one device made all of
//! these objects.
//!
//! One buffer may hold several arguments. WebGPU forbids a dispatch to bind the same `wgpu::Buffer`
//! both for reading and for writing; in this case the backend uses a variant of the shader that
//! binds everything for writing. The byte ranges themselves must not overlap unless the operator
//! works in place.
//!
//! ## What the driver prints
//!
//! Where Vulkan comes from Mesa and there is no Wayland session, Mesa's layer for choosing a device
//! prints `error: XDG_RUNTIME_DIR is invalid or not set in the environment.` to stderr when
//! adapters are listed. The message is harmless, and only the environment turns it off: start the
//! process with `NODEVICE_SELECT=1`, as the program `spec` does for itself. A library must not set
//! this variable, since other threads may be reading the environment.
//!
//! ## The cost of a call, and its errors
//!
//! A call records dispatches, makes a bind group for each dispatch, and submits if the stream is
//! the backend's own. Parameters live in small immutable uniform buffers that are cached by
//! content, so a repeated call makes no new buffer. Validation errors, lost devices and exhausted
//! memory come back as status 1 with wgpu's own message, from the call itself or from the next call
//! that can see the error.

mod adapters;
mod backend;
mod device;
mod launch;
mod memory;
mod ops;
mod shader;
mod time;
mod windows;

pub use adapters::{devices, gpus};
pub use device::{Options, Wgpu};
/// The wgpu crate whose devices and buffers this crate takes, under a name of its own:
/// `spec::wgpu::api::Device`.
pub use wgpu as api;
