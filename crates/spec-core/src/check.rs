//! The one place that checks descriptors and buffers, for every operator.

use std::borrow::Cow;
use std::fmt::Display;

use crate::argument::{self, Address, Argument, DtypeRule};
use crate::memory::{Locate, Location};
use crate::{DType, Device, Error, QueueId, Result, Status, TensorDesc, View, ViewMut};

/// The largest size that an i32 holds.
pub(crate) const MAX_I32: usize = i32::MAX.unsigned_abs() as usize;

/// A validated matrix: innermost stride 1, rows `row_stride` elements apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matrix {
    /// The element type.
    pub dtype: DType,
    /// The number of rows.
    pub rows: usize,
    /// The number of elements in a row.
    pub cols: usize,
    /// Elements from the start of a row to the start of the next row; 0 for a matrix without
    /// elements or with a single row.
    pub row_stride: usize,
}

/// A validated vector with stride 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vector {
    /// The element type.
    pub dtype: DType,
    /// The number of elements.
    pub len: usize,
}

impl TensorDesc {
    /// A tensor whose shape and strides were checked ([`Checker::shapes`]); a vector counts as a
    /// matrix of one column.
    pub(crate) fn matrix(&self) -> Matrix {
        let (rows, cols) = match *self.shape() {
            [rows, cols, ..] => (rows, cols),
            [rows] => (rows, 1),
            [] => (1, 1),
        };
        let stride = self.strides().first().map_or(0, |stride| stride.unsigned_abs());
        let row_stride = match self.shape().len() {
            1 => 1,
            _ if rows <= 1 || cols == 0 => 0,
            _ => stride,
        };
        Matrix { dtype: self.dtype(), rows, cols, row_stride }
    }

    /// A vector that was checked, or a matrix of one column that counts as a vector.
    pub(crate) fn vector(&self) -> Vector {
        Vector { dtype: self.dtype(), len: self.shape().first().copied().unwrap_or(1) }
    }
}

/// The device and queue on which a call will run. The memory of the call must belong to them.
#[derive(Clone, Copy, Debug)]
pub struct Site {
    /// The device.
    pub device: Device,
    /// The queue; `None` for a call on a foreign stream, where the caller orders all use of memory.
    pub queue: Option<QueueId>,
}

/// Checks the arguments of one operator and makes the errors about them.
#[derive(Clone, Copy)]
pub(crate) struct Checker {
    operator: &'static str,
}

impl Checker {
    pub(crate) fn new(operator: &'static str) -> Self {
        Checker { operator }
    }

    pub(crate) fn error(
        &self,
        status: Status,
        argument: &'static str,
        value: impl Display,
        expected: impl Into<Cow<'static, str>>,
    ) -> Error {
        Error::Argument {
            status,
            operator: self.operator,
            argument,
            value: value.to_string(),
            expected: expected.into(),
        }
    }

    /// An error about a parameter unless its condition `holds`.
    pub(crate) fn param(
        &self,
        holds: bool,
        argument: &'static str,
        value: impl Display,
        expected: impl Into<Cow<'static, str>>,
    ) -> Result<()> {
        if holds { Ok(()) } else { Err(self.error(Status::BadParam, argument, value, expected)) }
    }

    /// An optional argument that the options make necessary.
    pub(crate) fn required<'t, T>(
        &self,
        argument: &'static str,
        value: &'t Option<T>,
        reason: &'static str,
    ) -> Result<&'t T> {
        value.as_ref().ok_or_else(|| self.error(Status::NullPointer, argument, "absent", reason))
    }

    pub(crate) fn dtype(&self, argument: &Argument, desc: &TensorDesc) -> Result<()> {
        if argument.dtypes.contains(&desc.dtype()) {
            return Ok(());
        }
        let expected = argument::join(argument.dtypes);
        Err(self.error(Status::BadTensorDtype, argument.name, desc.dtype(), expected))
    }

    /// Checks an element type that follows from that of another argument.
    pub(crate) fn follows(
        &self,
        argument: &Argument,
        desc: &TensorDesc,
        other: &str,
        dtype: DType,
    ) -> Result<()> {
        let may_be_wider = matches!(argument.dtype_rule, DtypeRule::From(_));
        let is_wider = desc.dtype() == DType::I64 && dtype.size() < 8;
        if desc.dtype() == dtype || may_be_wider && is_wider {
            return Ok(());
        }
        let wider = if may_be_wider && dtype != DType::I64 { ", or i64" } else { "" };
        let expected = format!("{dtype}, as `{other}`{wider}");
        Err(self.error(Status::BadTensorDtype, argument.name, desc.dtype(), expected))
    }

    /// Checks that rows are packed, that those which are written do not overlap, and that memory can
    /// hold the tensor. A vector is packed, also as `[batch, 1]`, as some engines store it.
    pub(crate) fn strides(
        &self,
        argument: &Argument,
        desc: &TensorDesc,
        is_column: bool,
    ) -> Result<()> {
        let error = |expected: Cow<'static, str>| {
            let value = format!("strided {:?}", desc.strides());
            Err(self.error(Status::BadTensorStrides, argument.name, value, expected))
        };
        match (desc.shape(), desc.strides()) {
            (&[len], &[stride]) | (&[len, 1], &[stride, _])
                if (is_column || desc.shape().len() == 1) && len > 1 && stride != 1 =>
            {
                return error(format!("{} packed, with stride 1", argument.shape).into());
            }
            (&[_, 1], _) if is_column => {}
            (&[.., cols], &[.., col]) if desc.shape().len() > 1 => {
                if cols > 1 && col != 1 {
                    return error("an innermost stride of 1".into());
                }
                // The elements that the dimensions inside of this one span.
                let mut inner = cols;
                for (&extent, &stride) in desc.shape().iter().zip(desc.strides()).rev().skip(1) {
                    if extent > 1 && inner > 0 && stride < 0 {
                        return error("a row stride that is not negative".into());
                    }
                    let step = stride.unsigned_abs();
                    if argument.is_written() && extent > 1 && step < inner {
                        return error("rows that do not overlap, since they are written".into());
                    }
                    inner = inner.saturating_add(step.saturating_mul(extent.saturating_sub(1)));
                }
            }
            _ => {}
        }
        self.fits_memory(argument, desc)
    }

    fn fits_memory(&self, argument: &Argument, desc: &TensorDesc) -> Result<()> {
        let limit = isize::MAX.unsigned_abs() / desc.dtype().size();
        if desc.span() <= limit {
            return Ok(());
        }
        let value = format!("{:?}", desc.shape());
        Err(self.error(Status::BadTensorShape, argument.name, value, "a size that memory can hold"))
    }

    /// Checks that memory is where a call on `site` can use it: on its device, and in its queue
    /// or in none.
    pub(crate) fn place(&self, argument: &'static str, at: &Location, site: Site) -> Result<()> {
        let device = site.device;
        if at.device != device {
            let place = |device| match device {
                Device::CPU => "host memory".to_owned(),
                device => format!("memory on {device}"),
            };
            let status = if at.device.backend() == device.backend() {
                Status::BadParam
            } else {
                Status::DeviceTypeNotSupported
            };
            return Err(self.error(status, argument, place(at.device), place(device)));
        }
        match (at.queue, site.queue) {
            (Some(of), Some(queue)) if of != queue => Err(self.error(
                Status::BadParam,
                argument,
                format!("memory of another handle on {device}, whose queue runs unordered with this one"),
                "memory of the handle that the operator was created on, or moved to it with `adopt`",
            )),
            _ => Ok(()),
        }
    }

    /// Checks a buffer against its descriptor.
    pub(crate) fn buffer(
        &self,
        argument: &'static str,
        desc: &TensorDesc,
        view: &impl Locate,
        site: Site,
    ) -> Result<()> {
        let at = view.location();
        if at.dtype != desc.dtype() {
            let expected = format!("{} as described", desc.dtype());
            return Err(self.error(Status::BadTensorDtype, argument, at.dtype, expected));
        }
        self.place(argument, &at, site)?;
        let span = desc.span();
        if at.null && span > 0 {
            return Err(self.error(Status::NullPointer, argument, "a null pointer", "memory"));
        }
        if at.len < span {
            return Err(self.error(
                Status::BadTensorShape,
                argument,
                format!("{} elements long", at.len),
                format!("at least {span} elements for {desc}"),
            ));
        }
        let size = desc.dtype().size();
        if span > 0 && !at.start.is_multiple_of(size as u64) {
            return Err(self.error(
                Status::BadParam,
                argument,
                format!("at {:#x}", at.start),
                format!("an address that is a multiple of {size}"),
            ));
        }
        Ok(())
    }
}

/// The memory of an argument.
#[derive(Clone, Copy)]
pub(crate) struct Span {
    object: usize,
    start: u64,
    end: u64,
}

impl Span {
    /// What has no memory overlaps nothing: null pointers are refused elsewhere.
    const NOTHING: Span = Span { object: 0, start: 0, end: 0 };

    /// `bytes` bytes at an address.
    pub(crate) fn at(address: Address, bytes: usize) -> Self {
        match address.0 {
            0 => Span::NOTHING,
            start => Span { object: 0, start, end: start.saturating_add(bytes as u64) },
        }
    }

    fn is_empty(&self) -> bool {
        self.start >= self.end
    }

    fn overlaps(&self, other: &Span) -> bool {
        let in_order = self.start < other.end && other.start < self.end;
        in_order && self.object == other.object && !self.is_empty() && !other.is_empty()
    }
}

/// The memory of a required or optional argument.
pub(crate) trait Spanned {
    fn span(&self) -> Span;
}

impl<V: Locate> Spanned for V {
    fn span(&self) -> Span {
        let Location { dtype, len, object, start, null, .. } = self.location();
        let bytes = len.saturating_mul(dtype.size()) as u64;
        if null { Span::NOTHING } else { Span { object, start, end: start.saturating_add(bytes) } }
    }
}

impl<V: Locate> Spanned for Option<V> {
    fn span(&self) -> Span {
        self.as_ref().map_or(Span::NOTHING, Spanned::span)
    }
}

/// The memory of an argument that is given as an address.
pub(crate) trait SpannedAt<A> {
    fn span_at(&self, address: A) -> Span;
}

impl SpannedAt<Address> for TensorDesc {
    fn span_at(&self, address: Address) -> Span {
        Span::at(address, self.span().saturating_mul(self.dtype().size()))
    }
}

impl SpannedAt<Option<Address>> for Option<TensorDesc> {
    fn span_at(&self, address: Option<Address>) -> Span {
        let both = self.as_ref().zip(address);
        both.map_or(Span::NOTHING, |(desc, address)| desc.span_at(address))
    }
}

impl Checker {
    /// Checks that what a call writes, its workspace included, shares no memory with other
    /// arguments. `spans` has the memory of each of the `arguments`.
    pub(crate) fn apart(
        &self,
        arguments: &'static [Argument],
        spans: &[Span],
        workspace: Span,
    ) -> Result<()> {
        for (at, (argument, own)) in arguments.iter().zip(spans).enumerate() {
            if own.overlaps(&workspace) {
                return Err(self.shared("workspace", argument.name));
            }
            if !argument.is_written() {
                continue;
            }
            let other = (0..spans.len()).find(|&other| other != at && own.overlaps(&spans[other]));
            if let Some(other) = other {
                return Err(self.shared(argument.name, arguments[other].name));
            }
        }
        Ok(())
    }

    #[cold]
    fn shared(&self, argument: &'static str, other: &'static str) -> Error {
        let value = format!("in the memory of `{other}`");
        let expected = "memory of its own, since it is written";
        self.error(Status::BadParam, argument, value, expected)
    }
}

/// Checks the buffer of a required or optional argument against the argument's descriptor, and
/// cuts the buffer to the elements that the descriptor spans.
pub(crate) trait Described<V> {
    fn fit(&self, view: &mut V, name: &'static str, checker: &Checker, on: Site) -> Result<()>;
}

impl<V: Locate> Described<V> for TensorDesc {
    fn fit(&self, view: &mut V, name: &'static str, checker: &Checker, on: Site) -> Result<()> {
        checker.buffer(name, self, view, on)?;
        view.truncate(self.span());
        Ok(())
    }
}

impl<V: Locate> Described<Option<V>> for Option<TensorDesc> {
    fn fit(
        &self,
        view: &mut Option<V>,
        name: &'static str,
        checker: &Checker,
        on: Site,
    ) -> Result<()> {
        match (self, view) {
            (None, None) => Ok(()),
            (Some(desc), Some(view)) => desc.fit(view, name, checker, on),
            (Some(desc), None) => {
                let expected = format!("{desc} as described");
                Err(checker.error(Status::NullPointer, name, "absent", expected))
            }
            (None, Some(_)) => {
                let expected = "absent, since its descriptor was";
                Err(checker.error(Status::BadParam, name, "given", expected))
            }
        }
    }
}

/// Makes the view of a required or optional argument from its descriptor and its address.
pub(crate) trait Placed<A, V> {
    /// The view in memory that is not there.
    fn nowhere(&self) -> V;

    /// # Safety
    /// As for [`View::from_address`] and [`ViewMut::from_address`].
    unsafe fn at(&self, address: A, device: Device) -> V;
}

impl<'a> Placed<Address, View<'a>> for TensorDesc {
    fn nowhere(&self) -> View<'a> {
        View::nowhere(self.dtype(), self.span())
    }

    unsafe fn at(&self, address: Address, device: Device) -> View<'a> {
        // SAFETY: the caller of `at` vouches for the address, as this trait asks.
        unsafe { View::from_address(self.dtype(), self.span(), device, address.0) }
    }
}

impl<'a> Placed<Address, ViewMut<'a>> for TensorDesc {
    fn nowhere(&self) -> ViewMut<'a> {
        ViewMut::nowhere(self.dtype(), self.span())
    }

    unsafe fn at(&self, address: Address, device: Device) -> ViewMut<'a> {
        // SAFETY: the caller of `at` vouches for the address, as this trait asks.
        unsafe { ViewMut::from_address(self.dtype(), self.span(), device, address.0) }
    }
}

impl<V> Placed<Option<Address>, Option<V>> for Option<TensorDesc>
where
    TensorDesc: Placed<Address, V>,
{
    fn nowhere(&self) -> Option<V> {
        self.as_ref().map(Placed::nowhere)
    }

    unsafe fn at(&self, address: Option<Address>, device: Device) -> Option<V> {
        // `fit` refuses an argument that has a descriptor but no address, or an address but no
        // descriptor. An address without descriptor becomes a view of 0 elements.
        let nothing = TensorDesc::new(DType::U8, [0]);
        // SAFETY: the caller of `at` vouches for the address, as this trait asks.
        address.map(|address| unsafe { self.as_ref().unwrap_or(&nothing).at(address, device) })
    }
}
