//! The shapes of arguments as Python objects, for calls that are traced, whose sizes are symbols.
//!
//! A size is an int, a name as a str, or a tuple of an operation and two sizes.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use spec::shape::{Alternatives, Form, Operation, Shapes, Size};

fn size<'py>(py: Python<'py>, shapes: &Shapes, size: &Size) -> PyResult<Bound<'py, PyAny>> {
    match size {
        Size::Number(number) => Ok(number.into_pyobject(py)?.into_any()),
        Size::Name(place) => Ok(shapes.names()[*place].into_pyobject(py)?.into_any()),
        Size::Binary(operation, sides) => {
            let sign = match operation {
                Operation::Add => "+",
                Operation::Subtract => "-",
                Operation::Multiply => "*",
                Operation::Divide => "//",
                Operation::DivideUp => "ceil",
            };
            let [a, b] = &**sides;
            let all = (sign, self::size(py, shapes, a)?, self::size(py, shapes, b)?);
            Ok(all.into_pyobject(py)?.into_any())
        }
        _ => unreachable!("the contract has no other size"),
    }
}

/// The shapes of an argument: a tuple of tuples of sizes.
pub fn alternatives<'py>(
    py: Python<'py>,
    shapes: &Shapes,
    all: &Alternatives,
) -> PyResult<Bound<'py, PyTuple>> {
    let shape = |form: &Form| {
        let sizes = form.sizes.iter().map(|one| size(py, shapes, one));
        PyTuple::new(py, sizes.collect::<PyResult<Vec<_>>>()?)
    };
    PyTuple::new(py, all.forms.iter().map(shape).collect::<PyResult<Vec<_>>>()?)
}

/// What sizes are that no argument says: a dict from their names to the size, and to the argument
/// without which this holds, or None. What a given argument says is left out, since the shape of the
/// argument says it too.
pub fn definitions<'py>(py: Python<'py>, shapes: &Shapes) -> PyResult<Bound<'py, PyDict>> {
    let all = PyDict::new(py);
    for known in shapes.rules().iter().filter(|known| known.rule.with.is_none()) {
        if let Some(value) = &known.value {
            all.set_item(known.rule.name, (size(py, shapes, value)?, known.rule.without))?;
        }
    }
    Ok(all)
}
