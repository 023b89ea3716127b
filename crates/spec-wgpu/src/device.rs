//! [`Wgpu`]: an open device.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use spec_core::{Device, DeviceInfo, Error, ErrorKind, QueueId, Result, Status};
use wgpu::{ErrorFilter, Features, Limits};

use crate::adapters::{BACKEND, adapters, describe};
use crate::shader::{Access, Form, Program, Programs, Shader, lock};

/// The first index for devices that callers bring, above the index of any adapter.
const FIRST_FOREIGN: usize = 1000;
/// The number of uniform buffers at which the cache is emptied.
const MAX_UNIFORMS: usize = 4096;

/// How a device is opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Use WebGPU's default limits and no optional feature, whatever the adapter offers.
    /// `SPEC_WGPU_PLAIN=1` in the environment has the same effect.
    pub plain: bool,
    /// The largest number of bytes of one binding, if smaller than the device allows. Larger
    /// tensors are split over several dispatches; small values serve to test the splitting.
    pub max_binding: Option<u64>,
}

impl Options {
    fn from_environment() -> Self {
        let plain = std::env::var_os("SPEC_WGPU_PLAIN").is_some_and(|v| v != "0" && !v.is_empty());
        Options { plain, max_binding: None }
    }
}

/// An open wgpu device with its queue. It is cheap to clone and can be used from any thread.
#[derive(Clone)]
pub struct Wgpu(pub(crate) Arc<Inner>);

impl std::fmt::Debug for Wgpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Wgpu({})", self.0.info.device)
    }
}

pub(crate) struct Inner {
    pub(crate) id: QueueId,
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    pub(crate) info: DeviceInfo,
    pub(crate) limits: Limits,
    /// The largest number of bytes of one binding.
    pub(crate) max_binding: u64,
    /// The size of a subgroup, if subgroups may be used and all have the same size.
    pub(crate) subgroup: Option<u32>,
    pub(crate) programs: Mutex<Programs>,
    /// Buffers bound in place of absent or empty tensors: one for reading and one for writing,
    /// since a dispatch cannot use one buffer for both.
    pub(crate) nothing: [wgpu::Buffer; 2],
    uniforms: Mutex<HashMap<Vec<u32>, wgpu::Buffer>>,
    failures: Arc<Failures>,
}

/// Errors that no call of this backend caught.
#[derive(Default)]
struct Failures {
    /// Why the device was lost. Every further call reports this message.
    lost: Mutex<Option<String>>,
    /// The first error outside of any error scope.
    uncaptured: Mutex<Option<(ErrorKind, String)>>,
}

impl Wgpu {
    /// Opens adapter `index` of [`devices`](crate::devices).
    ///
    /// # Errors
    /// Status 6 where there is no such adapter, 8 where the adapter is below WebGPU's default
    /// limits, 1 where the adapter refuses to open a device.
    pub fn open(index: usize) -> Result<Self> {
        Self::open_with(index, &Options::from_environment())
    }

    /// As [`open`](Self::open), with the options given instead of the environment's.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with(index: usize, options: &Options) -> Result<Self> {
        let name = Device::new(BACKEND, index);
        let mut found = adapters()?;
        if index >= found.len() {
            let count = found.len();
            let words = format!("there is no such device; wgpu shows {count}, from wgpu:0");
            return Err(Error::device(name, Status::DeviceNotFound, words));
        }
        Self::of_adapter(index, &found.swap_remove(index), options)
    }

    /// Opens an adapter.
    fn of_adapter(index: usize, adapter: &wgpu::Adapter, options: &Options) -> Result<Self> {
        let name = Device::new(BACKEND, index);
        let (features, limits) = wanted(adapter, options.plain);
        if !limits.check_limits(&adapter.limits()) {
            let words = "the adapter is below WebGPU's default limits";
            return Err(Error::device(name, Status::DeviceArchitectureNotSupported, words));
        }
        let descriptor = wgpu::DeviceDescriptor {
            label: Some("spec"),
            required_features: features,
            required_limits: limits,
            ..Default::default()
        };
        let (device, queue) = pollster::block_on(adapter.request_device(&descriptor))
            .map_err(|e| Error::device(name, Status::InternalError, e.to_string()))?;
        let failures = Arc::new(Failures::default());
        let lost = Arc::clone(&failures);
        device.set_device_lost_callback(move |reason, words| {
            let words = format!("the device was lost ({reason:?}): {words}");
            lock(&lost.lost).get_or_insert(words);
        });
        let uncaptured = Arc::clone(&failures);
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
            lock(&uncaptured.uncaptured).get_or_insert_with(|| (kind_of(&error), words_of(&error)));
        }));
        Self::new(index, device, queue, options, failures)
    }

    /// A device that compiles shaders and runs nothing, with the limits of a usual GPU and subgroups of
    /// `subgroup` threads, or without subgroups if `None`: for tests that ask which shaders a call runs.
    #[cfg(test)]
    pub(crate) fn without_device(subgroup: Option<u32>, options: &Options) -> Self {
        let mut features = Features::all_webgpu_mask();
        features.set(Features::SUBGROUP, subgroup.is_some());
        let limits = Limits {
            max_compute_workgroup_storage_size: 48 << 10,
            max_compute_invocations_per_workgroup: 1024,
            max_compute_workgroup_size_x: 1024,
            max_storage_buffers_per_shader_stage: 64,
            max_storage_buffer_binding_size: (1 << 31) - 4,
            max_buffer_size: 1 << 31,
            ..Limits::default()
        };
        let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
        descriptor.backends = wgpu::Backends::NOOP;
        descriptor.backend_options.noop = wgpu::NoopBackendOptions {
            enable: true,
            features: Some(features),
            limits: Some(limits),
            subgroup_min_size: subgroup,
            subgroup_max_size: subgroup,
            ..Default::default()
        };
        let instance = wgpu::Instance::new(descriptor);
        let adapter = pollster::block_on(instance.request_adapter(&Default::default()));
        Self::of_adapter(0, &adapter.expect("the adapter"), options).expect("the device")
    }

    /// Uses a device and queue that the caller already has, with the features and limits that the
    /// device was made with. The device's error handlers are left alone. The handle gets an index
    /// above those of all adapters.
    ///
    /// # Errors
    /// Status 1 where the device fails, 8 where its limits are below WebGPU's
    /// defaults.
    ///
    /// # Safety
    /// `queue` must be the queue of `device`: see [`encoder`](Self::encoder).
    pub unsafe fn from_device(device: wgpu::Device, queue: wgpu::Queue) -> Result<Self> {
        static NEXT: AtomicUsize = AtomicUsize::new(FIRST_FOREIGN);
        let index = NEXT.fetch_add(1, Ordering::Relaxed);
        let needed = compute_limits(&Limits::default(), &Limits::downlevel_defaults());
        if !needed.check_limits(&device.limits()) {
            let words = "the device was made with limits below WebGPU's defaults for compute";
            let name = Device::new(BACKEND, index);
            return Err(Error::device(name, Status::DeviceArchitectureNotSupported, words));
        }
        Self::new(index, device, queue, &Options::from_environment(), Arc::default())
    }

    fn new(
        index: usize,
        device: wgpu::Device,
        queue: wgpu::Queue,
        options: &Options,
        failures: Arc<Failures>,
    ) -> Result<Self> {
        let adapter = device.adapter_info();
        let features = if options.plain { Features::empty() } else { device.features() };
        let limits = if options.plain { Limits::default() } else { device.limits() };
        let info = describe(index, &adapter, &limits, features);
        // Shaders index 32-bit words with u32, so a binding is never larger than 2 GiB.
        let largest = limits.max_storage_buffer_binding_size.min((1 << 31) - 256);
        let max_binding = options.max_binding.map_or(largest, |b| b.clamp(4096, largest));
        let one_size = adapter.subgroup_min_size == adapter.subgroup_max_size;
        let subgroup = (features.contains(Features::SUBGROUP) && one_size)
            .then_some(adapter.subgroup_min_size);
        let nothing = ["spec nothing to read", "spec nothing to write"].map(|label| {
            device.create_buffer(&wgpu::BufferDescriptor {
                label: Some(label),
                size: 32 * 256,
                usage: wgpu::BufferUsages::STORAGE,
                mapped_at_creation: false,
            })
        });
        let gpu = Wgpu(Arc::new(Inner {
            id: QueueId::unique(),
            device,
            queue,
            info,
            limits,
            max_binding: max_binding & !255,
            subgroup,
            programs: Mutex::default(),
            nothing,
            uniforms: Mutex::default(),
            failures,
        }));
        gpu.healthy()?;
        Ok(gpu)
    }

    /// The wgpu device underneath.
    pub fn device(&self) -> &wgpu::Device {
        &self.0.device
    }

    /// The queue that this handle submits to.
    pub fn queue(&self) -> &wgpu::Queue {
        &self.0.queue
    }

    /// An error about this device.
    pub(crate) fn error(&self, status: Status, words: impl Into<String>) -> Error {
        Error::device(self.0.info.device, status, words.into())
    }

    /// A failure of this device.
    pub(crate) fn failure(&self, kind: ErrorKind, words: impl Into<String>) -> Error {
        Error::failure(self.0.info.device, kind, words.into())
    }

    /// Reports an error that occurred since the last check.
    fn healthy(&self) -> Result<()> {
        if let Some(words) = lock(&self.0.failures.lost).as_ref() {
            return Err(self.failure(ErrorKind::DeviceLost, words.clone()));
        }
        match lock(&self.0.failures.uncaptured).take() {
            Some((kind, words)) => Err(self.failure(kind, words)),
            None => Ok(()),
        }
    }

    /// Runs `work` and turns every error that wgpu reports meanwhile into status 1.
    pub(crate) fn guarded<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.healthy()?;
        let device = &self.0.device;
        let memory = device.push_error_scope(ErrorFilter::OutOfMemory);
        let internal = device.push_error_scope(ErrorFilter::Internal);
        let validation = device.push_error_scope(ErrorFilter::Validation);
        let result = work();
        let errors = [validation.pop(), internal.pop(), memory.pop()].map(pollster::block_on);
        let value = result?;
        if let Some(error) = errors.into_iter().flatten().next() {
            return Err(self.failure(kind_of(&error), words_of(&error)));
        }
        self.healthy()?;
        Ok(value)
    }

    /// An immutable uniform buffer with the content `words`, from the cache if it holds one.
    pub(crate) fn uniform(&self, words: &[u32]) -> wgpu::Buffer {
        let mut cache = lock(&self.0.uniforms);
        if let Some(buffer) = cache.get(words) {
            return buffer.clone();
        }
        if cache.len() >= MAX_UNIFORMS {
            // Buffers in flight are kept alive by wgpu itself.
            cache.clear();
        }
        let buffer = self.0.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("spec parameters"),
            size: (words.len() as u64 * 4).next_multiple_of(16),
            usage: wgpu::BufferUsages::UNIFORM,
            mapped_at_creation: true,
        });
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        // Mapping fails only where creating the buffer failed, and wgpu reports that error.
        if let Ok(mut mapped) = buffer.slice(..bytes.len() as u64).get_mapped_range_mut() {
            mapped.copy_from_slice(&bytes);
        }
        buffer.unmap();
        cache.insert(words.to_vec(), buffer.clone());
        buffer
    }
}

impl Wgpu {
    /// The program for entry point `entry` of `shader`. `bindings` are the accesses of `@group(0)
    /// @binding(1)` and up, as the entry point declares them; the access of a binding that the
    /// entry point does not use may be anything. `constants` set the shader's `override`s. A handle
    /// compiles each program once and then caches it.
    pub(crate) fn program(
        &self,
        shader: &'static Shader,
        entry: &'static str,
        bindings: &[Access],
        constants: &[(&'static str, u32)],
    ) -> Result<Program> {
        self.make_program(Form { shader, subgroups: false }, entry, bindings, constants)
    }

    /// As [`program`](Self::program), in the form that uses subgroups. The handle must have
    /// subgroups.
    pub(crate) fn subgroup_program(
        &self,
        shader: &'static Shader,
        entry: &'static str,
        bindings: &[Access],
        constants: &[(&'static str, u32)],
    ) -> Result<Program> {
        self.make_program(Form { shader, subgroups: true }, entry, bindings, constants)
    }

    fn make_program(
        &self,
        form: Form,
        entry: &'static str,
        bindings: &[Access],
        constants: &[(&'static str, u32)],
    ) -> Result<Program> {
        let Inner { device, programs, .. } = &*self.0;
        if let Some(program) = Program::known(programs, form, entry, bindings, constants) {
            return Ok(program);
        }
        let compiled =
            self.guarded(|| Ok(Program::new(device, programs, form, entry, bindings, constants)))?;
        Ok(compiled.keep(programs, constants))
    }

    /// Blocks until the queue is empty.
    pub(crate) fn wait(&self) -> Result<()> {
        let polled = self.0.device.poll(wgpu::PollType::wait_indefinitely());
        polled.map(drop).map_err(|e| self.error(Status::InternalError, e.to_string()))
    }
}

/// The kind of an error, by which a program decides what to do.
fn kind_of(error: &wgpu::Error) -> ErrorKind {
    match error {
        wgpu::Error::OutOfMemory { .. } => ErrorKind::OutOfMemory,
        _ => ErrorKind::Failed,
    }
}

/// The text of an error with all of its causes, on one line.
fn words_of(error: &wgpu::Error) -> String {
    let mut words = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        let text = cause.to_string();
        if !words.contains(&text) {
            words = format!("{words}: {text}");
        }
        source = cause.source();
    }
    words.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The features and limits to request from an adapter.
fn wanted(adapter: &wgpu::Adapter, plain: bool) -> (Features, Limits) {
    let smallest = &Limits::downlevel_defaults();
    if plain {
        return (Features::empty(), compute_limits(&Limits::default(), smallest));
    }
    let optional = Features::SUBGROUP | Features::SUBGROUP_BARRIER | Features::TIMESTAMP_QUERY;
    (adapter.features() & optional, compute_limits(&adapter.limits(), smallest))
}

/// The limits of `from` for compute and buffers, and those of `rest` for everything else: a device
/// with weak graphics limits is still good enough.
fn compute_limits(from: &Limits, rest: &Limits) -> Limits {
    Limits {
        max_bind_groups: from.max_bind_groups,
        max_storage_buffers_per_shader_stage: from.max_storage_buffers_per_shader_stage,
        max_uniform_buffer_binding_size: from.max_uniform_buffer_binding_size,
        max_storage_buffer_binding_size: from.max_storage_buffer_binding_size,
        max_buffer_size: from.max_buffer_size,
        min_uniform_buffer_offset_alignment: from.min_uniform_buffer_offset_alignment,
        min_storage_buffer_offset_alignment: from.min_storage_buffer_offset_alignment,
        max_compute_workgroup_storage_size: from.max_compute_workgroup_storage_size,
        max_compute_invocations_per_workgroup: from.max_compute_invocations_per_workgroup,
        max_compute_workgroup_size_x: from.max_compute_workgroup_size_x,
        max_compute_workgroup_size_y: from.max_compute_workgroup_size_y,
        max_compute_workgroup_size_z: from.max_compute_workgroup_size_z,
        max_compute_workgroups_per_dimension: from.max_compute_workgroups_per_dimension,
        ..rest.clone()
    }
}
