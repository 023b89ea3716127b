//! DRY: how long a sequence each token would repeat, and the penalty for it.

use spec_core::exact;
use spec_core::flags::BAD_LENGTHS;
use spec_core::ops::adjust_logits::{Buffers, MAX_MATCH};

use super::{Int, Ints, Result, Text, floats, ints, once};

/// The arguments of the rule.
pub(super) struct DryArguments<'a> {
    multiplier: &'a [f32],
    base: &'a [f32],
    allowed: Ints<'a>,
    range: Option<Ints<'a>>,
    breakers: Option<Ints<'a>>,
}

/// The penalty of a request, which is on.
#[derive(Clone, Copy)]
pub(super) struct Dry {
    multiplier: f32,
    base: f32,
    allowed: u32,
}

impl Dry {
    /// A logit after the penalty for repeating a sequence of `count` tokens.
    pub(super) fn adjusted(self, x: f32, count: u32) -> f32 {
        let power = (self.allowed..count).fold(1.0, |power: f32, _| power * self.base);
        let penalty = self.multiplier * power;
        // Infinity minus infinity is no number.
        if penalty.is_infinite() { f32::NEG_INFINITY } else { exact::flushed(x - penalty) }
    }
}

impl<'a> DryArguments<'a> {
    /// The arguments of a call; `None` for a call without the rule.
    pub(super) fn new(buffers: &Buffers<'a>) -> Result<Option<Self>> {
        let (Some(multiplier), Some(base), Some(allowed)) = (
            floats(buffers.dry_multiplier)?,
            floats(buffers.dry_base)?,
            ints(buffers.dry_allowed_length)?,
        ) else {
            return Ok(None);
        };
        let (range, breakers) = (ints(buffers.dry_range)?, ints(buffers.dry_breakers)?);
        Ok(Some(DryArguments { multiplier, base, allowed, range, breakers }))
    }

    /// The penalty of a request; `None` if it is off or not valid.
    pub(super) fn of(&self, request: usize, flags: &mut u32) -> Option<Dry> {
        let multiplier = exact::flushed(once(&self.multiplier[request]));
        if multiplier == 0.0 {
            return None;
        }
        let base = once(&self.base[request]);
        if !(multiplier > 0.0 && multiplier.is_finite() && base >= 1.0 && base.is_finite()) {
            *flags |= BAD_LENGTHS;
            return None;
        }
        let allowed = self.allowed.get(request).max(0) as u32;
        Some(Dry { multiplier, base, allowed })
    }

    fn is_breaker(&self, token: i64) -> bool {
        self.breakers.is_some_and(|breakers| breakers.has(token))
    }

    /// Calls found(token, n) where the rule penalises a token after a sequence of n tokens, which
    /// may be several times for one token.
    pub(super) fn matches<T: Int>(
        &self,
        request: usize,
        dry: Dry,
        text: &Text<'_, T>,
        mut found: impl FnMut(i64, usize),
    ) {
        let len = text.len();
        let range = self.range.as_ref().map_or(0, |range| range.get(request));
        let range = usize::try_from(range).ok().filter(|&range| range > 0).unwrap_or(len);
        let start = len.saturating_sub(range);
        // A sequence ends at a breaker, and the text ends in the same tokens.
        let max = (1..=MAX_MATCH.min(len)).take_while(|back| !self.is_breaker(text.at(len - back)));
        let max = max.count();
        let least = (dry.allowed as usize).max(1);
        if max < least {
            return;
        }
        for at in start + 1..len {
            let count = text.repeated(at, max.min(at - start));
            if count >= least && !self.is_breaker(text.at(at)) {
                found(text.at(at), count);
            }
        }
    }
}
