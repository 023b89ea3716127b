//! `draft_tree` on the CPU, in three steps: requests in parallel rank their candidates and note the
//! first `n` in the workspace; a search finds how many of these the budget keeps; the calling thread
//! writes the trees and the packed rows.

mod budget;
mod ranking;
mod trees;

use std::sync::atomic::{AtomicU32, Ordering};

use rayon::prelude::*;
use spec_core::flags::BAD_LENGTHS;
use spec_core::ops::DraftTree;
use spec_core::ops::draft_tree::{Buffers, MAX_CANDIDATES, Plan};
use spec_core::{Kernel, Result, Route, Supports, ViewMut};

use super::{by_int, kernel};
use crate::Cpu;
use crate::slices::{Int, Ints, Workspace, once, raise, slice, workspace_size};
use budget::Budget;
use ranking::{Inputs, Scratch};
use trees::Trees;

/// The smallest number of candidates of a parallel task; smaller tasks cost more than they gain.
const MIN_CANDIDATES: usize = 2048;
/// What is noted as the number of drafts of a request that has finished.
const FINISHED: i32 = -1;

// SAFETY: `launch` works on checked slices of the workspace and the buffers.
unsafe impl Supports<DraftTree> for Cpu {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<DraftTree>>> {
        let per_request = [plan.n().saturating_mul(8), size_of::<i32>(), budget::WORDS * 4];
        let size = workspace_size(&per_request.map(|bytes| plan.batch().saturating_mul(bytes)));
        // SAFETY: as for the `impl`.
        Ok(unsafe { kernel::<DraftTree, _>(plan.clone(), size, launch, loops) })
    }
}

fn loops(plan: &Plan, route: &mut Route) {
    let min = min_requests(plan);
    route.push("draft_tree", format_args!("{} requests, at least {min} a task", plan.batch()));
}

fn min_requests(plan: &Plan) -> usize {
    MIN_CANDIDATES.div_ceil(plan.c().max(1))
}

/// A candidate as an integer: the bits of its survival, its depth and its index, so that a larger
/// integer comes earlier in the request's order; then its parent. 0 stands for no candidate.
#[derive(Clone, Copy)]
struct Record(u64);

impl Record {
    const NONE: Record = Record(0);
    const PARENT_BITS: u32 = 13;
    const INDEX_BITS: u32 = 12;
    const DEPTH_BITS: u32 = 9;
    const MAX_DEPTH: u64 = (1 << Self::DEPTH_BITS) - 1;

    fn new(survival: f32, depth: usize, index: usize, parent: usize) -> Self {
        // The bits of 1, the largest survival, are below 2^30.
        let order = u64::from(survival.to_bits()) << Self::DEPTH_BITS;
        let order = order | (Self::MAX_DEPTH - depth as u64);
        let order = order << Self::INDEX_BITS | (MAX_CANDIDATES - 1 - index) as u64;
        Record(order << Self::PARENT_BITS | parent as u64)
    }

    fn is_none(self) -> bool {
        self.0 == 0
    }

    /// The order of candidates of different requests: survival, then depth. Below 2^39.
    fn order(self) -> u64 {
        self.0 >> (Self::PARENT_BITS + Self::INDEX_BITS)
    }

    fn survival(self) -> f32 {
        f32::from_bits((self.order() >> Self::DEPTH_BITS) as u32)
    }

    fn depth(self) -> usize {
        (Self::MAX_DEPTH - (self.order() & Self::MAX_DEPTH)) as usize
    }

    fn index(self) -> usize {
        let index = self.0 >> Self::PARENT_BITS & ((1 << Self::INDEX_BITS) - 1);
        MAX_CANDIDATES - 1 - index as usize
    }

    fn parent(self) -> usize {
        (self.0 & ((1 << Self::PARENT_BITS) - 1)) as usize
    }
}

fn launch(plan: &Plan, workspace: ViewMut<'_>, buffers: Buffers<'_>) -> Result<()> {
    by_int!(plan.candidates.dtype, run(plan, workspace, buffers))
}

fn run<T: Int>(plan: &Plan, workspace: ViewMut<'_>, mut buffers: Buffers<'_>) -> Result<()> {
    let (batch, n) = (plan.batch(), plan.n());
    let mut workspace = Workspace::new(workspace)?;
    let records = workspace.take::<u64>(batch * n)?;
    let kept = workspace.take::<i32>(batch)?;
    let bounds = workspace.take::<u32>(batch * budget::WORDS)?;
    let candidates = slice::<T>(buffers.candidates)?;
    let inputs = Inputs {
        plan,
        candidates,
        parents: buffers.parents.map(Ints::new).transpose()?,
        shares: buffers.shares.map(slice::<f32>).transpose()?,
        counts: buffers.counts.map(Ints::new).transpose()?,
        trust: buffers.trust.map(slice::<f32>).transpose()?,
        finished: buffers.finished.map(slice::<i32>).transpose()?,
    };
    let bits = AtomicU32::new(0);
    let rank = |scratch: &mut Scratch, request: usize, kept: &mut i32, records: &mut [u64]| {
        let mut raised = 0;
        *kept = inputs.rank(request, scratch, records, &mut raised);
        if raised != 0 {
            bits.fetch_or(raised, Ordering::Relaxed);
        }
    };
    if n == 0 {
        let mut scratch = Scratch::new();
        for (request, kept) in kept.iter_mut().enumerate() {
            rank(&mut scratch, request, kept, &mut []);
        }
    } else {
        let requests = kept.par_iter_mut().zip(records.par_chunks_mut(n)).enumerate();
        requests.with_min_len(min_requests(plan)).for_each_init(
            Scratch::new,
            |scratch, (request, (kept, records))| {
                rank(scratch, request, kept, records);
            },
        );
    }
    let mut bits = bits.into_inner();
    if let Some(budget) = buffers.budget {
        let budget = once(&slice::<i32>(budget)?[0]);
        bits |= if budget < 0 { BAD_LENGTHS } else { 0 };
        let ranked = Budget { records, n, min_drafts: plan.min_drafts() };
        ranked.share(budget.max(0) as u64, kept, bounds);
    }
    let flags = buffers.flags.take();
    let mut trees = Trees::new(plan, candidates, buffers)?;
    for (request, &kept) in kept.iter().enumerate() {
        trees.write(request, kept, &records[request * n..][..kept.max(0) as usize]);
    }
    bits |= trees.finish();
    raise(flags, bits)
}
