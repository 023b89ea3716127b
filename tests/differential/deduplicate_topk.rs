use proptest::prelude::*;
use spec::ops::DeduplicateTopk;
use spec::ops::deduplicate_topk::{Buffers, Tensors};
use spec::{DType, Handle, Stream, TensorDesc};

use crate::common::grid::Grid;
use spec_baselines::plain;

use crate::{Random, on_every_device};

#[derive(Clone, Debug)]
struct Case {
    batch: usize,
    mtp_step: usize,
    k: usize,
    /// Values are below this; negative ones are padding.
    range: usize,
    gap: usize,
    counts: bool,
    seed: u64,
}

fn case() -> impl Strategy<Value = Case> + Clone {
    let k = prop_oneof![0usize..70, Just(2048), Just(1000)];
    let range = prop_oneof![Just(1), 1usize..200, Just(1 << 17), Just(1 << 20), Just(1 << 31)];
    (0usize..6, 1usize..6, k, range, 0usize..4, any::<bool>(), any::<u64>()).prop_map(
        |(batch, mtp_step, k, range, gap, counts, seed)| Case {
            batch,
            mtp_step,
            k,
            range,
            gap,
            counts,
            seed,
        },
    )
}

fn check(handle: &Handle, case: &Case) -> spec::Result<()> {
    let Case { batch, mtp_step, k, .. } = *case;
    let mut random = Random(case.seed);
    let padding = 1 + random.below(20);
    let values: Vec<i32> = random.many(batch * mtp_step * k, |r| match r.one_in(padding) {
        true => -1 - r.below(i32::MAX as usize) as i32,
        false => r.below(case.range) as i32,
    });
    let indices = Grid::new(batch * mtp_step, k, case.gap, &values, 5);
    let unique = Grid::output(batch, mtp_step * k, case.gap, -9);
    let tensors = Tensors {
        indices: indices.desc(),
        unique: unique.desc(),
        counts: case.counts.then(|| TensorDesc::new(DType::I32, [batch])),
    };
    let dedup = handle.create(&DeduplicateTopk { mtp_step }, &tensors)?;
    let mut workspace = handle.workspace(dedup.workspace_size())?;
    let input = handle.upload(&indices.data)?;
    let mut output = handle.upload(&unique.data)?;
    let mut counts = handle.upload(&vec![-9i32; batch])?;
    let buffers = Buffers {
        indices: input.view(),
        unique: output.view_mut(),
        counts: case.counts.then(|| counts.view_mut()),
    };
    dedup.calculate(&mut workspace, buffers, Stream::default())?;
    let output = unique.packed(&output.to_vec()?);
    let counts = counts.to_vec()?;
    let row = mtp_step * k;
    for b in 0..batch {
        let (expected, count) = plain::deduplicate_topk(&values[b * row..][..row]);
        assert_eq!(output[b * row..][..row], expected, "request {b}");
        assert_eq!(counts[b], if case.counts { count } else { -9 }, "count {b}");
    }
    Ok(())
}

#[test]
fn agrees_with_the_plain_loop() {
    on_every_device(&case(), check);
}
