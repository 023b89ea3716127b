//! An operator with its parameters, and its plans, as Python objects.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyList, PyTuple};
use spec::{Argument, Device, Role, Status, TensorDesc};

use crate::call::{Create, MOST};
use crate::dlpack::{Array, Refused};
use crate::error;
use crate::library::Arrays;
use crate::options::OPERATORS;
use crate::prepared::{Descs, Keeps, Output, Prepared, Shared};

/// The most shapes that an operator remembers. Creating one anew costs little more than
/// calling it.
const REMEMBERED: usize = 1024;

/// An operator with its parameters. `Operator(name, options, outputs, result)` takes the
/// options in the order of `OPERATORS[name]["options"]`, a function that says the shapes and
/// types of outputs, and what makes one result of them.
#[pyclass(frozen, module = "spec_ops._native")]
pub struct Operator {
    operator: Box<dyn Create>,
    options: Py<PyTuple>,
    outputs: Py<PyAny>,
    result: Py<PyAny>,
    known: Mutex<HashMap<Key, Shared>>,
}

/// An output of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Wanted {
    /// It is not asked for.
    Absent,
    /// It is made by the call.
    New,
    /// It is given, and like this.
    Given(TensorDesc),
}

/// What a call is remembered by.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    device: Device,
    inputs: Descs,
    outputs: [Option<Wanted>; MOST],
}

/// The arguments of a call, in the contract's order.
struct Arguments<'py> {
    lent: Arrays<'py>,
    /// What was given.
    objects: [Option<Bound<'py, PyAny>>; MOST],
    arrays: [Option<Array>; MOST],
    /// What shall become of the outputs among them.
    wanted: [Option<Wanted>; MOST],
    /// Which of the outputs this call made.
    made: [bool; MOST],
    device: Option<(&'static Argument, Device)>,
}

impl Operator {
    fn arguments(&self) -> &'static [Argument] {
        self.operator.arguments()
    }

    /// The arguments as Python passes them: what is read or changed in place by position,
    /// outputs as `out`.
    fn read<'py>(
        &self,
        inputs: &Bound<'py, PyTuple>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Arguments<'py>> {
        let py = inputs.py();
        let mut call = Arguments {
            lent: Arrays::new(py),
            objects: Default::default(),
            arrays: [None; MOST],
            wanted: [None; MOST],
            made: [false; MOST],
            device: None,
        };
        let mut given = inputs.iter_borrowed();
        for (i, argument) in self.arguments().iter().enumerate() {
            if argument.role == Role::Output {
                continue;
            }
            match given.next() {
                Some(object) if !object.is_none() => self.take(&mut call, i, &object)?,
                _ => {}
            }
        }
        if given.next().is_some() {
            let words = format!("{} takes fewer arrays", self.operator.name());
            return Err(PyTypeError::new_err(words));
        }
        self.read_outputs(&mut call, out)?;
        Ok(call)
    }

    fn read_outputs<'py>(
        &self,
        call: &mut Arguments<'py>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<()> {
        let outputs = || {
            let all = self.arguments().iter().enumerate();
            all.filter(|(_, argument)| argument.role == Role::Output)
        };
        let single = outputs().count() == 1;
        let mut given = match out {
            None => None,
            Some(out) => Some(match (out.cast::<PyTuple>(), out.cast::<PyList>()) {
                (Ok(many), _) => many.iter().collect::<Vec<_>>(),
                (_, Ok(many)) => many.iter().collect(),
                _ if single => vec![out.clone()],
                _ => {
                    let (name, kind) = (self.operator.name(), out.get_type());
                    let words = format!("{name}: `out` is a {kind}, expected a tuple of arrays");
                    return Err(PyTypeError::new_err(words));
                }
            }),
        }
        .map(Vec::into_iter);
        for (i, argument) in outputs() {
            let object = given.as_mut().and_then(Iterator::next);
            call.wanted[i] = Some(match object {
                Some(object) if object.is(PyBool::new(object.py(), true)) => Wanted::New,
                Some(object) if !object.is_none() => {
                    self.take(call, i, &object)?;
                    match &call.arrays[i] {
                        Some(array) => Wanted::Given(array.desc),
                        None => Wanted::New,
                    }
                }
                _ if argument.optional => Wanted::Absent,
                _ => Wanted::New,
            });
        }
        if given.is_some_and(|mut given| given.next().is_some()) {
            let words =
                format!("{}: `out` has more arrays than there are outputs", self.operator.name());
            return Err(PyTypeError::new_err(words));
        }
        Ok(())
    }

    /// One array as an argument.
    fn take<'py>(
        &self,
        call: &mut Arguments<'py>,
        place: usize,
        object: &Bound<'py, PyAny>,
    ) -> PyResult<()> {
        let argument = &self.arguments()[place];
        let name = self.operator.name();
        let py = object.py();
        let refuse = |refused: Refused| error::refuse(py, name, argument, refused);
        let mut array = call.lent.read(object).map_err(refuse)?;
        array.desc = same_bits(argument, array.desc);
        if array.read_only && argument.is_written() {
            let value = "read-only";
            let reason = "an array that may be written";
            let error = error::argument(Status::BadParam, name, argument.name, value, reason);
            return Err(error::raise(py, &error));
        }
        match call.device {
            None => call.device = Some((argument, array.device)),
            Some((first, device)) if device != array.device => {
                return Err(error::raise(
                    py,
                    &elsewhere(name, argument, array.device, first, device),
                ));
            }
            Some(_) => {}
        }
        call.objects[place] = Some(object.clone());
        call.arrays[place] = Some(array);
        Ok(())
    }

    /// What is ready for such a call, made if it was not.
    fn prepared(&self, py: Python<'_>, call: &Arguments<'_>) -> PyResult<Shared> {
        let key = self.key(py, call)?;
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(prepared) = known.get(&key) {
            return Ok(prepared.clone());
        }
        drop(known);
        let prepared = Arc::new(self.prepare(py, &key)?);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= REMEMBERED {
            known.clear();
        }
        known.insert(key, prepared.clone());
        Ok(prepared)
    }

    fn key(&self, py: Python<'_>, call: &Arguments<'_>) -> PyResult<Key> {
        let Some((_, device)) = call.device else {
            // Nothing was given: the library says what is missing first.
            let first = &self.arguments()[0];
            let name = self.operator.name();
            let expected = error::expected(first);
            let error = error::argument(Status::NullPointer, name, first.name, "absent", expected);
            return Err(error::raise(py, &error));
        };
        let mut inputs = [None; MOST];
        for (desc, (array, wanted)) in inputs.iter_mut().zip(call.arrays.iter().zip(&call.wanted)) {
            *desc = array.filter(|_| wanted.is_none()).map(|array| array.desc);
        }
        Ok(Key { device, inputs, outputs: call.wanted })
    }

    fn prepare(&self, py: Python<'_>, key: &Key) -> PyResult<Prepared> {
        let mut descs = key.inputs;
        for (desc, wanted) in descs.iter_mut().zip(&key.outputs) {
            if let Some(Wanted::Given(given)) = wanted {
                *desc = Some(*given);
            }
        }
        let outputs = self.new_outputs(py, key, &mut descs)?;
        Prepared::new(&*self.operator, key.device, descs, outputs)
            .map_err(|error| error::raise(py, &error))
    }

    /// The outputs that are made by calls, as `spec_ops._shapes` reads them from the
    /// contract's own words.
    fn new_outputs(
        &self,
        py: Python<'_>,
        key: &Key,
        descs: &mut Descs,
    ) -> PyResult<[Option<Output>; MOST]> {
        let mut outputs: [Option<Output>; MOST] = Default::default();
        if !key.outputs.contains(&Some(Wanted::New)) {
            return Ok(outputs);
        }
        let shapes = PyDict::new(py);
        for (argument, desc) in self.arguments().iter().zip(&key.inputs) {
            if let Some(desc) = desc {
                let shape = PyTuple::new(py, desc.shape())?;
                shapes.set_item(argument.name, (shape, desc.dtype().name()))?;
            }
        }
        let made = self.outputs.bind(py).call1((self.operator.name(), &self.options, shapes))?;
        let made = made.cast_into::<PyDict>()?;
        for (i, argument) in self.arguments().iter().enumerate() {
            if key.outputs[i] != Some(Wanted::New) {
                continue;
            }
            // Without an input that its shape depends on, or with one of another rank, the
            // library says what is wrong with that.
            let Some(output) = made.get_item(argument.name)? else {
                descs[i] = Some(TensorDesc::new(argument.dtypes[0], [0]));
                continue;
            };
            let (shape, dtype): (Vec<i64>, String) = output.extract()?;
            // A count is whatever whole number its library is at home with.
            let known = argument.dtypes.iter().find(|known| known.name() == dtype);
            let known = *known.unwrap_or(&argument.dtypes[0]);
            let desc = crate::dlpack::describe(known, &shape, &[])
                .map_err(|refused| error::refuse(py, self.operator.name(), argument, refused))?;
            descs[i] = Some(desc);
            let shape = PyTuple::new(py, shape)?.into_any().unbind();
            outputs[i] = Some(Output { shape, dtype });
        }
        Ok(outputs)
    }

    /// Makes what is to be made, checks what the contract leaves to the caller, runs, and
    /// returns the outputs.
    fn run<'py>(
        &self,
        mut call: Arguments<'py>,
        prepared: &Prepared,
        keeps: Keeps,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = self.py_of(&call);
        for (i, output) in prepared.outputs.iter().enumerate() {
            let Some(output) = output.as_ref().filter(|_| call.arrays[i].is_none()) else {
                continue;
            };
            let made = call.lent.empty(&output.shape, &output.dtype)?;
            self.take(&mut call, i, &made)?;
            call.made[i] = true;
        }
        let count = self.arguments().len();
        self.check_overlap(py, &call.arrays[..count])?;
        // SAFETY: the arrays are as described, since they were just asked, and on the plan's
        // device; nothing that is written overlaps anything else; libraries keep their memory
        // until work on their current stream is done, which DLPack orders the others against.
        unsafe { prepared.run(py, &call.lent, &call.arrays[..count], keeps)? };
        self.results(py, call)
    }

    fn py_of<'py>(&self, call: &Arguments<'py>) -> Python<'py> {
        call.lent.py()
    }

    fn results<'py>(&self, py: Python<'py>, call: Arguments<'py>) -> PyResult<Bound<'py, PyAny>> {
        let Arguments { objects, made, lent, .. } = call;
        let mut results = Vec::with_capacity(MOST);
        for ((argument, object), made) in self.arguments().iter().zip(objects).zip(made) {
            if argument.role == Role::Output {
                results.push(match object {
                    Some(object) if made => lent.finish(object)?,
                    Some(object) => object,
                    None => py.None().into_bound(py),
                });
            }
        }
        match results.len() {
            0 => Ok(py.None().into_bound(py)),
            1 => Ok(results.remove(0)),
            _ => self.result.bind(py).call1(PyTuple::new(py, results)?),
        }
    }

    /// Nothing that is written may lie over anything else.
    fn check_overlap(&self, py: Python<'_>, arrays: &[Option<Array>]) -> PyResult<()> {
        let range = |array: &Array| {
            let bytes = array.desc.span().saturating_mul(array.desc.dtype().size());
            (array.address, array.address.saturating_add(bytes as u64))
        };
        for (i, written) in arrays.iter().enumerate() {
            let argument = &self.arguments()[i];
            let Some(written) = written.as_ref().filter(|_| argument.is_written()) else {
                continue;
            };
            let (start, end) = range(written);
            for (j, other) in arrays.iter().enumerate() {
                let Some(other) = other.as_ref().filter(|_| i != j) else { continue };
                let (from, to) = range(other);
                if start < to && from < end && start < end && from < to {
                    let value = format!("in the memory of `{}`", self.arguments()[j].name);
                    let expected = "memory of its own, since it is written";
                    let name = self.operator.name();
                    let error =
                        error::argument(Status::BadParam, name, argument.name, value, expected);
                    return Err(error::raise(py, &error));
                }
            }
        }
        Ok(())
    }
}

/// An argument on another device than the first.
fn elsewhere(
    operator: &'static str,
    argument: &'static Argument,
    at: Device,
    first: &'static Argument,
    device: Device,
) -> spec::Error {
    let place = |device| match device {
        Device::CPU => "host memory".to_owned(),
        device => format!("memory on {device}"),
    };
    let same = at.backend() == device.backend();
    let status = if same { Status::BadParam } else { Status::DeviceTypeNotSupported };
    let expected = format!("{}, as `{}`", place(device), first.name);
    error::argument(status, operator, argument.name, place(at), expected)
}

/// Signed numbers where the contract takes unsigned ones alone: the same bits. Libraries
/// without unsigned types have seeds, flags and counts in them.
fn same_bits(argument: &Argument, desc: TensorDesc) -> TensorDesc {
    use spec::DType::{I32, I64, U32, U64};
    let other = match desc.dtype() {
        I64 => U64,
        I32 => U32,
        _ => return desc,
    };
    if argument.dtypes.contains(&desc.dtype()) || !argument.dtypes.contains(&other) {
        return desc;
    }
    let (shape, strides) = (desc.shape(), desc.strides());
    let signed = |numbers: &[usize]| numbers.iter().map(|&n| n as i64).collect::<Vec<_>>();
    let steps: Vec<_> = strides.iter().map(|&n| n as i64).collect();
    crate::dlpack::describe(other, &signed(shape), &steps).unwrap_or(desc)
}

#[pymethods]
impl Operator {
    #[new]
    fn new(
        py: Python<'_>,
        name: &str,
        options: Bound<'_, PyTuple>,
        outputs: Py<PyAny>,
        result: Py<PyAny>,
    ) -> PyResult<Self> {
        let listed = OPERATORS.iter().find(|listed| listed.name == name);
        let listed = listed.ok_or_else(|| error::internal("no such operator"))?;
        let values: Vec<_> = options.iter().collect();
        let operator = (listed.make)(&values).map_err(|error| error::raise(py, &error))?;
        let known = Mutex::default();
        Ok(Operator { operator, options: options.unbind(), outputs, result, known })
    }

    /// Enqueues the operator on these arrays. What is read or changed in place comes by
    /// position, in the contract's order, None where it is absent; `out` has the outputs.
    #[pyo3(signature = (*inputs, out=None))]
    fn __call__<'py>(
        &self,
        inputs: &Bound<'py, PyTuple>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let call = self.read(inputs, out)?;
        let prepared = self.prepared(inputs.py(), &call)?;
        self.run(call, &prepared, Keeps::Nobody)
    }

    /// A plan for calls with arrays like these.
    #[pyo3(signature = (*inputs, out=None))]
    fn plan<'py>(
        slf: Bound<'py, Self>,
        inputs: &Bound<'py, PyTuple>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Plan> {
        let py = inputs.py();
        let operator = slf.get();
        let call = operator.read(inputs, out)?;
        let prepared = operator.prepare(py, &operator.key(py, &call)?)?;
        Ok(Plan { operator: slf.unbind(), prepared })
    }

    /// The operator's name.
    #[getter]
    fn name(&self) -> &'static str {
        self.operator.name()
    }
}

/// An operator made for arrays of certain shapes and types on a device, with a workspace of
/// its own for each stream. Calls check that arrays are like that, enqueue, and do nothing
/// else.
#[pyclass(frozen, module = "spec_ops._native")]
pub struct Plan {
    operator: Py<Operator>,
    prepared: Prepared,
}

#[pymethods]
impl Plan {
    /// Enqueues the operator. Arrays as `Operator.__call__` takes them, those that the plan
    /// was made without left out or None.
    #[pyo3(signature = (*inputs, out=None))]
    fn __call__<'py>(
        &self,
        inputs: &Bound<'py, PyTuple>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let operator = self.operator.get();
        let call = operator.read(inputs, out)?;
        self.check(inputs.py(), operator, &call)?;
        operator.run(call, &self.prepared, Keeps::Plan)
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

    fn __repr__(&self) -> String {
        format!("<plan of {} on {}>", self.operator.get().operator.name(), self.device())
    }
}

impl Plan {
    fn check(&self, py: Python<'_>, operator: &Operator, call: &Arguments<'_>) -> PyResult<()> {
        let name = operator.operator.name();
        let wrong = |argument: &'static Argument, value: String, expected: String| {
            let error =
                error::argument(Status::BadTensorShape, name, argument.name, value, expected);
            Err(error::raise(py, &error))
        };
        let words =
            |desc: Option<TensorDesc>| desc.map_or("absent".to_owned(), |desc| format!("{desc:?}"));
        for (i, argument) in operator.arguments().iter().enumerate() {
            let planned = self.prepared.descs[i];
            let given = call.arrays[i].map(|array| array.desc);
            // An output that is not given is made.
            let made = given.is_none() && self.prepared.outputs[i].is_some();
            if planned != given && !made {
                return wrong(argument, words(given), format!("{}, as planned", words(planned)));
            }
        }
        match call.device {
            Some((argument, device)) if device != self.prepared.device() => {
                let planned = self.prepared.device();
                wrong(argument, format!("on {device}"), format!("memory on {planned}, as planned"))
            }
            _ => Ok(()),
        }
    }
}

impl std::fmt::Debug for Operator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Operator({})", self.operator.name())
    }
}

impl std::fmt::Debug for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Plan(on {})", self.prepared.device())
    }
}
