use crate::Rng;
use crate::argument::Argument;
use crate::case::{Case, Recomposed, Rows, Subject};
use crate::plain;
use crate::tensor::Tensor;
use spec_core::ops::deduplicate_topk::DeduplicateTopk;
use spec_core::{DType, Result};

impl Subject for DeduplicateTopk {
    const GOLDEN: &'static str = include_str!("../../golden/deduplicate_topk.json");

    fn plain(plan: &Self::Plan, buffers: Self::Buffers<'_>) -> Result<()> {
        plain::deduplicate_topk::run(plan, buffers)
    }

    fn examples() -> Vec<Case<Self>> {
        let indices = [[7, 3, 3, -1], [3, 9, 0, 7], [-1, -5, -1, -1], [-1, -1, -2, -1]];
        let case = Case::new(DeduplicateTopk::new().mtp_step(2)).input("indices", indices);
        let case = case.output("unique", DType::I32).output("counts", DType::I32);
        vec![case.output("inverse", DType::I32)]
    }

    fn random(rng: &mut Rng) -> Case<Self> {
        if rng.rare(150) {
            return many_values(rng);
        }
        let mtp_step = rng.pick(&[1, 1, 2, 3, 4, 7]);
        // The shape that engines use (k of 2048) and many requests are rare, because such a case
        // takes as long as fifty small cases.
        let batch = rng.size(if rng.rare(80) { 24 } else { 6 });
        let k = match rng.rare(40) {
            true if rng.chance(2) => 2048,
            true => rng.size(1100),
            false if rng.chance(16) => rng.size(1100),
            false => rng.size(150),
        };
        let rows = batch * mtp_step;
        let style = rng.below(7);
        let base = rng.next();
        let values: Vec<i32> = (0..rows * k)
            .map(|i| match style {
                0 => rng.below(40) as i32 - 8,
                1 => rng.below(1 << 17) as i32,
                2 => rng.next() as i32,
                // Descending values, all distinct.
                3 => i32::MAX - i as i32,
                4 => rng.pick(&[0, 1, -1, i32::MAX, i32::MAX - 1, i32::MIN]),
                // Values far from each other, each some three times.
                5 => (rng.below(1 + rows * k / 3) as u32).wrapping_mul(0x9E37_79B1).cast_signed(),
                // A narrow range far from 0.
                _ => (base as i32 & 0x7FFF_0000) | rng.below(3000) as i32,
            })
            .collect();
        case(rng, values, [batch, mtp_step, k])
    }

    /// Some of the requests, in another order, some of them twice.
    fn recomposed(case: &Case<Self>, rng: &mut Rng) -> Recomposed<Self> {
        let step = case.operator.mtp_step;
        let batch = case.get("unique").map_or(0, Tensor::rows);
        let wanted = if batch == 0 { 0 } else { rng.between(0, batch + 3) };
        let requests: Vec<usize> = (0..wanted).map(|_| rng.below(batch)).collect();
        let rows: Vec<usize> =
            requests.iter().flat_map(|request| request * step..(request + 1) * step).collect();
        let case = case.map(|Argument { name, tensor, .. }| {
            tensor.pick(if matches!(*name, "indices" | "inverse") { &rows } else { &requests })
        });
        let of_tokens = ("inverse", Rows::Of(rows));
        let rows = Rows::Of(requests);
        Recomposed { case, rows: vec![("unique", rows.clone()), ("counts", rows), of_tokens] }
    }
}

/// A call with these values; often with all optional outputs.
fn case(
    rng: &mut Rng,
    values: Vec<i32>,
    [batch, mtp_step, k]: [usize; 3],
) -> Case<DeduplicateTopk> {
    let rows = batch * mtp_step;
    let case = Case::new(DeduplicateTopk::new().mtp_step(mtp_step))
        .input("indices", Tensor::matrix(values, rows, k))
        .output("unique", DType::I32)
        .output("counts", DType::I32);
    if rng.chance(2) { case } else { case.output("inverse", DType::I32) }
}

/// Requests with more values than backends sort at once: 8192 on CUDA.
fn many_values(rng: &mut Rng) -> Case<DeduplicateTopk> {
    let mtp_step = rng.pick(&[1, 3, 8]);
    let batch = rng.between(1, 2);
    let k = rng.between(8192 / mtp_step, 40_000 / mtp_step) + 1;
    let rows = batch * mtp_step;
    let style = rng.below(7);
    let centers: Vec<i32> = (0..rng.between(1, 4)).map(|_| rng.next() as i32 & i32::MAX).collect();
    let values: Vec<i32> = (0..rows * k)
        .map(|i| match style {
            0 => rng.next() as i32,
            1 => rng.next() as i32 & 0x00FF_FFFF,
            2 => rng.below(1 << 20) as i32,
            // Descending values, all distinct, far from each other.
            3 => i32::MAX - i as i32 * 13_001,
            // Few values of the whole range, many times.
            4 => rng.pick(&[0, 1, -1, i32::MAX, i32::MAX - 1, i32::MIN, 1 << 20, (1 << 20) - 1]),
            // Many values near a few others, and some of the whole range.
            5 if rng.chance(50) => rng.next() as i32,
            5 => rng.pick(&centers).wrapping_add(rng.below(30_000) as i32),
            // The ends of the range.
            _ => (rng.below(20_000) as i32).wrapping_sub(10_000) & i32::MAX,
        })
        .collect();
    case(rng, values, [batch, mtp_step, k])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::argument::Argument;
    use crate::tests::{balanced, integers, results, share};

    #[test]
    fn random_sets_get_everywhere() {
        let padded = |(_, results): &(Case<DeduplicateTopk>, Vec<Argument>)| {
            integers(results, "unique").contains(&-1)
        };
        balanced(share(results::<DeduplicateTopk>(100).iter().map(padded)), "padded rows");
    }
}
