//! Which arguments and options of an operator need or exclude each other, as its declaration says.
//! From this come the checks of every call, the documentation in other languages, and bad calls for
//! tests.

use crate::check::Checker;
use crate::options::listed;
use crate::{Argument, Result, Signature, Status};

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

    /// Whether the call has the argument, or another value than the default of the option. Bit n of
    /// `given` is set if argument n is given.
    fn is_given<O: Signature>(&self, operator: &O, given: u64) -> bool {
        match self.argument {
            Some(at) => given >> at & 1 != 0,
            None => O::OPTIONS
                .iter()
                .find(|option| option.name == self.name)
                .is_some_and(|option| option.is_given(operator)),
        }
    }

    /// What the call has: the value of an option, or whether it has an argument.
    fn value<O: Signature>(&self, operator: &O, is_given: bool) -> Result<String> {
        match self.argument {
            Some(_) => Ok(if is_given { "given" } else { "absent" }.to_owned()),
            None => operator.option(self.name).map(|value| value.to_string()),
        }
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

impl Checker {
    /// Checks which arguments and options are given. Bit n of `given` is set if argument n is.
    ///
    /// # Errors
    /// Status 4 for an argument that is missing, 3 for everything else.
    pub(crate) fn presence<O: Signature>(&self, operator: &O, given: u64) -> Result<()> {
        for rule in O::PRESENCE {
            for subject in rule.subjects {
                if !subject.is_given(operator, given) {
                    continue;
                }
                for object in rule.objects() {
                    let is_given = object.is_given(operator, given);
                    if object != subject && is_given == (rule.verb == Verb::Excludes) {
                        return self.wrong_presence(operator, subject, object, is_given);
                    }
                }
            }
        }
        Ok(())
    }

    #[cold]
    fn wrong_presence<O: Signature>(
        &self,
        operator: &O,
        subject: &Name,
        object: &Name,
        is_given: bool,
    ) -> Result<()> {
        let expected = match object.argument {
            Some(_) if is_given => "absent".to_owned(),
            Some(_) => "present".to_owned(),
            None if is_given => O::usual().option(object.name)?.to_string(),
            None => "another value".to_owned(),
        };
        let is_missing = object.argument.is_some() && !is_given;
        let status = if is_missing { Status::NullPointer } else { Status::BadParam };
        let value = object.value(operator, is_given)?;
        let since = subject.value(operator, true)?;
        let expected = format!("{expected}, since `{}` is {since}", subject.name);
        Err(self.error(status, object.name, value, expected))
    }
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
