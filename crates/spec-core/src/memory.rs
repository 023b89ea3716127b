//! Views: where a tensor's elements are, without owning them.
//!
//! Memory comes in three kinds, whatever the vendor of a device: host memory, a raw
//! address in a device's memory (as in CUDA), and an opaque buffer
//! object with an offset (as in wgpu). A [`View`] or [`ViewMut`] is memory of one of the three
//! kinds with an element type and a length, so callers pass the memory that they
//! already hold, and nothing is copied.

use std::any::Any;
use std::fmt;

use crate::{DType, Device, Element, QueueId, Result, dtype};

/// The place of a view's first byte.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub enum Place<'a> {
    /// Host memory.
    Host(&'a [u8]),
    /// A raw address in a device's memory.
    Address {
        /// The device that memory belongs to.
        device: Device,
        /// The address, as the device's API has it.
        address: u64,
    },
    /// A byte offset into a backend's buffer object.
    Object {
        /// The device that object belongs to.
        device: Device,
        /// The object; its backend knows the type.
        object: &'a (dyn Any + Send + Sync),
        /// Offset of the first byte.
        offset: u64,
    },
    /// Memory that is not there, where the kernels of a call are listed
    /// ([`Kind::Route`](crate::stream::Kind::Route)).
    Nowhere,
}

/// As [`Place`], for memory that is written.
#[non_exhaustive]
pub enum PlaceMut<'a> {
    /// Host memory.
    Host(&'a mut [u8]),
    /// A raw address in a device's memory.
    Address {
        /// The device that memory belongs to.
        device: Device,
        /// The address, as the device's API has it.
        address: u64,
    },
    /// A byte offset into a backend's buffer object.
    Object {
        /// The device that object belongs to.
        device: Device,
        /// The object; its backend knows the type.
        object: &'a (dyn Any + Send + Sync),
        /// Offset of the first byte.
        offset: u64,
    },
    /// Memory that is not there, where the kernels of a call are listed
    /// ([`Kind::Route`](crate::stream::Kind::Route)).
    Nowhere,
}

/// Elements that an operator reads.
#[derive(Clone, Copy)]
pub struct View<'a> {
    dtype: DType,
    len: usize,
    place: Place<'a>,
    queue: Option<QueueId>,
}

/// Elements that an operator writes.
pub struct ViewMut<'a> {
    dtype: DType,
    len: usize,
    place: PlaceMut<'a>,
    queue: Option<QueueId>,
}

impl<'a> View<'a> {
    /// `len` elements at a raw address: a device's, or, on [`Device::CPU`], a
    /// pointer whose provenance was exposed.
    ///
    /// # Safety
    /// Until the work that uses the view has finished on the device, the
    /// address must be valid on `device` for reads of `len` elements of
    /// `dtype`. The caller orders every other use of that memory against the
    /// work: writes by other streams, by the host, and by replays of captured
    /// graphs.
    pub unsafe fn from_address(dtype: DType, len: usize, device: Device, address: u64) -> Self {
        let bytes = len.saturating_mul(dtype.size());
        let place = match device {
            Device::CPU if bytes == 0 => Place::Host(&[]),
            Device::CPU if address != 0 => {
                let start = std::ptr::with_exposed_provenance(address as usize);
                // SAFETY: the caller promises that the address is valid for reads of `len`
                // elements, which are `bytes` bytes, until the work is done.
                Place::Host(unsafe { std::slice::from_raw_parts(start, bytes) })
            }
            _ => Place::Address { device, address },
        };
        View { dtype, len, place, queue: None }
    }

    /// Host memory as elements of `dtype`; bytes after the last whole element are left out.
    pub fn from_bytes(dtype: DType, bytes: &'a [u8]) -> Self {
        let len = bytes.len() / dtype.size();
        let place = Place::Host(&bytes[..len * dtype.size()]);
        View { dtype, len, place, queue: None }
    }

    /// `len` elements from byte `offset` of a backend's buffer object. For
    /// backends, which check the type and size of `object` when it is used.
    ///
    /// # Safety
    /// `object` belongs to `device`.
    pub unsafe fn from_object(
        dtype: DType,
        len: usize,
        device: Device,
        object: &'a (dyn Any + Send + Sync),
        offset: u64,
    ) -> Self {
        View { dtype, len, place: Place::Object { device, object, offset }, queue: None }
    }

    pub(crate) fn nowhere(dtype: DType, len: usize) -> Self {
        View { dtype, len, place: Place::Nowhere, queue: None }
    }

    /// The same elements, as memory that belongs to `queue`. For backends, which mark the memory
    /// that they allocated.
    ///
    /// # Safety
    /// That queue orders every other use of this memory.
    pub unsafe fn of_queue(self, queue: QueueId) -> Self {
        View { queue: Some(queue), ..self }
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The place of the first element.
    pub fn place(&self) -> Place<'a> {
        self.place
    }

    /// The first `mid` elements, and the others: for arguments that lie in one
    /// allocation.
    ///
    /// # Panics
    /// If there are fewer than `mid` elements.
    pub fn split_at(self, mid: usize) -> (Self, Self) {
        let bytes = split(self.dtype, self.len, mid);
        let (first, rest) = match self.place {
            Place::Host(all) => {
                let (first, rest) = all.split_at(bytes);
                (Place::Host(first), Place::Host(rest))
            }
            Place::Address { device, address } => {
                (self.place, Place::Address { device, address: address + bytes as u64 })
            }
            Place::Object { device, object, offset } => {
                (self.place, Place::Object { device, object, offset: offset + bytes as u64 })
            }
            Place::Nowhere => (Place::Nowhere, Place::Nowhere),
        };
        (View { len: mid, place: first, ..self }, View { len: self.len - mid, place: rest, ..self })
    }

    /// The same bytes as elements of another type; bytes after the last whole element are left
    /// out.
    pub fn cast(self, dtype: DType) -> Self {
        let len = self.len * self.dtype.size() / dtype.size();
        let mut view = View { dtype, ..self };
        view.truncate(len);
        view
    }

    /// The elements as a slice; `None` where they are not in host memory, are of another type,
    /// or are not aligned for `T`.
    pub fn host<T: Element>(&self) -> Option<&'a [T]> {
        match self.place {
            Place::Host(bytes) if self.dtype == T::DTYPE => dtype::from_bytes(bytes),
            _ => None,
        }
    }
}

impl<'a> ViewMut<'a> {
    /// `len` elements at a raw address: a device's, or, on [`Device::CPU`], a
    /// pointer whose provenance was exposed.
    ///
    /// # Safety
    /// Until the work that uses the view has finished on the device, the
    /// address must be valid on `device` for reads and writes of `len` elements
    /// of `dtype`. No other view of the same call may cover a part of that memory. The
    /// caller orders every other use of that memory against the work: by other
    /// streams, by the host, and by replays of captured graphs.
    pub unsafe fn from_address(dtype: DType, len: usize, device: Device, address: u64) -> Self {
        let bytes = len.saturating_mul(dtype.size());
        let place = match device {
            Device::CPU if bytes == 0 => PlaceMut::Host(&mut []),
            Device::CPU if address != 0 => {
                let start = std::ptr::with_exposed_provenance_mut(address as usize);
                // SAFETY: the caller promises that the address is valid for reads and writes of
                // `len` elements, which are `bytes` bytes, until the work is done, and that
                // nobody else uses this memory meanwhile.
                PlaceMut::Host(unsafe { std::slice::from_raw_parts_mut(start, bytes) })
            }
            _ => PlaceMut::Address { device, address },
        };
        ViewMut { dtype, len, place, queue: None }
    }

    /// Host memory as elements of `dtype`; bytes after the last whole element are left out.
    pub fn from_bytes(dtype: DType, bytes: &'a mut [u8]) -> Self {
        let len = bytes.len() / dtype.size();
        let place = PlaceMut::Host(&mut bytes[..len * dtype.size()]);
        ViewMut { dtype, len, place, queue: None }
    }

    /// `len` elements from byte `offset` of a backend's buffer object. For
    /// backends, which check the type and size of `object` when it is used.
    ///
    /// # Safety
    /// `object` belongs to `device`.
    pub unsafe fn from_object(
        dtype: DType,
        len: usize,
        device: Device,
        object: &'a (dyn Any + Send + Sync),
        offset: u64,
    ) -> Self {
        ViewMut { dtype, len, place: PlaceMut::Object { device, object, offset }, queue: None }
    }

    pub(crate) fn nowhere(dtype: DType, len: usize) -> Self {
        ViewMut { dtype, len, place: PlaceMut::Nowhere, queue: None }
    }

    /// The same elements, as memory that belongs to `queue`. For backends, which mark the memory
    /// that they allocated.
    ///
    /// # Safety
    /// That queue orders every other use of this memory.
    pub unsafe fn of_queue(self, queue: QueueId) -> Self {
        ViewMut { queue: Some(queue), ..self }
    }

    /// A view without bytes: the workspace of an operator that needs none.
    pub fn empty() -> ViewMut<'static> {
        ViewMut { dtype: DType::U8, len: 0, place: PlaceMut::Host(&mut []), queue: None }
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The place of the first element, borrowed from the view.
    pub fn place(&mut self) -> PlaceMut<'_> {
        match &mut self.place {
            PlaceMut::Host(bytes) => PlaceMut::Host(bytes),
            PlaceMut::Address { device, address } => {
                PlaceMut::Address { device: *device, address: *address }
            }
            PlaceMut::Object { device, object, offset } => {
                PlaceMut::Object { device: *device, object: *object, offset: *offset }
            }
            PlaceMut::Nowhere => PlaceMut::Nowhere,
        }
    }

    /// The place of the first element; consumes the view.
    pub fn into_place(self) -> PlaceMut<'a> {
        self.place
    }

    /// The first `mid` elements, and the others: for arguments that lie in one
    /// allocation.
    ///
    /// # Panics
    /// If there are fewer than `mid` elements.
    pub fn split_at(self, mid: usize) -> (Self, Self) {
        let ViewMut { dtype, len, place, queue } = self;
        let bytes = split(dtype, len, mid);
        let (first, rest) = match place {
            PlaceMut::Host(all) => {
                let (first, rest) = all.split_at_mut(bytes);
                (PlaceMut::Host(first), PlaceMut::Host(rest))
            }
            PlaceMut::Address { device, address } => (
                PlaceMut::Address { device, address },
                PlaceMut::Address { device, address: address + bytes as u64 },
            ),
            PlaceMut::Object { device, object, offset } => (
                PlaceMut::Object { device, object, offset },
                PlaceMut::Object { device, object, offset: offset + bytes as u64 },
            ),
            PlaceMut::Nowhere => (PlaceMut::Nowhere, PlaceMut::Nowhere),
        };
        (
            ViewMut { dtype, len: mid, place: first, queue },
            ViewMut { dtype, len: len - mid, place: rest, queue },
        )
    }

    /// The same bytes as elements of another type; bytes after the last whole element are left
    /// out.
    pub fn cast(mut self, dtype: DType) -> Self {
        let len = self.len * self.dtype.size() / dtype.size();
        self.dtype = dtype;
        self.truncate(len);
        self
    }

    /// The elements as a slice; `None` where they are not in host memory, are of another type,
    /// or are not aligned for `T`.
    pub fn host<T: Element>(self) -> Option<&'a mut [T]> {
        match self.place {
            PlaceMut::Host(bytes) if self.dtype == T::DTYPE => dtype::from_bytes_mut(bytes),
            _ => None,
        }
    }
}

/// The number of bytes before element `mid` of `len` elements. Panics if `mid` exceeds `len`.
fn split(dtype: DType, len: usize, mid: usize) -> usize {
    assert!(mid <= len, "{mid} of {len} elements");
    mid * dtype.size()
}

/// Writes where memory is, never its contents.
fn fmt_place(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    device: Device,
    start: u64,
    len: impl fmt::Display,
) -> fmt::Result {
    write!(f, "{name}({len} at {start:#x} on {device})")
}

impl fmt::Debug for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let view = View { dtype: DType::U8, len: 0, place: *self, queue: None };
        let Location { device, start, .. } = view.location();
        fmt_place(f, "Place", device, start, "bytes")
    }
}

impl fmt::Debug for PlaceMut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlaceMut::Host(bytes) => Place::Host(bytes).fmt(f),
            &PlaceMut::Address { device, address } => Place::Address { device, address }.fmt(f),
            &PlaceMut::Object { device, object, offset } => {
                Place::Object { device, object, offset }.fmt(f)
            }
            PlaceMut::Nowhere => Place::Nowhere.fmt(f),
        }
    }
}

impl fmt::Debug for View<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Location { dtype, len, device, start, .. } = self.location();
        fmt_place(f, "View", device, start, format_args!("{len} x {dtype}"))
    }
}

impl fmt::Debug for ViewMut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Location { dtype, len, device, start, .. } = self.location();
        fmt_place(f, "ViewMut", device, start, format_args!("{len} x {dtype}"))
    }
}

/// The facts about a [`View`] or [`ViewMut`] that the checks need.
pub(crate) struct Location {
    pub(crate) dtype: DType,
    pub(crate) len: usize,
    /// The device; [`Device::CPU`] for host memory.
    pub(crate) device: Device,
    /// The queue that the memory belongs to, where a handle allocated it.
    pub(crate) queue: Option<QueueId>,
    /// The buffer object that `start` is an offset in; 0 where `start` is an address.
    pub(crate) object: usize,
    /// Address or offset of the first byte.
    pub(crate) start: u64,
    /// Whether the address is null.
    pub(crate) null: bool,
}

/// A number that tells buffer objects apart.
fn address_of(object: &(dyn Any + Send + Sync)) -> usize {
    std::ptr::from_ref(object).addr()
}

pub(crate) trait Locate {
    fn location(&self) -> Location;

    /// Keeps the first `len` elements; the view must have at least `len`.
    fn truncate(&mut self, len: usize);
}

impl Locate for View<'_> {
    fn location(&self) -> Location {
        let (device, object, start, null) = match self.place {
            Place::Host(bytes) => (Device::CPU, 0, bytes.as_ptr().addr() as u64, false),
            Place::Address { device, address } => (device, 0, address, address == 0),
            Place::Object { device, object, offset } => (device, address_of(object), offset, false),
            // A call refuses it as it refuses a null pointer.
            Place::Nowhere => (Device::CPU, 0, 0, true),
        };
        let View { dtype, len, queue, .. } = *self;
        Location { dtype, len, device, queue, object, start, null }
    }

    fn truncate(&mut self, len: usize) {
        self.len = len;
        if let Place::Host(bytes) = &mut self.place {
            *bytes = &bytes[..len * self.dtype.size()];
        }
    }
}

impl Locate for ViewMut<'_> {
    fn location(&self) -> Location {
        let (device, object, start, null) = match &self.place {
            PlaceMut::Host(bytes) => (Device::CPU, 0, bytes.as_ptr().addr() as u64, false),
            PlaceMut::Address { device, address } => (*device, 0, *address, *address == 0),
            PlaceMut::Object { device, object, offset } => {
                (*device, address_of(*object), *offset, false)
            }
            PlaceMut::Nowhere => (Device::CPU, 0, 0, true),
        };
        let ViewMut { dtype, len, queue, .. } = *self;
        Location { dtype, len, device, queue, object, start, null }
    }

    fn truncate(&mut self, len: usize) {
        self.len = len;
        if let PlaceMut::Host(bytes) = &mut self.place {
            let whole = std::mem::take(bytes);
            *bytes = &mut whole[..len * self.dtype.size()];
        }
    }
}

impl<'a> From<ViewMut<'a>> for View<'a> {
    fn from(view: ViewMut<'a>) -> Self {
        let ViewMut { dtype, len, place, queue } = view;
        let place = match place {
            PlaceMut::Host(bytes) => Place::Host(bytes),
            PlaceMut::Address { device, address } => Place::Address { device, address },
            PlaceMut::Object { device, object, offset } => Place::Object { device, object, offset },
            PlaceMut::Nowhere => Place::Nowhere,
        };
        View { dtype, len, place, queue }
    }
}

impl<'a, T: Element> From<&'a [T]> for View<'a> {
    fn from(slice: &'a [T]) -> Self {
        let place = Place::Host(dtype::as_bytes(slice));
        View { dtype: T::DTYPE, len: slice.len(), place, queue: None }
    }
}

impl<'a, T: Element> From<&'a Vec<T>> for View<'a> {
    fn from(vec: &'a Vec<T>) -> Self {
        vec.as_slice().into()
    }
}

impl<'a, T: Element, const N: usize> From<&'a [T; N]> for View<'a> {
    fn from(array: &'a [T; N]) -> Self {
        array.as_slice().into()
    }
}

impl<'a> From<&'a [bool]> for View<'a> {
    fn from(slice: &'a [bool]) -> Self {
        View::from_bytes(DType::Bool, dtype::bool_bytes(slice))
    }
}

impl<'a, T: Element> From<&'a mut [T]> for ViewMut<'a> {
    fn from(slice: &'a mut [T]) -> Self {
        let len = slice.len();
        let place = PlaceMut::Host(dtype::as_bytes_mut(slice));
        ViewMut { dtype: T::DTYPE, len, place, queue: None }
    }
}

impl<'a, T: Element> From<&'a mut Vec<T>> for ViewMut<'a> {
    fn from(vec: &'a mut Vec<T>) -> Self {
        vec.as_mut_slice().into()
    }
}

impl<'a, T: Element, const N: usize> From<&'a mut [T; N]> for ViewMut<'a> {
    fn from(array: &'a mut [T; N]) -> Self {
        array.as_mut_slice().into()
    }
}

/// Memory that a backend allocated. A [`Buffer`](crate::Buffer) owns one.
pub trait Memory: Any + Send + Sync {
    /// The size asked for, in bytes.
    fn size(&self) -> usize;

    /// The first `len` elements, for reading.
    ///
    /// # Panics
    /// If they do not fit in [`size`](Self::size).
    fn view(&self, dtype: DType, len: usize) -> View<'_>;

    /// The first `len` elements, for writing.
    ///
    /// # Panics
    /// If they do not fit in [`size`](Self::size).
    fn view_mut(&mut self, dtype: DType, len: usize) -> ViewMut<'_>;

    /// Copies host bytes to this memory, from byte `offset` on, after the work enqueued on the
    /// backend's own stream. `offset` is a multiple of 4.
    ///
    /// # Errors
    /// Status 11 where the bytes do not fit, 1 when the device fails.
    fn write_at(&mut self, offset: usize, bytes: &[u8]) -> Result<()>;

    /// Waits for the work enqueued on the backend's own stream, then copies bytes of this
    /// memory, from byte `offset` on, to the host. `offset` is a multiple of 4.
    ///
    /// # Errors
    /// Status 11 where this memory has fewer bytes from `offset` on, 1 when the device fails.
    fn read_at(&self, offset: usize, bytes: &mut [u8]) -> Result<()>;

    /// [`write_at`](Self::write_at) offset 0.
    ///
    /// # Errors
    /// As there.
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.write_at(0, bytes)
    }

    /// [`read_at`](Self::read_at) offset 0.
    ///
    /// # Errors
    /// As there.
    fn read(&self, bytes: &mut [u8]) -> Result<()> {
        self.read_at(0, bytes)
    }
}

/// Page-locked host memory, with which copies to and from a device's memory are fastest; see
/// [`Backend::staging`](crate::Backend::staging).
pub trait Staging: Send + Sync {
    /// All bytes of the memory, aligned to at least 64 bytes.
    fn bytes(&self) -> &[u8];

    /// All bytes of the memory, for writing.
    fn bytes_mut(&mut self) -> &mut [u8];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_are_split_and_cast() {
        let mut words = [1_u32, 2, 3, 4, 5];
        let (first, rest) = View::from(&words).split_at(2);
        assert_eq!((first.host(), rest.host()), (Some(&[1_u32, 2][..]), Some(&[3_u32, 4, 5][..])));
        let pairs = rest.cast(DType::U64);
        assert_eq!((pairs.len(), pairs.dtype()), (1, DType::U64));
        let (first, rest) = ViewMut::from(&mut words).split_at(4);
        assert_eq!(first.cast(DType::U8).len(), 16);
        rest.host::<u32>().expect("of that type")[0] = 9;
        assert_eq!(words, [1, 2, 3, 4, 9]);

        let device = Device::new("cuda", 1);
        // SAFETY: the address is never dereferenced: the test only splits and casts the view.
        let view = unsafe { View::from_address(DType::I32, 10, device, 0x1000) };
        let (first, rest) = view.split_at(3);
        assert_eq!(format!("{first:?}"), "View(3 x i32 at 0x1000 on cuda:1)");
        assert_eq!(format!("{:?}", rest.cast(DType::F16)), "View(14 x f16 at 0x100c on cuda:1)");
        // SAFETY: no backend uses the object: the test only splits the view.
        let view = unsafe { ViewMut::from_object(DType::U8, 8, device, &5_u8, 4) };
        let (_, rest) = view.split_at(3);
        let rest = View::from(rest);
        assert!(matches!(rest.place(), Place::Object { offset: 7, .. }) && rest.len() == 5);
    }

    #[test]
    #[should_panic(expected = "6 of 5 elements")]
    fn views_are_not_split_behind_their_end() {
        View::from(&[0_u8; 5]).split_at(6);
    }
}
