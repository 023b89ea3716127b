//! Status codes and the error type.

use std::borrow::Cow;
use std::fmt;

use crate::Device;

/// InfiniOp's status codes, with InfiniOp's numbers.
///
/// Every error has one of these codes, so a C or Python caller that can handle InfiniOp's codes
/// can handle this library's errors. [`Error`] says the same in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum Status {
    /// The call did what it was asked to do.
    Success = 0,
    /// The driver or the device failed: a lost device, or not enough memory.
    InternalError = 1,
    /// The operator or option exists, but this backend lacks it.
    NotImplemented = 2,
    /// A parameter is out of its range.
    BadParam = 3,
    /// A required argument is absent, or a pointer is null.
    NullPointer = 4,
    /// The memory or stream belongs to another kind of device.
    DeviceTypeNotSupported = 5,
    /// There is no such device on this machine.
    DeviceNotFound = 6,
    /// The device is there but has not been opened.
    DeviceNotInitialized = 7,
    /// The device's architecture is older than the kernels need.
    DeviceArchitectureNotSupported = 8,
    /// A tensor's element type is not among those that the operator takes.
    BadTensorDtype = 10,
    /// A tensor's shape is not what the operator expects, or a buffer is too small.
    BadTensorShape = 11,
    /// A tensor's strides are not among those that the operator takes.
    BadTensorStrides = 12,
    /// The workspace is smaller than the descriptor asked for.
    InsufficientWorkspace = 13,
}

impl Status {
    /// The number as InfiniOp's C header has it.
    pub const fn code(self) -> i32 {
        self as i32
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = match self {
            Status::Success => "success",
            Status::InternalError => "internal error",
            Status::NotImplemented => "not implemented",
            Status::BadParam => "bad param",
            Status::NullPointer => "null pointer",
            Status::DeviceTypeNotSupported => "device type not supported",
            Status::DeviceNotFound => "device not found",
            Status::DeviceNotInitialized => "device not initialized",
            Status::DeviceArchitectureNotSupported => "device architecture not supported",
            Status::BadTensorDtype => "bad tensor dtype",
            Status::BadTensorShape => "bad tensor shape",
            Status::BadTensorStrides => "bad tensor strides",
            Status::InsufficientWorkspace => "insufficient workspace",
        };
        write!(f, "{words} (status {})", self.code())
    }
}

/// The kind of an error, which says what a program can do about it. The status alone does not
/// say this: InfiniOp has one number for every failure of a driver or device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The call is wrong: an argument, a parameter, a name.
    Usage,
    /// The device is absent, too old, or lacks the operator.
    Unavailable,
    /// There is not enough memory: free some, or ask for less.
    OutOfMemory,
    /// The device is gone, together with the contents of its memory: open it again.
    DeviceLost,
    /// The driver or a library below this one failed in another way.
    Failed,
}

/// An error: a [`Status`] and an [`ErrorKind`] for programs, and a sentence
/// for people, which `{}` and `{:?}` show.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument of an operator does not meet the contract.
    #[error("{operator}: `{argument}` is {value}, expected {expected}: {status}")]
    Argument {
        /// The status this maps to.
        status: Status,
        /// The operator that refused the argument.
        operator: &'static str,
        /// The argument or parameter, by its name in the contract.
        argument: &'static str,
        /// The value that was given.
        value: String,
        /// The values that would have been accepted.
        expected: Cow<'static, str>,
    },
    /// A device is absent, too old, or failed.
    #[error("{device}: {message}: {status}")]
    Device {
        /// The status this maps to.
        status: Status,
        /// The kind of the failure.
        kind: ErrorKind,
        /// The device, which prints as `cuda:0`.
        device: Device,
        /// What happened, in words.
        message: Cow<'static, str>,
    },
    /// A text that should name a device is not a device's name.
    #[error("`{text}` is no device, expected {expected}: {}", Status::BadParam)]
    DeviceName {
        /// The text as given.
        text: String,
        /// The accepted forms.
        expected: Cow<'static, str>,
    },
}

/// The result of every fallible call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error about one device. The kind follows from the status.
    pub fn device(device: Device, status: Status, message: impl Into<Cow<'static, str>>) -> Self {
        let kind = match status {
            Status::NotImplemented
            | Status::DeviceNotFound
            | Status::DeviceNotInitialized
            | Status::DeviceArchitectureNotSupported => ErrorKind::Unavailable,
            Status::InternalError => ErrorKind::Failed,
            _ => ErrorKind::Usage,
        };
        Error::Device { status, kind, device, message: message.into() }
    }

    /// The error for a device that failed: status 1, with the kind of the failure.
    pub fn failure(device: Device, kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Error::Device { status: Status::InternalError, kind, device, message: message.into() }
    }

    /// The error for an operator or an option that a backend lacks: status 2.
    pub fn not_implemented(device: Device, what: impl fmt::Display) -> Self {
        let message = format!("{what} is not implemented on this backend");
        Error::device(device, Status::NotImplemented, message)
    }

    /// The status code of this error; never [`Status::Success`].
    pub fn status(&self) -> Status {
        match self {
            Error::Argument { status, .. } | Error::Device { status, .. } => *status,
            Error::DeviceName { .. } => Status::BadParam,
        }
    }

    /// The kind of this error, which says what a program can do about it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Device { kind, .. } => *kind,
            Error::Argument { .. } | Error::DeviceName { .. } => ErrorKind::Usage,
        }
    }
}

/// Shows the sentence, because `fn main() -> spec::Result<()>` prints an error with `{:?}`.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
