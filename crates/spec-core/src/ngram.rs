//! The integer rules that `ngram_match` and `hybrid_mtp_ngram` share, and `prompt_lookup`
//! except for the token budget.
//!
//! Backends search in parallel, each in its own way. The rules here cut bad lengths to the rows
//! and share out the token budget; every backend must replay them exactly.

use crate::flags::BAD_LENGTHS;
use crate::{DType, Matrix, TensorDesc};

/// The longest pattern that a search may have, in tokens. The bound limits the work of a
/// search in repetitive text; patterns that draft well are far shorter.
pub const MAX_NGRAM: usize = 1024;

/// The haystacks of a request: the parts of its text that are searched, cut to its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Haystacks {
    /// The number of prompt tokens that are searched: `input_ids[.. prompt]`.
    pub prompt: usize,
    /// The index of the first generated token in its row.
    pub start: usize,
    /// The number of generated tokens that are searched: `generated[.. step]`, counted from
    /// `start`. The pattern ends with `generated[step]`.
    pub step: usize,
    /// [`BAD_LENGTHS`] if a length or the step was cut, else 0.
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

/// A length or count, which may be any number, as the nearest number in `0 ..= max`.
pub fn cut(value: i64, max: usize) -> usize {
    // `usize::MAX` stands for lengths that a 32-bit `usize` cannot hold.
    usize::try_from(value.max(0)).unwrap_or(usize::MAX).min(max)
}

/// How many tokens a request may draft: the smaller of `limit`, its own limit, and the number of
/// tokens that it may still generate after `step`.
pub fn draft_limit(limit: i64, max_dec_len: i64, step: usize) -> i64 {
    limit.min(max_dec_len.saturating_sub(step as i64 + 1))
}

/// How many tokens a request would draft without a token budget: the smallest of its `limit`, the
/// number of `candidates` behind the match, and the `room` in its row. The second value is
/// [`BAD_LENGTHS`] if the room is the smallest, else 0.
pub fn wanted(limit: i64, candidates: usize, room: usize) -> (usize, u32) {
    let wanted = cut(limit, candidates);
    if wanted > room { (room, BAD_LENGTHS) } else { (wanted, 0) }
}

/// How many of the `wanted` tokens a request may draft within the token budget `threshold`.
///
/// `wanted_before` is the sum of [`wanted`] over the requests before this one. `committed` is the
/// number of tokens, drafts not counted, of the requests up to and including this one, plus the
/// number of requests that follow. `committed` never decreases from one request to the next.
/// This is why a prefix sum over `wanted` gives the same result as the sequential loop, which
/// sums the tokens that were granted.
pub fn granted(wanted: usize, wanted_before: i64, committed: i64, threshold: i64) -> usize {
    let taken = wanted_before.saturating_add(committed);
    if taken >= threshold - 1 { 0 } else { wanted.min((threshold - taken) as usize) }
}

/// The validated tensors that `ngram_match` and `hybrid_mtp_ngram` have in common.
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    /// The number of requests.
    pub batch: usize,
    /// Prompts.
    pub input_ids: Matrix,
    /// Generated tokens: `token_ids_all` or `pre_ids`.
    pub generated: Matrix,
    /// Draft tokens, written in place.
    pub draft_tokens: Matrix,
    /// The dtype of lengths and steps.
    pub lengths: DType,
}

impl Rows {
    /// The rows of tensors that were checked, and the dtype of one of the lengths.
    pub(crate) fn new(
        input_ids: &TensorDesc,
        generated: &TensorDesc,
        draft_tokens: &TensorDesc,
        length: &TensorDesc,
    ) -> Self {
        let input_ids = input_ids.matrix();
        Rows {
            batch: input_ids.rows,
            input_ids,
            generated: generated.matrix(),
            draft_tokens: draft_tokens.matrix(),
            lengths: length.dtype(),
        }
    }
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
