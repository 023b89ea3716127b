//! Which arguments and options of an operator need or exclude each other, as its declaration says.
//! From this come the checks of every call, the documentation in other languages, and bad calls for
//! tests.

use crate::Argument;
use crate::options::listed;

/// An argument or an option of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    /// The name.
    pub name: &'static str,
    /// The place of the argument in the contract's list; `None` for an option.
    pub argument: Option<usize>,
}

/// What holds between the names of a [`Presence`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Where a subject is given, all objects are given.
    Needs,
    /// Where a subject is given, no object is given.
    Excludes,
    /// The subjects are all given or all absent.
    Together,
}

/// What the presence of some arguments and options says of others. An argument is given where it is
/// not absent, an option where it has another value than its default.
#[derive(Clone, Copy, Debug)]
pub struct Presence {
    /// The arguments and options whose presence matters.
    pub subjects: &'static [Name],
    /// What their presence means for the objects.
    pub verb: Verb,
    pub(crate) objects: &'static [Name],
}

impl Presence {
    /// The arguments and options that the subjects need or exclude.
    pub fn objects(&self) -> &'static [Name] {
        if self.verb == Verb::Together { self.subjects } else { self.objects }
    }
}

impl Name {
    /// The argument or the option called `name`.
    pub(crate) const fn find(name: &'static str, arguments: &[Argument]) -> Name {
        let mut at = 0;
        while at < arguments.len() {
            if is_same(arguments[at].name, name) {
                return Name { name, argument: Some(at) };
            }
            at += 1;
        }
        Name { name, argument: None }
    }
}

/// Equality of texts in constants.
const fn is_same(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut at = 0;
    while at < a.len() && at < b.len() && a[at] == b[at] {
        at += 1;
    }
    at == a.len() && at == b.len()
}

/// What the rules say of the argument or option `name`, a sentence each.
pub fn about(rules: &[Presence], name: &str) -> String {
    let mut text = String::new();
    for rule in rules.iter().filter(|rule| rule.subjects.iter().any(|of| of.name == name)) {
        let others = rule.objects().iter().filter(|other| other.name != name);
        let others: Vec<_> = others.map(|other| format!("`{}`", other.name)).collect();
        let others = listed(others.iter().map(String::as_str), "and");
        text += &match rule.verb {
            Verb::Needs => format!("\nNeeds {others}."),
            Verb::Excludes => format!("\nExcludes {others}."),
            Verb::Together => format!("\nGiven together with {others}, or not at all."),
        };
    }
    text
}
