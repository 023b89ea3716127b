//! Trees of drafts on the CPU: requests in parallel. Each tree is walked from its root.

use std::sync::atomic::{AtomicU32, Ordering};

use rayon::prelude::*;
use spec_core::ngram::cut;
use spec_core::ops::TreeVerify;
use spec_core::ops::tree_verify::{Buffers, Nodes, Plan};
use spec_core::{Kernel, Result, Route, Supports, ViewMut, flags};

use super::{by_int, kernel};
use crate::Cpu;
use crate::slices::{Int, Ints, raise, rows_mut, slice_mut};

/// The smallest number of requests of a parallel task; smaller tasks cost more than they gain.
const MIN_REQUESTS: usize = 64;

// SAFETY: `launch` works on checked slices of the workspace and the buffers.
unsafe impl Supports<TreeVerify> for Cpu {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<TreeVerify>>> {
        // SAFETY: as for the `impl`.
        Ok(unsafe { kernel::<TreeVerify, _>(plan.clone(), 0, launch, loops) })
    }
}

fn loops(plan: &Plan, route: &mut Route) {
    let words = format!("{} requests, at least {MIN_REQUESTS} a task", plan.tokens.rows);
    route.push("tree_verify", words);
}

fn launch(plan: &Plan, _: ViewMut<'_>, buffers: Buffers<'_>) -> Result<()> {
    by_int!(plan.tokens.dtype, by_path(plan, buffers))
}

fn by_path<T: Int>(plan: &Plan, buffers: Buffers<'_>) -> Result<()> {
    by_int!(plan.nodes.dtype, run::<T>(plan, buffers))
}

fn run<T: Int, N: Int>(plan: &Plan, buffers: Buffers<'_>) -> Result<()> {
    let links = match (buffers.first_child, buffers.next_sibling) {
        (Some(first), Some(next)) => Some([Ints::new(first)?, Ints::new(next)?]),
        _ => None,
    };
    let trees = Trees {
        plan,
        draft: Ints::new(buffers.draft_tokens)?,
        target: Ints::new(buffers.target_tokens)?,
        links,
        row_offsets: buffers.row_offsets.map(Ints::new).transpose()?,
    };
    let tokens = slice_mut::<T>(buffers.tokens)?;
    let nodes = slice_mut::<N>(buffers.nodes)?;
    let num_tokens = slice_mut::<i32>(buffers.num_tokens)?;
    let bits = AtomicU32::new(0);
    rows_mut(tokens, plan.tokens)
        .zip(rows_mut(nodes, plan.nodes))
        .zip(num_tokens)
        .enumerate()
        .with_min_len(MIN_REQUESTS)
        .for_each(|(request, ((tokens, nodes), count))| {
            let (walked, bad) = trees.walk(request, |depth, token, node| {
                tokens[depth] = T::of(token);
                nodes[depth] = N::of(node);
            });
            tokens[walked..].fill(T::of(-1));
            nodes[walked..].fill(N::of(-1));
            *count = walked as i32;
            if bad != 0 {
                bits.fetch_or(bad, Ordering::Relaxed);
            }
        });
    raise(buffers.flags, bits.into_inner())
}

struct Trees<'a> {
    plan: &'a Plan,
    draft: Ints<'a>,
    target: Ints<'a>,
    /// First children and next siblings; `None` for chains.
    links: Option<[Ints<'a>; 2]>,
    row_offsets: Option<Ints<'a>>,
}

/// Where the tokens of one request lie.
struct Request {
    /// The index of node 0 in the draft tokens, and in the target's tokens.
    draft: usize,
    target: usize,
    /// The number of nodes.
    nodes: usize,
    /// The number of nodes that have a target token; a walk stops before the others, with flag 4
    /// if `is_bad`.
    rows: usize,
    is_bad: bool,
}

impl Trees<'_> {
    fn request(&self, request: usize) -> Request {
        let (draft_tokens, target_tokens) = (self.plan.draft_tokens, self.plan.target_tokens);
        let nodes = self.plan.max_nodes();
        let draft = request * draft_tokens.row_stride();
        let (Some(offsets), Some(all)) = (&self.row_offsets, target_tokens.packed()) else {
            let target = request * target_tokens.row_stride();
            return Request { draft, target, nodes, rows: nodes, is_bad: false };
        };
        let (start, end) = (offsets.get(request), offsets.get(request + 1));
        let own = cut(end.saturating_sub(start), usize::MAX);
        // A walk begins at node 0, so where node 0 has no row, no other row counts.
        let first = usize::try_from(start).ok().filter(|&first| first < all && own > 0);
        let (first, rows) = first.map_or((0, 0), |first| (first, own.min(all - first)));
        Request {
            draft: if draft_tokens.packed().is_some() { first } else { draft },
            target: first,
            nodes: match draft_tokens {
                // A chain ends with its rows.
                Nodes::Packed(_) => own,
                Nodes::Rows(_) if self.links.is_none() => own.min(nodes),
                Nodes::Rows(_) => nodes,
            },
            rows,
            is_bad: start != end,
        }
    }

    /// Walks down one tree. Returns the number of emitted tokens, and flags.
    fn walk(&self, index: usize, mut emit: impl FnMut(usize, i32, i32)) -> (usize, u32) {
        let request = self.request(index);
        let missing = if request.is_bad { flags::BAD_LENGTHS } else { 0 };
        let mut walk = Walk { trees: self, request: &request, index, looked: 0 };
        let mut node = 0;
        for depth in 0.. {
            if node >= request.rows {
                return (depth, missing);
            }
            let target = self.target.get(request.target + node);
            let Some(token) = i32::try_from(target).ok().filter(|&token| token >= 0) else {
                emit(depth, 0, node as i32);
                return (depth + 1, flags::OUT_OF_RANGE);
            };
            emit(depth, token, node as i32);
            if depth == self.plan.max_depth {
                return (depth + 1, 0);
            }
            node = match walk.child(node, target) {
                Ok(child) => child,
                Err(bits) => return (depth + 1, bits),
            };
        }
        unreachable!("the depth is bounded")
    }
}

/// A walk down one tree.
struct Walk<'a> {
    trees: &'a Trees<'a>,
    request: &'a Request,
    index: usize,
    /// The number of children that the walk has looked at.
    looked: usize,
}

impl Walk<'_> {
    /// The child of `node` whose draft token is `target`; flags where the walk stops.
    fn child(&mut self, node: usize, target: i64) -> Result<usize, u32> {
        let Walk { trees: Trees { plan, draft, links, .. }, request, index, looked } = self;
        let (Some([first_child, next_sibling]), Some(rows)) = (links, plan.links) else {
            let child = node + 1;
            if child >= request.nodes {
                return Err(0);
            }
            // The row is looked up first: a packed draft token lies in the same row.
            if child >= request.rows {
                return Err(flags::BAD_LENGTHS);
            }
            let is_kept = draft.get(request.draft + child) == target;
            return if is_kept { Ok(child) } else { Err(0) };
        };
        let mut child = first_child.get(*index * rows.first_child.row_stride + node);
        loop {
            if child == -1 {
                return Err(0);
            }
            *looked += 1;
            // A tree has fewer children than nodes, so a cycle of pointers ends here too.
            if child < 1 || child >= request.nodes as i64 || *looked == request.nodes {
                return Err(flags::BAD_LENGTHS);
            }
            let node = child as usize;
            if draft.get(request.draft + node) == target {
                return Ok(node);
            }
            child = next_sibling.get(*index * rows.next_sibling.row_stride + node);
        }
    }
}
