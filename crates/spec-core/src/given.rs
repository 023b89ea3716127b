//! The checks of options and of which arguments are given, as a declaration says.

use crate::check::Checker;
use crate::options::{Bound, DefaultValue, OptionInfo, Value};
use crate::presence::{Name, Verb};
use crate::{Result, Signature, Status};

impl OptionInfo {
    /// Whether the option may have `value`; an end of its range that is an option counts only
    /// `by_option`.
    fn allows<O: Signature>(&self, operator: &O, value: Value, by_option: bool) -> bool {
        let Some(number) = value.number() else { return true };
        let Some(range) = self.range else { return number.is_finite() };
        let max = match range.max.map(|max| max()) {
            Some(Bound::Number(max)) => Some(max),
            Some(Bound::Option(end)) if by_option => {
                operator.option(end.name).ok().and_then(Value::number)
            }
            _ => None,
        };
        (range.min..=max.unwrap_or(f64::MAX)).contains(&number)
    }

    /// Whether the option has another value in `operator` than its default.
    pub(crate) fn is_given<O: Signature>(&self, operator: &O) -> bool {
        let value = |name| operator.option(name).ok();
        match self.default {
            DefaultValue::Required => true,
            DefaultValue::Is(default) => value(self.name) != Some(default()),
            DefaultValue::As(other) => value(self.name) != value(other),
        }
    }
}

impl Name {
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

impl Checker {
    /// Checks the range of each option. Ends of ranges that are options come last: these options
    /// have been checked then.
    ///
    /// # Errors
    /// Status 3.
    pub(crate) fn ranges<O: Signature>(&self, operator: &O) -> Result<()> {
        for by_option in [false, true] {
            let mut wrong = None;
            operator.each_option(&mut |option, value| {
                if wrong.is_none() && !option.allows(operator, value, by_option) {
                    wrong = Some((option, value));
                }
            });
            if let Some((option, value)) = wrong {
                let expected = match option.range {
                    Some(range) if value.number().is_some_and(f64::is_finite) => {
                        range.words(|end| operator.option(end).ok())
                    }
                    _ => "a finite number".to_owned(),
                };
                return Err(self.error(Status::BadParam, option.name, value, expected));
            }
        }
        Ok(())
    }

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
