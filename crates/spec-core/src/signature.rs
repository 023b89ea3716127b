//! What an operator declares: its name, its options and its arguments.
//!
//! `operator!` declares each argument once, by name, role, element types and
//! shape. From that declaration come the descriptors ([`Signature::Tensors`]), the buffers
//! ([`Signature::Buffers`]), calls from raw addresses ([`Signature::Addresses`]) and the checks of
//! all of them. Programs that go through arguments by name, such as bindings to other languages
//! and the conformance kit, read the declaration through [`Signature::ARGUMENTS`] and [`Source`].

use crate::argument::{Address, Argument, Source, join};
use crate::check::{Checker, Site};
use crate::options::{self, OptionInfo, Value};
use crate::presence::Presence;
use crate::shape::Shapes;
use crate::{Device, Result, Status, TensorDesc, View, ViewMut};

/// An operator's name, options and arguments. `operator!` implements this trait for each
/// operator, in the operator's contract.
pub trait Signature: Sized {
    /// The operator's name, which is also the name of its file in every crate.
    const NAME: &'static str;
    /// What the operator does; the first paragraph is a summary.
    const DOC: &'static str;
    /// The operator's options, required options first.
    const OPTIONS: &'static [OptionInfo];
    /// The operator's arguments, in order.
    const ARGUMENTS: &'static [Argument];
    /// Which arguments and options need or exclude each other.
    const PRESENCE: &'static [Presence];
    /// The shapes of the arguments, parsed.
    fn shapes() -> &'static Shapes;

    /// Passes the descriptor of each argument to `each`, with its place in
    /// [`ARGUMENTS`](Self::ARGUMENTS); `None` for one that is absent.
    fn each(tensors: &Self::Tensors, each: &mut dyn FnMut(usize, Option<&TensorDesc>));

    /// Whether required arguments are passed by name: true where two arguments could be swapped
    /// by mistake without an error.
    const BY_NAME: bool;
    /// Descriptors of the arguments.
    type Tensors: Clone + Send + Sync + 'static;
    /// The arguments as memory.
    type Buffers<'a>;
    /// The addresses of the arguments, without types and sizes, which the descriptors have.
    type Addresses;

    /// The operator with the options that `source` has; other options take their defaults.
    /// `source` is called once for each option, in the order of [`OPTIONS`](Self::OPTIONS).
    ///
    /// # Errors
    /// The errors of `source`; status 3 for a required option that `source` does not have, and
    /// for a value of another type.
    fn options_from(
        source: &mut dyn FnMut(&'static OptionInfo) -> Result<Option<Value>>,
    ) -> Result<Self>;

    /// Passes each option and its value to `each`, in the order of [`OPTIONS`](Self::OPTIONS).
    fn each_option(&self, each: &mut dyn FnMut(&'static OptionInfo, Value));

    /// The value of the option `name`.
    ///
    /// # Errors
    /// Status 3, with a list of the options, where no option has this name.
    fn option(&self, name: &str) -> Result<Value> {
        let option = options::find(Self::NAME, Self::OPTIONS, name)?;
        let mut found = option.kind.zero();
        self.each_option(&mut |other, value| {
            if other.name == option.name {
                found = value;
            }
        });
        Ok(found)
    }

    /// Sets the option `name` to a value.
    ///
    /// # Errors
    /// Status 3, with a list of the options, where no option has this name; status 3 for a
    /// value of another type.
    fn set_option(&mut self, name: &str, value: Value) -> Result<()> {
        options::find(Self::NAME, Self::OPTIONS, name)?;
        *self = Self::options_from(&mut |option| {
            if option.name == name { Ok(Some(value)) } else { self.option(option.name).map(Some) }
        })?;
        Ok(())
    }

    /// Sets the option `name` to a value that is written as text.
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

    /// The operator with zero for its required options, and the defaults of all others.
    fn usual() -> Self {
        let zero = |option: &OptionInfo| option.is_required().then(|| option.kind.zero());
        match Self::options_from(&mut |option| Ok(zero(option))) {
            Ok(operator) => operator,
            // Each required option was just given a value of its own type.
            Err(error) => unreachable!("{error}"),
        }
    }

    /// Descriptors of the arguments, taken from `source` by name.
    ///
    /// # Errors
    /// Status 4 for a required argument that `source` does not have.
    fn tensors_from(source: &mut impl Source<TensorDesc, TensorDesc>) -> Result<Self::Tensors>;

    /// Buffers of the arguments, taken from `source` by name.
    ///
    /// # Errors
    /// As [`tensors_from`](Self::tensors_from).
    fn buffers_from<'a>(
        source: &mut impl Source<View<'a>, ViewMut<'a>>,
    ) -> Result<Self::Buffers<'a>>;

    /// Addresses of the arguments, taken from `source` by name.
    ///
    /// # Errors
    /// As [`tensors_from`](Self::tensors_from).
    fn addresses_from(source: &mut impl Source<Address, Address>) -> Result<Self::Addresses>;

    /// Checks that each buffer is what its descriptor announced: present, on the
    /// right device, of the right type, large enough and aligned. Cuts each buffer to
    /// the elements that its descriptor spans.
    ///
    /// # Errors
    /// Status 3, 4, 5, 10 or 11.
    fn fit(tensors: &Self::Tensors, buffers: &mut Self::Buffers<'_>, site: Site) -> Result<()>;

    /// Checks that no argument that is written shares memory with another argument or with the
    /// workspace, and that no argument shares memory with the workspace. The buffers are cut to
    /// what their descriptors span.
    ///
    /// # Errors
    /// Status 3.
    fn apart(buffers: &Self::Buffers<'_>, workspace: &ViewMut<'_>) -> Result<()>;

    /// As [`apart`](Self::apart), for arguments that are given as addresses, before there are views
    /// of them.
    ///
    /// # Errors
    /// Status 3.
    fn apart_at(
        tensors: &Self::Tensors,
        addresses: &Self::Addresses,
        workspace: Address,
        workspace_size: usize,
    ) -> Result<()>;

    /// Buffers in memory that is not there, as large as the descriptors say: for
    /// [`Descriptor::route`](crate::Descriptor::route).
    #[doc(hidden)]
    fn nowhere(tensors: &Self::Tensors) -> Self::Buffers<'static>;

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

impl Checker {
    pub(crate) fn of<O: Signature>() -> Self {
        Checker::new(O::NAME)
    }
}

/// The error for a required argument that a source does not have.
pub(crate) fn missing(operator: &'static str, argument: &'static Argument) -> crate::Error {
    let expected = format!("{} {}", join(argument.dtypes), argument.shape);
    Checker::new(operator).error(Status::NullPointer, argument.name, "absent", expected)
}
