//! One call of an operator: its arguments by name, and running it.

use std::fmt::Debug;

use serde_json::Value;

use super::Rng;
use super::report::Failure;
use super::tensor::{Held, Layout, Tensor};
use crate::{DType, Error, Handle, Portable, Stream, TensorDesc, View, ViewMut};

/// What a call does with an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Input,
    /// Read, then overwritten.
    InPlace,
    Output,
}

/// An argument by its name in the contract.
#[derive(Clone, Debug)]
pub(crate) struct Argument {
    pub(crate) name: &'static str,
    pub(crate) role: Role,
    pub(crate) tensor: Tensor,
}

/// One call of an operator.
#[derive(Clone, Debug)]
pub(crate) struct Case<O> {
    pub(crate) operator: O,
    pub(crate) arguments: Vec<Argument>,
}

/// The same requests in another batch, and what must come out of it.
pub(crate) struct Recomposed<O> {
    pub(crate) case: Case<O>,
    /// Outputs by name.
    pub(crate) rows: Vec<(&'static str, Rows)>,
}

/// Which rows of the original call the rows of another must equal.
#[derive(Clone)]
pub(crate) enum Rows {
    /// The same ones, and as many.
    All,
    /// Row `i` the original's row of that number; what follows may be anything.
    Of(Vec<usize>),
}

/// A required argument that a case lacks.
#[derive(Debug)]
pub(crate) struct Missing(pub(crate) &'static str);

/// What descriptors or buffers are taken from, by name: `I` for inputs, `O`
/// for outputs.
pub(crate) trait Source<I, O> {
    /// An optional argument that is read.
    fn maybe_input(&mut self, name: &str) -> Option<I>;
    /// An optional argument that is written.
    fn maybe_output(&mut self, name: &str) -> Option<O>;

    fn input(&mut self, name: &'static str) -> Result<I, Missing> {
        self.maybe_input(name).ok_or(Missing(name))
    }

    fn output(&mut self, name: &'static str) -> Result<O, Missing> {
        self.maybe_output(name).ok_or(Missing(name))
    }
}

/// An operator that can be checked.
pub(crate) trait Subject: Portable + Debug {
    /// Its golden vectors.
    const GOLDEN: &'static str;

    /// Every argument's name, as the golden vectors spell it, so that their
    /// text becomes `'static`.
    const ARGUMENTS: &'static [&'static str];

    /// Outputs that a caller can leave out.
    const OPTIONAL_OUTPUTS: &'static [&'static str] = &["flags"];

    /// Descriptors for a call.
    fn tensors(source: &mut impl Source<TensorDesc, TensorDesc>) -> Result<Self::Tensors, Missing>;

    /// Buffers for a call.
    fn buffers<'a>(
        source: &mut impl Source<View<'a>, ViewMut<'a>>,
    ) -> Result<Self::Buffers<'a>, Missing>;

    /// Reads parameters as the golden vectors have them, `None` where they are
    /// not what they should be.
    fn params(params: &Value) -> Option<Self>;

    /// Adds to a golden case what its file leaves out.
    fn complete(_case: &mut Case<Self>, _params: &Value) {}

    /// A random call, with bad data now and then.
    fn random(rng: &mut Rng) -> Case<Self>;

    /// The same requests in another batch.
    fn recomposed(case: &Case<Self>, rng: &mut Rng) -> Recomposed<Self>;

    /// Cuts results to the part that the contract specifies.
    fn trim(_results: &mut [Argument]) {}
}

impl<O: Subject> Case<O> {
    pub(crate) fn new(operator: O) -> Self {
        Case { operator, arguments: Vec::new() }
    }

    pub(crate) fn with(mut self, name: &'static str, role: Role, tensor: Tensor) -> Self {
        self.arguments.push(Argument { name, role, tensor });
        self
    }

    pub(crate) fn input(self, name: &'static str, tensor: Tensor) -> Self {
        self.with(name, Role::Input, tensor)
    }

    pub(crate) fn in_place(self, name: &'static str, tensor: Tensor) -> Self {
        self.with(name, Role::InPlace, tensor)
    }

    pub(crate) fn output(self, name: &'static str, dtype: DType, shape: &[usize]) -> Self {
        self.with(name, Role::Output, Tensor::to_fill(dtype, shape))
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Tensor> {
        find(&self.arguments, name)
    }

    /// Replaces arguments by what `change` makes of them.
    pub(crate) fn map(&self, change: impl Fn(&Argument) -> Tensor) -> Case<O> {
        let mut case = self.clone();
        for argument in &mut case.arguments {
            argument.tensor = change(argument);
        }
        case
    }

    /// Leaves out the outputs that a caller can leave out.
    pub(crate) fn without_optional_outputs(&self) -> Case<O> {
        let mut case = self.clone();
        case.arguments.retain(|argument| !O::OPTIONAL_OUTPUTS.contains(&argument.name));
        case
    }

    /// The operator's parameters and the arguments' types and shapes.
    pub(crate) fn describe(&self) -> String {
        let mut text = format!("{:?}", self.operator);
        for Argument { name, tensor, .. } in &self.arguments {
            text += &format!(", {name} {}", tensor.desc(Layout::PACKED));
        }
        text
    }

    /// Creates the operator, calls it twice on the same data and the same
    /// workspace, and returns all arguments as they are afterwards.
    pub(crate) fn run(&self, handle: &Handle, layout: Layout) -> Result<Vec<Argument>, Failure> {
        let created = O::tensors(&mut Descs { case: self, layout })
            .map_err(|missing| Failure::missing(missing.0))
            .and_then(|tensors| {
                handle.create(&self.operator, &tensors).map_err(|e| Failure::error("create", &e))
            });
        let descriptor = created?;
        let failed = |what| move |error: Error| Failure::error(what, &error);
        let upload = failed("upload");
        // Whoever relies on a zeroed workspace shall fail here.
        let mut workspace =
            handle.upload(&vec![0xA5_u8; descriptor.workspace_size()]).map_err(upload)?;
        let spread: Vec<_> = self.arguments.iter().map(|a| a.tensor.spread(layout)).collect();
        let mut held = Vec::new();
        for argument in &self.arguments {
            held.push(argument.tensor.upload(layout, handle).map_err(upload)?);
        }
        let mut first: Option<Vec<Argument>> = None;
        loop {
            let mut slots = Slots::new(&self.arguments, &mut held);
            let buffers = O::buffers(&mut slots).map_err(|missing| Failure::missing(missing.0))?;
            descriptor
                .calculate(&mut workspace, buffers, Stream::default())
                .map_err(failed("calculate"))?;
            handle.synchronize().map_err(failed("synchronize"))?;
            let mut results = self.collect(layout, &held)?;
            O::trim(&mut results);
            let Some(first) = first.take() else {
                for (held, data) in held.iter_mut().zip(&spread) {
                    held.write(data).map_err(upload)?;
                }
                first = Some(results);
                continue;
            };
            let repeat = compare(&results, &first, |_| None);
            return match repeat {
                None => Ok(results),
                Some(failure) => Err(failure.in_case("the call repeated")),
            };
        }
    }

    /// Reads everything back; inputs and gaps must be what they were.
    fn collect(&self, layout: Layout, held: &[Held]) -> Result<Vec<Argument>, Failure> {
        let mut results = Vec::new();
        for (argument, held) in self.arguments.iter().zip(held) {
            let name = argument.name;
            let data = held.read().map_err(|error| Failure::error("read", &error))?;
            let tensor = argument.tensor.gathered(layout, &data).map_err(|at| Failure {
                got: format!("a write at element {at} of the buffer, between or behind its rows"),
                ..Failure::of(name, "memory outside the tensor untouched")
            })?;
            results.push(Argument { tensor, ..argument.clone() });
        }
        let inputs = |from: &[Argument]| -> Vec<Argument> {
            from.iter().filter(|argument| argument.role == Role::Input).cloned().collect()
        };
        match compare(&inputs(&results), &inputs(&self.arguments), |_| None) {
            None => Ok(results),
            Some(failure) => Err(failure.in_case("an input was modified")),
        }
    }
}

/// The argument of that name.
pub(crate) fn find<'a>(arguments: &'a [Argument], name: &str) -> Option<&'a Tensor> {
    arguments.iter().find(|argument| argument.name == name).map(|argument| &argument.tensor)
}

/// The first difference between results and what is expected of the arguments
/// that both have.
pub(crate) fn compare(
    results: &[Argument],
    expected: &[Argument],
    tolerance: impl Fn(&str) -> Option<f64>,
) -> Option<Failure> {
    for Argument { name, tensor, .. } in expected {
        let Some(result) = find(results, name) else { continue };
        if result.shape != tensor.shape {
            return Some(Failure {
                got: format!("shape {:?}", result.shape),
                ..Failure::of(name, format!("shape {:?}", tensor.shape))
            });
        }
        if let Some(at) = result.data.first_difference(&tensor.data, tolerance(name)) {
            return Some(Failure {
                index: Some(tensor.index(at)),
                got: result.data.show(at),
                ..Failure::of(name, tensor.data.show(at))
            });
        }
    }
    None
}

/// Descriptors of a case's arguments in some layout.
pub(crate) struct Descs<'c, O> {
    pub(crate) case: &'c Case<O>,
    pub(crate) layout: Layout,
}

impl<O: Subject> Source<TensorDesc, TensorDesc> for Descs<'_, O> {
    fn maybe_input(&mut self, name: &str) -> Option<TensorDesc> {
        self.case.get(name).map(|tensor| tensor.desc(self.layout))
    }

    fn maybe_output(&mut self, name: &str) -> Option<TensorDesc> {
        self.maybe_input(name)
    }
}

/// Buffers by name; each is given out once.
pub(crate) struct Slots<'a>(Vec<(&'static str, &'a mut Held)>);

impl<'a> Slots<'a> {
    fn new(arguments: &[Argument], held: &'a mut [Held]) -> Self {
        Slots(arguments.iter().map(|argument| argument.name).zip(held).collect())
    }

    fn take(&mut self, name: &str) -> Option<&'a mut Held> {
        let at = self.0.iter().position(|slot| slot.0 == name)?;
        Some(self.0.swap_remove(at).1)
    }
}

impl<'a> Source<View<'a>, ViewMut<'a>> for Slots<'a> {
    fn maybe_input(&mut self, name: &str) -> Option<View<'a>> {
        self.take(name).map(|held| held.view())
    }

    fn maybe_output(&mut self, name: &str) -> Option<ViewMut<'a>> {
        self.take(name).map(Held::view_mut)
    }
}
