//! The results of checks.

use std::fmt;

use spec_core::Error;

/// A function that makes the error of a step of a case, such as `create` or `route`, the case's
/// failure.
pub(crate) fn failed(step: &'static str) -> impl Fn(Error) -> Failure {
    move |error| Failure::error(step, &error)
}

/// The results of the cases of one operator.
#[derive(Clone, Debug)]
pub struct Report {
    /// The operator's name.
    pub operator: &'static str,
    /// The number of cases that ran.
    pub cases: usize,
    /// The failures, one for each case that failed.
    pub failures: Vec<Failure>,
    /// The number of cases that the backend does not implement (status 2).
    pub unsupported: usize,
}

/// The first failure of one case.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The case's name in the golden vectors, or the seed of a random case, and how the case was
    /// run.
    pub case: String,
    /// The argument that differs, or the call that failed.
    pub argument: String,
    /// The index in the argument.
    pub index: Option<Box<[usize]>>,
    /// The value that the argument has there, or what happened.
    pub got: String,
    /// The value that was expected.
    pub expected: String,
    /// Whether the backend does not implement the call.
    pub unsupported: bool,
}

impl Report {
    /// Counts one more case, and keeps its failure.
    pub(crate) fn add(&mut self, failure: Option<Failure>) {
        self.cases += 1;
        match failure {
            Some(failure) if failure.unsupported => self.unsupported += 1,
            failure => self.failures.extend(failure),
        }
    }

    /// A report without cases.
    pub fn of(operator: &'static str) -> Report {
        Report { operator, cases: 0, failures: Vec::new(), unsupported: 0 }
    }

    /// This report together with another one of the same operator.
    pub fn merge(mut self, more: Report) -> Report {
        self.cases += more.cases;
        self.unsupported += more.unsupported;
        self.failures.extend(more.failures);
        self
    }
}

impl Failure {
    /// A failure about one argument. The caller fills in `got`.
    pub fn of(argument: &str, expected: impl Into<String>) -> Failure {
        Failure {
            case: String::new(),
            argument: argument.to_owned(),
            index: None,
            got: String::new(),
            expected: expected.into(),
            unsupported: false,
        }
    }

    /// The failure for a call that should have succeeded.
    pub fn error(call: &str, error: &Error) -> Failure {
        Failure { got: error.to_string(), ..Failure::of(call, "success") }
    }

    /// The failure for a call that the backend does not implement.
    pub(crate) fn unsupported(error: &Error) -> Failure {
        Failure { unsupported: true, ..Failure::error("create", error) }
    }

    /// Adds words about the case before the words that the failure already has.
    pub fn in_case(mut self, case: impl fmt::Display) -> Failure {
        self.case =
            if self.case.is_empty() { case.to_string() } else { format!("{case}, {}", self.case) };
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.case, self.argument)?;
        if let Some(index) = &self.index {
            write!(f, "{index:?}")?;
        }
        write!(f, ": got {}, expected {}", self.got, self.expected)
    }
}
