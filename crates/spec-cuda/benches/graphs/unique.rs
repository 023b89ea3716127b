//! u64 keys already on the device.

use spec_core::DType;
use spec_core::ops::{Unique, unique};
use spec_cuda::Cuda;

use crate::common::{Array, Ready};
use crate::{Known, row, time_calls};

pub fn bench(cuda: &Cuda) {
    // Keys, significant bits, and from the table of goals Gkeys/s: CUB's, goal.
    let shapes = [
        (1 << 20, 64, 5.9, 9.0),
        (1 << 24, 64, 12.8, 20.0),
        (1 << 27, 64, 14.4, 22.0),
        (500_000_000, 64, 14.5, 22.0),
        (500_000_000, 30, 15.5, 28.0),
    ];
    for (n, bits, cub, goal) in shapes {
        let micros = measure(cuda, n, bits);
        let known = Known {
            floor: n as f64 * 16.0 / 3.0e6,
            goal: n as f64 / goal / 1000.0,
            seed: n as f64 / cub / 1000.0,
        };
        let rate = n as f64 / micros / 1000.0;
        row("unique", &format!("{n} u64, {bits} bits, {rate:.1} Gkeys/s"), micros, &known);
    }
}

/// A permutation of the numbers below 2^bits: odd factors and shifts.
fn scramble(i: u64, bits: u32) -> u64 {
    let mask = u64::MAX >> (64 - bits);
    let x = i.wrapping_mul(0x9E37_79B9_7F4A_7C15) & mask;
    let x = x ^ (x >> (bits / 2));
    let x = x.wrapping_mul(0xBF58_476D_1CE4_E5B9) & mask;
    x ^ (x >> (bits / 2))
}

fn measure(cuda: &Cuda, n: usize, bits: u32) -> f64 {
    // One in eight keys is there twice, so the number of distinct ones is known.
    let distinct = (n - n / 8) as u64;
    let mut input = Array::<u64>::new(cuda, n);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut keys = vec![0u64; n];
    std::thread::scope(|scope| {
        let part = n.div_ceil(threads);
        for (p, keys) in keys.chunks_mut(part).enumerate() {
            scope.spawn(move || {
                for (i, key) in keys.iter_mut().enumerate() {
                    *key = scramble((p * part + i) as u64 % distinct, bits);
                }
            });
        }
    });
    input.set(&keys);
    let mut output = Array::<u64>::new(cuda, n);
    let mut count = Array::<u64>::new(cuda, 1);
    let mut ready = Ready::new(cuda, &Unique, &Unique.tensors(DType::U64, n));
    let calls = if n > 1 << 22 { 2 } else { 20 };
    let micros = time_calls(cuda, calls, |stream| {
        let buffers = unique::Buffers {
            keys: input.view(),
            unique: output.view_mut(),
            count: count.view_mut(),
            counts: None,
        };
        ready.run(buffers, stream);
    });
    assert_eq!(count.get(), [distinct], "the timed call went wrong");
    let start = output.start((1 << 20).min(distinct as usize));
    assert!(start.is_sorted_by(|a, b| a < b), "the timed call went wrong");
    let last = start[start.len() - 1];
    let mut below: Vec<u64> = keys.iter().copied().filter(|k| *k <= last).collect();
    below.sort_unstable();
    below.dedup();
    assert!(below == start, "the timed call went wrong");
    micros
}
