//! Times of the verifying and drafting operators on the first adapter:
//! `cargo run --release -p spec-wgpu --example times [part of a row's name]`.
//!
//! A row is the median over 15 submissions of 20 calls each, divided by 20, the
//! calls recorded beforehand. Inputs rotate through copies of more than a GPU's
//! L2 cache. What an empty submission costs and what recording a call costs on
//! the host is printed beside. The result of the last timed call is checked
//! against a plain loop.

use std::time::Instant;

use spec_core::ops::rejection_sample::{self, Recovery};
use spec_core::ops::{NgramMatch, RejectionSample, ngram_match};
use spec_core::{
    Backend, DType, Descriptor, Element, Memory, Operator, Result, TensorDesc, ViewMut, dtype,
};
use spec_wgpu::{Wgpu, encoder};

const CALLS: usize = 20;
const REPEATS: usize = 15;
/// Copies of the inputs together exceed this, or there is one a call.
const ROTATED: usize = 200 << 20;

struct Bench {
    gpu: Wgpu,
    filter: String,
}

/// Something in device memory with its type and length.
struct Tensor {
    dtype: DType,
    len: usize,
    memory: Box<dyn Memory>,
}

impl Tensor {
    fn new<T: Element>(gpu: &Wgpu, values: &[T]) -> Result<Self> {
        let bytes = dtype::as_bytes(values);
        let mut memory = gpu.allocate(bytes.len())?;
        memory.write(bytes)?;
        Ok(Tensor { dtype: T::DTYPE, len: values.len(), memory })
    }

    fn view(&self) -> spec_core::View<'_> {
        self.memory.view(self.dtype, self.len)
    }

    fn view_mut(&mut self) -> ViewMut<'_> {
        self.memory.view_mut(self.dtype, self.len)
    }

    fn read<T: Element>(&self) -> Result<Vec<T>> {
        let mut values = vec![T::default(); self.len];
        self.memory.read(dtype::as_bytes_mut(&mut values))?;
        Ok(values)
    }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

impl Bench {
    fn wants(&self, name: &str) -> bool {
        name.contains(&self.filter)
    }

    /// Calls `call` with the number of a call; prints a row.
    fn time<O: Operator>(
        &self,
        name: &str,
        bytes: usize,
        descriptor: &Descriptor<O>,
        mut buffers: impl FnMut(usize, &mut dyn FnMut(O::Buffers<'_>) -> Result<()>) -> Result<()>,
    ) -> Result<()> {
        let size = descriptor.workspace_size();
        let mut workspace = self.gpu.allocate(size)?;
        let (mut busy, mut recording) = (Vec::new(), Vec::new());
        for repeat in 0..REPEATS + 2 {
            let mut commands = self.gpu.device().create_command_encoder(&Default::default());
            let start = Instant::now();
            for call in 0..CALLS {
                let workspace = &mut workspace;
                buffers(call, &mut |buffers| {
                    let workspace = workspace.view_mut(DType::U8, size);
                    descriptor.calculate(workspace, buffers, encoder(&mut commands))
                })?;
            }
            let commands = commands.finish();
            let recorded = start.elapsed();
            let start = Instant::now();
            self.gpu.queue().submit([commands]);
            self.gpu.synchronize()?;
            if repeat >= 2 {
                busy.push(start.elapsed().as_secs_f64() * 1e6 / CALLS as f64);
                recording.push(recorded.as_secs_f64() * 1e6 / CALLS as f64);
            }
        }
        let (best, time) = (busy.iter().copied().fold(f64::MAX, f64::min), median(busy));
        let rate = bytes as f64 / time / 1e3;
        let recording = median(recording);
        println!("{name:<48} {time:>10.1} {best:>10.1} {rate:>8.0} {recording:>10.1}");
        Ok(())
    }

    fn empty_submission(&self) -> Result<f64> {
        let mut times = Vec::new();
        for _ in 0..REPEATS {
            let commands = self.gpu.device().create_command_encoder(&Default::default()).finish();
            let start = Instant::now();
            self.gpu.queue().submit([commands]);
            self.gpu.synchronize()?;
            times.push(start.elapsed().as_secs_f64() * 1e6);
        }
        Ok(median(times))
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 24) as f32
    }
}

/// Rows of a random distribution, each the same one turned by another amount.
fn distributions(r: &mut Random, rows: usize, vocab: usize) -> Vec<f32> {
    let mut base: Vec<f32> = (0..vocab).map(|_| r.unit().powi(4)).collect();
    let sum: f32 = base.iter().sum();
    base.iter_mut().for_each(|p| *p /= sum);
    let mut all = Vec::with_capacity(rows * vocab);
    for _ in 0..rows {
        let (left, right) = base.split_at(r.below(vocab));
        all.extend_from_slice(right);
        all.extend_from_slice(left);
    }
    all
}

fn rejection(
    bench: &Bench,
    batch: usize,
    drafts: usize,
    vocab: usize,
    recovery: Recovery,
) -> Result<()> {
    let name = format!("rejection_sample {recovery:?} {batch} x {drafts}, {vocab}").to_lowercase();
    if !bench.wants(&name) {
        return Ok(());
    }
    let gpu = &bench.gpu;
    let operator = RejectionSample { recovery, ..RejectionSample::argmax(drafts) };
    let tokens = batch * drafts;
    let mut r = Random(1);
    let target = distributions(&mut r, tokens, vocab);
    let draft = distributions(&mut r, tokens, vocab);
    let ids: Vec<i32> = (0..tokens).map(|_| r.below(vocab) as i32).collect();
    let bonus: Vec<i32> = (0..batch).map(|_| r.below(vocab) as i32).collect();
    let cu: Vec<i32> = (0..=batch).map(|b| (b * drafts) as i32).collect();
    let uniform: Vec<f32> = (0..tokens).map(|_| r.unit()).collect();
    let seed = [11u64, 12];
    let tensors = rejection_sample::Tensors {
        uniform_samples: Some(TensorDesc::new(DType::F32, [tokens])),
        ..operator.tensors(batch, tokens, vocab)
    };
    let copies = ROTATED.div_ceil(tokens * vocab * 8).clamp(1, CALLS);
    let mut inputs = Vec::new();
    for _ in 0..copies {
        inputs.push((Tensor::new(gpu, &target)?, Tensor::new(gpu, &draft)?));
    }
    let [ids_t, bonus_t, cu_t] =
        [Tensor::new(gpu, &ids)?, Tensor::new(gpu, &bonus)?, Tensor::new(gpu, &cu)?];
    let (uniform_t, seed_t) = (Tensor::new(gpu, &uniform)?, Tensor::new(gpu, &seed)?);
    let mut output = Tensor::new(gpu, &vec![0i32; batch * (drafts + 1)])?;
    let counts = || Tensor::new(gpu, &vec![0i32; batch]);
    let (mut a, mut b, mut c, mut d) = (counts()?, counts()?, counts()?, counts()?);
    let descriptor = Descriptor::create(gpu, &operator, &tensors)?;
    bench.time(&name, batch * vocab * 8, &descriptor, |call, calculate| {
        let (target, draft) = &inputs[call % copies];
        calculate(rejection_sample::Buffers {
            target_probs: target.view(),
            draft_probs: Some(draft.view()),
            draft_token_ids: ids_t.view(),
            bonus_token_ids: bonus_t.view(),
            cu_num_draft: cu_t.view(),
            uniform_samples: Some(uniform_t.view()),
            seed_offset: Some(seed_t.view()),
            output_token_ids: output.view_mut(),
            num_accepted: a.view_mut(),
            accepted_counts: b.view_mut(),
            recovered_counts: c.view_mut(),
            bonus_counts: d.view_mut(),
            flags: None,
        })
    })?;
    let (emitted, output) = (a.read::<i32>()?, output.read::<i32>()?);
    for request in 0..batch {
        let row = &output[request * (drafts + 1)..][..drafts + 1];
        let token = request * drafts + emitted[request] as usize - 1;
        if emitted[request] as usize > drafts {
            assert_eq!(row[drafts], bonus[request], "{name}");
            continue;
        }
        let at = token * vocab;
        let residual: Vec<f32> =
            (at..at + vocab).map(|i| (target[i] - draft[i]).max(0.0)).collect();
        let expected = match recovery {
            Recovery::Argmax => {
                (0..vocab).rev().max_by(|&x, &y| residual[x].total_cmp(&residual[y]))
            }
            Recovery::Sample => {
                let q = |r: f32| spec_core::exact::fixed_probability(r);
                let bits = spec_core::philox::recovery_bits(seed[0], seed[1], request as u32);
                let total = residual.iter().map(|&r| q(r)).sum();
                let threshold = spec_core::exact::sample_threshold(bits, total);
                let mut sum = 0;
                residual.iter().position(|&r| {
                    sum += q(r);
                    sum > threshold
                })
            }
        };
        assert_eq!(row[token - request * drafts] as usize, expected.unwrap_or(0), "{name}");
    }
    Ok(())
}

/// Where the pattern occurs before the end.
#[derive(Clone, Copy, Debug)]
enum Found {
    Low,
    High,
    Generated,
    Nowhere,
}

fn ngram(bench: &Bench, batch: usize, prompt: usize, found: Found) -> Result<()> {
    let name = format!("ngram_match {batch} x {prompt}, {found:?}").to_lowercase();
    if !bench.wants(&name) {
        return Ok(());
    }
    let gpu = &bench.gpu;
    let operator = NgramMatch { max_ngram_size: 3, token_threshold: i32::MAX };
    let model = prompt.max(2048);
    let (step, drafts) = (1000, 10);
    let mut r = Random(2);
    let random = |r: &mut Random, n: usize| -> Vec<i64> {
        (0..n).map(|_| 1000 + r.below(100_000) as i64).collect()
    };
    let mut input = random(&mut r, batch * prompt);
    let mut generated = random(&mut r, batch * model);
    let pattern = [1i64, 2, 3];
    for request in 0..batch {
        let past = &mut generated[request * model..][..model];
        past[step - 2..=step].copy_from_slice(&pattern);
        let row = &mut input[request * prompt..][..prompt];
        match found {
            Found::Low => row[10..13].copy_from_slice(&pattern),
            Found::High => row[prompt - 30..prompt - 27].copy_from_slice(&pattern),
            Found::Generated => past[step - 30..step - 27].copy_from_slice(&pattern),
            Found::Nowhere => {}
        }
    }
    let copies = ROTATED.div_ceil(batch * prompt * 8).clamp(1, CALLS);
    let mut inputs = Vec::new();
    for _ in 0..copies {
        inputs.push((Tensor::new(gpu, &input)?, Tensor::new(gpu, &generated)?));
    }
    let lengths = |value: usize| Tensor::new(gpu, &vec![value as i64; batch]);
    let counts = |value: i32| Tensor::new(gpu, &vec![value; batch]);
    let (ids_len, starts) = (lengths(prompt)?, lengths(0)?);
    let (steps, max_dec) = (lengths(step)?, lengths(model)?);
    let (number, encoder, decoder) = (counts(drafts as i32)?, counts(0)?, counts(1)?);
    let mut this_time = counts(1)?;
    let mut out = Tensor::new(gpu, &vec![0i64; batch * (drafts + 1)])?;
    let descriptor =
        Descriptor::create(gpu, &operator, &operator.tensors(batch, prompt, model, drafts + 1))?;
    let bytes = match found {
        Found::Low => 0,
        _ => batch * prompt * 8,
    };
    bench.time(&name, bytes, &descriptor, |call, calculate| {
        let (input, generated) = &inputs[call % copies];
        calculate(ngram_match::Buffers {
            input_ids: input.view(),
            input_ids_len: ids_len.view(),
            token_ids_all: generated.view(),
            prompt_lens: starts.view(),
            step_idx: steps.view(),
            draft_token_num: number.view(),
            draft_tokens: out.view_mut(),
            seq_lens_this_time: this_time.view_mut(),
            seq_lens_encoder: encoder.view(),
            seq_lens_decoder: decoder.view(),
            max_dec_len: max_dec.view(),
            flags: None,
        })
    })?;
    let (this_time, out) = (this_time.read::<i32>()?, out.read::<i64>()?);
    for request in 0..batch {
        let prompt_row = &input[request * prompt..][..prompt];
        let past = &generated[request * model..];
        let expected = match found {
            Found::Low => &prompt_row[13..13 + drafts],
            Found::High => &prompt_row[prompt - 27..prompt - 27 + drafts],
            Found::Generated => &past[step - 27..step - 27 + drafts],
            Found::Nowhere => &[],
        };
        assert_eq!(this_time[request] as usize, 1 + expected.len(), "{name}");
        let row = &out[request * (drafts + 1) + 1..][..expected.len()];
        assert_eq!(row, expected, "{name}");
    }
    Ok(())
}

fn main() -> Result<()> {
    let filter = std::env::args().nth(1).unwrap_or_default();
    let bench = Bench { gpu: Wgpu::open(0)?, filter };
    println!("{}: {:?}", bench.gpu.info().name, bench.gpu.info().facts);
    println!("an empty submission: {:.1} us", bench.empty_submission()?);
    println!(
        "{:<48} {:>10} {:>10} {:>8} {:>10}",
        "us a call", "median", "least", "GB/s", "recording"
    );
    for recovery in [Recovery::Argmax, Recovery::Sample] {
        for (batch, vocab) in [
            (1, 32_000),
            (32, 32_000),
            (1, 50_257),
            (32, 50_257),
            (1, 128_256),
            (8, 128_256),
            (32, 128_256),
            (1, 151_936),
            (32, 151_936),
        ] {
            rejection(&bench, batch, 8, vocab, recovery)?;
        }
        rejection(&bench, 256, 4, 151_936, recovery)?;
    }
    ngram(&bench, 32, 512, Found::Low)?;
    for prompt in [1024, 4096, 16_384, 65_536, 131_072] {
        ngram(&bench, 16, prompt, Found::Low)?;
    }
    for batch in [1, 8, 32, 128, 512] {
        ngram(&bench, batch, 16_384, Found::Low)?;
    }
    for found in [Found::High, Found::Generated, Found::Nowhere] {
        ngram(&bench, 16, 32_768, found)?;
    }
    for found in [Found::Low, Found::High, Found::Nowhere] {
        ngram(&bench, 256, 131_072, found)?;
    }
    for batch in [128, 512, 1024] {
        ngram(&bench, batch, 512, Found::Low)?;
    }
    Ok(())
}
