//! `append_tokens`: one token after the other.

use spec_core::flags::{BAD_LENGTHS, OUT_OF_RANGE};
use spec_core::ops::append_tokens::{AT_LENGTH, Buffers, Plan, RUNNING, STOPPED};
use spec_core::{DType, Element, Result};

use crate::host::{ints, raise, slice_mut, tokens};

/// Goes through the requests one by one.
pub(crate) fn run(plan: &Plan, buffers: Buffers<'_>) -> Result<()> {
    match plan.tokens.dtype {
        DType::I32 => by_lengths(plan, buffers, |token| token),
        DType::U32 => by_lengths(plan, buffers, |token| token as u32),
        _ => by_lengths(plan, buffers, i64::from),
    }
}

fn by_lengths<T: Element>(
    plan: &Plan,
    buffers: Buffers<'_>,
    token: impl Fn(i32) -> T,
) -> Result<()> {
    match plan.lengths {
        DType::I32 => append(plan, buffers, token, |length: i32| length.into(), |n| n as i32),
        _ => append(plan, buffers, token, |length: i64| length, |n| n),
    }
}

fn append<T: Element, L: Element>(
    plan: &Plan,
    buffers: Buffers<'_>,
    token: impl Fn(i32) -> T,
    wide: impl Fn(L) -> i64,
    narrow: impl Fn(i64) -> L,
) -> Result<()> {
    let (texts, lengths) = (slice_mut::<T>(buffers.tokens)?, slice_mut::<L>(buffers.lengths)?);
    let new_tokens = tokens(buffers.new_tokens, &plan.new_tokens)?;
    let new_counts = ints(buffers.new_counts)?;
    let stops = match (buffers.stop_tokens, &plan.stop_tokens) {
        (Some(view), Some(matrix)) => Some((tokens(view, matrix)?, matrix.cols)),
        _ => None,
    };
    let max_lengths = buffers.max_lengths.map(ints).transpose()?;
    let mut finished = buffers.finished.map(slice_mut::<i32>).transpose()?;
    let mut last_tokens = buffers.last_tokens.map(slice_mut::<T>).transpose()?;
    let appended = slice_mut::<i32>(buffers.appended)?;
    let mut flags = 0;
    let mut cut = |value: i64, max: usize| {
        let within = value.clamp(0, max as i64);
        flags |= if within == value { 0 } else { BAD_LENGTHS };
        within
    };
    let mut bad_token = false;
    for request in 0..plan.batch() {
        let text = &mut texts[request * plan.tokens.row_stride..][..plan.tokens.cols];
        let start = cut(wide(lengths[request]), text.len());
        let mut length = start;
        let state = finished.as_ref().map_or(RUNNING, |finished| finished[request]);
        if state == RUNNING {
            let n = plan.new_tokens.cols;
            let count = cut(new_counts[request], n) as usize;
            let max = max_lengths.as_ref().map_or(i64::MAX, |lengths| lengths[request]);
            let max = max.min(text.len() as i64);
            let mut stopped = false;
            for &new in &new_tokens[request * n..][..count] {
                if stopped || length >= max {
                    break;
                }
                let Some(new) = i32::try_from(new).ok().filter(|&new| new >= 0) else {
                    bad_token = true;
                    break;
                };
                text[length as usize] = token(new);
                length += 1;
                stopped = stops.as_ref().is_some_and(|(stops, cols)| {
                    stops[request * cols..][..*cols].contains(&i64::from(new))
                });
            }
            if let Some(finished) = &mut finished {
                finished[request] = match (stopped, length >= max) {
                    (true, _) => STOPPED,
                    (false, true) => AT_LENGTH,
                    (false, false) => RUNNING,
                };
            }
        }
        lengths[request] = narrow(length);
        appended[request] = (length - start) as i32;
        if let Some(last_tokens) = &mut last_tokens {
            let last = length.checked_sub(1).and_then(|last| text.get(last as usize));
            last_tokens[request] = last.copied().unwrap_or(token(-1));
        }
    }
    raise(buffers.flags, flags | if bad_token { OUT_OF_RANGE } else { 0 })
}
