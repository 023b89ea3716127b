//! An operator's contract as Python's users know it: names of arguments, and what is said where
//! an argument is not what the contract asks for.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use spec::{Argument, Error, Status};

use crate::call::Create;
use crate::dlpack::Refused;
use crate::error;

/// An operator with its parameters, and the name that its Python function has for its first
/// array: the contract's own name of every other argument is also Python's.
pub struct Contract {
    operator: Box<dyn Create>,
    first: &'static str,
}

impl Contract {
    /// An operator whose Python function calls its first array `first`.
    pub fn new(operator: Box<dyn Create>, first: &str) -> Self {
        Contract { operator, first: kept(first) }
    }

    /// The operator.
    pub fn operator(&self) -> &dyn Create {
        &*self.operator
    }

    /// The operator's name, which is its Python function's too.
    pub fn name(&self) -> &'static str {
        self.operator.name()
    }

    /// The operator's arguments, in order.
    pub fn arguments(&self) -> &'static [Argument] {
        self.operator.arguments()
    }

    /// The Python function's name for an argument of the contract.
    pub fn python_name(&self, argument: &'static str) -> &'static str {
        if argument == self.arguments()[0].name { self.first } else { argument }
    }

    /// What an argument may be: `f32 or f16 [tokens, experts]`.
    pub fn expected(argument: &Argument) -> String {
        let names: Vec<_> = argument.dtypes.iter().map(|dtype| dtype.name()).collect();
        format!("{} {}", names.join(" or "), argument.shape)
    }

    /// The library's error as an exception, which names arguments as Python does.
    pub fn raise(&self, py: Python<'_>, error: Error) -> PyErr {
        let error = match error {
            Error::Argument { status, operator, argument, value, expected } => {
                let argument = self.python_name(argument);
                Error::Argument { status, operator, argument, value, expected }
            }
            other => other,
        };
        error::raise(py, &error)
    }

    /// An argument is not what was expected.
    pub fn wrong(
        &self,
        py: Python<'_>,
        argument: &Argument,
        status: Status,
        value: impl Into<String>,
        expected: impl Into<String>,
    ) -> PyErr {
        self.raise(py, error::argument(status, self.name(), argument.name, value, expected))
    }

    /// An object is not the argument that it was passed as.
    pub fn refuse(&self, py: Python<'_>, argument: &Argument, refused: Refused) -> PyErr {
        let expected = Self::expected(argument);
        match refused {
            Refused::Python(raised) => {
                let name = self.python_name(argument.name);
                let doing = format!("{}: `{name}` cannot be read as an array", self.name());
                error::foreign(py, &doing, Status::BadTensorDtype, raised)
            }
            Refused::NoArray(what) => {
                let expected = format!("an array: {expected}");
                self.wrong(py, argument, Status::BadTensorDtype, what, expected)
            }
            Refused::Deferred { what, pass } => {
                self.wrong(py, argument, Status::BadParam, what, pass)
            }
            Refused::Type(what) => self.wrong(py, argument, Status::BadTensorDtype, what, expected),
            Refused::Shape(what) => {
                self.wrong(py, argument, Status::BadTensorShape, what, expected)
            }
            Refused::Place(what) => {
                let expected = "host memory or memory of a CUDA device";
                self.wrong(py, argument, Status::DeviceTypeNotSupported, what, expected)
            }
        }
    }

    /// An exception of other code while the arguments or the results of a call are seen to.
    pub fn foreign(&self, py: Python<'_>, doing: &str, raised: PyErr) -> PyErr {
        let doing = format!("{}: {doing}", self.name());
        error::foreign(py, &doing, Status::InternalError, raised)
    }
}

/// A text that lives as long as the process, once for each text. There are as many as there are
/// operators.
fn kept(text: &str) -> &'static str {
    static KEPT: Mutex<Option<HashSet<&'static str>>> = Mutex::new(None);
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    let kept = kept.get_or_insert_default();
    if let Some(&known) = kept.get(text) {
        return known;
    }
    let text: &'static str = Box::leak(text.into());
    kept.insert(text);
    text
}

impl std::fmt::Debug for Contract {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Contract({})", self.name())
    }
}
