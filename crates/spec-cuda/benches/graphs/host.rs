//! What a call costs the host: checks, arguments, the driver's launch.

use std::time::Instant;

use spec_core::ops::DeduplicateTopk;
use spec_core::ops::deduplicate_topk::Buffers;
use spec_core::{Backend, Stream};
use spec_cuda::Cuda;

use crate::common::{Array, Ready};
use crate::{Known, row};

const CALLS: usize = 200;

/// The median over rounds of the time a call takes to return. A round is short
/// enough that the driver's queue, of about a thousand launches, never fills.
pub fn bench(cuda: &Cuda) {
    let operator = DeduplicateTopk { mtp_step: 1 };
    let input = Array::from(cuda, &[3, 1, 2, 3]);
    let mut output = Array::<i32>::new(cuda, 4);
    let mut ready = Ready::new(cuda, &operator, &operator.tensors(1, 4));
    let mut rounds = Vec::new();
    for _ in 0..50 {
        let start = Instant::now();
        for _ in 0..CALLS {
            let buffers =
                Buffers { indices: input.view(), unique: output.view_mut(), counts: None };
            ready.run(buffers, Stream::default());
        }
        rounds.push(start.elapsed().as_secs_f64() * 1e6 / CALLS as f64);
        cuda.synchronize().expect("no error");
    }
    rounds.sort_by(f64::total_cmp);
    let known = Known { floor: 0.0, goal: 4.0, seed: 0.0 };
    row("host", "a call of one launch, until it returns", rounds[rounds.len() / 2], &known);
}
