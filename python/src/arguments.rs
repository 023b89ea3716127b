//! The arguments of one call: read from Python's objects, completed by the outputs that the
//! call makes, and compared with what the plan announced.

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyList, PyString, PyTuple};
use spec::{Argument, Device, Role, Status, TensorDesc};

use crate::call::MOST;
use crate::contract::Contract;
use crate::dlpack::{self, Array, Refused};
use crate::error;
use crate::library::Arrays;
use crate::prepared::{Descs, Prepared};

/// An output of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// It is not asked for.
    Absent,
    /// It is made by the call.
    New,
    /// It is given, and like this.
    Given(TensorDesc),
}

/// By argument, what shall become of it where it is an output.
pub type Outputs = [Option<Wanted>; MOST];

/// By argument, the object that a call passes where the argument is no output.
pub type Inputs<'py> = [Option<Bound<'py, PyAny>>; MOST];

/// What a call passes in the contract's order, None for what is absent.
///
/// # Errors
/// Where there are more objects than arguments.
pub fn in_order<'py>(contract: &Contract, objects: &Bound<'py, PyTuple>) -> PyResult<Inputs<'py>> {
    by_position(contract, objects, contract.inputs().map(|(i, _)| i))
}

/// What a call passes by position, where it is required, or by name.
///
/// # Errors
/// Where there are more objects than required arguments, and for a name that no argument has
/// or that was given twice.
pub fn by_name<'py>(
    contract: &Contract,
    objects: &Bound<'py, PyTuple>,
    named: Option<&Bound<'py, PyDict>>,
) -> PyResult<Inputs<'py>> {
    let required = contract.inputs().filter(|(_, argument)| !argument.optional);
    let mut inputs = by_position(contract, objects, required.map(|(i, _)| i))?;
    for (name, object) in named.into_iter().flatten() {
        let name = name.cast::<PyString>()?.to_cow()?;
        let free = contract.inputs().find(|(i, known)| known.name == name && inputs[*i].is_none());
        let Some((i, _)) = free else {
            let names: Vec<_> = contract.inputs().map(|(_, known)| known.name).collect();
            let known = if names.contains(&&*name) { "was passed twice" } else { "is unknown" };
            let names = names.join(", ");
            let words =
                format!("{}: `{name}` {known}, expected one of {names}, out", contract.name());
            return Err(error::signature(objects.py(), words));
        };
        inputs[i] = Some(object);
    }
    Ok(inputs)
}

fn by_position<'py>(
    contract: &Contract,
    objects: &Bound<'py, PyTuple>,
    mut places: impl Iterator<Item = usize>,
) -> PyResult<Inputs<'py>> {
    let mut inputs = Inputs::default();
    for object in objects.iter_borrowed() {
        let Some(place) = places.next() else {
            let words = format!("{} takes fewer arrays by position", contract.name());
            return Err(error::signature(objects.py(), words));
        };
        if !object.is_none() {
            inputs[place] = Some(object.to_owned());
        }
    }
    Ok(inputs)
}

/// The arguments of a call, in the contract's order.
pub struct Arguments<'a, 'py> {
    contract: &'a Contract,
    lent: Arrays<'py>,
    /// What was given.
    objects: [Option<Bound<'py, PyAny>>; MOST],
    arrays: [Option<Array>; MOST],
    wanted: Outputs,
    /// Which of the outputs this call made.
    made: [bool; MOST],
    /// The first array's argument, and where that array lies.
    device: Option<(&'static Argument, Device)>,
}

impl<'a, 'py> Arguments<'a, 'py> {
    /// No arguments yet. They are kilobytes, so that a call makes them once and moves them
    /// nowhere.
    #[inline]
    pub fn new(py: Python<'py>, contract: &'a Contract) -> Self {
        Arguments {
            contract,
            lent: Arrays::new(py),
            objects: Default::default(),
            arrays: [None; MOST],
            wanted: [None; MOST],
            made: [false; MOST],
            device: None,
        }
    }

    /// Reads the arguments of a call: what is read or changed in place, and outputs as `out`.
    pub fn read(&mut self, inputs: Inputs<'py>, out: Option<&Bound<'py, PyAny>>) -> PyResult<()> {
        let mut others = Vec::new();
        for (i, object) in inputs.into_iter().enumerate() {
            let Some(object) = object.filter(|object| !object.is_none()) else { continue };
            match self.lent.read(&object) {
                Err(Refused::NoArray(what)) => others.push((i, object, what)),
                read => self.put(i, object, read)?,
            }
        }
        // A number stands for a vector whose length follows from the arrays.
        for (i, object, what) in others {
            match self.spread(i, &object)? {
                Some(vector) => self.take(i, vector)?,
                None => self.put(i, object, Err(Refused::NoArray(what)))?,
            }
        }
        self.read_outputs(out)
    }

    fn read_outputs(&mut self, out: Option<&Bound<'py, PyAny>>) -> PyResult<()> {
        let (py, contract) = (self.py(), self.contract);
        let outputs = || {
            let all = contract.arguments().iter().enumerate();
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
                    let (name, kind) = (contract.name(), out.get_type());
                    let words = format!("{name}: `out` is a {kind}, expected a tuple of arrays");
                    return Err(error::signature(py, words));
                }
            }),
        }
        .map(Vec::into_iter);
        for (i, argument) in outputs() {
            let object = given.as_mut().and_then(Iterator::next);
            self.wanted[i] = Some(match object {
                Some(object) if object.is(PyBool::new(py, true)) => Wanted::New,
                Some(object) if !object.is_none() => {
                    self.take(i, object)?;
                    match &self.arrays[i] {
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
                format!("{}: `out` has more arrays than there are outputs", contract.name());
            return Err(error::signature(py, words));
        }
        Ok(())
    }

    /// One array as an argument.
    fn take(&mut self, place: usize, object: Bound<'py, PyAny>) -> PyResult<()> {
        let read = self.lent.read(&object);
        self.put(place, object, read)
    }

    /// One array as an argument, as it was read.
    fn put(
        &mut self,
        place: usize,
        mut object: Bound<'py, PyAny>,
        read: Result<Array, Refused>,
    ) -> PyResult<()> {
        let (py, contract) = (self.py(), self.contract);
        let argument = &contract.arguments()[place];
        let refuse = |refused| contract.refuse(py, argument, refused);
        let mut array = read.map_err(refuse)?;
        array.desc = same_bits(argument, array.desc);
        let refused =
            argument.role == Role::Input && !argument.dtypes.contains(&array.desc.dtype());
        if refused && let Some(converted) = self.converted(argument, &object, array.desc)? {
            array = self.lent.read(&converted).map_err(refuse)?;
            array.desc = same_bits(argument, array.desc);
            object = converted;
        }
        if array.read_only && argument.is_written() {
            let expected = "an array that may be written";
            return Err(contract.wrong(py, argument, Status::BadParam, "read-only", expected));
        }
        match self.device {
            None => self.device = Some((argument, array.device)),
            Some((first, device)) if device != array.device => {
                return Err(self.elsewhere(argument, array.device, first, device));
            }
            Some(_) => {}
        }
        self.objects[place] = Some(object);
        self.arrays[place] = Some(array);
        Ok(())
    }

    /// A vector that a number stands for; `None` where no number may stand for the argument.
    fn spread(
        &self,
        place: usize,
        number: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let (py, contract) = (self.py(), self.contract);
        let Some(like) = self.lent.first() else { return Ok(None) };
        let shapes = PyDict::new(py);
        for (argument, array) in contract.arguments().iter().zip(&self.arrays) {
            if let Some(array) = array {
                shapes.set_item(argument.name, PyTuple::new(py, array.desc.shape())?)?;
            }
        }
        let name = contract.arguments()[place].name;
        let asked = (contract.name(), name, number, like, shapes);
        self.of_python("spread", asked, name)
    }

    /// An array of another width as the contract has it; `None` where it is refused.
    fn converted(
        &self,
        argument: &'static Argument,
        object: &Bound<'py, PyAny>,
        desc: TensorDesc,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let asked = (argument.name, object, desc.dtype().name());
        self.of_python("converted", asked, argument.name)
    }

    /// What a function of `spec_ops._convert` makes of an argument.
    fn of_python(
        &self,
        function: &str,
        arguments: impl pyo3::call::PyCallArgs<'py>,
        name: &'static str,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = self.py();
        let module = py.import("spec_ops._convert")?;
        let made = module.call_method1(function, arguments).map_err(|raised| {
            self.contract.foreign(py, &format!("no array for `{name}`"), raised)
        })?;
        Ok(Some(made).filter(|made| !made.is_none()))
    }

    /// An argument on another device than the first.
    fn elsewhere(
        &self,
        argument: &Argument,
        at: Device,
        first: &'static Argument,
        device: Device,
    ) -> PyErr {
        let same = at.backend() == device.backend();
        let status = if same { Status::BadParam } else { Status::DeviceTypeNotSupported };
        let expected = format!("{}, as `{}`", place(device), first.name);
        self.contract.wrong(self.py(), argument, status, place(at), expected)
    }

    fn py(&self) -> Python<'py> {
        self.lent.py()
    }

    /// The arrays, and what they were lent by.
    pub fn parts(&self) -> (&Arrays<'py>, &[Option<Array>]) {
        (&self.lent, &self.arrays[..self.contract.arguments().len()])
    }

    /// What a plan for such a call is made for.
    ///
    /// # Errors
    /// Where no array was given at all.
    pub fn described(&self) -> PyResult<(Device, Descs, Outputs)> {
        let Some((_, device)) = self.device else {
            // The library says what is missing first.
            let first = &self.contract.arguments()[0];
            let expected = Contract::expected(first);
            let status = Status::NullPointer;
            return Err(self.contract.wrong(self.py(), first, status, "absent", expected));
        };
        let mut inputs = [None; MOST];
        for (desc, (array, wanted)) in inputs.iter_mut().zip(self.arrays.iter().zip(&self.wanted)) {
            *desc = array.filter(|_| wanted.is_none()).map(|array| array.desc);
        }
        Ok((device, inputs, self.wanted))
    }

    /// Makes the outputs that are to be made, and compares every argument, whoever made it, with
    /// what the plan announced: operators write as far as the plan says, not as far as an array
    /// reaches.
    ///
    /// # Errors
    /// Where an argument differs in element type, shape, strides or device, and where its
    /// library makes no array.
    pub fn complete(&mut self, prepared: &Prepared) -> PyResult<()> {
        let py = self.py();
        self.check_device(prepared)?;
        for (i, argument) in self.contract.arguments().iter().enumerate() {
            let planned = prepared.descs[i];
            let made = prepared.outputs[i].as_ref().filter(|_| self.arrays[i].is_none());
            if let Some(output) = made {
                let array = self.lent.empty(&output.shape, &output.dtype).map_err(|raised| {
                    let doing = format!("`{}` was not made", argument.name);
                    self.contract.foreign(py, &doing, raised)
                })?;
                self.take(i, array)?;
                self.made[i] = true;
            }
            let given = self.arrays[i].map(|array| array.desc);
            if planned != given {
                let mut value = words(given, planned);
                if self.made[i] {
                    value = format!("{value}, as {} made it", self.lent.maker());
                }
                let expected = format!("{}, as planned", words(planned, given));
                let status = difference(given, planned);
                return Err(self.contract.wrong(py, argument, status, value, expected));
            }
        }
        self.check_overlap()
    }

    fn check_device(&self, prepared: &Prepared) -> PyResult<()> {
        match self.device {
            Some((argument, device)) if device != prepared.device() => {
                let expected = format!("{}, as planned", place(prepared.device()));
                let status = Status::BadTensorShape;
                Err(self.contract.wrong(self.py(), argument, status, place(device), expected))
            }
            _ => Ok(()),
        }
    }

    /// Nothing that is written may lie over anything else.
    fn check_overlap(&self) -> PyResult<()> {
        // What has no memory lies nowhere: the library refuses a null pointer itself.
        let range = |array: &Array| {
            let bytes = array.desc.span().saturating_mul(array.desc.dtype().size());
            let bytes = if array.address == 0 { 0 } else { bytes };
            (array.address, array.address.saturating_add(bytes as u64))
        };
        let contract = self.contract;
        let (_, arrays) = self.parts();
        for (i, written) in arrays.iter().enumerate() {
            let argument = &contract.arguments()[i];
            let Some(written) = written.as_ref().filter(|_| argument.is_written()) else {
                continue;
            };
            let (start, end) = range(written);
            for (j, other) in arrays.iter().enumerate() {
                let Some(other) = other.as_ref().filter(|_| i != j) else { continue };
                let (from, to) = range(other);
                if start < to && from < end && start < end && from < to {
                    let value = format!("in the memory of `{}`", contract.arguments()[j].name);
                    let expected = "memory of its own, since it is written";
                    let status = Status::BadParam;
                    return Err(contract.wrong(self.py(), argument, status, value, expected));
                }
            }
        }
        Ok(())
    }

    /// The outputs, made one result by `result` where there are several.
    pub fn results(&mut self, result: &Py<PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = self.py();
        let objects = std::mem::take(&mut self.objects);
        let Arguments { contract, made, lent, .. } = self;
        let mut results = Vec::with_capacity(MOST);
        for ((argument, object), made) in contract.arguments().iter().zip(objects).zip(*made) {
            if argument.role == Role::Output {
                results.push(match object {
                    Some(object) if made => lent.finish(object).map_err(|raised| {
                        let doing = format!("`{}` was not handed over", argument.name);
                        contract.foreign(py, &doing, raised)
                    })?,
                    Some(object) => object,
                    None => py.None().into_bound(py),
                });
            }
        }
        match results.len() {
            0 => Ok(py.None().into_bound(py)),
            1 => Ok(results.remove(0)),
            _ => result.bind(py).call1((PyTuple::new(py, results)?,)),
        }
    }
}

/// Where memory of a device is, in words.
fn place(device: Device) -> String {
    match device {
        Device::CPU => "host memory".to_owned(),
        device => format!("memory on {device}"),
    }
}

/// An array in words: with its strides where `other` is the same but for these.
fn words(desc: Option<TensorDesc>, other: Option<TensorDesc>) -> String {
    let same = |one: TensorDesc, other: TensorDesc| {
        one.dtype() == other.dtype() && one.shape() == other.shape()
    };
    match (desc, other) {
        (Some(desc), Some(other)) if same(desc, other) => format!("{desc:?}"),
        (Some(desc), _) => desc.to_string(),
        (None, _) => "absent".to_owned(),
    }
}

/// What two arrays differ in.
fn difference(given: Option<TensorDesc>, planned: Option<TensorDesc>) -> Status {
    match (given, planned) {
        (Some(given), Some(planned)) if given.dtype() != planned.dtype() => Status::BadTensorDtype,
        (Some(given), Some(planned)) if given.shape() == planned.shape() => {
            Status::BadTensorStrides
        }
        _ => Status::BadTensorShape,
    }
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
    dlpack::describe(other, &signed(shape), &steps).unwrap_or(desc)
}
