//! The texts and the drafts of `prompt_lookup` and `suffix_lookup`.

use spec_core::flags::BAD_LENGTHS;
use spec_core::ngram::cut;
use spec_core::{DType, Matrix, Result, View, ViewMut};

use super::ngram::Token;
use crate::slices::{Int, Ints, Rows, slice_mut};

/// Texts in slots, and which slot each request has.
pub(super) struct Texts<'a, T> {
    slots: Matrix,
    rows: Rows<'a, T>,
    lengths: Ints<'a>,
    requests: Option<Ints<'a>>,
}

impl<'a, T: Token> Texts<'a, T> {
    /// `tokens` and `lengths` have a row for each slot, `slots` has the shape of `tokens`.
    pub(super) fn new(
        slots: Matrix,
        tokens: View<'a>,
        lengths: View<'a>,
        requests: Option<View<'a>>,
    ) -> Result<Self> {
        Ok(Texts {
            slots,
            rows: Rows::new(tokens, slots)?,
            lengths: Ints::new(lengths)?,
            requests: requests.map(Ints::new).transpose()?,
        })
    }

    /// The text of a request, and flags; `None` for padding and for a request that has no slot.
    pub(super) fn get(&self, request: usize) -> (Option<&'a [T]>, u32) {
        let given = self.requests.as_ref().map_or(request as i64, |rows| rows.get(request));
        let slot = usize::try_from(given).ok().filter(|slot| *slot < self.slots.rows);
        let Some(slot) = slot else { return (None, if given == -1 { 0 } else { BAD_LENGTHS }) };
        let given = self.lengths.get(slot);
        let length = cut(given, self.slots.cols);
        let bits = if length as i64 == given { 0 } else { BAD_LENGTHS };
        (Some(&self.rows.row(slot)[..length]), bits)
    }

    /// The text of a request; empty for padding and for a request that has no slot.
    pub(super) fn text(&self, request: usize) -> &'a [T] {
        self.get(request).0.unwrap_or_default()
    }
}

/// The largest number of drafts of each request.
pub(super) struct Limits<'a> {
    of_all: usize,
    own: Option<Ints<'a>>,
}

impl<'a> Limits<'a> {
    /// At most `of_all` drafts, and at most as many as `max_drafts` says, if it is given.
    pub(super) fn new(of_all: usize, max_drafts: Option<View<'a>>) -> Result<Self> {
        Ok(Limits { of_all, own: max_drafts.map(Ints::new).transpose()? })
    }

    /// The limit of a request.
    pub(super) fn get(&self, request: usize) -> usize {
        self.own.as_ref().map_or(self.of_all, |own| cut(own.get(request), self.of_all))
    }
}

/// Rows of drafts: of the type of the texts' tokens, or wider.
pub(super) struct Drafts<'a, T> {
    rows: Matrix,
    data: Data<'a, T>,
    pad_with_last: bool,
}

enum Data<'a, T> {
    Same(&'a mut [T]),
    Wide(&'a mut [i64]),
}

impl<'a, T: Token + Int> Drafts<'a, T> {
    /// With `pad_with_last`, the last token of a text stands behind its drafts, instead of -1.
    pub(super) fn new(rows: Matrix, view: ViewMut<'a>, pad_with_last: bool) -> Result<Self> {
        let data = match rows.dtype {
            DType::I64 if size_of::<T>() < 8 => Data::Wide(slice_mut(view)?),
            _ => Data::Same(slice_mut(view)?),
        };
        Ok(Drafts { rows, data, pad_with_last })
    }

    /// Writes the row of a request: its drafts, at most as many as there are columns, and what
    /// stands behind them.
    pub(super) fn write(
        &mut self,
        request: usize,
        text: &[T],
        drafts: impl ExactSizeIterator<Item = T>,
    ) {
        let padding = text.last().copied().filter(|_| self.pad_with_last).unwrap_or(T::NONE);
        let (start, count) = (request * self.rows.row_stride, drafts.len());
        let row = start..start + self.rows.cols;
        match &mut self.data {
            Data::Same(data) => {
                let (own, behind) = data[row].split_at_mut(count);
                own.iter_mut().zip(drafts).for_each(|(to, token)| *to = token);
                behind.fill(padding);
            }
            Data::Wide(data) => {
                let (own, behind) = data[row].split_at_mut(count);
                own.iter_mut().zip(drafts).for_each(|(to, token)| *to = token.wide());
                behind.fill(padding.wide());
            }
        }
    }
}
