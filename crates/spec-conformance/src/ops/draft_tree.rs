use super::ngram::per_request;
use crate::Rng;
use crate::argument::Argument;
use crate::case::{Case, Recomposed, Rows, Subject};
use crate::plain;
use crate::tensor::{Data, Tensor};
use spec_core::ops::draft_tree::{DraftTree, MAX_CANDIDATES, MAX_DRAFTS};
use spec_core::{DType, Result};

impl Subject for DraftTree {
    const GOLDEN: &'static str = include_str!("../../golden/draft_tree.json");

    fn plain(plan: &Self::Plan, buffers: Self::Buffers<'_>) -> Result<()> {
        plain::draft_tree::run(plan, buffers)
    }

    fn examples() -> Vec<Case<Self>> {
        // The first request's candidates are two likely ways and a side branch, the second's are
        // unlikely, the third has finished.
        let case = |operator: DraftTree| {
            let case = Case::new(operator)
                .input("candidates", [[10, 11, 12, 13, 14], [20, 21, 22, 23, -1], [30; 5]])
                .input("parents", [[0, 0, 1, 2, 3], [0, 1, 2, 0, 0], [0; 5]])
                .input("shares", [[0.6, 0.3, 0.5, 0.9, 0.25], [0.2, 1.0, 1.0, 0.1, 1.0], [1.0; 5]])
                .input("finished", [0, 0, 1])
                .input("roots", [1, 2, 3])
                .input("starts", [7, 8, 9])
                .output_of("drafts", DType::I32, &[3, 4])
                .output("num_drafts", DType::I32)
                .output("picked", DType::I32)
                .output("draft_parents", DType::I32)
                .output("first_child", DType::I32)
                .output("next_sibling", DType::I32)
                .output("depths", DType::I32)
                .output("masks", DType::I32)
                .output("survivals", DType::F32)
                .output("row_offsets", DType::I32)
                .output_of("rows", DType::I32, &[8])
                .output("row_requests", DType::I32)
                .output("row_parents", DType::I32)
                .output("row_tokens", DType::I32)
                .output("row_positions", DType::I32);
            case.in_place("flags", [0_u32])
        };
        let chain = Case::new(DraftTree::new().cumulative(true))
            .input("candidates", [[10, 11, 12], [20, 21, 22]])
            .input("shares", [[0.5, 0.25, 0.25], [1.0, f32::NAN, 1.0]])
            .input("trust", [0.5, 1.0])
            .input("budget", [-1])
            .output_of("drafts", DType::I32, &[2, 3])
            .output("num_drafts", DType::I32)
            .in_place("flags", [0_u32]);
        vec![
            case(DraftTree::new()),
            case(DraftTree::new().min_drafts(1)).input("budget", [4]),
            case(DraftTree::new().min_survival(0.3)),
            chain,
        ]
    }

    fn random(rng: &mut Rng) -> Case<Self> {
        let batch = rng.size(if rng.rare(40) { 700 } else { 7 });
        let max_c = if rng.rare(30) && batch < 20 { MAX_CANDIDATES } else { 100 };
        let max_c = rng.pick(&[4, 16, 40, max_c]);
        let c = rng.size(max_c);
        let max_n = if rng.rare(20) { MAX_DRAFTS } else { 70 };
        let max_n = rng.pick(&[3, 8, 20, max_n]);
        let n = rng.size(max_n);
        let operator = DraftTree::new()
            .min_survival(rng.pick(&[0.0, 0.0, 0.0, 0.05, 0.25, 1.0]))
            .min_drafts(rng.pick(&[0, 0, 0, 1, 2, 5, 1000]))
            .cumulative(rng.chance(2));
        let words = Candidates::new(rng, batch, c);
        let dtype = rng.token_dtype();
        let matrix = |dtype, values: &[i64], cols| {
            Tensor::matrix(Rng::integers(dtype, values.to_vec()), batch, cols)
        };
        let mut case = Case::new(operator).input("candidates", matrix(dtype, &words.tokens, c));
        if !words.are_chains {
            case = case.input("parents", matrix(rng.int_dtype(), &words.parents, c));
        }
        // Without shares many candidates have one survival.
        if !rng.chance(6) {
            case = case.input("shares", Tensor::matrix(words.shares, batch, c));
        }
        case = with_requests(case, rng, (batch, c), words.wild);
        if rng.chance(2) {
            let total = batch * n.min(c);
            let budget = match rng.below(8) {
                0 => rng.pick(&[0, -1, i32::MIN, i32::MAX]),
                1 => total as i32,
                _ => rng.between(0, total) as i32,
            };
            case = case.input("budget", [budget]);
        }
        case = case.output_of("drafts", dtype, &[batch, n]).output("num_drafts", DType::I32);
        let optional = [
            ("picked", DType::I32),
            ("draft_parents", DType::I32),
            ("first_child", DType::I32),
            ("next_sibling", DType::I32),
            ("depths", DType::I32),
            ("masks", DType::I32),
            ("survivals", DType::F32),
            ("row_offsets", DType::I32),
        ];
        case = case.some_outputs(rng, optional);
        case = with_rows(case, rng, dtype, batch, n);
        case.in_place("flags", Tensor::vector(rng.flags()))
    }

    /// Some of the requests, in another order, some of them twice. Requests that share a budget keep
    /// it among them, so they stay, and finished requests come behind them.
    fn recomposed(case: &Case<Self>, rng: &mut Rng) -> Recomposed<Self> {
        let batch = case.get("drafts").map_or(0, Tensor::rows);
        let wanted = if batch == 0 { 0 } else { rng.between(0, batch + 3) };
        let any: Vec<usize> = (0..wanted).map(|_| rng.below(batch)).collect();
        let (compared, picked) = match case.get("budget") {
            Some(_) => (batch, (0..batch).chain(any).collect::<Vec<_>>()),
            None => (any.len(), any),
        };
        let mut other = case.map(|Argument { name, tensor, .. }| match *name {
            "flags" | "budget" => tensor.clone(),
            "rows" | "row_requests" | "row_parents" | "row_tokens" | "row_positions" => {
                tensor.clone()
            }
            "row_offsets" => Tensor::to_fill(DType::I32, &[picked.len() + 1]),
            _ => tensor.pick(&picked),
        });
        if compared < picked.len() {
            let mut finished = match case.get("finished").map(|finished| &finished.data) {
                Some(Data::I32(finished)) => finished.clone(),
                _ => vec![0; batch],
            };
            finished.resize(picked.len(), 1);
            other.arguments.retain(|argument| argument.name != "finished");
            other = other.input("finished", Tensor::vector(finished));
        }
        let written = [
            "drafts",
            "num_drafts",
            "picked",
            "draft_parents",
            "first_child",
            "next_sibling",
            "depths",
            "masks",
            "survivals",
        ];
        let given = written.into_iter().filter(|name| case.get(name).is_some());
        let rows = given.map(|name| (name, Rows::Of(picked[..compared].to_vec()))).collect();
        Recomposed { case: other, rows }
    }
}

/// Adds by chance what each request has: a count, a trust, `finished`, a root and a start.
fn with_requests(
    mut case: Case<DraftTree>,
    rng: &mut Rng,
    (batch, c): (usize, usize),
    wild: usize,
) -> Case<DraftTree> {
    let all = |rng: &mut Rng, one: &dyn Fn(&mut Rng) -> i64| -> Vec<i64> {
        (0..batch).map(|_| one(rng)).collect()
    };
    let column = rng.chance(3);
    if rng.chance(2) {
        let counts = all(rng, &|rng| match rng.chance(wild) {
            false => rng.between(c / 2, c) as i64,
            true => rng.pick(&[0, 1, -1, c as i64 + 1, 1 << 31, i64::MIN, i64::MAX]),
        });
        let counts = Rng::integers(rng.int_dtype(), counts);
        case = case.input("counts", per_request(counts, column));
    }
    if rng.chance(2) {
        let trust = |rng: &mut Rng| {
            let any = rng.unit();
            match rng.chance(wild) {
                false => rng.pick(&[1.0, 0.75, 0.5, any, 1e-9]),
                true => rng.bad_float(),
            }
        };
        let trust: Vec<f32> = (0..batch).map(|_| trust(rng)).collect();
        case = case.input("trust", Tensor::vector(trust));
    }
    if rng.chance(3) {
        let finished = all(rng, &|rng| rng.pick(&[0, 0, 0, 1, 2, -1]));
        case = case.input("finished", Tensor::vector(Rng::integers(DType::I32, finished)));
    }
    if rng.chance(2) {
        let dtype = case.get("candidates").map_or(DType::I64, |tokens| tokens.data.dtype());
        let roots = all(rng, &|rng| rng.pick(&[0, 5, -1, -7, 1 << 31, i64::MAX]));
        case = case.input("roots", Tensor::vector(Rng::integers(dtype, roots)));
    }
    if rng.chance(2) {
        let starts = all(rng, &|rng| {
            let near = rng.below(9) as i64;
            rng.pick(&[near, near + 1000, i64::from(i32::MAX) - near, i64::MAX - near, i64::MIN])
        });
        let starts = Rng::integers(rng.int_dtype(), starts);
        case = case.input("starts", per_request(starts, column));
    }
    case
}

/// Adds outputs of packed rows by chance, all with room for as many.
fn with_rows(
    mut case: Case<DraftTree>,
    rng: &mut Rng,
    dtype: DType,
    batch: usize,
    n: usize,
) -> Case<DraftTree> {
    let whole = batch * (n + 1);
    let cap = match rng.below(4) {
        0 => rng.between(0, whole),
        1 => whole + rng.below(300),
        _ => whole,
    };
    for name in ["rows", "row_requests", "row_parents", "row_tokens"] {
        if rng.chance(2) {
            let dtype = if name == "row_tokens" { dtype } else { DType::I32 };
            case = case.output_of(name, dtype, &[cap]);
        }
    }
    let starts = case.get("starts").map(|starts| starts.data.dtype());
    if let Some(starts) = starts.filter(|_| rng.chance(2)) {
        case = case.output_of("row_positions", starts, &[cap]);
    }
    case
}

/// The candidates of all requests, row by row.
struct Candidates {
    tokens: Vec<i64>,
    parents: Vec<i64>,
    shares: Vec<f32>,
    are_chains: bool,
    /// One value in this many is bad.
    wild: usize,
}

impl Candidates {
    fn new(rng: &mut Rng, batch: usize, c: usize) -> Self {
        let wild = rng.pick(&[4, 30, 1_000_000, 1_000_000]);
        let mut all = Candidates {
            tokens: Vec::new(),
            parents: Vec::new(),
            shares: Vec::new(),
            are_chains: rng.chance(3),
            wild,
        };
        let vocab = rng.pick(&[3, 1 << 17, 1 << 31]);
        let levels = rng.pick(&[1, 2, 5, 1 << 20, 1 << 20]);
        for _ in 0..batch {
            let shape = rng.below(5);
            let top = rng.between(1, 8);
            for j in 0..c {
                let token = match rng.chance(4 * wild) {
                    false => rng.below(vocab) as i64,
                    true => rng.pick(&[-1, -7, i64::from(i32::MIN), 1 << 31]),
                };
                all.tokens.push(token);
                let parent = match shape {
                    // A chain, a tree of `top` children, levels of `top` nodes, any tree, and a
                    // tree of few deep ways.
                    0 => j as i64,
                    1 => (j.div_ceil(top)) as i64,
                    2 => (j.saturating_sub(j % top + rng.below(top))) as i64,
                    3 => rng.between(0, j) as i64,
                    _ => j.saturating_sub(rng.below(3)) as i64,
                };
                let parent = match rng.chance(4 * wild) {
                    false => parent,
                    true => {
                        let near = j as i64 + 1;
                        rng.pick(&[-1, near, near + 1, i64::from(i32::MIN), i64::MAX, 1 << 32])
                    }
                };
                all.parents.push(parent);
                let share = match rng.chance(wild) {
                    false if levels < 9 => rng.between(1, levels) as f32 / levels as f32,
                    false if rng.chance(40) => rng.pick(&[0.0, 1.0, 1e-12, 1e-30]),
                    false => 1.0 - rng.unit() * rng.unit(),
                    true => rng.bad_float(),
                };
                all.shares.push(share);
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plain::Plain;
    use crate::tensor::Layout;
    use crate::tests::{balanced, flags, integers, results, share};

    #[test]
    fn random_draft_trees_get_everywhere() {
        let runs = results::<DraftTree>(400);
        assert_eq!(flags(&runs), 5);
        let is = |of: fn(&Case<DraftTree>) -> bool| share(runs.iter().map(|(case, _)| of(case)));
        balanced(is(|case| case.operator.cumulative), "shares of the whole way");
        balanced(is(|case| case.operator.min_drafts > 0), "drafts that come before all others");
        balanced(is(|case| case.operator.min_survival > 0.0), "a least survival");
        for name in
            ["parents", "counts", "trust", "finished", "budget", "masks", "row_offsets", "rows"]
        {
            balanced(share(runs.iter().map(|(case, _)| case.get(name).is_some())), name);
        }
        let good = runs.iter().map(|(_, results)| integers(results, "flags")[0] & 0xFF == 0);
        balanced(share(good), "cases without bad data");
        let drafts = runs.iter().flat_map(|(_, results)| integers(results, "num_drafts"));
        balanced(share(drafts.map(|count| count > 0)), "requests with drafts");
        // A budget cuts some requests whose trees would be larger alone.
        let cut =
            runs.iter().filter(|(case, _)| case.get("budget").is_some()).map(|(case, results)| {
                let mut alone = case.clone();
                alone.arguments.retain(|argument| argument.name != "budget");
                let alone =
                    alone.run(&Plain::default(), Layout::PACKED).expect("the plain loop runs");
                integers(&alone, "num_drafts") != integers(results, "num_drafts")
            });
        balanced(share(cut), "batches that a budget cuts");
        let depths = runs.iter().flat_map(|(_, results)| integers(results, "depths"));
        balanced(share(depths.filter(|depth| *depth > 0).map(|depth| depth > 2)), "deep nodes");
    }
}
