//! What the designs of `ngram_match` and `hybrid_mtp_ngram` share.

use spec_core::ngram::Rows;
use spec_core::{DType, Element, Result, View, ViewMut};

use crate::host::{ints, packed, raise, slice, slice_mut, tokens, unpack};
use crate::plain::ngram::{Requests, Sizes, draft};

/// The arguments of either operator; what it has not is absent.
pub(super) struct Arguments<'a> {
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
pub(super) fn run(rows: &Rows, sizes: Sizes, arguments: Arguments<'_>) -> Result<()> {
    match rows.draft_tokens.dtype {
        DType::I32 => run_on(rows, sizes, arguments, i64::from, |token| token as i32),
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
