//! The compiled half of the Python package `spec_ops`.
//!
//! | module | what it does |
//! |---|---|
//! | `dlpack` | **the** way to read an array: DLPack's structs |
//! | `library` | the libraries of arrays: their current streams, and how they make new arrays |
//! | `options` | makes operators from Python values, by the contract's descriptions |
//! | `call` | a common interface of all operators |
//! | `prepared` | an operator created for shapes and a device |
//! | `workspace` | the memory that calls use besides their arguments |
//! | `contract` | an operator's contract, and the errors for its arguments |
//! | `arguments` | the arguments of one call: read, completed, compared with the plan |
//! | `operator`, `plan` | `Operator` and `Plan`, the objects that Python calls |
//! | `pipeline`, `stages` | `Pipeline`: several operators by one call |
//! | `device` | open devices; threads after a fork |
//! | `shape` | shapes as Python objects, for calls that are traced |
//! | `error` | exceptions |
//!
//! The code here names no operator, option or argument: all names come from the contracts.

mod arguments;
mod call;
mod contract;
mod device;
mod dlpack;
mod error;
mod library;
mod operator;
mod options;
mod pipeline;
mod plan;
mod prepared;
mod shape;
mod stages;
mod workspace;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use spec::ops::Description;
use spec::options::{DefaultValue, Kind, OptionInfo};
use spec::{Argument, Device, Role, presence};

use crate::operator::Operator;
use crate::pipeline::Pipeline;
use crate::plan::Plan;

/// The operators as their contracts declare them: by name a dict of `type` (the name of its type),
/// `doc`, `options`, `arguments`, `sizes` (as [`shape::definitions`] has them) and `extents`. An option is a tuple of name, kind, choices with their
/// meanings, whether it is required, its default, the option that it follows, and its meaning. An
/// argument is a tuple of name, role, whether it is optional, dtypes, the argument whose dtype it
/// has, shape in words, shapes, and meaning.
fn operators(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let all = PyDict::new(py);
    for operator in spec::ops::ALL {
        let about = PyDict::new(py);
        about.set_item("type", operator.type_name)?;
        about.set_item("doc", operator.doc)?;
        let found = operator.options.iter().map(|option| described(py, operator, option));
        about.set_item("options", PyTuple::new(py, found.collect::<PyResult<Vec<_>>>()?)?)?;
        let shapes = (operator.shapes)();
        let all_shapes = operator.arguments.iter().zip(shapes.arguments());
        let found = all_shapes.map(|(argument, alternatives)| {
            let role = match argument.role {
                Role::Input => "in",
                Role::Output => "out",
                Role::InPlace => "inout",
            };
            let dtypes = PyTuple::new(py, argument.dtypes.iter().map(|dtype| dtype.name()))?;
            let like = argument.dtype_rule.argument();
            let Argument { name, optional, shape, doc, .. } = *argument;
            let all = shape::alternatives(py, shapes, alternatives)?;
            let doc = doc.to_owned() + &presence::about(operator.presence, name);
            Ok((name, role, optional, dtypes, like, shape, all, doc))
        });
        about.set_item("arguments", PyTuple::new(py, found.collect::<PyResult<Vec<_>>>()?)?)?;
        about.set_item("sizes", shape::definitions(py, shapes)?)?;
        about.set_item("extents", PyTuple::new(py, operator.extents())?)?;
        all.set_item(operator.name, about)?;
    }
    Ok(all)
}

/// The tuple of an option, as described at [`operators`].
fn described<'py>(
    py: Python<'py>,
    operator: &Description,
    option: &OptionInfo,
) -> PyResult<Bound<'py, PyTuple>> {
    let choices = match option.kind {
        Kind::Choice(choice) => choice.values,
        _ => &[],
    };
    let choices = PyTuple::new(py, choices.iter().map(|choice| (choice.name, choice.doc)))?;
    let (default, follows) = match option.default {
        DefaultValue::Is(value) => (options::object(py, value())?, None),
        DefaultValue::As(other) => (py.None(), Some(other)),
        DefaultValue::Required => (py.None(), None),
    };
    let (kind, required) = (options::kind(option.kind), option.is_required());
    let doc = option.about() + &presence::about(operator.presence, option.name);
    (option.name, kind, choices, required, default, follows, doc).into_pyobject(py)
}

/// The devices of each backend: a dict from its name to a list of devices (`name`, `device`
/// and facts as dicts), or to the sentence that says why there are none.
#[pyfunction]
fn devices(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let all = PyDict::new(py);
    // The backends whose memory Python arrays can be in.
    let listings = [
        ("cpu", spec::cpu::devices()),
        ("cuda", device::caught(Device::new("cuda", 0), spec::cuda::devices)),
    ];
    for (backend, found) in listings {
        match found {
            Err(error) => all.set_item(backend, error.to_string())?,
            Ok(found) => {
                let devices = PyList::empty(py);
                for info in found {
                    let facts = PyDict::new(py);
                    facts.set_item("device", info.device.to_string())?;
                    facts.set_item("name", info.name)?;
                    for (fact, value) in info.facts {
                        facts.set_item(fact, value)?;
                    }
                    devices.append(facts)?;
                }
                all.set_item(backend, devices)?;
            }
        }
    }
    Ok(all)
}

/// Says that this process was forked just now.
#[pyfunction]
fn forked() {
    device::forked();
}

/// The compiled half of `spec_ops`.
#[pymodule(gil_used = false)]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("OPERATORS", operators(module.py())?)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<Operator>()?;
    module.add_class::<Plan>()?;
    module.add_class::<Pipeline>()?;
    module.add_function(wrap_pyfunction!(operator::operator, module)?)?;
    module.add_function(wrap_pyfunction!(operator::call, module)?)?;
    module.add_function(wrap_pyfunction!(plan::restore, module)?)?;
    module.add_function(wrap_pyfunction!(devices, module)?)?;
    module.add_function(wrap_pyfunction!(forked, module)?)
}
