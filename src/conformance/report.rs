//! What a check found.

use std::fmt;

use crate::Error;

/// What the cases of one operator came to.
#[derive(Clone, Debug)]
pub struct Report {
    /// The operator's name.
    pub operator: &'static str,
    /// How many cases ran.
    pub cases: usize,
    /// Those that failed.
    pub failures: Vec<Failure>,
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
    pub index: Option<Vec<usize>>,
    /// What it holds there.
    pub got: String,
    /// What it should hold.
    pub expected: String,
}

impl Failure {
    /// About one argument; what was got is still to be said.
    pub(crate) fn of(argument: &str, expected: impl Into<String>) -> Failure {
        Failure {
            case: String::new(),
            argument: argument.to_owned(),
            index: None,
            got: String::new(),
            expected: expected.into(),
        }
    }

    /// A call that should have worked.
    pub(crate) fn error(call: &str, error: &Error) -> Failure {
        Failure { got: error.to_string(), ..Failure::of(call, "success") }
    }

    /// A case without an argument that its operator requires.
    pub(crate) fn missing(argument: &str) -> Failure {
        Failure { got: "absent".to_owned(), ..Failure::of(argument, "an argument of the case") }
    }

    /// Puts a word on the case in front of what is said of it already.
    pub(crate) fn in_case(mut self, case: impl fmt::Display) -> Failure {
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
