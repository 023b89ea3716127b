//! The windows of a request: the places of its text and of the corpus where its longest suffix
//! occurred before.

use spec_core::ops::SuffixLookup;
use spec_core::ops::suffix_lookup::MAX_WINDOWS;

use crate::ops::ngram::Token;
use crate::simd::Pair;
use crate::slices::{Int, once};

/// Marks a window in the corpus. Indices of tokens are below 2^31.
const IN_CORPUS: u32 = 1 << 31;

/// The windows with the longest match, the most recent first.
pub(super) struct Windows<'a, T> {
    text: &'a [T],
    corpus: &'a [T],
    /// For each window, the index of the token behind its match.
    ends: [u32; MAX_WINDOWS],
    count: usize,
    /// The length of the match; 0 where there is no window.
    pub(super) length: usize,
}

impl<T: Token + Int> Windows<'_, T> {
    /// The number of windows.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// The token `depth` places behind the token that follows a window's match; `None` beyond the
    /// end of the text, or for a negative token.
    pub(super) fn token(&self, window: u16, depth: usize) -> Option<T> {
        let end = self.ends[usize::from(window)];
        let known = if end & IN_CORPUS == 0 { self.text } else { self.corpus };
        let token = known.get((end & !IN_CORPUS) as usize + depth).map(once);
        token.filter(|token| token.wide() >= 0)
    }

    /// Notes a window whose match has this length.
    fn note(&mut self, end: u32, length: usize, max_windows: usize) {
        if length > self.length {
            (self.length, self.count) = (length, 0);
        }
        if self.count < max_windows {
            self.ends[self.count] = end;
            self.count += 1;
        }
    }
}

/// Finds the windows of a request.
pub(super) fn search<'a, T: Token + Int>(
    params: &SuffixLookup,
    text: &'a [T],
    corpus: &'a [T],
) -> Windows<'a, T> {
    let mut found = Windows { text, corpus, ends: [0; MAX_WINDOWS], count: 0, length: 0 };
    // A match can have the last tokens of the text, back to the first negative one.
    let suffix = text.iter().rev().take(params.max_match);
    let longest = suffix.take_while(|token| token.wide() >= 0).count();
    let pattern = &text[text.len() - longest..];
    for (known, mark) in [(text, 0), (corpus, IN_CORPUS)] {
        scan(params, pattern, known, mark, &mut found);
    }
    found
}

/// Notes the windows of one text, from its end to its start.
fn scan<T: Token + Int>(
    params: &SuffixLookup,
    pattern: &[T],
    known: &[T],
    mark: u32,
    found: &mut Windows<'_, T>,
) {
    // The places of a match's last token that have a token behind them.
    let mut ends = 0..known.len().saturating_sub(1);
    loop {
        // The smallest length of a match that counts. Once there are `max_windows` windows, only
        // a longer match counts.
        let is_full = found.count == params.max_windows;
        let useful = found.length.max(params.min_match) + usize::from(is_full);
        if pattern.len() < useful {
            return;
        }
        let last = pattern.len() - 1;
        // The scan looks for both ends of a match of this length, because few other places have
        // both.
        let pair =
            Pair { last: pattern[last], before: pattern[last + 1 - useful], distance: useful - 1 };
        ends.start = useful - 1;
        if ends.is_empty() {
            return;
        }
        let Some(end) = T::rfind(known, ends.clone(), pair) else { return };
        ends.end = end;
        let pairs = known[..=end].iter().rev().zip(pattern.iter().rev());
        let length = pairs.take_while(|(a, b)| a == b).count();
        if length >= useful && known[end + 1].wide() >= 0 {
            found.note((end as u32 + 1) | mark, length, params.max_windows);
        }
    }
}
