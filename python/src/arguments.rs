//! The arguments of one call. They are read from Python objects, completed by the outputs that
//! the call makes, and compared with the arguments that the plan was made for.

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyList, PyString, PyTuple};
use spec::{Argument, Device, Role, Status, TensorDesc};

use crate::call::MAX_ARGUMENTS;
use crate::contract::Contract;
use crate::dlpack::{self, Array, Refused};
use crate::error;
use crate::library::{self, Arrays};
use crate::prepared::{Descs, Prepared};

/// How a call treats an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The caller does not want the output.
    Absent,
    /// The call makes a new array for the output.
    New,
    /// The caller gives an array with this description.
    Given(TensorDesc),
}

/// For each argument that is an output, how the call treats it.
pub type Outputs = [Option<Wanted>; MAX_ARGUMENTS];

/// For each argument that is not an output, the object that the caller passes.
pub type Inputs<'py> = [Option<Bound<'py, PyAny>>; MAX_ARGUMENTS];

/// A number that stands for a vector: how many elements there are, their type, and the number.
type Vector<'py> = (i64, String, Bound<'py, PyAny>);

/// The inputs of a call that passes required arguments by position or by name, and the others by
/// name.
///
/// # Errors
/// If there are more objects than required arguments, if no argument has a given name, or if an
/// argument is given twice.
pub fn by_name<'py>(
    contract: &Contract,
    objects: &Bound<'py, PyTuple>,
    named: Option<&Bound<'py, PyDict>>,
) -> PyResult<Inputs<'py>> {
    let mut required = contract.inputs().filter(|(_, argument)| !argument.optional);
    let mut inputs = Inputs::default();
    for object in objects.iter_borrowed() {
        let (place, _) = required.next().ok_or_else(|| too_many(contract, objects.py()))?;
        inputs[place] = Some(object.to_owned()).filter(|object| !object.is_none());
    }
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

fn too_many(contract: &Contract, py: Python<'_>) -> PyErr {
    error::signature(py, format!("{} takes fewer arrays by position", contract.name()))
}

/// The arguments of a call, in the contract's order.
pub struct Arguments<'a, 'py> {
    contract: &'a Contract,
    lent: Arrays<'py>,
    /// The objects that the caller passed.
    objects: [Option<Bound<'py, PyAny>>; MAX_ARGUMENTS],
    arrays: [Option<Array>; MAX_ARGUMENTS],
    wanted: Outputs,
    /// Whether this call made the array of an argument.
    made: [bool; MAX_ARGUMENTS],
    /// The arguments that are numbers in the place of vectors. Until [`complete`](Self::complete)
    /// makes the vectors, `arrays` has their descriptions, without memory.
    numbers: Vec<(usize, Vector<'py>)>,
    /// The argument of the first array, and the device of this array.
    device: Option<(&'static Argument, Device)>,
}

impl<'a, 'py> Arguments<'a, 'py> {
    /// Empty arguments. The struct has several kilobytes, so a call makes it once and does not
    /// move it.
    #[inline]
    pub fn new(py: Python<'py>, contract: &'a Contract) -> Self {
        Arguments {
            contract,
            lent: Arrays::new(py),
            objects: Default::default(),
            arrays: [None; MAX_ARGUMENTS],
            wanted: [None; MAX_ARGUMENTS],
            made: [false; MAX_ARGUMENTS],
            numbers: Vec::new(),
            device: None,
        }
    }

    /// Reads the arguments of a call: `inputs` are read or changed in place, `out` has the outputs.
    pub fn read(&mut self, inputs: Inputs<'py>, out: Option<&Bound<'py, PyAny>>) -> PyResult<()> {
        let given = inputs.into_iter().enumerate();
        self.read_all(given.filter_map(|(i, object)| Some((i, object?))), out)
    }

    /// As [`read`](Self::read), for `inputs` that stand in the contract's order, with None for
    /// absent ones.
    ///
    /// # Errors
    /// Also if there are more objects than arguments.
    pub fn read_in_order(
        &mut self,
        inputs: &Bound<'py, PyTuple>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<()> {
        let contract = self.contract;
        if inputs.len() > contract.inputs().count() {
            return Err(too_many(contract, self.py()));
        }
        let given = contract.inputs().zip(inputs.iter());
        self.read_all(given.map(|((i, _), object)| (i, object)), out)
    }

    #[inline]
    fn read_all(
        &mut self,
        inputs: impl Iterator<Item = (usize, Bound<'py, PyAny>)>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<()> {
        let mut others = Vec::new();
        for (i, object) in inputs {
            if object.is_none() {
                continue;
            }
            match self.lent.read(&object) {
                Err(Refused::NoArray(what)) => others.push((i, object, what)),
                read => self.put(i, object, read)?,
            }
        }
        // A number stands for a vector, whose length follows from the other arrays.
        let mut numbers = Vec::with_capacity(others.len());
        for (i, object, what) in others {
            match self.spread(i, &object)? {
                Some(vector) => numbers.push((i, vector)),
                None => self.put(i, object, Err(Refused::NoArray(what)))?,
            }
        }
        for (i, vector) in &numbers {
            self.arrays[*i] = Some(self.described_vector(*i, vector)?);
        }
        self.numbers = numbers;
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

    /// Reads an object as the array of an argument.
    fn take(&mut self, place: usize, object: Bound<'py, PyAny>) -> PyResult<()> {
        let read = self.lent.read(&object);
        self.put(place, object, read)
    }

    /// Stores the array of an argument, or reports why the object is no array.
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

    /// The vector that a number stands for; `None` if the argument may not be a number.
    fn spread(&self, place: usize, number: &Bound<'py, PyAny>) -> PyResult<Option<Vector<'py>>> {
        let (py, contract) = (self.py(), self.contract);
        if self.lent.first().is_none() {
            return Ok(None);
        }
        let shapes = PyDict::new(py);
        for (argument, array) in contract.arguments().iter().zip(&self.arrays) {
            if let Some(array) = array {
                shapes.set_item(argument.name, PyTuple::new(py, array.desc.shape())?)?;
            }
        }
        let name = contract.arguments()[place].name;
        let asked = (contract.name(), name, number, shapes);
        let vector = self.of_python("vector", asked, name)?;
        vector.map(|vector| vector.extract()).transpose()
    }

    /// The description of the vector that a number stands for, without memory.
    fn described_vector(&self, place: usize, vector: &Vector<'py>) -> PyResult<Array> {
        let argument = &self.contract.arguments()[place];
        let (count, dtype, _) = vector;
        let desc = library::dtype(dtype)
            .and_then(|dtype| dlpack::describe(dtype, &[*count], &[]))
            .map_err(|refused| self.contract.refuse(self.py(), argument, refused))?;
        let device = self.device.map_or(Device::CPU, |(_, device)| device);
        Ok(Array { desc: same_bits(argument, desc), address: 0, device, read_only: false })
    }

    /// An array converted to the width that the contract asks for; `None` if the argument allows
    /// no conversion.
    fn converted(
        &self,
        argument: &'static Argument,
        object: &Bound<'py, PyAny>,
        desc: TensorDesc,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let asked = (argument.name, object, desc.dtype().name());
        self.of_python("converted", asked, argument.name)
    }

    /// Calls a function of `spec_ops._convert` for an argument.
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

    /// The error for an argument on another device than the first argument.
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

    /// The arrays, and the libraries that lent them.
    pub fn parts(&self) -> (&Arrays<'py>, &[Option<Array>]) {
        (&self.lent, &self.arrays[..self.contract.arguments().len()])
    }

    /// A hash of the shapes of the inputs, which tell calls apart well enough.
    pub fn hash(&self) -> u64 {
        let mut hash: u64 = 0;
        for array in self.arrays.iter().zip(&self.wanted).filter(|(_, wanted)| wanted.is_none()) {
            for &extent in array.0.iter().flat_map(|array| array.desc.shape()) {
                // A step of FxHash, which is a few instructions long.
                hash = (hash.rotate_left(5) ^ extent as u64).wrapping_mul(0x517c_c1b7_2722_0a95);
            }
        }
        hash
    }

    /// Whether a plan for this device, these inputs and these outputs is one for this call.
    pub fn are(&self, device: Device, inputs: &Descs, outputs: &Outputs) -> bool {
        let count = self.contract.arguments().len();
        let mut given = self.arrays.iter().zip(&self.wanted).zip(inputs.iter().zip(outputs));
        self.device.is_some_and(|(_, found)| found == device)
            && given.by_ref().take(count).all(|((array, wanted), (input, output))| {
                let desc = array.as_ref().filter(|_| wanted.is_none()).map(|array| &array.desc);
                desc == input.as_ref() && wanted == output
            })
    }

    /// The device, the inputs and the outputs that a plan for this call is made for.
    ///
    /// # Errors
    /// If no array was given.
    pub fn described(&self) -> PyResult<(Device, Descs, Outputs)> {
        let Some((_, device)) = self.device else {
            // Names the first missing argument, as the library would.
            let first = &self.contract.arguments()[0];
            let expected = Contract::expected(first);
            let status = Status::NullPointer;
            return Err(self.contract.wrong(self.py(), first, status, "absent", expected));
        };
        let mut inputs = [None; MAX_ARGUMENTS];
        for (desc, (array, wanted)) in inputs.iter_mut().zip(self.arrays.iter().zip(&self.wanted)) {
            *desc = array.filter(|_| wanted.is_none()).map(|array| array.desc);
        }
        Ok((device, inputs, self.wanted))
    }

    /// Compares every argument with the plan, makes the new outputs and the vectors of numbers,
    /// compares these too, and tells the libraries of arrays what is about to be written. The
    /// comparison is needed because operators write as many elements as the plan says, not as many
    /// as an array has. What is given is compared before anything is made.
    ///
    /// # Errors
    /// If an argument differs from the plan in element type, shape, strides or device; if its
    /// library fails to make an array, or refuses that one is written.
    pub fn complete(&mut self, prepared: &Prepared) -> PyResult<()> {
        self.check_device(prepared)?;
        let count = self.contract.arguments().len();
        let is_new = |arguments: &Self, i: usize| {
            prepared.outputs[i].is_some() && arguments.arrays[i].is_none()
        };
        for i in 0..count {
            if !is_new(self, i) {
                self.compare(i, prepared)?;
            }
        }
        for (i, vector) in std::mem::take(&mut self.numbers) {
            let name = self.contract.arguments()[i].name;
            let asked = (self.lent.first(), vector);
            if let Some(made) = self.of_python("filled", asked, name)? {
                self.take(i, made)?;
            }
            self.compare(i, prepared)?;
        }
        for i in 0..count {
            if is_new(self, i) {
                self.make(i, prepared)?;
                self.compare(i, prepared)?;
            }
        }
        self.announce()
    }

    /// Makes the array of an output.
    fn make(&mut self, place: usize, prepared: &Prepared) -> PyResult<()> {
        let (py, argument) = (self.py(), &self.contract.arguments()[place]);
        let Some(new) = &prepared.outputs[place] else { return Ok(()) };
        let made = self.lent.make(new, prepared.device()).map_err(|raised| {
            let doing = format!("`{}` was not made", argument.name);
            self.contract.foreign(py, &doing, raised)
        })?;
        match made {
            (object, None) => self.take(place, object)?,
            (object, Some(mut array)) => {
                array.desc = same_bits(argument, array.desc);
                self.objects[place] = Some(object);
                self.arrays[place] = Some(array);
            }
        }
        self.made[place] = true;
        Ok(())
    }

    /// Compares an argument with the plan.
    fn compare(&self, place: usize, prepared: &Prepared) -> PyResult<()> {
        let planned = prepared.descs[place];
        let given = self.arrays[place].map(|array| array.desc);
        if planned == given {
            return Ok(());
        }
        let mut value = words(given, planned);
        if self.made[place] {
            value = format!("{value}, as {} made it", self.lent.maker());
        }
        let argument = &self.contract.arguments()[place];
        let expected = format!("{}, as planned", words(planned, given));
        let status = difference(given, planned);
        Err(self.contract.wrong(self.py(), argument, status, value, expected))
    }

    /// Tells the libraries of arrays which of them the call is about to write.
    fn announce(&self) -> PyResult<()> {
        let arguments = self.contract.arguments().iter();
        let written: Vec<_> = arguments
            .zip(&self.objects)
            .zip(self.made)
            .filter(|((argument, _), made)| argument.is_written() && !made)
            .filter_map(|((argument, object), _)| Some((argument, object.clone()?)))
            .collect();
        if written.is_empty() {
            return Ok(());
        }
        let (arguments, objects): (Vec<_>, Vec<_>) = written.into_iter().unzip();
        let refused = self.lent.announce(&objects).map_err(|raised| {
            self.contract.foreign(self.py(), "an array was not marked as written", raised)
        })?;
        match refused {
            None => Ok(()),
            Some((place, (what, pass))) => {
                let status = Status::BadParam;
                Err(self.contract.wrong(self.py(), arguments[place], status, what, pass))
            }
        }
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

    /// The outputs as the result of the call. If there are several, `result` makes one object of
    /// them.
    pub fn results(&mut self, result: &Py<PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = self.py();
        let objects = std::mem::take(&mut self.objects);
        let Arguments { contract, made, lent, .. } = self;
        let mut results = Vec::with_capacity(contract.arguments().len());
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

/// A text for the memory of a device.
fn place(device: Device) -> String {
    match device {
        Device::CPU => "host memory".to_owned(),
        device => format!("memory on {device}"),
    }
}

/// A text for an array. The text has the strides if `other` differs only in its strides.
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

/// The status for the first difference between two arrays.
fn difference(given: Option<TensorDesc>, planned: Option<TensorDesc>) -> Status {
    match (given, planned) {
        (Some(given), Some(planned)) if given.dtype() != planned.dtype() => Status::BadTensorDtype,
        (Some(given), Some(planned)) if given.shape() == planned.shape() => {
            Status::BadTensorStrides
        }
        _ => Status::BadTensorShape,
    }
}

/// Takes signed integers as unsigned integers with the same bits, if the contract allows only
/// unsigned ones. Libraries without unsigned dtypes hold seeds, flags and counts in signed
/// integers.
pub fn same_bits(argument: &Argument, desc: TensorDesc) -> TensorDesc {
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
