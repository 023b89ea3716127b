//! An operator with its parameters as a Python object.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};
use spec::{DType, Device, TensorDesc};

use crate::arguments::{Arguments, Outputs, Wanted};
use crate::call::MAX_ARGUMENTS;
use crate::contract::Contract;
use crate::error;
use crate::library::Fresh;
use crate::options::MAKERS;
use crate::prepared::{Descs, Prepared, Shared};
use crate::workspace::Keeps;

/// The largest number of shapes for which an operator caches what it prepared. Preparing again
/// costs little more than a call.
const REMEMBERED: usize = 1024;

/// An operator with its parameters. `Operator(name, options, outputs, result)` takes the options
/// in the contract's order, and what makes one result of the tuple of outputs.
#[pyclass(frozen, module = "spec_ops._native")]
pub struct Operator {
    contract: Contract,
    options: Py<PyTuple>,
    result: Py<PyAny>,
    known: Mutex<Known>,
}

/// The largest number of operators that are cached by their options.
const OPTIONS_REMEMBERED: usize = 4096;

/// The operator with options in the contract's order, which remembers shapes it met:
/// `operator(name, *options)`. It is made once, by `spec_ops._functions.make`.
#[pyfunction]
#[pyo3(signature = (*of))]
pub(crate) fn operator<'py>(of: &Bound<'py, PyTuple>) -> PyResult<Bound<'py, Operator>> {
    static KNOWN: PyOnceLock<Py<PyDict>> = PyOnceLock::new();
    let py = of.py();
    let known = KNOWN.get_or_init(py, || PyDict::new(py).unbind()).bind(py);
    let make = || -> PyResult<Bound<'py, Operator>> {
        Ok(py.import("spec_ops._functions")?.getattr("make")?.call1(of)?.cast_into()?)
    };
    // An object that cannot be hashed is no option: making the operator reports which.
    let Ok(found) = known.get_item(of) else { return make() };
    if let Some(found) = found {
        // Equal numbers may have different types, of which only one is accepted: 2 and 2.0.
        let found = found.cast_into::<Operator>()?;
        let options = found.get().options.bind(py);
        let given = of.iter_borrowed().skip(1);
        let type_of = |option: &Bound<'_, PyAny>| option.get_type_ptr();
        let same = given.zip(options.iter_borrowed()).all(|(a, b)| type_of(&a) == type_of(&b));
        if same {
            return Ok(found);
        }
    }
    let made = make()?;
    if known.len() >= OPTIONS_REMEMBERED {
        known.clear();
    }
    known.set_item(of, &made)?;
    Ok(made)
}

/// Enqueues the operator of [`operator()`]: `call((name, *options), out, *inputs)`. One call from
/// Python instead of two, without a dict of keywords: the functions of `spec_ops` call it.
#[pyfunction]
#[pyo3(signature = (of, out, *inputs))]
pub(crate) fn call<'py>(
    of: &Bound<'py, PyTuple>,
    out: Option<&Bound<'py, PyAny>>,
    inputs: &Bound<'py, PyTuple>,
) -> PyResult<Bound<'py, PyAny>> {
    operator(of)?.get().enqueue(inputs, out)
}

/// What an operator prepared for earlier calls, by the hash of [`Arguments::hash`].
type Known = HashMap<u64, Vec<(Key, Shared)>>;

/// The arrays that a plan is made for. A call is compared with a key, and not made into one, because
/// a key has several kilobytes.
#[derive(Clone)]
pub struct Key {
    /// The device of the arrays.
    pub device: Device,
    /// The arguments that are read or changed in place.
    pub inputs: Descs,
    /// How the call treats the outputs.
    pub outputs: Outputs,
}

impl Operator {
    /// The contract of the operator.
    pub(crate) fn contract(&self) -> &Contract {
        &self.contract
    }

    /// The prepared operator for such a call, from the cache or newly made.
    fn prepared(&self, py: Python<'_>, call: &Arguments<'_, '_>) -> PyResult<Shared> {
        let hash = call.hash();
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let mut alike = known.get(&hash).into_iter().flatten();
        if let Some((_, prepared)) = alike.find(|(key, _)| key.is_of(call)) {
            return Ok(prepared.clone());
        }
        drop(known);
        let key = Key::of(call)?;
        let prepared = Arc::new(self.prepare(py, &key)?);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.values().map(Vec::len).sum::<usize>() >= REMEMBERED {
            known.clear();
        }
        known.entry(hash).or_default().push((key, prepared.clone()));
        Ok(prepared)
    }

    /// Prepares the operator for these arrays.
    pub(crate) fn prepare(&self, py: Python<'_>, key: &Key) -> PyResult<Prepared> {
        let mut descs = key.inputs;
        for (desc, wanted) in descs.iter_mut().zip(&key.outputs) {
            if let Some(Wanted::Given(given)) = wanted {
                *desc = Some(*given);
            }
        }
        let outputs = self.new_outputs(py, key, &mut descs)?;
        Prepared::new(py, self.contract.operator(), key.device, descs, outputs)
    }

    /// The outputs that calls make; their descriptors become part of `descs`.
    pub(crate) fn new_outputs(
        &self,
        py: Python<'_>,
        key: &Key,
        descs: &mut Descs,
    ) -> PyResult<[Option<Fresh>; MAX_ARGUMENTS]> {
        let mut outputs: [Option<Fresh>; MAX_ARGUMENTS] = Default::default();
        if !key.outputs.contains(&Some(Wanted::New)) {
            return Ok(outputs);
        }
        let arguments = self.contract.arguments();
        // After the options come the extents; None stands for one that the call does not say.
        let (names, values) = (self.contract.extents(), self.options.bind(py));
        let said = values.iter().skip(values.len() - names.len());
        let extents = names.iter().zip(said);
        let extents: Vec<(&str, usize)> =
            extents.filter_map(|(&name, value)| Some((name, value.extract().ok()?))).collect();
        let made = self.contract.operator().outputs(&key.inputs[..arguments.len()], &extents);
        for (i, argument) in arguments.iter().enumerate() {
            if key.outputs[i] != Some(Wanted::New) {
                continue;
            }
            // If an input that the shape depends on is missing or has a wrong rank, or if a
            // size is negative, the library reports the error later.
            let Some(desc) = made[i] else {
                descs[i] = Some(TensorDesc::new(argument.dtypes[0], [0]));
                continue;
            };
            // A count has the integer dtype that its library commonly uses.
            let dtype = if argument.dtypes == [DType::U64] { "count" } else { desc.dtype().name() };
            // With the strides that a new array is read with.
            let shape: Vec<i64> = desc.shape().iter().map(|&extent| extent as i64).collect();
            let read = crate::dlpack::describe(desc.dtype(), &shape, &[]);
            descs[i] = Some(read.map_err(|refused| self.contract.refuse(py, argument, refused))?);
            let shape = PyTuple::new(py, shape)?.into_any().unbind();
            outputs[i] = Some(Fresh::new(shape, dtype.to_owned()));
        }
        Ok(outputs)
    }

    /// Enqueues the operator on arrays in the contract's order, None where one is absent.
    fn enqueue<'py>(
        &self,
        inputs: &Bound<'py, PyTuple>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = inputs.py();
        let mut call = Arguments::new(py, &self.contract);
        call.read_in_order(inputs, out)?;
        let prepared = self.prepared(py, &call)?;
        self.run(py, &mut call, &prepared, Keeps::Nobody)
    }

    /// Completes and checks the arguments, runs, and returns the outputs.
    pub(crate) fn run<'py>(
        &self,
        py: Python<'py>,
        call: &mut Arguments<'_, 'py>,
        prepared: &Prepared,
        keeps: Keeps,
    ) -> PyResult<Bound<'py, PyAny>> {
        call.complete(prepared)?;
        let (lent, arrays) = call.parts();
        // SAFETY: `complete` compared every array with the plan's descriptors and device. Libraries
        // keep an array's memory until the work of their current stream is done, and DLPack orders
        // the arrays of other libraries against this stream.
        unsafe { prepared.run(py, &self.contract, lent, arrays, keeps)? };
        call.results(&self.result)
    }
}

impl Key {
    /// The key of a call.
    pub fn of(call: &Arguments<'_, '_>) -> PyResult<Self> {
        let (device, inputs, outputs) = call.described()?;
        Ok(Key { device, inputs, outputs })
    }

    /// Whether this is the key of a call.
    fn is_of(&self, call: &Arguments<'_, '_>) -> bool {
        call.are(self.device, &self.inputs, &self.outputs)
    }
}

#[pymethods]
impl Operator {
    #[new]
    fn new(
        py: Python<'_>,
        name: &str,
        options: Bound<'_, PyTuple>,
        result: Py<PyAny>,
    ) -> PyResult<Self> {
        let mut listed = spec::ops::ALL.iter().zip(MAKERS);
        let make = listed.find(|(listed, _)| {
            listed.name == name && listed.options.len() + listed.extents().len() == options.len()
        });
        let (listed, make) = make.ok_or_else(|| error::internal(py, "no such operator"))?;
        // After the options come extents, which only the shapes of outputs need.
        let values: Vec<_> = options.iter().take(listed.options.len()).collect();
        let operator = make(&values).map_err(|error| error::raise(py, &error))?;
        let (contract, known) = (Contract::new(operator, listed.extents()), Mutex::default());
        Ok(Operator { contract, options: options.unbind(), result, known })
    }

    /// The operator's name.
    #[getter]
    fn name(&self) -> &'static str {
        self.contract.name()
    }

    /// How to make it again: by the function that remembers operators.
    fn __reduce__<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let make = py.import("spec_ops._native")?.getattr("operator")?;
        let options = self.options.bind(py).iter();
        let name = self.name().into_pyobject(py)?.into_any();
        let arguments = std::iter::once(name).chain(options).collect::<Vec<_>>();
        Ok((make, PyTuple::new(py, arguments)?))
    }
}

impl std::fmt::Debug for Operator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Operator({})", self.contract.name())
    }
}
