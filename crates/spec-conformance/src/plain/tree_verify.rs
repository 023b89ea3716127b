//! `tree_verify`: one step after the other.

use spec_core::Result;
use spec_core::flags::{BAD_LENGTHS, OUT_OF_RANGE};
use spec_core::ops::tree_verify::{Buffers, Plan};

use crate::host::{put_tokens, raise, slice_mut, tokens};

/// The value for no token and no node.
const NONE: i64 = -1;

/// Walks the trees one by one.
pub(crate) fn run(plan: &Plan, buffers: Buffers<'_>) -> Result<()> {
    let draft = tokens(buffers.draft_tokens, &plan.draft_tokens)?;
    let target = tokens(buffers.target_tokens, &plan.target_tokens)?;
    let first_child = tokens(buffers.first_child, &plan.first_child)?;
    let next_sibling = tokens(buffers.next_sibling, &plan.next_sibling)?;
    let num_tokens = slice_mut::<i32>(buffers.num_tokens)?;
    let (mut emitted, mut path, mut flags) = (Vec::new(), Vec::new(), 0);
    for (request, count) in num_tokens.iter_mut().enumerate() {
        let nodes = request * plan.tree()..(request + 1) * plan.tree();
        let tree = Tree {
            draft: &draft[nodes.clone()],
            target: &target[nodes.clone()],
            first_child: &first_child[nodes.clone()],
            next_sibling: &next_sibling[nodes],
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

struct Tree<'a> {
    draft: &'a [i64],
    target: &'a [i64],
    first_child: &'a [i64],
    next_sibling: &'a [i64],
}

impl Tree<'_> {
    /// The emitted tokens, each with the node after which it was chosen; and flags.
    fn walk(&self, max_depth: usize) -> (Vec<(i64, i64)>, u32) {
        let (mut walked, mut node, mut looked) = (Vec::new(), 0, 0);
        loop {
            let target = self.target[node];
            if !(0..=i64::from(i32::MAX)).contains(&target) {
                walked.push((0, node as i64));
                return (walked, OUT_OF_RANGE);
            }
            walked.push((target, node as i64));
            if walked.len() > max_depth {
                return (walked, 0);
            }
            let mut child = self.first_child[node];
            loop {
                if child == NONE {
                    return (walked, 0);
                }
                looked += 1;
                let nodes = self.draft.len();
                let known = usize::try_from(child).ok().filter(|at| (1..nodes).contains(at));
                match known {
                    Some(at) if looked < nodes => node = at,
                    _ => return (walked, BAD_LENGTHS),
                }
                if self.draft[node] == target {
                    break;
                }
                child = self.next_sibling[node];
            }
        }
    }
}
