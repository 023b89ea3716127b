//! Arguments: what an operator takes, as a description that programs can read.
//!
//! `operator!` declares each argument once, by name, role, element types and
//! shape. From that declaration come the descriptors ([`Signature::Tensors`]), the buffers
//! ([`Signature::Buffers`]), calls from raw addresses ([`Signature::Addresses`]), the checks of
//! all of them, and, through [`Signature::ARGUMENTS`] and [`Source`], whatever goes through
//! arguments by name: bindings to other languages and the conformance kit.

use crate::check::{Checker, Site};
use crate::options::{self, OptionInfo, Value};
use crate::{DType, Device, Result, Status, TensorDesc, View, ViewMut};

/// What a call does with an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// It is read.
    Input,
    /// It is written, whatever it held.
    Output,
    /// It is read and changed in place.
    InPlace,
}

/// An argument of an operator, as its contract declares it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Argument {
    /// Its name.
    pub name: &'static str,
    /// Whether it is read, written or both.
    pub role: Role,
    /// Whether it may be absent.
    pub optional: bool,
    /// The element types it may have.
    pub dtypes: &'static [DType],
    /// Its shape in words: `[tokens, experts]`.
    pub shape: &'static str,
    /// What it means, as its documentation says.
    pub doc: &'static str,
}

impl Argument {
    /// Whether the operator writes it.
    pub fn is_written(&self) -> bool {
        self.role != Role::Input
    }
}

/// Where arguments are taken from, one at a time: `I` for what is read, `O` for
/// what is written.
pub trait Source<I, O> {
    /// An argument that is read; `None` where it is absent.
    fn input(&mut self, argument: &'static Argument) -> Option<I>;

    /// An argument that is written; `None` where it is absent.
    fn output(&mut self, argument: &'static Argument) -> Option<O>;
}

/// A device or host address, as another framework has it.
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

/// An operator's name, options and arguments. `operator!` implements it, once
/// an operator, in the operator's contract.
pub trait Signature: Sized {
    /// The operator's name, which is also its address in every crate.
    const NAME: &'static str;
    /// What the operator does; the first paragraph is a summary.
    const DOC: &'static str;
    /// Its options: those that are required first.
    const OPTIONS: &'static [OptionInfo];
    /// Its arguments, in order.
    const ARGUMENTS: &'static [Argument];
    /// Whether required arguments are passed by name, since two of them could change places
    /// unnoticed.
    const BY_NAME: bool;
    /// Descriptors of the arguments.
    type Tensors: Clone + Send + Sync + 'static;
    /// The arguments themselves.
    type Buffers<'a>;
    /// Where the arguments are, and nothing else: the descriptors know types and
    /// sizes.
    type Addresses;

    /// The operator with the options that a source has; others take their defaults. The
    /// source is asked for each option once, in the order of [`OPTIONS`](Self::OPTIONS).
    ///
    /// # Errors
    /// Those of the source; status 3 for a required option that it does not have and for a
    /// value of another type.
    fn options_from(
        source: &mut dyn FnMut(&'static OptionInfo) -> Result<Option<Value>>,
    ) -> Result<Self>;

    /// The value of the option of that name.
    ///
    /// # Errors
    /// Status 3, with the names that there are, where no option has it.
    fn option(&self, name: &str) -> Result<Value>;

    /// Sets the option of that name.
    ///
    /// # Errors
    /// Status 3, with the names that there are, where no option has it, and for a value of
    /// another type.
    fn set_option(&mut self, name: &str, value: Value) -> Result<()>;

    /// Sets the option of that name to the value that a text names.
    ///
    /// # Errors
    /// As [`set_option`](Self::set_option).
    fn set_text(&mut self, name: &str, text: &str) -> Result<()> {
        let option = options::find(Self::NAME, Self::OPTIONS, name)?;
        match option.kind.parse(text) {
            Some(value) => self.set_option(name, value),
            None => Err(option.refuse(Self::NAME, format!("{text:?}"))),
        }
    }

    /// The operator with the defaults of all options, and zero for the required ones.
    fn usual() -> Self {
        let zero = |option: &OptionInfo| option.is_required().then(|| option.kind.zero());
        match Self::options_from(&mut |option| Ok(zero(option))) {
            Ok(operator) => operator,
            // Each required option was just given a value of its own type.
            Err(error) => unreachable!("{error}"),
        }
    }

    /// Descriptors from a source that knows them by name.
    ///
    /// # Errors
    /// Status 4 for a required argument that the source does not have.
    fn tensors_from(source: &mut impl Source<TensorDesc, TensorDesc>) -> Result<Self::Tensors>;

    /// Buffers from a source that knows them by name.
    ///
    /// # Errors
    /// As [`tensors_from`](Self::tensors_from).
    fn buffers_from<'a>(
        source: &mut impl Source<View<'a>, ViewMut<'a>>,
    ) -> Result<Self::Buffers<'a>>;

    /// Addresses from a source that knows them by name.
    ///
    /// # Errors
    /// As [`tensors_from`](Self::tensors_from).
    fn addresses_from(source: &mut impl Source<Address, Address>) -> Result<Self::Addresses>;

    /// Checks that buffers are what the descriptors announced: there, on the
    /// right device, of the right type, large enough and aligned. Cuts them to
    /// what the descriptors span.
    ///
    /// # Errors
    /// Status 3, 4, 5, 10 or 11.
    fn fit(tensors: &Self::Tensors, buffers: &mut Self::Buffers<'_>, site: Site) -> Result<()>;

    /// Buffers at addresses on `device`, as large as the descriptors say.
    ///
    /// # Safety
    /// As for [`View::from_address`] and [`ViewMut::from_address`], for every
    /// argument.
    unsafe fn at<'a>(
        tensors: &Self::Tensors,
        addresses: Self::Addresses,
        device: Device,
    ) -> Self::Buffers<'a>;
}

/// A required argument that a source does not have.
pub(crate) fn missing(operator: &'static str, argument: &'static Argument) -> crate::Error {
    let expected = format!("{} {}", join(argument.dtypes), argument.shape);
    Checker::new(operator).error(Status::NullPointer, argument.name, "absent", expected)
}

/// Dtypes in words.
pub(crate) fn join(dtypes: &[DType]) -> String {
    let names: Vec<_> = dtypes.iter().map(|dtype| dtype.name()).collect();
    names.join(" or ")
}
