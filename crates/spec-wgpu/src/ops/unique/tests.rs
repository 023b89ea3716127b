//! Each way of sorting, on devices with different limits.

use std::collections::BTreeMap;

use spec_conformance::Rng;
use spec_core::{Backend, Descriptor, Memory, TensorDesc};

use super::shape::FEW_DIGITS;
use super::*;
use crate::Options;

/// Devices on which all tensors lie in one binding, with much and with little workgroup memory,
/// and a device on which tensors lie in several windows.
fn gpus() -> Vec<Wgpu> {
    let plain = Options { plain: true, ..Options::default() };
    let windows = Options { plain: false, max_binding: Some(80_000) };
    let opened = [Options::default(), plain, windows].map(|o| Wgpu::open_with(0, &o));
    let required = std::env::var("SPEC_REQUIRE").unwrap_or_default();
    let found: Vec<_> = opened.into_iter().filter_map(|gpu| gpu.ok()).collect();
    assert!(!required.contains("wgpu") || found.len() == 3, "no wgpu device");
    found
}

fn words(memory: &dyn Memory, from: usize, len: usize) -> Vec<u32> {
    let mut bytes = vec![0; len * 4];
    memory.read_at(from * 4, &mut bytes).unwrap();
    bytes.chunks_exact(4).map(|w| u32::from_le_bytes(w.try_into().unwrap())).collect()
}

fn keys_of(words: &[u32], dtype: DType) -> Vec<i128> {
    let wide = |w: &[u32]| u64::from(w[0]) | (u64::from(w[1]) << 32);
    match dtype {
        DType::U32 => words.iter().map(|&w| i128::from(w)).collect(),
        DType::I32 => words.iter().map(|&w| i128::from(w as i32)).collect(),
        DType::U64 => words.chunks_exact(2).map(|w| i128::from(wide(w))).collect(),
        _ => words.chunks_exact(2).map(|w| i128::from(wide(w) as i64)).collect(),
    }
}

/// Runs the operator, compares its results with a map, and returns how the call sorted the
/// keys.
fn check(gpu: &Wgpu, dtype: DType, keys: &[u64], what: &str) -> u32 {
    let n = keys.len();
    let bytes: Vec<u8> = match dtype.size() {
        4 => keys.iter().flat_map(|&k| (k as u32).to_le_bytes()).collect(),
        _ => keys.iter().flat_map(|&k| k.to_le_bytes()).collect(),
    };
    let given = bytes.chunks_exact(4).map(|w| u32::from_le_bytes(w.try_into().unwrap()));
    let mut expected = BTreeMap::<i128, u64>::new();
    let given = keys_of(&given.collect::<Vec<_>>(), dtype);
    for key in &given {
        *expected.entry(*key).or_default() += 1;
    }
    let counts = Some(TensorDesc::new(DType::U64, [n]));
    let mut tensors = Unique::new().tensors(dtype, n);
    tensors.counts = counts;
    // The inverse has as many bits as the keys.
    let place = if dtype.size() == 4 { DType::I32 } else { DType::I64 };
    tensors.inverse = Some(TensorDesc::new(place, [n]));
    let descriptor = Descriptor::create(gpu, &Unique::new(), &tensors).unwrap();
    let allocate = |bytes: usize| gpu.allocate_bytes(bytes).unwrap();
    let mut input = allocate(bytes.len());
    input.write(&bytes).unwrap();
    let mut workspace = allocate(descriptor.workspace_size());
    let (mut unique, mut count) = (allocate(bytes.len()), allocate(8));
    let (mut occurrences, mut inverse) = (allocate(n * 8), allocate(n * place.size()));
    for memory in [&mut workspace, &mut unique, &mut count, &mut occurrences, &mut inverse] {
        memory.write(&vec![0xC3; memory.size()]).unwrap();
    }
    let buffers = Buffers::new(
        input.view(dtype, n),
        unique.view_mut(dtype, n),
        count.view_mut(DType::U64, 1),
    )
    .counts(occurrences.view_mut(DType::U64, n))
    .inverse(inverse.view_mut(place, n));
    let scratch = workspace.view_mut(DType::U8, descriptor.workspace_size());
    descriptor.call(scratch, buffers).unwrap();
    gpu.synchronize().unwrap();
    assert_eq!(words(&*count, 0, 2), [expected.len() as u32, 0], "{what}");
    let found = words(&*unique, 0, expected.len() * dtype.size() / 4);
    assert!(keys_of(&found, dtype).iter().eq(expected.keys()), "{what}: keys");
    let found = words(&*occurrences, 0, expected.len() * 2);
    let found = keys_of(&found, DType::U64);
    assert!(found.into_iter().eq(expected.values().map(|&c| i128::from(c))), "{what}: counts");
    let found = keys_of(&words(&*inverse, 0, n * place.size() / 4), place);
    let distinct: Vec<_> = expected.keys().collect();
    let is_right = |(place, key): (i128, &i128)| {
        usize::try_from(place).is_ok_and(|place| distinct.get(place) == Some(&key))
    };
    assert!(found.into_iter().zip(&given).all(is_right), "{what}: inverse");
    let shape = Shape::of(gpu, dtype, n as u64);
    let state = shape.n * shape.words + shape.table();
    words(&*workspace, state as usize + 3, 1)[0]
}

fn capacity(gpu: &Wgpu, dtype: DType) -> u64 {
    Shape::of(gpu, dtype, 100).buckets.unwrap().capacity()
}

#[test]
fn random_keys_go_by_buckets() {
    let mut random = Rng::new(1, "");
    for gpu in gpus() {
        for dtype in [DType::U64, DType::I64, DType::U32, DType::I32] {
            let fits = capacity(&gpu, dtype);
            // Numbers of keys that need one bucket, one partition, and two partitions.
            let limit = WINDOWS * ((gpu.window(8) - 2) / 4096 * 4096);
            let two = (FEW_DIGITS * fits / 4 * 3 + 1).min(limit);
            let two = if matches!(dtype, DType::U64 | DType::I32) { two } else { 77 };
            for n in [2, 33, fits - 1, fits, fits + 1, 3 * fits + 7, two] {
                let keys: Vec<_> = (0..n).map(|_| random.next()).collect();
                let what = format!("{dtype}, {n}");
                let way = check(&gpu, dtype, &keys, &what);
                let ascends = n == 2 && way == ASCENDING;
                assert!(way == BY_BUCKETS || ascends, "{what}: {way}");
            }
        }
    }
}

#[test]
fn a_bucket_that_just_fits_and_one_that_does_not() {
    let mut random = Rng::new(2, "");
    for gpu in gpus() {
        for dtype in [DType::U64, DType::I32] {
            let fits = capacity(&gpu, dtype);
            let n = 3 * fits;
            for (inside, way) in [(fits - 1, BY_BUCKETS), (fits, BY_BUCKETS), (fits + 1, BY_DIGITS)]
            {
                // Four buckets; the first holds the quarter of the range that starts at the
                // least key.
                let range = 1 << if dtype.size() == 8 { 60 } else { 30 };
                let mut keys: Vec<_> = (0..n)
                    .map(|i| match i {
                        0 => 0,
                        i if i < inside => random.next() % (range / 4),
                        i => range / 4 + (range - 1 - range / 4) / (n - inside) * (i - inside),
                    })
                    .collect();
                *keys.last_mut().unwrap() = range - 1;
                keys.reverse();
                let what = format!("{dtype}, {inside} of {n} in a bucket of {fits}");
                assert_eq!(check(&gpu, dtype, &keys, &what), way, "{what}");
            }
        }
    }
}

#[test]
fn equals_and_neighbours() {
    let mut random = Rng::new(3, "");
    for gpu in gpus() {
        for dtype in [DType::U64, DType::I64, DType::U32] {
            let fits = capacity(&gpu, dtype);
            let n = 4 * fits + 5;
            let mut check_set = |what: &str, way: u32, key: &mut dyn FnMut(u64, u64) -> u64| {
                let keys: Vec<_> = (0..n).map(|i| key(i, random.next())).collect();
                assert_eq!(check(&gpu, dtype, &keys, what), way, "{dtype}, {what}");
            };
            check_set("constant", ASCENDING, &mut |_, _| 7);
            check_set("ascending", ASCENDING, &mut |i, _| i / 3);
            check_set("one key at the end", BY_DIGITS, &mut |i, _| u64::from(i + 1 == n) ^ 1);
            check_set("descending", BY_BUCKETS, &mut |i, _| (n - i) / 2);
            check_set("half of them equal", BY_DIGITS, &mut |i, r| {
                if i % 2 == 0 { 9 } else { r }
            });
            // Each distinct key has a bin of its own.
            check_set("seventy-fold", BY_BUCKETS, &mut |_, r| (r >> 40) % (n / 70));
            // Bins hold more keys than are ranked one by one.
            check_set("in clusters", BY_BUCKETS, &mut |_, r| ((r % 60) << 25) | ((r >> 40) % 900));
            check_set("equal in clusters", BY_BUCKETS, &mut |_, r| {
                ((r % 60) << 25) | ((r >> 40) % 2)
            });
            check_set("less than buckets", BY_DIGITS, &mut |_, r| r % 3);
        }
    }
}

/// With enough buckets, a sample shows where most keys lie.
#[test]
fn strays_and_bunches() {
    let mut random = Rng::new(5, "");
    for gpu in gpus().into_iter().take(2) {
        for dtype in [DType::I64, DType::U32] {
            let n = 64 * capacity(&gpu, dtype);
            let mut check_set = |what: &str, way: u32, key: &mut dyn FnMut(u64, u64) -> u64| {
                let keys: Vec<_> = (0..n).map(|i| key(i, random.next())).collect();
                assert_eq!(check(&gpu, dtype, &keys, what), way, "{dtype}, {what}");
            };
            let stray = |i: u64| (i == 77).then_some(1 << 31).or((i == 78).then_some(0));
            check_set("two strays", BY_BUCKETS, &mut |i, r| {
                stray(i).unwrap_or((1 << 29) | ((r >> 40) % (1 << 20)))
            });
            // 1000 values, and one stray on each side of them.
            check_set("strays of equals", BY_BUCKETS, &mut |i, r| {
                stray(i).unwrap_or((1 << 29) | ((r >> 40) % 1000))
            });
            check_set("bunched", BY_DIGITS, &mut |i, r| (r >> 40) << (u64::from(i % 9 == 0) * 8));
        }
    }
}

/// Bindings are so few and so small that windows must be sorted one by one.
#[test]
fn parts() {
    let options = Options { plain: true, max_binding: Some(40_000) };
    let Ok(gpu) = Wgpu::open_with(0, &options) else { return };
    let mut random = Rng::new(4, "");
    for dtype in [DType::I64, DType::U32] {
        let keys: Vec<_> = (0..20_000).map(|_| random.next() >> 50).collect();
        assert!(Shape::of(&gpu, dtype, 20_000).layout == BindingLayout::Part);
        check(&gpu, dtype, &keys, "parts");
    }
}

/// Whatever the number of keys, two digits can number all buckets, and the buckets have room
/// for all keys.
#[test]
fn buckets_have_two_digits() {
    for shift in 0..30 {
        for n in [1u64 << shift, (1 << shift) + 1, 3 << shift] {
            for (words, memory) in [(1, 4096), (2, 4096), (1, 12_288), (2, 12_288)] {
                let Some(buckets) = Buckets::of(n, words, memory) else {
                    assert!(n > 1 << 27 && memory == 4096, "{n} keys, {words} words");
                    continue;
                };
                let digits = buckets.digits();
                assert!(buckets.firsts << buckets.low_bits >= buckets.buckets);
                assert!(buckets.firsts <= digits && 1 << buckets.low_bits <= digits);
                assert!(buckets.buckets * buckets.capacity() >= n);
                assert!(n < 1 << 20 || buckets.table() * 16 < n);
            }
        }
    }
}
