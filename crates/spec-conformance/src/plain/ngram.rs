//! The loop that `ngram_match` and `hybrid_mtp_ngram` share: the sequential loop of FastDeploy's
//! CPU operator: one request after the other, each search repeated for every
//! pattern length.

use std::borrow::Cow;

use spec_core::flags::BAD_LENGTHS;
use spec_core::ngram::Rows;
use spec_core::{DType, Element, Operator, Result, View, ViewMut};

use crate::host::{ints, packed, raise, slice, slice_mut, tokens, unpack};

/// The arguments of either operator. Arguments that only the other one has are `None`.
#[allow(missing_docs, reason = "named as in the operators")]
#[derive(Debug)]
pub struct Arguments<'a> {
    pub input_ids: View<'a>,
    pub input_ids_len: View<'a>,
    pub generated: View<'a>,
    pub starts: Option<View<'a>>,
    pub steps: View<'a>,
    pub max_dec_len: View<'a>,
    pub draft_token_num: Option<View<'a>>,
    pub draft_tokens: ViewMut<'a>,
    pub this_time: ViewMut<'a>,
    pub encoder: Option<View<'a>>,
    pub decoder: View<'a>,
    pub flags: Option<ViewMut<'a>>,
}

/// The plain loop on host memory.
///
/// # Errors
/// Status 1 for views that are not host memory.
pub fn run(rows: &Rows, sizes: Sizes, arguments: Arguments<'_>) -> Result<()> {
    match rows.draft_tokens.dtype {
        DType::I32 => run_on(rows, sizes, arguments, i64::from, |token| token as i32),
        DType::U32 => {
            let signed = |token: u32| i64::from(token.cast_signed());
            run_on(rows, sizes, arguments, signed, |token| token as u32)
        }
        _ => run_on(rows, sizes, arguments, |token| token, |token| token),
    }
}

fn run_on<T: Element>(
    rows: &Rows,
    sizes: Sizes,
    arguments: Arguments<'_>,
    wide: impl Fn(T) -> i64,
    narrow: impl Fn(i64) -> T,
) -> Result<()> {
    let drafts = slice_mut::<T>(arguments.draft_tokens)?;
    let this_time = slice_mut::<i32>(arguments.this_time)?;
    let lengths = |view: Option<View<'_>>| -> Result<Vec<i64>> {
        view.map_or_else(|| Ok(vec![0; rows.batch]), |view| Ok(ints(view)?.into_owned()))
    };
    let counts = |view: Option<View<'_>>| -> Result<Vec<i32>> {
        view.map_or_else(|| Ok(vec![0; rows.batch]), |view| Ok(slice(view)?.to_vec()))
    };
    let before = packed(drafts, &rows.draft_tokens);
    let mut requests = Requests {
        input_cols: rows.input_ids.cols,
        input_ids: tokens(arguments.input_ids, &rows.input_ids)?,
        input_ids_len: lengths(Some(arguments.input_ids_len))?,
        generated_cols: rows.generated.cols,
        generated: tokens(arguments.generated, &rows.generated)?,
        prompt_lens: lengths(arguments.starts)?,
        step_idx: lengths(Some(arguments.steps))?,
        max_dec_len: lengths(Some(arguments.max_dec_len))?,
        draft_cols: rows.draft_tokens.cols,
        draft_tokens: before.iter().map(|&token| wide(token)).collect(),
        draft_token_num: counts(arguments.draft_token_num)?,
        this_time: this_time.to_vec(),
        encoder: counts(arguments.encoder)?,
        decoder: counts(Some(arguments.decoder))?,
    };
    let flags = draft(&mut requests, sizes);
    let after: Vec<T> = requests.draft_tokens.into_iter().map(narrow).collect();
    unpack(drafts, &rows.draft_tokens, &after);
    this_time.copy_from_slice(&requests.this_time);
    raise(arguments.flags, flags)
}

/// An operator whose arguments are [`Arguments`].
pub trait Drafts: Operator {
    /// The token rows.
    fn rows(plan: &Self::Plan) -> &Rows;
    /// The parameters that limit patterns and drafts.
    fn sizes(plan: &Self::Plan) -> Sizes;
    /// The arguments, under the names that both operators share.
    fn arguments(buffers: Self::Buffers<'_>) -> Arguments<'_>;
}

/// The data that both operators read and change, packed, with one element or row for each request.
#[derive(Clone, Debug, PartialEq)]
pub struct Requests<'a> {
    /// The number of tokens in a row of `input_ids`.
    pub input_cols: usize,
    /// Prompts `[batch, input_cols]`.
    pub input_ids: Cow<'a, [i64]>,
    /// The number of tokens in each prompt.
    pub input_ids_len: Vec<i64>,
    /// The number of tokens in a row of `generated`.
    pub generated_cols: usize,
    /// `token_ids_all` or `pre_ids` `[batch, generated_cols]`.
    pub generated: Cow<'a, [i64]>,
    /// Where generated tokens start. Zeros for `hybrid_mtp_ngram`.
    pub prompt_lens: Vec<i64>,
    /// The index of the last generated token, counted from `prompt_lens`.
    pub step_idx: Vec<i64>,
    /// The largest number of tokens to generate.
    pub max_dec_len: Vec<i64>,
    /// The number of tokens in a row of `draft_tokens`.
    pub draft_cols: usize,
    /// Draft tokens `[batch, draft_cols]`, changed in place.
    pub draft_tokens: Vec<i64>,
    /// The largest number of drafts. Unused by `hybrid_mtp_ngram`.
    pub draft_token_num: Vec<i32>,
    /// `seq_lens_this_time`, changed in place.
    pub this_time: Vec<i32>,
    /// `seq_lens_encoder`. Unused by `hybrid_mtp_ngram`.
    pub encoder: Vec<i32>,
    /// `seq_lens_decoder`.
    pub decoder: Vec<i32>,
}

/// The parameters that limit patterns and drafts.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// The longest pattern.
    pub max_ngram: usize,
    /// The shortest pattern.
    pub min_ngram: usize,
    /// The largest number of drafts of a request, those of the head included; `None` for
    /// `ngram_match`.
    pub max_draft_tokens: Option<usize>,
    /// The token budget.
    pub threshold: i64,
}

struct Cut<'a> {
    prompt: &'a [i64],
    generated: &'a [i64],
    step: usize,
}

/// Runs the loop, which changes `draft_tokens` and `this_time`. Returns flags.
pub fn draft(r: &mut Requests<'_>, sizes: Sizes) -> u32 {
    let mut flags = 0;
    let hybrid = sizes.max_draft_tokens.is_some();
    let mut left = (0..r.decoder.len())
        .filter(|&b| r.decoder[b] > 0 || (!hybrid && r.encoder[b] > 0))
        .count() as i64;
    let mut used = 0i64;
    for b in 0..r.this_time.len() {
        let encoder = if hybrid { 0 } else { r.encoder[b] };
        if encoder < 0 || r.decoder[b] < 0 || r.this_time[b] < 0 {
            flags |= BAD_LENGTHS;
        }
        let (limit, slot) = match sizes.max_draft_tokens {
            Some(max) => {
                let have = r.this_time[b];
                used += i64::from(have.max(0));
                if have <= 0 {
                    continue;
                }
                (max as i64 - i64::from(have) + 1, have as usize)
            }
            None if r.encoder[b] > 0 => {
                used += i64::from(r.this_time[b].max(0));
                continue;
            }
            None if r.decoder[b] <= 0 => {
                r.this_time[b] = 0;
                continue;
            }
            None => {
                r.this_time[b] = 1;
                used += 1;
                (i64::from(r.draft_token_num[b]), 1)
            }
        };
        let cut = cut(r, b, &mut flags);
        let limit = limit.min(r.max_dec_len[b].saturating_sub(cut.step as i64 + 1));
        if hybrid && limit <= 0 {
            continue;
        }
        left -= 1;
        let candidates = search(&cut, sizes).to_vec();
        let mut count = limit.clamp(0, candidates.len() as i64);
        let room = r.draft_cols.saturating_sub(slot) as i64;
        if count > room {
            flags |= BAD_LENGTHS;
            count = room;
        }
        if used + left >= sizes.threshold - 1 {
            continue;
        }
        let count = count.min(sizes.threshold - used - left) as usize;
        let at = b * r.draft_cols + slot;
        if count > 0 {
            r.draft_tokens[at..at + count].copy_from_slice(&candidates[..count]);
        }
        r.this_time[b] += count as i32;
        used += count as i64;
    }
    flags
}

fn cut<'a>(r: &'a Requests<'_>, b: usize, flags: &mut u32) -> Cut<'a> {
    let mut clamp = |value: i64, max: usize| {
        let fits = value.clamp(0, max as i64);
        *flags |= if fits == value { 0 } else { BAD_LENGTHS };
        fits as usize
    };
    let prompt_len = clamp(r.input_ids_len[b], r.input_cols);
    let start = clamp(r.prompt_lens[b], r.generated_cols);
    let step = clamp(r.step_idx[b], (r.generated_cols - start).saturating_sub(1));
    Cut {
        prompt: &r.input_ids[b * r.input_cols..][..prompt_len],
        generated: &r.generated[b * r.generated_cols + start..(b + 1) * r.generated_cols],
        step,
    }
}

fn search<'a>(cut: &Cut<'a>, sizes: Sizes) -> &'a [i64] {
    for n in (sizes.min_ngram..=sizes.max_ngram).rev().filter(|&n| cut.step >= n) {
        let pattern = &cut.generated[cut.step + 1 - n..=cut.step];
        for haystack in [cut.prompt, &cut.generated[..cut.step]] {
            for start in 0..haystack.len().saturating_sub(n) {
                if haystack[start..start + n] == *pattern {
                    return &haystack[start + n..];
                }
            }
        }
    }
    &[]
}
