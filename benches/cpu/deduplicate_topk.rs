//! Batch 115, k 2048, values of the whole i32 range and below 131072.

use spec::Stream;
use spec::ops::DeduplicateTopk;
use spec::ops::deduplicate_topk::Buffers;

use spec_baselines::plain;

use crate::{Bench, Random};

pub fn run(bench: &Bench) -> spec::Result<()> {
    let (batch, k) = (115, 2048);
    for mtp_step in 1..=4 {
        for (name, range) in [("whole i32", 1u64 << 31), ("below 131072", 1 << 17)] {
            let shape = format!("115 x {mtp_step} x 2048, {name}");
            if !bench.wants("deduplicate_topk", &shape) {
                continue;
            }
            let mut random = Random(mtp_step as u64);
            let row = mtp_step * k;
            let values: Vec<i32> =
                (0..batch * row).map(|_| (random.next() % range) as i32).collect();
            let params = DeduplicateTopk { mtp_step };
            let dedup = bench.handle.create(&params, &params.tensors(batch, k))?;
            let mut workspace = bench.handle.workspace(dedup.workspace_size())?;
            let mut unique = vec![0i32; batch * row];
            let mut call = || {
                let buffers = Buffers {
                    indices: (&values).into(),
                    unique: (&mut unique).into(),
                    counts: None,
                };
                dedup.calculate(&mut workspace, buffers, Stream::default())
            };
            call()?;
            let plain = || -> Vec<i32> {
                values.chunks(row).flat_map(|v| plain::deduplicate_topk(v).0).collect()
            };
            let expected = plain();
            bench.row(
                "deduplicate_topk",
                &shape,
                values.len() * 4,
                || {
                    std::hint::black_box(plain());
                },
                call,
            );
            assert_eq!(unique, expected);
        }
    }
    Ok(())
}
