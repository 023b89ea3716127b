//! Errors: the library's sentence in an exception of `spec_ops._errors`.

use pyo3::prelude::*;
use spec::{Error, ErrorKind, Status};

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
    made(py, "error", (error.to_string(), error.status().code(), kind))
}

/// An exception of other code, an array's library for one, as an exception of this package
/// whose cause it is. What ends programs, as `KeyboardInterrupt` does, stays what it is.
pub fn foreign(py: Python<'_>, doing: &str, status: Status, raised: PyErr) -> PyErr {
    made(py, "foreign", (doing, status.code(), raised.into_value(py)))
}

/// A call that is wrong before any array is looked at: too many arrays, `out` of no use.
pub fn signature(py: Python<'_>, words: String) -> PyErr {
    made(py, "SignatureError", (words, Status::BadParam.code()))
}

/// Something that a part of this package should have seen to.
pub fn internal(py: Python<'_>, what: &str) -> PyErr {
    made(py, "SpecError", (format!("spec_ops: {what}"), Status::InternalError.code()))
}

/// What a function of `spec_ops._errors` makes of these.
fn made<'py>(
    py: Python<'py>,
    function: &str,
    arguments: impl pyo3::call::PyCallArgs<'py>,
) -> PyErr {
    let errors = py.import("spec_ops._errors");
    let made = errors.and_then(|errors| errors.call_method1(function, arguments));
    made.map_or_else(|failed| failed, PyErr::from_value)
}

/// An argument that is not what the contract asks for, by the contract's names.
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
