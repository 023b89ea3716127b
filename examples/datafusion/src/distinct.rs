//! A set of keys that grows batch by batch and is reduced by calls of spec's `unique`.

use datafusion::common::{DataFusionError, Result};
use datafusion::execution::memory_pool::MemoryReservation;
use spec::ops::Unique;
use spec::ops::unique::Buffers;
use spec::{DType, Device, Element, Handle, TensorDesc};

/// The number of keys that are collected before the first call, if memory allows.
const FIRST: usize = 1 << 22;
/// The next call comes when the new keys are this many times the distinct keys.
const GROWTH: usize = 3;

/// Distinct keys, ascending, and how often each occurs; without counts, `counts` is empty.
pub struct Counted<K> {
    pub keys: Vec<K>,
    pub counts: Vec<u64>,
}

/// The distinct keys so far, and keys that were added since the last call.
///
/// Memory follows the distinct keys, not the input: a call reduces what was
/// collected whenever there are [`GROWTH`] times as many new keys as distinct ones,
/// or when the memory pool grants no more.
pub struct Distinct<K: Element> {
    handle: Handle,
    reservation: MemoryReservation,
    has_counts: bool,
    distinct: Counted<K>,
    new: Vec<K>,
}

impl<K: Element + Ord> Distinct<K> {
    pub fn new(handle: Handle, reservation: MemoryReservation, has_counts: bool) -> Self {
        let distinct = Counted { keys: Vec::new(), counts: Vec::new() };
        Distinct { handle, reservation, has_counts, distinct, new: Vec::new() }
    }

    /// Whether `more` keys can come before [`settle`](Self::settle) is due.
    pub fn has_room(&self, more: usize) -> bool {
        let limit = (GROWTH * self.distinct.keys.len()).max(FIRST);
        self.new.len() + more <= limit && self.reserve(more).is_ok()
    }

    /// Reserves memory for `more` keys, and for the call that reduces them.
    ///
    /// # Errors
    /// Resources exhausted if the memory pool has not enough left.
    pub fn reserve(&self, more: usize) -> Result<()> {
        // A call needs its input, its workspace and its output. Merging needs both inputs and the output,
        // so each key twice.
        let key = size_of::<K>();
        let bytes = if self.has_counts { 2 * (key + size_of::<u64>()) } else { 3 * key };
        self.reservation.try_resize((self.distinct.keys.len() + self.new.len() + more) * bytes)
    }

    /// Adds keys, for which [`reserve`](Self::reserve) was called.
    pub fn extend(&mut self, keys: &[K]) {
        self.new.extend_from_slice(keys);
    }

    /// Reduces the collected keys to distinct keys, ascending. The call computes and
    /// blocks, so it must not run on an asynchronous thread.
    ///
    /// # Errors
    /// External if the device fails.
    pub fn settle(&mut self) -> Result<()> {
        let new = std::mem::take(&mut self.new);
        if !new.is_empty() {
            let new = unique(&self.handle, new, self.has_counts).map_err(external)?;
            self.distinct = match std::mem::take(&mut self.distinct.keys) {
                keys if keys.is_empty() => new,
                keys => {
                    let counts = std::mem::take(&mut self.distinct.counts);
                    merge(&Counted { keys, counts }, &new)
                }
            };
        }
        Ok(())
    }

    /// The distinct keys and the reservation of their memory. To be called
    /// after the last [`settle`](Self::settle).
    pub fn finish(self) -> (Counted<K>, MemoryReservation) {
        let Counted { keys, counts } = &self.distinct;
        self.reservation.resize(size_of_val(&keys[..]) + size_of_val(&counts[..]));
        (self.distinct, self.reservation)
    }
}

pub fn external(error: spec::Error) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

/// The union of two sets; the counts of keys in both are added.
fn merge<K: Copy + Ord>(a: &Counted<K>, b: &Counted<K>) -> Counted<K> {
    let mut keys = Vec::with_capacity(a.keys.len() + b.keys.len());
    let mut counts = Vec::with_capacity(a.counts.len() + b.counts.len());
    let (mut i, mut j) = (0, 0);
    while i < a.keys.len() || j < b.keys.len() {
        let take_a = i < a.keys.len() && (j == b.keys.len() || a.keys[i] <= b.keys[j]);
        let take_b = j < b.keys.len() && (i == a.keys.len() || b.keys[j] <= a.keys[i]);
        keys.push(if take_a { a.keys[i] } else { b.keys[j] });
        if !a.counts.is_empty() {
            let count =
                |take: bool, set: &Counted<K>, at: usize| if take { set.counts[at] } else { 0 };
            counts.push(count(take_a, a, i) + count(take_b, b, j));
        }
        i += usize::from(take_a);
        j += usize::from(take_b);
    }
    Counted { keys, counts }
}

/// One call of the operator. On the CPU, the operator uses `keys` in place; for other devices,
/// the keys are copied to the device and back.
fn unique<K: Element>(handle: &Handle, keys: Vec<K>, has_counts: bool) -> spec::Result<Counted<K>> {
    let n = keys.len();
    let mut tensors = Unique::new().tensors(K::DTYPE, n);
    if has_counts {
        tensors = tensors.counts(TensorDesc::new(DType::U64, [n]));
    }
    let operator = handle.create(&Unique::new(), &tensors)?;
    let mut workspace = operator.workspace(handle)?;
    let (mut unique, mut counts, count) = if handle.device() == Device::CPU {
        let mut unique = vec![K::default(); n];
        let mut counts = vec![0u64; if has_counts { n } else { 0 }];
        let mut count = [0u64];
        let mut buffers = Buffers::new(keys.as_slice(), unique.as_mut_slice(), &mut count);
        if has_counts {
            buffers = buffers.counts(counts.as_mut_slice());
        }
        operator.call(&mut workspace, buffers)?;
        (unique, counts, count[0])
    } else {
        let keys = handle.upload(&keys)?;
        let (mut unique, mut count) = (handle.allocate::<K>(n)?, handle.allocate::<u64>(1)?);
        let mut counts = if has_counts { Some(handle.allocate::<u64>(n)?) } else { None };
        let mut buffers = Buffers::new(&keys, &mut unique, &mut count);
        if let Some(counts) = &mut counts {
            buffers = buffers.counts(counts);
        }
        operator.call(&mut workspace, buffers)?;
        let counts = counts.map(|counts| counts.to_vec()).transpose()?;
        (unique.to_vec()?, counts.unwrap_or_default(), count.to_vec()?[0])
    };
    unique.truncate(count as usize);
    unique.shrink_to_fit();
    counts.truncate(count as usize);
    counts.shrink_to_fit();
    Ok(Counted { keys: unique, counts })
}
