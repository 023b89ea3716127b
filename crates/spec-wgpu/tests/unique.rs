//! `unique` against the golden vectors and the standard library's sort.

mod common;

use std::collections::BTreeMap;

use common::{Pod, Random, Tensor, bytes_of, golden, golden_tensor, gpus_with_bindings, workspace};
use spec_core::ops::Unique;
use spec_core::ops::unique::{Buffers, Tensors};
use spec_core::{Backend, DType, Descriptor, Status, Stream, TensorDesc};
use spec_wgpu::Wgpu;

/// 64 KiB hold three tiles of u64 keys.
fn gpus() -> Vec<(&'static str, Wgpu)> {
    gpus_with_bindings("small bindings", 1 << 16)
}

/// Distinct keys as bytes and their occurrences; `None` where a binding is too
/// small.
fn run(gpu: &Wgpu, dtype: DType, keys: &[u8], counts: bool) -> Option<(Vec<u8>, Vec<u64>)> {
    let n = keys.len() / dtype.size();
    let tensors = Tensors {
        counts: counts.then(|| TensorDesc::new(DType::U64, [n])),
        ..Unique.tensors(dtype, n)
    };
    let descriptor = match Descriptor::create(gpu, &Unique, &tensors) {
        Err(e) if e.status() == Status::NotImplemented => return None,
        other => other.unwrap(),
    };
    let input = Tensor::new(gpu, dtype, keys, 5);
    let mut unique = Tensor::poison(gpu, dtype, n, 3);
    let mut count = Tensor::poison(gpu, DType::U64, 1, 9);
    let mut occurrences = Tensor::poison(gpu, DType::U64, n, 1);
    let size = descriptor.workspace_size();
    let mut memory = workspace(gpu, size);
    let buffers = Buffers {
        keys: input.view(),
        unique: unique.view_mut(),
        count: count.view_mut(),
        counts: counts.then(|| occurrences.view_mut()),
    };
    descriptor.calculate(memory.view_mut(DType::U8, size), buffers, Stream::default()).unwrap();
    gpu.synchronize().unwrap();
    assert!(input.bytes() == keys, "the keys were changed");
    let count = count.read::<u64>()[0] as usize;
    let mut bytes = unique.bytes();
    bytes.truncate(count * dtype.size());
    let mut occurrences = occurrences.read::<u64>();
    occurrences.truncate(count);
    Some((bytes, occurrences))
}

#[test]
fn golden_vectors() {
    for (name, gpu) in gpus() {
        for case in golden("unique") {
            let (dtype, _, keys) = golden_tensor(&case["inputs"]["keys"]).unwrap();
            let (unique, counts) = run(&gpu, dtype, &keys, true).unwrap();
            let wanted = golden_tensor(&case["outputs"]["unique"]).unwrap().2;
            assert!(unique == wanted, "{name} {}", case["name"]);
            if let Some((_, _, wanted)) = golden_tensor(&case["outputs"]["counts"]) {
                assert!(bytes_of(&counts) == wanted, "{name} {}", case["name"]);
            }
        }
    }
}

fn check<T: Pod + Ord>(name: &str, gpu: &Wgpu, dtype: DType, keys: &[T], counts: bool) {
    let mut wanted = BTreeMap::new();
    for &key in keys {
        *wanted.entry(key).or_insert(0u64) += 1;
    }
    let words = format!("{name}: {} keys of {dtype}", keys.len());
    let (unique, occurrences) = run(gpu, dtype, &bytes_of(keys), counts).expect(&words);
    let distinct: Vec<T> = wanted.keys().copied().collect();
    assert!(unique == bytes_of(&distinct), "{words}");
    if counts {
        assert!(occurrences == wanted.into_values().collect::<Vec<_>>(), "{words}");
    }
}

#[test]
fn equals_the_standard_library() {
    let mut random = Random(3);
    for (name, gpu) in gpus() {
        for n in [0, 1, 2, 255, 256, 257, 2047, 2048, 2049, 6144, 30_000] {
            let few = [30u32];
            let all = [0u32, 1, 7, 30, 64];
            for &bits in if n > 6000 { &few[..] } else { &all } {
                let next = |random: &mut Random| match bits {
                    0 => 0x0123_4567_89AB_CDEF,
                    64 => random.next(),
                    _ => random.below(1 << bits) << 11,
                };
                let keys: Vec<u64> = (0..n).map(|_| next(&mut random)).collect();
                let counts = random.below(2) == 0;
                check(name, &gpu, DType::U64, &keys, counts);
                let signed: Vec<i64> = keys.iter().map(|&k| k as i64 - 5000).collect();
                check(name, &gpu, DType::I64, &signed, true);
                let low: Vec<u32> = keys.iter().map(|&k| k as u32).collect();
                check(name, &gpu, DType::U32, &low, counts);
                let low: Vec<i32> = keys.iter().map(|&k| (k >> 13) as i32).collect();
                check(name, &gpu, DType::I32, &low, true);
            }
        }
    }
}

/// Tiles of sixteen rows, and bytes in the middle that never vary.
#[test]
fn many_keys() {
    let mut random = Random(4);
    for (name, gpu) in gpus() {
        if name == "small bindings" {
            continue;
        }
        let keys: Vec<u64> = (0..5_000_000).map(|_| random.next() & 0x3_00FF_0000_00FF).collect();
        check(name, &gpu, DType::U64, &keys, true);
    }
}
