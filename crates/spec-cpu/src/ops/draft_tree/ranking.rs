//! The candidates of one request in the request's order.

use std::cmp::Reverse;

use spec_core::flags::{BAD_LENGTHS, NON_FINITE};
use spec_core::ops::draft_tree::{
    MAX_CANDIDATES, MAX_DRAFTS, Plan, cut_probability, survival_product,
};

use super::{FINISHED, Record};
use crate::slices::{Int, Ints, once};

/// What says which candidates there are.
pub(super) struct Inputs<'a, T> {
    pub(super) plan: &'a Plan,
    pub(super) candidates: &'a [T],
    pub(super) parents: Option<Ints<'a>>,
    pub(super) shares: Option<&'a [f32]>,
    pub(super) counts: Option<Ints<'a>>,
    pub(super) trust: Option<&'a [f32]>,
    pub(super) finished: Option<&'a [i32]>,
}

/// Memory of a thread for the candidates of one request, on its stack: a call allocates nothing.
pub(super) struct Scratch {
    records: [Record; MAX_CANDIDATES],
    /// Powers of the request's trust.
    powers: [f32; MAX_DRAFTS + 1],
}

impl Scratch {
    pub(super) fn new() -> Self {
        Scratch { records: [Record::NONE; MAX_CANDIDATES], powers: [1.0; MAX_DRAFTS + 1] }
    }
}

/// A share or a trust as it counts.
fn probability(value: f32, bits: &mut u32) -> f32 {
    if !value.is_finite() {
        *bits |= NON_FINITE;
    }
    cut_probability(value)
}

impl<T: Int> Inputs<'_, T> {
    /// Writes the first candidates of the request's order, as many as `records` holds. Returns how
    /// many of these may become drafts, or [`FINISHED`].
    pub(super) fn rank(
        &self,
        request: usize,
        scratch: &mut Scratch,
        records: &mut [u64],
        bits: &mut u32,
    ) -> i32 {
        if self.finished.is_some_and(|finished| once(&finished[request]) != 0) {
            return FINISHED;
        }
        let trust = self.trust.map_or(1.0, |trust| probability(once(&trust[request]), bits));
        if self.plan.params.cumulative {
            for depth in 1..=self.plan.n() {
                scratch.powers[depth] = survival_product(scratch.powers[depth - 1], trust);
            }
        }
        let count = self.count(request, bits);
        let mut found = 0;
        for index in 0..count {
            scratch.records[index] = self.record(request, index, trust, scratch, bits);
            found += usize::from(!scratch.records[index].is_none());
        }
        let all = &mut scratch.records[..count];
        let offered = found.min(records.len());
        let order = |record: &Record| Reverse(record.0);
        if offered == 0 {
            return 0;
        }
        // Those that are none come last.
        if offered < count {
            all.select_nth_unstable_by_key(offered - 1, order);
        }
        let all = &mut all[..offered];
        all.sort_unstable_by_key(order);
        for (to, record) in records.iter_mut().zip(&*all) {
            *to = record.0;
        }
        let params = &self.plan.params;
        let likely = all.partition_point(|record| record.survival() >= params.min_survival);
        likely.max(offered.min(params.min_drafts)) as i32
    }

    fn count(&self, request: usize, bits: &mut u32) -> usize {
        let columns = self.plan.c();
        let Some(counts) = &self.counts else { return columns };
        let given = counts.get(request);
        let count = given.clamp(0, columns as i64);
        if count != given {
            *bits |= BAD_LENGTHS;
        }
        count as usize
    }

    /// A candidate whose parent, which comes before the candidate, is in `scratch`. A candidate that
    /// is deeper than drafts can be is none.
    fn record(
        &self,
        request: usize,
        index: usize,
        trust: f32,
        scratch: &Scratch,
        bits: &mut u32,
    ) -> Record {
        let plan = self.plan;
        let token = once(&self.candidates[request * plan.candidates.row_stride + index]);
        if token.wide() < 0 {
            return Record::NONE;
        }
        let share = match (self.shares, plan.shares) {
            (Some(shares), Some(rows)) => {
                probability(once(&shares[request * rows.row_stride + index]), bits)
            }
            _ => 1.0,
        };
        let parent = match (&self.parents, plan.parents) {
            (Some(parents), Some(rows)) => parents.get(request * rows.row_stride + index),
            _ => index as i64,
        };
        let Some(parent) = usize::try_from(parent).ok().filter(|&parent| parent <= index) else {
            *bits |= BAD_LENGTHS;
            return Record::NONE;
        };
        let (above, depth) = match parent.checked_sub(1).map(|at| scratch.records[at]) {
            None => (1.0, 1),
            Some(record) if record.is_none() => return Record::NONE,
            Some(record) => (record.survival(), record.depth() + 1),
        };
        if depth > plan.n() {
            return Record::NONE;
        }
        let survival = match plan.params.cumulative {
            true => survival_product(share, scratch.powers[depth]).min(above),
            false => survival_product(survival_product(above, share), trust),
        };
        Record::new(survival, depth, index, parent)
    }
}
