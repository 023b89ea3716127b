//! A set of keys that grows batch by batch and is reduced by calls of spec's `unique`.

use datafusion::common::{DataFusionError, Result};
use datafusion::execution::memory_pool::MemoryReservation;
use spec::ops::Unique;
use spec::ops::unique::Buffers;
use spec::{Device, Element, Handle};

/// The number of keys that are collected before the first call, if memory allows.
const FIRST: usize = 1 << 22;
/// The next call comes when the collected keys are this many times the distinct keys.
const GROWTH: usize = 4;
/// Copies of the keys during a call: the keys, the workspace, the result.
const COPIES: usize = 3;

/// The distinct keys so far, and keys that were added since the last call.
///
/// Memory follows the distinct keys, not the input: a call reduces what was
/// collected whenever there are [`GROWTH`] times as many keys as distinct ones,
/// or when the memory pool grants no more.
pub struct Distinct<K: Element> {
    handle: Handle,
    reservation: MemoryReservation,
    keys: Vec<K>,
    limit: usize,
}

impl<K: Element> Distinct<K> {
    pub fn new(handle: Handle, reservation: MemoryReservation) -> Self {
        Distinct { handle, reservation, keys: Vec::new(), limit: FIRST }
    }

    /// Whether `more` keys can come before [`settle`](Self::settle) is due.
    pub fn has_room(&self, more: usize) -> bool {
        self.keys.len() + more <= self.limit && self.reserve(more).is_ok()
    }

    /// Reserves memory for `more` keys, and for the call that reduces them.
    ///
    /// # Errors
    /// Resources exhausted if the memory pool has not enough left.
    pub fn reserve(&self, more: usize) -> Result<()> {
        self.reservation.try_resize((self.keys.len() + more) * size_of::<K>() * COPIES)
    }

    /// Adds keys, for which [`reserve`](Self::reserve) was called.
    pub fn extend(&mut self, keys: &[K]) {
        self.keys.extend_from_slice(keys);
    }

    /// Reduces the collected keys to distinct keys, ascending. The call computes and
    /// blocks, so it must not run on an asynchronous thread.
    ///
    /// # Errors
    /// External if the device fails.
    pub fn settle(&mut self) -> Result<()> {
        if !self.keys.is_empty() {
            let keys = std::mem::take(&mut self.keys);
            self.keys = unique(&self.handle, keys).map_err(external)?;
            self.limit = (GROWTH * self.keys.len()).max(FIRST);
        }
        Ok(())
    }

    /// The distinct keys, ascending, and the reservation of their memory. To be called
    /// after the last [`settle`](Self::settle).
    pub fn finish(self) -> (Vec<K>, MemoryReservation) {
        self.reservation.resize(self.keys.len() * size_of::<K>());
        (self.keys, self.reservation)
    }
}

pub fn external(error: spec::Error) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

/// One call of the operator. On the CPU, the operator uses `keys` in place; for other devices,
/// the keys are copied to the device and back.
fn unique<K: Element>(handle: &Handle, keys: Vec<K>) -> spec::Result<Vec<K>> {
    let n = keys.len();
    let operator = handle.create(&Unique::new(), &Unique::new().tensors(K::DTYPE, n))?;
    let mut workspace = operator.workspace(handle)?;
    if handle.device() == Device::CPU {
        let (mut unique, mut count) = (vec![K::default(); n], [0u64]);
        let buffers = Buffers::new(keys.as_slice(), unique.as_mut_slice(), &mut count);
        operator.call(&mut workspace, buffers)?;
        unique.truncate(count[0] as usize);
        return Ok(unique);
    }
    let keys = handle.upload(&keys)?;
    let (mut unique, mut count) = (handle.allocate::<K>(n)?, handle.allocate::<u64>(1)?);
    let buffers = Buffers::new(&keys, &mut unique, &mut count);
    operator.call(&mut workspace, buffers)?;
    let mut unique = unique.to_vec()?;
    unique.truncate(count.to_vec()?[0] as usize);
    Ok(unique)
}
