use crate::Rng;
use crate::case::{Argument, Case, Recomposed, Rows, Subject};
use crate::plain;
use crate::tensor::Tensor;
use spec_core::ops::indexer_topk::{IndexerTopk, MAX_K};
use spec_core::{DType, Result};

impl Subject for IndexerTopk {
    const GOLDEN: &'static str = include_str!("../../golden/indexer_topk.json");

    fn plain(plan: &Self::Plan, buffers: Self::Buffers<'_>) -> Result<()> {
        plain::indexer_topk::run(plan, buffers)
    }

    fn random(rng: &mut Rng) -> Case<Self> {
        // Long rows now and then: more than a team's memory holds at once.
        let (rows, cols) = match () {
            () if rng.rare(100) => (rng.between(1, 2), rng.between(20_000, 90_000)),
            () if rng.rare(30) => (rng.size(9), rng.between(1000, 9000)),
            () => (rng.size(12), rng.size(600)),
        };
        // As wide outputs are as long as rows are.
        let k = if rng.rare(12) || rows <= 1 && rng.chance(3) {
            rng.pick(&[1, 2, 16, 64, 100, 512, 2048, MAX_K])
        } else {
            rng.pick(&[1, 2, 16, 64, 100])
        };
        let values = scores(rng, rows, cols);
        let dtype = rng.float_dtype();
        let scores = Tensor::matrix(Rng::floats(dtype, values), rows, cols);
        let mut case = Case::new(IndexerTopk::new(k)).input("scores", scores);
        // Lengths and starts of either width, some of them beyond the row.
        let mut some = |case: Case<Self>, name, most: usize| {
            let bad = rng.chance(4);
            let vector = (0..rows).map(|_| match (bad, rng.below(6)) {
                (true, 0) => rng.pick(&[-1, i64::from(i32::MIN), i64::from(i32::MAX)]),
                (true, 1) => (cols + 1 + rng.below(5)) as i64,
                _ => rng.between(0, most) as i64,
            });
            let vector = vector.collect();
            case.input(name, Tensor::vector(Rng::integers(rng.int_dtype(), vector)))
        };
        let (lengths, starts) = (cols.is_multiple_of(2), cols.is_multiple_of(3));
        if lengths {
            case = some(case, "lengths", cols - if starts { cols / 4 } else { 0 });
        }
        if starts {
            case = some(case, "starts", cols / 4);
        }
        case.output("indices", rng.pick(&[DType::I32, DType::U32, DType::I64]), &[rows, k])
            .in_place("flags", Tensor::vector(rng.flags()))
    }

    /// Some of the rows, in another order, some of them twice.
    fn recomposed(case: &Case<Self>, rng: &mut Rng) -> Recomposed<Self> {
        let rows = case.get("scores").map_or(0, Tensor::rows);
        let wanted = if rows == 0 { 0 } else { rng.between(0, rows + 3) };
        let picked: Vec<usize> = (0..wanted).map(|_| rng.below(rows)).collect();
        let case = case.map(
            |Argument { name, tensor, .. }| {
                if *name == "flags" { tensor.clone() } else { tensor.pick(&picked) }
            },
        );
        Recomposed { case, rows: vec![("indices", Rows::Of(picked))] }
    }
}

/// Rows of scores in one of several styles.
fn scores(rng: &mut Rng, rows: usize, cols: usize) -> Vec<f32> {
    let style = rng.below(8);
    let level = rng.normal();
    let mut values: Vec<f32> = (0..rows * cols)
        .map(|i| match style {
            // A plateau of zeros, as a ReLU leaves it; of both signs.
            0 => (rng.normal() - 1.5).max(0.0),
            1 => rng.pick(&[0.0, -0.0, 1.0]),
            // All equal; a few values; only the last bits differ.
            2 => level,
            3 => rng.below(5) as f32 - 2.0,
            4 => f32::from_bits(0x3F80_0000 + rng.below(300) as u32),
            // Ascending, descending.
            5 => i as f32,
            6 => -(i as f32),
            _ => rng.normal(),
        })
        .collect();
    if rng.chance(3) && !values.is_empty() {
        for _ in 0..rng.between(1, 1 + values.len() / 4) {
            let at = rng.below(values.len());
            values[at] = rng.bad_float();
        }
    }
    values
}
