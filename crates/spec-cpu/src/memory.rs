//! Host memory, aligned to a cache line.

use std::ops::Range;

use memmap2::MmapMut;
use spec_core::{DType, Device, Error, ErrorKind, Memory, Result, Status, View, ViewMut, dtype};

/// Bytes of a cache line. Memory starts at a multiple of it, so every dtype is aligned.
const LINE: usize = 64;
/// From this size in bytes, memory is mapped from the system, and freed memory returns to the
/// system at once. The allocator may keep memory that is freed.
const LARGE: usize = 256 << 10;

/// Host memory that holds zeros at first. The system gives a large allocation its pages when
/// they are first written, so pages that nobody uses cost nothing.
pub(crate) struct HostMemory {
    words: Words,
    /// Bytes before the first cache line, where the memory starts.
    skip: usize,
    size: usize,
}

enum Words {
    Small(Vec<u64>),
    Large(MmapMut),
}

impl HostMemory {
    pub(crate) fn new(size: usize) -> Result<Self> {
        if size < LARGE {
            let words = vec![0; (size + LINE).div_ceil(size_of::<u64>())];
            let skip = words.as_ptr().addr().wrapping_neg() % LINE;
            return Ok(HostMemory { words: Words::Small(words), skip, size });
        }
        let map = MmapMut::map_anon(size).map_err(|error| {
            let message = format!("not enough memory for {size} bytes: {error}");
            Error::failure(Device::CPU, ErrorKind::OutOfMemory, message)
        })?;
        prefer_large_pages(&map);
        Ok(HostMemory { words: Words::Large(map), skip: 0, size })
    }

    fn bytes(&self) -> &[u8] {
        let bytes = match &self.words {
            Words::Small(words) => dtype::as_bytes(words),
            Words::Large(map) => map,
        };
        &bytes[self.skip..][..self.size]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        let bytes = match &mut self.words {
            Words::Small(words) => dtype::as_bytes_mut(words),
            Words::Large(map) => map,
        };
        &mut bytes[self.skip..][..self.size]
    }

    /// The range of `len` bytes from `offset` on.
    ///
    /// # Errors
    /// Status 11 if the range ends behind the memory.
    fn range(&self, offset: usize, len: usize) -> Result<Range<usize>> {
        match offset.checked_add(len) {
            Some(end) if end <= self.size => Ok(offset..end),
            _ => {
                let words = format!("{len} bytes from byte {offset} on pass the {}", self.size);
                Err(Error::device(Device::CPU, Status::BadTensorShape, words))
            }
        }
    }
}

/// Asks the system for large pages. The system then has fewer pages to provide at first use, and
/// a scatter to many places finds more of its addresses in the processor's translation cache.
#[cfg(target_os = "linux")]
fn prefer_large_pages(map: &MmapMut) {
    // A system that refuses keeps small pages, which are only slower.
    _ = map.advise(memmap2::Advice::HugePage);
}

/// Does nothing: other systems have no such call.
#[cfg(not(target_os = "linux"))]
fn prefer_large_pages(_map: &MmapMut) {}

impl Memory for HostMemory {
    fn size(&self) -> usize {
        self.size
    }

    fn view(&self, dtype: DType, len: usize) -> View<'_> {
        let bytes = &self.bytes()[..len * dtype.size()];
        View::from_bytes(dtype, bytes)
    }

    fn view_mut(&mut self, dtype: DType, len: usize) -> ViewMut<'_> {
        let bytes = &mut self.bytes_mut()[..len * dtype.size()];
        ViewMut::from_bytes(dtype, bytes)
    }

    fn write_at(&mut self, offset: usize, bytes: &[u8]) -> Result<()> {
        let range = self.range(offset, bytes.len())?;
        self.bytes_mut()[range].copy_from_slice(bytes);
        Ok(())
    }

    fn read_at(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        let range = self.range(offset, bytes.len())?;
        bytes.copy_from_slice(&self.bytes()[range]);
        Ok(())
    }
}
