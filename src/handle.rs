//! [`Handle`]: an open device that is chosen by name at run time.

use std::any::Any;
use std::str::FromStr;
use std::sync::Arc;

use spec_core::{
    Backend, Buffer, Descriptor, Device, DeviceInfo, DeviceName, Element, Error, Kernel, Memory,
    Operator, QueueId, Result, Staging, Supports, Timed, Timing,
};

/// An open device of any backend.
///
/// A handle is cheap to clone, `Send` and `Sync`. It is parsed from the device's name: `cpu`,
/// `cuda`, `cuda:1`, `wgpu:0`, or `auto`, which is explained at [`Handle::auto`].
#[derive(Clone)]
pub struct Handle(Arc<dyn AnyBackend>);

/// The devices of one backend, or the reason why the backend has none.
#[derive(Clone, Debug)]
pub struct Listing {
    /// The backend's name.
    pub backend: &'static str,
    /// The backend's devices, or the error with which the search for devices failed.
    pub devices: Result<Vec<DeviceInfo>>,
}

/// An operator that every backend of this build supports.
pub trait Portable: Operator {
    /// Creates the operator on the device of `handle`.
    ///
    /// # Errors
    /// As [`Handle::create`].
    fn create_on(&self, handle: &Handle, tensors: &Self::Tensors) -> Result<Descriptor<Self>>;
}

impl<O: Operator> Portable for O
where
    Handle: Supports<O>,
{
    fn create_on(&self, handle: &Handle, tensors: &O::Tensors) -> Result<Descriptor<O>> {
        Descriptor::create(handle, self, tensors)
    }
}

/// A backend whose type the handle does not know.
trait AnyBackend: Backend + Any {
    /// A handle on the [`Backend::sibling`] of this backend.
    fn sibling_handle(&self) -> Result<Handle>;
}

impl<B: Backend> AnyBackend for B {
    fn sibling_handle(&self) -> Result<Handle> {
        self.sibling().map(|backend| Handle(Arc::new(backend)))
    }
}

/// A function that finds devices of the backend with this name.
type Find = fn(&'static str) -> Result<Vec<DeviceInfo>>;

/// A line of the list of backends.
struct Entry {
    /// The backend's name, which is also the name of its cargo feature.
    name: &'static str,
    /// Whether this build has the backend.
    is_built: bool,
    /// Finds the backend's devices.
    devices: Find,
    /// Finds the GPUs that `auto` may take; empty if `auto` never takes a GPU of the backend.
    gpus: &'static [Find],
    /// Opens the device with this number.
    open: fn(&'static str, usize) -> Result<Handle>,
}

/// Defines the list of backends, so that adding a backend takes one line. A line may name, in
/// brackets, the function that finds the backend's GPUs: `auto` takes the first GPU, in the order
/// of the list. `auto` never takes a device of a backend without such a function, except the CPU,
/// which it takes if there is no GPU.
///
/// A build without a backend has [`Absent`](crate::absent::Absent) in its place.
macro_rules! backends {
    ($( $name:literal: $backend:ident in $module:ident $( ($gpus:ident) )? ),+ $(,)?) => {
        const BACKENDS: &[Entry] = &[$(
            #[cfg(feature = $name)]
            Entry {
                name: $name,
                is_built: true,
                devices: |_| $module::devices(),
                gpus: &[$( |_| $module::$gpus() )?],
                open: |_, index| $backend::open(index).map(Handle::from),
            },
            #[cfg(not(feature = $name))]
            Entry {
                name: $name,
                is_built: false,
                devices: crate::absent::devices,
                gpus: &[$( crate::absent::$gpus )?],
                open: crate::absent::open,
            },
        )+];

        $(
            #[cfg(feature = $name)]
            use $module::$backend;
            #[cfg(not(feature = $name))]
            use crate::absent::Absent as $backend;

            #[cfg(feature = $name)]
            impl From<$backend> for Handle {
                fn from(backend: $backend) -> Self {
                    Handle(Arc::new(backend))
                }
            }
        )+

        // SAFETY: the inner backend makes the kernel, and its own `Supports` promises the same.
        unsafe impl<O: Operator> Supports<O> for Handle
        where
            $( $backend: Supports<O>, )+
        {
            unsafe fn prepare(&self, plan: &O::Plan) -> Result<Box<dyn Kernel<O>>> {
                $(
                    if let Some(backend) = self.backend_as::<$backend>() {
                        // SAFETY: the caller promises that `Operator::plan` made the plan.
                        return unsafe { backend.prepare(plan) };
                    }
                )+
                unreachable!("the backend of a handle is in the list")
            }
        }
    };
}

backends! {
    "cpu": Cpu in spec_cpu,
    "cuda": Cuda in spec_cuda (devices),
    "wgpu": Wgpu in spec_wgpu (gpus),
}

/// Lists the devices of every backend, or the reason why the backend has none.
pub fn devices() -> Vec<Listing> {
    let listing =
        |entry: &Entry| Listing { backend: entry.name, devices: (entry.devices)(entry.name) };
    BACKENDS.iter().map(listing).collect()
}

// SAFETY: device, queue and memory are those of the inner backend, which is a `Backend` itself.
unsafe impl Backend for Handle {
    fn info(&self) -> &DeviceInfo {
        self.0.info()
    }

    fn queue_id(&self) -> QueueId {
        self.0.queue_id()
    }

    fn allocate_bytes(&self, bytes: usize) -> Result<Box<dyn Memory>> {
        self.0.allocate_bytes(bytes)
    }

    fn adopt(&self, memory: Box<dyn Memory>) -> Result<Box<dyn Memory>> {
        self.0.adopt(memory)
    }

    fn synchronize(&self) -> Result<()> {
        self.0.synchronize()
    }

    fn sibling(&self) -> Result<Self> {
        self.0.sibling_handle()
    }

    fn staging(&self, bytes: usize) -> Result<Option<Box<dyn Staging>>> {
        self.0.staging(bytes)
    }

    unsafe fn time(&self, samples: usize, calls: usize, work: &mut dyn Timed) -> Result<Timing> {
        // SAFETY: the caller promises that the calls' memory stays at its address and is used by
        // nobody else until this returns.
        unsafe { self.0.time(samples, calls, work) }
    }

    fn copy_rate(&self) -> Result<Option<f64>> {
        self.0.copy_rate()
    }

    fn call_overhead(&self) -> Result<Option<f64>> {
        self.0.call_overhead()
    }
}

impl Handle {
    fn open_named(name: &DeviceName) -> Result<Self> {
        match BACKENDS.iter().find(|entry| entry.name == name.backend) {
            Some(entry) => (entry.open)(entry.name, name.index.unwrap_or(0)),
            None => Err(bad_name(&name.backend)),
        }
    }

    /// Opens the CPU.
    ///
    /// # Errors
    /// Status 6 if this build leaves the backend out, 1 if the system cannot start threads.
    pub fn cpu() -> Result<Self> {
        Self::open_named(&DeviceName { backend: "cpu".to_owned(), index: None })
    }

    /// Opens the first GPU, CUDA's before wgpu's, or the CPU on a machine without a GPU. A
    /// software renderer is not a GPU: it is opened only by its own name, for example `wgpu:0`.
    /// [`choose`](Self::choose) also gives the reasons why devices were passed over.
    ///
    /// # Errors
    /// Status 6 if no GPU can be opened and this build leaves the CPU backend out; otherwise as
    /// [`cpu`](Self::cpu).
    pub fn auto() -> Result<Self> {
        Self::choose(|_| ())
    }

    /// As [`auto`](Self::auto), and calls `passed_over` with the reason for each backend without a
    /// GPU and for each GPU that could not be opened. Devices after the chosen one are not tried.
    ///
    /// # Errors
    /// As [`auto`](Self::auto).
    pub fn choose(mut passed_over: impl FnMut(Error)) -> Result<Self> {
        let entries = BACKENDS.iter().flat_map(|entry| entry.gpus.iter().map(move |f| (entry, f)));
        for (entry, find) in entries {
            let found = find(entry.name).unwrap_or_else(|error| {
                passed_over(error);
                Vec::new()
            });
            for info in found {
                match (entry.open)(entry.name, info.device.index()) {
                    Ok(handle) => return Ok(handle),
                    Err(error) => passed_over(error),
                }
            }
        }
        Self::cpu()
    }

    /// The device, whose name is written for example `cuda:0`.
    pub fn device(&self) -> Device {
        self.info().device
    }

    /// Properties of the device.
    pub fn info(&self) -> &DeviceInfo {
        self.0.info()
    }

    /// Creates an operator: checks the operator's parameters against the tensors, makes a plan,
    /// and prepares the kernel on this device.
    ///
    /// # Errors
    /// Status 3, 4, 10, 11 or 12 with the argument, its value and the expected value; 2 if the
    /// backend lacks the operator; 1 or 8 if the device cannot run the operator.
    pub fn create<O: Portable>(&self, operator: &O, tensors: &O::Tensors) -> Result<Descriptor<O>> {
        operator.create_on(self, tensors)
    }

    /// Allocates `len` elements on the device, contents unspecified.
    ///
    /// # Errors
    /// Status 1 when there is not enough memory.
    pub fn allocate<T: Element>(&self, len: usize) -> Result<Buffer<T>> {
        Buffer::allocate(self, len)
    }

    /// Allocates a buffer on the device and copies `data` into it.
    ///
    /// # Errors
    /// Status 1 when there is not enough memory or the device fails.
    pub fn upload<T: Element>(&self, data: &[T]) -> Result<Buffer<T>> {
        let mut buffer = self.allocate(data.len())?;
        buffer.write(data)?;
        Ok(buffer)
    }

    /// Moves a buffer that another handle on the same device allocated to this handle's queue.
    /// Work that this handle enqueues from now on runs after the work that the other handle has
    /// enqueued so far. Two queues run concurrently without an order, so without this call the
    /// descriptors of this handle refuse the other handle's memory.
    ///
    /// # Errors
    /// Status 3 for memory of another device, 5 for memory of another backend,
    /// 1 when the device fails.
    pub fn adopt<T: Element>(&self, buffer: Buffer<T>) -> Result<Buffer<T>> {
        buffer.adopted_by(self)
    }

    /// Waits for all work that was enqueued on the handle's own queue.
    ///
    /// # Errors
    /// Status 1, with the device's own message, if work failed since the last call.
    pub fn synchronize(&self) -> Result<()> {
        self.0.synchronize()
    }

    /// The handle's backend, if it is a `B`: for functions that only that backend has.
    ///
    /// ```
    /// # fn main() -> spec::Result<()> {
    /// let handle = spec::Handle::cpu()?;
    /// assert!(handle.backend_as::<spec::cpu::Cpu>().is_some());
    /// # Ok(())
    /// # }
    /// ```
    pub fn backend_as<B: Backend>(&self) -> Option<&B> {
        let backend: &dyn Any = &*self.0;
        backend.downcast_ref()
    }
}

/// The error for a text that names no device of this build.
fn bad_name(text: &str) -> Error {
    let names = || BACKENDS.iter().filter(|entry| entry.is_built).map(|entry| entry.name);
    let is_number = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_digit());
    let expected = match text.trim().split_once(':') {
        Some((backend, digits))
            if names().any(|name| name == backend) && !digits.is_empty() && is_number(digits) =>
        {
            format!("a smaller number, as in `{backend}:0`")
        }
        _ => {
            let listed: String = names().map(|name| format!(", `{name}`")).collect();
            let last = names().next_back().unwrap_or("cpu");
            format!("`auto`{listed} or one of its devices as in `{last}:0`")
        }
    };
    Error::DeviceName { text: text.to_owned(), expected: expected.into() }
}

impl FromStr for Handle {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let name: DeviceName = text.parse().map_err(|_| bad_name(text))?;
        if name.backend == "auto" { Self::auto() } else { Self::open_named(&name) }
    }
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Handle({})", self.device())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_name_is_answered_with_those_of_this_build() {
        let words = |text: &str| text.parse::<Handle>().expect_err(text).to_string();
        let answer = words("nonsense");
        for (name, is_built) in [
            ("cpu", cfg!(feature = "cpu")),
            ("cuda", cfg!(feature = "cuda")),
            ("wgpu", cfg!(feature = "wgpu")),
        ] {
            assert_eq!(answer.contains(&format!("`{name}`")), is_built, "{answer}");
            let (huge, smaller) =
                (format!("{name}:{}", "9".repeat(20)), "expected a smaller number");
            assert_eq!(words(&huge).contains(smaller), is_built, "{}", words(&huge));
        }
        assert!(answer.starts_with("`nonsense` is no device, expected `auto`, "), "{answer}");
    }
}
