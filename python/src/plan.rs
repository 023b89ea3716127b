//! A plan as a Python object, which pickles and copies.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use spec::{Argument, Role, TensorDesc};

use crate::arguments::{Arguments, Wanted, by_name};
use crate::call::MAX_ARGUMENTS;
use crate::dlpack;
use crate::error;
use crate::library;
use crate::operator::{Key, Operator};
use crate::prepared::Prepared;
use crate::workspace::Keeps;

/// An operator made for arrays of certain shapes and types on a device, with a workspace of
/// its own for each stream. Calls check that arrays are like that, enqueue, and do nothing
/// else. A copy, and what a pickle gives back, is made for the same and has workspaces of its
/// own.
#[pyclass(frozen, module = "spec_ops._native")]
pub struct Plan {
    operator: Py<Operator>,
    key: Key,
    prepared: Prepared,
}

impl Plan {
    /// A plan of an operator for these arrays.
    fn of(operator: &Bound<'_, Operator>, key: Key) -> PyResult<Self> {
        let prepared = operator.get().prepare(operator.py(), &key)?;
        Ok(Plan { operator: operator.clone().unbind(), key, prepared })
    }
}

/// An argument in a pickle: None for an absent argument, True for an output that the call makes,
/// otherwise element type, shape and strides.
#[derive(FromPyObject, IntoPyObject)]
pub(crate) enum Kept {
    New(bool),
    Array(String, Vec<i64>, Vec<i64>),
}

impl Kept {
    fn array(desc: &TensorDesc) -> Self {
        let shape = desc.shape().iter().map(|&extent| extent as i64).collect();
        let strides = desc.strides().iter().map(|&step| step as i64).collect();
        Kept::Array(desc.dtype().name().to_owned(), shape, strides)
    }

    /// The entry of `key` for the argument with this index.
    fn of(key: &Key, place: usize, argument: &Argument) -> Option<Self> {
        if argument.role != Role::Output {
            return key.inputs[place].as_ref().map(Kept::array);
        }
        match &key.outputs[place] {
            None | Some(Wanted::Absent) => None,
            Some(Wanted::New) => Some(Kept::New(true)),
            Some(Wanted::Given(desc)) => Some(Kept::array(desc)),
        }
    }

    fn desc(&self) -> Option<TensorDesc> {
        match self {
            Kept::New(_) => None,
            Kept::Array(dtype, shape, strides) => {
                dlpack::describe(library::dtype(dtype).ok()?, shape, strides).ok()
            }
        }
    }
}

/// The plan that a pickle has: of an operator, on a device by DLPack's numbers, for arrays in
/// the contract's order.
#[pyfunction]
#[pyo3(name = "_restore")]
pub(crate) fn restore(
    operator: &Bound<'_, Operator>,
    device: (i32, i32),
    arrays: Vec<Option<Kept>>,
) -> PyResult<Plan> {
    let py = operator.py();
    let broken = || error::internal(py, "a pickled plan of another version");
    let arguments = operator.get().contract().arguments();
    if arrays.len() != arguments.len() {
        return Err(broken());
    }
    let device = dlpack::device(device.0, device.1).map_err(|_| broken())?;
    let mut key = Key { device, inputs: [None; MAX_ARGUMENTS], outputs: [None; MAX_ARGUMENTS] };
    for (i, (argument, kept)) in arguments.iter().zip(arrays).enumerate() {
        let desc = kept.as_ref().and_then(Kept::desc);
        match (argument.role == Role::Output, kept) {
            (true, None) => key.outputs[i] = Some(Wanted::Absent),
            (true, Some(Kept::New(_))) => key.outputs[i] = Some(Wanted::New),
            (true, Some(_)) => key.outputs[i] = Some(Wanted::Given(desc.ok_or_else(broken)?)),
            (false, None) => {}
            (false, Some(_)) => key.inputs[i] = Some(desc.ok_or_else(broken)?),
        }
    }
    Plan::of(operator, key)
}

#[pymethods]
impl Plan {
    /// A plan of an operator for calls with arrays like these: required arrays by position or
    /// name, others by name.
    #[new]
    #[pyo3(signature = (operator, /, *inputs, out=None, **named))]
    fn new<'py>(
        operator: &Bound<'py, Operator>,
        inputs: &Bound<'py, PyTuple>,
        out: Option<&Bound<'py, PyAny>>,
        named: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Self> {
        let contract = operator.get().contract();
        let mut call = Arguments::new(operator.py(), contract);
        call.read(by_name(contract, inputs, named)?, out)?;
        Plan::of(operator, Key::of(&call)?)
    }

    /// Enqueues the operator. Arrays are given as when the plan was made; an array that the plan was
    /// made without is left out or None.
    #[pyo3(signature = (*inputs, out=None, **named))]
    fn __call__<'py>(
        &self,
        inputs: &Bound<'py, PyTuple>,
        out: Option<&Bound<'py, PyAny>>,
        named: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (py, operator) = (inputs.py(), self.operator.get());
        let mut call = Arguments::new(py, operator.contract());
        call.read(by_name(operator.contract(), inputs, named)?, out)?;
        operator.run(py, &mut call, &self.prepared, Keeps::Plan)
    }

    /// The device that it is made for: `cpu` or as in `cuda:0`.
    #[getter]
    fn device(&self) -> String {
        self.prepared.device().to_string()
    }

    /// Bytes that a call uses besides its arguments.
    #[getter]
    fn workspace_size(&self) -> usize {
        self.prepared.workspace_size()
    }

    /// The kernels that a call runs, with their launch shapes, in words: what the data decide is not
    /// known, and memory counts as aligned.
    #[getter]
    fn route(&self, py: Python<'_>) -> PyResult<String> {
        self.prepared.route().map_err(|error| error::raise(py, &error))
    }

    fn __repr__(&self) -> String {
        format!("<plan of {} on {}>", self.operator.get().contract().name(), self.device())
    }

    /// How to make it again.
    fn __reduce__<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let restore = py.import("spec_ops._native")?.getattr("_restore")?;
        let arguments = self.operator.get().contract().arguments().iter().enumerate();
        let kept: Vec<_> = arguments.map(|(i, of)| Kept::of(&self.key, i, of)).collect();
        let device = dlpack::numbers(self.key.device);
        Ok((restore, (&self.operator, device, kept).into_pyobject(py)?))
    }
}

impl std::fmt::Debug for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Plan(on {})", self.prepared.device())
    }
}
