//! The sizes of a call: what the names in shapes stand for, as options and descriptors have them.

use std::fmt;

use crate::argument::{self, Argument, Role};
use crate::check::Checker;
use crate::options::Value;
use crate::shape::{Alternatives, Form, MAX_NAMES, Operation, Rule, Shapes, Size, SizeRule};
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
    /// The place of the form that each argument has, where it has several.
    forms: [u8; MAX_ARGUMENTS],
}

/// The largest number of arguments that an operator may have.
const MAX_ARGUMENTS: usize = 64;

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
        let mut sizes = Sizes { shapes, values, from, given, forms: [0; MAX_ARGUMENTS] };
        operator.each_option(&mut |option, value| {
            if let Some(place) = shapes.names.iter().position(|name| *name == option.name) {
                sizes.values[place] = match value {
                    Value::Size(value) => Some(value),
                    Value::I32(value) => usize::try_from(value).ok(),
                    _ => None,
                };
            }
        });
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

    /// The first of the conditions that does not hold in this call.
    fn failing(&self, conditions: &[(usize, bool)]) -> Option<(usize, bool)> {
        let fails = |&&(at, is_given): &&(usize, bool)| (self.given >> at & 1 != 0) != is_given;
        conditions.iter().find(fails).copied()
    }

    /// The value by which a rule defines its size in this call, if the rule does.
    fn defined(&self, rule: &'static SizeRule) -> Option<&'static Size> {
        rule.value.as_ref().filter(|_| self.failing(&rule.conditions).is_none())
    }

    /// The argument because of which the call does not allow the form at `place`, and what the
    /// argument is; `None` for a form that is allowed.
    fn refused(&self, all: &Alternatives, place: usize) -> Option<(usize, &'static str)> {
        let like = all.like.filter(|&like| self.given >> like & 1 != 0);
        if let Some(like) = like.filter(|&like| usize::from(self.forms[like]) != place) {
            return Some((like, "of another form"));
        }
        let (at, must_be) = self.failing(&all.forms[place].conditions)?;
        Some((at, if must_be { "absent" } else { "given" }))
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
            Size::Name(place) if self.value(size).is_none() => {
                return match self.definition(*place) {
                    Some((_, meant)) => self.solve(meant, extent),
                    None => Some((*place, extent)),
                };
            }
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
                for (argument, state) in [(rule.with, "given"), (rule.without, "absent")] {
                    if let Some(argument) = argument {
                        words += &format!(", as `{argument}` is {state}");
                    }
                }
            }
        }
        words
    }
}

impl Checker {
    /// Checks options and descriptors by what the declaration says: ranges, which arguments are
    /// given, element types, shapes, strides, and the range of sizes.
    ///
    /// # Errors
    /// Status 3, 4, 10, 11 or 12.
    pub(crate) fn declared<O: Signature>(
        operator: &O,
        tensors: &O::Tensors,
    ) -> Result<(Self, Sizes)> {
        let this = Checker::of::<O>();
        let mut descs = [None; MAX_ARGUMENTS];
        let mut given = 0_u64;
        O::each(tensors, &mut |at, desc| {
            descs[at] = desc.copied();
            given |= u64::from(desc.is_some()) << at;
        });
        this.ranges(operator)?;
        this.presence(operator, given)?;
        let mut sizes = Sizes::of_options(operator, given);
        for (at, argument) in O::ARGUMENTS.iter().enumerate() {
            if let Some(desc) = &descs[at] {
                this.dtypes(argument, desc, O::ARGUMENTS, &descs)?;
                this.extents(&mut sizes, at, O::ARGUMENTS, desc)?;
                // `[batch, 1]` is a vector as some engines store it.
                let forms = &sizes.shapes.arguments[at].forms;
                let is_column =
                    forms.iter().any(|form| form.sizes.get(1) == Some(&Size::Number(1)));
                this.strides(argument, desc, is_column)?;
            }
        }
        Ok((this, sizes))
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
        arguments: &[Argument],
        desc: &TensorDesc,
    ) -> Result<()> {
        let (argument, all) = (&arguments[at], &sizes.shapes.arguments[at]);
        let known = sizes.values;
        let took = all.forms.iter().enumerate().find(|(place, form)| {
            sizes.refused(all, *place).is_none()
                && sizes.take(&form.sizes, desc.shape(), argument.name)
        });
        let Some((place, Form { sizes: shape, .. })) = took else {
            return Err(self.other_shape(sizes, at, arguments, desc));
        };
        sizes.forms[at] = place as u8;
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
        at: usize,
        arguments: &[Argument],
        desc: &TensorDesc,
    ) -> Error {
        let (argument, all) = (&arguments[at], &sizes.shapes.arguments[at]);
        let rank = desc.shape().len();
        let refused: Vec<_> = (0..all.forms.len()).map(|place| sizes.refused(all, place)).collect();
        let reason = refused.iter().flatten().next();
        let allowed = || all.forms.iter().zip(&refused).filter(|(_, refused)| refused.is_none());
        let of_rank = allowed().find(|(form, _)| form.sizes.len() == rank);
        let Some((form, _)) = of_rank.or_else(|| reason.and_then(|_| allowed().next())) else {
            let expected = format!("shape {}", argument.shape);
            return self.error(Status::BadTensorShape, argument.name, desc, expected);
        };
        let mut expected = Said(sizes, &form.sizes).to_string();
        match reason {
            // A form of the same rank is allowed, and its sizes are others.
            _ if of_rank.is_some() && expected.contains("..") => {
                expected = argument.shape.to_owned();
            }
            Some((like, "of another form")) => {
                expected += &format!(", the shape of `{}`", arguments[*like].name);
            }
            Some((at, state)) => expected += &format!(", as `{}` is {state}", arguments[*at].name),
            None if expected != argument.shape => {
                expected += &format!(", which is {}", argument.shape);
            }
            None => {}
        }
        expected += &sizes.origins(&form.sizes, argument.name);
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
            let mut forms = shapes.arguments[at].forms.iter();
            forms.any(|form| sizes.take(&form.sizes, desc.shape(), ""));
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
            |form: &&Form| form.sizes.iter().any(|size| size.names().iter().any(is_said));
        let forms = &shapes.arguments[at].forms;
        let form = forms.iter().find(has_extent).or(forms.first());
        let extents: Option<Vec<usize>> =
            form.and_then(|form| form.sizes.iter().map(|size| sizes.value(size)).collect());
        made[at] = extents.and_then(|extents| TensorDesc::from_shape(dtype, &extents));
    }
    made
}
