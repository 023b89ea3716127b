//! An argument of an operator, as a description that programs can read.

use crate::DType;

/// What a call does with an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The argument is read.
    Input,
    /// The argument is written; its contents before the call do not matter.
    Output,
    /// The argument is read and changed in place.
    InPlace,
}

/// The element type that an argument has because of another argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DtypeRule {
    /// Any of [`Argument::dtypes`].
    Any,
    /// That of the named argument.
    As(&'static str),
    /// That of the named argument, from which the elements are copied, or i64.
    From(&'static str),
}

impl DtypeRule {
    /// The argument whose element type decides.
    pub fn argument(self) -> Option<&'static str> {
        match self {
            DtypeRule::Any => None,
            DtypeRule::As(name) | DtypeRule::From(name) => Some(name),
        }
    }
}

/// An argument of an operator, as its contract declares it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Argument {
    /// The argument's name.
    pub name: &'static str,
    /// Whether the argument is read, written or both.
    pub role: Role,
    /// Whether a caller may leave the argument out.
    pub optional: bool,
    /// The element types that the argument may have.
    pub dtypes: &'static [DType],
    /// The element type that the argument has because of another argument.
    pub dtype_rule: DtypeRule,
    /// The argument's shape as text: `[tokens, experts]`. [`Signature::shapes`](crate::Signature::shapes)
    /// has it parsed.
    pub shape: &'static str,
    /// The argument's meaning, as its documentation says.
    pub doc: &'static str,
}

impl Argument {
    /// Whether the operator writes the argument.
    pub fn is_written(&self) -> bool {
        self.role != Role::Input
    }
}

/// The place of the argument `name` in a list.
pub(crate) fn place(arguments: &[Argument], name: &str) -> Option<usize> {
    arguments.iter().position(|argument| argument.name == name)
}

/// A store of arguments that are taken one at a time by name: values of type `I` for arguments
/// that are read, `O` for arguments that are written.
pub trait Source<I, O> {
    /// The value of an argument that is read; `None` where it is absent.
    fn input(&mut self, argument: &'static Argument) -> Option<I>;

    /// The value of an argument that is written; `None` where it is absent.
    fn output(&mut self, argument: &'static Argument) -> Option<O>;
}

/// A source that numbers the arguments as they are asked for, which is in the order of
/// [`Signature::ARGUMENTS`](crate::Signature::ARGUMENTS), and gets each argument from a function of
/// its number.
#[derive(Debug)]
pub struct InOrder<F> {
    next: usize,
    of: F,
}

impl<F> InOrder<F> {
    /// The arguments `of(0)`, `of(1)` and so on; `None` for an argument that is absent.
    #[inline]
    pub fn new(of: F) -> Self {
        InOrder { next: 0, of }
    }
}

impl<T, F: FnMut(usize) -> Option<T>> Source<T, T> for InOrder<F> {
    #[inline]
    fn input(&mut self, _argument: &'static Argument) -> Option<T> {
        self.next += 1;
        (self.of)(self.next - 1)
    }

    #[inline]
    fn output(&mut self, argument: &'static Argument) -> Option<T> {
        self.input(argument)
    }
}

/// A device or host address that another framework holds.
///
/// Made from an integer (a `CUdeviceptr`, a tensor's `data_ptr()`) or a pointer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Address(pub(crate) u64);

impl From<u64> for Address {
    fn from(address: u64) -> Self {
        Address(address)
    }
}

impl<T> From<*const T> for Address {
    fn from(pointer: *const T) -> Self {
        Address(pointer.expose_provenance() as u64)
    }
}

impl<T> From<*mut T> for Address {
    fn from(pointer: *mut T) -> Self {
        Address(pointer.expose_provenance() as u64)
    }
}

/// Dtypes as part of a sentence: `f32 or f16`.
pub(crate) fn join(dtypes: &[DType]) -> String {
    let names: Vec<_> = dtypes.iter().map(|dtype| dtype.name()).collect();
    names.join(" or ")
}
