//! A case: one call of an operator with its arguments by name. Runs it on a backend.

use std::fmt::Debug;
use std::sync::Arc;

use spec_core::shape::{Form, Size};
use spec_core::sizes::outputs;
use spec_core::{
    Backend, DType, Descriptor, Error, Operator, Role, Route, Source, Status, Stream, Supports,
    TensorDesc, View, ViewMut,
};

use crate::Rng;
use crate::argument::{Argument, find};
use crate::memory::Arguments;
use crate::report::{Failure, failed};
use crate::tensor::{Data, Layout, Tensor};

/// One call of an operator.
#[derive(Clone, Debug)]
pub struct Case<O> {
    /// The parameters.
    pub operator: O,
    /// The arguments.
    pub arguments: Vec<Argument>,
}

/// The same requests in another batch, and the results that they must have there.
#[derive(Debug)]
pub struct Recomposed<O> {
    /// The other call.
    pub case: Case<O>,
    /// For each output, by name, the rows of the original call that its rows must equal.
    pub rows: Vec<(&'static str, Rows)>,
}

/// The rows of the original call that the rows of another call must equal.
#[derive(Clone, Debug)]
pub enum Rows {
    /// The same rows, and as many.
    All,
    /// Row `i` must equal the original row with the `i`-th number of the list. Rows beyond the
    /// list may be anything.
    Of(Vec<usize>),
}

/// An operator that can be checked.
pub trait Subject: Operator + Debug {
    /// The operator's golden vectors, as JSON.
    const GOLDEN: &'static str;

    /// The operator as a plain sequential loop over host memory, with which every
    /// backend is compared.
    ///
    /// # Errors
    /// Status 1 for views that are not host memory.
    fn plain(plan: &Self::Plan, buffers: Self::Buffers<'_>) -> Result<(), Error>;

    /// Optional arguments that are changed in place and that other results depend on. Leaving
    /// them out would change those results.
    const STATE: &'static [&'static str] = &[];

    /// Float outputs that may have 16 bits and are computed in f32, then rounded. If the f32
    /// values of two backends lie on different sides of the middle between two 16-bit numbers,
    /// the results are these two numbers.
    const ROUNDED: &'static [&'static str] = &[];

    /// Adds arguments to a golden case that its file leaves out.
    fn complete(_case: &mut Case<Self>) {}

    /// Small calls that show a reader what the operator does. Tests compare their results, as
    /// text, with a snapshot. Floats are f32, because the text of a result rounds only these.
    fn examples() -> Vec<Case<Self>>;

    /// A random call, sometimes with bad data. [`Case::random`] calls this function, and adds bad
    /// data that is common to all operators.
    fn random(rng: &mut Rng) -> Case<Self>;

    /// The same requests in another batch: [`Recomposed::of_rows`], if all that a row's results
    /// depend on lies in the same row of other arguments.
    fn recomposed(case: &Case<Self>, rng: &mut Rng) -> Recomposed<Self> {
        Recomposed::of_rows(case, rng)
    }

    /// Cuts results to the parts that the contract specifies.
    fn trim(_results: &mut [Argument]) {}
}

impl<O: Subject> Recomposed<O> {
    /// Rows of a call in another order, some of them twice and some not at all. Rows are counted by the
    /// first size of the first argument. Arguments whose first size is another stay as they are.
    pub fn of_rows(case: &Case<O>, rng: &mut Rng) -> Self {
        let shapes = O::shapes();
        let first = O::ARGUMENTS[0].name;
        let rows = case.get(first).map_or(0, Tensor::rows);
        let wanted = if rows == 0 { 0 } else { rng.between(0, rows + 3) };
        let picked: Vec<usize> = (0..wanted).map(|_| rng.below(rows)).collect();
        let counted = &shapes.arguments()[0].forms[0].sizes[0];
        // Whether the declaration defines a size as the number of rows, and the arguments that the
        // definition depends on are given or absent as it says.
        let is_defined = |size: &Size| {
            shapes.rules().iter().any(|rule| {
                let holds = |&(at, is_given): &(usize, bool)| {
                    case.get(O::ARGUMENTS[at].name).is_some() == is_given
                };
                *size == Size::Name(rule.place)
                    && rule.value.as_ref() == Some(counted)
                    && rule.conditions.iter().all(holds)
            })
        };
        let moves = |argument: &Argument| {
            let at = O::ARGUMENTS.iter().position(|known| known.name == argument.name);
            let fits = |form: &&Form| {
                let extents = &argument.tensor.shape;
                let mut pairs = form.sizes.iter().zip(extents);
                form.sizes.len() == extents.len()
                    && pairs.all(|(size, extent)| match size {
                        Size::Number(number) => number == extent,
                        _ => true,
                    })
            };
            let form = at.and_then(|at| shapes.arguments()[at].forms.iter().find(fits));
            form.is_some_and(|form| form.sizes[0] == *counted || is_defined(&form.sizes[0]))
        };
        let other = case.map(|argument| match moves(argument) {
            true => argument.tensor.pick(&picked),
            false => argument.tensor.clone(),
        });
        let written = case.arguments.iter().filter(|argument| argument.role != Role::Input);
        let written = written.filter(|argument| moves(argument));
        let rows = written.map(|argument| (argument.name, Rows::Of(picked.clone()))).collect();
        Recomposed { case: other, rows }
    }
}

impl<O: Subject> Case<O> {
    /// A case without arguments, which the methods below add.
    pub fn new(operator: O) -> Self {
        Case { operator, arguments: Vec::new() }
    }

    /// The case with one more argument.
    pub fn with(mut self, name: &'static str, role: Role, tensor: impl Into<Tensor>) -> Self {
        self.arguments.push(Argument { name, role, tensor: tensor.into() });
        self
    }

    /// The case with one more argument, which the call reads.
    pub fn input(self, name: &'static str, tensor: impl Into<Tensor>) -> Self {
        self.with(name, Role::Input, tensor)
    }

    /// The case with one more argument, which the call changes in place.
    pub fn in_place(self, name: &'static str, tensor: impl Into<Tensor>) -> Self {
        self.with(name, Role::InPlace, tensor)
    }

    /// The case with one more argument, of this type, which the call writes. Its shape follows from
    /// the declaration, the options and the arguments so far.
    ///
    /// # Panics
    /// If the shape has a size that these do not say.
    pub fn output(self, name: &'static str, dtype: DType) -> Self {
        let desc = |argument: &spec_core::Argument| {
            self.get(argument.name).map(|tensor| tensor.desc(Layout::PACKED))
        };
        let given: Vec<_> = O::ARGUMENTS.iter().map(desc).collect();
        let made = outputs(&self.operator, &given, &[]);
        let at = O::ARGUMENTS.iter().position(|argument| argument.name == name);
        let made = at.and_then(|at| made[at]).unwrap_or_else(|| panic!("no shape for `{name}`"));
        self.output_of(name, dtype, made.shape())
    }

    /// The case with each of these outputs in one call of two, by chance.
    pub(crate) fn some_outputs<const N: usize>(
        self,
        rng: &mut Rng,
        outputs: [(&'static str, DType); N],
    ) -> Self {
        let add = |case: Self, (name, dtype)| {
            if rng.chance(2) { case.output(name, dtype) } else { case }
        };
        outputs.into_iter().fold(self, add)
    }

    /// The case with one more argument, of this type and shape, which the call writes: an output
    /// that may have several shapes, or one with a size that only outputs have.
    pub fn output_of(self, name: &'static str, dtype: DType, shape: &[usize]) -> Self {
        self.with(name, Role::Output, Tensor::to_fill(dtype, shape))
    }

    /// A random call of the operator. In one call of three, some 64-bit elements are replaced by
    /// [others](Rng::beyond_32_bits) with the same low 32 bits.
    pub fn random(rng: &mut Rng) -> Self {
        let mut case = O::random(rng);
        if rng.chance(3) {
            for Argument { role, tensor, .. } in &mut case.arguments {
                if *role != Role::Output
                    && let Data::I64(values) = &mut tensor.data
                {
                    rng.beyond_32_bits(values);
                }
            }
        }
        case
    }

    /// The argument called `name`.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        find(&self.arguments, name)
    }

    /// The case with each argument replaced by `change` of it.
    pub fn map(&self, change: impl Fn(&Argument) -> Tensor) -> Case<O> {
        let changed = |argument: &Argument| Argument { tensor: change(argument), ..*argument };
        let arguments = self.arguments.iter().map(changed).collect();
        Case { operator: self.operator.clone(), arguments }
    }

    /// The case without the outputs that a caller can leave out.
    pub(crate) fn without_optional_outputs(&self) -> Case<O> {
        let optional = |name| {
            O::ARGUMENTS.iter().any(|a| a.name == name && a.optional) && !O::STATE.contains(&name)
        };
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

    /// The kernels that the call runs on a device. Allocates no memory.
    ///
    /// # Errors
    /// An error of the backend.
    pub fn route<B>(&self, backend: &B, layout: Layout) -> Result<Route, Failure>
    where
        B: Supports<O> + ?Sized,
    {
        self.create(backend, layout)?.route().map_err(failed("route"))
    }

    /// The descriptors of the arguments in a layout.
    ///
    /// # Panics
    /// If a required argument is missing.
    pub fn tensors(&self, layout: Layout) -> O::Tensors {
        let tensors = O::tensors_from(&mut Descs { case: self, layout });
        tensors.expect("a case has all required arguments")
    }

    fn create<B>(&self, backend: &B, layout: Layout) -> Result<Descriptor<O>, Failure>
    where
        B: Supports<O> + ?Sized,
    {
        let tensors = O::tensors_from(&mut Descs { case: self, layout }).map_err(failed("case"))?;
        let created = Descriptor::create(backend, &self.operator, &tensors);
        created.map_err(|error| match error.status() {
            Status::NotImplemented => Failure::unsupported(&error),
            _ => Failure::error("create", &error),
        })
    }

    /// Creates the operator, calls it, and returns all arguments as they are
    /// after the call.
    pub(crate) fn run_once<B>(&self, backend: &B, layout: Layout) -> Result<Vec<Argument>, Failure>
    where
        B: Supports<O> + ?Sized,
    {
        Ready::new(backend, self, layout)?.call(self)
    }

    /// As [`run_once`](Self::run_once), but calls the operator twice on the same data and the same
    /// workspace. Both calls must give the same results.
    pub(crate) fn run<B>(&self, backend: &B, layout: Layout) -> Result<Vec<Argument>, Failure>
    where
        B: Supports<O> + ?Sized,
    {
        let mut ready = Ready::new(backend, self, layout)?;
        let given = ready.descriptor.workspace_size();
        // Asking for the route changes nothing, and every device can say it.
        ready.descriptor.route().map_err(failed("route"))?;
        let first = ready.call(self)?;
        ready.write(self)?;
        let results = ready.call(self)?;
        let size = ready.descriptor.workspace_size();
        if size != given {
            let expected = given.to_string();
            return Err(Failure {
                got: size.to_string(),
                ..Failure::of("workspace_size", expected)
            });
        }
        match compare(&results, &first, |_| None) {
            None => Ok(results),
            Some(failure) => Err(failure.in_case("the call repeated")),
        }
    }
}

/// An operator created on a device, with memory for the arguments of a case, and
/// of other cases whose arguments have the same types and shapes.
#[derive(Debug)]
pub struct Ready<O: Subject> {
    descriptor: Arc<Descriptor<O>>,
    layout: Layout,
    arguments: Arguments,
}

impl<O: Subject> Ready<O> {
    /// Creates the operator and writes the case to the device.
    ///
    /// # Errors
    /// An error of the backend.
    pub fn new<B>(backend: &B, case: &Case<O>, layout: Layout) -> Result<Self, Failure>
    where
        B: Supports<O> + ?Sized,
    {
        Ready::with(backend, Arc::new(case.create(backend, layout)?), case, layout)
    }

    /// A second `Ready` with the same descriptor, and with memory of its own.
    ///
    /// # Errors
    /// An error of the backend.
    pub fn twin<B>(&self, backend: &B, case: &Case<O>) -> Result<Self, Failure>
    where
        B: Backend + ?Sized,
    {
        Ready::with(backend, self.descriptor.clone(), case, self.layout)
    }

    fn with<B: Backend + ?Sized>(
        backend: &B,
        descriptor: Arc<Descriptor<O>>,
        case: &Case<O>,
        layout: Layout,
    ) -> Result<Self, Failure> {
        let workspace = descriptor.workspace_size();
        let arguments = Arguments::new(backend, &case.arguments, layout, workspace);
        let arguments = arguments.map_err(failed("upload"))?;
        Ok(Ready { descriptor, layout, arguments })
    }

    /// Writes all arguments of a case; outputs are written too, with poison.
    ///
    /// # Errors
    /// An error of the backend.
    pub fn write(&mut self, case: &Case<O>) -> Result<(), Failure> {
        self.arguments.write(&case.arguments, self.layout).map_err(failed("upload"))
    }

    /// Enqueues the call.
    ///
    /// # Errors
    /// An error of the backend.
    pub fn enqueue(&mut self, stream: Stream<'_>) -> Result<(), Failure> {
        let (workspace, arguments) = self.arguments.views();
        let buffers = O::buffers_from(&mut Slots(arguments)).map_err(failed("case"))?;
        let called = self.descriptor.call_on(workspace, buffers, stream);
        called.map_err(failed("call"))
    }

    /// Makes the call and reads all arguments back, which waits for the call.
    fn call(&mut self, case: &Case<O>) -> Result<Vec<Argument>, Failure> {
        self.enqueue(Stream::default())?;
        self.results(case)
    }

    /// Reads all arguments back, after the call on `case` is done, and cuts them to the parts
    /// that the contract specifies.
    ///
    /// # Errors
    /// A failure where the call changed an input, or memory between or behind the rows.
    pub fn results(&self, case: &Case<O>) -> Result<Vec<Argument>, Failure> {
        let mut results = Vec::new();
        let all = self.arguments.read(&case.arguments)?;
        for (argument, data) in case.arguments.iter().zip(all) {
            let name = argument.name;
            let gathered = argument.tensor.gathered(self.layout, data);
            let tensor = gathered.map_err(|at| Failure {
                got: format!("a write at element {at} of the buffer, between or behind its rows"),
                ..Failure::of(name, "memory outside the tensor untouched")
            })?;
            if argument.role == Role::Input
                && let Some(failure) = difference(name, &tensor, &argument.tensor, None)
            {
                return Err(failure.in_case("an input was modified"));
            }
            results.push(Argument { tensor, ..*argument });
        }
        O::trim(&mut results);
        Ok(results)
    }
}

/// The first difference between `results` and `expected`, in the arguments that both have.
pub fn compare(
    results: &[Argument],
    expected: &[Argument],
    tolerance: impl Fn(&str) -> Option<f64>,
) -> Option<Failure> {
    expected.iter().find_map(|Argument { name, tensor, .. }| {
        difference(name, find(results, name)?, tensor, tolerance(name))
    })
}

/// The first difference between a result and the expected tensor.
fn difference(
    name: &str,
    result: &Tensor,
    expected: &Tensor,
    tolerance: Option<f64>,
) -> Option<Failure> {
    if result.shape != expected.shape {
        return Some(Failure {
            got: format!("shape {:?}", result.shape),
            ..Failure::of(name, format!("shape {:?}", expected.shape))
        });
    }
    let at = result.data.first_difference(&expected.data, tolerance)?;
    Some(Failure {
        index: Some(expected.index(at).into()),
        got: result.data.show(at),
        ..Failure::of(name, expected.data.show(at))
    })
}

/// A source of the descriptors of a case's arguments in a layout.
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

/// A source of buffers by name; each buffer can be taken once.
struct Slots<'a>(Vec<(&'static str, ViewMut<'a>)>);

impl<'a> Source<View<'a>, ViewMut<'a>> for Slots<'a> {
    fn input(&mut self, argument: &'static spec_core::Argument) -> Option<View<'a>> {
        self.output(argument).map(View::from)
    }

    fn output(&mut self, argument: &'static spec_core::Argument) -> Option<ViewMut<'a>> {
        let at = self.0.iter().position(|slot| slot.0 == argument.name)?;
        Some(self.0.swap_remove(at).1)
    }
}
