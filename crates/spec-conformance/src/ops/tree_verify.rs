use crate::Rng;
use crate::argument::Argument;
use crate::case::{Case, Recomposed, Rows, Subject};
use crate::plain;
use crate::tensor::Tensor;
use spec_core::ops::tree_verify::{Links, TreeVerify};
use spec_core::{DType, Result};

impl Subject for TreeVerify {
    const GOLDEN: &'static str = include_str!("../../golden/tree_verify.json");

    fn plain(plan: &Self::Plan, buffers: Self::Buffers<'_>) -> Result<()> {
        plain::tree_verify::run(plan, buffers)
    }

    fn examples() -> Vec<Case<Self>> {
        //   0 ── 1 ── 3 ── 5
        //    │    └── 4
        //    └── 2
        // The target of the second request chooses node 2 and then no drafted token.
        let trees = [3, 1, 0].map(|depth| {
            Case::new(TreeVerify::new(depth))
                .input("draft_tokens", [[9, 10, 11, 12, 13, 14]; 2])
                .input("target_tokens", [[10, 13, 0, 0, 15, 0], [11, 0, -7, 0, 0, 0]])
                .input("first_child", [[1, 3, -1, 5, -1, -1]; 2])
                .input("next_sibling", [[-1, 2, -1, 4, -1, -1]; 2])
                .output("tokens", DType::I32)
                .output("nodes", DType::I32)
                .output("num_tokens", DType::I32)
                .in_place("flags", [0_u32])
        });
        // Chains of drafts whose rows are packed: of three drafts, of one, of none, and a request
        // that has no rows. The last offsets go beyond the rows.
        let chains = [[0, 4, 6, 7, 7], [0, 4, 6, 9, 7]].map(|offsets| {
            Case::new(TreeVerify::new(3))
                .input("draft_tokens", [9, 10, 11, 12, 9, 10, 9])
                .input("target_tokens", [10, 11, 77, 0, 20, 0, 30])
                .input("row_offsets", offsets)
                .output("tokens", DType::I32)
                .output("nodes", DType::I32)
                .output("num_tokens", DType::I32)
                .in_place("flags", [0_u32])
        });
        trees.into_iter().chain(chains).collect()
    }

    fn random(rng: &mut Rng) -> Case<Self> {
        // Rare batches are so large that several threads share them.
        let batch = rng.size(if rng.rare(50) { 200 } else { 12 });
        let nodes = rng.pick(&[1, 2, 3, 8, 32, 33, 64, 64, 100, 700]);
        let nodes = if nodes > 100 && !rng.rare(30) { 17 } else { nodes };
        let max_depth = rng.pick(&[0, 1, 3, 7, nodes, 2 * nodes]);
        let is_chain = rng.chance(2);
        let mut tree = Trees::new(rng, batch, nodes, is_chain);
        if rng.chance(4) {
            tree.spoil(rng, nodes);
        }
        let ids = [DType::I32, DType::U32, DType::I64];
        let input = |rng: &mut Rng, values: &[i64]| {
            let data = Rng::integers(rng.pick(&ids), values.to_vec());
            Tensor { data, shape: vec![batch, nodes] }
        };
        let mut case = Case::new(TreeVerify::new(max_depth));
        let packed = rng.chance(2).then(|| Packed::new(rng, batch, nodes));
        match &packed {
            Some(packed) if is_chain && rng.chance(2) => {
                let draft = packed.pack(&tree.draft, nodes);
                case = case.input("draft_tokens", vector(rng, draft));
            }
            _ => case = case.input("draft_tokens", input(rng, &tree.draft)),
        }
        if let Some(packed) = packed {
            let target = packed.pack(&tree.target, nodes);
            let offsets = packed.offsets(rng, target.len() as i64);
            let offsets = Rng::integers(rng.int_dtype(), offsets);
            case = case
                .input("target_tokens", vector(rng, target))
                .input("row_offsets", Tensor::vector(offsets));
        } else {
            case = case.input("target_tokens", input(rng, &tree.target));
        }
        if !is_chain {
            case = case
                .input("first_child", input(rng, &tree.first_child))
                .input("next_sibling", input(rng, &tree.next_sibling));
        }
        case.output("tokens", rng.pick(&ids))
            .output("nodes", rng.pick(&ids))
            .output("num_tokens", DType::I32)
            .in_place("flags", Tensor::vector(rng.flags()))
    }

    /// Some of the requests, in another order, some of them twice. Requests with packed rows share
    /// the offset between them, so of these a range stays, whose rows stay where they are.
    fn recomposed(case: &Case<Self>, rng: &mut Rng) -> Recomposed<Self> {
        let batch = case.get("tokens").map_or(0, Tensor::rows);
        let is_packed = case.get("row_offsets").is_some();
        let requests: Vec<usize> = match is_packed {
            true => {
                let first = rng.between(0, batch);
                (first..rng.between(first, batch)).collect()
            }
            false if batch == 0 => Vec::new(),
            false => (0..rng.between(0, batch + 3)).map(|_| rng.below(batch)).collect(),
        };
        let first = requests.first().copied().unwrap_or(0);
        let offsets: Vec<usize> = (first..=first + requests.len()).collect();
        let case = case.map(|Argument { name, tensor, .. }| match *name {
            "flags" => tensor.clone(),
            "row_offsets" => tensor.pick(&offsets),
            "draft_tokens" | "target_tokens" if tensor.shape.len() == 1 => tensor.clone(),
            _ => tensor.pick(&requests),
        });
        let rows = ["tokens", "nodes", "num_tokens"].map(|name| (name, Rows::Of(requests.clone())));
        Recomposed { case, rows: rows.into() }
    }
}

/// Tokens of any type as a vector.
fn vector(rng: &mut Rng, values: Vec<i64>) -> Tensor {
    Tensor::vector(Rng::integers(rng.pick(&[DType::I32, DType::U32, DType::I64]), values))
}

/// How many packed rows each request has.
struct Packed(Vec<usize>);

impl Packed {
    /// As many rows as nodes; or fewer for some requests.
    fn new(rng: &mut Rng, batch: usize, nodes: usize) -> Self {
        let is_short = rng.chance(2);
        let rows = |rng: &mut Rng| if is_short { rng.between(0, nodes) } else { nodes };
        Packed((0..batch).map(|_| rows(rng)).collect())
    }

    /// The rows of all requests, one request after the other.
    fn pack(&self, tokens: &[i64], nodes: usize) -> Vec<i64> {
        let requests = self.0.iter().zip(tokens.chunks(nodes));
        requests.flat_map(|(&rows, of_request)| &of_request[..rows]).copied().collect()
    }

    /// Where the rows of each request begin, and where the last ones end; in some cases bad.
    fn offsets(&self, rng: &mut Rng, rows: i64) -> Vec<i64> {
        let mut offsets = vec![0];
        for rows in &self.0 {
            offsets.push(offsets[offsets.len() - 1] + *rows as i64);
        }
        if rng.chance(3) {
            for _ in 0..rng.between(1, 1 + offsets.len() / 3) {
                let at = rng.below(offsets.len());
                let near = offsets[at].saturating_add(rng.between(0, 6) as i64 - 3);
                let other = offsets[rng.below(offsets.len())];
                let wild = [near, near, other, -1, rows, rows + 1, 1 << 31, i64::MIN, i64::MAX];
                offsets[at] = rng.pick(&wild);
            }
        }
        offsets
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
    /// Trees of several forms, or chains, whose target tokens mostly equal a draft.
    fn new(rng: &mut Rng, batch: usize, nodes: usize, are_chains: bool) -> Self {
        let mut trees = Trees {
            draft: Vec::new(),
            target: Vec::new(),
            first_child: Vec::new(),
            next_sibling: Vec::new(),
        };
        for _ in 0..batch {
            // A small vocabulary, in which siblings are often equal, or a large one.
            let tokens = rng.pick(&[2, 5, 1 << 17, 1 << 31]);
            let parents: Vec<i32> = match if are_chains { 0 } else { rng.below(3) } {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{balanced, flags, integers, results, share};

    #[test]
    fn random_trees_get_everywhere() {
        let runs = results::<TreeVerify>(300);
        assert_eq!(flags(&runs), 6);
        let is = |of: fn(&Case<TreeVerify>) -> bool| share(runs.iter().map(|(case, _)| of(case)));
        let is_packed = |case: &Case<TreeVerify>, name| {
            case.get(name).is_some_and(|tokens| tokens.shape.len() == 1)
        };
        balanced(is(|case| case.get("first_child").is_some()), "trees");
        balanced(is(|case| case.get("row_offsets").is_some()), "packed rows");
        let packed_drafts = runs.iter().map(|(case, _)| is_packed(case, "draft_tokens"));
        balanced(share(packed_drafts), "packed drafts");
        let good = runs.iter().map(|(_, results)| integers(results, "flags")[0] & 0xFF == 0);
        balanced(share(good), "cases without bad data");
        for has_links in [false, true] {
            let of_form =
                runs.iter().filter(|(case, _)| case.get("first_child").is_some() == has_links);
            let kept = of_form.flat_map(|(_, results)| integers(results, "num_tokens"));
            balanced(share(kept.map(|count| count > 1)), "requests that keep drafts");
        }
        let packed = runs.iter().filter(|(case, _)| case.get("row_offsets").is_some());
        let counts: Vec<i64> =
            packed.flat_map(|(_, results)| integers(results, "num_tokens")).collect();
        assert!(counts.contains(&0), "some requests have no rows");
    }
}
