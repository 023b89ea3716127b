//! Trees of drafts on the CPU: requests in parallel. Each tree is walked from its root.

use std::sync::atomic::{AtomicU32, Ordering};

use rayon::prelude::*;
use spec_core::ops::TreeVerify;
use spec_core::ops::tree_verify::{Buffers, Plan};
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
    let trees = Trees {
        plan,
        draft: Ints::new(buffers.draft_tokens)?,
        target: Ints::new(buffers.target_tokens)?,
        first_child: Ints::new(buffers.first_child)?,
        next_sibling: Ints::new(buffers.next_sibling)?,
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
    first_child: Ints<'a>,
    next_sibling: Ints<'a>,
}

impl Trees<'_> {
    /// Walks down one tree. Returns the number of emitted tokens, and flags.
    fn walk(&self, request: usize, mut emit: impl FnMut(usize, i32, i32)) -> (usize, u32) {
        let Plan { draft_tokens, target_tokens, first_child, next_sibling, .. } = self.plan;
        let tree = self.plan.tree();
        let (mut node, mut looked) = (0, 0);
        for depth in 0.. {
            let target = self.target.get(request * target_tokens.row_stride + node);
            let Some(token) = i32::try_from(target).ok().filter(|&token| token >= 0) else {
                emit(depth, 0, node as i32);
                return (depth + 1, flags::OUT_OF_RANGE);
            };
            emit(depth, token, node as i32);
            if depth == self.plan.max_depth {
                return (depth + 1, 0);
            }
            let mut child = self.first_child.get(request * first_child.row_stride + node);
            loop {
                if child == -1 {
                    return (depth + 1, 0);
                }
                looked += 1;
                // A tree has fewer children than nodes, so a cycle of pointers ends here too.
                if child < 1 || child >= tree as i64 || looked == tree {
                    return (depth + 1, flags::BAD_LENGTHS);
                }
                node = child as usize;
                if self.draft.get(request * draft_tokens.row_stride + node) == target {
                    break;
                }
                child = self.next_sibling.get(request * next_sibling.row_stride + node);
            }
        }
        unreachable!("the depth is bounded")
    }
}
