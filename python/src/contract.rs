//! An operator's contract, and the errors for arguments that do not fit the contract.

use pyo3::prelude::*;
use spec::{Argument, Role, Status};

use crate::call::Create;
use crate::dlpack::Refused;
use crate::error;

/// An operator with its parameters.
pub struct Contract {
    operator: Box<dyn Create>,
    arguments: &'static [Argument],
    /// The places of the arguments that are read or changed in place.
    inputs: Vec<usize>,
    /// The sizes that a call says, since no option and no input has them.
    extents: Vec<&'static str>,
}

impl Contract {
    /// An operator's contract.
    pub fn new(operator: Box<dyn Create>, extents: Vec<&'static str>) -> Self {
        let arguments = operator.arguments();
        let inputs = (0..arguments.len()).filter(|&i| arguments[i].role != Role::Output);
        Contract { arguments, inputs: inputs.collect(), extents, operator }
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
        self.arguments
    }

    /// The sizes that a call says, since no option and no input has them.
    pub fn extents(&self) -> &[&'static str] {
        &self.extents
    }

    /// The arguments that are read or changed in place, each with its index in the contract.
    pub fn inputs(&self) -> impl Iterator<Item = (usize, &'static Argument)> {
        self.inputs.iter().map(|&place| (place, &self.arguments[place]))
    }

    /// The expected dtypes and shape of an argument: `f32 or f16 [tokens, experts]`.
    pub fn expected(argument: &Argument) -> String {
        let names: Vec<_> = argument.dtypes.iter().map(|dtype| dtype.name()).collect();
        format!("{} {}", names.join(" or "), argument.shape)
    }

    /// The error for an argument that is not as expected.
    pub fn wrong(
        &self,
        py: Python<'_>,
        argument: &Argument,
        status: Status,
        value: impl Into<String>,
        expected: impl Into<String>,
    ) -> PyErr {
        error::raise(py, &error::argument(status, self.name(), argument.name, value, expected))
    }

    /// The error for an object that cannot be the argument.
    pub fn refuse(&self, py: Python<'_>, argument: &Argument, refused: Refused) -> PyErr {
        let expected = Self::expected(argument);
        match refused {
            Refused::Python(raised) => {
                let doing =
                    format!("{}: `{}` cannot be read as an array", self.name(), argument.name);
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

    /// The error for an exception of other code while arguments or results of a call are handled.
    pub fn foreign(&self, py: Python<'_>, doing: &str, raised: PyErr) -> PyErr {
        let doing = format!("{}: {doing}", self.name());
        error::foreign(py, &doing, Status::InternalError, raised)
    }
}

impl std::fmt::Debug for Contract {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Contract({})", self.name())
    }
}
