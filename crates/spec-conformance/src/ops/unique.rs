use crate::Rng;
use crate::argument::{Argument, find};
use crate::case::{Case, Recomposed, Rows, Subject};
use crate::plain;
use crate::tensor::{Data, Tensor};
use spec_core::ops::unique::Unique;
use spec_core::{DType, Result};

impl Subject for Unique {
    const GOLDEN: &'static str = include_str!("../../golden/unique.json");

    fn plain(plan: &Self::Plan, buffers: Self::Buffers<'_>) -> Result<()> {
        plain::unique::run(plan, buffers)
    }

    /// The file's `unique` and `counts` have as many elements as there are distinct
    /// keys: the buffers hold one for each key. The file does not have `count`.
    fn complete(case: &mut Case<Self>) {
        let keys = case.get("keys").map_or(0, Tensor::rows);
        for Argument { name, tensor, .. } in &mut case.arguments {
            if *name == "unique" || *name == "counts" {
                *tensor = Tensor::to_fill(tensor.data.dtype(), &[keys]);
            }
        }
        *case = case.clone().output("count", DType::U64);
    }

    fn examples() -> Vec<Case<Self>> {
        let case = Case::new(Unique::new())
            .input("keys", [5_i64, -1, 5, i64::MIN, 0, i64::MAX, -1, 5])
            .output("unique", DType::I64)
            .output("count", DType::U64)
            .output("counts", DType::U64);
        vec![case.output("inverse", DType::I32)]
    }

    fn random(rng: &mut Rng) -> Case<Self> {
        let dtype = rng.pick(&[DType::U64, DType::U64, DType::I64, DType::U32, DType::I32]);
        let n = match () {
            // More than a core's cache holds.
            () if rng.rare(1000) => rng.between(100_000, 300_000),
            () if rng.rare(200) => rng.between(5000, 100_000),
            () if rng.rare(20) => rng.between(500, 5000),
            () => rng.size(500),
        };
        let style = rng.below(8);
        let (mask, fixed) = (rng.next(), rng.next());
        let mut keys: Vec<i64> = (0..n)
            .map(|i| match style {
                0 => rng.below(50) as i64 - 25,
                1 => (rng.next() >> 34) as i64,
                2 => fixed as i64,
                // Keys that differ in their high bits only.
                3 => (rng.next() << 48 | fixed >> 16) as i64,
                4 => rng.pick(&[0, 1, -1, i64::MAX, i64::MIN, i64::from(i32::MIN), 1 << 32]),
                // A few scattered bits.
                5 => (rng.next() & mask & 0x8000_0103_0000_0F01) as i64,
                6 => i as i64 / 3,
                _ => rng.next() as i64,
            })
            .collect();
        match rng.below(6) {
            0 => keys.sort_unstable(),
            1 => keys.reverse(),
            _ => {}
        }
        let case = Case::new(Unique::new())
            .input("keys", Tensor::vector(Rng::integers(dtype, keys)))
            .output("unique", dtype)
            .output("count", DType::U64);
        let case = if rng.chance(2) { case } else { case.output("counts", DType::U64) };
        match rng.below(4) {
            0 => case.output("inverse", DType::I64),
            1 => case.output("inverse", DType::I32),
            _ => case,
        }
    }

    /// The keys in another order.
    fn recomposed(case: &Case<Self>, rng: &mut Rng) -> Recomposed<Self> {
        let keys = case.get("keys").map_or(0, Tensor::rows);
        let order = rng.permutation(keys);
        let case = case.map(
            |Argument { name, tensor, .. }| {
                if *name == "keys" { tensor.pick(&order) } else { tensor.clone() }
            },
        );
        let rows = vec![("unique", Rows::All), ("counts", Rows::All), ("inverse", Rows::Of(order))];
        Recomposed { case, rows }
    }

    /// What lies behind `count` elements is unspecified.
    fn trim(results: &mut [Argument]) {
        let count = match find(results, "count").map(|tensor| &tensor.data) {
            Some(Data::U64(count)) => count.first().copied().unwrap_or(0),
            _ => 0,
        };
        for Argument { name, tensor, .. } in results {
            if *name == "unique" || *name == "counts" {
                let rows = usize::try_from(count).unwrap_or(usize::MAX).min(tensor.rows());
                *tensor = tensor.head(rows);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::argument::{Argument, find};
    use crate::tests::{balanced, results, share};

    #[test]
    fn random_sets_get_everywhere() {
        let duplicates = |(case, results): &(Case<Unique>, Vec<Argument>)| {
            let rows = |of: &[Argument], name| find(of, name).map_or(0, Tensor::rows);
            rows(results, "unique") < rows(&case.arguments, "keys")
        };
        balanced(share(results::<Unique>(100).iter().map(duplicates)), "duplicate keys");
    }
}
