//! Shapes as text: `tokens=4096,experts=256,dtype=bf16`.

use std::fmt::Display;
use std::ops::RangeInclusive;

use spec::DType;
use spec::options::{Kind, Setting, Value};

/// Why a text is no shape of an operator; the message says what is expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ShapeError(pub(crate) String);

/// The keys and values of a shape. An operator takes the keys that it knows one by one.
pub(crate) struct Fields<'t> {
    operator: &'static str,
    /// Keys and values as given; taking a key removes it.
    given: Vec<(&'t str, &'t str)>,
    /// The keys that the operator knows with their values, for error messages.
    known: Vec<String>,
}

impl<'t> Fields<'t> {
    pub(crate) fn parse(operator: &'static str, text: &'t str) -> Result<Self, ShapeError> {
        let mut given: Vec<(&str, &str)> = Vec::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let Some((key, value)) = part.split_once('=') else {
                let words = format!("`{part}` is no part of a shape, expected key=value");
                return Err(ShapeError(words));
            };
            let (key, value) = (key.trim(), value.trim());
            if given.iter().any(|(known, _)| *known == key) {
                return Err(ShapeError(format!("`{key}` is there twice, expected it once")));
            }
            given.push((key, value));
        }
        Ok(Fields { operator, given, known: Vec::new() })
    }

    fn take(&mut self, key: &'static str) -> Option<&'t str> {
        let at = self.given.iter().position(|(given, _)| *given == key)?;
        Some(self.given.remove(at).1)
    }

    /// Takes a whole number; `default` if the key is not given.
    pub(crate) fn number(
        &mut self,
        key: &'static str,
        default: usize,
        range: RangeInclusive<usize>,
    ) -> Result<usize, ShapeError> {
        let (low, high) = (words_of(*range.start()), words_of(*range.end()));
        self.known.push(format!("{key}={low} to {high}"));
        let Some(text) = self.take(key) else { return Ok(default) };
        number(text).filter(|n| range.contains(n)).ok_or_else(|| {
            let expected = format!("a whole number from {low} to {high}, as in 4096, 2^20 or 5e8");
            self.bad(key, text, expected)
        })
    }

    /// Takes one of several names; the first of them if the key is not given.
    pub(crate) fn word<T: Copy>(
        &mut self,
        key: &'static str,
        choices: &[(&'static str, T)],
    ) -> Result<T, ShapeError> {
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        self.known.push(format!("{key}={}", names.join("|")));
        let Some(text) = self.take(key) else { return Ok(choices[0].1) };
        let found = choices.iter().find(|(name, _)| *name == text).map(|(_, value)| *value);
        found.ok_or_else(|| self.bad(key, text, format!("one of {}", names.join(", "))))
    }

    /// Takes a value of an operator's option; the first value if the key is not given.
    pub(crate) fn choice<T: Setting>(&mut self, key: &'static str) -> Result<T, ShapeError> {
        let Kind::Choice(choice) = T::KIND else { unreachable!("`{key}` has no list of values") };
        let values = choice.values.iter().map(|value| value.name);
        let values = values.filter_map(|name| Some((name, T::from_value(Value::Choice(name))?)));
        self.word(key, &values.collect::<Vec<_>>())
    }

    /// Takes one of several dtypes; the first of them if the key is not given.
    pub(crate) fn dtype(&mut self, dtypes: &[DType]) -> Result<DType, ShapeError> {
        let choices: Vec<_> = dtypes.iter().map(|dtype| (dtype.name(), *dtype)).collect();
        self.word("dtype", &choices)
    }

    fn bad(&self, key: &str, value: &str, expected: impl Display) -> ShapeError {
        ShapeError(format!("{}: `{key}` is `{value}`, expected {expected}", self.operator))
    }

    /// The known keys with their values, after the operator has taken all of them.
    pub(crate) fn keys(self) -> Vec<String> {
        self.known
    }

    /// Refuses keys that the operator did not take.
    pub(crate) fn finish(self) -> Result<(), ShapeError> {
        let Some((key, _)) = self.given.first() else { return Ok(()) };
        let known = self.known.join(", ");
        Err(ShapeError(format!("{} has no `{key}`, expected {known}", self.operator)))
    }
}

/// Parses `4096`, `2^20` or `5e8`.
fn number(text: &str) -> Option<usize> {
    let whole = |text: &str| {
        let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        text.parse::<usize>().ok().filter(|_| plain)
    };
    let power =
        |base: usize, exponent: &str| base.checked_pow(u32::try_from(whole(exponent)?).ok()?);
    if let Some((base, exponent)) = text.split_once('^') {
        return power(whole(base)?, exponent);
    }
    match text.split_once('e') {
        Some((digits, exponent)) => whole(digits)?.checked_mul(power(10, exponent)?),
        None => whole(text),
    }
}

/// A number in its short form: 4096, 2^20, 5e8.
pub(crate) fn words_of(n: usize) -> String {
    if n >= 1 << 16 && n.is_power_of_two() {
        return format!("2^{}", n.ilog2());
    }
    let (mut digits, mut zeros) = (n, 0);
    while digits > 0 && digits.is_multiple_of(10) {
        digits /= 10;
        zeros += 1;
    }
    if zeros >= 6 { format!("{digits}e{zeros}") } else { n.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(text: &str) -> Fields<'_> {
        Fields::parse("some_operator", text).unwrap()
    }

    #[test]
    fn numbers() {
        for (text, value) in [("0", 0), ("4096", 4096), ("2^20", 1 << 20), ("5e8", 500_000_000)] {
            assert_eq!(number(text), Some(value), "{text}");
        }
        for text in ["", "-1", "+1", "1.5", "2^", "^2", "2^64", "1e99", "e8", "ten", "2^2^2"] {
            assert_eq!(number(text), None, "{text}");
        }
        for n in [0, 7, 4096, 1 << 20, 500_000_000, 65_537] {
            assert_eq!(number(&words_of(n)), Some(n));
        }
        assert_eq!([1 << 27, 500_000_000, 4096].map(words_of), ["2^27", "5e8", "4096"]);
    }

    #[test]
    fn keys_are_taken_by_name() {
        let mut some = fields("b=2, a=3");
        assert_eq!(some.number("a", 1, 1..=9), Ok(3));
        assert_eq!(some.number("b", 1, 1..=9), Ok(2));
        assert_eq!(some.number("c", 5, 1..=9), Ok(5));
        assert_eq!(some.word("d", &[("x", 7), ("y", 8)]), Ok(7));
        assert_eq!(some.finish(), Ok(()));
    }

    #[test]
    fn what_is_wrong_is_said_with_what_is_possible() {
        let said = |error: ShapeError| error.to_string();
        let mut some = fields("tokens=many");
        assert_eq!(
            said(some.number("tokens", 1, 1..=4096).unwrap_err()),
            "some_operator: `tokens` is `many`, expected a whole number from 1 to 4096, \
             as in 4096, 2^20 or 5e8"
        );
        let mut some = fields("dtype=f64");
        let error = some.dtype(&[DType::F32, DType::BF16]).unwrap_err();
        assert_eq!(said(error), "some_operator: `dtype` is `f64`, expected one of f32, bf16");
        let mut some = fields("token=3");
        _ = some.number("tokens", 1, 1..=9);
        _ = some.dtype(&[DType::F32, DType::BF16]);
        assert_eq!(
            said(some.finish().unwrap_err()),
            "some_operator has no `token`, expected tokens=1 to 9, dtype=f32|bf16"
        );
        for (text, words) in [("tokens", "expected key=value"), ("a=1,a=2", "is there twice")] {
            let error = Fields::parse("some_operator", text).err().map(said).unwrap_or_default();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
