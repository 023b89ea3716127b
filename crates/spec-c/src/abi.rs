//! `abi.txt`: the order in which C's structs have their fields.
//!
//! The library must keep each field at the place that every earlier header gave it, because
//! programs were compiled with those headers. The contract's own order may change, so it cannot
//! be the order of the fields. Instead `abi.txt` lists the fields; `cargo xtask bindings` appends
//! a line for each field of the contract that the file does not have yet, and never moves a line.

/// The kinds of lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    /// `option OPERATOR NAME`: a field of the operator's struct of parameters.
    Option,
    /// `argument OPERATOR NAME`: a field of the operator's structs of tensors and of buffers.
    Argument,
    /// `choice LIST NAME`: a value of an option that is a choice from a list. The value's number
    /// in C is its place among the list's lines.
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

    /// The line for the name of a field or choice of `of`, an operator or a list.
    pub fn write(self, of: &str, name: &str) -> String {
        format!("{} {of} {name}\n", self.word())
    }
}

/// The names on the lines of this kind that belong to the operator or list `of`, in the order of
/// the file.
pub fn names<'t>(text: &'t str, kind: Line, of: &str) -> impl Iterator<Item = &'t str> {
    text.lines().filter(|line| !line.starts_with('#')).filter_map(move |line| {
        let mut words = line.split(' ');
        let found = words.next() == Some(kind.word()) && words.next() == Some(of);
        words.next().filter(|_| found)
    })
}

/// For each field, in the order of `abi.txt`, its place in the contract's list.
///
/// # Errors
/// A sentence that names a field which only the file or only the contract has.
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

/// The name of C's constant for a choice, for example `SPEC_SCORING_SIGMOID`.
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
