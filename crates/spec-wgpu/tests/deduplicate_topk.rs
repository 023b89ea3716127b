//! `deduplicate_topk` against the golden vectors and a plain loop.

mod common;

use common::{Random, Tensor, bytes_of, every_gpu, golden, golden_tensor, workspace};
use spec_core::ops::DeduplicateTopk;
use spec_core::ops::deduplicate_topk::{Buffers, Tensors};
use spec_core::{Backend, DType, Descriptor, Status, Stream, TensorDesc};
use spec_wgpu::Wgpu;

/// Runs the operator on packed rows; `None` where a binding is too small.
fn run(
    gpu: &Wgpu,
    mtp_step: usize,
    rows: usize,
    k: usize,
    values: &[i32],
) -> Option<(Vec<i32>, Vec<i32>)> {
    let batch = rows / mtp_step;
    let operator = DeduplicateTopk { mtp_step };
    let tensors = Tensors {
        counts: Some(TensorDesc::new(DType::I32, [batch])),
        ..operator.tensors(batch, k)
    };
    let descriptor = match Descriptor::create(gpu, &operator, &tensors) {
        Err(e) if e.status() == Status::NotImplemented => return None,
        other => other.unwrap(),
    };
    let indices = Tensor::new(gpu, DType::I32, &bytes_of(values), 3);
    let mut unique = Tensor::poison(gpu, DType::I32, batch * mtp_step * k, 5);
    let mut counts = Tensor::poison(gpu, DType::I32, batch, 66);
    let size = descriptor.workspace_size();
    let mut memory = workspace(gpu, size);
    let buffers = Buffers {
        indices: indices.view(),
        unique: unique.view_mut(),
        counts: Some(counts.view_mut()),
    };
    descriptor.calculate(memory.view_mut(DType::U8, size), buffers, Stream::default()).unwrap();
    gpu.synchronize().unwrap();
    assert_eq!(indices.read::<i32>(), values);
    Some((unique.read(), counts.read()))
}

/// Requests that no workgroup sorts alone.
#[test]
fn long_requests() {
    let mut random = Random(9);
    for (name, gpu) in every_gpu() {
        for (batch, step, k) in [(2, 1, 150_000), (1, 3, 50_000), (1, 200_000, 1), (1, 90_000, 1)] {
            for range in [1000, 1 << 31] {
                let values: Vec<i32> =
                    (0..batch * step * k).map(|_| random.below(range + 5) as i32 - 5).collect();
                let found = run(&gpu, step, batch * step, k, &values);
                let Some(found) = found else {
                    assert_eq!(name, "tiny bindings");
                    continue;
                };
                assert!(found == expected(step, k, &values), "{name}: {batch} x {step} x {k}");
            }
        }
    }
}

fn expected(mtp_step: usize, k: usize, values: &[i32]) -> (Vec<i32>, Vec<i32>) {
    let (mut unique, mut counts) = (Vec::new(), Vec::new());
    for request in values.chunks(mtp_step * k) {
        let mut row: Vec<i32> = request.iter().copied().filter(|&v| v >= 0).collect();
        row.sort_unstable();
        row.dedup();
        counts.push(row.len() as i32);
        row.resize(request.len(), -1);
        unique.extend(row);
    }
    (unique, counts)
}

#[test]
fn golden_vectors() {
    for (name, gpu) in every_gpu() {
        for case in golden("deduplicate_topk") {
            let step = case["params"]["mtp_step"].as_u64().unwrap() as usize;
            let (_, shape, bytes) = golden_tensor(&case["inputs"]["indices"]).unwrap();
            let values: Vec<i32> = bytes.chunks(4).map(common::Pod::from_bytes).collect();
            let Some((unique, counts)) = run(&gpu, step, shape[0], shape[1], &values) else {
                assert_eq!(name, "tiny bindings");
                continue;
            };
            let unique = bytes_of(&unique);
            let wanted = golden_tensor(&case["outputs"]["unique"]).unwrap().2;
            assert!(unique == wanted, "{name} {}", case["name"]);
            if let Some((_, _, wanted)) = golden_tensor(&case["outputs"]["counts"]) {
                assert_eq!(bytes_of(&counts), wanted, "{name} {}", case["name"]);
            }
        }
    }
}

#[test]
fn equals_a_plain_loop() {
    let mut random = Random(1);
    for (name, gpu) in every_gpu() {
        for (batch, step, k) in [
            (1, 1, 1),
            (3, 2, 7),
            (5, 4, 64),
            (9, 3, 100),
            (2, 1, 2048),
            (3, 4, 2048),
            (2, 1, 2049),
            (1, 5, 4000),
            (1, 1, 20_000),
            (300, 1, 3),
        ] {
            for range in [2, 50, 4000, 131_072, 1 << 20, 1 << 31] {
                let values: Vec<i32> = (0..batch * step * k)
                    .map(|_| match random.below(10) {
                        0 => -1 - random.below(5) as i32,
                        _ => random.below(range) as i32,
                    })
                    .collect();
                let Some(found) = run(&gpu, step, batch * step, k, &values) else {
                    assert_eq!(name, "tiny bindings");
                    continue;
                };
                assert!(
                    found == expected(step, k, &values),
                    "{name}: {batch} x {step} x {k} below {range}"
                );
            }
        }
    }
}
