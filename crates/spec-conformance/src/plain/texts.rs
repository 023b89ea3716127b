//! The texts of the requests of `prompt_lookup` and `suffix_lookup`, and the limits of their drafts.

use spec_core::flags::BAD_LENGTHS;
use spec_core::{Matrix, Result, View};

use crate::host::{ints, tokens};

/// The text of each request, empty for padding and for a request that has no row; and flags.
pub(super) fn of_requests(
    tokens_and_lengths: (View<'_>, View<'_>),
    matrix: &Matrix,
    requests: Option<View<'_>>,
) -> Result<(Vec<Vec<i64>>, u32)> {
    let (all, lengths) = (tokens(tokens_and_lengths.0, matrix)?, ints(tokens_and_lengths.1)?);
    let rows: Vec<i64> = match requests {
        Some(requests) => ints(requests)?.into_owned(),
        None => (0..matrix.rows as i64).collect(),
    };
    let mut flags = 0;
    let mut text = |row: i64| {
        let Some(row) = usize::try_from(row).ok().filter(|row| *row < matrix.rows) else {
            flags |= if row == -1 { 0 } else { BAD_LENGTHS };
            return Vec::new();
        };
        let length = lengths[row].clamp(0, matrix.cols as i64);
        flags |= if length == lengths[row] { 0 } else { BAD_LENGTHS };
        all[row * matrix.cols..][..length as usize].to_vec()
    };
    let texts = rows.into_iter().map(&mut text).collect();
    Ok((texts, flags))
}

/// The largest number of drafts of each of `batch` requests.
pub(super) fn limits(max_drafts: Option<View<'_>>, batch: usize, max: usize) -> Result<Vec<usize>> {
    let Some(limits) = max_drafts else { return Ok(vec![max; batch]) };
    Ok(ints(limits)?.iter().map(|&limit| limit.clamp(0, max as i64) as usize).collect())
}

/// The token behind the drafts of a text.
pub(super) fn padding(text: &[i64], with_last: bool) -> i64 {
    text.last().copied().filter(|_| with_last).unwrap_or(-1)
}
