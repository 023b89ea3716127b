//! What a check found.

use std::fmt;

use spec_core::Error;

/// What the cases of one operator came to.
#[derive(Clone, Debug)]
pub struct Report {
    /// The operator's name.
    pub operator: &'static str,
    /// How many cases ran.
    pub cases: usize,
    /// Those that failed.
    pub failures: Vec<Failure>,
    /// Those that the backend said it does not implement (status 2).
    pub unsupported: usize,
}

/// The first thing that was wrong with one case.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The case's name in the golden vectors, or how to make the random case
    /// again, and how it was run.
    pub case: String,
    /// The argument that differs, or the call that failed.
    pub argument: String,
    /// Where in the argument.
    pub index: Option<Box<[usize]>>,
    /// What it holds there.
    pub got: String,
    /// What it should hold.
    pub expected: String,
    /// Whether the backend said that it does not implement the call.
    pub unsupported: bool,
}

impl Report {
    /// Counts one more case, and keeps what was wrong with it.
    pub(crate) fn add(&mut self, failure: Option<Failure>) {
        self.cases += 1;
        match failure {
            Some(failure) if failure.unsupported => self.unsupported += 1,
            failure => self.failures.extend(failure),
        }
    }

    /// Nothing yet.
    pub fn of(operator: &'static str) -> Report {
        Report { operator, cases: 0, failures: Vec::new(), unsupported: 0 }
    }

    /// Together with more cases of the same operator.
    pub fn merge(mut self, more: Report) -> Report {
        self.cases += more.cases;
        self.unsupported += more.unsupported;
        self.failures.extend(more.failures);
        self
    }
}

impl Failure {
    /// About one argument; what was got is still to be said.
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

    /// A call that should have worked.
    pub fn error(call: &str, error: &Error) -> Failure {
        Failure { got: error.to_string(), ..Failure::of(call, "success") }
    }

    /// A call that the backend does not have.
    pub(crate) fn unsupported(error: &Error) -> Failure {
        Failure { unsupported: true, ..Failure::error("create", error) }
    }

    /// Puts a word on the case in front of what is said of it already.
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
