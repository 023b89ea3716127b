//! How many drafts of each request a budget keeps.
//!
//! Every draft has a key, and drafts with larger keys are served first. The keys of a request descend
//! with the rank, so the drafts of a request that reach a key are a prefix of its order. A search,
//! bit by bit, finds the key of the last draft that the budget keeps; requests that have drafts with
//! this key are served in their order.

use super::Record;

/// Words of the workspace that a request needs.
pub(super) const WORDS: usize = 3;

/// The bits of a key. The largest keys belong to drafts that come before all others.
const KEY_BITS: u32 = 40;

/// The candidates of all requests, in the order of each request.
pub(super) struct Budget<'a> {
    pub(super) records: &'a [u64],
    /// Records of a request.
    pub(super) n: usize,
    pub(super) min_drafts: usize,
}

impl Budget<'_> {
    /// A draft's key: by its rank where it is one of the first `min_drafts`, else by its survival and
    /// depth.
    fn key(&self, request: usize, rank: usize) -> u64 {
        if rank < self.min_drafts {
            return (1 << KEY_BITS) - 1 - rank as u64;
        }
        Record(self.records[request * self.n + rank]).order()
    }

    /// How many drafts of a request have a key of at least `key`, where this is in `low ..= high`.
    fn reaching(&self, key: u64, request: usize, mut low: u32, mut high: u32) -> u32 {
        while low < high {
            let middle = low.midpoint(high);
            if self.key(request, middle as usize) >= key {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// Cuts `kept`, the number of drafts that each request has, so that their sum is at most
    /// `budget`. Numbers below 0 stand for requests that take no part.
    pub(super) fn share(&self, budget: u64, kept: &mut [i32], bounds: &mut [u32]) {
        let mut total: u64 = kept.iter().map(|&kept| kept.max(0) as u64).sum();
        if total <= budget {
            return;
        }
        let bounds = bounds.as_chunks_mut::<WORDS>().0;
        for ([low, _, high], kept) in bounds.iter_mut().zip(&*kept) {
            (*low, *high) = (0, (*kept).max(0) as u32);
        }
        // Of each request, `high` drafts reach `key`, and `low` reach a key that too few reach in
        // all.
        let mut key = 0;
        for bit in (0..KEY_BITS).rev() {
            let larger = key | 1 << bit;
            let mut reaching = 0;
            for (request, [low, middle, high]) in bounds.iter_mut().enumerate() {
                *middle = self.reaching(larger, request, *low, *high);
                reaching += u64::from(*middle);
            }
            let is_reached = reaching >= budget;
            if is_reached {
                (key, total) = (larger, reaching);
            }
            for [low, middle, high] in &mut *bounds {
                *if is_reached { &mut *high } else { low } = *middle;
            }
            if total == budget {
                break;
            }
        }
        // Drafts with this key are too many where `total` is above the budget: the requests that come
        // last lose theirs.
        let mut excess = total - budget;
        for (kept, [low, _, high]) in kept.iter_mut().zip(&*bounds).rev() {
            if *kept < 0 {
                continue;
            }
            let lost = excess.min(u64::from(high - low));
            excess -= lost;
            *kept = *high as i32 - lost as i32;
        }
    }
}
