//! The sizes of a call: what the names in shapes stand for, as options and descriptors have them.

use std::fmt;

use crate::argument::{self, Argument, Role};
use crate::check::Checker;
use crate::options::Value;
use crate::shape::{MAX_NAMES, Operation, Rule, Shapes, Size, SizeRule};
use crate::signature::Signature;
use crate::tensor::MAX_RANK;
use crate::{Error, Result, Status, TensorDesc};

/// The values of the names in an operator's shapes, as options and arguments give them.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    shapes: &'static Shapes,
    values: [Option<usize>; MAX_NAMES],
    /// The argument that gave the value; `None` for an option.
    from: [Option<&'static str>; MAX_NAMES],
    /// Bit n is set if argument n of the contract's list is given.
    given: u64,
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
    /// The sizes that are options. Bit n of `given` is set if argument n of the contract's list is
    /// given.
    fn of_options<O: Signature>(operator: &O, given: u64) -> Self {
        let shapes = O::shapes();
        let (values, from) = ([None; MAX_NAMES], [None; MAX_NAMES]);
        let mut sizes = Sizes { shapes, values, from, given };
        for (place, name) in shapes.names.iter().enumerate() {
            if O::OPTIONS.iter().any(|option| option.name == *name)
                && let Ok(Value::Size(value)) = operator.option(name)
            {
                sizes.values[place] = Some(value);
            }
        }
        sizes
    }

    /// Gives names their values.
    fn say(&mut self, said: &[(&str, usize)]) {
        for (name, value) in said {
            if let Some(place) = self.shapes.names.iter().position(|known| known == name) {
                self.values[place] = Some(*value);
            }
        }
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

    /// The value by which a rule defines its size in this call, if the rule does.
    fn defined(&self, rule: &'static SizeRule) -> Option<&'static Size> {
        let is_given = rule.without.is_some_and(|at| self.given >> at & 1 != 0);
        rule.value.as_ref().filter(|_| !is_given)
    }

    /// The rule by which a name has a value that no argument has given, and this value.
    fn definition(&self, place: usize) -> Option<(&'static Rule, &'static Size)> {
        let mut rules = self.shapes.rules.iter().filter(|rule| rule.place == place);
        rules.find_map(|rule| self.defined(rule).map(|value| (&rule.rule, value)))
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
        let (operation, sides) = match size {
            Size::Name(place) if self.value(size).is_none() => return Some((*place, extent)),
            Size::Binary(operation, sides) => (operation, sides),
            _ => return None,
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

    /// Takes an argument's sizes from its shape. False, and no size is taken, if the shape is another.
    fn take(&mut self, shape: &[Size], extents: &[usize], argument: &'static str) -> bool {
        if shape.len() != extents.len() {
            return false;
        }
        let mut taken = [None; MAX_RANK];
        for ((size, &extent), taken) in shape.iter().zip(extents).zip(&mut taken) {
            if self.value(size).is_some_and(|value| value == extent) {
                continue;
            }
            // A size that is known has no unknown name to solve for.
            let Some(found) = self.solve(size, extent) else { return false };
            *taken = Some(found);
        }
        for (place, value) in taken.into_iter().flatten() {
            self.values[place] = Some(value);
            self.from[place] = Some(argument);
        }
        true
    }

    /// Where the sizes of a shape come from, as in: with rows of `logits`.
    fn origins(&self, shape: &[Size], argument: &str) -> String {
        let mut words = String::new();
        let places: Vec<usize> = shape.iter().flat_map(Size::names).collect();
        for (at, &place) in places.iter().enumerate() {
            if places[..at].contains(&place) {
                continue;
            }
            let name = self.shapes.names[place];
            if let Some(from) = self.from[place].filter(|from| *from != argument) {
                words += &format!(", with {name} of `{from}`");
            } else if let (None, Some((rule, _))) = (self.values[place], self.definition(place)) {
                words += &format!(", with {name} = {}", rule.value.unwrap_or_default());
                if let Some(without) = rule.without {
                    words += &format!(", as `{without}` is absent");
                }
            }
        }
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
        let Some(name) = argument.dtype_rule.argument() else { return Ok(()) };
        match argument::place(arguments, name).and_then(|at| descs[at]) {
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
        for rule in &sizes.shapes.rules {
            let SizeRule { rule: Rule { min, max, .. }, place, value, .. } = rule;
            let is_new = match value {
                None => shape.iter().any(|size| size.has(&mut |name| name == *place)),
                // A size that is defined, as soon as all sizes in its definition are known.
                Some(value) => {
                    *max < usize::MAX
                        && sizes.defined(rule).is_some()
                        && !value.has(&mut |name| sizes.values[name].is_none())
                        && value.has(&mut |name| known[name].is_none())
                }
            };
            let value = sizes.value(&Size::Name(*place));
            if is_new && !value.is_some_and(|value| (*min..=*max).contains(&value)) {
                return Err(self.out_of_range(&rule.rule, argument, desc));
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

/// The size called `name`, as the declaration defines it by options and by the sizes in `said`;
/// `None` where it does not, and where a number overflows.
pub(crate) fn defined<O: Signature>(
    operator: &O,
    name: &str,
    said: &[(&str, usize)],
) -> Option<usize> {
    let mut sizes = Sizes::of_options(operator, 0);
    sizes.say(said);
    let place = sizes.shapes.names.iter().position(|known| *known == name)?;
    sizes.value(&Size::Name(place))
}

/// Descriptors of outputs that a caller has not made yet: packed, of the element type that follows
/// from another argument, or else of the first type that the output may have. Of several shapes that
/// an output may have, the descriptor has the one with a size in `extents`, or else the first.
///
/// `given` are the descriptors of the other arguments, in the order of the contract's list. `extents`
/// are sizes that only outputs have, by name. `None` stands for what is given, for what
/// a call reads or changes in place, and for outputs whose sizes nothing says.
pub fn outputs<O: Signature>(
    operator: &O,
    given: &[Option<TensorDesc>],
    extents: &[(&str, usize)],
) -> Vec<Option<TensorDesc>> {
    let bits = given.iter().enumerate().map(|(at, desc)| u64::from(desc.is_some()) << at).sum();
    let mut sizes = Sizes::of_options(operator, bits);
    let shapes = O::shapes();
    sizes.say(extents);
    for (at, desc) in given.iter().enumerate() {
        if let Some(desc) = desc {
            shapes.arguments[at].iter().any(|shape| sizes.take(shape, desc.shape(), ""));
        }
    }
    let mut made = vec![None; O::ARGUMENTS.len()];
    for (at, argument) in O::ARGUMENTS.iter().enumerate() {
        if given.get(at).is_some_and(Option::is_some) || argument.role != Role::Output {
            continue;
        }
        let like = argument.dtype_rule.argument();
        let like = like.and_then(|name| given[argument::place(O::ARGUMENTS, name)?]);
        let dtype = like.map_or(argument.dtypes[0], |desc| desc.dtype());
        let is_said = |place: &usize| extents.iter().any(|(name, _)| *name == shapes.names[*place]);
        let has_extent =
            |shape: &&Vec<Size>| shape.iter().any(|size| size.names().iter().any(is_said));
        let alternatives = &shapes.arguments[at];
        let shape = alternatives.iter().find(has_extent).or(alternatives.first());
        let extents: Option<Vec<usize>> =
            shape.and_then(|shape| shape.iter().map(|size| sizes.value(size)).collect());
        made[at] = extents.and_then(|extents| TensorDesc::from_shape(dtype, &extents));
    }
    made
}
