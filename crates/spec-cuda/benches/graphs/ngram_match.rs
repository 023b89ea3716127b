//! Patterns of up to 3 tokens of 8 bytes, found early, late or not at all.

use spec_core::Stream;
use spec_core::ops::NgramMatch;
use spec_core::ops::ngram_match::Buffers;
use spec_cuda::Cuda;

use crate::common::{Array, Ready};
use crate::{Known, row, time};

/// Where the pattern occurs.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Found {
    /// At token 10 of the prompt.
    Low,
    /// 30 tokens before the prompt's end.
    HighPrompt,
    /// 30 tokens before the last generated one; prompt and generated tokens
    /// are half of the length each.
    HighGenerated,
    Nowhere,
}

const STEP: usize = 64;
const DRAFTS: usize = 5;

pub fn bench(cuda: &Cuda) {
    use Found::{HighGenerated, HighPrompt, Low, Nowhere};
    let k = 1024;
    // Batch, prompt, where; seed design, floor, goal.
    let known = [
        (32, 512, Low, 6.6, 0.0, 3.0),
        (16, k, Low, 6.9, 0.0, 3.0),
        (16, 4 * k, Low, 7.6, 0.0, 3.0),
        (16, 16 * k, Low, 10.3, 0.0, 3.5),
        (16, 64 * k, Low, 21.5, 0.0, 4.0),
        (16, 128 * k, Low, 36.3, 0.0, 5.0),
        (1, 16 * k, Low, 9.6, 0.0, 3.0),
        (8, 16 * k, Low, 9.9, 0.0, 3.0),
        (32, 16 * k, Low, 10.7, 0.0, 3.2),
        (128, 16 * k, Low, 11.7, 0.0, 4.0),
        (512, 16 * k, Low, 55.0, 0.0, 7.0),
        (16, 32 * k, HighPrompt, 14.1, 1.4, 5.0),
        (16, 32 * k, HighGenerated, 14.8, 1.4, 5.0),
        (16, 32 * k, Nowhere, 26.7, 1.4, 6.0),
        (256, 128 * k, Low, 141.0, 0.0, 9.0),
        (256, 128 * k, HighPrompt, 142.0, 89.0, 105.0),
        (256, 128 * k, Nowhere, 395.0, 89.0, 115.0),
        (128, 512, Low, 8.0, 0.0, 3.2),
        (512, 512, Low, 20.7, 0.0, 4.0),
        (1024, 512, Low, 38.4, 0.0, 5.0),
    ];
    for (batch, length, found, seed, floor, goal) in known {
        let micros = measure(cuda, batch, length, found);
        let shape = format!("batch {batch}, {length} tokens, {found:?}");
        row("ngram_match", &shape, micros, &Known { floor, goal, seed });
    }
}

fn measure(cuda: &Cuda, batch: usize, length: usize, found: Found) -> f64 {
    let (prompt, step) =
        if found == Found::HighGenerated { (length / 2, length / 2) } else { (length, STEP) };
    let model = prompt + step + DRAFTS + 1;
    let pattern = [-7i64, -8, -9];
    // Tokens that occur once, so that nothing else matches.
    let mut input: Vec<i64> = (0..batch * prompt).map(|i| i as i64).collect();
    let mut all: Vec<i64> = (0..batch * model).map(|i| (1 << 40) + i as i64).collect();
    for b in 0..batch {
        let generated = &mut all[b * model + prompt..(b + 1) * model];
        generated[step - 2..=step].copy_from_slice(&pattern);
        let row = &mut input[b * prompt..(b + 1) * prompt];
        match found {
            Found::Low => row[10..13].copy_from_slice(&pattern),
            Found::HighPrompt => row[prompt - 30..prompt - 27].copy_from_slice(&pattern),
            Found::HighGenerated => generated[step - 30..step - 27].copy_from_slice(&pattern),
            Found::Nowhere => {}
        }
    }
    let operator = NgramMatch { max_ngram_size: 3, token_threshold: i32::MAX };
    let tensors = operator.tensors(batch, prompt, model, DRAFTS + 1);
    let input = Array::from(cuda, &input);
    let all_tokens = Array::from(cuda, &all);
    let lengths = |value: usize| Array::from(cuda, &vec![value as i64; batch]);
    let counts = |value: i32| Array::from(cuda, &vec![value; batch]);
    let (input_len, prompt_lens, steps) = (lengths(prompt), lengths(prompt), lengths(step));
    let (max_dec_len, wanted) = (lengths(step + DRAFTS + 1), counts(DRAFTS as i32));
    let (encoder, decoder) = (counts(0), counts(1));
    let mut drafts = Array::from(cuda, &vec![-1i64; batch * (DRAFTS + 1)]);
    let mut this_time = counts(1);
    let mut ready = Ready::new(cuda, &operator, &tensors);
    let micros = time(cuda, |stream: Stream<'static>| {
        let buffers = Buffers {
            input_ids: input.view(),
            input_ids_len: input_len.view(),
            token_ids_all: all_tokens.view(),
            prompt_lens: prompt_lens.view(),
            step_idx: steps.view(),
            draft_token_num: wanted.view(),
            draft_tokens: drafts.view_mut(),
            seq_lens_this_time: this_time.view_mut(),
            seq_lens_encoder: encoder.view(),
            seq_lens_decoder: decoder.view(),
            max_dec_len: max_dec_len.view(),
            flags: None,
        };
        ready.run(buffers, stream);
    });
    // The candidates are known: what follows the pattern where it was put.
    let after = |b: usize, i: usize| match found {
        Found::Low => (b * prompt + 13 + i) as i64,
        Found::HighPrompt => (b * prompt + prompt - 27 + i) as i64,
        Found::HighGenerated => all[b * model + prompt + step - 27 + i],
        Found::Nowhere => -1,
    };
    for (b, row) in drafts.get().chunks(DRAFTS + 1).enumerate() {
        let right = (0..DRAFTS).all(|i| row[1 + i] == after(b, i));
        assert!(right && row[0] == -1, "the timed call went wrong: request {b} has {row:?}");
    }
    let drafted = if found == Found::Nowhere { 1 } else { 1 + DRAFTS as i32 };
    assert!(this_time.get() == vec![drafted; batch], "the timed call went wrong");
    micros
}
