//! A call on the CPU allocates no memory: the call only uses the workspace that it asked for.
//! (`ngram_match` shares all its code with `hybrid_mtp_ngram`, so only one is tested.)
//!
//! A counting allocator watches the whole process. Rayon's job queue allocates a
//! small block now and then, independent of the size of the work. So a few kilobytes
//! are allowed, for inputs of megabytes.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use spec::ops::{
    DeduplicateTopk, HybridMtpNgram, PromptLookup, RejectionSample, Unique, deduplicate_topk,
    hybrid_mtp_ngram, prompt_lookup, rejection_sample, topk_router, unique,
};
use spec::{DType, Handle, Result};

struct Counting;

static BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is forwarded unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller promised what `alloc` needs.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller promised what `dealloc` needs.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes that rayon's queues may allocate during a few calls.
const QUEUES: usize = 32 * 1024;

fn watched(name: &str, mut call: impl FnMut() -> Result<()>) -> Result<()> {
    // The first call starts the thread pool, which allocates.
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
    let op = handle.create(&Unique::new(), &Unique::new().tensors(DType::U64, n))?;
    let mut workspace = op.workspace(&handle)?;
    let (mut out, mut count) = (vec![0u64; n], [0u64]);
    watched("unique", || {
        let buffers = unique::Buffers::new(&keys, &mut out, &mut count);
        op.call(&mut workspace, buffers)
    })?;

    let params = DeduplicateTopk::new().mtp_step(4);
    let op = handle.create(&params, &params.tensors(64, 2048))?;
    let mut workspace = op.workspace(&handle)?;
    let values: Vec<i32> = keys[..64 * 8192].iter().map(|&key| (key >> 33) as i32).collect();
    let mut out = vec![0i32; values.len()];
    watched("deduplicate_topk", || {
        let buffers = deduplicate_topk::Buffers::new(&values, &mut out);
        op.call(&mut workspace, buffers)
    })?;

    let (batch, vocab) = (8, 100_000);
    let params = RejectionSample::lossless(1);
    let tensors = params.tensors(batch, batch, vocab);
    let op = handle.create(&params, &tensors.draft_probs(tensors.target_probs))?;
    let mut workspace = op.workspace(&handle)?;
    let (target, draft) = (vec![1e-5f32; batch * vocab], vec![2e-5f32; batch * vocab]);
    let offsets: Vec<i32> = (0..=batch as i32).collect();
    let mut output = vec![0i32; batch * 2];
    let mut counts = [0; 4].map(|_: i32| vec![0i32; batch]);
    watched("rejection_sample", || {
        let [emitted, accepted, recovered, bonus] = &mut counts;
        let buffers = rejection_sample::Buffers::new(rejection_sample::Required {
            target_probs: (&target).into(),
            draft_token_ids: (&[3i32; 8]).into(),
            bonus_token_ids: (&[4i32; 8]).into(),
            cu_num_draft: (&offsets).into(),
            output_token_ids: (&mut output).into(),
            num_accepted: emitted.into(),
            accepted_counts: accepted.into(),
            recovered_counts: recovered.into(),
            bonus_counts: bonus.into(),
        })
        .draft_probs(&draft)
        .seeds(&[5u64; 8])
        .positions(&[6i64; 8]);
        op.call(&mut workspace, buffers)
    })?;

    let model = topk_router::preset::DEEPSEEK_V3;
    let mut tensors = model.tensors(DType::F32, 1024);
    tensors.bias = None;
    let op = handle.create(&model.router(), &tensors)?;
    let x: Vec<f32> = keys[..1024 * 256].iter().map(|&key| (key >> 40) as f32 * 1e-6).collect();
    let (mut weights, mut indices) = (vec![0f32; 1024 * 8], vec![0i32; 1024 * 8]);
    watched("topk_router", || {
        let buffers = topk_router::Buffers::new(&x, &mut weights, &mut indices);
        op.call(&mut [0u8; 0], buffers)
    })?;

    // The prompts are long enough for a search by all threads.
    let (batch, prompt) = (4, 100_000);
    let params = HybridMtpNgram::new(8).max_ngram_size(3).min_ngram_size(1).token_threshold(1000);
    let op = handle.create(&params, &params.tensors(batch, prompt, 64, 16))?;
    let mut workspace = op.workspace(&handle)?;
    let tokens: Vec<i64> = keys[..batch * prompt].iter().map(|&key| (key >> 16) as i64).collect();
    let past = vec![5i64; batch * 64];
    let lengths = |value: i64| vec![value; batch];
    let (len, step, max_dec) = (lengths(prompt as i64), lengths(20), lengths(1000));
    let mut drafts = vec![0i64; batch * 16];
    watched("hybrid_mtp_ngram", || {
        let mut this_time = [1i32; 4];
        let buffers = hybrid_mtp_ngram::Buffers::new(hybrid_mtp_ngram::Required {
            input_ids: (&tokens).into(),
            input_ids_len: (&len).into(),
            pre_ids: (&past).into(),
            step_idx: (&step).into(),
            draft_tokens: (&mut drafts).into(),
            seq_lens_this_time: (&mut this_time).into(),
            seq_lens_decoder: (&[1i32; 4]).into(),
            max_dec_len: (&max_dec).into(),
        });
        op.call(&mut workspace, buffers)
    })?;

    let params = PromptLookup::default();
    let op = handle.create(&params, &params.tensors(DType::I64, batch, prompt))?;
    let mut workspace = op.workspace(&handle)?;
    let lengths = [prompt as i32; 4];
    let (mut drafts, mut counts) = (vec![0i64; batch * params.max_draft], [0i32; 4]);
    watched("prompt_lookup", || {
        let buffers = prompt_lookup::Buffers::new(&tokens, &lengths, &mut drafts, &mut counts);
        op.call(&mut workspace, buffers)
    })
}
