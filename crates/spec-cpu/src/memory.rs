//! Host memory, aligned to a cache line.

use std::ops::Range;

use spec_core::{DType, Device, Element, Error, Memory, Result, Status, View, ViewMut, dtype};

/// A cache line: the unit of allocation, so that every dtype is aligned.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

pub(crate) struct HostMemory {
    lines: Vec<Line>,
    size: usize,
}

impl HostMemory {
    pub(crate) fn new(size: usize) -> Result<Self> {
        let count = size.div_ceil(size_of::<Line>());
        let mut lines = Vec::new();
        lines.try_reserve_exact(count).map_err(|_| {
            let message = format!("not enough memory for {size} bytes");
            Error::device(Device::CPU, Status::InternalError, message)
        })?;
        lines.resize(count, Line([0; 64]));
        Ok(HostMemory { lines, size })
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

    fn bytes(&self) -> &[u8] {
        &self.lines.as_flattened_bytes()[..self.size]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.lines.as_flattened_bytes_mut()[..self.size]
    }
}

trait Flatten {
    fn as_flattened_bytes(&self) -> &[u8];
    fn as_flattened_bytes_mut(&mut self) -> &mut [u8];
}

impl Flatten for Vec<Line> {
    fn as_flattened_bytes(&self) -> &[u8] {
        // SAFETY: a `Line` is 64 bytes without padding, any of them valid.
        unsafe { std::slice::from_raw_parts(self.as_ptr().cast(), size_of_val(self.as_slice())) }
    }

    fn as_flattened_bytes_mut(&mut self) -> &mut [u8] {
        let len = size_of_val(self.as_slice());
        // SAFETY: as above, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.as_mut_ptr().cast(), len) }
    }
}

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
