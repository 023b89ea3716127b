//! Buffers: the backend's own, the caller's, and the byte ranges that
//! dispatches bind.

use std::any::Any;
use std::ops::Range;
use std::time::Duration;

use spec_core::{
    Backend, DType, Error, ErrorKind, Matrix, Memory, Place, PlaceMut, QueueId, Result, Status,
    View, ViewMut,
};
use wgpu::BufferUsages;

use crate::Wgpu;

/// Bindings start at multiples of this many bytes; the shader adds the rest of an offset as an
/// index. WebGPU's default for `minStorageBufferOffsetAlignment`.
pub(crate) const ALIGNMENT: u64 = 256;
/// How long wgpu may take to report that a finished copy is mapped.
const CALLBACK: Duration = Duration::from_secs(60);
/// Bytes copied between host and device at a time.
const CHUNK: usize = 64 << 20;

impl Wgpu {
    /// A tensor in the caller's own buffer: the elements at `bytes` of `buffer`.
    ///
    /// # Errors
    /// Status 3 where the buffer lacks the usage `STORAGE`, or where `bytes` does not lie in the
    /// buffer, is not a whole number of elements, or starts between two elements.
    ///
    /// # Safety
    /// This handle's [`device`](Self::device) must have made the buffer: see
    /// [`encoder`](Self::encoder).
    pub unsafe fn view<'a>(
        &self,
        buffer: &'a wgpu::Buffer,
        dtype: DType,
        bytes: Range<u64>,
    ) -> Result<View<'a>> {
        let len = self.check_range(buffer, dtype, &bytes)?;
        // SAFETY: the range was checked, and the caller promised that this device made the buffer.
        Ok(unsafe { View::from_object(dtype, len, self.0.info.device, buffer, bytes.start) })
    }

    /// As [`view`](Self::view), for a tensor that a call writes. wgpu's buffers are shared: the
    /// caller must see to it that no other work writes to the same bytes at the same time, as with
    /// any work on a queue.
    ///
    /// # Errors
    /// As [`view`](Self::view).
    ///
    /// # Safety
    /// As for [`view`](Self::view).
    pub unsafe fn view_mut<'a>(
        &self,
        buffer: &'a wgpu::Buffer,
        dtype: DType,
        bytes: Range<u64>,
    ) -> Result<ViewMut<'a>> {
        let len = self.check_range(buffer, dtype, &bytes)?;
        // SAFETY: the range was checked, and the caller promised that this device made the buffer.
        Ok(unsafe { ViewMut::from_object(dtype, len, self.0.info.device, buffer, bytes.start) })
    }

    fn check_range(
        &self,
        buffer: &wgpu::Buffer,
        dtype: DType,
        bytes: &Range<u64>,
    ) -> Result<usize> {
        let bad = |words: String| Err(self.error(Status::BadParam, words));
        if !buffer.usage().contains(BufferUsages::STORAGE) {
            return bad(format!("a buffer has usage {:?}, expected STORAGE", buffer.usage()));
        }
        let size = dtype.size() as u64;
        if bytes.start > bytes.end || bytes.end > buffer.size() {
            return bad(format!("bytes {bytes:?} do not lie in a buffer of {}", buffer.size()));
        }
        if !bytes.start.is_multiple_of(size) || !(bytes.end - bytes.start).is_multiple_of(size) {
            return bad(format!("bytes {bytes:?} are not whole elements of {dtype}"));
        }
        // Shaders read 32-bit words, so the last word must be complete.
        if bytes.end.next_multiple_of(4) > buffer.size() {
            return bad(format!(
                "bytes {bytes:?} end in the last, incomplete word of a buffer of {} bytes, \
                 expected a size that is a multiple of 4",
                buffer.size()
            ));
        }
        usize::try_from((bytes.end - bytes.start) / size)
            .or_else(|_| bad(format!("bytes {bytes:?} do not fit this machine's addresses")))
    }

    /// The region of a view's bytes.
    pub(crate) fn region<'a>(&self, view: &View<'a>) -> Result<Region<'a>> {
        match view.place() {
            Place::Object { object, offset, .. } => {
                self.make_region(object, offset, view.dtype(), view.len())
            }
            Place::Nowhere => Ok(Region::nowhere(view.dtype(), view.len())),
            _ => Err(self.foreign()),
        }
    }

    /// The region of a mutable view's bytes.
    pub(crate) fn region_mut<'a>(&self, view: ViewMut<'a>) -> Result<Region<'a>> {
        let (dtype, len) = (view.dtype(), view.len());
        match view.into_place() {
            PlaceMut::Object { object, offset, .. } => self.make_region(object, offset, dtype, len),
            PlaceMut::Nowhere => Ok(Region::nowhere(dtype, len)),
            _ => Err(self.foreign()),
        }
    }

    /// The region of an optional argument that is read; nothing for one that is absent.
    pub(crate) fn optional<'a>(&self, view: &Option<View<'a>>) -> Result<Region<'a>> {
        view.as_ref().map_or(Ok(Region::nothing()), |view| self.region(view))
    }

    /// The region of an optional argument that is written; nothing for one that is absent.
    pub(crate) fn optional_mut<'a>(&self, view: Option<ViewMut<'a>>) -> Result<Region<'a>> {
        view.map_or(Ok(Region::nothing()), |view| self.region_mut(view))
    }

    /// The region of a workspace, in 32-bit words; an empty region for an empty workspace.
    pub(crate) fn region_of_workspace<'a>(&self, workspace: ViewMut<'a>) -> Result<Region<'a>> {
        let bytes = (workspace.len() * workspace.dtype().size()) as u64;
        match workspace.into_place() {
            PlaceMut::Object { object, offset, .. } => {
                if !offset.is_multiple_of(4) {
                    let words =
                        format!("the workspace starts at byte {offset}, expected a multiple of 4");
                    return Err(self.error(Status::BadParam, words));
                }
                self.make_region(object, offset, DType::U32, (bytes / 4) as usize)
            }
            PlaceMut::Nowhere => Ok(Region::nowhere(DType::U32, (bytes / 4) as usize)),
            _ if bytes == 0 => Ok(Region::nothing()),
            _ => Err(self.foreign()),
        }
    }

    fn make_region<'a>(
        &self,
        object: &'a (dyn Any + Send + Sync),
        offset: u64,
        dtype: DType,
        len: usize,
    ) -> Result<Region<'a>> {
        let buffer = object.downcast_ref::<wgpu::Buffer>().ok_or_else(|| self.foreign())?;
        let size = dtype.size() as u64;
        let bytes = (len as u64).saturating_mul(size);
        if offset.checked_add(bytes).is_none_or(|end| end > buffer.size()) {
            let words = format!(
                "{len} elements of {dtype} from byte {offset} on do not fit in a buffer of {} bytes",
                buffer.size()
            );
            return Err(self.error(Status::BadTensorShape, words));
        }
        Ok(Region { buffer: Some(buffer), offset, bytes, size })
    }

    fn foreign(&self) -> Error {
        self.error(Status::DeviceTypeNotSupported, "memory that is no wgpu buffer was passed")
    }
}

/// A byte range of a buffer with the size of its elements.
#[derive(Clone, Copy)]
pub(crate) struct Region<'a> {
    pub(crate) buffer: Option<&'a wgpu::Buffer>,
    /// First byte in the buffer.
    pub(crate) offset: u64,
    /// Length in bytes.
    pub(crate) bytes: u64,
    /// Bytes of an element.
    pub(crate) size: u64,
}

impl<'a> Region<'a> {
    /// A region without elements, for an absent argument.
    pub(crate) fn nothing() -> Self {
        Region { buffer: None, offset: 0, bytes: 0, size: 4 }
    }

    /// Elements in memory that is not there, where the dispatches of a call are listed.
    fn nowhere(dtype: DType, len: usize) -> Self {
        let size = dtype.size() as u64;
        Region { buffer: None, offset: 0, bytes: (len as u64).saturating_mul(size), size }
    }

    /// Elements `start .. start + len` of this region, cut off at the region's end.
    pub(crate) fn elements(self, start: u64, len: u64) -> Self {
        let skip = (start * self.size).min(self.bytes);
        let bytes = (len * self.size).min(self.bytes - skip);
        Region { offset: self.offset + skip, bytes, ..self }
    }

    /// Rows `start .. start + count` of a matrix that starts where this region starts.
    pub(crate) fn rows(self, matrix: &Matrix, start: u64, count: u64) -> Self {
        let stride = matrix.row_stride as u64;
        let span = if count == 0 { 0 } else { (count - 1) * stride + matrix.cols as u64 };
        self.elements(start * stride, span)
    }

    /// The same bytes as 32-bit words.
    pub(crate) fn words(self) -> Self {
        self.sized(4)
    }

    /// The same bytes as elements of `size` bytes. The region must be aligned to a multiple of
    /// `size`.
    pub(crate) fn sized(self, size: u64) -> Self {
        Region { size, ..self }
    }

    /// Splits off the first `len` elements, to divide a workspace into parts.
    pub(crate) fn take(&mut self, len: u64) -> Region<'a> {
        let first = self.elements(0, len);
        *self = self.elements(len, u64::MAX / 16);
        first
    }

    /// The index, from the start of the binding, of this region's first element.
    pub(crate) fn first(&self) -> u32 {
        if self.bytes == 0 { 0 } else { (self.offset % ALIGNMENT / self.size) as u32 }
    }
}

/// Memory that this backend allocated.
pub(crate) struct Allocation {
    gpu: Wgpu,
    buffer: wgpu::Buffer,
    size: usize,
}

impl Allocation {
    pub(crate) fn new(gpu: &Wgpu, size: usize) -> Result<Self> {
        let limit = gpu.0.device.limits().max_buffer_size;
        let bytes = (size as u64).max(16).checked_next_multiple_of(16).unwrap_or(u64::MAX);
        if bytes > limit {
            let words = format!("{size} bytes were asked for, but a buffer holds at most {limit}");
            return Err(gpu.failure(ErrorKind::OutOfMemory, words));
        }
        let buffer = gpu.guarded(|| {
            Ok(gpu.0.device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("spec memory"),
                size: bytes,
                usage: BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST,
                mapped_at_creation: false,
            }))
        })?;
        Ok(Allocation { gpu: gpu.clone(), buffer, size })
    }

    /// The queue that orders what uses this memory.
    pub(crate) fn queue(&self) -> QueueId {
        self.gpu.queue_id()
    }
}

impl Memory for Allocation {
    fn size(&self) -> usize {
        self.size
    }

    fn view(&self, dtype: DType, len: usize) -> View<'_> {
        assert!(len.saturating_mul(dtype.size()) <= self.size, "{len} {dtype} do not fit");
        // SAFETY: this device made the buffer, and the buffer is used on the device's one queue.
        unsafe {
            View::from_object(dtype, len, self.gpu.info().device, &self.buffer, 0)
                .of_queue(self.queue())
        }
    }

    fn view_mut(&mut self, dtype: DType, len: usize) -> ViewMut<'_> {
        assert!(len.saturating_mul(dtype.size()) <= self.size, "{len} {dtype} do not fit");
        // SAFETY: as in `view`.
        unsafe {
            ViewMut::from_object(dtype, len, self.gpu.info().device, &self.buffer, 0)
                .of_queue(self.queue())
        }
    }

    fn write_at(&mut self, offset: usize, bytes: &[u8]) -> Result<()> {
        self.check_range(offset, bytes.len(), "written to")?;
        let whole = bytes.len() / 4 * 4;
        let mut last = [0; 4];
        let rest = &bytes[whole..];
        let end = (offset + whole) as u64;
        if !rest.is_empty() {
            // Queues copy whole 32-bit words: keep the bytes behind the last byte to write.
            self.gpu.guarded(|| self.copy_back(end, &mut last))?;
            last[..rest.len()].copy_from_slice(rest);
        }
        let queue = &self.gpu.0.queue;
        self.gpu.guarded(|| {
            for (i, chunk) in bytes[..whole].chunks(CHUNK).enumerate() {
                queue.write_buffer(&self.buffer, (offset + i * CHUNK) as u64, chunk);
                queue.submit(None);
            }
            if !rest.is_empty() {
                queue.write_buffer(&self.buffer, end, &last);
                queue.submit(None);
            }
            Ok(())
        })
    }

    fn read_at(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        self.check_range(offset, bytes.len(), "read of")?;
        self.gpu.guarded(|| {
            for (i, chunk) in bytes.chunks_mut(CHUNK).enumerate() {
                self.copy_back((offset + i * CHUNK) as u64, chunk)?;
            }
            if bytes.is_empty() { self.gpu.wait() } else { Ok(()) }
        })
    }
}

impl Allocation {
    /// Refuses bytes beyond the end, and offsets at which queues cannot start a copy.
    fn check_range(&self, offset: usize, len: usize, doing: &str) -> Result<()> {
        let fits = offset.checked_add(len).is_some_and(|end| end <= self.size);
        if fits && offset.is_multiple_of(4) {
            return Ok(());
        }
        let words = if offset == 0 {
            format!("{len} bytes were {doing} {}", self.size)
        } else {
            format!("{len} bytes from byte {offset} on were {doing} {}", self.size)
        };
        Err(self.gpu.error(Status::BadTensorShape, words))
    }

    /// Reads from `offset` on, a multiple of 4. The buffer's size is a multiple of 16, so the last
    /// 32-bit word is always there.
    fn copy_back(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let gpu = &self.gpu;
        let size = (bytes.len() as u64).next_multiple_of(4);
        let staging = gpu.0.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("spec staging"),
            size,
            usage: BufferUsages::MAP_READ | BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        let mut encoder = gpu.0.device.create_command_encoder(&Default::default());
        encoder.copy_buffer_to_buffer(&self.buffer, offset, &staging, 0, size);
        gpu.0.queue.submit([encoder.finish()]);
        gpu.read_mapped(&staging, bytes)
    }
}

impl Wgpu {
    /// Waits for all submitted work and copies the start of a `MAP_READ` buffer to `bytes`.
    pub(crate) fn read_mapped(&self, staging: &wgpu::Buffer, bytes: &mut [u8]) -> Result<()> {
        let (done, result) = std::sync::mpsc::channel();
        staging.map_async(wgpu::MapMode::Read, .., move |mapped| {
            // The receiver is gone only where waiting failed.
            let _ = done.send(mapped);
        });
        self.wait()?;
        let failed = |words: String| self.error(Status::InternalError, words);
        // The work is done, but another thread that also polls the device may be running the
        // callback.
        match result.recv_timeout(CALLBACK) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(failed(format!("reading back: {error}"))),
            Err(_) => return Err(failed("reading back: the device never answered".to_owned())),
        }
        let mapped = staging.get_mapped_range(..).map_err(|e| failed(e.to_string()))?;
        bytes.copy_from_slice(&mapped[..bytes.len()]);
        drop(mapped);
        staging.unmap();
        Ok(())
    }
}
