//! Times the operators on the first adapter: `cargo bench -p spec-wgpu`.
//!
//! Device time comes from timestamps around 20 calls in one compute pass, the median
//! of 15 submissions divided by 20. Beside it stands what a caller waits for one
//! call submitted alone, and once what an empty submission costs. Inputs are
//! random; the result of the very calls that were timed is checked.
//! `SPEC_WGPU_PLAIN=1` times the form that WebGPU's default limits allow. Names
//! on the command line pick operators.

#[path = "../tests/common/mod.rs"]
mod common;
#[path = "operators/ngram_match.rs"]
mod ngram_match;
#[path = "operators/rejection_sample.rs"]
mod rejection_sample;

use std::time::Instant;

use common::{Pod, Random, bytes_of};
use half::bf16;
use spec_core::ops::topk_router::Scoring;
use spec_core::ops::{DeduplicateTopk, TopkRouter, Unique, deduplicate_topk, topk_router, unique};
use spec_core::{Backend, DType, Descriptor, Memory, Stream, exact};
use spec_wgpu::{Wgpu, pass};

/// An operator and what times it.
type Entry = (&'static str, fn(&Wgpu));

/// Calls of a submission, and submissions. A processor that pretends to be a
/// GPU gets fewer.
fn repeats(gpu: &Wgpu) -> (usize, usize) {
    if gpu.info().software { (2, 3) } else { (20, 15) }
}

fn main() {
    let gpu = match Wgpu::open(0) {
        Ok(gpu) => gpu,
        Err(error) => return println!("nothing to time: {error}"),
    };
    println!("{} {:?}", gpu.info().name, gpu.info().facts);
    println!("an empty submission: {:.1} us", median((0..50).map(|_| empty(&gpu)).collect()));
    println!("{:<52} {:>12} {:>12}", "shape", "device us", "one call us");
    let wanted: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let operators: [Entry; 5] = [
        ("deduplicate_topk", deduplicate),
        ("topk_router", route),
        ("rejection_sample", rejection_sample::bench),
        ("ngram_match", ngram_match::bench),
        ("unique", distinct),
    ];
    for (name, time) in operators {
        if wanted.is_empty() || wanted.iter().any(|w| w == name) {
            time(&gpu);
        }
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn empty(gpu: &Wgpu) -> f64 {
    let start = Instant::now();
    let mut commands = gpu.device().create_command_encoder(&Default::default());
    drop(commands.begin_compute_pass(&Default::default()));
    gpu.queue().submit([commands.finish()]);
    gpu.synchronize().unwrap();
    start.elapsed().as_secs_f64() * 1e6
}

/// Times `call`, which records or submits one call.
fn time(gpu: &Wgpu, shape: &str, mut call: impl FnMut(Stream<'_>)) {
    for _ in 0..3 {
        call(Stream::default());
    }
    gpu.synchronize().unwrap();
    let (_, replays) = repeats(gpu);
    let device = median((0..replays).map(|_| replay(gpu, &mut call)).collect());
    let alone = (0..replays).map(|_| {
        let start = Instant::now();
        call(Stream::default());
        gpu.synchronize().unwrap();
        start.elapsed().as_secs_f64() * 1e6
    });
    println!("{shape:<52} {device:>12.1} {:>12.1}", median(alone.collect()));
}

/// Microseconds a call on the device, by timestamps around many.
fn replay(gpu: &Wgpu, call: &mut impl FnMut(Stream<'_>)) -> f64 {
    let (calls, _) = repeats(gpu);
    let device = gpu.device();
    if !device.features().contains(wgpu::Features::TIMESTAMP_QUERY) {
        let start = Instant::now();
        (0..calls).for_each(|_| call(Stream::default()));
        gpu.synchronize().unwrap();
        return start.elapsed().as_secs_f64() * 1e6 / calls as f64;
    }
    let queries = device.create_query_set(&wgpu::QuerySetDescriptor {
        label: None,
        ty: wgpu::QueryType::Timestamp,
        count: 2,
    });
    let buffer = |usage| {
        let descriptor =
            wgpu::BufferDescriptor { label: None, size: 16, usage, mapped_at_creation: false };
        device.create_buffer(&descriptor)
    };
    let resolved = buffer(wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC);
    let staging = buffer(wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST);
    let mut commands = device.create_command_encoder(&Default::default());
    let mut opened = commands
        .begin_compute_pass(&wgpu::ComputePassDescriptor {
            label: None,
            timestamp_writes: Some(wgpu::ComputePassTimestampWrites {
                query_set: &queries,
                beginning_of_pass_write_index: Some(0),
                end_of_pass_write_index: Some(1),
            }),
        })
        .forget_lifetime();
    for _ in 0..calls {
        call(pass(&mut opened));
    }
    drop(opened);
    commands.resolve_query_set(&queries, 0..2, &resolved, 0);
    commands.copy_buffer_to_buffer(&resolved, 0, &staging, 0, 16);
    gpu.queue().submit([commands.finish()]);
    staging.map_async(wgpu::MapMode::Read, .., |mapped| mapped.unwrap());
    gpu.synchronize().unwrap();
    let bytes = staging.get_mapped_range(..).unwrap();
    let ticks = u64::from_bytes(&bytes[8..]) - u64::from_bytes(&bytes[..8]);
    ticks as f64 * f64::from(gpu.queue().get_timestamp_period()) / 1e3 / calls as f64
}

fn upload(gpu: &Wgpu, bytes: &[u8]) -> Box<dyn Memory> {
    let mut memory = gpu.allocate(bytes.len()).unwrap();
    memory.write(bytes).unwrap();
    memory
}

/// How many copies of inputs of so many bytes to take in turns, so that no GPU's
/// cache holds them from one call to the next.
fn copies(gpu: &Wgpu, bytes: usize) -> usize {
    (200usize << 20).div_ceil(bytes).clamp(1, repeats(gpu).0)
}

/// The most bytes of a buffer.
fn largest_buffer(gpu: &Wgpu) -> usize {
    gpu.device().limits().max_buffer_size as usize
}

fn download<T: Pod>(memory: &dyn Memory, len: usize) -> Vec<T> {
    let mut bytes = vec![0; len * size_of::<T>()];
    memory.read(&mut bytes).unwrap();
    bytes.chunks_exact(size_of::<T>()).map(T::from_bytes).collect()
}

fn deduplicate(gpu: &Wgpu) {
    let (batch, k) = (115, 2048);
    let mut random = Random(1);
    for mtp_step in 1..=4 {
        for (range, words) in
            [(1u64 << 17, "below 2^17"), (1 << 20, "below 2^20"), (1 << 31, "any")]
        {
            let n = batch * mtp_step * k;
            let values: Vec<i32> = (0..n).map(|_| random.below(range) as i32).collect();
            let operator = DeduplicateTopk { mtp_step };
            let tensors = operator.tensors(batch, k);
            let descriptor = Descriptor::create(gpu, &operator, &tensors).unwrap();
            let size = descriptor.workspace_size();
            let mut workspace = gpu.allocate(size).unwrap();
            let indices = upload(gpu, &bytes_of(&values));
            let mut unique = gpu.allocate(4 * n).unwrap();
            time(gpu, &format!("deduplicate_topk 115 x {mtp_step} x 2048 {words}"), |stream| {
                let buffers = deduplicate_topk::Buffers {
                    indices: indices.view(DType::I32, n),
                    unique: unique.view_mut(DType::I32, n),
                    counts: None,
                };
                descriptor.calculate(workspace.view_mut(DType::U8, size), buffers, stream).unwrap();
            });
            let found: Vec<i32> = download(&*unique, n);
            for (row, request) in found.chunks(mtp_step * k).zip(values.chunks(mtp_step * k)) {
                let mut wanted = request.to_vec();
                wanted.sort_unstable();
                wanted.dedup();
                wanted.resize(request.len(), -1);
                assert!(row == wanted, "wrong result");
            }
        }
    }
}

fn route(gpu: &Wgpu) {
    let experts = 256;
    let mut random = Random(2);
    let bias: Vec<f32> = (0..experts).map(|_| random.below(1000) as f32 * 1e-5).collect();
    for (dtype, scoring) in [
        (DType::F32, Scoring::Sigmoid),
        (DType::BF16, Scoring::Sigmoid),
        (DType::F32, Scoring::Softmax),
    ] {
        for tokens in [1, 1024, 4096, 16384, 65536] {
            let n = tokens * experts;
            let x: Vec<f32> = (0..n).map(|_| random.below(1 << 16) as f32 / 4096.0 - 8.0).collect();
            let halves: Vec<bf16> = x.iter().map(|&v| bf16::from_f32(v)).collect();
            let bytes = if dtype == DType::F32 { bytes_of(&x) } else { bytes_of(&halves) };
            let router = TopkRouter { scoring, ..TopkRouter::deepseek_v3() };
            let mut tensors = router.tensors(dtype, tokens, experts);
            tensors.bias = Some(spec_core::TensorDesc::new(DType::F32, [experts]));
            let descriptor = Descriptor::create(gpu, &router, &tensors).unwrap();
            let x_memory = upload(gpu, &bytes);
            let bias_memory = upload(gpu, &bytes_of(&bias));
            let mut weights = gpu.allocate(tokens * 32).unwrap();
            let mut indices = gpu.allocate(tokens * 32).unwrap();
            time(gpu, &format!("topk_router {tokens} tokens {dtype} {scoring:?}"), |stream| {
                let buffers = topk_router::Buffers {
                    x: x_memory.view(dtype, n),
                    bias: Some(bias_memory.view(DType::F32, experts)),
                    weights: weights.view_mut(DType::F32, tokens * 8),
                    indices: indices.view_mut(DType::I32, tokens * 8),
                    flags: None,
                };
                descriptor.calculate(spec_core::ViewMut::empty(), buffers, stream).unwrap();
            });
            if scoring == Scoring::Sigmoid {
                let logits: Vec<f32> = match dtype {
                    DType::F32 => x,
                    _ => halves.iter().map(|h| h.to_f32()).collect(),
                };
                let found: Vec<i32> = download(&*indices, tokens * 8);
                for token in (0..tokens).step_by(tokens / 64 + 1) {
                    let row = &logits[token * experts..][..experts];
                    assert_eq!(found[token * 8..][..8], choose(row, &bias), "wrong result");
                }
            }
        }
    }
}

/// DeepSeek-V3's rules for one token.
fn choose(row: &[f32], bias: &[f32]) -> [i32; 8] {
    let mut choices: Vec<f32> =
        row.iter().zip(bias).map(|(&x, &b)| exact::sigmoid(x) + b).collect();
    let mut groups: Vec<(u32, usize)> = (0..8)
        .map(|g| {
            let mut group = choices[g * 32..][..32].to_vec();
            group.sort_by(|a, b| b.total_cmp(a));
            (exact::sort_key(group[0] + group[1]), g)
        })
        .collect();
    groups.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
    for &(_, g) in &groups[4..] {
        choices[g * 32..][..32].fill(0.0);
    }
    let mut order: Vec<i32> = (0..row.len() as i32).collect();
    let key = |e: i32| exact::sort_key(choices[e as usize]);
    order.sort_by(|&a, &b| key(b).cmp(&key(a)).then(a.cmp(&b)));
    std::array::from_fn(|i| order[i])
}

fn distinct(gpu: &Wgpu) {
    let mut random = Random(4);
    let largest = if gpu.info().software { 20 } else { 27 };
    for (power, bits) in [(20, 64), (24, 64), (24, 30), (27, 64)] {
        let n = 1usize << power;
        let limit = gpu.device().limits().max_storage_buffer_binding_size;
        if power > largest || limit < 8 * n as u64 {
            continue;
        }
        let mut keys: Vec<u64> = (0..n).map(|_| random.next() >> (64 - bits)).collect();
        let descriptor = Descriptor::create(gpu, &Unique, &Unique.tensors(DType::U64, n)).unwrap();
        let input = upload(gpu, &bytes_of(&keys));
        let mut unique = gpu.allocate(8 * n).unwrap();
        let mut count = gpu.allocate(8).unwrap();
        let size = descriptor.workspace_size();
        let mut workspace = gpu.allocate(size).unwrap();
        time(gpu, &format!("unique 2^{power} u64, {bits} bits"), |stream| {
            let buffers = unique::Buffers {
                keys: input.view(DType::U64, n),
                unique: unique.view_mut(DType::U64, n),
                count: count.view_mut(DType::U64, 1),
                counts: None,
            };
            descriptor.calculate(workspace.view_mut(DType::U8, size), buffers, stream).unwrap();
        });
        let found = download::<u64>(&*count, 1)[0] as usize;
        let found: Vec<u64> = download(&*unique, found);
        if power <= 24 {
            keys.sort_unstable();
            keys.dedup();
            assert!(found == keys, "wrong result");
        } else {
            // No two of so few random keys are the same.
            let sum = |keys: &[u64]| keys.iter().fold(0u64, |s, &k| s.wrapping_add(k));
            assert!(found.len() == n && sum(&found) == sum(&keys), "wrong result");
            assert!(found.is_sorted_by(|a, b| a < b), "wrong result");
        }
    }
}
