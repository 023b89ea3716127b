//! Host memory, aligned to a cache line.

use std::alloc::{Layout, alloc_zeroed};
use std::ops::Range;

use spec_core::{DType, Device, Element, Error, Memory, Result, Status, View, ViewMut, dtype};

/// A cache line in bytes: the alignment, so that every dtype is aligned.
const LINE: usize = 64;

/// Zeros at first. The system gives large allocations their pages when they
/// are first written, so what is never used costs nothing.
pub(crate) struct HostMemory {
    words: Vec<u64>,
    /// Bytes before the first line.
    skip: usize,
    size: usize,
}

impl HostMemory {
    pub(crate) fn new(size: usize) -> Result<Self> {
        let refuse = || {
            let message = format!("not enough memory for {size} bytes");
            Error::device(Device::CPU, Status::InternalError, message)
        };
        let count = size.checked_add(LINE).ok_or_else(refuse)?.div_ceil(size_of::<u64>());
        let layout = Layout::array::<u64>(count).map_err(|_| refuse())?;
        // SAFETY: the layout is not empty.
        let words = unsafe { alloc_zeroed(layout) }.cast::<u64>();
        if words.is_null() {
            return Err(refuse());
        }
        // SAFETY: the global allocator just gave an array of `count` words, all
        // of them zero.
        let mut words = unsafe { Vec::from_raw_parts(words, count, count) };
        prefer_large_pages(&mut words);
        let skip = words.as_ptr().addr().wrapping_neg() % LINE;
        Ok(HostMemory { words, skip, size })
    }

    fn bytes(&self) -> &[u8] {
        &dtype::as_bytes(&self.words)[self.skip..][..self.size]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut dtype::as_bytes_mut(&mut self.words)[self.skip..][..self.size]
    }

    /// So many bytes from `offset` on, if there are as many.
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

/// Asks for large pages where there is much memory: fewer of them to make at
/// first use, and a scatter that misses fewer translations.
#[cfg(target_os = "linux")]
fn prefer_large_pages(words: &mut [u64]) {
    const LARGE: usize = 2 << 20;
    let bytes = dtype::as_bytes_mut(words);
    let skip = bytes.as_ptr().addr().wrapping_neg() % LARGE;
    if let Some(inside) = bytes.get_mut(skip..) {
        let len = inside.len() / LARGE * LARGE;
        if len > 0 {
            // SAFETY: whole large pages inside memory that is borrowed; the
            // advice changes no content. Whether it was taken does not matter.
            unsafe { libc::madvise(inside.as_mut_ptr().cast(), len, libc::MADV_HUGEPAGE) };
        }
    }
}

/// Elsewhere the system decides.
#[cfg(not(target_os = "linux"))]
fn prefer_large_pages(_words: &mut [u64]) {}

macro_rules! by_dtype {
    ($dtype:expr, $convert:ident($($arg:expr),*)) => {
        match $dtype {
            DType::F32 => $convert::<f32>($($arg),*),
            DType::F16 => $convert::<half::f16>($($arg),*),
            DType::BF16 => $convert::<half::bf16>($($arg),*),
            DType::I32 => $convert::<i32>($($arg),*),
            DType::I64 => $convert::<i64>($($arg),*),
            DType::U32 => $convert::<u32>($($arg),*),
            DType::U64 => $convert::<u64>($($arg),*),
            _ => $convert::<u8>($($arg),*),
        }
    };
}

fn view_as<T: Element>(bytes: &[u8]) -> View<'_> {
    dtype::from_bytes::<T>(bytes).unwrap_or_default().into()
}

fn view_mut_as<T: Element>(bytes: &mut [u8]) -> ViewMut<'_> {
    dtype::from_bytes_mut::<T>(bytes).unwrap_or_default().into()
}

impl Memory for HostMemory {
    fn size(&self) -> usize {
        self.size
    }

    fn view(&self, dtype: DType, len: usize) -> View<'_> {
        let bytes = &self.bytes()[..len * dtype.size()];
        by_dtype!(dtype, view_as(bytes))
    }

    fn view_mut(&mut self, dtype: DType, len: usize) -> ViewMut<'_> {
        let bytes = &mut self.bytes_mut()[..len * dtype.size()];
        by_dtype!(dtype, view_mut_as(bytes))
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
