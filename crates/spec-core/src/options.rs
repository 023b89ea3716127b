//! Options: the parameters of an operator as a description that programs can read and set
//! by name.
//!
//! `operator!` declares each option once, with its type, its default and its meaning. The C
//! header, the Python functions, golden vectors in JSON and fuzz targets read that declaration
//! through [`Signature::OPTIONS`](crate::Signature::OPTIONS), and none of them lists options of its own.
//!
//! ```
//! use spec::ops::TopkRouter;
//! use spec::options::Value;
//! use spec::Signature;
//!
//! let mut router = TopkRouter::new(8);
//! router.set_text("scoring", "sqrt_softplus")?;
//! router.set_option("scale", Value::F32(2.5))?;
//! assert_eq!(router.option("scoring")?, Value::Choice("sqrt_softplus"));
//! // An error about an unknown option or an unknown choice lists those that exist.
//! let error = router.set_text("scorign", "softmax").unwrap_err();
//! assert!(error.to_string().contains("one of topk, scoring, select"));
//! let error = router.set_text("scoring", "softmox").unwrap_err();
//! assert!(error.to_string().contains("sigmoid, softmax or sqrt_softplus"));
//! # Ok::<(), spec::Error>(())
//! ```

use std::fmt;

use crate::{Error, Result, Status};

/// An option of an operator, as its contract declares it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct OptionInfo {
    /// The option's name.
    pub name: &'static str,
    /// The type of its values.
    pub kind: Kind,
    /// The numbers that the option may be; `None` for every value of its type.
    pub range: Option<Range>,
    /// The value of the option if a caller sets none.
    pub default: DefaultValue,
    /// The option's meaning, as its documentation says.
    pub doc: &'static str,
}

/// The value of an option if a caller sets none.
#[derive(Clone, Copy, Debug)]
pub enum DefaultValue {
    /// There is no default: a caller must set the option.
    Required,
    /// This value.
    Is(fn() -> Value),
    /// The value of the option of this name.
    As(&'static str),
}

/// The numbers that an option may be, as f64, which holds all of them exactly.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    /// The least number.
    pub min: f64,
    /// The largest number; `None` for every number that the option's type holds.
    pub max: Option<fn() -> Bound>,
}

/// The largest number that an option may be.
#[derive(Clone, Copy, Debug)]
pub enum Bound {
    /// This number.
    Number(f64),
    /// The value that the call has for this other option.
    Option(&'static OptionInfo),
}

impl From<i32> for Bound {
    fn from(number: i32) -> Self {
        Bound::Number(number.into())
    }
}

impl From<usize> for Bound {
    fn from(number: usize) -> Self {
        Bound::Number(number as f64)
    }
}

impl From<f64> for Bound {
    fn from(number: f64) -> Self {
        Bound::Number(number)
    }
}

impl From<&'static OptionInfo> for Bound {
    fn from(option: &'static OptionInfo) -> Self {
        Bound::Option(option)
    }
}

impl Range {
    /// The range in words, with the values of options: `1 to 64`, `1 to 5, which is `max_ngram``.
    pub fn words(&self, value: impl FnOnce(&str) -> Option<Value>) -> String {
        let min = self.min;
        match self.max.map(|max| max()) {
            None => format!("at least {min}"),
            Some(Bound::Number(max)) => format!("{min} to {max}"),
            Some(Bound::Option(end)) => match value(end.name) {
                Some(max) => format!("{min} to {max}, which is `{}`", end.name),
                None => format!("{min} to `{}`", end.name),
            },
        }
    }
}

/// The type of an option's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// True or false.
    Bool,
    /// A whole number that is not negative.
    Size,
    /// A whole number that is not negative, or no value.
    OptionalSize,
    /// A signed 32-bit integer.
    I32,
    /// A 32-bit floating-point number.
    F32,
    /// One of a fixed list of values.
    Choice(&'static ChoiceInfo),
}

/// The values of an option that has a fixed list of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChoiceInfo {
    /// The name of the list, in lower case with `_` between words: `group_score`.
    pub name: &'static str,
    /// The list's meaning.
    pub doc: &'static str,
    /// The values. The position of a value in this list is its number in C, so new values are
    /// only added at the end.
    pub values: &'static [ChoiceValue],
}

/// One of the values of a [`ChoiceInfo`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChoiceValue {
    /// The value's name in text: `sqrt_softplus`.
    pub name: &'static str,
    /// The value's meaning.
    pub doc: &'static str,
}

/// The value of an option.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Value {
    /// A value of [`Kind::Bool`].
    Bool(bool),
    /// A value of [`Kind::Size`] or [`Kind::OptionalSize`].
    Size(usize),
    /// No value, for [`Kind::OptionalSize`].
    Absent,
    /// A value of [`Kind::I32`].
    I32(i32),
    /// A value of [`Kind::F32`].
    F32(f32),
    /// The name of a value of [`Kind::Choice`].
    Choice(&'static str),
}

impl Value {
    /// The value as a number; `None` for a value that is none.
    pub fn number(self) -> Option<f64> {
        match self {
            Value::Size(value) => Some(value as f64),
            Value::I32(value) => Some(value.into()),
            Value::F32(value) => Some(value.into()),
            _ => None,
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Bool(value) => value.fmt(f),
            Value::Size(value) => value.fmt(f),
            Value::Absent => f.write_str("none"),
            Value::I32(value) => value.fmt(f),
            Value::F32(value) => value.fmt(f),
            Value::Choice(name) => f.write_str(name),
        }
    }
}

/// A Rust type that an option's field may have.
pub trait Setting: Copy {
    /// The type as programs read it.
    const KIND: Kind;

    /// The value as a program reads it.
    fn value(self) -> Value;

    /// The Rust value of `value`; `None` where `value` is of another type.
    fn from_value(value: Value) -> Option<Self>;
}

macro_rules! settings {
    ($($type:ty: $kind:ident),+ $(,)?) => {$(
        impl Setting for $type {
            const KIND: Kind = Kind::$kind;

            fn value(self) -> Value {
                Value::$kind(self)
            }

            fn from_value(value: Value) -> Option<Self> {
                match value {
                    Value::$kind(value) => Some(value),
                    _ => None,
                }
            }
        }
    )+};
}

settings! { bool: Bool, usize: Size, i32: I32, f32: F32 }

impl Setting for Option<usize> {
    const KIND: Kind = Kind::OptionalSize;

    fn value(self) -> Value {
        self.map_or(Value::Absent, Value::Size)
    }

    fn from_value(value: Value) -> Option<Self> {
        match value {
            Value::Absent => Some(None),
            Value::Size(value) => Some(Some(value)),
            _ => None,
        }
    }
}

/// A list with a word before its last name: `a, b or c`.
pub(crate) fn listed<'n>(names: impl Iterator<Item = &'n str>, word: &str) -> String {
    let names: Vec<_> = names.collect();
    match names.split_last() {
        Some((last, [])) => (*last).to_owned(),
        Some((last, others)) => format!("{} {word} {last}", others.join(", ")),
        None => String::new(),
    }
}

impl Kind {
    /// The values of this type in words, for the end of an error's sentence: `true or false`.
    pub fn expected(&self) -> String {
        match self {
            Kind::Bool => "true or false".to_owned(),
            Kind::Size => "a whole number that is not negative".to_owned(),
            Kind::OptionalSize => "a whole number that is not negative, or none".to_owned(),
            Kind::I32 => "a whole number of 32 bits".to_owned(),
            Kind::F32 => "a number".to_owned(),
            Kind::Choice(choice) => listed(choice.values.iter().map(|value| value.name), "or"),
        }
    }

    /// The value that is written as `text`; `None` where `text` is not a value of this type.
    pub fn parse(&self, text: &str) -> Option<Value> {
        match self {
            Kind::Bool => text.parse().ok().map(Value::Bool),
            Kind::OptionalSize if text == "none" => Some(Value::Absent),
            Kind::Size | Kind::OptionalSize => text.parse().ok().map(Value::Size),
            Kind::I32 => text.parse().ok().map(Value::I32),
            Kind::F32 => text.parse().ok().map(Value::F32),
            Kind::Choice(choice) => choice.value(text),
        }
    }

    /// The value that a required option has until a caller sets it: zero, false, no value, or the
    /// first of a list.
    pub fn zero(&self) -> Value {
        match self {
            Kind::Bool => Value::Bool(false),
            Kind::Size => Value::Size(0),
            Kind::OptionalSize => Value::Absent,
            Kind::I32 => Value::I32(0),
            Kind::F32 => Value::F32(0.0),
            Kind::Choice(choice) => Value::Choice(choice.values[0].name),
        }
    }
}

impl ChoiceInfo {
    /// The value called `name`; `None` if the list has no such value.
    pub fn value(&self, name: &str) -> Option<Value> {
        let found = self.values.iter().find(|value| value.name == name);
        found.map(|value| Value::Choice(value.name))
    }

    /// The number in C of the value called `name`; `None` if the list has no such value.
    pub fn number(&self, name: &str) -> Option<usize> {
        self.values.iter().position(|value| value.name == name)
    }
}

impl OptionInfo {
    /// Whether a caller must set the option.
    pub fn is_required(&self) -> bool {
        matches!(self.default, DefaultValue::Required)
    }

    /// The option's meaning, with its range.
    pub fn about(&self) -> String {
        let range = self
            .range
            .map_or(String::new(), |range| format!("\nRange: {}.", range.words(|_| None)));
        self.doc.trim_end().to_owned() + &range
    }

    /// The error for a value that this option of `operator` cannot have.
    pub fn refuse(&self, operator: &'static str, given: impl fmt::Display) -> Error {
        Error::Argument {
            status: Status::BadParam,
            operator,
            argument: self.name,
            value: given.to_string(),
            expected: self.kind.expected().into(),
        }
    }
}

/// The option called `name`.
///
/// # Errors
/// Status 3, with a list of the options, where no option has this name.
pub fn find(
    operator: &'static str,
    options: &'static [OptionInfo],
    name: &str,
) -> Result<&'static OptionInfo> {
    options.iter().find(|option| option.name == name).ok_or_else(|| {
        let names: Vec<_> = options.iter().map(|option| option.name).collect();
        let expected = match names.as_slice() {
            [] => "nothing, since the operator has no options".to_owned(),
            names => format!("one of {}", names.join(", ")),
        };
        Error::Argument {
            status: Status::BadParam,
            operator,
            argument: "option",
            value: format!("{name:?}"),
            expected: expected.into(),
        }
    })
}

/// Stops a backend that has no code for a choice. Backends and this crate are released
/// together, and the conformance kit tests every choice, so a backend that lacks a choice fails
/// the conformance kit before it is released.
///
/// # Panics
/// Always.
#[cold]
pub fn unknown<T: Setting>(choice: T) -> ! {
    unreachable!("there is no code for the choice {}", choice.value())
}

/// The value of an option from a source, in the option's own type.
pub(crate) fn given<T: Setting>(
    operator: &'static str,
    option: &'static OptionInfo,
    source: &mut dyn FnMut(&'static OptionInfo) -> Result<Option<Value>>,
) -> Result<Option<T>> {
    let Some(value) = source(option)? else { return Ok(None) };
    T::from_value(value).map(Some).ok_or_else(|| option.refuse(operator, value))
}

/// The value of a required option from a source.
pub(crate) fn required<T: Setting>(
    operator: &'static str,
    option: &'static OptionInfo,
    value: Option<T>,
) -> Result<T> {
    value.ok_or_else(|| option.refuse(operator, "absent"))
}
