//! Reads the golden vectors and runs them.

use std::path::PathBuf;

use half::{bf16, f16};
use serde_json::Value;
use spec_core::options::{self, Kind, OptionInfo};
use spec_core::{Role, Supports};

use crate::argument::Argument;
use crate::case::{Case, Subject, compare};
use crate::report::{Failure, Report};
use crate::tensor::{Data, Layout, Tensor};

/// Where the golden vectors come from.
#[derive(Clone, Debug, Default)]
pub enum Golden {
    /// The copies that are compiled into this crate.
    #[default]
    Embedded,
    /// Files in a folder, named `<operator>.json`.
    Folder(PathBuf),
}

impl Golden {
    /// The folder that the environment variable `SPEC_GOLDEN_DIR` names, else the embedded
    /// copies.
    pub fn from_env() -> Golden {
        match std::env::var_os("SPEC_GOLDEN_DIR") {
            Some(folder) if !folder.is_empty() => Golden::Folder(folder.into()),
            _ => Golden::Embedded,
        }
    }

    fn read<O: Subject>(&self) -> Result<Vec<Value>, String> {
        let (text, name) = match self {
            Golden::Embedded => (O::GOLDEN.to_owned(), format!("{}.json", O::NAME)),
            Golden::Folder(folder) => {
                let path = folder.join(O::NAME).with_extension("json");
                let text = std::fs::read_to_string(&path)
                    .map_err(|error| format!("{}: {error}", path.display()))?;
                (text, path.display().to_string())
            }
        };
        let file: Value =
            serde_json::from_str(&text).map_err(|error| format!("{name}: {error}"))?;
        if file["op"] != O::NAME {
            return Err(format!("{name}: `op` is {}, expected {:?}", file["op"], O::NAME));
        }
        match &file["cases"] {
            Value::Array(cases) if !cases.is_empty() => Ok(cases.clone()),
            _ => Err(format!("{name}: `cases` is not a list of cases")),
        }
    }
}

/// A golden case: a call and its expected results.
#[derive(Debug)]
pub struct Vector<O> {
    /// The case's name.
    pub name: String,
    /// The call.
    pub case: Case<O>,
    expected: Vec<Argument>,
    tolerance: Value,
}

/// Every golden case of one operator, for callers that run the cases in another way, such as
/// through another language.
///
/// # Errors
/// A sentence that says which file cannot be read, or which of its cases is not valid.
pub fn vectors<O: Subject>(golden: &Golden) -> Result<Vec<Vector<O>>, String> {
    golden.read::<O>()?.iter().map(Vector::parse).collect()
}

impl<O: Subject> Vector<O> {
    /// The first difference between `results` and the expected results.
    pub fn difference(&self, results: &[Argument]) -> Option<Failure> {
        compare(results, &self.expected, |name| self.tolerance[name].as_f64())
    }

    /// Runs the case twice: packed and with all outputs, then with gaps between the rows
    /// and without the optional outputs.
    fn check<B: Supports<O> + ?Sized>(&self, backend: &B) -> Option<Failure> {
        let packed = (&self.case, Layout::PACKED, "packed");
        let bare = self.case.without_optional_outputs();
        let gaps = (&bare, Layout::gaps(3), "gaps between rows, no optional outputs");
        [packed, gaps].into_iter().find_map(|(case, layout, how)| {
            let failure = match case.run(backend, layout) {
                Ok(results) => self.difference(&results),
                Err(failure) => Some(failure),
            };
            failure.map(|failure| failure.in_case(how))
        })
    }

    fn parse(json: &Value) -> Result<Self, String> {
        let name = json["name"].as_str().unwrap_or("a case without a name").to_owned();
        let in_case = |what| format!("{}.json: case {name}: {what}", O::NAME);
        let (case, expected) = Self::call(json).map_err(in_case)?;
        Ok(Vector { name, case, expected, tolerance: json["tolerance"].clone() })
    }

    fn call(json: &Value) -> Result<(Case<O>, Vec<Argument>), String> {
        let operator = operator::<O>(&json["params"])?;
        let expected = arguments::<O>(&json["outputs"], Role::Output)?;
        let mut case = Case::new(operator);
        case.arguments = arguments::<O>(&json["inputs"], Role::Input)?;
        for argument in &expected {
            let of_same_name = case.arguments.iter_mut().find(|a| a.name == argument.name);
            match of_same_name {
                Some(input) => input.role = Role::InPlace,
                None if argument.name == "flags" => {}
                None => {
                    let Tensor { data, shape } = &argument.tensor;
                    case = case.output_of(argument.name, data.dtype(), shape);
                }
            }
        }
        if O::ARGUMENTS.iter().any(|argument| argument.name == "flags") {
            case = case.in_place("flags", Tensor::vector(vec![0_u32]));
        }
        O::complete(&mut case);
        Ok((case, expected))
    }
}

/// Runs every golden case of one operator. `progress` is called with the
/// operator's name after each case.
///
/// # Errors
/// A sentence that says which file cannot be read, or which of its cases is not valid.
pub fn check<O: Subject, B: Supports<O> + ?Sized>(
    backend: &B,
    golden: &Golden,
    progress: &mut dyn FnMut(&'static str),
) -> Result<Report, String> {
    let mut report = Report::of(O::NAME);
    for vector in vectors::<O>(golden)? {
        report.add(vector.check(backend).map(|failure| failure.in_case(&vector.name)));
        progress(O::NAME);
    }
    Ok(report)
}

/// The operator with the options of a golden case, which have their names in the contract.
fn operator<O: Subject>(json: &Value) -> Result<O, String> {
    let object = json.as_object().ok_or("params are no object")?;
    for name in object.keys() {
        options::find(O::NAME, O::OPTIONS, name).map_err(|error| error.to_string())?;
    }
    let read = &mut |option: &'static OptionInfo| match object.get(option.name) {
        None => Ok(None),
        Some(json) => match value(option.kind, json) {
            Some(value) => Ok(Some(value)),
            None => Err(option.refuse(O::NAME, json)),
        },
    };
    O::options_from(read).map_err(|error| error.to_string())
}

/// Reads the value of an option from JSON; `None` where the JSON is of another type.
fn value(kind: Kind, json: &Value) -> Option<options::Value> {
    match kind {
        Kind::OptionalSize if json.is_null() => Some(options::Value::Absent),
        Kind::Choice(choice) => choice.value(json.as_str()?),
        // JSON writes numbers and booleans as options are written in text.
        kind => kind.parse(&json.to_string()),
    }
}

fn arguments<O: Subject>(json: &Value, role: Role) -> Result<Vec<Argument>, String> {
    let object = json.as_object().ok_or("inputs or outputs are no object")?;
    let argument = |(key, value): (&String, &Value)| {
        let known = O::ARGUMENTS.iter().find(|argument| argument.name == key);
        let name = known.ok_or(format!("`{key}` is no argument of {}", O::NAME))?.name;
        let tensor = match value.as_u64() {
            Some(flags) if name == "flags" => Tensor::vector(vec![flags as u32]),
            _ => tensor(value).ok_or(format!("`{key}` is no tensor"))?,
        };
        Ok(Argument { name, role, tensor })
    };
    object.iter().map(argument).collect()
}

fn tensor(json: &Value) -> Option<Tensor> {
    let shape: Option<Vec<usize>> =
        json["shape"].as_array()?.iter().map(|n| n.as_u64()?.try_into().ok()).collect();
    let shape = shape?;
    let values = json["data"].as_array()?;
    let data: Data = match json["dtype"].as_str()? {
        "f32" => all(values, float)?.into(),
        "f16" => all(values, |v| Some(f16::from_bits(v.as_u64()?.try_into().ok()?)))?.into(),
        "bf16" => all(values, |v| Some(bf16::from_bits(v.as_u64()?.try_into().ok()?)))?.into(),
        "i32" => all(values, |v| i32::try_from(v.as_i64()?).ok())?.into(),
        "i64" => all(values, Value::as_i64)?.into(),
        "u32" => all(values, |v| u32::try_from(v.as_u64()?).ok())?.into(),
        "u64" => all(values, Value::as_u64)?.into(),
        "i8" => all(values, |v| i8::try_from(v.as_i64()?).ok())?.into(),
        "u8" => all(values, |v| u8::try_from(v.as_u64()?).ok())?.into(),
        _ => return None,
    };
    let fits = data.len() == shape.iter().product::<usize>() && (1..=3).contains(&shape.len());
    fits.then_some(Tensor { data, shape })
}

fn all<T>(values: &[Value], read: impl Fn(&Value) -> Option<T>) -> Option<Vec<T>> {
    values.iter().map(read).collect()
}

/// A number that an f32 holds exactly, or the name of a number that JSON cannot
/// write.
fn float(value: &Value) -> Option<f32> {
    match value.as_str() {
        Some("NaN") => Some(f32::NAN),
        Some("Infinity") => Some(f32::INFINITY),
        Some("-Infinity") => Some(f32::NEG_INFINITY),
        Some(_) => None,
        None => value.as_f64().map(|number| number as f32),
    }
}
