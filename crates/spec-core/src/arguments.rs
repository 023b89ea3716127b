//! Argument lists: what an operator takes, written once.
//!
//! `arguments!` declares an operator's arguments by name, role, element types
//! and shape. From that one list come the descriptors ([`Signature::Tensors`]),
//! the buffers ([`Signature::Buffers`]), calls from raw addresses
//! ([`Signature::Addresses`]), the checks of all of them, and, through
//! [`Signature::ARGUMENTS`] and [`Source`], whatever goes through arguments by
//! name: bindings to other languages and the conformance kit.

use crate::check::{Checker, Site};
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

/// An operator's name and argument list. Implemented by `arguments!`, once an
/// operator, in its contract.
pub trait Signature {
    /// The operator's name, which is also its address in every crate.
    const NAME: &'static str;
    /// Its arguments, in order.
    const ARGUMENTS: &'static [Argument];
    /// Descriptors of the arguments.
    type Tensors: Clone + Send + Sync + 'static;
    /// The arguments themselves.
    type Buffers<'a>;
    /// Where the arguments are, and nothing else: the descriptors know types and
    /// sizes.
    type Addresses;

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

/// An argument's type: optional or not, read or written.
macro_rules! argument_type {
    ($read:ty, $written:ty, in) => { $read };
    ($read:ty, $written:ty, in optional) => { Option<$read> };
    ($read:ty, $written:ty, out) => { $written };
    ($read:ty, $written:ty, out optional) => { Option<$written> };
    ($read:ty, $written:ty, inout) => { $written };
    ($read:ty, $written:ty, inout optional) => { Option<$written> };
}

/// The [`Role`] of a word.
macro_rules! argument_role {
    (in) => {
        $crate::arguments::Role::Input
    };
    (out) => {
        $crate::arguments::Role::Output
    };
    (inout) => {
        $crate::arguments::Role::InPlace
    };
}

/// Whether the word `optional` is there.
macro_rules! argument_optional {
    () => {
        false
    };
    (optional) => {
        true
    };
}

/// An argument from a [`Source`].
macro_rules! argument_from {
    ($source:ident, $operator:expr, $argument:expr, in) => {
        $source.input($argument).ok_or_else(|| $crate::arguments::missing($operator, $argument))?
    };
    ($source:ident, $operator:expr, $argument:expr, in optional) => {
        $source.input($argument)
    };
    ($source:ident, $operator:expr, $argument:expr, $written:ident) => {
        $source.output($argument).ok_or_else(|| $crate::arguments::missing($operator, $argument))?
    };
    ($source:ident, $operator:expr, $argument:expr, $written:ident optional) => {
        $source.output($argument)
    };
}

/// Declares the arguments of an operator once. A line is
/// `name: role [dtypes] "[shape]"`, where the role is `in`, `out` or `inout`,
/// with `optional` after it where the argument may be absent.
macro_rules! arguments {
    (
        $(#[$meta:meta])*
        $operator:ident = $name:literal {
            $(
                $(#[doc = $doc:literal])*
                $field:ident : $role:tt $($optional:ident)? [$($dtype:ident),+] $shape:literal
            ),+ $(,)?
        }
    ) => {
        $(#[$meta])*
        pub struct Arguments<I, O> {
            $(
                $(#[doc = $doc])*
                #[doc = concat!(
                    "\n\n`", $shape, "`: ", stringify!($($dtype),+), "."
                )]
                pub $field: $crate::arguments::argument_type!(I, O, $role $($optional)?),
            )+
        }

        // By hand: `derive` takes no types that macros make.
        impl<I: Clone, O: Clone> Clone for Arguments<I, O> {
            fn clone(&self) -> Self {
                Arguments { $( $field: self.$field.clone() ),+ }
            }
        }

        impl<I: Copy, O: Copy> Copy for Arguments<I, O> {}

        impl<I: std::fmt::Debug, O: std::fmt::Debug> std::fmt::Debug for Arguments<I, O> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct("Arguments")$( .field(stringify!($field), &self.$field) )+.finish()
            }
        }

        /// Descriptors of the arguments.
        pub type Tensors = Arguments<$crate::TensorDesc, $crate::TensorDesc>;
        /// The arguments in memory.
        pub type Buffers<'a> = Arguments<$crate::View<'a>, $crate::ViewMut<'a>>;
        /// The arguments as addresses.
        pub type Addresses = Arguments<$crate::Address, $crate::Address>;

        /// The arguments one by one, for the checks.
        #[allow(non_upper_case_globals, dead_code, reason = "named as the arguments are; optional ones go unchecked where anything will do")]
        pub(crate) mod arg {
            use $crate::arguments::{Argument, argument_optional, argument_role};

            $(
                pub(crate) const $field: &Argument = &Argument {
                    name: stringify!($field),
                    role: argument_role!($role),
                    optional: argument_optional!($($optional)?),
                    dtypes: &[$($crate::DType::$dtype),+],
                    shape: $shape,
                    doc: concat!($($doc, "\n"),*),
                };
            )+

            pub(crate) const ALL: &[Argument] = &[$(*$field),+];
        }

        impl<I, O> Arguments<I, O> {
            fn from_source(
                source: &mut impl $crate::arguments::Source<I, O>,
            ) -> $crate::Result<Self> {
                Ok(Arguments { $(
                    $field: $crate::arguments::argument_from!(
                        source, $name, arg::$field, $role $($optional)?
                    ),
                )+ })
            }
        }

        impl $crate::arguments::Signature for $operator {
            const NAME: &'static str = $name;
            const ARGUMENTS: &'static [$crate::arguments::Argument] = arg::ALL;
            type Tensors = Tensors;
            type Buffers<'a> = Buffers<'a>;
            type Addresses = Addresses;

            fn tensors_from(
                source: &mut impl $crate::arguments::Source<$crate::TensorDesc, $crate::TensorDesc>,
            ) -> $crate::Result<Tensors> {
                Arguments::from_source(source)
            }

            fn buffers_from<'a>(
                source: &mut impl $crate::arguments::Source<$crate::View<'a>, $crate::ViewMut<'a>>,
            ) -> $crate::Result<Buffers<'a>> {
                Arguments::from_source(source)
            }

            fn addresses_from(
                source: &mut impl $crate::arguments::Source<$crate::Address, $crate::Address>,
            ) -> $crate::Result<Addresses> {
                Arguments::from_source(source)
            }

            fn fit(
                tensors: &Tensors,
                buffers: &mut Buffers<'_>,
                site: $crate::Site,
            ) -> $crate::Result<()> {
                let checker = $crate::check::Checker::new($name);
                $( $crate::check::Described::fit(
                    &tensors.$field, &mut buffers.$field, stringify!($field), &checker, site,
                )?; )+
                Ok(())
            }

            unsafe fn at<'a>(
                tensors: &Tensors,
                addresses: Addresses,
                device: $crate::Device,
            ) -> Buffers<'a> {
                // SAFETY: the caller's.
                unsafe {
                    Arguments { $(
                        $field: $crate::check::Placed::at(&tensors.$field, addresses.$field, device),
                    )+ }
                }
            }
        }
    };
}
pub(crate) use {argument_from, argument_optional, argument_role, argument_type, arguments};
