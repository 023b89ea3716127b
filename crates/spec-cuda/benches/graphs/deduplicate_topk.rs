//! Batch 115, k 2048: positions in a context, and the whole i32 range.

use spec_core::ops::DeduplicateTopk;
use spec_core::ops::deduplicate_topk::Buffers;
use spec_cuda::Cuda;

use crate::common::random::Random;
use crate::common::{Array, Ready};
use crate::{Known, row, time};

const BATCH: usize = 115;
const K: usize = 2048;

pub fn bench(cuda: &Cuda) {
    let known = [
        (1, 0.6, [8.0, 8.0, 8.3], [3.0, 3.0, 5.5]),
        (2, 1.3, [11.0, 11.0, 12.2], [3.5, 3.5, 7.5]),
        (3, 1.9, [15.0, 15.0, 14.9], [4.2, 4.2, 10.0]),
        (4, 2.5, [17.0, 17.0, 19.5], [5.0, 5.0, 13.0]),
    ];
    let ranges = [("below 2^17", 1 << 17), ("below 2^20", 1 << 20), ("whole i32", 1 << 32)];
    for (steps, floor, seeds, goals) in known {
        for (i, (range, width)) in ranges.into_iter().enumerate() {
            let micros = measure(cuda, steps, width);
            let known = Known { floor, goal: goals[i], seed: seeds[i] };
            row("deduplicate_topk", &format!("115 x {steps} x 2048, {range}"), micros, &known);
        }
    }
}

fn measure(cuda: &Cuda, steps: usize, width: u64) -> f64 {
    let mut random = Random(7 + steps as u64);
    let n = steps * K;
    // The whole range wraps to negatives, which are padding.
    let indices = random.vec(BATCH * n, |r| r.below(width) as u32 as i32);
    let operator = DeduplicateTopk { mtp_step: steps };
    let input = Array::from(cuda, &indices);
    let mut output = Array::<i32>::new(cuda, BATCH * n);
    let mut ready = Ready::new(cuda, &operator, &operator.tensors(BATCH, K));
    let micros = time(cuda, |stream| {
        let buffers = Buffers { indices: input.view(), unique: output.view_mut(), counts: None };
        ready.run(buffers, stream);
    });
    for (got, request) in output.get().chunks(n).zip(indices.chunks(n)) {
        let mut want: Vec<i32> = request.iter().copied().filter(|v| *v >= 0).collect();
        want.sort_unstable();
        want.dedup();
        want.resize(n, -1);
        assert!(got == want, "the timed call went wrong");
    }
    micros
}
