//! Runs the operator `unique` on a chunk of keys.

use std::borrow::Cow;
use std::sync::Mutex;

use spec::ops::Unique as Operator;
use spec::ops::unique::Buffers;
use spec::{DType, Descriptor, Memory, Status, Supports, TensorDesc};

use crate::watch::lock;
use crate::{Error, Key, Result};

/// The buffers for a chunk of keys, on a handle with a stream of its own.
///
/// ```text
/// keys, unique, count, counts     a lane's own
/// workspace                       shared: lanes compute one after the other,
///                                 and copy and write meanwhile
/// ```
pub(crate) struct Lane<B> {
    backend: B,
    pub(crate) keys: Box<dyn Memory>,
    pub(crate) unique: Box<dyn Memory>,
    pub(crate) counts: Option<Box<dyn Memory>>,
    count: Box<dyn Memory>,
}

/// The workspace that lanes share. It belongs to the handle of the lane that used it
/// last, and is absent after a device has failed.
pub(crate) type Workspace = Mutex<Option<Box<dyn Memory>>>;

/// The sizes of the buffers of lanes for chunks of `capacity` keys.
pub(crate) struct Sizes {
    capacity: usize,
    has_counts: bool,
    workspace: usize,
}

impl Sizes {
    /// The sizes for the largest chunk of at most `max` keys with which `lanes` lanes stay
    /// within `budget` bytes, and which the device supports; `None` where not even
    /// [`LEAST`] keys fit.
    pub(crate) fn fitting<K: Key, B: Supports<Operator>>(
        backend: &B,
        has_counts: bool,
        lanes: usize,
        budget: u64,
        max: u64,
    ) -> Result<Option<Self>> {
        let counts = if has_counts { 8 } else { 0 };
        let each = (lanes * (2 * K::SIZE + counts) + K::SIZE) as u64;
        let mut capacity = max.min(budget / each);
        while capacity >= max.min(LEAST) {
            let made = descriptor::<K, B>(backend, capacity as usize, has_counts);
            let workspace = match made {
                Ok(descriptor) => descriptor.workspace_size(),
                // The device does not support so many keys at a time.
                Err(error) if error.status() == Status::NotImplemented => usize::MAX,
                Err(error) => return Err(error.into()),
            };
            let sizes = Sizes { capacity: capacity as usize, has_counts, workspace };
            if sizes.bytes::<K>(lanes) <= budget {
                return Ok(Some(sizes));
            }
            capacity = capacity / 32 * 31;
        }
        Ok(None)
    }

    /// The smallest budget, in bytes, with which [`fitting`](Self::fitting) succeeds.
    pub(crate) fn least<K: Key, B: Supports<Operator>>(
        backend: &B,
        has_counts: bool,
        lanes: usize,
    ) -> Result<u64> {
        let capacity = LEAST as usize * 2;
        let workspace = descriptor::<K, B>(backend, capacity, has_counts)?.workspace_size();
        Ok(Sizes { capacity, has_counts, workspace }.bytes::<K>(lanes).next_multiple_of(1 << 10))
    }

    /// The number of keys in a chunk.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    fn bytes<K: Key>(&self, lanes: usize) -> u64 {
        let counts = if self.has_counts { 8 } else { 0 };
        let each = self.capacity * (2 * K::SIZE + counts);
        (lanes * each).saturating_add(self.workspace) as u64
    }

    pub(crate) fn workspace<B: Supports<Operator>>(&self, backend: &B) -> Result<Workspace> {
        Ok(Mutex::new(Some(backend.allocate_bytes(self.workspace)?)))
    }

    pub(crate) fn lane<K: Key, B: Supports<Operator>>(&self, backend: B) -> Result<Lane<B>> {
        let bytes = self.capacity * K::SIZE;
        let counts =
            self.has_counts.then(|| backend.allocate_bytes(self.capacity * 8)).transpose()?;
        Ok(Lane {
            keys: backend.allocate_bytes(bytes)?,
            unique: backend.allocate_bytes(bytes)?,
            count: backend.allocate_bytes(8)?,
            counts,
            backend,
        })
    }
}

/// The smallest chunk that is worth a call, in keys.
const LEAST: u64 = 1024;

fn descriptor<K: Key, B: Supports<Operator>>(
    backend: &B,
    n: usize,
    has_counts: bool,
) -> spec::Result<Descriptor<Operator>> {
    let mut tensors = Operator::new().tensors(K::DTYPE, n);
    tensors.counts = has_counts.then(|| TensorDesc::new(DType::U64, [n]));
    Descriptor::create(backend, &Operator::new(), &tensors)
}

impl<B: Supports<Operator>> Lane<B> {
    /// The lane's keys, if they are in host memory.
    pub(crate) fn host_keys<K: Key>(&mut self, len: usize) -> Option<&mut [K]> {
        self.keys.view_mut(K::DTYPE, len).host()
    }

    /// Writes the distinct keys among the first `n` keys to `unique`, and returns their number.
    pub(crate) fn compute<K: Key>(&mut self, n: usize, workspace: &Workspace) -> Result<usize> {
        if n == 0 {
            return Ok(0);
        }
        let operator = descriptor::<K, B>(&self.backend, n, self.counts.is_some())?;
        let mut shared = lock(workspace);
        let taken = shared.take().ok_or_else(|| self.failed("another lane has failed"))?;
        let workspace = shared.insert(self.backend.adopt(taken)?);
        let size = operator.workspace_size();
        operator.call(workspace.view_mut(DType::U8, size), {
            let mut made = Buffers::new(
                self.keys.view(K::DTYPE, n),
                self.unique.view_mut(K::DTYPE, n),
                self.count.view_mut(DType::U64, 1),
            );
            made.counts = self.counts.as_mut().map(|counts| counts.view_mut(DType::U64, n));
            made
        })?;
        let mut count = [0; 8];
        self.count.read(&mut count)?;
        let count = u64::from_ne_bytes(count) as usize;
        if count == 0 || count > n {
            let words = format!("unique found {count} distinct ones among {n} keys");
            return Err(self.failed(words));
        }
        Ok(count)
    }

    pub(crate) fn failed(&self, words: impl Into<Cow<'static, str>>) -> Error {
        let device = self.backend.info().device;
        Error::Device(spec::Error::device(device, Status::InternalError, words))
    }
}
