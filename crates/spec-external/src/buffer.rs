//! Memory that goes back to the system when it is dropped.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use memmap2::MmapMut;
use spec::dtype::{from_bytes, from_bytes_mut};

use crate::{Error, Key, Result};

/// So many keys or counts, zeros at first.
///
/// Not from the allocator: that keeps what is freed, in the arena of whichever
/// thread had it, and a later thread's buffer then comes on top of it. A limit
/// could not be held.
pub(crate) struct Buffer<T> {
    /// `None` where there is nothing.
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

/// Why a map is a slice of keys.
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
