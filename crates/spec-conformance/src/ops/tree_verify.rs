use crate::Rng;
use crate::case::{Argument, Case, Recomposed, Rows, Subject};
use crate::plain;
use crate::tensor::Tensor;
use spec_core::ops::tree_verify::{Links, TreeVerify};
use spec_core::{DType, Result};

impl Subject for TreeVerify {
    const GOLDEN: &'static str = include_str!("../../golden/tree_verify.json");

    fn plain(plan: &Self::Plan, buffers: Self::Buffers<'_>) -> Result<()> {
        plain::tree_verify::run(plan, buffers)
    }

    fn random(rng: &mut Rng) -> Case<Self> {
        // Rare batches are so large that several threads share them.
        let batch = rng.size(if rng.rare(50) { 200 } else { 12 });
        let nodes = rng.pick(&[1, 2, 3, 8, 33, 64, 64, 100, 700]);
        let nodes = if nodes > 100 && !rng.rare(30) { 17 } else { nodes };
        let max_depth = rng.pick(&[0, 1, 3, 7, nodes, 2 * nodes]);
        let mut tree = Trees::new(rng, batch, nodes);
        if rng.chance(4) {
            tree.spoil(rng, nodes);
        }
        let ids = [DType::I32, DType::U32, DType::I64];
        let input = |rng: &mut Rng, values: Vec<i64>| {
            let data = Rng::integers(rng.pick(&ids), values);
            Tensor { data, shape: vec![batch, nodes] }
        };
        let path = [batch, max_depth + 1];
        Case::new(TreeVerify::new(max_depth))
            .input("draft_tokens", input(rng, tree.draft))
            .input("target_tokens", input(rng, tree.target))
            .input("first_child", input(rng, tree.first_child))
            .input("next_sibling", input(rng, tree.next_sibling))
            .output("tokens", rng.pick(&ids), &path)
            .output("nodes", rng.pick(&ids), &path)
            .output("num_tokens", DType::I32, &[batch])
            .in_place("flags", Tensor::vector(rng.flags()))
    }

    /// Some of the requests, in another order, some of them twice.
    fn recomposed(case: &Case<Self>, rng: &mut Rng) -> Recomposed<Self> {
        let batch = case.get("tokens").map_or(0, Tensor::rows);
        let wanted = if batch == 0 { 0 } else { rng.between(0, batch + 3) };
        let requests: Vec<usize> = (0..wanted).map(|_| rng.below(batch)).collect();
        let case = case.map(
            |Argument { name, tensor, .. }| {
                if *name == "flags" { tensor.clone() } else { tensor.pick(&requests) }
            },
        );
        let rows = ["tokens", "nodes", "num_tokens"].map(|name| (name, Rows::Of(requests.clone())));
        Recomposed { case, rows: rows.into() }
    }
}

/// The trees of a batch, row by row.
struct Trees {
    draft: Vec<i64>,
    target: Vec<i64>,
    first_child: Vec<i64>,
    next_sibling: Vec<i64>,
}

impl Trees {
    /// Trees of several forms, whose target tokens mostly equal a draft.
    fn new(rng: &mut Rng, batch: usize, nodes: usize) -> Self {
        let mut trees = Trees {
            draft: Vec::new(),
            target: Vec::new(),
            first_child: Vec::new(),
            next_sibling: Vec::new(),
        };
        for _ in 0..batch {
            // A small vocabulary, in which siblings are often equal, or a large one.
            let tokens = rng.pick(&[2, 5, 1 << 17, 1 << 31]);
            let parents: Vec<i32> = match rng.below(3) {
                0 => (0..nodes as i32).map(|node| node - 1).collect(),
                1 => (0..nodes as i32).map(|node| (node - 1) / 3).collect(),
                _ => (0..nodes).map(|node| rng.below(node.max(1)) as i32).collect(),
            };
            let links = Links::from_parents(&parents).expect("each parent comes before its child");
            let draft: Vec<i64> = (0..nodes).map(|_| rng.below(tokens) as i64).collect();
            let follows = rng.between(1, 4);
            let mut children = vec![Vec::new(); nodes];
            for (child, &parent) in parents.iter().enumerate().skip(1) {
                children[parent as usize].push(child);
            }
            for children in &children {
                let none = children.is_empty() || rng.chance(4 * follows);
                let other = rng.below(tokens) as i64;
                trees.target.push(if none { other } else { draft[rng.pick(children)] });
            }
            trees.draft.extend(draft);
            trees.first_child.extend(links.first_child.into_iter().map(i64::from));
            trees.next_sibling.extend(links.next_sibling.into_iter().map(i64::from));
        }
        trees
    }

    /// Adds bad data: negative tokens, and pointers to any node or to none.
    fn spoil(&mut self, rng: &mut Rng, nodes: usize) {
        let all = self.draft.len();
        for _ in 0..rng.below(all + 1) / 4 {
            let (at, near) = (rng.below(all), rng.below(nodes + 1) as i64);
            let far = rng.pick(&[-1, -2, 0, near, near, near, 1 << 31, i64::from(i32::MIN)]);
            match rng.below(6) {
                0 => self.draft[at] = -1,
                1 => self.target[at] = rng.pick(&[-1, -7, i64::from(i32::MIN)]),
                2 | 3 => self.first_child[at] = far,
                _ => self.next_sibling[at] = far,
            }
        }
    }
}
