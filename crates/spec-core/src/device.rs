//! Names, queues and facts of devices.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// Names a device: a backend and an index in it, written `cuda:0`.
///
/// The set of backends is open: a backend crate brings its own name, and this crate has no
/// list of backends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Device {
    backend: &'static str,
    index: usize,
}

impl Device {
    /// The CPU, which is the only device of its backend.
    pub const CPU: Device = Device::new("cpu", 0);

    /// Device `index` of `backend`.
    pub const fn new(backend: &'static str, index: usize) -> Self {
        Device { backend, index }
    }

    /// The backend's name: `cpu`, `cuda`, `wgpu`.
    pub const fn backend(self) -> &'static str {
        self.backend
    }

    /// The index among that backend's devices, from 0.
    pub const fn index(self) -> usize {
        self.index
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Device::CPU {
            f.write_str("cpu")
        } else {
            write!(f, "{}:{}", self.backend, self.index)
        }
    }
}

/// The identity of a queue. Work that is enqueued on a queue runs in order, and so all uses of
/// memory that belongs to the queue are ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueueId(u64);

impl QueueId {
    /// The queue of the host, where work is done when a call returns.
    pub const HOST: QueueId = QueueId(0);

    /// An identity that no other queue has.
    pub fn unique() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        QueueId(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// Facts about a device, for people to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Which device.
    pub device: Device,
    /// The vendor's name of the device: "NVIDIA H100 80GB HBM3".
    pub name: String,
    /// Whether the device is a software renderer: a GPU's interface on a CPU. `auto` never
    /// takes a software renderer; a person who names one should be shown the
    /// [`warning`](Self::warning).
    pub software: bool,
    /// The device's memory in bytes, where it is known.
    pub memory: Option<u64>,
    /// Further facts in display order: driver, architecture, limits.
    pub facts: Vec<(&'static str, String)>,
}

impl DeviceInfo {
    /// A sentence for a person who chose the device by name, where the device is not what
    /// its name promises: a [software renderer](Self::software), which is slower than the
    /// device `cpu` of the same machine.
    ///
    /// ```
    /// # use spec_core as spec;
    /// let info = spec::DeviceInfo {
    ///     device: spec::Device::new("wgpu", 0),
    ///     name: "llvmpipe".to_owned(),
    ///     software: true,
    ///     memory: None,
    ///     facts: Vec::new(),
    /// };
    /// let words = "wgpu:0 (llvmpipe) is a software renderer: it runs on the CPU, slower than the device `cpu`";
    /// assert_eq!(info.warning().as_deref(), Some(words));
    /// ```
    pub fn warning(&self) -> Option<String> {
        let DeviceInfo { device, name, .. } = self;
        self.software.then(|| {
            format!(
                "{device} ({name}) is a software renderer: it runs on the CPU, slower than the \
                 device `cpu`"
            )
        })
    }
}
