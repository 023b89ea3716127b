//! Several operators that one call from Python enqueues.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use spec::{Address, Argument, DType, Device, Role, Status, TensorDesc};

use crate::arguments::{Wanted, same_bits};
use crate::call::{Call, MAX_ARGUMENTS};
use crate::contract::Contract;
use crate::device;
use crate::dlpack::{self, Array};
use crate::error;
use crate::library::{self, Arrays, Fresh};
use crate::operator::Key;
use crate::prepared::Descs;
use crate::stages::{Maker, Stage, described, inputs, signature};
use crate::workspace::{Keeps, Need, Workspaces};

/// The largest number of shapes for which a pipeline keeps its operators.
const REMEMBERED: usize = 1024;

/// The alignment of the memory between operators.
const ALIGNMENT: usize = 256;

/// Operators that one call enqueues, one after the other, on one stream.
///
/// `Pipeline(arrays, stages, results, first)` names the arrays that a call takes, in order. A stage is
/// an operator, or an operator and a dict from its arguments' names to names of arrays; other
/// arguments have the arrays of their own names. `results` names the outputs that a call makes and
/// returns, each with an element type or None. Every other output that nobody passes is kept
/// between the stages, in memory of the pipeline. No two stages write the same output. `first` says
/// of which arrays a call uses the first elements only, as many as another array has rows.
///
/// The operators are created once for each set of shapes. A call costs what reading its arrays
/// and enqueueing costs.
#[pyclass(frozen, module = "spec_ops._native")]
pub struct Pipeline {
    /// The arrays: those that a call takes, the results, then those that are kept.
    names: Vec<String>,
    /// How many arrays a call takes.
    taken: usize,
    /// The element types of the results, where they are said.
    results: Vec<Option<DType>>,
    stages: Vec<Stage>,
    /// For each array, the first stage that uses it, and the argument that it is there.
    users: Vec<(usize, usize)>,
    /// Whether a stage writes an array that calls pass.
    written: Vec<bool>,
    /// Pairs of arrays: the first elements of the former are used, as many as the latter has rows.
    first: Vec<(usize, usize)>,
    /// How to make the pipeline again.
    made_of: Py<PyTuple>,
    known: Mutex<HashMap<u64, Vec<Arc<Ready>>>>,
    /// The memory that calls of all shapes share, by device.
    workspaces: Mutex<Vec<Arc<Workspaces>>>,
}

/// A pipeline for arrays of certain shapes and types on a device.
struct Ready {
    /// The descriptors of the arrays that a call takes.
    taken: Vec<Option<TensorDesc>>,
    steps: Vec<Step>,
    /// The results, each with its descriptor.
    results: Vec<(Fresh, TensorDesc)>,
    /// The arrays that are kept, and where they lie behind the operators' own workspace.
    kept: Vec<(usize, usize)>,
    /// Memory for these and for the operators.
    need: Need,
    workspaces: Arc<Workspaces>,
}

/// An operator that was created for certain shapes.
struct Step {
    call: Box<dyn Call>,
    /// For each argument, the array; `None` if the argument is absent.
    arrays: Vec<Option<usize>>,
}

/// The arrays of one call.
struct Given<'py> {
    lent: Arrays<'py>,
    objects: Vec<Option<Bound<'py, PyAny>>>,
    arrays: Vec<Option<Array>>,
    device: Option<Device>,
}

impl Given<'_> {
    /// A hash of the shapes, which tell calls apart well enough.
    fn hash(&self) -> u64 {
        let extents = self.arrays.iter().flatten().flat_map(|array| array.desc.shape());
        extents.fold(0, |hash: u64, &extent| {
            // A step of FxHash, which is a few instructions long.
            (hash.rotate_left(5) ^ extent as u64).wrapping_mul(0x517c_c1b7_2722_0a95)
        })
    }

    fn are(&self, ready: &Ready) -> bool {
        let descs = self.arrays.iter().map(|array| array.as_ref().map(|array| &array.desc));
        self.device == Some(ready.workspaces.device())
            && descs.eq(ready.taken.iter().map(Option::as_ref))
    }
}

impl Pipeline {
    /// The first argument that uses an array, with its operator's contract.
    fn user(&self, array: usize) -> (&Contract, &'static Argument) {
        let (stage, place) = self.users[array];
        let contract = self.stages[stage].operator.get().contract();
        (contract, &contract.arguments()[place])
    }

    /// The error for an array that is not as expected.
    fn wrong(&self, py: Python<'_>, array: usize, is: &str, expected: &str) -> PyErr {
        let (contract, argument) = self.user(array);
        contract.wrong(py, argument, Status::BadParam, is, expected)
    }

    /// Reads the arrays of a call.
    fn read<'py>(
        &self,
        arrays: &Bound<'py, PyTuple>,
        named: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Given<'py>> {
        let py = arrays.py();
        if arrays.len() > self.taken {
            return Err(signature(py, &format!("at most {} arrays", self.taken)));
        }
        let mut objects: Vec<_> =
            arrays.iter().map(|one| (!one.is_none()).then_some(one)).collect();
        objects.resize(self.taken, None);
        for (name, object) in named.into_iter().flatten() {
            let name: String = name.extract()?;
            let place = self.names[..self.taken].iter().position(|known| *known == name);
            match place {
                Some(place) if objects[place].is_none() => objects[place] = Some(object),
                Some(_) => return Err(signature(py, &format!("`{name}` was passed twice"))),
                None => {
                    let names = self.names[..self.taken].join(", ");
                    let words = format!("`{name}` is unknown, expected one of {names}");
                    return Err(signature(py, &words));
                }
            }
        }
        let mut given = Given {
            lent: Arrays::new(py),
            arrays: Vec::with_capacity(self.names.len()),
            objects: Vec::new(),
            device: None,
        };
        for (place, object) in objects.iter().enumerate() {
            let Some(object) = object.as_ref().filter(|object| !object.is_none()) else {
                given.arrays.push(None);
                continue;
            };
            let array = given.lent.read(object).map_err(|refused| {
                let (contract, argument) = self.user(place);
                contract.refuse(py, argument, refused)
            })?;
            if *given.device.get_or_insert(array.device) != array.device {
                let is = array.device.to_string();
                return Err(self.wrong(py, place, &is, "the device of the other arrays"));
            }
            given.arrays.push(Some(array));
        }
        given.objects = objects;
        for &(cut, by) in &self.first {
            let rows = given.arrays[by].and_then(|array| array.desc.shape().first().copied());
            if let (Some(array), Some(rows)) = (&mut given.arrays[cut], rows) {
                array.desc = first(&array.desc, rows);
            }
        }
        Ok(given)
    }

    /// The operators for these arrays, from the cache or newly made.
    fn ready(&self, py: Python<'_>, given: &Given<'_>) -> PyResult<Arc<Ready>> {
        let hash = given.hash();
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let mut alike = known.get(&hash).into_iter().flatten();
        if let Some(ready) = alike.find(|ready| given.are(ready)) {
            return Ok(ready.clone());
        }
        drop(known);
        let ready = Arc::new(self.prepare(py, given)?);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.values().map(Vec::len).sum::<usize>() >= REMEMBERED {
            known.clear();
        }
        known.entry(hash).or_default().push(ready.clone());
        Ok(ready)
    }

    /// Creates the operators for these arrays.
    fn prepare(&self, py: Python<'_>, given: &Given<'_>) -> PyResult<Ready> {
        let device = given.device.ok_or_else(|| signature(py, "no array was passed"))?;
        let workspaces = self.workspaces(py, device)?;
        let handle = workspaces.handle();
        let taken: Vec<_> =
            given.arrays.iter().map(|array| array.map(|array| array.desc)).collect();
        let mut descs = taken.clone();
        descs.resize(self.names.len(), None);
        let mut steps = Vec::with_capacity(self.stages.len());
        for stage in &self.stages {
            steps.push(self.step(py, stage, handle, &mut descs)?);
        }
        let mut results = Vec::with_capacity(self.results.len());
        for (place, desc) in descs.iter().enumerate().skip(self.taken).take(self.results.len()) {
            let desc = desc.ok_or_else(|| error::internal(py, "a result of no stage"))?;
            // A count has the integer dtype that its library commonly uses.
            let counts = self.user(place).1.dtypes == [DType::U64];
            let dtype = if counts { "count" } else { desc.dtype().name() };
            let shape = PyTuple::new(py, signed(desc.shape()))?.into_any().unbind();
            results.push((Fresh::new(shape, dtype), desc));
        }
        let mut bytes = steps.iter().map(|step| step.call.workspace_size()).max().unwrap_or(0);
        let mut kept = Vec::new();
        for (place, desc) in descs.iter().enumerate() {
            let is_result = (self.taken..self.taken + self.results.len()).contains(&place);
            let is_given = taken.get(place).is_some_and(Option::is_some);
            if let (Some(desc), false, false) = (desc, is_result, is_given) {
                let start = bytes.next_multiple_of(ALIGNMENT);
                kept.push((place, start));
                let size = desc.span().checked_mul(desc.dtype().size());
                let end = size.and_then(|size| start.checked_add(size));
                let end = end.filter(|end| *end <= isize::MAX as usize - 2 * ALIGNMENT);
                let words = "the arrays between the stages are larger than memory";
                bytes = end.ok_or_else(|| signature(py, words))?;
            }
        }
        // Room to align the start, since a workspace in host memory has any alignment.
        let bytes = if kept.is_empty() { bytes } else { bytes + ALIGNMENT - 1 };
        Ok(Ready { taken, steps, results, kept, need: Need::new(py, bytes)?, workspaces })
    }

    /// The memory of the calls on a device.
    fn workspaces(&self, py: Python<'_>, device: Device) -> PyResult<Arc<Workspaces>> {
        // Opened before the lock is taken, since an exception is made by code of Python.
        let handle = device::open(device).map_err(|raised| error::raise(py, &raised))?;
        let mut known = self.workspaces.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = known.iter().find(|one| one.device() == device) {
            return Ok(found.clone());
        }
        let made = Arc::new(Workspaces::new(handle));
        known.push(made.clone());
        Ok(made)
    }

    /// Creates the operator of a stage, and describes the arrays that it is the first to write.
    fn step(
        &self,
        py: Python<'_>,
        stage: &Stage,
        handle: &spec::Handle,
        descs: &mut [Option<TensorDesc>],
    ) -> PyResult<Step> {
        let (operator, device) = (stage.operator.get(), handle.device());
        let arguments = operator.contract().arguments();
        let mut key = Key { device, inputs: [None; MAX_ARGUMENTS], outputs: [None; MAX_ARGUMENTS] };
        for (i, argument) in arguments.iter().enumerate() {
            let array = stage.arrays[i];
            let desc = array.and_then(|array| descs[array]).map(|desc| same_bits(argument, desc));
            if argument.role != Role::Output {
                key.inputs[i] = desc;
                continue;
            }
            let is_made = |array| array >= self.taken || !argument.optional;
            key.outputs[i] = Some(match desc {
                Some(desc) => Wanted::Given(desc),
                None if array.is_some_and(is_made) => Wanted::New,
                None => Wanted::Absent,
            });
        }
        let mut own: Descs = key.inputs;
        for (desc, wanted) in own.iter_mut().zip(&key.outputs) {
            if let Some(Wanted::Given(given)) = wanted {
                *desc = Some(*given);
            }
        }
        operator.new_outputs(py, &key, &mut own)?;
        for (i, argument) in arguments.iter().enumerate() {
            let (Some(array), Some(Wanted::New), Some(desc)) =
                (stage.arrays[i], key.outputs[i], own[i])
            else {
                continue;
            };
            let said = array.checked_sub(self.taken).and_then(|at| *self.results.get(at)?);
            let desc = said.map_or(Ok(desc), |dtype| {
                dlpack::describe(dtype, &signed(desc.shape()), &[])
                    .map_err(|refused| operator.contract().refuse(py, argument, refused))
            })?;
            (own[i], descs[array]) = (Some(desc), Some(desc));
        }
        let create = operator.contract().operator().create(handle, &own[..arguments.len()]);
        let call = create.map_err(|raised| error::raise(py, &raised))?;
        let present = stage.arrays.iter().zip(own);
        let arrays = present.map(|(array, desc)| array.filter(|_| desc.is_some())).collect();
        Ok(Step { call, arrays })
    }

    /// Makes the results of a call.
    fn results<'py>(
        &self,
        given: &mut Given<'py>,
        ready: &Ready,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let py = given.lent.py();
        let mut made = Vec::with_capacity(ready.results.len());
        for (place, (new, desc)) in (self.taken..).zip(&ready.results) {
            let (contract, argument) = self.user(place);
            let failed =
                |raised| contract.foreign(py, &format!("`{}` was not made", argument.name), raised);
            let (object, read) = given.lent.make(new, ready.workspaces.device()).map_err(failed)?;
            let array = match read {
                Some(array) => array,
                None => {
                    let read = given.lent.read(&object);
                    read.map_err(|refused| contract.refuse(py, argument, refused))?
                }
            };
            // Operators write as many elements as they were created for.
            let found = same_bits(argument, array.desc);
            if found != same_bits(argument, *desc) || array.device != ready.workspaces.device() {
                let (is, expected) = (format!("{found:?}"), format!("{desc:?}, as planned"));
                return Err(contract.wrong(py, argument, Status::BadTensorShape, is, expected));
            }
            given.arrays.push(Some(array));
            made.push(object);
        }
        Ok(made)
    }

    /// Checks that arrays which are written may be, and tells their libraries.
    fn announce(&self, py: Python<'_>, given: &Given<'_>) -> PyResult<()> {
        let mut places = Vec::new();
        let mut objects = Vec::new();
        for (place, (object, written)) in given.objects.iter().zip(&self.written).enumerate() {
            let (Some(object), true, Some(array)) = (object, *written, given.arrays[place]) else {
                continue;
            };
            if array.read_only {
                return Err(self.wrong(py, place, "read-only", "an array that may be written"));
            }
            places.push(place);
            objects.push(object.clone());
        }
        if objects.is_empty() {
            return Ok(());
        }
        let refused = given.lent.announce(&objects).map_err(|raised| {
            self.user(places[0]).0.foreign(py, "an array was not marked as written", raised)
        })?;
        match refused {
            None => Ok(()),
            Some((at, (what, pass))) => Err(self.wrong(py, places[at], &what, &pass)),
        }
    }

    /// Enqueues the operators.
    fn enqueue(&self, py: Python<'_>, given: &Given<'_>, ready: &Ready) -> PyResult<()> {
        let address = |array: &Option<Array>| array.map(|array| array.address);
        let mut addresses: Vec<Option<u64>> = given.arrays.iter().map(address).collect();
        addresses.resize(self.names.len(), None);
        // SAFETY: the operators use the workspace as the work of their calls, all on one stream.
        let done = unsafe {
            ready.workspaces.run(&given.lent, &ready.need, Keeps::Plan, |start, on| {
                let aligned = if ready.kept.is_empty() {
                    start
                } else {
                    start.next_multiple_of(ALIGNMENT as u64)
                };
                for &(array, offset) in &ready.kept {
                    addresses[array] = Some(aligned + offset as u64);
                }
                for (i, step) in ready.steps.iter().enumerate() {
                    let mut own = [None; MAX_ARGUMENTS];
                    for (own, array) in own.iter_mut().zip(&step.arrays) {
                        *own = array.and_then(|array| addresses[array]).map(Address::from);
                    }
                    let own = &own[..step.arrays.len()];
                    let mut stream = on.stream();
                    if i > 0 {
                        stream = stream.dependent_launch();
                    }
                    // SAFETY: `read` and `results` compared every array with the descriptors and
                    // the device that the operator was created for, libraries keep their memory
                    // until the work of their current stream is done, and kept arrays lie apart
                    // in a workspace that is large enough for them and for the largest
                    // workspace of an operator, which the stream lets the operators share.
                    step.call.call(Address::from(aligned), own, stream)?;
                }
                Ok(())
            })
        };
        done?.map_err(|raised| error::raise(py, &raised))
    }
}

fn signed(extents: &[usize]) -> Vec<i64> {
    extents.iter().map(|&extent| extent as i64).collect()
}

/// The descriptor of the first `rows` of an array, which stays as it is if it has no more.
fn first(desc: &TensorDesc, rows: usize) -> TensorDesc {
    let (mut shape, strides) = (signed(desc.shape()), desc.strides());
    match shape.first_mut() {
        Some(extent) if *extent > rows as i64 => *extent = rows as i64,
        _ => return *desc,
    }
    let strides: Vec<_> = strides.iter().map(|&step| step as i64).collect();
    dlpack::describe(desc.dtype(), &shape, &strides).unwrap_or(*desc)
}

#[pymethods]
impl Pipeline {
    #[new]
    #[pyo3(signature = (arrays, stages, results=None, first=None))]
    fn new<'py>(
        py: Python<'py>,
        arrays: Vec<String>,
        stages: Vec<Bound<'py, PyAny>>,
        results: Option<&Bound<'py, PyDict>>,
        first: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Self> {
        let made_of = (&arrays, &stages, results, first).into_pyobject(py)?.unbind();
        let result = |(name, dtype): (Bound<'py, PyAny>, Bound<'py, PyAny>)| {
            let read = (name.extract::<String>(), dtype.extract::<Option<String>>());
            let (Ok(name), Ok(dtype)) = read else {
                let expected = "a name, and the name of an element type or None";
                let words = format!("a result is {name}: {dtype}, expected {expected}");
                return Err(signature(py, &words));
            };
            Ok((name, dtype))
        };
        let results = results.into_iter().flatten().map(result).collect::<PyResult<Vec<_>>>()?;
        let taken = arrays.len();
        let names = arrays.into_iter().chain(results.iter().map(|(name, _)| name.clone()));
        let mut maker = Maker { names: names.collect(), taken };
        let stages =
            stages.into_iter().map(|stage| described(&stage)).collect::<PyResult<Vec<_>>>()?;
        let mut written = HashSet::new();
        let mut made = Vec::with_capacity(stages.len());
        for (i, (operator, renamed)) in stages.iter().enumerate() {
            let later = stages[i + 1..].iter().flat_map(inputs).collect();
            let arrays = maker.stage(py, operator.get(), renamed, &later, &mut written)?;
            made.push(Stage { operator: operator.clone().unbind(), arrays });
        }
        let users = maker.users(py, &made, &written)?;
        let first: Vec<(String, String)> = match first {
            Some(first) => first.items().extract()?,
            None => Vec::new(),
        };
        let passed = |name: &String| {
            let place = maker.place(name).filter(|place| *place < taken);
            place.ok_or_else(|| signature(py, &format!("no call passes `{name}`")))
        };
        let first = first.iter().map(|(cut, by)| Ok((passed(cut)?, passed(by)?)));
        let first = first.collect::<PyResult<_>>()?;
        let results = results.into_iter().map(|(name, dtype)| match dtype {
            None => Ok(None),
            Some(dtype) => match library::dtype(&dtype) {
                Ok(dtype) => Ok(Some(dtype)),
                Err(_) => Err(signature(py, &format!("`{name}` is of no type `{dtype}`"))),
            },
        });
        let results = results.collect::<PyResult<_>>()?;
        let written = (0..taken).map(|array| written.contains(&array)).collect();
        let (names, stages) = (maker.names, made);
        let (known, workspaces) = (Mutex::default(), Mutex::default());
        Ok(Pipeline {
            names,
            taken,
            results,
            stages,
            users,
            written,
            first,
            made_of,
            known,
            workspaces,
        })
    }

    /// Enqueues the operators on arrays in the order that the pipeline was made with, or by name;
    /// None for an array that is absent. Returns the results: None, an array, or a tuple.
    #[pyo3(signature = (*arrays, **named))]
    fn __call__<'py>(
        &self,
        arrays: &Bound<'py, PyTuple>,
        named: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = arrays.py();
        let mut given = self.read(arrays, named)?;
        let ready = self.ready(py, &given)?;
        let results = self.results(&mut given, &ready)?;
        self.announce(py, &given)?;
        self.enqueue(py, &given, &ready)?;
        let finish = results.into_iter().map(|made| given.lent.finish(made));
        let mut results = finish.collect::<PyResult<Vec<_>>>()?;
        match results.len() {
            0 => Ok(py.None().into_bound(py)),
            1 => Ok(results.remove(0)),
            _ => Ok(PyTuple::new(py, results)?.into_any()),
        }
    }

    fn __repr__(&self) -> String {
        let stages = self.stages.iter().map(|stage| stage.operator.get().contract().name());
        format!("<pipeline of {}>", stages.collect::<Vec<_>>().join(", "))
    }

    /// How to make it again.
    fn __reduce__<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let make = py.import("spec_ops._native")?.getattr("Pipeline")?;
        Ok((make, self.made_of.bind(py).clone()))
    }
}

impl std::fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.__repr__())
    }
}
