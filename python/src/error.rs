//! Errors: the library's sentence in an exception of `spec_ops._errors`.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use spec::{Argument, Error, ErrorKind, Status};

use crate::dlpack::Refused;

/// The library's error as an exception: of the class that `spec_ops._errors` has for its
/// status and kind.
pub fn raise(py: Python<'_>, error: &Error) -> PyErr {
    let kind = match error.kind() {
        ErrorKind::Usage => "usage",
        ErrorKind::Unavailable => "unavailable",
        ErrorKind::OutOfMemory => "out of memory",
        ErrorKind::DeviceLost => "device lost",
        _ => "failed",
    };
    let made = py.import("spec_ops._errors").and_then(|errors| {
        errors.call_method1("error", (error.to_string(), error.status().code(), kind))
    });
    made.map_or_else(|failed| failed, PyErr::from_value)
}

/// An argument that is not what the contract asks for.
pub fn argument(
    status: Status,
    operator: &'static str,
    argument: &'static str,
    value: impl Into<String>,
    expected: impl Into<String>,
) -> Error {
    let (value, expected) = (value.into(), expected.into().into());
    Error::Argument { status, operator, argument, value, expected }
}

/// What an argument may be: `f32 or f16 [tokens, experts]`.
pub fn expected(argument: &Argument) -> String {
    let names: Vec<_> = argument.dtypes.iter().map(|dtype| dtype.name()).collect();
    format!("{} {}", names.join(" or "), argument.shape)
}

/// Why something is not the argument it was passed as.
pub fn refuse(
    py: Python<'_>,
    operator: &'static str,
    of: &'static Argument,
    refused: Refused,
) -> PyErr {
    let (status, value, expected) = match refused {
        Refused::Python(error) => return error,
        Refused::NoArray(what) => {
            (Status::BadTensorDtype, what, format!("an array: {}", expected(of)))
        }
        Refused::Type(what) => (Status::BadTensorDtype, what, expected(of)),
        Refused::Shape(what) => (Status::BadTensorShape, what, expected(of)),
        Refused::Place(what) => {
            (Status::DeviceTypeNotSupported, what, "host memory or memory of a CUDA device".into())
        }
    };
    raise(py, &argument(status, operator, of.name, value, expected))
}

/// Something that a part of this package should have seen to.
pub fn internal(what: &str) -> PyErr {
    PyRuntimeError::new_err(format!("spec_ops: {what}"))
}
