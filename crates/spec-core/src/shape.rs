//! Shapes of arguments as data: `[rows, ceil(vocab / 32)]`, parsed from the declaration.
//!
//! A shape is a list of sizes: numbers, names, and expressions of them. A name stands for an option
//! of the operator, for a size that the declaration defines in its `sizes`, or for what the first
//! argument with that name has. From this come the checks of every descriptor ([`Shapes::check`]),
//! the shapes of outputs in Rust and other languages ([`outputs`]), and bad calls for tests.

use std::fmt;

use crate::arguments::{Argument, DtypeRule, Role, Signature};
use crate::check::Checker;
use crate::ops::Description;
use crate::options::Value;
use crate::{Error, Result, Status, TensorDesc};

/// The most names that the shapes of an operator may have.
const MAX_NAMES: usize = 32;

/// A size in a shape, such as `vocab`, `batch + 1` or `ceil(vocab / 32)`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Size {
    /// A number.
    Number(usize),
    /// A name, as its place in [`Shapes::names`].
    Name(usize),
    /// Two sizes and what is done with them.
    Binary(Operation, Box<[Size; 2]>),
}

/// What an expression does with two sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// The sum.
    Add,
    /// The difference.
    Subtract,
    /// The product.
    Multiply,
    /// The quotient, rounded down.
    Divide,
    /// The quotient, rounded up: `ceil(a / b)`.
    DivideUp,
}

/// A shape as a text of the declaration has it, with its alternatives: `[batch] or [batch, 1]`.
pub type Alternatives = Vec<Vec<Size>>;

/// What a declaration says of a size besides the shapes in which it stands.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// The size's name.
    pub name: &'static str,
    /// The least value that the size may have.
    pub min: usize,
    /// The largest value that the size may have.
    pub max: usize,
    /// What the size is, if no argument says it.
    pub value: Option<&'static str>,
    /// The argument without which [`value`](Self::value) holds; `None` for a value that always does.
    pub without: Option<&'static str>,
}

impl Rule {
    /// A size that may be anything.
    pub const ANY: Rule = Rule { name: "", min: 0, max: usize::MAX, value: None, without: None };
}

/// The shapes of all arguments of an operator.
#[derive(Debug)]
pub struct Shapes {
    names: Vec<&'static str>,
    arguments: Vec<Alternatives>,
    rules: Vec<(usize, Rule, Option<Size>)>,
}

/// The values of the names in an operator's shapes, as options and arguments give them.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    shapes: &'static Shapes,
    values: [Option<usize>; MAX_NAMES],
    /// The argument that gave the value; `None` for an option.
    from: [Option<&'static str>; MAX_NAMES],
    /// A bit for each argument that is given.
    given: u64,
    arguments: &'static [Argument],
}

/// Splits a declaration's text into names, numbers and signs.
struct Words<'n> {
    rest: &'static str,
    names: &'n mut Vec<&'static str>,
}

impl Words<'_> {
    fn peek(&mut self) -> &'static str {
        self.rest = self.rest.trim_start();
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let end = self.rest.find(|c| !is_word(c)).unwrap_or(self.rest.len());
        let sign = self.rest.chars().next().map_or(0, char::len_utf8);
        &self.rest[..end.max(sign)]
    }

    fn next(&mut self) -> &'static str {
        let word = self.peek();
        self.rest = &self.rest[word.len()..];
        word
    }

    fn take(&mut self, word: &str) -> bool {
        let is_next = self.peek() == word;
        if is_next {
            self.next();
        }
        is_next
    }

    fn expect(&mut self, word: &str) {
        assert!(self.take(word), "expected `{word}` before `{}`", self.rest);
    }

    fn name(&mut self, name: &'static str) -> usize {
        let place = self.names.iter().position(|&known| known == name);
        place.unwrap_or_else(|| {
            self.names.push(name);
            self.names.len() - 1
        })
    }

    /// `[a, b] or [c]`.
    fn alternatives(&mut self) -> Alternatives {
        let mut all = Vec::new();
        loop {
            self.expect("[");
            let mut shape = vec![self.sum()];
            while self.take(",") {
                shape.push(self.sum());
            }
            self.expect("]");
            all.push(shape);
            if !self.take("or") {
                assert!(self.rest.is_empty(), "`{}` is left", self.rest);
                return all;
            }
        }
    }

    fn sum(&mut self) -> Size {
        let mut left = self.product();
        loop {
            let operation = match self.peek() {
                "+" => Operation::Add,
                "-" => Operation::Subtract,
                _ => return left,
            };
            self.next();
            left = Size::Binary(operation, Box::new([left, self.product()]));
        }
    }

    fn product(&mut self) -> Size {
        let mut left = self.factor();
        loop {
            let operation = match self.peek() {
                "*" => Operation::Multiply,
                "/" => Operation::Divide,
                _ => return left,
            };
            self.next();
            left = Size::Binary(operation, Box::new([left, self.factor()]));
        }
    }

    fn factor(&mut self) -> Size {
        match self.next() {
            "(" => {
                let inner = self.sum();
                self.expect(")");
                inner
            }
            "ceil" => {
                self.expect("(");
                let Size::Binary(Operation::Divide, sides) = self.sum() else {
                    panic!("`ceil` is of a quotient");
                };
                self.expect(")");
                Size::Binary(Operation::DivideUp, sides)
            }
            word => match word.parse() {
                Ok(number) => Size::Number(number),
                Err(_) => Size::Name(self.name(word)),
            },
        }
    }
}

impl Size {
    /// The names in the size, as their places in [`Shapes::names`].
    pub fn names(&self) -> Vec<usize> {
        let mut names = Vec::new();
        self.has(&mut |place| {
            names.push(place);
            false
        });
        names
    }

    /// Whether a name in the size meets a condition.
    fn has(&self, condition: &mut dyn FnMut(usize) -> bool) -> bool {
        match self {
            Size::Number(_) => false,
            Size::Name(place) => condition(*place),
            Size::Binary(_, sides) => sides.iter().any(|side| side.has(condition)),
        }
    }
}

impl Description {
    /// The sizes of outputs that neither an option nor another argument has, such as the number of
    /// draws of a row: a caller who does not make the outputs says them ([`outputs`]).
    pub fn extents(&self) -> Vec<&'static str> {
        let shapes = (self.shapes)();
        let is_read = |argument: &Argument| argument.role != Role::Output;
        let inputs = || shapes.arguments.iter().zip(self.arguments).filter(|(_, of)| is_read(of));
        let is_extent = |place: usize| {
            let name = shapes.names[place];
            !self.options.iter().any(|option| option.name == name)
                && !shapes.rules.iter().any(|(of, _, value)| *of == place && value.is_some())
                && !inputs().any(|(all, _)| has(all, &mut |other| other == place))
        };
        let outputs = shapes.arguments.iter().zip(self.arguments).filter(|(_, of)| !is_read(of));
        let mut found = Vec::new();
        for (alternatives, _) in outputs {
            has(alternatives, &mut |place| {
                if is_extent(place) && !found.contains(&shapes.names[place]) {
                    found.push(shapes.names[place]);
                }
                false
            });
        }
        found
    }
}

/// Whether a name in any of the shapes meets a condition.
fn has(alternatives: &Alternatives, condition: &mut dyn FnMut(usize) -> bool) -> bool {
    alternatives.iter().flatten().any(|size| size.has(condition))
}

impl Shapes {
    /// Parses the shapes of `arguments`. Text that is no shape is a mistake of a declaration, which
    /// the first use of the operator finds.
    pub(crate) fn parse(arguments: &[Argument], rules: &[Rule]) -> Self {
        let mut names = Vec::new();
        let arguments = arguments
            .iter()
            .map(|argument| Words { rest: argument.shape, names: &mut names }.alternatives())
            .collect();
        let rules = rules
            .iter()
            .map(|rule| {
                let place = Words { rest: "", names: &mut names }.name(rule.name);
                let parse = |rest| Words { rest, names: &mut names }.sum();
                (place, *rule, rule.value.map(parse))
            })
            .collect();
        assert!(names.len() <= MAX_NAMES, "{} names in shapes", names.len());
        Shapes { names, arguments, rules }
    }

    /// The names in the shapes.
    pub fn names(&self) -> &[&'static str] {
        &self.names
    }

    /// The shape of each argument, in the order of the contract's list.
    pub fn arguments(&self) -> &[Alternatives] {
        &self.arguments
    }

    /// What the declaration says of sizes: the place of each in [`names`](Self::names), and the
    /// parsed [`value`](Rule::value).
    pub fn rules(&self) -> impl Iterator<Item = (usize, &Rule, Option<&Size>)> {
        self.rules.iter().map(|(place, rule, value)| (*place, rule, value.as_ref()))
    }
}

/// A shape whose unknown sizes are said by name.
struct Said<'a>(&'a Sizes, &'a [Size]);

impl fmt::Display for Said<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, size) in self.1.iter().enumerate() {
            f.write_str(if at == 0 { "[" } else { ", " })?;
            match (self.0.value(size), size) {
                (Some(value), _) => write!(f, "{value}")?,
                (None, Size::Name(place)) => f.write_str(self.0.shapes.names[*place])?,
                (None, _) => f.write_str("..")?,
            }
        }
        f.write_str("]")
    }
}

impl Sizes {
    /// The sizes that the options alone give. `given` says whether an argument is given, by its place.
    fn of_options<O: Signature>(operator: &O, given: u64) -> Self {
        let shapes = O::shapes();
        let mut sizes = Sizes {
            shapes,
            values: [None; MAX_NAMES],
            from: [None; MAX_NAMES],
            given,
            arguments: O::ARGUMENTS,
        };
        for (place, name) in shapes.names.iter().enumerate() {
            if O::OPTIONS.iter().any(|option| option.name == *name)
                && let Ok(Value::Size(value)) = operator.option(name)
            {
                sizes.values[place] = Some(value);
            }
        }
        sizes
    }

    /// The value of a name.
    ///
    /// # Panics
    /// If the shapes have no such name, or no argument has given it a value.
    pub(crate) fn of(&self, name: &str) -> usize {
        let place = self.shapes.names.iter().position(|known| *known == name);
        let value = place.and_then(|place| self.value(&Size::Name(place)));
        value.unwrap_or_else(|| panic!("no argument has given `{name}` a value"))
    }

    /// Whether the value of a rule holds in this call.
    fn holds(&self, rule: &Rule) -> bool {
        let is_given = |name| {
            let at = self.arguments.iter().position(|argument| argument.name == name);
            at.is_some_and(|at| self.given >> at & 1 != 0)
        };
        !rule.without.is_some_and(is_given)
    }

    /// The rule by which a name has a value that no argument has given, with the value's expression.
    fn definition(&self, place: usize) -> Option<(&'static Rule, &'static Size)> {
        let mut rules = self.shapes.rules.iter().filter(|(of, ..)| *of == place);
        rules.find_map(|(_, rule, value)| {
            value.as_ref().filter(|_| self.holds(rule)).map(|value| (rule, value))
        })
    }

    /// A size; `None` for one with a name that has no value yet, and where a number overflows.
    fn value(&self, size: &Size) -> Option<usize> {
        match size {
            Size::Number(number) => Some(*number),
            Size::Name(place) => {
                self.values[*place].or_else(|| self.value(self.definition(*place)?.1))
            }
            Size::Binary(operation, sides) => {
                let (a, b) = (self.value(&sides[0])?, self.value(&sides[1])?);
                match operation {
                    Operation::Add => a.checked_add(b),
                    Operation::Subtract => a.checked_sub(b),
                    Operation::Multiply => a.checked_mul(b),
                    Operation::Divide => a.checked_div(b),
                    Operation::DivideUp => (b > 0).then(|| a.div_ceil(b)),
                }
            }
        }
    }

    /// The name and its value with which `size` is `extent`, where all else in `size` is known.
    fn solve(&self, size: &Size, extent: usize) -> Option<(usize, usize)> {
        let Size::Binary(operation, sides) = size else {
            let Size::Name(place) = size else { return None };
            return Some((*place, extent));
        };
        let (unknown, known) = match (self.value(&sides[0]), self.value(&sides[1])) {
            (None, Some(known)) => (&sides[0], known),
            (Some(known), None) => (&sides[1], known),
            _ => return None,
        };
        let inverse = match operation {
            Operation::Add => extent.checked_sub(known)?,
            Operation::Multiply if known > 0 && extent.is_multiple_of(known) => extent / known,
            _ => return None,
        };
        self.solve(unknown, inverse)
    }

    /// Takes an argument's sizes from its shape. False if the shape is another.
    fn take(&mut self, shape: &[Size], extents: &[usize], argument: &'static str) -> bool {
        let before = *self;
        let fits = shape.len() == extents.len()
            && shape.iter().zip(extents).all(|(size, &extent)| match self.value(size) {
                Some(value) => value == extent,
                None => match self.solve(size, extent) {
                    Some((place, value)) => {
                        self.values[place] = Some(value);
                        self.from[place] = Some(argument);
                        true
                    }
                    None => false,
                },
            });
        if !fits {
            *self = before;
        }
        fits
    }

    /// Where the sizes of a shape come from, as in: with rows of `logits`.
    fn origins(&self, shape: &[Size], argument: &str) -> String {
        let mut words = String::new();
        let mut said = Vec::new();
        let mut say = |place: usize| {
            let name = self.shapes.names[place];
            if said.contains(&place) {
                return false;
            }
            said.push(place);
            if let Some(from) = self.from[place].filter(|from| *from != argument) {
                words += &format!(", with {name} of `{from}`");
            } else if let Some((rule, _)) =
                self.definition(place).filter(|_| self.values[place].is_none())
            {
                words += &format!(", with {name} = {}", rule.value.unwrap_or_default());
                if let Some(without) = rule.without {
                    words += &format!(", as `{without}` is absent");
                }
            }
            false
        };
        shape.iter().for_each(|size| {
            size.has(&mut say);
        });
        words
    }
}

impl Checker {
    /// Checks the descriptors of all arguments by what the declaration says: element types, shapes,
    /// strides, and the range of sizes.
    ///
    /// # Errors
    /// Status 10, 11 or 12.
    pub(crate) fn shapes<O: Signature>(&self, operator: &O, tensors: &O::Tensors) -> Result<Sizes> {
        let mut descs = [None; 64];
        let mut given = 0_u64;
        O::each(tensors, &mut |at, desc| {
            descs[at] = desc.copied();
            given |= u64::from(desc.is_some()) << at;
        });
        let mut sizes = Sizes::of_options(operator, given);
        for (at, argument) in O::ARGUMENTS.iter().enumerate() {
            if let Some(desc) = &descs[at] {
                self.dtypes(argument, desc, O::ARGUMENTS, &descs)?;
                self.extents(&mut sizes, at, argument, desc)?;
                // `[batch, 1]` is a vector as some engines store it.
                let shapes = &sizes.shapes.arguments[at];
                let is_column = shapes.iter().any(|shape| shape.get(1) == Some(&Size::Number(1)));
                self.strides(argument, desc, is_column)?;
            }
        }
        Ok(sizes)
    }

    fn dtypes(
        &self,
        argument: &Argument,
        desc: &TensorDesc,
        arguments: &[Argument],
        descs: &[Option<TensorDesc>],
    ) -> Result<()> {
        self.dtype(argument, desc)?;
        let (DtypeRule::As(name) | DtypeRule::From(name)) = argument.dtype_rule else {
            return Ok(());
        };
        let at = arguments.iter().position(|other| other.name == name);
        match at.and_then(|at| descs[at]) {
            Some(other) => self.follows(argument, desc, name, other.dtype()),
            None => Ok(()),
        }
    }

    fn extents(
        &self,
        sizes: &mut Sizes,
        at: usize,
        argument: &Argument,
        desc: &TensorDesc,
    ) -> Result<()> {
        let shapes = &sizes.shapes.arguments[at];
        let known = sizes.values;
        let took = shapes.iter().find(|shape| sizes.take(shape, desc.shape(), argument.name));
        let Some(shape) = took else {
            return Err(self.other_shape(sizes, shapes, argument, desc));
        };
        for (place, rule, value) in &sizes.shapes.rules {
            let is_new = match value {
                None => shape.iter().any(|size| size.has(&mut |name| name == *place)),
                // A size that is defined, as soon as all sizes in its definition are known.
                Some(value) => {
                    rule.max < usize::MAX
                        && sizes.holds(rule)
                        && !value.has(&mut |name| sizes.values[name].is_none())
                        && value.has(&mut |name| known[name].is_none())
                }
            };
            let value = sizes.value(&Size::Name(*place));
            if is_new && !value.is_some_and(|value| (rule.min..=rule.max).contains(&value)) {
                return Err(self.out_of_range(rule, argument, desc));
            }
        }
        Ok(())
    }

    #[cold]
    fn out_of_range(&self, rule: &Rule, argument: &Argument, desc: &TensorDesc) -> Error {
        let range = match (rule.min, rule.max) {
            (min, usize::MAX) => format!("at least {min}"),
            (0, max) => format!("at most {max}"),
            (min, max) => format!("{min} to {max}"),
        };
        let name = match rule.value {
            None => rule.name.to_owned(),
            Some(value) => format!("{} = {value}", rule.name),
        };
        let expected = format!("{}, with {name} {range}", argument.shape);
        let value = format!("{:?}", desc.shape());
        self.error(Status::BadTensorShape, argument.name, value, expected)
    }

    #[cold]
    fn other_shape(
        &self,
        sizes: &Sizes,
        shapes: &'static [Vec<Size>],
        argument: &Argument,
        desc: &TensorDesc,
    ) -> Error {
        let rank = desc.shape().len();
        let Some(shape) = shapes.iter().find(|shape| shape.len() == rank) else {
            let expected = format!("shape {}", argument.shape);
            return self.error(Status::BadTensorShape, argument.name, desc, expected);
        };
        let mut expected = Said(sizes, shape).to_string();
        if expected.contains("..") {
            expected = argument.shape.to_owned();
        } else if expected != argument.shape {
            expected += &format!(", which is {}", argument.shape);
        }
        expected += &sizes.origins(shape, argument.name);
        let value = format!("{:?}", desc.shape());
        self.error(Status::BadTensorShape, argument.name, value, expected)
    }
}

/// Descriptors of outputs that a caller has not made yet: packed, of the first element type that
/// fits, in the first shape whose sizes are known.
///
/// `given` are the descriptors of the other arguments, in the order of the contract's list. `extents`
/// are sizes that only outputs have, by name. `None` stands for what is given, for inputs, and for
/// outputs whose sizes nothing says.
pub fn outputs<O: Signature>(
    operator: &O,
    given: &[Option<TensorDesc>],
    extents: &[(&str, usize)],
) -> Vec<Option<TensorDesc>> {
    let bits = given.iter().enumerate().map(|(at, desc)| u64::from(desc.is_some()) << at).sum();
    let mut sizes = Sizes::of_options(operator, bits);
    let shapes = O::shapes();
    for (name, value) in extents {
        if let Some(place) = shapes.names.iter().position(|known| known == name) {
            sizes.values[place] = Some(*value);
        }
    }
    for (at, desc) in given.iter().enumerate() {
        if let Some(desc) = desc {
            shapes.arguments[at].iter().any(|shape| sizes.take(shape, desc.shape(), ""));
        }
    }
    let mut made = vec![None; O::ARGUMENTS.len()];
    for (at, argument) in O::ARGUMENTS.iter().enumerate() {
        if given.get(at).is_some_and(Option::is_some) || !argument.is_written() {
            continue;
        }
        let like = match argument.dtype_rule {
            DtypeRule::As(name) | DtypeRule::From(name) => {
                let other = O::ARGUMENTS.iter().position(|other| other.name == name);
                other.and_then(|other| given[other])
            }
            DtypeRule::Any => None,
        };
        let dtype = like.map_or(argument.dtypes[0], |desc| desc.dtype());
        let is_said = |place| extents.iter().any(|(name, _)| *name == shapes.names[place]);
        let has_extent = |shape: &&Vec<Size>| shape.iter().any(|size| size.has(&mut { is_said }));
        let alternatives = &shapes.arguments[at];
        let shape = alternatives.iter().find(has_extent).or(alternatives.first());
        let extents: Option<Vec<usize>> =
            shape.and_then(|shape| shape.iter().map(|size| sizes.value(size)).collect());
        made[at] = match extents.as_deref() {
            Some(&[len]) => Some(TensorDesc::new(dtype, [len])),
            Some(&[rows, cols]) => Some(TensorDesc::new(dtype, [rows, cols])),
            _ => None,
        };
    }
    made
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &'static str) -> (Alternatives, Vec<&'static str>) {
        let mut names = Vec::new();
        (Words { rest: text, names: &mut names }.alternatives(), names)
    }

    #[test]
    fn texts_are_parsed() {
        let (shape, names) = parsed("[rows, ceil(vocab / 32)] or [rows]");
        assert_eq!(names, ["rows", "vocab"]);
        let words = Size::Binary(Operation::DivideUp, Box::new([Size::Name(1), Size::Number(32)]));
        assert_eq!(shape, [vec![Size::Name(0), words], vec![Size::Name(0)]]);
        // Products before sums, from the left.
        let (shape, _) = parsed("[2 + a * 3 - (b - 1) / 2]");
        let show = format!("{:?}", shape[0][0]);
        assert!(
            show.starts_with("Binary(Subtract, [Binary(Add, [Number(2), Binary(Multiply"),
            "{show}"
        );
    }

    #[test]
    #[should_panic = "expected `]` before `b]`"]
    fn text_that_is_no_shape_is_found() {
        parsed("[a b]");
    }
}
