//! Errors: exceptions of `spec_ops._errors` with the library's message.

use pyo3::prelude::*;
use spec::{Error, ErrorKind, Status};

/// The library's error as an exception, of the class that `spec_ops._errors` chooses by status
/// and kind.
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

/// Wraps an exception of other code, for example of an array's library, in an exception of this
/// package, whose `__cause__` it becomes. Exceptions that end programs, such as
/// `KeyboardInterrupt`, are passed on unchanged.
pub fn foreign(py: Python<'_>, doing: &str, status: Status, raised: PyErr) -> PyErr {
    made(py, "foreign", (doing, status.code(), raised.into_value(py)))
}

/// The error for a call with a wrong signature, found before any array is read: too many arrays,
/// or a wrong `out`.
pub fn signature(py: Python<'_>, words: String) -> PyErr {
    made(py, "SignatureError", (words, Status::BadParam.code()))
}

/// The error for a defect of this package.
pub fn internal(py: Python<'_>, what: &str) -> PyErr {
    made(py, "SpecError", (format!("spec_ops: {what}"), Status::InternalError.code()))
}

/// Calls a function of `spec_ops._errors`, which makes an exception of the arguments.
fn made<'py>(
    py: Python<'py>,
    function: &str,
    arguments: impl pyo3::call::PyCallArgs<'py>,
) -> PyErr {
    let errors = py.import("spec_ops._errors");
    let made = errors.and_then(|errors| errors.call_method1(function, arguments));
    made.map_or_else(|failed| failed, PyErr::from_value)
}

/// The error for an argument that does not fit the contract, with the contract's names.
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
