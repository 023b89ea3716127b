//! Memory that a handle allocated.

use std::marker::PhantomData;

use crate::{
    Backend, Descriptor, Element, Error, ErrorKind, Memory, Operator, Result, Status, View,
    ViewMut, dtype,
};

/// Elements in a device's memory, owned.
///
/// For callers who hold no memory on the device yet; callers who do can pass a view of their
/// own memory instead. A reference to a buffer converts into a [`View`], a mutable reference
/// into a [`ViewMut`].
pub struct Buffer<T: Element> {
    memory: Box<dyn Memory>,
    len: usize,
    element: PhantomData<T>,
}

impl<O: Operator> Descriptor<O> {
    /// Allocates a workspace on the descriptor's device. Calls that use the same workspace must
    /// not run at the same time.
    ///
    /// # Errors
    /// Status 1 when there is not enough memory.
    pub fn workspace<B: Backend + ?Sized>(&self, backend: &B) -> Result<Buffer<u8>> {
        Buffer::allocate(backend, self.workspace_size())
    }
}

impl<T: Element> Buffer<T> {
    /// Allocates `len` elements on a device, with unspecified contents.
    ///
    /// # Errors
    /// Status 1 when there is not enough memory.
    pub fn allocate<B: Backend + ?Sized>(backend: &B, len: usize) -> Result<Self> {
        let bytes = len.checked_mul(size_of::<T>()).ok_or_else(|| {
            Error::failure(
                backend.info().device,
                ErrorKind::OutOfMemory,
                format!("{len} elements of {} are more than memory can hold", T::DTYPE),
            )
        })?;
        Ok(Buffer { memory: backend.allocate_bytes(bytes)?, len, element: PhantomData })
    }

    /// Moves the buffer, which another handle on the same device allocated, to the queue of
    /// `backend`: see [`Backend::adopt`].
    ///
    /// # Errors
    /// As [`Backend::adopt`].
    pub fn adopted_by<B: Backend + ?Sized>(self, backend: &B) -> Result<Self> {
        Ok(Buffer { memory: backend.adopt(self.memory)?, ..self })
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements as an argument that an operator reads.
    pub fn view(&self) -> View<'_> {
        self.memory.view(T::DTYPE, self.len)
    }

    /// The elements as an argument that an operator writes.
    pub fn view_mut(&mut self) -> ViewMut<'_> {
        self.memory.view_mut(T::DTYPE, self.len)
    }

    /// Copies `data` to the start of the buffer.
    ///
    /// # Errors
    /// Status 11 if `data` is longer than the buffer, 1 when the device fails.
    pub fn write(&mut self, data: &[T]) -> Result<()> {
        if data.len() > self.len {
            return Err(Error::Argument {
                status: Status::BadTensorShape,
                operator: "write",
                argument: "data",
                value: format!("{} elements long", data.len()),
                expected: format!("at most the {} of the buffer", self.len).into(),
            });
        }
        self.memory.write(dtype::as_bytes(data))
    }

    /// Copies `data` to the elements from `start` on. The other elements stay. The copy is ordered
    /// after the work that was enqueued on the queue of the handle that allocated the buffer.
    ///
    /// # Errors
    /// Status 11 where the buffer does not hold as many there, 1 when the device
    /// fails.
    pub fn write_at(&mut self, start: usize, data: &[T]) -> Result<()> {
        self.check_range("write_at", start, data.len())?;
        // Devices copy words: of a word that elements before `start` share, the first part is read
        // and written again.
        let (size, offset) = (size_of::<T>(), start * size_of::<T>());
        let skip = offset % 4 / size;
        if skip == 0 {
            return self.memory.write_at(offset, dtype::as_bytes(data));
        }
        let mut whole = vec![T::default(); skip];
        self.memory.read_at(offset - skip * size, dtype::as_bytes_mut(&mut whole))?;
        whole.extend_from_slice(data);
        self.memory.write_at(offset - skip * size, dtype::as_bytes(&whole))
    }

    /// Waits for the queue of the handle that allocated the buffer, and copies
    /// all elements to the host.
    ///
    /// # Errors
    /// Status 1 when the device fails.
    pub fn to_vec(&self) -> Result<Vec<T>> {
        let mut data = vec![T::default(); self.len];
        self.memory.read(dtype::as_bytes_mut(&mut data))?;
        Ok(data)
    }

    /// As [`to_vec`](Self::to_vec), but copies only `data.len()` elements, from element `start` on.
    ///
    /// # Errors
    /// Status 11 where the buffer has fewer than `data.len()` elements from `start` on, 1 when
    /// the device fails.
    pub fn read(&self, start: usize, data: &mut [T]) -> Result<()> {
        self.check_range("read", start, data.len())?;
        // Devices copy from a multiple of 4 bytes on. If the first element does not start at one,
        // the copy starts at the multiple of 4 before it.
        let (size, offset) = (size_of::<T>(), start * size_of::<T>());
        let skip = offset % 4 / size;
        if skip == 0 {
            return self.memory.read_at(offset, dtype::as_bytes_mut(data));
        }
        let mut whole = vec![T::default(); skip + data.len()];
        self.memory.read_at(offset - skip * size, dtype::as_bytes_mut(&mut whole))?;
        data.copy_from_slice(&whole[skip..]);
        Ok(())
    }

    /// Refuses elements that the buffer does not hold.
    fn check_range(&self, operator: &'static str, start: usize, count: usize) -> Result<()> {
        if start.checked_add(count).is_some_and(|end| end <= self.len) {
            return Ok(());
        }
        Err(Error::Argument {
            status: Status::BadTensorShape,
            operator,
            argument: "data",
            value: format!("{count} elements from element {start} on"),
            expected: format!("at most the {} of the buffer", self.len).into(),
        })
    }
}

impl<T: Element> std::fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} x {})", self.len, T::DTYPE)
    }
}

impl<'a, T: Element> From<&'a Buffer<T>> for View<'a> {
    fn from(buffer: &'a Buffer<T>) -> Self {
        buffer.view()
    }
}

impl<'a, T: Element> From<&'a mut Buffer<T>> for ViewMut<'a> {
    fn from(buffer: &'a mut Buffer<T>) -> Self {
        buffer.view_mut()
    }
}
