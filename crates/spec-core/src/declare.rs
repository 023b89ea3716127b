//! How an operator is declared: once, in its own file.
//!
//! From an operator's name, its options and its arguments, `operator!` makes
//!
//! * the parameter struct, with a constructor for the required options and a setter for each
//!   other one;
//! * `Tensors`, `Buffers` and `Addresses`: the arguments as descriptors, as memory and as
//!   addresses, each with a constructor for the required arguments and a setter for each
//!   optional one;
//! * the [`Signature`](crate::Signature), from which programs read options and arguments.
//!
//! When an operator gets a further optional option or argument, existing callers compile
//! unchanged: the structs are `#[non_exhaustive]`, so no caller lists all of their fields.

/// Declares the values that an option can have: an enum, its names in text, and its
/// description ([`Setting`](crate::options::Setting)).
macro_rules! choice {
    (
        $(#[doc = $doc:literal])*
        pub enum $choice:ident = $name:literal {
            $(
                $(#[doc = $value_doc:literal])*
                $value:ident = $text:literal
            ),+ $(,)?
        }
    ) => {
        $(#[doc = $doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum $choice {
            $( $(#[doc = $value_doc])* $value, )+
        }

        impl $choice {
            /// The name of the value as options are written in text.
            pub const fn name(self) -> &'static str {
                match self {
                    $( $choice::$value => $text, )+
                }
            }
        }

        impl $crate::options::Setting for $choice {
            const KIND: $crate::options::Kind =
                $crate::options::Kind::Choice(&$crate::options::ChoiceInfo {
                    name: $name,
                    doc: concat!($($doc, "\n"),*),
                    values: &[$(
                        $crate::options::ChoiceValue {
                            name: $text,
                            doc: concat!($($value_doc, "\n"),*),
                        }
                    ),+],
                });

            fn value(self) -> $crate::options::Value {
                $crate::options::Value::Choice(self.name())
            }

            fn from_value(value: $crate::options::Value) -> Option<Self> {
                match value {
                    $( $crate::options::Value::Choice($text) => Some($choice::$value), )+
                    _ => None,
                }
            }
        }
    };
}

/// The type of an argument's field: `$read` or `$written` by its role, in an `Option` if the
/// argument is optional.
macro_rules! argument_type {
    ($read:ty, $written:ty, in) => { $read };
    ($read:ty, $written:ty, in $optional:ident) => { Option<$read> };
    ($read:ty, $written:ty, $role:ident) => { $written };
    ($read:ty, $written:ty, $role:ident $optional:ident) => { Option<$written> };
}

/// The [`Role`](crate::Role) that a role word of `operator!` stands for.
macro_rules! argument_role {
    (in) => {
        $crate::argument::Role::Input
    };
    (out) => {
        $crate::argument::Role::Output
    };
    (inout) => {
        $crate::argument::Role::InPlace
    };
}

/// Whether the macro was given a word: true for an optional argument, whose name is given.
macro_rules! is_there {
    () => {
        false
    };
    ($word:ident) => {
        true
    };
}

/// The [`DtypeRule`](crate::argument::DtypeRule) of an argument.
macro_rules! dtype_rule {
    () => {
        $crate::argument::DtypeRule::Any
    };
    (as $other:ident) => {
        $crate::argument::DtypeRule::As(stringify!($other))
    };
    (from $other:ident) => {
        $crate::argument::DtypeRule::From(stringify!($other))
    };
}

/// The [`Rule`](crate::shape::Rule) of a size.
macro_rules! size_rule {
    ($size:ident in $min:literal ..= $max:expr) => {
        $crate::shape::Rule {
            name: stringify!($size),
            min: $min,
            max: $max,
            value: None,
            with: None,
            without: None,
        }
    };
    (
        $size:ident = $value:literal
            $(with $present:ident)? $(without $absent:ident)? $(in $min:literal ..= $max:expr)?
    ) => {
        $crate::shape::Rule {
            name: stringify!($size),
            value: Some($value),
            with: $crate::declare::named!($($present)?),
            without: $crate::declare::named!($($absent)?),
            min: $crate::declare::or!(0 $(, $min)?),
            max: $crate::declare::or!(usize::MAX $(, $max)?),
        }
    };
}

/// The second value if there is one, or else the first.
macro_rules! or {
    ($usual:expr) => {
        $usual
    };
    ($usual:expr, $given:expr) => {
        $given
    };
}

/// The name that the macro was given, if it was given one.
macro_rules! named {
    () => {
        None
    };
    ($name:ident) => {
        Some(stringify!($name))
    };
}

/// Takes an argument from a [`Source`](crate::Source).
macro_rules! argument_from {
    ($source:ident, $operator:expr, $argument:expr, in) => {
        $source.input($argument).ok_or_else(|| $crate::signature::missing($operator, $argument))?
    };
    ($source:ident, $operator:expr, $argument:expr, in $optional:ident) => {
        $source.input($argument)
    };
    ($source:ident, $operator:expr, $argument:expr, $written:ident) => {
        $source.output($argument).ok_or_else(|| $crate::signature::missing($operator, $argument))?
    };
    ($source:ident, $operator:expr, $argument:expr, $written:ident $optional:ident) => {
        $source.output($argument)
    };
}

/// The default of an option, for its description.
macro_rules! option_default {
    ($type:ty) => {
        $crate::options::DefaultValue::Required
    };
    ($type:ty, = $value:expr) => {
        $crate::options::DefaultValue::Is(|| <$type as $crate::options::Setting>::value($value))
    };
    ($type:ty, as $other:ident) => {
        $crate::options::DefaultValue::As(stringify!($other))
    };
}

/// `Default` for an operator without required options.
macro_rules! default_options {
    ($operator:ident) => {
        impl Default for $operator {
            /// The default of every option.
            fn default() -> Self {
                $operator::new()
            }
        }
    };
    ($operator:ident $($required:ident)+) => {};
}

/// The [`Range`](crate::options::Range) of an option.
macro_rules! option_range {
    () => {
        None
    };
    ($min:literal ..) => {
        Some($crate::options::Range { min: $min as f64, max: None })
    };
    ($min:literal ..= $max:expr) => {
        Some($crate::options::Range {
            min: $min as f64,
            max: Some(|| $crate::options::Bound::from($max)),
        })
    };
}

/// What a word of `presence` says.
macro_rules! verb {
    (need) => {
        $crate::presence::Verb::Needs
    };
    (needs) => {
        $crate::presence::Verb::Needs
    };
    (exclude) => {
        $crate::presence::Verb::Excludes
    };
    (excludes) => {
        $crate::presence::Verb::Excludes
    };
    (together) => {
        $crate::presence::Verb::Together
    };
}

/// The value that a source gave for an option, or else the option's default.
macro_rules! option_or_default {
    ($operator:expr, $option:expr, $given:expr) => {
        $crate::options::required($operator, $option, $given)?
    };
    ($operator:expr, $option:expr, $given:expr, $default:expr) => {
        $given.unwrap_or($default)
    };
}

/// Defines a variable that holds an option's default, if the option has one.
macro_rules! option_let {
    (: $type:ty =) => {};
    ($option:ident : $type:ty = $default:expr) => {
        let $option: $type = $default;
    };
}

/// The constructor of an operator's arguments, which takes the required ones.
macro_rules! arguments_constructor {
    (position $( $($required:ident)? / $($optional:ident)? : $role:tt ),+) => {
        impl<I, O> Arguments<I, O> {
            /// The required arguments, and none of the optional ones.
            #[allow(clippy::too_many_arguments, reason = "an operator has as many as it needs")]
            pub fn new(
                $( $( $required: impl Into<$crate::declare::argument_type!(I, O, $role)>, )? )+
            ) -> Self {
                Arguments {
                    $( $( $required: $required.into(), )? $( $optional: None, )? )+
                }
            }
        }
    };
    (name $( $($required:ident)? / $($optional:ident)? : $role:tt ),+) => {
        /// The required arguments, by name: with a constructor that takes them by position, two of
        /// them could be swapped by mistake without an error.
        #[allow(missing_debug_implementations, reason = "it becomes `Arguments` at once")]
        pub struct Required<I, O> {
            $( $(
                #[doc = concat!("[`", stringify!($required), "`](field@Arguments::", stringify!($required), ").")]
                pub $required: $crate::declare::argument_type!(I, O, $role),
            )? )+
        }

        impl<I, O> Arguments<I, O> {
            /// The required arguments, and none of the optional ones.
            pub fn new(required: Required<I, O>) -> Self {
                Arguments {
                    $( $( $required: required.$required, )? $( $optional: None, )? )+
                }
            }
        }
    };
}

/// Declares an operator once; the module's documentation says what that gives.
///
/// ```text
/// options {
///     required k: usize [1..=MAX_K],
///     optional block_size: usize [1..=i32::MAX] = 1,
///     optional forced_first: usize [0..=k] = 0,
///     optional experts_here: usize as experts,
/// }
/// ```
/// An option is `required` or has a default: a value, or with `as` the value of an option that is
/// declared before it. The range in brackets has a number as its start, and may have a number or
/// the name of an option as its end. Every f32 must be finite.
///
/// ```text
/// presence {
///     pages needs block_table;
///     bias_offsets, bias_tokens, bias_values together;
///     candidates excludes starts, pool;
///     requests, slots need block_table;
/// }
/// ```
/// Each name is an argument or an option. An argument counts as given where it is not absent, an
/// option where it does not have its default. `together`: all or none are given.
///
/// ```text
/// sizes {
///     cols in 0..=MAX_I32,
///     tables = "rows" without requests,
///     cols = "c * candidate_block" with candidates,
/// }
/// ```
/// What the shapes alone do not say: the range of a size, and its value, always or where an argument
/// is given or absent.
///
/// ```text
/// arguments by position {
///     required scores: in [F32, F16] "[rows, cols]",
///     optional values: out [F32, F16] as scores "[rows, k]",
/// }
/// ```
/// The role of an argument is `in`, `out` or `inout`. After the dtypes, `as other` says that the
/// argument has the dtype of the argument `other`, and `from other` that it has that dtype or i64.
/// [`shape`](crate::shape) says what a shape may be. `by position` makes a constructor that takes
/// the required arguments in their order. `by name` makes one that takes them in a struct, for
/// operators where two required arguments could be swapped by mistake without an error.
macro_rules! operator {
    (
        $(#[doc = $doc:literal])*
        pub struct $operator:ident = $name:literal;

        options {
            $(
                $(#[doc = $option_doc:literal])*
                $(required $required_option:ident)? $(optional $optional_option:ident)?
                    : $type:ty $([$($range:tt)+])? $(as $other:ident)? $(= $default:expr)?
            ),* $(,)?
        }

        $(presence {
            $( $($subject:ident),+ $verb:ident $($object:ident),*; )+
        })?

        $(sizes {
            $(
                $size:ident
                    $(= $value:literal $(with $present:ident)? $(without $absent:ident)?)?
                    $(in $min:literal ..= $max:expr)?
            ),+ $(,)?
        })?

        arguments by $how:tt {
            $(
                $(#[doc = $argument_doc:literal])*
                $(required $required:ident)? $(optional $optional:ident)?
                    : $role:tt [$($dtype:ident),+] $(as $same:ident)? $(from $copied:ident)? $shape:literal
            ),+ $(,)?
        }
    ) => {
        $(#[doc = $doc])*
        #[derive(Clone, Copy, Debug, PartialEq)]
        #[non_exhaustive]
        pub struct $operator {
            $(
                $(#[doc = $option_doc])*
                $(#[doc = concat!("\n\nRange: `", stringify!($($range)+), "`.")])?
                $(#[doc = concat!("\n\nDefault: `", stringify!($default), "`.")])?
                $(#[doc = concat!("\n\nDefault: `", stringify!($other), "`.")])?
                pub $($required_option)? $($optional_option)? : $type,
            )*
        }

        impl $operator {
            /// The operator with these required options, and the defaults of all others.
            pub const fn new($( $( $required_option: $type, )? )*) -> Self {
                $( $crate::declare::option_let! {
                    $($optional_option)? : $type = $($default)? $($other)?
                } )*
                $operator { $( $($required_option)? $($optional_option)? ),* }
            }

            $( $(
                #[doc = concat!(
                    "With this [`", stringify!($optional_option), "`](field@Self::",
                    stringify!($optional_option), ")."
                )]
                #[must_use]
                pub const fn $optional_option(mut self, $optional_option: $type) -> Self {
                    self.$optional_option = $optional_option;
                    self
                }
            )? )*
        }

        $crate::declare::default_options! { $operator $( $($required_option)? )* }

        /// The options one by one.
        #[allow(non_upper_case_globals, reason = "named as the options are")]
        mod opt {
            #[allow(unused_imports, reason = "an operator without options")]
            use super::*;
            use $crate::options::OptionInfo;

            $(
                pub(super) const $($required_option)? $($optional_option)? : &OptionInfo = &OptionInfo {
                    name: stringify!($($required_option)? $($optional_option)?),
                    kind: <$type as $crate::options::Setting>::KIND,
                    range: $crate::declare::option_range!($($($range)+)?),
                    default: $crate::declare::option_default!($type $(, = $default)? $(, as $other)?),
                    doc: concat!($($option_doc, "\n"),*),
                };
            )*

            pub(super) const ALL: &[OptionInfo] = &[$( *$($required_option)? $($optional_option)? ),*];
        }

        #[doc = concat!("The arguments of `", $name, "`.\n")]
        $( $(
            #[doc = concat!(
                "* ", $("`", stringify!($subject), "` ",)+ stringify!($verb),
                $(" `", stringify!($object), "`",)* "."
            )]
        )+ )?
        #[non_exhaustive]
        pub struct Arguments<I, O> {
            $(
                $(#[doc = $argument_doc])*
                #[doc = concat!(
                    "\n\n`", $shape, "`: ", stringify!($($dtype),+), "."
                )]
                pub $($required)? $($optional)? :
                    $crate::declare::argument_type!(I, O, $role $($optional)?),
            )+
        }

        $crate::declare::arguments_constructor! {
            $how $( $($required)? / $($optional)? : $role ),+
        }

        impl<I, O> Arguments<I, O> {
            $( $(
                #[doc = concat!(
                    "With [`", stringify!($optional), "`](field@Self::", stringify!($optional), ")."
                )]
                #[must_use]
                pub fn $optional(
                    mut self,
                    $optional: impl Into<$crate::declare::argument_type!(I, O, $role)>,
                ) -> Self {
                    self.$optional = Some($optional.into());
                    self
                }
            )? )+

            fn from_source(
                source: &mut impl $crate::argument::Source<I, O>,
            ) -> $crate::Result<Self> {
                Ok(Arguments { $(
                    $($required)? $($optional)? : $crate::declare::argument_from!(
                        source, $name, arg::$($required)? $($optional)?, $role $($optional)?
                    ),
                )+ })
            }
        }

        // Written by hand: `derive` accepts no field whose type is a macro call.
        impl<I: Clone, O: Clone> Clone for Arguments<I, O> {
            fn clone(&self) -> Self {
                Arguments { $(
                    $($required)? $($optional)? : self.$($required)? $($optional)?.clone()
                ),+ }
            }
        }

        impl<I: Copy, O: Copy> Copy for Arguments<I, O> {}

        impl<I: std::fmt::Debug, O: std::fmt::Debug> std::fmt::Debug for Arguments<I, O> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct("Arguments")
                    $( .field(
                        stringify!($($required)? $($optional)?),
                        &self.$($required)? $($optional)?,
                    ) )+
                    .finish()
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
            use $crate::argument::Argument;
            use $crate::declare::{argument_role, is_there};

            $(
                pub(crate) const $($required)? $($optional)? : &Argument = &Argument {
                    name: stringify!($($required)? $($optional)?),
                    role: argument_role!($role),
                    optional: is_there!($($optional)?),
                    dtypes: &[$($crate::DType::$dtype),+],
                    dtype_rule: $crate::declare::dtype_rule!($(as $same)? $(from $copied)?),
                    shape: $shape,
                    doc: concat!($($argument_doc, "\n"),*),
                };
            )+

            pub(crate) const ALL: &[Argument] = &[$( *$($required)? $($optional)? ),+];
        }

        impl $crate::signature::Signature for $operator {
            const NAME: &'static str = $name;
            const DOC: &'static str = concat!($($doc, "\n"),*);
            const OPTIONS: &'static [$crate::options::OptionInfo] = opt::ALL;
            const ARGUMENTS: &'static [$crate::argument::Argument] = arg::ALL;
            const PRESENCE: &'static [$crate::presence::Presence] = &[$($(
                $crate::presence::Presence {
                    subjects: &[$($crate::presence::Name::find(stringify!($subject), arg::ALL)),+],
                    verb: $crate::declare::verb!($verb),
                    objects: &[$($crate::presence::Name::find(stringify!($object), arg::ALL)),*],
                },
            )+)?];
            const BY_NAME: bool = $crate::declare::is_by_name!($how);

            fn shapes() -> &'static $crate::shape::Shapes {
                static SHAPES: std::sync::LazyLock<$crate::shape::Shapes> =
                    std::sync::LazyLock::new(|| {
                        $crate::shape::Shapes::parse(arg::ALL, &[$($(
                            $crate::declare::size_rule!(
                                $size
                                    $(= $value $(with $present)? $(without $absent)?)?
                                    $(in $min ..= $max)?
                            ),
                        )+)?])
                    });
                &SHAPES
            }

            fn each(
                tensors: &Tensors,
                each: &mut dyn FnMut(usize, Option<&$crate::TensorDesc>),
            ) {
                let mut at = 0;
                $(
                    $( each(at, Some(&tensors.$required)); )?
                    $( each(at, tensors.$optional.as_ref()); )?
                    at += 1;
                )+
                debug_assert_eq!(at, arg::ALL.len());
            }

            type Tensors = Tensors;
            type Buffers<'a> = Buffers<'a>;
            type Addresses = Addresses;

            #[allow(unused_variables, reason = "an operator without options")]
            fn options_from(
                source: &mut dyn FnMut(
                    &'static $crate::options::OptionInfo,
                ) -> $crate::Result<Option<$crate::options::Value>>,
            ) -> $crate::Result<Self> {
                $(
                    let $($required_option)? $($optional_option)? : $type =
                        $crate::declare::option_or_default!(
                            $name,
                            opt::$($required_option)? $($optional_option)?,
                            $crate::options::given::<$type>(
                                $name, opt::$($required_option)? $($optional_option)?, source
                            )?
                            $(, $default)? $(, $other)?
                        );
                )*
                Ok($operator { $( $($required_option)? $($optional_option)? ),* })
            }

            #[allow(unused_variables, reason = "an operator without options")]
            fn each_option(
                &self,
                each: &mut dyn FnMut(&'static $crate::options::OptionInfo, $crate::options::Value),
            ) {
                $( each(
                    opt::$($required_option)? $($optional_option)?,
                    $crate::options::Setting::value(self.$($required_option)? $($optional_option)?),
                ); )*
            }

            fn tensors_from(
                source: &mut impl $crate::argument::Source<$crate::TensorDesc, $crate::TensorDesc>,
            ) -> $crate::Result<Tensors> {
                Arguments::from_source(source)
            }

            fn buffers_from<'a>(
                source: &mut impl $crate::argument::Source<$crate::View<'a>, $crate::ViewMut<'a>>,
            ) -> $crate::Result<Buffers<'a>> {
                Arguments::from_source(source)
            }

            fn addresses_from(
                source: &mut impl $crate::argument::Source<$crate::Address, $crate::Address>,
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
                    &tensors.$($required)? $($optional)?,
                    &mut buffers.$($required)? $($optional)?,
                    stringify!($($required)? $($optional)?),
                    &checker,
                    site,
                )?; )+
                Ok(())
            }

            fn apart(
                buffers: &Buffers<'_>,
                workspace: &$crate::ViewMut<'_>,
            ) -> $crate::Result<()> {
                let spans = [ $( $crate::check::Spanned::span(
                    &buffers.$($required)? $($optional)?
                ), )+ ];
                let workspace = $crate::check::Spanned::span(workspace);
                $crate::check::Checker::new($name).apart(arg::ALL, &spans, workspace)
            }

            fn apart_at(
                tensors: &Tensors,
                addresses: &Addresses,
                workspace: $crate::Address,
                workspace_size: usize,
            ) -> $crate::Result<()> {
                let spans = [ $( $crate::check::SpannedAt::span_at(
                    &tensors.$($required)? $($optional)?,
                    addresses.$($required)? $($optional)?,
                ), )+ ];
                let workspace = $crate::check::Span::at(workspace, workspace_size);
                $crate::check::Checker::new($name).apart(arg::ALL, &spans, workspace)
            }

            fn nowhere(tensors: &Tensors) -> Buffers<'static> {
                Arguments { $(
                    $($required)? $($optional)? : $crate::check::Placed::nowhere(
                        &tensors.$($required)? $($optional)?,
                    ),
                )+ }
            }

            unsafe fn at<'a>(
                tensors: &Tensors,
                addresses: Addresses,
                device: $crate::Device,
            ) -> Buffers<'a> {
                // SAFETY: the caller vouches for every address, as this function's own contract
                // asks.
                unsafe {
                    Arguments { $(
                        $($required)? $($optional)? : $crate::check::Placed::at(
                            &tensors.$($required)? $($optional)?,
                            addresses.$($required)? $($optional)?,
                            device,
                        ),
                    )+ }
                }
            }
        }
    };
}

/// Whether required arguments are told apart by name.
macro_rules! is_by_name {
    (name) => {
        true
    };
    (position) => {
        false
    };
}

pub(crate) use {
    argument_from, argument_role, argument_type, arguments_constructor, choice, default_options,
    dtype_rule, is_by_name, is_there, named, operator, option_default, option_let,
    option_or_default, option_range, or, size_rule, verb,
};
