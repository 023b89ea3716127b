//! Compares each operator on candle's tensors with a plain loop.

#[cfg(feature = "cuda")]
use std::{io::Write, sync::OnceLock};

#[cfg(feature = "cuda")]
use candle_core::cuda_backend::cudarc::driver::DevicePtr;
use candle_core::op::BackpropOp;
use candle_core::{CpuStorage, D, DType, Device, Result, Storage, Tensor};
use spec::Address;
use spec::ops::topk_router::Scoring;
use spec::ops::{HybridMtpNgram, MoeAlign, NgramMatch, PromptLookup, RejectionSample, TopkRouter};
use spec_candle::{Error, Queue, Requests, Sampling};

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
    topk_router,
    rows_that_lie_apart_are_not_copied,
    what_no_operator_takes_is_refused,
    moe_align,
    moe_align_is_the_sort_before_moe_gemm,
    indexer_topk,
    deduplicate_topk,
    unique,
    prompt_lookup,
    ngram_match,
    hybrid_mtp_ngram,
    sample_logits,
    tree_verify,
    rejection_sample,
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

fn vector(values: &[i64], device: &Device) -> Tensor {
    Tensor::new(values, device).unwrap()
}

fn vector32(values: &[i32], device: &Device) -> Tensor {
    Tensor::new(values, device).unwrap()
}

/// The indices of the `k` largest, largest first, the lower index among equals.
fn largest(row: &[f32], k: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..row.len()).collect();
    order.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
    order.truncate(k);
    order
}

fn topk_router(device: &Device) -> Result<()> {
    let (logits, bias) = (scores(33, 40, 1, device), scores(1, 40, 2, device).squeeze(0)?);
    for scoring in [Scoring::Softmax, Scoring::Sigmoid] {
        let params = TopkRouter::new(6).scoring(scoring).scale(2.5);
        let with = (scoring == Scoring::Sigmoid).then_some(&bias);
        let (weights, indices) = spec_candle::topk_router(&params, &logits, with).unwrap();
        assert_eq!((indices.dtype(), indices.dims()), (DType::U32, &[33, 6][..]));
        let all = match scoring {
            Scoring::Sigmoid => logits
                .to_vec2::<f32>()?
                .iter()
                .flatten()
                .map(|x| 1.0 / (1.0 + (-x).exp()))
                .collect(),
            _ => logits
                .exp()?
                .broadcast_div(&logits.exp()?.sum_keepdim(1)?)?
                .flatten_all()?
                .to_vec1::<f32>()?,
        };
        let bias = bias.to_vec1::<f32>()?;
        for (token, score) in all.chunks(40).enumerate() {
            let order = match with {
                Some(_) => score.iter().zip(&bias).map(|(s, b)| s + b).collect(),
                // The order of scores is the order of logits, which are exact.
                None => logits.get(token)?.to_vec1::<f32>()?,
            };
            let chosen = largest(&order, 6);
            let got: Vec<usize> =
                indices.get(token)?.to_vec1::<u32>()?.iter().map(|&e| e as usize).collect();
            assert_eq!(got, chosen, "{scoring:?}, token {token}");
            let sum: f32 = chosen.iter().map(|&e| score[e]).sum();
            for (weight, &expert) in weights.get(token)?.to_vec1::<f32>()?.iter().zip(&chosen) {
                assert!((weight - 2.5 * score[expert] / sum).abs() < 1e-5);
            }
        }
        // candle accepts the indices without a conversion.
        logits.gather(&indices, D::Minus1)?;
    }
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
    let cube = Tensor::zeros((2, 2, 2), DType::F32, device)?;
    assert_eq!(refused(&cube), "rank 3");
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

fn moe_align(device: &Device) -> Result<()> {
    let (experts, block) = (7, 4);
    let ids = integers(13, 3, experts, 4, device).to_dtype(DType::U32)?;
    let params = MoeAlign::new(experts as usize, block);
    let aligned = spec_candle::moe_align(&params, &ids).unwrap();
    let flat = ids.flatten_all()?.to_vec1::<u32>()?;
    let (mut sorted, mut blocks) = (Vec::new(), Vec::new());
    for expert in 0..experts as u32 {
        let picks = (0..flat.len()).filter(|&pick| flat[pick] == expert).map(|pick| pick as u32);
        sorted.extend(picks);
        while sorted.len() % block != 0 {
            sorted.push(flat.len() as u32);
        }
        blocks.resize(sorted.len() / block, expert as i32);
    }
    assert_eq!(aligned.num_padded.to_vec1::<i32>()?, [sorted.len() as i32]);
    let got = aligned.sorted_ids.to_vec1::<u32>()?;
    assert_eq!(got[..sorted.len()], sorted);
    assert!(got[sorted.len()..].iter().all(|&pick| pick as usize == flat.len()));
    let got = aligned.block_experts.to_vec1::<i32>()?;
    assert_eq!(got[..blocks.len()], blocks);
    assert!(got[blocks.len()..].iter().all(|&expert| expert == -1));
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

fn indexer_topk(device: &Device) -> Result<()> {
    let (scores, lengths) = (scores(5, 50, 5, device), [50i64, 8, 3, 0, 27]);
    for scores in [scores.clone(), scores.to_dtype(DType::BF16)?] {
        let got = spec_candle::indexer_topk(8, &scores, Some(&vector(&lengths, device))).unwrap();
        let rows = scores.to_dtype(DType::F32)?.to_vec2::<f32>()?;
        for ((row, &len), got) in rows.iter().zip(&lengths).zip(got.to_vec2::<i64>()?) {
            let mut best = largest(&row[..len as usize], 8);
            best.sort_unstable();
            let mut expected: Vec<i64> = best.iter().map(|&i| i as i64).collect();
            expected.resize(8, -1);
            assert_eq!(got, expected);
        }
    }
    Ok(())
}

fn deduplicate_topk(device: &Device) -> Result<()> {
    let values: Vec<i32> = numbers(6 * 10, 20, 6).iter().map(|&n| n as i32 - 1).collect();
    let indices = Tensor::from_vec(values.clone(), (6, 10), device)?;
    let got = spec_candle::deduplicate_topk(2, &indices).unwrap();
    for (got, request) in got.to_vec2::<i32>()?.iter().zip(values.chunks(20)) {
        let mut expected: Vec<i32> = request.iter().copied().filter(|&value| value >= 0).collect();
        expected.sort_unstable();
        expected.dedup();
        expected.resize(20, -1);
        assert_eq!(*got, expected);
    }
    Ok(())
}

fn unique(device: &Device) -> Result<()> {
    let keys = integers(1, 1000, 300, 7, device).squeeze(0)?;
    let mut expected = keys.to_vec1::<i64>()?;
    expected.sort_unstable();
    expected.dedup();
    let got = spec_candle::unique(&keys).unwrap();
    assert_eq!(got.to_vec1::<i64>()?, expected);
    Ok(())
}

/// The tokens that followed the last occurrence of the longest suffix.
fn followed(text: &[i64], min: usize, max: usize, count: usize) -> Vec<i64> {
    for n in (min..=max.min(text.len().saturating_sub(1))).rev() {
        let pattern = &text[text.len() - n..];
        if let Some(at) = (0..text.len() - n).rev().find(|&at| text[at..at + n] == *pattern) {
            return text[at + n..].iter().take(count).copied().collect();
        }
    }
    Vec::new()
}

fn prompt_lookup(device: &Device) -> Result<()> {
    let (tokens, lengths) = (integers(40, 30, 4, 8, device), numbers(40, 31, 9));
    let lengths: Vec<i64> = lengths.iter().map(|&len| len as i64).collect();
    let params = PromptLookup::default();
    let got = spec_candle::prompt_lookup(&params, &tokens, &vector(&lengths, device)).unwrap();
    let mut found = 0;
    for ((row, &len), got) in
        tokens.to_vec2::<i64>()?.iter().zip(&lengths).zip(got.to_vec2::<i64>()?)
    {
        let mut expected = followed(&row[..len as usize], 2, 5, 5);
        found += usize::from(!expected.is_empty());
        expected.resize(5, -1);
        assert_eq!(got, expected);
    }
    assert!(found > 10);
    Ok(())
}

/// The tokens that followed the first occurrence of the last tokens of `generated`: in the prompt,
/// or else in the generated tokens.
fn copied(prompt: &[i64], generated: &[i64], max: usize, count: usize) -> Vec<i64> {
    let step = generated.len() - 1;
    for n in (1..=max.min(step)).rev() {
        let pattern = &generated[step + 1 - n..];
        for text in [prompt, &generated[..step]] {
            let windows = 0..text.len().saturating_sub(n);
            if let Some(at) = windows.into_iter().find(|&at| text[at..at + n] == *pattern) {
                return text[at + n..].iter().take(count).copied().collect();
            }
        }
    }
    Vec::new()
}

/// A batch of one request for the two n-gram operators.
fn check_ngram(seed: u64, head: usize, device: &Device) -> Result<usize> {
    let prompt = integers(1, 20, 5, seed, device);
    let generated = integers(1, 12, 5, seed + 1, device);
    let last = 9 + head;
    let slots = 6;
    let mut draft_tokens = vec![0i64; slots];
    let all = generated.squeeze(0)?.to_vec1::<i64>()?;
    draft_tokens[..=head].copy_from_slice(&all[9..=last]);
    let drafts = Tensor::from_vec(draft_tokens.clone(), (1, slots), device)?;
    let requests = Requests {
        input_ids: &prompt,
        input_ids_len: &vector(&[20], device),
        generated: &generated,
        step_idx: &vector(&[last as i64], device),
        max_dec_len: &vector(&[100], device),
        draft_tokens: &drafts,
        seq_lens_this_time: &vector32(&[1 + head as i32], device),
        seq_lens_decoder: &vector32(&[30], device),
    };
    let (got, count) = if head == 0 {
        let params = NgramMatch::default();
        let (zero, max_len) = (vector32(&[0], device), vector32(&[slots as i32 - 1], device));
        spec_candle::ngram_match(&params, &requests, &vector(&[0], device), &max_len, &zero)
    } else {
        let params = HybridMtpNgram::new(slots - 1)
            .max_ngram_size(3)
            .min_ngram_size(1)
            .token_threshold(1024);
        spec_candle::hybrid_mtp_ngram(&params, &requests)
    }
    .unwrap();
    let prompt = prompt.squeeze(0)?.to_vec1::<i64>()?;
    let expected = copied(&prompt, &all[..=last], 3, slots - 1 - head);
    draft_tokens[1 + head..][..expected.len()].copy_from_slice(&expected);
    assert_eq!(got.squeeze(0)?.to_vec1::<i64>()?, draft_tokens);
    assert_eq!(count.to_vec1::<i32>()?, [(1 + head + expected.len()) as i32]);
    Ok(expected.len())
}

fn ngram_match(device: &Device) -> Result<()> {
    let found: usize = (0..50).map(|seed| check_ngram(2 * seed, 0, device).unwrap()).sum();
    assert!(found > 50);
    Ok(())
}

fn hybrid_mtp_ngram(device: &Device) -> Result<()> {
    let found: usize = (0..50).map(|seed| check_ngram(2 * seed, 2, device).unwrap()).sum();
    assert!(found > 50);
    Ok(())
}

fn sample_logits(device: &Device) -> Result<()> {
    let logits = scores(400, 11, 12, device);
    let rows = logits.to_vec2::<f32>()?;
    let positions = vector(&(0..400).collect::<Vec<i64>>(), device);
    let sampling = Sampling { temperature: 0.0, top_k: 0, top_p: 1.0, seed: 5 };
    let got = spec_candle::sample_logits(&sampling, &logits, &positions).unwrap();
    for (row, got) in rows.iter().zip(got.to_vec1::<u32>()?) {
        assert_eq!(got as usize, largest(row, 1)[0]);
    }
    // With a temperature, only the top-k tokens are drawn, and each of them sometimes.
    let sampling = Sampling { temperature: 4.0, top_k: 3, ..sampling };
    let got = spec_candle::sample_logits(&sampling, &logits, &positions).unwrap();
    let mut drawn = [0; 3];
    for (row, got) in rows.iter().zip(got.to_vec1::<u32>()?) {
        let rank = largest(row, 3).iter().position(|&token| token == got as usize);
        drawn[rank.expect("one of the three likeliest")] += 1;
    }
    assert!(drawn.iter().all(|&count| count > 40), "{drawn:?}");
    Ok(())
}

fn tree_verify(device: &Device) -> Result<()> {
    let (batch, nodes, depth) = (30, 8, 4);
    let drafts = integers(batch, nodes, 3, 13, device);
    let target = integers(batch, nodes, 3, 14, device);
    // The parent of each node is some node before it.
    let parents: Vec<usize> = numbers(batch * nodes, 1 << 20, 15)
        .iter()
        .enumerate()
        .map(|(at, &n)| n as usize % (at % nodes).max(1))
        .collect();
    let (mut child, mut sibling) = (vec![-1i64; batch * nodes], vec![-1i64; batch * nodes]);
    for request in 0..batch {
        for node in (1..nodes).rev() {
            let at = request * nodes;
            let parent = parents[at + node];
            sibling[at + node] = child[at + parent];
            child[at + parent] = node as i64;
        }
    }
    let matrix = |values| Tensor::from_vec(values, (batch, nodes), device);
    let (child, sibling) = (matrix(child)?, matrix(sibling)?);
    let (tokens, path) =
        spec_candle::tree_verify(depth, &drafts, &target, &child, &sibling).unwrap();
    let (drafts, target) = (drafts.to_vec2::<i64>()?, target.to_vec2::<i64>()?);
    let mut longest = 0;
    for request in 0..batch {
        let (mut node, mut emitted, mut walked) = (0, Vec::new(), Vec::new());
        loop {
            emitted.push(target[request][node]);
            walked.push(node as i64);
            let parents = &parents[request * nodes..][..nodes];
            let next = (1..nodes).find(|&next| {
                parents[next] == node && drafts[request][next] == target[request][node]
            });
            match next {
                Some(next) if emitted.len() <= depth => node = next,
                _ => break,
            }
        }
        longest = longest.max(emitted.len());
        emitted.resize(depth + 1, -1);
        walked.resize(depth + 1, -1);
        assert_eq!(tokens.get(request)?.to_vec1::<i64>()?, emitted);
        assert_eq!(path.get(request)?.to_vec1::<i64>()?, walked);
    }
    assert!(longest > 2);
    Ok(())
}

fn rejection_sample(device: &Device) -> Result<()> {
    use spec::philox::{Draw, Purpose};
    let (batch, drafts, vocab) = (50, 3, 9);
    let probs = |seed| -> Result<Tensor> {
        let exp = scores(batch * drafts, vocab, seed, device).exp()?;
        exp.broadcast_div(&exp.sum_keepdim(1)?)
    };
    let (target, draft) = (probs(16)?, probs(17)?);
    let ids =
        integers(1, batch * drafts, vocab as u64, 18, device).squeeze(0)?.to_dtype(DType::U32)?;
    let bonus = integers(1, batch, vocab as u64, 19, device).squeeze(0)?.to_dtype(DType::U32)?;
    let ends: Vec<i64> = (0..=batch).map(|request| (request * drafts) as i64).collect();
    let seeds: Vec<u64> = numbers(batch, 1 << 30, 20);
    let positions: Vec<i64> = (0..batch as i64).map(|request| 100 * request).collect();
    let params = RejectionSample::argmax(drafts);
    let got = spec_candle::rejection_sample(
        &params,
        &target,
        Some(&draft),
        &ids,
        &bonus,
        &vector(&ends, device),
        &seeds,
        &positions,
    )
    .unwrap();
    let (target, draft) = (target.to_vec2::<f32>()?, draft.to_vec2::<f32>()?);
    let (ids, bonus) = (ids.to_vec1::<u32>()?, bonus.to_vec1::<u32>()?);
    let mut whole = 0;
    for request in 0..batch {
        let (mut expected, mut accepted) = (Vec::new(), 0);
        for step in 0..drafts {
            let at = request * drafts + step;
            let token = ids[at] as usize;
            let (p, q) = (target[at][token], draft[at][token]);
            let u = Draw::at(seeds[request], positions[request] + step as i64, Purpose::Accept)
                .uniform();
            if p >= q || u * q < p {
                expected.push(token as i64);
                accepted += 1;
                continue;
            }
            let residual: Vec<f32> =
                target[at].iter().zip(&draft[at]).map(|(p, q)| (p - q).max(0.0)).collect();
            expected.push(largest(&residual, 1)[0] as i64);
            break;
        }
        if accepted == drafts {
            expected.push(i64::from(bonus[request]));
            whole += 1;
        }
        expected.resize(drafts + 1, -1);
        assert_eq!(got.get(request)?.to_vec1::<i64>()?, expected);
    }
    assert!((1..batch).contains(&whole));
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
                topk_router(&device)?;
                unique(&device)
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
    let best = |scores: &Tensor| spec_candle::indexer_topk(2048, scores, None).unwrap();
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
