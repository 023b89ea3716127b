//! One call of an operator: its arguments by name, and running it.

use std::fmt::Debug;

use serde_json::Value;

use spec_core::{
    DType, Descriptor, Error, Operator, Role, Source, Status, Stream, Supports, TensorDesc, View,
    ViewMut,
};

use crate::Rng;
use crate::report::Failure;
use crate::tensor::{Held, Layout, Tensor, poisoned};

/// An argument by its name in the contract.
#[derive(Clone, Debug)]
pub struct Argument {
    /// The name.
    pub name: &'static str,
    /// What the call does with it.
    pub role: Role,
    /// Its elements.
    pub tensor: Tensor,
}

/// One call of an operator.
#[derive(Clone, Debug)]
pub struct Case<O> {
    /// The parameters.
    pub operator: O,
    /// The arguments.
    pub arguments: Vec<Argument>,
}

/// The same requests in another batch, and what must come out of it.
#[derive(Debug)]
pub struct Recomposed<O> {
    /// The other call.
    pub case: Case<O>,
    /// Outputs by name.
    pub rows: Vec<(&'static str, Rows)>,
}

/// Which rows of the original call the rows of another must equal.
#[derive(Clone, Debug)]
pub enum Rows {
    /// The same ones, and as many.
    All,
    /// Row `i` the original's row of that number; what follows may be anything.
    Of(Vec<usize>),
}

/// An operator that can be checked.
pub trait Subject: Operator + Debug {
    /// Its golden vectors.
    const GOLDEN: &'static str;

    /// The operator as a plain sequential loop over host memory: what every
    /// backend is compared with.
    ///
    /// # Errors
    /// Those of views that are no host memory.
    fn plain(plan: &Self::Plan, buffers: Self::Buffers<'_>) -> Result<(), Error>;

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
    /// A call without arguments yet.
    pub fn new(operator: O) -> Self {
        Case { operator, arguments: Vec::new() }
    }

    /// With one more argument.
    pub fn with(mut self, name: &'static str, role: Role, tensor: Tensor) -> Self {
        self.arguments.push(Argument { name, role, tensor });
        self
    }

    /// With an argument that is read.
    pub fn input(self, name: &'static str, tensor: Tensor) -> Self {
        self.with(name, Role::Input, tensor)
    }

    /// With an argument that is changed in place.
    pub fn in_place(self, name: &'static str, tensor: Tensor) -> Self {
        self.with(name, Role::InPlace, tensor)
    }

    /// With an argument that is written, of this type and shape.
    pub fn output(self, name: &'static str, dtype: DType, shape: &[usize]) -> Self {
        self.with(name, Role::Output, Tensor::to_fill(dtype, shape))
    }

    /// The argument of that name.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        find(&self.arguments, name)
    }

    /// Replaces arguments by what `change` makes of them.
    pub fn map(&self, change: impl Fn(&Argument) -> Tensor) -> Case<O> {
        let mut case = self.clone();
        for argument in &mut case.arguments {
            argument.tensor = change(argument);
        }
        case
    }

    /// Leaves out the outputs that a caller can leave out.
    pub(crate) fn without_optional_outputs(&self) -> Case<O> {
        let optional = |name| O::ARGUMENTS.iter().any(|a| a.name == name && a.optional);
        let mut case = self.clone();
        case.arguments.retain(|argument| argument.role == Role::Input || !optional(argument.name));
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
    pub(crate) fn run<B>(&self, backend: &B, layout: Layout) -> Result<Vec<Argument>, Failure>
    where
        B: Supports<O> + ?Sized,
    {
        let failed = |what| move |error: Error| Failure::error(what, &error);
        let tensors = O::tensors_from(&mut Descs { case: self, layout }).map_err(failed("case"))?;
        let created = Descriptor::create(backend, &self.operator, &tensors);
        let descriptor = created.map_err(|error| match error.status() {
            Status::NotImplemented => Failure::unsupported(&error),
            _ => Failure::error("create", &error),
        })?;
        let upload = failed("upload");
        // Whoever relies on a zeroed workspace shall fail here.
        let bytes = poisoned(descriptor.workspace_size());
        let mut workspace = Held::upload(backend, DType::U8, &bytes).map_err(upload)?;
        let spread: Vec<_> = self.arguments.iter().map(|a| a.tensor.spread(layout)).collect();
        let mut held = Vec::new();
        for (argument, data) in self.arguments.iter().zip(&spread) {
            let dtype = argument.tensor.data.dtype();
            held.push(Held::upload(backend, dtype, data.bytes()).map_err(upload)?);
        }
        let mut first: Option<Vec<Argument>> = None;
        loop {
            let mut slots = Slots::new(&self.arguments, &mut held);
            let buffers = O::buffers_from(&mut slots).map_err(failed("case"))?;
            descriptor
                .calculate(workspace.view_mut(), buffers, Stream::default())
                .map_err(failed("calculate"))?;
            backend.synchronize().map_err(failed("synchronize"))?;
            let mut results = self.collect(layout, &held)?;
            O::trim(&mut results);
            let Some(first) = first.take() else {
                for (held, data) in held.iter_mut().zip(&spread) {
                    held.write(data.bytes()).map_err(upload)?;
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
            let data =
                held.read(&argument.tensor.data).map_err(|error| Failure::error("read", &error))?;
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
pub fn find<'a>(arguments: &'a [Argument], name: &str) -> Option<&'a Tensor> {
    arguments.iter().find(|argument| argument.name == name).map(|argument| &argument.tensor)
}

/// The first difference between results and what is expected of the arguments
/// that both have.
pub fn compare(
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
                index: Some(tensor.index(at).into()),
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
    fn input(&mut self, argument: &'static spec_core::Argument) -> Option<TensorDesc> {
        self.case.get(argument.name).map(|tensor| tensor.desc(self.layout))
    }

    fn output(&mut self, argument: &'static spec_core::Argument) -> Option<TensorDesc> {
        self.input(argument)
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
    fn input(&mut self, argument: &'static spec_core::Argument) -> Option<View<'a>> {
        self.take(argument.name).map(|held| held.view())
    }

    fn output(&mut self, argument: &'static spec_core::Argument) -> Option<ViewMut<'a>> {
        self.take(argument.name).map(Held::view_mut)
    }
}
