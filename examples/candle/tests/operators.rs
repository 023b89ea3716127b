//! The operators on candle's tensors: golden vectors, and what candle's own tensors can do.

#[cfg(feature = "cuda")]
use std::{io::Write, sync::OnceLock};

#[cfg(feature = "cuda")]
use candle_core::cuda_backend::cudarc::driver::DevicePtr;
use candle_core::op::BackpropOp;
use candle_core::{CpuStorage, DType, Device, Result, Storage, Tensor};
use spec::DType::U64;
use spec::ops::{MoeAlign, TopkRouter};
use spec::{Address, Portable, Role};
use spec_candle::{Argument, Error, Queue, Sampling};
use spec_conformance::golden::{Golden, vectors};
use spec_conformance::{Data, Subject};

/// Makes a module of tests for each device.
macro_rules! tests {
    ($($test:ident),+ $(,)?) => {
        mod cpu {
            $(
                #[test]
                fn $test() -> candle_core::Result<()> {
                    super::$test(&candle_core::Device::Cpu)
                }
            )+
        }

        #[cfg(feature = "cuda")]
        mod cuda {
            $(
                #[test]
                fn $test() -> candle_core::Result<()> {
                    super::cuda().map_or(Ok(()), |device| super::$test(&device))
                }
            )+
        }
    };
}

tests!(
    golden_vectors,
    rows_that_lie_apart_are_not_copied,
    what_no_operator_takes_is_refused,
    moe_align_is_the_sort_before_moe_gemm,
    the_likeliest_tokens_are_drawn,
);

/// Whether the environment variable `SPEC_REQUIRE` lists `cuda`.
fn requires_cuda() -> bool {
    let required = std::env::var("SPEC_REQUIRE").unwrap_or_default();
    required.split(',').any(|name| name.trim() == "cuda")
}

#[test]
fn what_is_required_is_compiled_in() {
    let there = cfg!(feature = "cuda") || !requires_cuda();
    assert!(there, "SPEC_REQUIRE asks for cuda, which needs the cargo feature cuda");
}

/// The first GPU, with a stream of its own. If there is no GPU, prints so to stderr and returns
/// `None`; if the environment variable `SPEC_REQUIRE` lists `cuda`, a missing GPU is a failure.
#[cfg(feature = "cuda")]
fn cuda() -> Option<Device> {
    static OPEN: OnceLock<Option<Device>> = OnceLock::new();
    let open = || match Device::new_cuda_with_stream(0) {
        Ok(device) => Some(device),
        Err(reason) => {
            assert!(!requires_cuda(), "SPEC_REQUIRE asks for cuda, which is not there: {reason}");
            // The test harness captures the output of `eprintln!`, so this writes to stderr.
            _ = writeln!(std::io::stderr(), "skipped: cuda: {reason}");
            None
        }
    };
    OPEN.get_or_init(open).clone()
}

/// Pseudo-random whole numbers below `below`, the same in each run.
fn numbers(count: usize, below: u64, seed: u64) -> Vec<u64> {
    let mut state = seed;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (state >> 33) % below
    };
    (0..count).map(next).collect()
}

/// Rows of numbers in -4 .. 4, in steps of 1/8 so that some are equal.
fn scores(rows: usize, cols: usize, seed: u64, device: &Device) -> Tensor {
    let all: Vec<f32> =
        numbers(rows * cols, 64, seed).iter().map(|&n| n as f32 / 8.0 - 4.0).collect();
    Tensor::from_vec(all, (rows, cols), device).unwrap()
}

fn integers(rows: usize, cols: usize, below: u64, seed: u64, device: &Device) -> Tensor {
    let all: Vec<i64> = numbers(rows * cols, below, seed).iter().map(|&n| n as i64).collect();
    Tensor::from_vec(all, (rows, cols), device).unwrap()
}

/// An argument of a golden vector as a tensor of candle.
fn tensor(tensor: &spec_conformance::Tensor, device: &Device) -> Result<Tensor> {
    let shape = &tensor.shape[..];
    match &tensor.data {
        Data::F32(data) => Tensor::from_slice(data, shape, device),
        Data::F16(data) => Tensor::from_slice(data, shape, device),
        Data::BF16(data) => Tensor::from_slice(data, shape, device),
        Data::I32(data) => Tensor::from_slice(data, shape, device),
        Data::I64(data) => Tensor::from_slice(data, shape, device),
        Data::U32(data) => Tensor::from_slice(data, shape, device),
        Data::U8(data) => Tensor::from_slice(data, shape, device),
        other => panic!("candle has no {}", other.dtype()),
    }
}

/// The element type of candle's tensor for a result of the operators' type `dtype`.
fn element(dtype: spec::DType) -> DType {
    match dtype {
        spec::DType::F32 => DType::F32,
        spec::DType::F16 => DType::F16,
        spec::DType::BF16 => DType::BF16,
        spec::DType::I32 => DType::I32,
        spec::DType::I64 | spec::DType::U64 => DType::I64,
        spec::DType::U32 => DType::U32,
        other => panic!("no vector has a result of {other}"),
    }
}

/// The elements of a result. `dtype` is their type in the operator's contract: numbers of u64 are
/// i64 in candle.
fn data(tensor: &Tensor, dtype: spec::DType) -> Result<Data> {
    let flat = tensor.flatten_all()?;
    Ok(match dtype {
        spec::DType::F32 => Data::F32(flat.to_vec1()?),
        spec::DType::F16 => Data::F16(flat.to_vec1()?),
        spec::DType::BF16 => Data::BF16(flat.to_vec1()?),
        spec::DType::I32 => Data::I32(flat.to_vec1()?),
        spec::DType::I64 => Data::I64(flat.to_vec1()?),
        spec::DType::U32 => Data::U32(flat.to_vec1()?),
        spec::DType::U64 => {
            let bits = flat.to_vec1::<i64>()?;
            Data::U64(bits.into_iter().map(i64::cast_unsigned).collect())
        }
        other => panic!("no vector has a result of {other}"),
    })
}

/// Runs the golden vectors of an operator.
fn vectors_of<O: Subject + Portable>(device: &Device) -> Result<()> {
    for vector in vectors::<O>(&Golden::Embedded).unwrap() {
        let arguments = &vector.case.arguments;
        let queue = Queue::of(&Tensor::zeros(1, DType::U8, device)?).unwrap();
        let mut tensors = Vec::new();
        for argument in arguments {
            let is_held = argument.role != Role::Output && argument.tensor.data.dtype() != U64;
            tensors.push(is_held.then(|| tensor(&argument.tensor, device)).transpose()?);
        }
        let (mut given, mut results) = (Vec::new(), Vec::new());
        for (argument, tensor) in arguments.iter().zip(&tensors) {
            let name = argument.name;
            if argument.role != Role::Input {
                results.push((name, element(argument.tensor.data.dtype())));
            }
            let made: Argument<'_> = match (argument.role, tensor, &argument.tensor.data) {
                (Role::Output, _, Data::U64(_)) => continue,
                (Role::Output, ..) => {
                    let dtype = element(argument.tensor.data.dtype());
                    queue.zeros(dtype, &argument.tensor.shape).unwrap().into()
                }
                (Role::Input, Some(tensor), _) => queue.read(tensor).unwrap().into(),
                (_, Some(tensor), _) => queue.copy(tensor).unwrap().into(),
                (_, None, Data::U64(data)) => queue.upload_u64(data).unwrap().into(),
                _ => unreachable!("only numbers of u64 have no tensor"),
            };
            given.push((name, made));
        }
        let called = queue.call_for(&vector.case.operator, given, &results);
        let called = called.unwrap_or_else(|error| panic!("{}: {}: {error}", O::NAME, vector.name));
        let mut got = Vec::new();
        for ((name, _), tensor) in results.iter().zip(called) {
            let dtype = vector.case.get(name).expect("it was asked for").data.dtype();
            let tensor = spec_conformance::Tensor {
                data: data(&tensor, dtype)?,
                shape: tensor.dims().to_vec(),
            };
            got.push(spec_conformance::Argument { name, role: Role::Output, tensor });
        }
        O::trim(&mut got);
        if let Some(failure) = vector.difference(&got) {
            panic!("{}: {}: {failure}", O::NAME, vector.name);
        }
    }
    Ok(())
}

fn golden_vectors(device: &Device) -> Result<()> {
    macro_rules! of_all {
        ($($module:ident: $operator:ident,)+) => {
            $( vectors_of::<spec::ops::$operator>(device)?; )+
        };
    }
    spec::for_each_operator!(of_all);
    Ok(())
}

/// Only the three likeliest tokens are drawn, and each of them sometimes.
fn the_likeliest_tokens_are_drawn(device: &Device) -> Result<()> {
    let logits = scores(400, 11, 12, device);
    let positions = Tensor::arange(0i64, 400, device)?;
    let sampling = Sampling { temperature: 4.0, top_k: 3, top_p: 1.0, seed: 5 };
    let got = spec_candle::sample_logits(&sampling, &logits, &positions).unwrap();
    let mut drawn = [0; 3];
    for (row, got) in logits.to_vec2::<f32>()?.iter().zip(got.to_vec1::<u32>()?) {
        let mut order: Vec<usize> = (0..row.len()).collect();
        order.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
        let rank = order[..3].iter().position(|&token| token == got as usize);
        drawn[rank.expect("one of the three likeliest")] += 1;
    }
    assert!(drawn.iter().all(|&count| count > 40), "{drawn:?}");
    Ok(())
}

fn rows_that_lie_apart_are_not_copied(device: &Device) -> Result<()> {
    let wide = scores(9, 64, 3, device);
    let logits = wide.narrow(1, 16, 32)?;
    let params = TopkRouter::new(4);
    let (_, apart) = spec_candle::topk_router(&params, &logits, None).unwrap();
    let packed = logits.contiguous()?;
    let (_, packed) = spec_candle::topk_router(&params, &packed, None).unwrap();
    assert_eq!(apart.to_vec2::<u32>()?, packed.to_vec2::<u32>()?);
    let held = Queue::of(&logits).unwrap().read(&logits).unwrap();
    let desc = held.desc();
    assert_eq!((desc.shape(), desc.strides()), (&[9, 32][..], &[64, 1][..]));
    let start: Address = match &*wide.storage_and_layout().0 {
        Storage::Cpu(storage) => storage.as_slice::<f32>()?[16..].as_ptr().into(),
        #[cfg(feature = "cuda")]
        Storage::Cuda(storage) => {
            let stream = storage.device.cuda_stream();
            storage.as_cuda_slice::<f32>()?.slice(16..).device_ptr(&stream).0.into()
        }
        _ => unreachable!("no other device is tested"),
    };
    assert_eq!(held.address(), start);
    Ok(())
}

fn what_no_operator_takes_is_refused(device: &Device) -> Result<()> {
    let refused = |tensor: &Tensor| match Queue::of(tensor).unwrap().read(tensor) {
        Err(Error::Tensor(what)) => what,
        _ => panic!("{tensor} was taken"),
    };
    let deep = Tensor::zeros((1, 1, 2, 2, 2), DType::F32, device)?;
    assert_eq!(refused(&deep), "rank 5");
    let doubles = Tensor::zeros(3, DType::F64, device)?;
    assert_eq!(refused(&doubles), "a type that no operator takes");
    let (storage, none) = (Storage::Cpu(CpuStorage::F32(vec![0.0; 8])), BackpropOp::none());
    let short = Tensor::from_storage(storage, (3, 3), none, false);
    assert_eq!(refused(&short), "less memory than its shape");
    if device.is_cuda() {
        let (logits, bias) = (scores(2, 8, 1, device), scores(1, 8, 2, &Device::Cpu).squeeze(0)?);
        match spec_candle::topk_router(&TopkRouter::new(2), &logits, Some(&bias)) {
            Err(Error::Tensor(what)) => assert_eq!(what, "another device than the first"),
            _ => panic!("two devices were taken"),
        }
    }
    Ok(())
}

/// With blocks of one pick, the result is the order that candle sorts for its grouped products.
fn moe_align_is_the_sort_before_moe_gemm(device: &Device) -> Result<()> {
    let ids = integers(50, 4, 9, 21, device).to_dtype(DType::U32)?;
    let flat = ids.flatten_all()?;
    let (experts, order) = flat.sort_last_dim(true)?;
    let aligned = spec_candle::moe_align(&MoeAlign::new(9, 1), &ids).unwrap();
    let experts: Vec<i32> = experts.to_vec1::<u32>()?.iter().map(|&e| e as i32).collect();
    assert_eq!(aligned.block_experts.to_vec1::<i32>()?, experts);
    // candle's sort need not be stable, so only the sets of picks per expert are compared.
    let runs = |order: Vec<u32>| -> Vec<(i32, u32)> {
        let mut runs: Vec<_> = experts.iter().copied().zip(order).collect();
        runs.sort_unstable();
        runs
    };
    let sorted = aligned.sorted_ids.to_vec1::<u32>()?;
    assert_eq!(runs(sorted.clone()), runs(order.to_vec1()?));
    assert!(runs(sorted.clone()).iter().map(|run| run.1).eq(sorted));
    Ok(())
}

/// The tests above share a stream. Usually each thread has its own stream in candle.
#[cfg(feature = "cuda")]
#[test]
fn cuda_in_the_stream_of_each_thread() -> Result<()> {
    if cuda().is_none() {
        return Ok(());
    }
    std::thread::scope(|threads| {
        let run = |_| {
            threads.spawn(|| {
                let device = Device::new_cuda(0)?;
                golden_vectors(&device)
            })
        };
        let running: Vec<_> = (0..4).map(run).collect();
        running.into_iter().try_for_each(|thread| thread.join().expect("it panicked"))
    })
}

/// A copy in another stream waits for results that this stream has not computed yet.
#[cfg(feature = "cuda")]
#[test]
fn cuda_results_are_waited_for_in_another_stream() -> Result<()> {
    let Some(device) = cuda() else { return Ok(()) };
    let other = Device::new_cuda_with_stream(0)?;
    let all = scores(64, 1 << 16, 22, &device);
    let best = |scores: &Tensor| {
        let queue = Queue::of(scores).unwrap();
        let given = [("scores", queue.read(scores).unwrap().into())];
        let params = spec::ops::IndexerTopk::new(2048);
        let [indices] = queue.call(&params, given, [("indices", DType::I64)]).unwrap();
        indices
    };
    let expected = best(&all).to_vec2::<i64>()?;
    let ones = Tensor::ones((4096, 4096), DType::F32, &device)?;
    for _ in 0..5 {
        // This work takes longer than enqueueing the next calls, and its result is ones.
        let mut late = ones.clone();
        for _ in 0..10 {
            late = late.matmul(&ones)?.affine(0.0, 1.0)?;
        }
        let one = late.narrow(0, 0, 1)?.narrow(1, 0, 1)?;
        let got = best(&all.broadcast_mul(&one)?).to_device(&other)?;
        assert!(got.to_vec2::<i64>()? == expected);
    }
    Ok(())
}
