//! Shapes of arguments as data: `[rows, ceil(vocab / 32)]`, parsed from the declaration.
//!
//! A shape is a list of sizes: numbers, names, and expressions of them. A name stands for an option
//! of the operator, for a size that the declaration defines in its `sizes`, or for what the first
//! argument with that name has. From this come the checks of every descriptor, the shapes of outputs
//! in Rust ([`outputs`](crate::sizes::outputs)) and in other languages, and bad calls for tests.
//!
//! An argument may have one of several shapes:
//!
//! ```text
//! [batch] or [batch, 1]
//! [batch, nodes] without row_offsets or [rows] with row_offsets    by whether an argument is given
//! [rows] or [rows, n] as tokens                                    the first with the first of `tokens`
//! ```

use crate::argument::{self, Argument};

/// The largest number of names that the shapes of an operator may have.
pub(crate) const MAX_NAMES: usize = 32;

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

/// One of the shapes that an argument may have.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Form {
    /// The size of each dimension.
    pub sizes: Vec<Size>,
    /// Whether arguments must be given for the form: the place of each in the contract's list.
    pub conditions: Vec<(usize, bool)>,
}

/// The shapes that an argument may have, as a text of the declaration says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Alternatives {
    /// The shapes.
    pub forms: Vec<Form>,
    /// The argument, before this one in the contract's list, that has the form of the same place.
    pub like: Option<usize>,
}

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
    /// The argument with which [`value`](Self::value) holds.
    pub with: Option<&'static str>,
    /// The argument without which [`value`](Self::value) holds.
    pub without: Option<&'static str>,
}

/// The shapes of all arguments of an operator.
#[derive(Debug)]
pub struct Shapes {
    pub(crate) names: Vec<&'static str>,
    pub(crate) arguments: Vec<Alternatives>,
    pub(crate) rules: Vec<SizeRule>,
}

/// A [`Rule`] whose names were looked up.
#[derive(Debug)]
pub struct SizeRule {
    /// The rule as the declaration has it.
    pub rule: Rule,
    /// The place of the size's name in [`Shapes::names`].
    pub place: usize,
    /// [`Rule::value`], parsed.
    pub value: Option<Size>,
    /// Whether arguments must be given for the value: the place of each in the contract's list.
    pub conditions: Vec<(usize, bool)>,
}

/// Splits a declaration's text into names, numbers and signs.
struct Words<'n> {
    rest: &'static str,
    names: &'n mut Vec<&'static str>,
    arguments: &'n [Argument],
}

/// The place of the argument `name`, which a condition names.
fn place(arguments: &[Argument], name: &str) -> usize {
    argument::place(arguments, name).unwrap_or_else(|| panic!("no `{name}`"))
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

    /// `[a, b] with x or [c] as y`.
    fn alternatives(&mut self) -> Alternatives {
        let mut all = Alternatives::default();
        loop {
            self.expect("[");
            let mut sizes = vec![self.sum()];
            while self.take(",") {
                sizes.push(self.sum());
            }
            self.expect("]");
            let mut conditions = Vec::new();
            while ["with", "without"].contains(&self.peek()) {
                let is_given = self.next() == "with";
                conditions.push((place(self.arguments, self.next()), is_given));
            }
            all.forms.push(Form { sizes, conditions });
            if !self.take("or") {
                all.like = self.take("as").then(|| place(self.arguments, self.next()));
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
    pub(crate) fn has(&self, condition: &mut dyn FnMut(usize) -> bool) -> bool {
        match self {
            Size::Number(_) => false,
            Size::Name(place) => condition(*place),
            Size::Binary(_, sides) => sides.iter().any(|side| side.has(condition)),
        }
    }
}

impl Alternatives {
    /// The sizes of all forms.
    pub fn sizes(&self) -> impl Iterator<Item = &Size> {
        self.forms.iter().flat_map(|form| &form.sizes)
    }
}

impl Shapes {
    /// Parses the shapes of `arguments`. Text that is no shape is a mistake of a declaration, which
    /// the first use of the operator finds.
    pub(crate) fn parse(arguments: &[Argument], rules: &[Rule]) -> Self {
        let mut names = Vec::new();
        let mut words = Words { rest: "", names: &mut names, arguments };
        let shapes = arguments
            .iter()
            .map(|argument| {
                words.rest = argument.shape;
                words.alternatives()
            })
            .collect();
        let parsed = |rule: &Rule| SizeRule {
            rule: *rule,
            place: words.name(rule.name),
            value: rule.value.map(|text| {
                words.rest = text;
                words.sum()
            }),
            conditions: [(rule.with, true), (rule.without, false)]
                .into_iter()
                .filter_map(|(name, is_given)| Some((place(arguments, name?), is_given)))
                .collect(),
        };
        let rules = rules.iter().map(parsed).collect();
        assert!(names.len() <= MAX_NAMES, "{} names in shapes", names.len());
        Shapes { names, arguments: shapes, rules }
    }

    /// The names in the shapes.
    pub fn names(&self) -> &[&'static str] {
        &self.names
    }

    /// The shape of each argument, in the order of the contract's list.
    pub fn arguments(&self) -> &[Alternatives] {
        &self.arguments
    }

    /// What the declaration says of sizes.
    pub fn rules(&self) -> &[SizeRule] {
        &self.rules
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(rest: &'static str) -> (Vec<Vec<Size>>, Vec<&'static str>) {
        let mut names = Vec::new();
        let all = Words { rest, names: &mut names, arguments: &[] }.alternatives();
        (all.forms.into_iter().map(|form| form.sizes).collect(), names)
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
