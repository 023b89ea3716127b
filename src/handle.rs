//! [`Handle`]: an open device that is chosen by name at run time.

use std::any::Any;
use std::str::FromStr;

use spec_core::{
    Backend, Buffer, Descriptor, Device, DeviceInfo, DeviceName, Element, Error, Kernel, Memory,
    Operator, QueueId, Result, Staging, Supports, Timed, Timing,
};

/// An open device of any backend.
///
/// A handle is cheap to clone, `Send` and `Sync`. It is parsed from the device's name: `cpu`,
/// `cuda`, `cuda:1`, `wgpu:0`, or `auto`, which is explained at [`Handle::auto`].
#[derive(Clone)]
pub struct Handle(Inner);

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

/// A function that finds the devices of one backend.
type Find = fn() -> Result<Vec<DeviceInfo>>;

/// Implements everything in this module that depends on the list of backends, so that adding a
/// backend takes one line. A line may name, in brackets, the function that finds the backend's
/// GPUs: `auto` takes the first GPU, in the order of the list. `auto` never takes a device of a
/// backend without such a function, except the CPU, which it takes if there is no GPU.
macro_rules! backends {
    ($( $name:literal: $variant:ident in $module:ident $( ($gpus:ident) )? ),+ $(,)?) => {
        $(
            #[cfg(feature = $name)]
            use $module::$variant;
            #[cfg(not(feature = $name))]
            use crate::absent::Absent as $variant;
        )+

        /// The names of the backends of this build.
        const NAMES: &[&str] = &[$( #[cfg(feature = $name)] $name, )+];

        #[derive(Clone)]
        enum Inner {
            $( $variant($variant), )+
        }

        impl Handle {
            fn backend(&self) -> &dyn Backend {
                match &self.0 {
                    $( Inner::$variant(backend) => backend, )+
                }
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
                let backend: &dyn Any = match &self.0 {
                    $( Inner::$variant(backend) => backend, )+
                };
                backend.downcast_ref()
            }

            fn open_named(name: &DeviceName) -> Result<Self> {
                let index = name.index.unwrap_or(0);
                match name.backend.as_str() {
                    $(
                        $name => {
                            #[cfg(feature = $name)]
                            let backend = $variant::open(index)?;
                            #[cfg(not(feature = $name))]
                            let backend = $variant::open($name, index)?;
                            Ok(Handle(Inner::$variant(backend)))
                        }
                    )+
                    unknown => Err(bad_name(unknown)),
                }
            }
        }

        $(
            #[cfg(feature = $name)]
            impl From<$variant> for Handle {
                fn from(backend: $variant) -> Self {
                    Handle(Inner::$variant(backend))
                }
            }
        )+

        impl<O: Operator> Portable for O
        where
            $( $variant: Supports<O>, )+
        {
            fn create_on(&self, handle: &Handle, tensors: &O::Tensors) -> Result<Descriptor<O>> {
                match &handle.0 {
                    $( Inner::$variant(backend) => Descriptor::create(backend, self, tensors), )+
                }
            }
        }

        // SAFETY: device, queue and memory are those of the inner backend, which is a `Backend`
        // itself.
        unsafe impl Backend for Handle {
            fn info(&self) -> &DeviceInfo {
                self.backend().info()
            }

            fn queue_id(&self) -> QueueId {
                self.backend().queue_id()
            }

            fn allocate_bytes(&self, bytes: usize) -> Result<Box<dyn Memory>> {
                self.backend().allocate_bytes(bytes)
            }

            fn adopt(&self, memory: Box<dyn Memory>) -> Result<Box<dyn Memory>> {
                self.backend().adopt(memory)
            }

            fn synchronize(&self) -> Result<()> {
                self.backend().synchronize()
            }

            fn sibling(&self) -> Result<Self> {
                Ok(Handle(match &self.0 {
                    $( Inner::$variant(backend) => Inner::$variant(backend.sibling()?), )+
                }))
            }

            fn staging(&self, bytes: usize) -> Result<Option<Box<dyn Staging>>> {
                match &self.0 {
                    $( Inner::$variant(backend) => backend.staging(bytes), )+
                }
            }
        }

        impl Handle {
            /// Takes `samples` samples of the time of a call. Each sample makes `calls` calls back
            /// to back and divides their time on the device, in seconds, by `calls`. Calls run
            /// only in the form in which they are timed, for example replayed from a CUDA graph,
            /// and at least once before the first sample. So the outputs were written by calls in
            /// that form.
            ///
            /// ```compile_fail,E0133
            /// // Timing is unsafe: the caller promises that the memory stays valid for replays.
            /// fn replayed(handle: &spec::Handle, work: &mut dyn spec::Timed) {
            ///     let _ = handle.time(1, 1, work);
            /// }
            /// ```
            ///
            /// # Errors
            /// The errors of the calls, and status 1 when the device fails.
            ///
            /// # Safety
            /// The calls may be recorded once and replayed. So the memory that the calls use must
            /// stay at its address until this function returns, and nobody else may use that
            /// memory meanwhile. [`Timed::reset`] may write to the memory, but must neither free
            /// nor replace it.
            pub unsafe fn time(
                &self,
                samples: usize,
                calls: usize,
                work: &mut dyn Timed,
            ) -> Result<Timing> {
                match &self.0 {
                    // SAFETY: the caller promises that the calls' memory stays at its address and
                    // is used by nobody else until this returns.
                    $( Inner::$variant(backend) => unsafe { backend.time(samples, calls, work) }, )+
                }
            }

            /// Measures the rate of a copy within the device's own memory, in bytes per second.
            /// The copy is larger than the device's caches, and the rate counts bytes read and
            /// bytes written. The bytes that an operator must read and write, divided by this
            /// rate, are a lower bound of the operator's time. The measurement takes a moment and
            /// allocates memory for its duration. `None` on a backend that cannot measure it.
            ///
            /// # Errors
            /// Status 1 when the device fails.
            pub fn copy_rate(&self) -> Result<Option<f64>> {
                match &self.0 {
                    $( Inner::$variant(backend) => backend.copy_rate(), )+
                }
            }

            /// Measures the time of a call that does nothing, in seconds: on CUDA an empty kernel,
            /// timed as [`time`](Self::time) does; on wgpu an empty submission and the wait for
            /// it. `None` on a backend without such a call.
            ///
            /// # Errors
            /// Status 1 when the device fails.
            pub fn call_overhead(&self) -> Result<Option<f64>> {
                match &self.0 {
                    $( Inner::$variant(backend) => backend.call_overhead(), )+
                }
            }
        }

        // SAFETY: the inner backend makes the kernel, and its own `Supports` promises the same.
        unsafe impl<O: Operator> Supports<O> for Handle
        where
            $( $variant: Supports<O>, )+
        {
            unsafe fn prepare(&self, plan: &O::Plan) -> Result<Box<dyn Kernel<O>>> {
                match &self.0 {
                    // SAFETY: the caller promises that `Operator::plan` made the plan.
                    $( Inner::$variant(backend) => unsafe { backend.prepare(plan) }, )+
                }
            }
        }

        /// The names of the backends with GPUs, each with the function that finds the GPUs.
        const GPUS: &[(&str, Find)] = &[$( $(
            #[cfg(feature = $name)]
            ($name, $module::$gpus),
            #[cfg(not(feature = $name))]
            ($name, || $variant::$gpus($name)),
        )? )+];

        /// Lists the devices of every backend, or the reason why the backend has none.
        pub fn devices() -> Vec<Listing> {
            vec![$(
                Listing {
                    backend: $name,
                    #[cfg(feature = $name)]
                    devices: $module::devices(),
                    #[cfg(not(feature = $name))]
                    devices: $variant::devices($name),
                },
            )+]
        }
    };
}

backends! {
    "cpu": Cpu in spec_cpu,
    "cuda": Cuda in spec_cuda (devices),
    "wgpu": Wgpu in spec_wgpu (gpus),
}

impl Handle {
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
        for (backend, find) in GPUS {
            let found = find().unwrap_or_else(|error| {
                passed_over(error);
                Vec::new()
            });
            for info in found {
                let (backend, index) = ((*backend).to_owned(), Some(info.device.index()));
                match Self::open_named(&DeviceName { backend, index }) {
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
        self.backend().info()
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
        Buffer::allocate(self.backend(), len)
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
        buffer.adopted_by(self.backend())
    }

    /// Waits for all work that was enqueued on the handle's own queue.
    ///
    /// # Errors
    /// Status 1, with the device's own message, if work failed since the last call.
    pub fn synchronize(&self) -> Result<()> {
        self.backend().synchronize()
    }
}

/// The error for a text that names no device of this build.
fn bad_name(text: &str) -> Error {
    let is_number = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_digit());
    let expected = match text.trim().split_once(':') {
        Some((backend, digits))
            if NAMES.contains(&backend) && !digits.is_empty() && is_number(digits) =>
        {
            format!("a smaller number, as in `{backend}:0`")
        }
        _ => {
            let names: String = NAMES.iter().map(|name| format!(", `{name}`")).collect();
            let last = NAMES.last().unwrap_or(&"cpu");
            format!("`auto`{names} or one of its devices as in `{last}:0`")
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
