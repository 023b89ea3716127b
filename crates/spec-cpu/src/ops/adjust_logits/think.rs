//! Thinking budgets: the token that a row must take.

use spec_core::flags::OUT_OF_RANGE;
use spec_core::ops::adjust_logits::Buffers;

use super::{Int, Ints, Result, Text, once, slice};

/// The token of a row that may take any.
pub(super) const NONE: i32 = -1;

/// The arguments of the rule.
pub(super) struct ThinkArguments<'a> {
    budget: Ints<'a>,
    start: &'a [i32],
    end: &'a [i32],
    forced: &'a [i32],
}

impl<'a> ThinkArguments<'a> {
    /// The arguments of a call; `None` for a call without the output `forced`.
    pub(super) fn new(buffers: &Buffers<'a>) -> Result<Option<Self>> {
        let (Some(_), Some(budget), Some(start), Some(end), Some(forced)) = (
            &buffers.forced,
            buffers.think_budget,
            buffers.think_start,
            buffers.think_end,
            buffers.think_forced,
        ) else {
            return Ok(None);
        };
        Ok(Some(ThinkArguments {
            budget: Ints::new(budget)?,
            start: slice(start)?,
            end: slice(end)?,
            forced: slice(forced)?,
        }))
    }

    /// The token that a row with this text must take.
    pub(super) fn forced<T: Int>(
        &self,
        request: usize,
        text: &Text<'_, T>,
        vocab: usize,
        flags: &mut u32,
    ) -> i32 {
        match self.due(request, text) {
            Some(token) if (0..vocab as i64).contains(&i64::from(token)) => token,
            Some(_) => {
                *flags |= OUT_OF_RANGE;
                NONE
            }
            None => NONE,
        }
    }

    /// The token that is due, which may be any number.
    fn due<T: Int>(&self, request: usize, text: &Text<'_, T>) -> Option<i32> {
        let Ok(budget) = usize::try_from(self.budget.get(request)) else { return None };
        if self.end.is_empty() || self.forced.is_empty() {
            return None;
        }
        let len = text.len();
        let start = match self.start.len() {
            0 => text.prompt,
            count => (count..=len).rev().find(|&end| text.has(end, self.start))?,
        };
        let past = (len - start).checked_sub(budget)?;
        // Tokens of `forced` that the text has at its end; none of them is always there.
        let max = past.min(self.forced.len());
        let taken = (0..=max).rev().find(|&count| text.has(len, &self.forced[..count]))?;
        let is_over = (start + 1..=len - taken)
            .any(|end| text.has(end, self.end) || text.has(end, self.forced));
        if is_over { None } else { self.forced.get(taken).map(once) }
    }
}

impl<T: Int> Text<'_, T> {
    /// Whether the tokens before `end` are those of the list.
    fn has(&self, end: usize, list: &[i32]) -> bool {
        list.len() <= end
            && list
                .iter()
                .rev()
                .zip(1..)
                .all(|(token, back)| self.at(end - back) == i64::from(once(token)))
    }
}
