//! The shapes of `ngram_match`: 8-byte tokens, patterns of up to 3.

use spec_core::ops::NgramMatch;
use spec_core::ops::ngram_match::Buffers;
use spec_core::{Backend, DType, Descriptor, dtype};
use spec_wgpu::Wgpu;

use super::common::{Random, bytes_of};
use super::{copies, download, time, upload};

/// Where the pattern occurs before: at position 10 of the prompt, 30 before the
/// prompt's end, among the generated tokens.
#[derive(Clone, Copy, Debug)]
enum Place {
    Low,
    High,
    Generated,
    Nowhere,
}

const STEP: usize = 1000;
const DRAFTS: usize = 10;

pub fn bench(gpu: &Wgpu) {
    shape(gpu, 32, 512, Place::Low);
    for prompt in [1024, 4096, 16_384, 65_536, 131_072] {
        shape(gpu, 16, prompt, Place::Low);
    }
    for batch in [1, 8, 32, 128, 512] {
        shape(gpu, batch, 16_384, Place::Low);
    }
    for place in [Place::High, Place::Generated, Place::Nowhere] {
        shape(gpu, 16, 32_768, place);
    }
    for place in [Place::Low, Place::High, Place::Nowhere] {
        shape(gpu, 256, 131_072, place);
    }
    for batch in [128, 512, 1024] {
        shape(gpu, batch, 512, Place::Low);
    }
}

fn shape(gpu: &Wgpu, batch: usize, prompt: usize, place: Place) {
    let operator = NgramMatch { max_ngram_size: 3, token_threshold: i32::MAX };
    let model = prompt.max(2048);
    let bytes = batch * prompt * 8;
    if gpu.info().software && bytes > 40_000_000 || batch * model * 8 > super::largest_buffer(gpu) {
        return;
    }
    let mut r = Random(4);
    let mut random =
        |n: usize| -> Vec<i64> { (0..n).map(|_| 1000 + r.below(100_000) as i64).collect() };
    let (mut input, mut generated) = (random(batch * prompt), random(batch * model));
    let pattern = [1i64, 2, 3];
    for (row, past) in input.chunks_mut(prompt).zip(generated.chunks_mut(model)) {
        past[STEP - 2..=STEP].copy_from_slice(&pattern);
        match place {
            Place::Low => row[10..13].copy_from_slice(&pattern),
            Place::High => row[prompt - 30..prompt - 27].copy_from_slice(&pattern),
            Place::Generated => past[STEP - 30..STEP - 27].copy_from_slice(&pattern),
            Place::Nowhere => {}
        }
    }
    let inputs: Vec<_> = (0..copies(gpu, bytes))
        .map(|_| [&input, &generated].map(|tokens| upload(gpu, dtype::as_bytes(tokens))))
        .collect();
    let lengths = |v: usize| upload(gpu, &bytes_of(&vec![v as i64; batch]));
    let numbers = |v: i32| upload(gpu, &bytes_of(&vec![v; batch]));
    let (prompt_len, start, step, most) =
        (lengths(prompt), lengths(0), lengths(STEP), lengths(model));
    let (drafts, encoding, decoding) = (numbers(DRAFTS as i32), numbers(0), numbers(1));
    let (mut now, mut output) = (numbers(1), upload(gpu, &vec![0; batch * (DRAFTS + 1) * 8]));
    let tensors = operator.tensors(batch, prompt, model, DRAFTS + 1);
    let descriptor = Descriptor::create(gpu, &operator, &tensors).unwrap();
    let size = descriptor.workspace_size();
    let mut workspace = upload(gpu, &vec![0; size]);
    let mut call = 0;
    let name = format!("ngram_match {batch} x {prompt} {place:?}");
    time(gpu, &name, |stream| {
        let [input, generated] = &inputs[call % inputs.len()];
        call += 1;
        let buffers = Buffers {
            input_ids: input.view(DType::I64, batch * prompt),
            input_ids_len: prompt_len.view(DType::I64, batch),
            token_ids_all: generated.view(DType::I64, batch * model),
            prompt_lens: start.view(DType::I64, batch),
            step_idx: step.view(DType::I64, batch),
            draft_token_num: drafts.view(DType::I32, batch),
            draft_tokens: output.view_mut(DType::I64, batch * (DRAFTS + 1)),
            seq_lens_this_time: now.view_mut(DType::I32, batch),
            seq_lens_encoder: encoding.view(DType::I32, batch),
            seq_lens_decoder: decoding.view(DType::I32, batch),
            max_dec_len: most.view(DType::I64, batch),
            flags: None,
        };
        descriptor.calculate(workspace.view_mut(DType::U8, size), buffers, stream).unwrap();
    });
    let now: Vec<i32> = download(&*now, batch);
    let output: Vec<i64> = download(&*output, batch * (DRAFTS + 1));
    for request in 0..batch {
        let row = &input[request * prompt..][..prompt];
        let past = &generated[request * model..];
        let expected = match place {
            Place::Low => &row[13..13 + DRAFTS],
            Place::High => &row[prompt - 27..][..DRAFTS],
            Place::Generated => &past[STEP - 27..][..DRAFTS],
            Place::Nowhere => &[],
        };
        assert_eq!(now[request] as usize, 1 + expected.len(), "{name}: wrong result");
        let found = &output[request * (DRAFTS + 1) + 1..][..expected.len()];
        assert_eq!(found, expected, "{name}: wrong result");
    }
}
