//! `draft_tree` by its definition: sorts all candidates of all requests, then builds one tree after
//! the other.

use std::cmp::Reverse;

use spec_core::flags::{BAD_LENGTHS, NON_FINITE};
use spec_core::ops::draft_tree::{Buffers, Masks, Plan, cut_probability, survival_product};
use spec_core::{DType, Matrix, Result, ViewMut};

use crate::host::{floats, ints, put_tokens, raise, slice, slice_mut, tokens, unpack};

/// A candidate that is not none.
#[derive(Clone, Copy)]
struct Node {
    candidate: usize,
    /// The candidate's parent, counted from 1; 0 for the root.
    parent: usize,
    survival: f32,
    depth: usize,
}

/// The arguments, as integers and floats.
struct Inputs<'a> {
    tokens: &'a [i64],
    parents: Option<&'a [i64]>,
    shares: Option<&'a [f32]>,
    trust: Option<f32>,
    cumulative: bool,
}

/// Makes all trees.
pub(crate) fn run(plan: &Plan, buffers: Buffers<'_>) -> Result<()> {
    let (batch, n, columns) = (plan.batch(), plan.n(), plan.c());
    let mut flags = 0;
    let candidates = tokens(buffers.candidates, &plan.candidates)?;
    let parents = buffers.parents.zip(plan.parents);
    let parents = parents.map(|(view, rows)| tokens(view, &rows)).transpose()?;
    let shares = buffers.shares.zip(plan.shares);
    let shares = shares.map(|(view, rows)| floats(view, &rows)).transpose()?;
    let counts = buffers.counts.map(ints).transpose()?;
    let trust = buffers.trust.map(slice::<f32>).transpose()?;
    let finished = buffers.finished.map(ints).transpose()?;
    let is_finished = |request: usize| finished.as_ref().is_some_and(|all| all[request] != 0);
    let mut offered = Vec::new();
    for request in 0..batch {
        if is_finished(request) {
            offered.push(Vec::new());
            continue;
        }
        let count = counts.as_ref().map_or(columns as i64, |counts| counts[request]);
        let within = count.clamp(0, columns as i64);
        flags |= if within == count { 0 } else { BAD_LENGTHS };
        let own = request * columns..request * columns + within as usize;
        let trust = trust.map(|all| probability(all[request], &mut flags));
        let inputs = Inputs {
            tokens: &candidates[own.clone()],
            parents: parents.as_ref().map(|all| &all[own.clone()]),
            shares: shares.as_ref().map(|all| &all[own]),
            trust,
            cumulative: plan.params.cumulative,
        };
        let mut nodes = inputs.nodes(&mut flags);
        nodes.sort_by(|a, b| {
            b.survival
                .total_cmp(&a.survival)
                .then((a.depth, a.candidate).cmp(&(b.depth, b.candidate)))
        });
        nodes.truncate(n);
        let mut rank = 0;
        nodes.retain(|node| {
            rank += 1;
            rank <= plan.params.min_drafts || node.survival >= plan.params.min_survival
        });
        offered.push(nodes);
    }
    if let Some(budget) = buffers.budget {
        let budget = slice::<i32>(budget)?[0];
        flags |= if budget < 0 { BAD_LENGTHS } else { 0 };
        share(&mut offered, budget.max(0) as usize, plan.params.min_drafts);
    }
    for nodes in &mut offered {
        nodes.sort_by_key(|node| node.candidate);
    }
    let given = Given {
        candidates: &candidates,
        roots: buffers.roots.map(ints).transpose()?.map(|roots| roots.to_vec()),
        starts: buffers.starts.map(ints).transpose()?.map(|starts| starts.to_vec()),
        alive: (0..batch).map(|request| !is_finished(request)).collect(),
    };
    let rows = Rows::new(plan, &offered, &given);
    rows.write(
        plan,
        &mut flags,
        Outputs {
            row_offsets: buffers.row_offsets,
            rows: buffers.rows,
            row_requests: buffers.row_requests,
            row_parents: buffers.row_parents,
            row_tokens: buffers.row_tokens,
            row_positions: buffers.row_positions,
        },
    )?;
    let trees: Vec<Tree> = offered.iter().map(|nodes| Tree::new(nodes, n)).collect();
    let of_drafts = |value: &dyn Fn(usize, usize, &Node) -> i64| -> Vec<i64> {
        let row = |(request, nodes): (usize, &Vec<Node>)| {
            let own = nodes.iter().enumerate().map(move |(at, node)| value(request, at, node));
            own.chain(std::iter::repeat(-1)).take(n).collect::<Vec<_>>()
        };
        offered.iter().enumerate().flat_map(row).collect()
    };
    let token = |request: usize, _, node: &Node| candidates[request * columns + node.candidate];
    put_tokens(buffers.drafts, &plan.drafts, &of_drafts(&token))?;
    let num_drafts: Vec<i32> = offered.iter().map(|nodes| nodes.len() as i32).collect();
    slice_mut::<i32>(buffers.num_drafts)?.copy_from_slice(&num_drafts);
    let picked = of_drafts(&|_, _, node| node.candidate as i64);
    put(buffers.picked, &plan.picked, &picked)?;
    let draft_parents = of_drafts(&|request, at, _| trees[request].parents[at + 1]);
    put(buffers.draft_parents, &plan.draft_parents, &draft_parents)?;
    let of_nodes = |value: &dyn Fn(&Tree) -> Vec<i64>| trees.iter().flat_map(value).collect();
    let first_child: Vec<i64> = of_nodes(&Tree::first_child);
    put(buffers.first_child, &plan.first_child, &first_child)?;
    let next_sibling: Vec<i64> = of_nodes(&Tree::next_sibling);
    put(buffers.next_sibling, &plan.next_sibling, &next_sibling)?;
    let depths: Vec<i64> = of_nodes(&|tree| tree.depths.clone());
    put(buffers.depths, &plan.depths, &depths)?;
    if let (Some(view), Some(masks)) = (buffers.masks, &plan.masks) {
        put_masks(slice_mut::<i32>(view)?, masks, &trees);
    }
    if let (Some(view), Some(rows)) = (buffers.survivals, &plan.survivals) {
        let mut survivals = vec![0.0; batch * n];
        for (request, nodes) in offered.iter().enumerate() {
            for (at, node) in nodes.iter().enumerate() {
                survivals[request * n + at] = node.survival;
            }
        }
        unpack(slice_mut::<f32>(view)?, rows, &survivals);
    }
    raise(buffers.flags, flags)
}

/// A share or a trust as it counts.
fn probability(value: f32, flags: &mut u32) -> f32 {
    *flags |= if value.is_finite() { 0 } else { NON_FINITE };
    cut_probability(value)
}

fn put(view: Option<ViewMut<'_>>, rows: &Option<Matrix>, values: &[i64]) -> Result<()> {
    match (view, rows) {
        (Some(view), Some(rows)) => put_tokens(view, rows, values),
        _ => Ok(()),
    }
}

impl Inputs<'_> {
    /// The candidates that are not none, in their own order.
    fn nodes(&self, flags: &mut u32) -> Vec<Node> {
        let mut found: Vec<Option<Node>> = Vec::new();
        for (candidate, &token) in self.tokens.iter().enumerate() {
            let node = if token < 0 { None } else { self.node(candidate, &found, flags) };
            found.push(node);
        }
        found.into_iter().flatten().collect()
    }

    fn node(&self, candidate: usize, before: &[Option<Node>], flags: &mut u32) -> Option<Node> {
        let share = self.shares.map_or(1.0, |shares| probability(shares[candidate], flags));
        let parent = self.parents.map_or(candidate as i64, |parents| parents[candidate]);
        if !(0..=candidate as i64).contains(&parent) {
            *flags |= BAD_LENGTHS;
            return None;
        }
        let parent = parent as usize;
        let (above, depth) = match parent.checked_sub(1) {
            None => (1.0, 1),
            Some(at) => before[at].map(|node| (node.survival, node.depth + 1))?,
        };
        let trust = self.trust.unwrap_or(1.0);
        let survival = if self.cumulative {
            let power = (0..depth).fold(1.0, |power, _| survival_product(power, trust));
            survival_product(share, power).min(above)
        } else {
            survival_product(survival_product(above, share), trust)
        };
        Some(Node { candidate, parent, survival, depth })
    }
}

/// Keeps the first `budget` drafts of all requests.
fn share(offered: &mut [Vec<Node>], budget: usize, min_drafts: usize) {
    let mut all = Vec::new();
    for (request, nodes) in offered.iter().enumerate() {
        for (rank, node) in nodes.iter().enumerate() {
            let order = match rank < min_drafts {
                true => (0, Reverse(0), rank, request, 0),
                // The bits of numbers from 0 to 1 have the order of the numbers.
                false => (1, Reverse(node.survival.to_bits()), node.depth, request, node.candidate),
            };
            all.push((order, request));
        }
    }
    all.sort();
    let mut kept = vec![0; offered.len()];
    for (_, request) in all.into_iter().take(budget) {
        kept[request] += 1;
    }
    for (nodes, kept) in offered.iter_mut().zip(kept) {
        nodes.truncate(kept);
    }
}

/// The nodes of one request; node 0 is the root.
struct Tree {
    /// The number of nodes with what lies behind them.
    columns: usize,
    /// The parent of each node, -1 for the root.
    parents: Vec<i64>,
    /// The depth of each node, then -1.
    depths: Vec<i64>,
}

impl Tree {
    /// The tree of drafts in the order of their candidates.
    fn new(nodes: &[Node], n: usize) -> Self {
        let node_of = |parent: usize| {
            let at = nodes.iter().position(|node| node.candidate + 1 == parent);
            at.map_or(0, |at| at as i64 + 1)
        };
        let parents = std::iter::once(-1).chain(nodes.iter().map(|node| node_of(node.parent)));
        let depths = std::iter::once(0).chain(nodes.iter().map(|node| node.depth as i64));
        let mut tree =
            Tree { columns: n + 1, parents: parents.collect(), depths: depths.collect() };
        tree.depths.resize(n + 1, -1);
        tree
    }

    /// The first node behind `after` whose parent is `parent`.
    fn child(&self, parent: i64, after: usize) -> i64 {
        let mut nodes = (after + 1)..self.parents.len();
        nodes.find(|&node| self.parents[node] == parent).map_or(-1, |node| node as i64)
    }

    fn first_child(&self) -> Vec<i64> {
        (0..self.columns).map(|node| self.child(node as i64, 0)).collect()
    }

    fn next_sibling(&self) -> Vec<i64> {
        let sibling = |node: usize| match self.parents.get(node) {
            Some(&parent) if node > 0 => self.child(parent, node),
            _ => -1,
        };
        (0..self.columns).map(sibling).collect()
    }

    /// The nodes on the way from a node to the root.
    fn way(&self, node: usize) -> Vec<usize> {
        let mut way = Vec::new();
        let mut at = node as i64;
        while let Some(&parent) = usize::try_from(at).ok().and_then(|at| self.parents.get(at)) {
            way.push(at as usize);
            at = parent;
        }
        way
    }
}

fn put_masks(data: &mut [i32], masks: &Masks, trees: &[Tree]) {
    for (request, tree) in trees.iter().enumerate() {
        for node in 0..tree.columns {
            let start = request * masks.batch_stride + node * masks.row_stride;
            let row = &mut data[start..start + masks.words];
            row.fill(0);
            for on_way in tree.way(node) {
                row[on_way / 32] |= 1_i32 << (on_way % 32);
            }
        }
    }
}

/// Inputs that only rows need.
struct Given<'a> {
    candidates: &'a [i64],
    roots: Option<Vec<i64>>,
    starts: Option<Vec<i64>>,
    alive: Vec<bool>,
}

/// The packed rows of the whole batch.
#[derive(Default)]
struct Rows {
    offsets: Vec<i64>,
    nodes: Vec<i64>,
    requests: Vec<i64>,
    parents: Vec<i64>,
    tokens: Vec<i64>,
    positions: Vec<i64>,
}

/// The outputs that have packed rows.
struct Outputs<'a> {
    row_offsets: Option<ViewMut<'a>>,
    rows: Option<ViewMut<'a>>,
    row_requests: Option<ViewMut<'a>>,
    row_parents: Option<ViewMut<'a>>,
    row_tokens: Option<ViewMut<'a>>,
    row_positions: Option<ViewMut<'a>>,
}

impl Rows {
    fn new(plan: &Plan, offered: &[Vec<Node>], given: &Given<'_>) -> Self {
        let (n, columns) = (plan.n(), plan.c());
        let mut rows = Rows::default();
        for (request, nodes) in offered.iter().enumerate() {
            let start = rows.nodes.len();
            rows.offsets.push(start as i64);
            if !given.alive[request] {
                continue;
            }
            let tree = Tree::new(nodes, n);
            for node in 0..=nodes.len() {
                let (parent, token) = match node {
                    0 => (-1, given.roots.as_ref().map_or(-1, |roots| roots[request])),
                    _ => {
                        let at = request * columns + nodes[node - 1].candidate;
                        (start as i64 + tree.parents[node], given.candidates[at])
                    }
                };
                let start = given.starts.as_ref().map_or(0, |starts| starts[request]);
                rows.nodes.push((request * (n + 1) + node) as i64);
                rows.requests.push(request as i64);
                rows.parents.push(parent);
                rows.tokens.push(token);
                rows.positions.push(start.wrapping_add(tree.depths[node]));
            }
        }
        rows.offsets.push(rows.nodes.len() as i64);
        rows
    }

    fn write(self, plan: &Plan, flags: &mut u32, out: Outputs<'_>) -> Result<()> {
        if let Some(view) = out.row_offsets {
            put_vector(view, self.offsets)?;
        }
        if plan.cap.is_some_and(|cap| self.nodes.len() > cap) {
            *flags |= BAD_LENGTHS;
        }
        let all = [
            (out.rows, self.nodes),
            (out.row_requests, self.requests),
            (out.row_parents, self.parents),
            (out.row_tokens, self.tokens),
            (out.row_positions, self.positions),
        ];
        for (view, mut values) in all {
            if let (Some(view), Some(cap)) = (view, plan.cap) {
                values.resize(cap, -1);
                put_vector(view, values)?;
            }
        }
        Ok(())
    }
}

/// Writes a vector of any integer type; numbers wrap.
fn put_vector(view: ViewMut<'_>, values: Vec<i64>) -> Result<()> {
    match view.dtype() {
        DType::I64 => slice_mut::<i64>(view)?.copy_from_slice(&values),
        DType::U32 => {
            let values: Vec<u32> = values.into_iter().map(|value| value as u32).collect();
            slice_mut::<u32>(view)?.copy_from_slice(&values);
        }
        _ => {
            let values: Vec<i32> = values.into_iter().map(|value| value as i32).collect();
            slice_mut::<i32>(view)?.copy_from_slice(&values);
        }
    }
    Ok(())
}
