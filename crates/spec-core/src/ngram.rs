//! The integer rules that `ngram_match`, `hybrid_mtp_ngram` and, without the
//! budget, `prompt_lookup` share.
//!
//! Backends search in parallel; what surrounds the search, cutting bad lengths
//! to what fits and sharing out the token budget, is this small and must be
//! replayed exactly.

use crate::Argument;
use crate::check::Checker;
use crate::flags::BAD_LENGTHS;
use crate::{DType, Matrix, Result, TensorDesc};

/// The longest pattern. Far beyond what drafts well; it bounds the work of a
/// search in repetitive text.
pub const MAX_NGRAM: usize = 1024;

/// A request's haystacks, cut to what its rows hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Haystacks {
    /// Prompt tokens: `input_ids[.. prompt]`.
    pub prompt: usize,
    /// Where the generated tokens start in their row.
    pub start: usize,
    /// Generated tokens that are searched: `generated[.. step]`. The pattern
    /// ends with `generated[step]`.
    pub step: usize,
    /// [`BAD_LENGTHS`] if anything was cut.
    pub flags: u32,
}

impl Haystacks {
    /// Cuts `input_ids_len`, `prompt_len` and `step` to rows of `input_cols`
    /// and `generated_cols` tokens.
    pub fn new(
        input_cols: usize,
        input_ids_len: i64,
        generated_cols: usize,
        prompt_len: i64,
        step: i64,
    ) -> Self {
        let prompt = cut(input_ids_len, input_cols);
        let start = cut(prompt_len, generated_cols);
        let last = (generated_cols - start).saturating_sub(1);
        let cut_step = cut(step, last);
        let fits =
            prompt as i64 == input_ids_len && start as i64 == prompt_len && cut_step as i64 == step;
        Haystacks { prompt, start, step: cut_step, flags: if fits { 0 } else { BAD_LENGTHS } }
    }
}

/// A length or count, which may be any number, cut to `0 ..= max`.
pub fn cut(value: i64, max: usize) -> usize {
    // A length above `usize::MAX` or below 0 is cut like any other.
    usize::try_from(value.max(0)).unwrap_or(usize::MAX).min(max)
}

/// How many tokens a request may draft: the smaller of its own limit and what
/// is left of its decoding length after `step`.
pub fn draft_limit(limit: i64, max_dec_len: i64, step: usize) -> i64 {
    limit.min(max_dec_len.saturating_sub(step as i64 + 1))
}

/// What a request would draft if the budget were endless: at most `limit`, at
/// most its `candidates`, at most the `room` of its row. The second value is
/// [`BAD_LENGTHS`] if the row cut it.
pub fn wanted(limit: i64, candidates: usize, room: usize) -> (usize, u32) {
    let wanted = cut(limit, candidates);
    if wanted > room { (room, BAD_LENGTHS) } else { (wanted, 0) }
}

/// What a request gets: `wanted_before` is the sum of [`wanted`] over the
/// requests before it, `committed` the tokens used up to and including it
/// without any drafts, plus the requests still to come. `committed` never
/// decreases from request to request, which is why one prefix sum over wishes
/// gives what the sequential loop over grants gives.
pub fn granted(wanted: usize, wanted_before: i64, committed: i64, threshold: i64) -> usize {
    let taken = wanted_before.saturating_add(committed);
    if taken >= threshold - 1 { 0 } else { wanted.min((threshold - taken) as usize) }
}

/// Reads of the tensors both operators have, validated.
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    /// The number of requests.
    pub batch: usize,
    /// Prompts.
    pub input_ids: Matrix,
    /// Generated tokens: `token_ids_all` or `pre_ids`.
    pub generated: Matrix,
    /// Drafts, in place.
    pub draft_tokens: Matrix,
    /// The dtype of lengths and steps.
    pub lengths: DType,
}

/// An argument with its descriptor.
pub(crate) type Described<'t> = (&'static Argument, &'t TensorDesc);

pub(crate) struct RowDescs<'t> {
    pub(crate) input_ids: Described<'t>,
    pub(crate) generated: Described<'t>,
    pub(crate) draft_tokens: Described<'t>,
    pub(crate) lengths: &'t [Described<'t>],
    pub(crate) counts: &'t [Described<'t>],
}

impl RowDescs<'_> {
    pub(crate) fn check(&self, c: &Checker) -> Result<Rows> {
        let (input_argument, desc) = self.input_ids;
        let input_ids = c.matrix(input_argument, desc)?;
        let batch = input_ids.rows;
        let rows = |(argument, desc): Described<'_>| {
            c.same_dtype(argument, desc, input_ids.dtype, input_argument)?;
            let cols = c.matrix(argument, desc)?.cols;
            c.matrix_of(argument, desc, [batch, cols])
        };
        let generated = rows(self.generated)?;
        let draft_tokens = rows(self.draft_tokens)?;
        let (first, desc) = self.lengths[0];
        let lengths = c.per_request(first, desc, batch)?.dtype;
        for &(argument, desc) in &self.lengths[1..] {
            c.same_dtype(argument, desc, lengths, first)?;
            c.per_request(argument, desc, batch)?;
        }
        for &(argument, desc) in self.counts {
            c.per_request(argument, desc, batch)?;
        }
        Ok(Rows { batch, input_ids, generated, draft_tokens, lengths })
    }
}

/// A parameter with its name.
pub(crate) type Named = (&'static str, usize);

/// Lengths of patterns that a search can have.
pub(crate) fn check_patterns(c: &Checker, min: Named, max: Named) -> Result<()> {
    c.param((1..=MAX_NGRAM).contains(&max.1), max.0, max.1, format!("1 to {MAX_NGRAM}"))?;
    let expected = format!("1 to {}, which is {}", max.0, max.1);
    c.param((1..=max.1).contains(&min.1), min.0, min.1, expected)
}

pub(crate) fn check_sizes(c: &Checker, min: usize, max: usize, threshold: i32) -> Result<()> {
    check_patterns(c, ("min_ngram_size", min), ("max_ngram_size", max))?;
    c.param(threshold >= 0, "token_threshold", threshold, "at least 0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_cut_to_their_rows() {
        let fine = Haystacks::new(10, 10, 8, 3, 4);
        assert_eq!(fine, Haystacks { prompt: 10, start: 3, step: 4, flags: 0 });
        let long = Haystacks::new(10, 11, 8, 3, 5);
        assert_eq!(long, Haystacks { prompt: 10, start: 3, step: 4, flags: BAD_LENGTHS });
        let wild = Haystacks::new(10, i64::MIN, 8, i64::MAX, -1);
        assert_eq!(wild, Haystacks { prompt: 0, start: 8, step: 0, flags: BAD_LENGTHS });
        assert_eq!(Haystacks::new(0, 0, 0, 0, 0).flags, 0);
    }

    #[test]
    fn grants_follow_the_threshold() {
        assert_eq!(granted(5, 0, 3, 100), 5);
        assert_eq!(granted(5, 0, 3, 6), 3);
        assert_eq!(granted(5, 0, 3, 5), 2);
        assert_eq!(granted(5, 0, 3, 4), 0);
        assert_eq!(granted(5, i64::MAX, 3, 4), 0);
    }
}
