//! Picking a device at run time.

use std::any::Any;
use std::str::FromStr;

use spec_core::{
    Backend, Buffer, Descriptor, Device, DeviceInfo, DeviceName, Element, Error, Kernel, Memory,
    Operator, QueueId, Result, Staging, Supports, Timed, Timing,
};

/// An open device, whichever backend it belongs to.
///
/// Cheap to clone, `Send` and `Sync`. Text names it: `cpu`, `cuda`, `cuda:1`,
/// `wgpu:0`, or `auto` for the best there is.
#[derive(Clone)]
pub struct Handle(Inner);

/// The devices of one backend, or why there are none.
#[derive(Clone, Debug)]
pub struct Listing {
    /// The backend's name.
    pub backend: &'static str,
    /// What is there, or the reason why nothing is.
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

/// Finds the devices of one backend, or why there are none.
type Find = fn() -> Result<Vec<DeviceInfo>>;

/// Lists the backends: a line here is all that the facade needs for one. The function in
/// brackets finds the GPUs of which `auto` takes the first, in this order; a backend without
/// one is taken by name alone, or, for the CPU, where there is no GPU.
macro_rules! backends {
    ($( $name:literal: $variant:ident in $module:ident $( ($gpus:ident) )? ),+ $(,)?) => {
        $(
            #[cfg(feature = $name)]
            use $module::$variant;
            #[cfg(not(feature = $name))]
            use crate::absent::Absent as $variant;
        )+

        /// What names a device.
        const NAMES: &str =
            concat!("`auto`", $( ", `", $name, "`", )+ " or one of its devices as in `cuda:0`");

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

            /// The backend itself, where it is a `B`: for what only that one can do.
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

        // SAFETY: the queue and the memory are those of the backend inside.
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
            /// Times `calls` calls made back to back, `samples` times: seconds a call, as the
            /// device sees it. Calls run in their timed form only, at least once before the
            /// first sample, so what they write was written by such a call.
            ///
            /// ```compile_fail,E0133
            /// // Whoever times vouches for memory that a replay uses again.
            /// fn replayed(handle: &spec::Handle, work: &mut dyn spec::Timed) {
            ///     let _ = handle.time(1, 1, work);
            /// }
            /// ```
            ///
            /// # Errors
            /// Those of the calls, and status 1 when the device fails.
            ///
            /// # Safety
            /// Calls may be recorded once and replayed: the memory that they use stays where
            /// it is until this returns ([`Timed::reset`] writes to it, and neither frees nor
            /// replaces it), and nobody else uses it meanwhile.
            pub unsafe fn time(
                &self,
                samples: usize,
                calls: usize,
                work: &mut dyn Timed,
            ) -> Result<Timing> {
                match &self.0 {
                    // SAFETY: the caller promised it of the calls' memory.
                    $( Inner::$variant(backend) => unsafe { backend.time(samples, calls, work) }, )+
                }
            }

            /// Bytes a second of a copy in the device's own memory that is too large for its
            /// caches, bytes read and bytes written added up. Bytes that must move over this
            /// are the floor of an operator that only moves them. Takes a moment, and memory
            /// for as long; `None` where it cannot be measured.
            ///
            /// # Errors
            /// Status 1 when the device fails.
            pub fn copy_rate(&self) -> Result<Option<f64>> {
                match &self.0 {
                    $( Inner::$variant(backend) => backend.copy_rate(), )+
                }
            }

            /// Seconds of a call that does nothing: an empty kernel in the harness of
            /// [`time`](Self::time) (CUDA), an empty submission that is waited for (wgpu);
            /// `None` where there is nothing to measure.
            ///
            /// # Errors
            /// Status 1 when the device fails.
            pub fn call_overhead(&self) -> Result<Option<f64>> {
                match &self.0 {
                    $( Inner::$variant(backend) => backend.call_overhead(), )+
                }
            }
        }

        // SAFETY: the kernel is that of the backend inside.
        unsafe impl<O: Operator> Supports<O> for Handle
        where
            $( $variant: Supports<O>, )+
        {
            unsafe fn prepare(&self, plan: &O::Plan) -> Result<Box<dyn Kernel<O>>> {
                match &self.0 {
                    // SAFETY: the caller's.
                    $( Inner::$variant(backend) => unsafe { backend.prepare(plan) }, )+
                }
            }
        }

        /// Backends of GPUs, each with what finds them.
        const GPUS: &[(&str, Find)] = &[$( $(
            #[cfg(feature = $name)]
            ($name, $module::$gpus),
            #[cfg(not(feature = $name))]
            ($name, || $variant::$gpus($name)),
        )? )+];

        /// Every backend with its devices, or the reason why it has none.
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
    /// The CPU.
    ///
    /// # Errors
    /// Status 6 where the backend was left out of this build, 1 where the system
    /// starts no threads.
    pub fn cpu() -> Result<Self> {
        Self::open_named(&DeviceName { backend: "cpu".to_owned(), index: None })
    }

    /// The best device: the first GPU, CUDA's before wgpu's, else the CPU. A software
    /// renderer is no GPU: it is taken only where its name is given, as in `wgpu:0`.
    /// [`choose`](Self::choose) says why others were passed over.
    ///
    /// # Errors
    /// Status 6 where there is nothing at all.
    pub fn auto() -> Result<Self> {
        Self::choose(|_| ())
    }

    /// As [`auto`](Self::auto). `passed_over` is given the reason for each backend
    /// without a GPU and each GPU that is there and could not be opened. What comes after
    /// the chosen one is not looked at.
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

    /// The device as one writes it: `cuda:0`.
    pub fn device(&self) -> Device {
        self.info().device
    }

    /// What is known of the device.
    pub fn info(&self) -> &DeviceInfo {
        self.backend().info()
    }

    /// Creates an operator: checks its parameters against the tensors, plans,
    /// and makes it ready on this device.
    ///
    /// # Errors
    /// Status 3, 4, 10, 11 or 12 with the argument, its value and what was
    /// expected; 1 or 8 where the device cannot run it.
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

    /// Allocates and fills from host memory.
    ///
    /// # Errors
    /// Status 1 when there is not enough memory or the device fails.
    pub fn upload<T: Element>(&self, data: &[T]) -> Result<Buffer<T>> {
        let mut buffer = self.allocate(data.len())?;
        buffer.write(data)?;
        Ok(buffer)
    }

    /// Moves a buffer that another handle on this device allocated to this
    /// handle's queue. What is enqueued here from now on runs after what was
    /// enqueued there so far; without that, two queues would run unordered, so
    /// this handle's descriptors refuse the other's memory.
    ///
    /// # Errors
    /// Status 3 for memory of another device, 5 for memory of another backend,
    /// 1 when the device fails.
    pub fn adopt<T: Element>(&self, buffer: Buffer<T>) -> Result<Buffer<T>> {
        buffer.adopted_by(self.backend())
    }

    /// Waits for what was enqueued on the device's own stream.
    ///
    /// # Errors
    /// Status 1 with the device's own words for what failed since the last call.
    pub fn synchronize(&self) -> Result<()> {
        self.backend().synchronize()
    }
}

fn bad_name(text: &str) -> Error {
    Error::DeviceName { text: text.to_owned(), expected: NAMES }
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
