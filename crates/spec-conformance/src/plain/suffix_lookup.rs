//! `suffix_lookup` by its definition: compares every window of every text, then adds one draft
//! after the other.

use std::cmp::Reverse;

use spec_core::flags::BAD_LENGTHS;
use spec_core::ops::SuffixLookup;
use spec_core::ops::suffix_lookup::{Buffers, Plan};
use spec_core::{Matrix, Result, ViewMut};

use super::texts;
use crate::host::{ints, put_tokens, raise, slice_mut, unpack};

/// Looks up every request.
pub(crate) fn run(plan: &Plan, buffers: Buffers<'_>) -> Result<()> {
    let is_idle = match buffers.requests {
        Some(requests) => ints(requests)?.iter().all(|&request| request == -1),
        None => plan.tokens.rows == 0,
    };
    let known = (buffers.tokens, buffers.lengths);
    let (texts, mut flags) = texts::of_requests(known, &plan.tokens, buffers.requests)?;
    let corpus = buffers.corpus.map(ints).transpose()?.unwrap_or_default();
    let corpus = match buffers.corpus_length.map(ints).transpose()? {
        // Without requests, `corpus_length` is not read and sets no flag.
        Some(length) if !is_idle => {
            let within = length[0].clamp(0, corpus.len() as i64);
            flags |= if within == length[0] { 0 } else { BAD_LENGTHS };
            &corpus[..within as usize]
        }
        _ => &corpus[..],
    };
    let n = plan.drafts.cols;
    let limits = texts::limits(buffers.max_drafts, texts.len(), n)?;
    let (mut drafts, mut parents, mut shares) = (Vec::new(), Vec::new(), Vec::new());
    let (mut first_child, mut next_sibling) = (Vec::new(), Vec::new());
    let (mut counts, mut match_lengths) = (Vec::new(), Vec::new());
    for (request, (text, limit)) in texts.iter().zip(limits).enumerate() {
        let Found { windows, length } = find(&plan.params, text, corpus);
        let mut tree = grow(&plan.params, &windows, length, n);
        tree.truncate(limit);
        counts.push(tree.len() as i32);
        match_lengths.push(length as i32);
        let rows = [first_child.len(), next_sibling.len()];
        first_child.resize(rows[0] + n + 1, -1);
        next_sibling.resize(rows[1] + n + 1, -1);
        let (first, next) = (&mut first_child[rows[0]..], &mut next_sibling[rows[1]..]);
        for (draft, node) in tree.iter().enumerate() {
            drafts.push(node.token);
            parents.push(node.parent as i32);
            let parts = (node.windows.len() << 20) / windows.len();
            shares.push((parts as f64 / f64::from(1 << 20)) as f32);
            let elder = tree[..draft].iter().rposition(|elder| elder.parent == node.parent);
            match elder {
                Some(elder) => next[elder + 1] = draft as i32 + 1,
                None => first[node.parent] = draft as i32 + 1,
            }
        }
        drafts.resize((request + 1) * n, texts::padding(text, plan.params.pad_with_last));
        parents.resize((request + 1) * n, -1);
        shares.resize((request + 1) * n, 0.0);
    }
    put_tokens(buffers.drafts, &plan.drafts, &drafts)?;
    slice_mut::<i32>(buffers.counts)?.copy_from_slice(&counts);
    put(buffers.parents, &plan.parents, &parents)?;
    put(buffers.first_child, &plan.first_child, &first_child)?;
    put(buffers.next_sibling, &plan.next_sibling, &next_sibling)?;
    put(buffers.shares, &plan.shares, &shares)?;
    if let Some(lengths) = buffers.match_lengths {
        slice_mut::<i32>(lengths)?.copy_from_slice(&match_lengths);
    }
    raise(buffers.flags, flags)
}

fn put<T: spec_core::Element>(
    view: Option<ViewMut<'_>>,
    matrix: &Option<Matrix>,
    values: &[T],
) -> Result<()> {
    if let (Some(view), Some(matrix)) = (view, matrix) {
        unpack(slice_mut(view)?, matrix, values);
    }
    Ok(())
}

/// The text behind a window, from index `e` on.
type Window<'t> = &'t [i64];

/// The windows that count, the most recent first, and the length of their match.
struct Found<'t> {
    windows: Vec<Window<'t>>,
    length: usize,
}

fn find<'t>(params: &SuffixLookup, text: &'t [i64], corpus: &'t [i64]) -> Found<'t> {
    let matched = |known: &[i64]| {
        let pairs = known.iter().rev().zip(text.iter().rev()).take(params.max_match);
        pairs.take_while(|(a, b)| a == b && **a >= 0).count()
    };
    let ends = |known: &'t [i64]| {
        let ends = (1..known.len()).rev().filter(|&e| known[e] >= 0);
        ends.map(move |e| (&known[..e], &known[e..]))
    };
    let all: Vec<_> = ends(text).chain(ends(corpus)).collect();
    let length = all.iter().map(|(before, _)| matched(before)).max().unwrap_or(0);
    if length < params.min_match {
        return Found { windows: Vec::new(), length: 0 };
    }
    let longest = all.into_iter().filter(|(before, _)| matched(before) == length);
    Found { windows: longest.map(|(_, after)| after).take(params.max_windows).collect(), length }
}

/// A draft.
struct Node {
    token: i64,
    /// The draft's parent, counted from 1; 0 for the text's last token.
    parent: usize,
    depth: usize,
    /// The numbers of the draft's windows.
    windows: Vec<usize>,
}

fn grow(params: &SuffixLookup, windows: &[Window<'_>], length: usize, n: usize) -> Vec<Node> {
    let limit = params.depth_limit(length, n);
    let mut tree: Vec<Node> = Vec::new();
    let root: Vec<usize> = (0..windows.len()).collect();
    let mut offered = children(params, windows, limit, 0, 0, &root);
    while tree.len() < n && !offered.is_empty() {
        let best = (0..offered.len())
            .min_by_key(|&at| {
                let node = &offered[at];
                (Reverse(node.windows.len()), node.depth, node.windows[0])
            })
            .expect("there is one");
        let node = offered.swap_remove(best);
        let parent = tree.len() + 1;
        offered.extend(children(params, windows, limit, parent, node.depth, &node.windows));
        tree.push(node);
    }
    tree
}

/// The children that a node at depth `depth` offers.
fn children(
    params: &SuffixLookup,
    windows: &[Window<'_>],
    limit: usize,
    parent: usize,
    depth: usize,
    own: &[usize],
) -> Vec<Node> {
    let mut found: Vec<Node> = Vec::new();
    if depth >= limit {
        return found;
    }
    for &window in own {
        let Some(&token) = windows[window].get(depth).filter(|token| **token >= 0) else {
            continue;
        };
        match found.iter_mut().find(|node| node.token == token) {
            Some(node) => node.windows.push(window),
            None => {
                found.push(Node { token, parent, depth: depth + 1, windows: vec![window] });
            }
        }
    }
    found.sort_by_key(|node| (Reverse(node.windows.len()), node.windows[0]));
    found.truncate(params.width);
    let needed = u64::from(params.share_floor()) * windows.len() as u64;
    found.retain(|node| node.windows.len() as u64 * 65536 >= needed);
    found
}
