//! The stages of a pipeline, and which arrays their arguments have.

use std::collections::{HashMap, HashSet};

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use spec::Role;

use crate::error;
use crate::operator::Operator;

/// An operator of a pipeline.
pub struct Stage {
    /// The operator with its parameters.
    pub operator: Py<Operator>,
    /// For each argument of the operator, the array; `None` for an argument that is always absent.
    pub arrays: Vec<Option<usize>>,
}

/// The error for a call, or a construction, with a wrong signature.
pub fn signature(py: Python<'_>, words: &str) -> PyErr {
    error::signature(py, format!("Pipeline: {words}"))
}

/// What a pipeline is made of, while it is made.
pub struct Maker {
    /// The arrays' names: those that a call takes, the results, then those that are kept.
    pub names: Vec<String>,
    /// How many arrays a call takes.
    pub taken: usize,
}

impl Maker {
    /// The array with this name.
    pub fn place(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|known| known == name)
    }

    /// The arrays of a stage's arguments. An output that a later stage reads, or that is required,
    /// is kept where no call passes it.
    pub fn stage(
        &mut self,
        py: Python<'_>,
        operator: &Operator,
        renamed: &HashMap<String, String>,
        later: &HashSet<String>,
        written: &mut HashSet<usize>,
    ) -> PyResult<Vec<Option<usize>>> {
        let (name, arguments) = (operator.contract().name(), operator.contract().arguments());
        if let Some(unknown) =
            renamed.keys().find(|key| arguments.iter().all(|argument| argument.name != **key))
        {
            return Err(signature(py, &format!("{name} has no argument `{unknown}`")));
        }
        let mut arrays = Vec::with_capacity(arguments.len());
        for argument in arguments {
            let array = renamed.get(argument.name).map_or(argument.name, String::as_str);
            let mut place = self.place(array);
            let is_output = argument.role == Role::Output;
            if is_output && place.is_none() && (!argument.optional || later.contains(array)) {
                self.names.push(array.to_owned());
                place = Some(self.names.len() - 1);
            }
            let is_again = is_output && place.is_some_and(|place| !written.insert(place));
            match place {
                Some(_) if is_again => {
                    let words = format!("{name} writes `{array}`, as a stage before it does");
                    return Err(signature(py, &words));
                }
                Some(place) if place >= self.taken && !written.contains(&place) => {
                    let words = format!("{name} reads `{array}` before a stage writes it");
                    return Err(signature(py, &words));
                }
                // An optional argument is absent, unless the stage says what it is named.
                None if !argument.optional || renamed.contains_key(argument.name) => {
                    let words = match is_output {
                        true => format!("nobody takes `{array}` from {name}"),
                        false => format!("nobody passes {name} its `{array}`"),
                    };
                    return Err(signature(py, &words));
                }
                _ => {}
            }
            arrays.push(place);
        }
        Ok(arrays)
    }

    /// The first user of each array: a stage, and the place of its argument.
    ///
    /// # Errors
    /// If no stage takes one of the arrays, no stage writes one of the results, or two arrays have
    /// one name.
    pub fn users(
        &self,
        py: Python<'_>,
        stages: &[Stage],
        written: &HashSet<usize>,
    ) -> PyResult<Vec<(usize, usize)>> {
        let mut users = Vec::with_capacity(self.names.len());
        for (array, name) in self.names.iter().enumerate() {
            let user = stages.iter().enumerate().find_map(|(i, stage)| {
                Some((i, stage.arrays.iter().position(|used| *used == Some(array))?))
            });
            if self.place(name) != Some(array) {
                return Err(signature(py, &format!("`{name}` is named twice")));
            }
            if array >= self.taken && !written.contains(&array) {
                return Err(signature(py, &format!("no stage writes `{name}`")));
            }
            users.push(user.ok_or_else(|| signature(py, &format!("no stage uses `{name}`")))?);
        }
        Ok(users)
    }
}

/// A stage as Python has it: an operator, and its arguments' names with those of arrays.
pub type Described<'py> = (Bound<'py, Operator>, HashMap<String, String>);

/// Reads a stage.
///
/// # Errors
/// If it is neither an operator nor a pair.
pub fn described<'py>(stage: &Bound<'py, PyAny>) -> PyResult<Described<'py>> {
    let read = || -> PyResult<Described<'py>> {
        let (operator, renamed) = match stage.cast::<PyTuple>() {
            Ok(pair) => pair.extract::<(Bound<'py, PyAny>, HashMap<String, String>)>()?,
            Err(_) => (stage.clone(), HashMap::new()),
        };
        Ok((operator.getattr("_native")?.cast_into()?, renamed))
    };
    read().map_err(|cause| {
        let py = stage.py();
        let expected = "an operator, or a pair of an operator and a dict from names to names";
        let error = signature(py, &format!("a stage is {stage}, expected {expected}"));
        error.set_cause(py, Some(cause));
        error
    })
}

/// The arrays that a stage reads.
pub fn inputs((operator, renamed): &Described<'_>) -> Vec<String> {
    let read = operator.get().contract().inputs();
    let array = |name: &str| renamed.get(name).map_or(name, String::as_str).to_owned();
    read.map(|(_, argument)| array(argument.name)).collect()
}
