//! The one place that checks descriptors and buffers, for every operator.

use std::borrow::Cow;
use std::fmt::Display;

use crate::memory::{Locate, Location};
use crate::{DType, Device, Error, Result, Status, TensorDesc};

/// A validated matrix: innermost stride 1, rows `row_stride` elements apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matrix {
    /// The element type.
    pub dtype: DType,
    /// The number of rows.
    pub rows: usize,
    /// The elements of a row.
    pub cols: usize,
    /// Elements from the start of one row to the start of the next; 0 where
    /// there is no next row.
    pub row_stride: usize,
}

/// A validated packed vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vector {
    /// The element type.
    pub dtype: DType,
    /// The number of elements.
    pub len: usize,
}

/// Whether an argument is only read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// Checks the arguments of one operator and words what is wrong with them.
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

    /// A parameter that must hold some condition.
    pub(crate) fn param(
        &self,
        holds: bool,
        argument: &'static str,
        value: impl Display,
        expected: impl Into<Cow<'static, str>>,
    ) -> Result<()> {
        if holds { Ok(()) } else { Err(self.error(Status::BadParam, argument, value, expected)) }
    }

    /// An argument that must be there because of another.
    pub(crate) fn required<'t, T>(
        &self,
        argument: &'static str,
        value: &'t Option<T>,
        reason: &'static str,
    ) -> Result<&'t T> {
        value.as_ref().ok_or_else(|| self.error(Status::NullPointer, argument, "absent", reason))
    }

    fn dtype(&self, argument: &'static str, desc: &TensorDesc, allowed: &[DType]) -> Result<()> {
        if allowed.contains(&desc.dtype()) {
            return Ok(());
        }
        let names: Vec<_> = allowed.iter().map(|d| d.name()).collect();
        Err(self.error(Status::BadTensorDtype, argument, desc.dtype(), names.join(" or ")))
    }

    /// Any matrix: `shape` says in words what was expected.
    pub(crate) fn matrix(
        &self,
        argument: &'static str,
        desc: &TensorDesc,
        allowed: &[DType],
        access: Access,
        shape: &'static str,
    ) -> Result<Matrix> {
        self.dtype(argument, desc, allowed)?;
        let &[rows, cols] = desc.shape() else {
            return Err(self.error(
                Status::BadTensorShape,
                argument,
                desc,
                format!("shape {shape}"),
            ));
        };
        let row_stride = self.strides(argument, desc, access, rows, cols)?;
        Ok(Matrix { dtype: desc.dtype(), rows, cols, row_stride })
    }

    /// A matrix of exactly this shape.
    pub(crate) fn matrix_of(
        &self,
        argument: &'static str,
        desc: &TensorDesc,
        allowed: &[DType],
        access: Access,
        expected: [usize; 2],
        shape: &'static str,
    ) -> Result<Matrix> {
        self.dtype(argument, desc, allowed)?;
        self.shape(argument, desc, &expected, shape)?;
        self.matrix(argument, desc, allowed, access, shape)
    }

    /// Any packed vector.
    pub(crate) fn vector(
        &self,
        argument: &'static str,
        desc: &TensorDesc,
        allowed: &[DType],
        shape: &'static str,
    ) -> Result<Vector> {
        self.dtype(argument, desc, allowed)?;
        let &[len] = desc.shape() else {
            return Err(self.error(
                Status::BadTensorShape,
                argument,
                desc,
                format!("shape {shape}"),
            ));
        };
        if len > 1 && desc.strides() != [1] {
            return Err(self.error(
                Status::BadTensorStrides,
                argument,
                format!("{:?}", desc.strides()),
                "stride 1",
            ));
        }
        self.fits_memory(argument, desc)?;
        Ok(Vector { dtype: desc.dtype(), len })
    }

    /// A packed vector of exactly this length.
    pub(crate) fn vector_of(
        &self,
        argument: &'static str,
        desc: &TensorDesc,
        allowed: &[DType],
        expected: usize,
        shape: &'static str,
    ) -> Result<Vector> {
        self.dtype(argument, desc, allowed)?;
        self.shape(argument, desc, &[expected], shape)?;
        self.vector(argument, desc, allowed, shape)
    }

    /// The optional flags word that every operator takes.
    pub(crate) fn flags(&self, desc: Option<&TensorDesc>) -> Result<bool> {
        if let Some(desc) = desc {
            self.vector_of("flags", desc, &[DType::U32], 1, "[1]")?;
        }
        Ok(desc.is_some())
    }

    fn shape(
        &self,
        argument: &'static str,
        desc: &TensorDesc,
        expected: &[usize],
        shape: &'static str,
    ) -> Result<()> {
        if desc.shape() == expected {
            return Ok(());
        }
        Err(self.error(
            Status::BadTensorShape,
            argument,
            format!("{:?}", desc.shape()),
            format!("{expected:?}, which is {shape}"),
        ))
    }

    fn strides(
        &self,
        argument: &'static str,
        desc: &TensorDesc,
        access: Access,
        rows: usize,
        cols: usize,
    ) -> Result<usize> {
        let error = |expected: &'static str| {
            let value = format!("{:?}", desc.strides());
            Err(self.error(Status::BadTensorStrides, argument, value, expected))
        };
        let &[row, col] = desc.strides() else { return error("two strides") };
        if cols > 1 && col != 1 {
            return error("an innermost stride of 1");
        }
        if rows <= 1 || cols == 0 {
            self.fits_memory(argument, desc)?;
            return Ok(0);
        }
        let Ok(stride) = usize::try_from(row) else {
            return error("a row stride that is not negative");
        };
        if access == Access::Write && stride < cols {
            return error("rows that do not overlap, since they are written");
        }
        self.fits_memory(argument, desc)?;
        Ok(stride)
    }

    fn fits_memory(&self, argument: &'static str, desc: &TensorDesc) -> Result<()> {
        let limit = isize::MAX.unsigned_abs() / desc.dtype().size();
        if desc.span() <= limit {
            return Ok(());
        }
        let value = format!("{:?}", desc.shape());
        Err(self.error(Status::BadTensorShape, argument, value, "a size that memory can hold"))
    }

    /// Whether memory is where `device` can use it.
    pub(crate) fn place(
        &self,
        argument: &'static str,
        at: &Location,
        device: Device,
    ) -> Result<()> {
        // Host memory is the only memory of the CPU.
        if at.device == (device != Device::CPU).then_some(device) {
            return Ok(());
        }
        let place = at.device.map_or("host memory".to_owned(), |d| d.to_string());
        let status = match at.device {
            Some(other) if other.backend() == device.backend() && device != Device::CPU => {
                Status::BadParam
            }
            _ => Status::DeviceTypeNotSupported,
        };
        let expected = if device == Device::CPU {
            "host memory".to_owned()
        } else {
            format!("memory on {device}")
        };
        Err(self.error(status, argument, format!("in {place}"), expected))
    }

    /// A buffer against its descriptor.
    pub(crate) fn buffer(
        &self,
        argument: &'static str,
        desc: &TensorDesc,
        view: &impl Locate,
        device: Device,
    ) -> Result<()> {
        let at = view.location();
        if at.dtype != desc.dtype() {
            let expected = format!("{} as described", desc.dtype());
            return Err(self.error(Status::BadTensorDtype, argument, at.dtype, expected));
        }
        self.place(argument, &at, device)?;
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

/// An argument's descriptor, required or optional, against its buffer, which is
/// cut to what the descriptor spans.
pub(crate) trait Described<V> {
    fn fit(&self, view: &mut V, name: &'static str, checker: &Checker, on: Device) -> Result<()>;
}

impl<V: Locate> Described<V> for TensorDesc {
    fn fit(&self, view: &mut V, name: &'static str, checker: &Checker, on: Device) -> Result<()> {
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
        on: Device,
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

/// Declares the arguments of an operator once, for descriptors and buffers:
/// inputs have type `I`, outputs and what changes in place `O`. `Tensors` and
/// `Buffers` are that struct filled with descriptors and with memory.
macro_rules! arguments {
    ($(#[$meta:meta])* { $( $(#[$doc:meta])* $field:ident : $ty:ty ),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug)]
        pub struct Arguments<I, O> {
            $( $(#[$doc])* pub $field: $ty, )+
        }

        /// Descriptors of the arguments.
        pub type Tensors = Arguments<$crate::TensorDesc, $crate::TensorDesc>;
        /// The arguments in memory.
        pub type Buffers<'a> = Arguments<$crate::View<'a>, $crate::ViewMut<'a>>;

        fn fit_buffers(
            operator: &'static str,
            tensors: &Tensors,
            buffers: &mut Buffers<'_>,
            device: $crate::Device,
        ) -> $crate::Result<()> {
            let checker = $crate::check::Checker::new(operator);
            $( $crate::check::Described::fit(
                &tensors.$field, &mut buffers.$field, stringify!($field), &checker, device,
            )?; )+
            Ok(())
        }
    };
}
pub(crate) use arguments;
