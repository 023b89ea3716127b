//! `calculate` on the CPU uses the workspace it asked for and nothing else
//! (`ngram_match` shares all its code with `hybrid_mtp_ngram`).
//!
//! A counting allocator watches the whole process. Rayon's job queue takes a
//! small block now and then, whatever the size of the work; so the bytes must
//! stay below that, for inputs of megabytes.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use spec::ops::{
    DeduplicateTopk, HybridMtpNgram, PromptLookup, RejectionSample, Unique, deduplicate_topk,
    hybrid_mtp_ngram, prompt_lookup, rejection_sample, topk_router, unique,
};
use spec::{DType, Handle, Result, Stream};

struct Counting;

static BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What rayon's queues may take during a few calls.
const QUEUES: usize = 32 * 1024;

fn watched(name: &str, mut call: impl FnMut() -> Result<()>) -> Result<()> {
    // The first call starts the pool.
    call()?;
    let before = BYTES.load(Ordering::Relaxed);
    for _ in 0..4 {
        call()?;
    }
    let bytes = BYTES.load(Ordering::Relaxed) - before;
    println!("{name}: {bytes} bytes in four calls");
    assert!(bytes < QUEUES, "{name} allocated {bytes} bytes");
    Ok(())
}

#[test]
fn calculate_allocates_nothing() -> Result<()> {
    let handle = Handle::cpu()?;

    let n = 1 << 20;
    let keys: Vec<u64> = (0..n as u64).map(|i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect();
    let op = handle.create(&Unique, &Unique.tensors(DType::U64, n))?;
    let mut workspace = handle.workspace(op.workspace_size())?;
    let (mut out, mut count) = (vec![0u64; n], [0u64]);
    watched("unique", || {
        let buffers = unique::Buffers {
            keys: (&keys).into(),
            unique: (&mut out).into(),
            count: (&mut count).into(),
            counts: None,
        };
        op.calculate(&mut workspace, buffers, Stream::default())
    })?;

    let params = DeduplicateTopk { mtp_step: 4 };
    let op = handle.create(&params, &params.tensors(64, 2048))?;
    let mut workspace = handle.workspace(op.workspace_size())?;
    let values: Vec<i32> = keys[..64 * 8192].iter().map(|&key| (key >> 33) as i32).collect();
    let mut out = vec![0i32; values.len()];
    watched("deduplicate_topk", || {
        let buffers = deduplicate_topk::Buffers {
            indices: (&values).into(),
            unique: (&mut out).into(),
            counts: None,
        };
        op.calculate(&mut workspace, buffers, Stream::default())
    })?;

    let (batch, vocab) = (8, 100_000);
    let params = RejectionSample::lossless(1);
    let op = handle.create(&params, &params.tensors(batch, batch, vocab))?;
    let mut workspace = handle.workspace(op.workspace_size())?;
    let (target, draft) = (vec![1e-5f32; batch * vocab], vec![2e-5f32; batch * vocab]);
    let offsets: Vec<i32> = (0..=batch as i32).collect();
    let mut output = vec![0i32; batch * 2];
    let mut counts = [0; 4].map(|_: i32| vec![0i32; batch]);
    watched("rejection_sample", || {
        let [emitted, accepted, recovered, bonus] = &mut counts;
        let buffers = rejection_sample::Buffers {
            target_probs: (&target).into(),
            draft_probs: Some((&draft).into()),
            draft_token_ids: (&[3i32; 8]).into(),
            bonus_token_ids: (&[4i32; 8]).into(),
            cu_num_draft: (&offsets).into(),
            uniform_samples: None,
            seeds: Some((&[5u64; 8]).into()),
            positions: Some((&[6i64; 8]).into()),
            greedy: None,
            output_token_ids: (&mut output).into(),
            num_accepted: emitted.into(),
            accepted_counts: accepted.into(),
            recovered_counts: recovered.into(),
            bonus_counts: bonus.into(),
            flags: None,
        };
        op.calculate(&mut workspace, buffers, Stream::default())
    })?;

    let model = topk_router::preset::DEEPSEEK_V3;
    let tensors = topk_router::Tensors { bias: None, ..model.tensors(DType::F32, 1024) };
    let op = handle.create(&model.router(), &tensors)?;
    let x: Vec<f32> = keys[..1024 * 256].iter().map(|&key| (key >> 40) as f32 * 1e-6).collect();
    let (mut weights, mut indices) = (vec![0f32; 1024 * 8], vec![0i32; 1024 * 8]);
    watched("topk_router", || {
        let buffers = topk_router::Buffers {
            x: (&x).into(),
            bias: None,
            num_tokens: None,
            replicas: None,
            replica_counts: None,
            weights: (&mut weights).into(),
            indices: (&mut indices).into(),
            load: None,
            flags: None,
        };
        op.calculate(&mut [0u8; 0], buffers, Stream::default())
    })?;

    // Long enough to be searched by all threads.
    let (batch, prompt) = (4, 100_000);
    let params = HybridMtpNgram {
        max_ngram_size: 3,
        min_ngram_size: 1,
        max_draft_tokens: 8,
        token_threshold: 1000,
    };
    let op = handle.create(&params, &params.tensors(batch, prompt, 64, 16))?;
    let mut workspace = handle.workspace(op.workspace_size())?;
    let tokens: Vec<i64> = keys[..batch * prompt].iter().map(|&key| (key >> 16) as i64).collect();
    let past = vec![5i64; batch * 64];
    let lengths = |value: i64| vec![value; batch];
    let (len, step, max_dec) = (lengths(prompt as i64), lengths(20), lengths(1000));
    let mut drafts = vec![0i64; batch * 16];
    watched("hybrid_mtp_ngram", || {
        let mut this_time = [1i32; 4];
        let buffers = hybrid_mtp_ngram::Buffers {
            input_ids: (&tokens).into(),
            input_ids_len: (&len).into(),
            pre_ids: (&past).into(),
            step_idx: (&step).into(),
            draft_tokens: (&mut drafts).into(),
            seq_lens_this_time: (&mut this_time).into(),
            seq_lens_decoder: (&[1i32; 4]).into(),
            max_dec_len: (&max_dec).into(),
            flags: None,
        };
        op.calculate(&mut workspace, buffers, Stream::default())
    })?;

    let params = PromptLookup::default();
    let op = handle.create(&params, &params.tensors(DType::I64, batch, prompt))?;
    let mut workspace = handle.workspace(op.workspace_size())?;
    let lengths = [prompt as i32; 4];
    let (mut drafts, mut counts) = (vec![0i64; batch * params.max_draft], [0i32; 4]);
    watched("prompt_lookup", || {
        let buffers = prompt_lookup::Buffers {
            tokens: (&tokens).into(),
            lengths: (&lengths).into(),
            drafts: (&mut drafts).into(),
            counts: (&mut counts).into(),
            flags: None,
        };
        op.calculate(&mut workspace, buffers, Stream::default())
    })
}
