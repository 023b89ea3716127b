//! Buffers whose memory returns to the system when they are dropped.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use memmap2::MmapMut;
use spec::dtype::{from_bytes, from_bytes_mut};

use crate::{Error, Key, Result};

/// A buffer of keys or counts, which holds zeros at first.
///
/// Its memory is mapped from the system, not allocated: an allocator keeps freed memory in the
/// arena of the thread that had it, and a buffer of a later thread would take further memory. The
/// run could not stay within its memory limit.
pub(crate) struct Buffer<T> {
    /// `None` for a buffer of length 0.
    map: Option<MmapMut>,
    of: PhantomData<T>,
}

impl<T: Key> Buffer<T> {
    pub(crate) fn new(len: usize) -> Result<Self> {
        let refuse = |error| {
            let message = format!("not enough memory for {len} keys: {error}");
            let (device, status) = (spec::Device::CPU, spec::Status::InternalError);
            Error::Device(spec::Error::device(device, status, message))
        };
        let map = (len > 0).then(|| MmapMut::map_anon(len.saturating_mul(T::SIZE)));
        Ok(Buffer { map: map.transpose().map_err(refuse)?, of: PhantomData })
    }
}

/// The reason why a map can be viewed as a slice of keys.
const WHOLE: &str = "a page is aligned to any key, and the length a whole number of them";

impl<T: Key> Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.map.as_ref().map_or(&[], |map| from_bytes(map).expect(WHOLE))
    }
}

impl<T: Key> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.map.as_mut().map_or(&mut [], |map| from_bytes_mut(map).expect(WHOLE))
    }
}
