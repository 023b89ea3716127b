//! `abi.txt`: the order in which C's structs have their fields.
//!
//! A program that was compiled with an older header finds a field where that header had it.
//! So the order is not the contract's, which may change, but that of a text file to which
//! lines are only appended: by `cargo xtask bindings`, whenever the contract has a field that
//! the file has not.

/// The kinds of lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    /// `option OPERATOR NAME`: a field of the operator's struct of parameters.
    Option,
    /// `argument OPERATOR NAME`: a field of its structs of tensors and of buffers.
    Argument,
    /// `choice LIST NAME`: a value of a list, whose place among the list's lines is its number.
    Choice,
}

impl Line {
    fn word(self) -> &'static str {
        match self {
            Line::Option => "option",
            Line::Argument => "argument",
            Line::Choice => "choice",
        }
    }

    /// The line of a field.
    pub fn write(self, of: &str, name: &str) -> String {
        format!("{} {of} {name}\n", self.word())
    }
}

/// The names on the lines of this kind that belong to `of`, in order.
pub fn names<'t>(text: &'t str, kind: Line, of: &str) -> impl Iterator<Item = &'t str> {
    text.lines().filter(|line| !line.starts_with('#')).filter_map(move |line| {
        let mut words = line.split(' ');
        let found = words.next() == Some(kind.word()) && words.next() == Some(of);
        words.next().filter(|_| found)
    })
}

/// For each field, in C's order, its place in the contract's list.
///
/// # Errors
/// A sentence that names a field which only one of the two has.
pub fn order(text: &str, kind: Line, of: &str, contract: &[&str]) -> Result<Vec<usize>, String> {
    let mut places = Vec::with_capacity(contract.len());
    for name in names(text, kind, of) {
        let place = contract.iter().position(|known| *known == name);
        let place = place.filter(|place| !places.contains(place));
        places.push(place.ok_or(format!(
            "abi.txt has the {} {name} of {of} once more than the contract: a program that was \
             compiled with an older header still passes it",
            kind.word()
        ))?);
    }
    match contract.iter().enumerate().find(|(place, _)| !places.contains(place)) {
        None => Ok(places),
        Some((_, name)) => Err(format!(
            "abi.txt lacks the {} {name} of {of}: run cargo xtask bindings",
            kind.word()
        )),
    }
}

/// The name of a choice's number: `SPEC_SCORING_SIGMOID`.
pub fn constant(list: &str, value: &str) -> String {
    format!("SPEC_{list}_{value}").to_uppercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        "# fields\nargument unique counts\nargument unique keys\noption unique keys\n";

    #[test]
    fn fields_stay_where_the_file_has_them() {
        assert_eq!(order(TEXT, Line::Argument, "unique", &["keys", "counts"]), Ok(vec![1, 0]));
    }

    #[test]
    fn a_field_that_only_one_of_the_two_has_is_an_error() {
        let gone = order(TEXT, Line::Argument, "unique", &["keys"]).unwrap_err();
        assert!(gone.contains("counts"), "{gone}");
        let new = order(TEXT, Line::Option, "unique", &["keys", "new"]).unwrap_err();
        assert!(new.contains("lacks the option new"), "{new}");
    }
}
