//! Makes operators from Python values, by the contract's description of each option.

use pyo3::prelude::*;
use spec::options::{DefaultValue, Kind, OptionInfo, Value};
use spec::{Portable, Result};

use crate::call::Create;

/// A function that makes an operator from the values of its options, in the contract's order.
pub type Make = fn(&[Bound<'_, PyAny>]) -> Result<Box<dyn Create>>;

macro_rules! makers {
    ($($module:ident: $operator:ident,)+) => {
        /// What makes each operator of `spec::ops::ALL`, in the order of that list.
        pub static MAKERS: &[Make] = &[$(make::<spec::ops::$operator>),+];
    };
}

spec::for_each_operator!(makers);

fn make<O: Portable>(values: &[Bound<'_, PyAny>]) -> Result<Box<dyn Create>> {
    let mut values = values.iter();
    let operator = O::options_from(&mut |option| {
        let Some(value) = values.next() else { return Ok(None) };
        // None stands for the value of the option that this one follows.
        if value.is_none() && matches!(option.default, DefaultValue::As(_)) {
            return Ok(None);
        }
        read(option, value).map(Some).ok_or_else(|| option.refuse(O::NAME, value))
    })?;
    Ok(Box::new(operator))
}

/// The value of a Python object; `None` if the object does not have the option's type.
fn read(option: &OptionInfo, value: &Bound<'_, PyAny>) -> Option<Value> {
    match option.kind {
        Kind::OptionalSize if value.is_none() => Some(Value::Absent),
        Kind::Size | Kind::OptionalSize => value.extract().ok().map(Value::Size),
        Kind::Bool => value.extract().ok().map(Value::Bool),
        Kind::I32 => value.extract().ok().map(Value::I32),
        Kind::F32 => value.extract().ok().map(Value::F32),
        Kind::Choice(choice) => choice.value(&value.extract::<String>().ok()?),
        // No operator of this package has an option of another kind.
        _ => None,
    }
}

/// Python's name for the type of an option's values.
pub fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Bool => "bool",
        Kind::OptionalSize => "int?",
        Kind::Size | Kind::I32 => "int",
        Kind::F32 => "float",
        _ => "str",
    }
}

/// A value as a Python object.
pub fn object(py: Python<'_>, value: Value) -> PyResult<Py<PyAny>> {
    Ok(match value {
        Value::Bool(value) => value.into_pyobject(py)?.to_owned().into_any().unbind(),
        Value::Size(value) => value.into_pyobject(py)?.into_any().unbind(),
        Value::I32(value) => value.into_pyobject(py)?.into_any().unbind(),
        // Converts by decimal digits, so that the f32 0.1 becomes 0.1 in Python.
        Value::F32(value) => {
            value.to_string().parse::<f64>()?.into_pyobject(py)?.into_any().unbind()
        }
        Value::Choice(name) => name.into_pyobject(py)?.into_any().unbind(),
        _ => py.None(),
    })
}
