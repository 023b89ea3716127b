//! `tree_verify`: one step after the other.

use std::borrow::Cow;

use spec_core::flags::{BAD_LENGTHS, OUT_OF_RANGE};
use spec_core::ops::tree_verify::{Buffers, Nodes, Plan};
use spec_core::{Result, View};

use crate::host::{ints, put_tokens, raise, slice_mut, tokens};

/// The value for no token and no node.
const NONE: i64 = -1;

/// Walks the trees one by one.
pub(crate) fn run(plan: &Plan, buffers: Buffers<'_>) -> Result<()> {
    let draft = all(buffers.draft_tokens, &plan.draft_tokens)?;
    let target = all(buffers.target_tokens, &plan.target_tokens)?;
    let links = match (plan.links, buffers.first_child, buffers.next_sibling) {
        (Some(rows), Some(first), Some(next)) => {
            Some((tokens(first, &rows.first_child)?, tokens(next, &rows.next_sibling)?))
        }
        _ => None,
    };
    let offsets = buffers.row_offsets.map(ints).transpose()?;
    let num_tokens = slice_mut::<i32>(buffers.num_tokens)?;
    let (mut emitted, mut path, mut flags) = (Vec::new(), Vec::new(), 0);
    for (request, count) in num_tokens.iter_mut().enumerate() {
        let columns = plan.max_nodes();
        let at = request * columns;
        let ends = offsets.as_ref().map(|offsets| (offsets[request], offsets[request + 1]));
        let tree = Tree {
            draft: match plan.draft_tokens {
                Nodes::Rows(_) => &draft[at..at + columns],
                Nodes::Packed(_) => &draft,
            },
            target: match plan.target_tokens {
                Nodes::Rows(_) => &target[at..at + columns],
                Nodes::Packed(_) => &target,
            },
            links: links
                .as_ref()
                .map(|(first, next)| (&first[at..at + columns], &next[at..at + columns])),
            ends,
            is_packed: matches!(plan.draft_tokens, Nodes::Packed(_)),
        };
        let (mut walked, bits) = tree.walk(plan.max_depth);
        flags |= bits;
        *count = walked.len() as i32;
        walked.resize(plan.max_depth + 1, (NONE, NONE));
        emitted.extend(walked.iter().map(|&(token, _)| token));
        path.extend(walked.iter().map(|&(_, node)| node));
    }
    put_tokens(buffers.tokens, &plan.tokens, &emitted)?;
    put_tokens(buffers.nodes, &plan.nodes, &path)?;
    raise(buffers.flags, flags)
}

/// The tokens of all nodes as integers: packed, or row by row.
fn all<'a>(view: View<'a>, nodes: &Nodes) -> Result<Cow<'a, [i64]>> {
    match nodes {
        Nodes::Rows(matrix) => tokens(view, matrix),
        Nodes::Packed(_) => ints(view),
    }
}

struct Tree<'a> {
    /// The request's own draft tokens, or the packed ones of all requests.
    draft: &'a [i64],
    /// The same of the target's tokens.
    target: &'a [i64],
    /// First children and next siblings; `None` for a chain.
    links: Option<(&'a [i64], &'a [i64])>,
    /// Where the request's packed rows begin and end.
    ends: Option<(i64, i64)>,
    /// Whether draft tokens are packed too.
    is_packed: bool,
}

impl Tree<'_> {
    /// The index of a node's target token; `None` where the node has no row.
    fn row(&self, node: usize) -> Option<usize> {
        let Some((start, end)) = self.ends else { return Some(node) };
        // Offsets may be any number.
        let row = i128::from(start) + node as i128;
        let known = (0..self.target.len() as i128).contains(&row) && row < i128::from(end);
        known.then_some(row as usize)
    }

    /// The flag for a node without a row.
    fn missing(&self) -> u32 {
        match self.ends {
            Some((start, end)) if start == end => 0,
            _ => BAD_LENGTHS,
        }
    }

    /// The emitted tokens, each with the node after which it was chosen; and flags.
    fn walk(&self, max_depth: usize) -> (Vec<(i64, i64)>, u32) {
        let (mut walked, mut node, mut looked) = (Vec::new(), 0, 0);
        loop {
            let Some(row) = self.row(node) else { return (walked, self.missing()) };
            let target = self.target[row];
            if !(0..=i64::from(i32::MAX)).contains(&target) {
                walked.push((0, node as i64));
                return (walked, OUT_OF_RANGE);
            }
            walked.push((target, node as i64));
            if walked.len() > max_depth {
                return (walked, 0);
            }
            let child = match self.links {
                None => self.next_of_chain(node, target),
                Some(links) => self.child(links, node, target, &mut looked),
            };
            match child {
                Ok(child) => node = child,
                Err(bits) => return (walked, bits),
            }
        }
    }

    /// The node behind `node` if its draft token is `target`; flags where the walk stops.
    fn next_of_chain(&self, node: usize, target: i64) -> Result<usize, u32> {
        let child = node + 1;
        let of_rows = self
            .ends
            .is_none_or(|(start, end)| (child as i128) < i128::from(end) - i128::from(start));
        let of_columns = self.is_packed || child < self.draft.len();
        if !(of_rows && of_columns) {
            return Err(0);
        }
        let Some(row) = self.row(child) else { return Err(BAD_LENGTHS) };
        let draft = self.draft[if self.is_packed { row } else { child }];
        if draft == target { Ok(child) } else { Err(0) }
    }

    /// The first child of `node` whose draft token is `target`; flags where the walk stops.
    fn child(
        &self,
        (first_child, next_sibling): (&[i64], &[i64]),
        node: usize,
        target: i64,
        looked: &mut usize,
    ) -> Result<usize, u32> {
        let nodes = self.draft.len();
        let mut child = first_child[node];
        while child != NONE {
            *looked += 1;
            let known = usize::try_from(child).ok().filter(|at| (1..nodes).contains(at));
            let at = known.filter(|_| *looked < nodes).ok_or(BAD_LENGTHS)?;
            if self.draft[at] == target {
                return Ok(at);
            }
            child = next_sibling[at];
        }
        Err(0)
    }
}
