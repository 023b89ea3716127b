//! Names, queues and facts of devices.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Error, Result};

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

/// A device as a person names it; the device need not exist.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DeviceName {
    /// The backend's name in lower case, or `auto`.
    pub backend: String,
    /// The index, if the name has one.
    pub index: Option<usize>,
}

impl FromStr for DeviceName {
    type Err = Error;

    /// Parses `cpu`, `cuda`, `cuda:1`, `wgpu:0`, `auto`.
    fn from_str(text: &str) -> Result<Self> {
        let bad = || Error::DeviceName {
            text: text.to_owned(),
            expected: "`auto`, a backend as in `cpu`, or one of its devices as in `cuda:0`".into(),
        };
        let (backend, index) = match text.trim().split_once(':') {
            None => (text.trim(), None),
            Some((backend, digits)) => {
                let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
                let index = digits.parse().ok().filter(|_| plain).ok_or_else(bad)?;
                (backend, Some(index))
            }
        };
        let single = matches!(backend, "auto") && index.is_some()
            || matches!(backend, "cpu") && index.is_some_and(|i| i != 0);
        if backend.is_empty()
            || single
            || !backend.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
        {
            return Err(bad());
        }
        Ok(DeviceName { backend: backend.to_owned(), index })
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
