use crate::Rng;
use crate::argument::Argument;
use crate::case::{Case, Recomposed, Rows, Subject};
use crate::plain;
use crate::tensor::{Data, Tensor};
use spec_core::ops::hot_slots::HotSlots;
use spec_core::{DType, Result};

impl Subject for HotSlots {
    const GOLDEN: &'static str = include_str!("../../golden/hot_slots.json");

    fn plain(plan: &Self::Plan, buffers: Self::Buffers<'_>) -> Result<()> {
        plain::hot_slots::run(plan, buffers)
    }

    fn examples() -> Vec<Case<Self>> {
        let outputs = |case: Case<Self>| {
            case.output("slots", DType::I32)
                .output("fetch_positions", DType::I32)
                .output("fetch_slots", DType::I32)
                .output("fetches", DType::I32)
                .in_place("flags", [0_u32])
        };
        // Hits only, a miss that takes the empty slot, the same after a reset, more misses than
        // slots, and padding.
        let plain = Case::new(HotSlots::new())
            .input(
                "wanted",
                [
                    [3, 7, 9, 3, -1],
                    [3, 5, 9, -1, -1],
                    [3, 5, 9, -1, -1],
                    [1, 2, 4, 5, 6],
                    [1, 2, 4, 5, 6],
                ],
            )
            .input("requests", [0, 1, 2, 3, -1])
            .in_place("resident", [[7, -1, 9, 3]; 4])
            .in_place("used", [[98, 0, 97, 99]; 4])
            .input("step", [100])
            .input("reset", [0, 0, 1, 0, 0]);
        // Slots in blocks of two, one of which is missing; pages of four entries; a tail.
        let placed = Case::new(HotSlots::new().block_size(2).page_size(4).tail(2))
            .input("wanted", [[0, 9, 20, 30, 31], [0, 1, 29, 30, 32]])
            .in_place("resident", [[20, 8, 9, 9], [1, 1, 1, 1]])
            .in_place("used", [[98, 0, 97, 99], [98, 0, 97, 99]])
            .input("step", [100_i64, 200])
            .input("tail_starts", [30, 30])
            .input("block_table", [[10, 4, 7], [-1, 3, 5]])
            .input("pages", [[6, -1, -1], [-1, 6, 6]]);
        vec![outputs(plain), outputs(placed)]
    }

    fn random(rng: &mut Rng) -> Case<Self> {
        let sizes = Sizes::new(rng);
        let operator = HotSlots::new()
            .block_size(rng.pick(&[1, 1, 2, 3, 16, i32::MAX as usize]))
            .page_size(rng.pick(&[1, 2, 4, 64, i32::MAX as usize]))
            .null_page(rng.pick(&[-1, -1, 0, 5]));
        let has_tail = rng.chance(3);
        let operator = operator.tail(if has_tail { rng.pick(&[0, 1, 2, 5, 1024]) } else { 0 });
        let mut case = Case::new(operator);
        let wanted = sizes.wanted(rng);
        let resident = sizes.resident(rng, &wanted);
        let (step, used) = sizes.clock(rng);
        case = case.input("wanted", Tensor::matrix(wanted, sizes.batch, sizes.m));
        if sizes.mapped {
            case = case.input("requests", Tensor::vector(sizes.requests(rng)));
        }
        case = case
            .in_place("resident", Tensor::matrix(resident, sizes.tables, sizes.h))
            .in_place("used", Tensor::matrix(used, sizes.tables, sizes.h))
            .input("step", step);
        if rng.chance(3) {
            let reset = |rng: &mut Rng| rng.pick(&[0, 0, 0, 1, -1, i32::MIN]);
            let reset: Vec<i32> = (0..sizes.batch).map(|_| reset(rng)).collect();
            case = case.input("reset", Tensor::vector(reset));
        }
        if has_tail {
            case = case.input("tail_starts", sizes.tail_starts(rng));
        }
        if rng.chance(2) {
            let slots = sizes.h + case.operator.tail;
            let (table, blocks) = sizes.block_table(rng, slots, case.operator.block_size);
            case = case.input("block_table", Tensor::matrix(table, sizes.tables, blocks));
            if rng.chance(2) {
                let pages = rng.size(sizes.range.div_ceil(case.operator.page_size).min(60));
                let page = |rng: &mut Rng| match rng.chance(30) {
                    false => rng.pick(&[-1, -1, 0, 5, 6, 30]),
                    true => rng.pick(&[i32::MAX, i32::MIN, 1 << 30, 1 << 25]),
                };
                let all: Vec<i32> = (0..sizes.tables * pages).map(|_| page(rng)).collect();
                case = case.input("pages", Tensor::matrix(all, sizes.tables, pages));
            }
        }
        for name in ["slots", "fetch_positions", "fetch_slots", "fetches"] {
            case = case.output(name, DType::I32);
        }
        case.in_place("flags", Tensor::vector(rng.flags()))
    }

    /// The rows in another order: where they have the state of the request that `requests` names,
    /// without rows of a request that a lower row has, as the lower row decides; otherwise some of
    /// the rows, some of them twice.
    fn recomposed(case: &Case<Self>, rng: &mut Rng) -> Recomposed<Self> {
        let batch = case.get("wanted").map_or(0, Tensor::rows);
        let tables = case.get("resident").map_or(0, Tensor::rows);
        let requests = match case.get("requests").map(|tensor| &tensor.data) {
            Some(Data::I32(requests)) => Some(requests.clone()),
            _ => None,
        };
        let is_shared = |tensor: &Tensor| tensor.rows() == 1;
        if requests.is_none() && rng.chance(2) {
            return Recomposed::of_rows(case, rng);
        }
        let is_mapped = requests.is_some();
        let requests = requests.unwrap_or_else(|| (0..batch as i32).collect());
        let is_row = |request: i32| usize::try_from(request).is_ok_and(|row| row < tables);
        let order = rng.permutation(batch);
        let picked: Vec<usize> = order
            .into_iter()
            .filter(|&row| !is_row(requests[row]) || !requests[..row].contains(&requests[row]))
            .collect();
        let mut other = case.map(|Argument { name, tensor, .. }| match *name {
            "flags" | "resident" | "used" | "block_table" | "pages" => tensor.clone(),
            "step" if is_shared(tensor) => tensor.clone(),
            _ => tensor.pick(&picked),
        });
        if !is_mapped {
            let rows: Vec<i32> = picked.iter().map(|&row| row as i32).collect();
            other = other.input("requests", Tensor::vector(rows));
        }
        let by_row = ["slots", "fetch_positions", "fetch_slots", "fetches"];
        let by_row = by_row.map(|name| (name, Rows::Of(picked.clone())));
        let rows = by_row.into_iter().chain([("resident", Rows::All), ("used", Rows::All)]);
        Recomposed { case: other, rows: rows.collect() }
    }
}

/// The sizes of a random case, and which numbers its entries are.
struct Sizes {
    batch: usize,
    m: usize,
    tables: usize,
    h: usize,
    mapped: bool,
    /// Entries are below this number, but for `offset`, and for wild ones.
    range: usize,
    /// What is added to each entry.
    offset: usize,
    /// One value in this many is wild.
    wild: usize,
}

impl Sizes {
    fn new(rng: &mut Rng) -> Self {
        // Some rows are too long for a block's shared memory, for a workgroup's, or for one value a
        // thread.
        let (large, larger) = (rng.rare(25), rng.rare(150));
        let batch = rng.size(if large { 3 } else { 7 });
        let longest = match (larger, large) {
            (true, _) => 20_000,
            (_, true) => 5000,
            _ => 70,
        };
        let (mut m, mut h) = (rng.size(longest), rng.size(longest));
        if large && rng.chance(2) {
            (m, h) = (rng.between(longest / 2, longest), rng.between(longest / 2, longest));
        }
        let mapped = rng.chance(2);
        let tables = if mapped { rng.size(batch + 4) } else { batch };
        let range = match rng.below(4) {
            0 => (m + h).max(1),
            1 => 1 + m / 2,
            2 => 8 * (m + h + 1),
            _ => i32::MAX as usize,
        };
        let offset = rng.pick(&[0, 0, 0, 1000, i32::MAX as usize]).min(i32::MAX as usize - range);
        Sizes { batch, m, tables, h, mapped, range, offset, wild: rng.pick(&[7, 1_000_000]) }
    }

    fn entry(&self, rng: &mut Rng) -> i32 {
        if rng.chance(self.wild) {
            return rng.pick(&[-1, -2, i32::MIN, i32::MAX, i32::MAX - 1, 0]);
        }
        (self.offset + rng.below(self.range)) as i32
    }

    fn wanted(&self, rng: &mut Rng) -> Vec<i32> {
        // Ascending rows, as `deduplicate_topk` gives them; rows in any order; and rows of few
        // values.
        let (ascends, repeats) = (rng.chance(3), rng.chance(4));
        let mut all = Vec::with_capacity(self.batch * self.m);
        for _ in 0..self.batch {
            let mut row: Vec<i32> = (0..self.m).map(|_| self.entry(rng)).collect();
            if repeats && self.m > 0 {
                let from = rng.between(1, self.m);
                row = (0..self.m).map(|_| row[rng.below(from)]).collect();
            }
            if ascends {
                row.sort_unstable();
            }
            all.extend(row);
        }
        all
    }

    /// Slots that hold some of what the row with the same number wants, other entries, the same entry
    /// twice, and nothing.
    fn resident(&self, rng: &mut Rng, wanted: &[i32]) -> Vec<i32> {
        // One slot in so many holds an entry that is wanted, another one, or nothing.
        let (wants, empties) = (rng.pick(&[0, 2, 9, 10]), rng.pick(&[0, 0, 1, 10]));
        let mut all = Vec::with_capacity(self.tables * self.h);
        for table in 0..self.tables {
            let row = wanted.get(table * self.m..).and_then(|rest| rest.get(..self.m));
            let row = row.unwrap_or_default();
            for slot in 0..self.h {
                let kind = rng.below(10);
                all.push(match row.get(if rng.chance(2) { slot } else { rng.below(self.m + 1) }) {
                    Some(&entry) if kind < wants => entry,
                    _ if kind < empties => rng.pick(&[-1, -1, -5, i32::MIN]),
                    _ => self.entry(rng),
                });
            }
        }
        all
    }

    /// `step`, and `used`: mostly a little before the step, or all equal, or any bits.
    fn clock(&self, rng: &mut Rng) -> (Tensor, Vec<i32>) {
        let base = rng.pick(&[5, 100_000, i32::MAX, -3]);
        let spread = rng.pick(&[1, 4, 300, 100_000, 1 << 31]);
        let used = |rng: &mut Rng| match rng.chance(self.wild) {
            false => base.wrapping_sub(rng.below(spread) as i32),
            true => rng.next() as i32,
        };
        let used = (0..self.tables * self.h).map(|_| used(rng)).collect();
        let len = if rng.chance(2) { 1 } else { self.batch };
        let steps = (0..len).map(|_| i64::from(base) + rng.below(3) as i64).collect();
        (Tensor::vector(Rng::integers(rng.int_dtype(), steps)), used)
    }

    fn requests(&self, rng: &mut Rng) -> Vec<i32> {
        let order = rng.permutation(self.tables.max(self.batch));
        let request = |rng: &mut Rng, row: usize| match rng.chance(self.wild) {
            false => order[row] as i32,
            true => rng.pick(&[-1, -1, -2, i32::MIN, i32::MAX, self.tables as i32, 0]),
        };
        (0..self.batch).map(|row| request(rng, row)).collect()
    }

    fn tail_starts(&self, rng: &mut Rng) -> Tensor {
        let start = |rng: &mut Rng| match rng.chance(self.wild.min(20)) {
            false => (self.offset + self.range - rng.below(self.range.min(6))) as i64,
            true => rng.pick(&[-1, i64::MIN, i64::MAX, 0, i64::from(i32::MAX)]),
        };
        let starts = (0..self.batch).map(|_| start(rng)).collect();
        Tensor::vector(Rng::integers(rng.int_dtype(), starts))
    }

    /// Blocks of slots, of which some are missing, and their number.
    fn block_table(&self, rng: &mut Rng, slots: usize, size: usize) -> (Vec<i32>, usize) {
        let needed = slots.div_ceil(size);
        let blocks = if rng.chance(4) { rng.size(needed + 2) } else { needed };
        let grows = rng.chance(3);
        let block = |rng: &mut Rng| match rng.chance(self.wild) {
            _ if grows && rng.chance(3) => -1,
            false => rng.below(if size > 1 << 20 { 2 } else { 4000 }) as i32,
            true => rng.pick(&[-1, i32::MIN, i32::MAX, 1 << 27, 1 << 30]),
        };
        ((0..self.tables * blocks).map(|_| block(rng)).collect(), blocks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{balanced, flags, integers, results, share};
    use std::collections::HashSet;

    #[test]
    fn random_slots_get_everywhere() {
        let runs = results::<HotSlots>(300);
        assert_eq!(flags(&runs), 6);
        for name in ["requests", "reset", "tail_starts", "block_table", "pages"] {
            balanced(share(runs.iter().map(|(case, _)| case.get(name).is_some())), name);
        }
        let good = runs.iter().map(|(_, results)| integers(results, "flags")[0] & 0xFF == 0);
        balanced(share(good), "cases without bad data");
        let ran_out = runs.iter().map(|(_, results)| integers(results, "flags")[0] & 4 != 0);
        balanced(share(ran_out), "cases that lack slots, or with bad requests or tail starts");
        let fetches = runs.iter().flat_map(|(_, results)| integers(results, "fetches"));
        balanced(share(fetches.map(|n| n > 0)), "rows that fetch");
        let has_hits = |(_, results): &(Case<HotSlots>, Vec<Argument>)| {
            let fetched: HashSet<i64> = integers(results, "fetch_slots").into_iter().collect();
            integers(results, "slots").iter().any(|slot| !fetched.contains(slot))
        };
        balanced(
            share(runs.iter().map(has_hits)),
            "cases with hits or entries outside of the slots",
        );
        let placed = runs.iter().flat_map(|(_, results)| integers(results, "slots"));
        balanced(share(placed.map(|slot| slot >= 0)), "entries with a place");
        // Every length for which a backend has code of its own.
        let longest = |name| {
            runs.iter().filter_map(|(case, _)| case.get(name)).map(Tensor::cols).max().unwrap_or(0)
        };
        assert!(longest("wanted") > 8192 && longest("resident") > 8192);
    }
}
