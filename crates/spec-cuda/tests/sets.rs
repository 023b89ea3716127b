//! Compares `deduplicate_topk` and `unique` with sorted sets, over the sizes and ranges at
//! which they change their algorithm. Each call is made twenty times, and no bit may change
//! from one call to the next.

mod common;

use common::{Array, Ready, cuda};
use spec_conformance::Rng;
use spec_core::ops::deduplicate_topk::{Buffers, Tensors};
use spec_core::ops::{DeduplicateTopk, Unique, unique};
use spec_core::{Backend, DType, Element, Stream, TensorDesc};
use spec_cuda::Cuda;

/// Calls of each case; `SPEC_REPEATS` sets another number, such as fewer under a sanitizer.
fn repeats() -> usize {
    std::env::var("SPEC_REPEATS").ok().and_then(|n| n.parse().ok()).unwrap_or(20)
}

/// Expected `unique` and `counts`.
fn expected_rows(indices: &[i32], batch: usize) -> (Vec<i32>, Vec<i32>) {
    let n = indices.len() / batch.max(1);
    let (mut rows, mut counts) = (Vec::new(), Vec::new());
    for request in indices.chunks(n.max(1)) {
        let mut row: Vec<i32> = request.iter().copied().filter(|v| *v >= 0).collect();
        row.sort_unstable();
        row.dedup();
        counts.push(row.len() as i32);
        row.resize(n, -1);
        rows.extend(row);
    }
    (rows, counts)
}

/// The kernel for requests of `n` values: the name says how many of them a thread has in registers.
/// Sixteen need more shared memory than some devices have.
fn kernel_of(cuda: &Cuda, n: usize) -> &'static str {
    match n.div_ceil(1024) {
        0..=2 => "deduplicate_topk_2",
        3..=4 => "deduplicate_topk_4",
        5..=6 => "deduplicate_topk_6",
        7..=8 => "deduplicate_topk_8",
        9..=16 if cuda.limits().shared >= 130 << 10 => "deduplicate_topk_16",
        _ => "deduplicate_topk_general",
    }
}

/// Checks one shape, with packed rows or with gaps between rows.
fn check_rows(cuda: &Cuda, indices: &[i32], batch: usize, steps: usize, k: usize, gap: usize) {
    let operator = DeduplicateTopk::new().mtp_step(steps);
    let (rows, stride, n) = (batch * steps, k + gap, steps * k);
    let tensors = Tensors::new(
        TensorDesc::with_strides(DType::I32, [rows, k], [stride as isize, 1]),
        TensorDesc::with_strides(DType::I32, [batch, n], [(n + gap) as isize, 1]),
    )
    .counts(TensorDesc::new(DType::I32, [batch]));
    let mut spread = vec![12_345; rows * stride];
    for (to, from) in spread.chunks_mut(stride).zip(indices.chunks(k)) {
        to[..k].copy_from_slice(from);
    }
    let (want, want_counts) = expected_rows(indices, batch);
    let input = Array::from(cuda, &spread);
    let mut output = Array::<i32>::new(cuda, batch * (n + gap));
    let mut counts = Array::<i32>::new(cuda, batch);
    // A call without requests enqueues nothing.
    let kernels = &[kernel_of(cuda, n)][..batch.min(1)];
    let mut ready = Ready::new(cuda, &operator, &tensors).runs(kernels);
    for repeat in 0..repeats() {
        output.set(&vec![-77; batch * (n + gap)]);
        let buffers = Buffers::new(input.view(), output.view_mut()).counts(counts.view_mut());
        ready.run(buffers, Stream::default());
        let got = output.get();
        let what = format!("batch {batch}, {steps} x {k}, gap {gap}, repeat {repeat}");
        for (request, (got, want)) in got.chunks(n + gap).zip(want.chunks(n)).enumerate() {
            let wrong = got.iter().zip(want).position(|(g, w)| g != w);
            assert_eq!(wrong, None, "{what}: request {request}");
            assert!(got[n..].iter().all(|v| *v == -77), "{what}: wrote between rows");
        }
        assert_eq!(counts.get(), want_counts, "{what}");
    }
}

#[test]
fn rows_are_deduplicated() {
    let Some(cuda) = cuda() else { return };
    let mut random = Rng::new(1, "");
    // Bitmaps of each size, buckets, windows, parts; ranges that start high.
    let ranges: [(i64, usize); 12] = [
        (0, 1 << 10),
        (0, 1 << 17),
        (0, 1 << 18),
        (0, 1 << 20),
        ((1 << 20) - 70, 1 << 17),
        ((1 << 20) - 70, 1 << 18),
        ((1 << 20) - 70, 1 << 19),
        (2_000_000_000, 140_000_000),
        (0, 1 << 21),
        (0, 1 << 31),
        (-(1 << 31), 1 << 32),
        (i64::from(i32::MAX) - 40, 41),
    ];
    // Shapes for every kernel: see `kernel_of`.
    let shapes = [(3, 1, 1), (2, 3, 7), (5, 1, 2048), (5, 2, 2048), (5, 3, 2048), (5, 4, 2048)];
    let large = [(2, 2, 5000), (2, 8, 2048), (1, 1, 40_000)];
    for (start, width) in ranges {
        for (batch, steps, k) in shapes.into_iter().chain(large) {
            let len = batch * steps * k;
            let indices = random.vec(len, |r| (start + r.below(width) as i64) as i32);
            check_rows(&cuda, &indices, batch, steps, k, 0);
            check_rows(&cuda, &indices, batch, steps, k, 3);
        }
    }
}

#[test]
fn awkward_rows_are_deduplicated() {
    let Some(cuda) = cuda() else { return };
    let mut random = Rng::new(2, "");
    for (steps, k) in [(1, 2000), (3, 1900), (4, 2048), (8, 2048), (2, 9000), (3, 14_000)] {
        let n = steps * k;
        // Crowded buckets: a tight cluster and one value far away.
        let mut cluster = random.vec(n, |r| 77 + r.below(3000) as i32);
        cluster[n / 2] = i32::MAX;
        // All equal; all padding; the two ends; each value twice.
        let doubled = random.vec(n, |r| (r.below(n / 2) * 1_000_003 % 0x7FFF_FFFF) as i32);
        // Small and large values, each in warps of their own.
        let bounds = [1 << 17, 1 << 18, 1 << 20, 1 << 31];
        let mut mixed = |kinds: usize| -> Vec<i32> {
            (0..n).map(|i| random.below(bounds[i / 256 % kinds]) as i32).collect()
        };
        let (two, three, four) = (mixed(2), mixed(3), mixed(4));
        let cases = [
            cluster,
            two,
            three,
            four,
            vec![5; n],
            vec![i32::MAX; n],
            vec![-1; n],
            vec![i32::MIN; n],
            random.vec(n, |r| if r.below(2) == 0 { 0 } else { i32::MAX }),
            doubled,
        ];
        for case in cases {
            check_rows(&cuda, &case, 1, steps, k, 0);
        }
    }
    check_rows(&cuda, &[], 0, 2, 5, 0);
    let operator = DeduplicateTopk::new().mtp_step(2);
    let mut tensors = operator.tensors(3, 0);
    tensors.counts = Some(TensorDesc::new(DType::I32, [3]));
    let (input, mut output) = (Array::<i32>::new(&cuda, 0), Array::<i32>::new(&cuda, 0));
    let mut counts = Array::from(&cuda, &[9; 3]);
    let buffers = Buffers::new(input.view(), output.view_mut()).counts(counts.view_mut());
    Ready::new(&cuda, &operator, &tensors).run(buffers, Stream::default());
    assert_eq!(counts.get(), [0; 3]);
}

/// The start of the name of a kernel that `n` keys of `size` bytes each must reach. One block sorts up
/// to 9216 keys; more keys are partitioned; the largest numbers of keys in this file need two
/// partitions, or a wide one, which holds two tiles of keys in shared memory.
fn partition_of(cuda: &Cuda, n: usize, size: usize) -> Option<&'static str> {
    let wide = 2 * if size == 8 { 12 * 8 } else { 16 * 4 } + 17;
    match n {
        0 => None,
        1..=9216 => Some("unique_sort_buckets"),
        9217..=1_000_000 => Some("unique_partition_high"),
        _ if cuda.limits().shared >= wide << 10 => Some("unique_partition_wide"),
        _ => Some("unique_partition_low"),
    }
}

fn check_keys<T: Element + Ord + std::fmt::Debug>(cuda: &Cuda, keys: &[T], with_counts: bool) {
    let mut sorted = keys.to_vec();
    sorted.sort_unstable();
    let runs = || sorted.chunk_by(|a, b| a == b);
    let distinct = runs().count();
    let n = keys.len();
    let mut tensors = Unique::new().tensors(T::DTYPE, n);
    tensors.counts = with_counts.then_some(TensorDesc::new(DType::U64, [n]));
    // The inverse has 64 bits where occurrences are counted, else 32 bits.
    let place = if with_counts { DType::I64 } else { DType::I32 };
    tensors.inverse = Some(TensorDesc::new(place, [n]));
    let mut distinct_keys = sorted.clone();
    distinct_keys.dedup();
    let places: Vec<i64> =
        keys.iter().map(|key| distinct_keys.partition_point(|other| other < key) as i64).collect();
    let input = Array::from(cuda, keys);
    let (mut wide, mut narrow) = (Array::<i64>::new(cuda, n), Array::<i32>::new(cuda, n));
    let mut output = Array::<T>::new(cuda, n);
    let mut count = Array::<u64>::new(cuda, 1);
    let mut counts = Array::<u64>::new(cuda, n);
    let mut ready = Ready::new(cuda, &Unique::new(), &tensors);
    let route = ready.descriptor.route().expect("a route");
    let partition = partition_of(cuda, n, size_of::<T>());
    let is_there = |name: &str| route.kernels().any(|kernel| kernel.starts_with(name));
    assert!(partition.is_none_or(is_there), "{partition:?} of {n} keys: {route}");
    for repeat in 0..if n > 100_000 { repeats().min(3) } else { repeats() } {
        let mut buffers = unique::Buffers::new(input.view(), output.view_mut(), count.view_mut());
        buffers.counts = with_counts.then(|| counts.view_mut());
        buffers.inverse = Some(if with_counts { wide.view_mut() } else { narrow.view_mut() });
        ready.run(buffers, Stream::default());
        let what = format!("{n} keys of {}, repeat {repeat}", T::DTYPE);
        assert_eq!(count.get(), [distinct as u64], "{what}");
        let got = output.start(distinct);
        assert!(got.iter().eq(runs().map(|run| &run[0])), "{what}: keys");
        if with_counts {
            let got = counts.start(distinct).into_iter();
            assert!(got.eq(runs().map(|run| run.len() as u64)), "{what}: counts");
        }
        let got: Vec<i64> = match place {
            DType::I64 => wide.get(),
            _ => narrow.get().into_iter().map(i64::from).collect(),
        };
        assert!(got == places, "{what}: inverse");
        assert!(input.get() == keys, "{what}: keys were changed");
    }
}

#[test]
fn keys_are_made_unique() {
    let Some(cuda) = cuda() else { return };
    let mut random = Rng::new(3, "");
    for n in [0, 1, 2, 31, 33, 4096, 8191, 8192, 8193, 9216, 9217, 16_384, 16_385, 50_000, 700_000]
    {
        // Shifts leave fewer significant bits and more duplicates; the last
        // leaves one key.
        for shift in [0, 34, 47, 63] {
            let sparse = 0x00FF_0000_FF0F_0081u64 >> (shift / 2);
            for with_counts in [false, true] {
                let keys = random.vec(n, |r| r.next() >> shift);
                check_keys(&cuda, &keys, with_counts);
                check_keys(&cuda, &random.vec(n, |r| (r.next() as i64) >> shift), with_counts);
                check_keys(&cuda, &random.vec(n, |r| r.next() & sparse), with_counts);
                check_keys(&cuda, &random.vec(n, |r| (r.next() >> shift) as u32), with_counts);
                let signed = random.vec(n, |r| (r.next() as i32) >> (shift / 2));
                check_keys(&cuda, &signed, with_counts);
            }
        }
    }
    cuda.synchronize().expect("no error left");
}

/// Keys that ascend, nearly ascend, repeat or bunch, in numbers that need one partition
/// and two: together they take every route that the survey can choose.
#[test]
fn awkward_keys_are_made_unique() {
    let Some(cuda) = cuda() else { return };
    let mut random = Rng::new(4, "");
    for n in [9217, 300_000, 3_000_000] {
        let step = u64::MAX / n as u64;
        let ascending: Vec<u64> = (0..n as u64).map(|i| i / 8 * 7 * step).collect();
        // Keys that are out of order only at the end, or only in the middle.
        let mut last_is_low = ascending.clone();
        last_is_low[n - 1] = 0;
        let mut swapped = ascending.clone();
        swapped.swap(n / 2, n / 2 + 8);
        let descending: Vec<u64> = ascending.iter().rev().copied().collect();
        // A few keys are most of the input; and keys whose shares fall from one to the next.
        let heavy = random.vec(n, |r| {
            let key = r.next();
            if key % 2 == 0 { key % 128 * step } else { key }
        });
        let falling = random.vec(n, |r| {
            let (key, bits) = (r.next(), r.below(64));
            (key >> bits).wrapping_mul(0x9E37_79B9_7F4A_7C15)
        });
        // Clusters of many close keys that are not equal.
        let clusters = random.vec(n, |r| (r.below(50) << 58 | r.below(1 << 30)) as u64);
        // Nearly all keys are in a corner of the range; a few keys span the rest.
        let mut corner = random.vec(n, |r| (1 << 40) + r.below(1 << 22) as u64);
        for i in (0..n).step_by(n / 9) {
            corner[i] = random.next();
        }
        // Buckets with few distinct keys that occur often; and very uneven bins.
        let repeated = random.vec(n, |r| (r.below(n / 40 + 1) as u64).wrapping_mul(step));
        let uneven = random.vec(n, |r| r.next() & !0xFFFF_FFFF_F000 | (r.below(4) as u64) << 40);
        let cases = [
            ascending,
            last_is_low,
            swapped,
            descending,
            heavy,
            falling,
            clusters,
            corner,
            repeated,
            uneven,
            vec![u64::MAX; n],
        ];
        for keys in cases {
            let signed: Vec<i64> = keys.iter().map(|key| *key as i64).collect();
            let short: Vec<u32> = keys.iter().map(|key| (*key >> 32) as u32).collect();
            for with_counts in [false, true] {
                check_keys(&cuda, &keys, with_counts);
                check_keys(&cuda, &signed, with_counts);
                check_keys(&cuda, &short, with_counts);
            }
        }
    }
    cuda.synchronize().expect("no error left");
}
