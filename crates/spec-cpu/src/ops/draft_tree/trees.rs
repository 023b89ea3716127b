//! Writes the trees and their packed rows, one request after the other.

use spec_core::flags::BAD_LENGTHS;
use spec_core::ops::draft_tree::{Buffers, MAX_DRAFTS, Plan};
use spec_core::{DType, Result, ViewMut};

use super::{FINISHED, Record};
use crate::slices::{Int, Ints, Out, once, slice, slice_mut};

/// The outputs, and what they are made of.
pub(super) struct Trees<'a, T> {
    plan: &'a Plan,
    candidates: &'a [T],
    drafts: Out<'a, T>,
    num_drafts: &'a mut [i32],
    picked: Out<'a, i32>,
    draft_parents: Out<'a, i32>,
    first_child: Out<'a, i32>,
    next_sibling: Out<'a, i32>,
    depths: Out<'a, i32>,
    masks: Option<&'a mut [i32]>,
    survivals: Out<'a, f32>,
    rows: Rows<'a, T>,
}

/// The packed rows of the whole batch.
struct Rows<'a, T> {
    /// How many rows there are so far, also those that the outputs have no room for.
    count: usize,
    roots: Option<&'a [T]>,
    starts: Option<Ints<'a>>,
    offsets: Option<&'a mut [i32]>,
    nodes: Option<&'a mut [i32]>,
    requests: Option<&'a mut [i32]>,
    parents: Option<&'a mut [i32]>,
    tokens: Option<&'a mut [T]>,
    positions: Positions<'a>,
}

enum Positions<'a> {
    None,
    I32(&'a mut [i32]),
    I64(&'a mut [i64]),
}

impl<'a, T: Int> Trees<'a, T> {
    pub(super) fn new(plan: &'a Plan, candidates: &'a [T], b: Buffers<'a>) -> Result<Self> {
        let vector = |view: Option<ViewMut<'a>>| view.map(slice_mut::<i32>).transpose();
        let positions = match b.row_positions {
            None => Positions::None,
            Some(view) if plan.starts == Some(DType::I64) => Positions::I64(slice_mut(view)?),
            Some(view) => Positions::I32(slice_mut(view)?),
        };
        let rows = Rows {
            count: 0,
            roots: b.roots.map(slice::<T>).transpose()?,
            starts: b.starts.map(Ints::new).transpose()?,
            offsets: vector(b.row_offsets)?,
            nodes: vector(b.rows)?,
            requests: vector(b.row_requests)?,
            parents: vector(b.row_parents)?,
            tokens: b.row_tokens.map(slice_mut::<T>).transpose()?,
            positions,
        };
        Ok(Trees {
            plan,
            candidates,
            drafts: Out::new(Some(b.drafts), Some(plan.drafts))?,
            num_drafts: slice_mut::<i32>(b.num_drafts)?,
            picked: Out::new(b.picked, plan.picked)?,
            draft_parents: Out::new(b.draft_parents, plan.draft_parents)?,
            first_child: Out::new(b.first_child, plan.first_child)?,
            next_sibling: Out::new(b.next_sibling, plan.next_sibling)?,
            depths: Out::new(b.depths, plan.depths)?,
            masks: vector(b.masks)?,
            survivals: Out::new(b.survivals, plan.survivals)?,
            rows,
        })
    }

    /// Writes the tree of a request from the records of its drafts. `kept` is their number, or
    /// [`FINISHED`].
    pub(super) fn write(&mut self, request: usize, kept: i32, records: &[u64]) {
        let mut drafts = [Record::NONE; MAX_DRAFTS];
        let drafts = &mut drafts[..records.len()];
        for (draft, &record) in drafts.iter_mut().zip(records) {
            *draft = Record(record);
        }
        drafts.sort_unstable_by_key(|draft| draft.index());
        self.num_drafts[request] = drafts.len() as i32;
        self.clear(request);
        let (start, root) = (self.rows.begin(request), request * (self.plan.n() + 1));
        if kept == FINISHED {
            return;
        }
        self.rows.push(request, root, -1, self.rows.root(request), 0);
        // The last child of each node so far; 0 for a node without children.
        let mut youngest = [0; MAX_DRAFTS + 1];
        for (at, draft) in drafts.iter().enumerate() {
            let (node, index) = (at + 1, draft.index());
            // A parent comes before its children in the request's order, so it is a draft too.
            let parent = draft.parent().checked_sub(1).map_or(0, |above| {
                drafts.binary_search_by_key(&above, |draft| draft.index()).map_or(0, |at| at + 1)
            });
            let from = request * self.plan.candidates.row_stride + index;
            let token = once(&self.candidates[from]);
            self.drafts.set(request, at, token);
            self.picked.set(request, at, index as i32);
            self.draft_parents.set(request, at, parent as i32);
            self.depths.set(request, node, draft.depth() as i32);
            self.survivals.set(request, at, draft.survival());
            self.mask(request, node, parent);
            match std::mem::replace(&mut youngest[parent], node) {
                0 => self.first_child.set(request, parent, node as i32),
                elder => self.next_sibling.set(request, elder, node as i32),
            }
            let above = (start + parent) as i32;
            self.rows.push(request, root + node, above, token, draft.depth());
        }
    }

    /// Fills the outputs of a request with what stands behind its drafts, and writes its root.
    fn clear(&mut self, request: usize) {
        self.drafts.fill(request, T::of(-1));
        self.picked.fill(request, -1);
        self.draft_parents.fill(request, -1);
        self.first_child.fill(request, -1);
        self.next_sibling.fill(request, -1);
        self.depths.fill(request, -1);
        self.depths.set(request, 0, 0);
        self.survivals.fill(request, 0.0);
        if let (Some(data), Some(masks)) = (&mut self.masks, self.plan.masks) {
            for node in 0..=self.plan.n() {
                let at = request * masks.batch_stride + node * masks.row_stride;
                data[at..][..masks.words].fill(0);
            }
            data[request * masks.batch_stride] = 1;
        }
    }

    /// A node sees what its parent sees, and itself.
    fn mask(&mut self, request: usize, node: usize, parent: usize) {
        let (Some(data), Some(masks)) = (&mut self.masks, self.plan.masks) else { return };
        let start = |node: usize| request * masks.batch_stride + node * masks.row_stride;
        let above = start(parent);
        data.copy_within(above..above + masks.words, start(node));
        data[start(node) + node / 32] |= 1_i32 << (node % 32);
    }

    /// Fills what lies behind the rows. Returns flags.
    pub(super) fn finish(self) -> u32 {
        let mut rows = self.rows;
        let count = rows.count;
        if let Some(offsets) = &mut rows.offsets {
            offsets[self.plan.batch()] = count as i32;
        }
        let cap = self.plan.cap.unwrap_or(usize::MAX);
        let behind = count.min(cap);
        let vectors = [rows.nodes, rows.requests, rows.parents];
        vectors.into_iter().flatten().for_each(|vector| vector[behind..].fill(-1));
        if let Some(tokens) = rows.tokens {
            tokens[behind..].fill(T::of(-1));
        }
        match rows.positions {
            Positions::None => {}
            Positions::I32(positions) => positions[behind..].fill(-1),
            Positions::I64(positions) => positions[behind..].fill(-1),
        }
        if count > cap { BAD_LENGTHS } else { 0 }
    }
}

impl<T: Int> Rows<'_, T> {
    /// Notes where the rows of a request begin.
    fn begin(&mut self, request: usize) -> usize {
        if let Some(offsets) = &mut self.offsets {
            offsets[request] = self.count as i32;
        }
        self.count
    }

    fn root(&self, request: usize) -> T {
        self.roots.map_or(T::of(-1), |roots| once(&roots[request]))
    }

    /// Adds the row of a node, whose number counts all nodes of all requests.
    fn push(&mut self, request: usize, node: usize, parent: i32, token: T, depth: usize) {
        let at = self.count;
        self.count += 1;
        let set = |vector: &mut Option<&mut [i32]>, value: i32| {
            if let Some(to) = vector.as_mut().and_then(|vector| vector.get_mut(at)) {
                *to = value;
            }
        };
        set(&mut self.nodes, node as i32);
        set(&mut self.requests, request as i32);
        set(&mut self.parents, parent);
        if let Some(to) = self.tokens.as_mut().and_then(|tokens| tokens.get_mut(at)) {
            *to = token;
        }
        let start = self.starts.map_or(0, |starts| starts.get(request));
        let position = start.wrapping_add(depth as i64);
        match &mut self.positions {
            Positions::I32(all) if at < all.len() => all[at] = position as i32,
            Positions::I64(all) if at < all.len() => all[at] = position,
            _ => {}
        }
    }
}
