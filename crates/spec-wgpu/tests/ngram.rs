//! `ngram_match` and `hybrid_mtp_ngram` against the golden vectors and the
//! sequential loop: windows, offsets into buffers, row gaps, bad lengths.

mod common;

use common::{Random, Tensor, bytes_of, every_gpu, golden, golden_tensor, gpu, workspace};
use serde_json::Value;
use spec_baselines::plain::ngram::{Requests, Sizes, draft};
use spec_core::ops::{HybridMtpNgram, NgramMatch, hybrid_mtp_ngram, ngram_match};
use spec_core::{Backend, DType, Descriptor, Error, Operator, Status, Stream, TensorDesc, ViewMut};
use spec_wgpu::{Options, Wgpu};

struct Case {
    requests: Requests<'static>,
    sizes: Sizes,
    /// Whether tokens and lengths are i64.
    wide: [bool; 2],
    /// Elements between rows: of prompts, generated tokens, drafts.
    gaps: [usize; 3],
}

/// Between rows, and nowhere else.
const GAP: i64 = -99;

/// What a call left: drafts, `seq_lens_this_time`, flags.
type Outcome = (Vec<i64>, Vec<i32>, u32);

fn ints(values: &[i64], wide: bool) -> (DType, Vec<u8>) {
    match wide {
        true => (DType::I64, bytes_of(values)),
        false => (DType::I32, bytes_of(&values.iter().map(|&v| v as i32).collect::<Vec<_>>())),
    }
}

fn wide_ints(dtype: DType, bytes: &[u8]) -> Vec<i64> {
    match dtype {
        DType::I64 => bytes.chunks(8).map(common::Pod::from_bytes).collect(),
        _ => bytes.chunks(4).map(|b| i64::from(<i32 as common::Pod>::from_bytes(b))).collect(),
    }
}

/// The operator's memory: `None` where a binding is too small.
fn calculate<O: Operator>(
    gpu: &Wgpu,
    descriptor: Result<Descriptor<O>, Error>,
    buffers: O::Buffers<'_>,
) -> Option<()> {
    let fits = |result: Result<(), Error>| match result {
        Err(error) if error.status() == Status::NotImplemented => None,
        other => {
            other.unwrap();
            Some(())
        }
    };
    let descriptor = match descriptor {
        Ok(descriptor) => descriptor,
        Err(error) => return fits(Err(error)),
    };
    let size = descriptor.workspace_size();
    let mut memory = workspace(gpu, size);
    let memory: ViewMut<'_> = memory.view_mut(DType::U8, size);
    fits(descriptor.calculate(memory, buffers, Stream::default()))?;
    gpu.synchronize().unwrap();
    Some(())
}

impl Case {
    fn expected(&self) -> Outcome {
        let mut requests = self.requests.clone();
        let flags = draft(&mut requests, self.sizes);
        (requests.draft_tokens, requests.this_time, flags)
    }

    fn matrix(&self, gpu: &Wgpu, packed: &[i64], cols: usize, at: usize) -> (TensorDesc, Tensor) {
        let gap = self.gaps[at];
        let rows = self.requests.this_time.len();
        let mut values = Vec::new();
        for row in 0..rows {
            values.extend_from_slice(&packed[row * cols..][..cols]);
            values.extend(std::iter::repeat_n(GAP, gap));
        }
        let (dtype, bytes) = ints(&values, self.wide[0]);
        let desc = TensorDesc::with_strides(dtype, [rows, cols], [(cols + gap) as isize, 1]);
        (desc, Tensor::new(gpu, dtype, &bytes, 7 * at + gap))
    }

    fn run(&self, gpu: &Wgpu, offset: usize) -> Option<Outcome> {
        let r = &self.requests;
        let batch = r.this_time.len();
        let (ids_desc, ids) = self.matrix(gpu, &r.input_ids, r.input_cols, 0);
        let (past_desc, past) = self.matrix(gpu, &r.generated, r.generated_cols, 1);
        let (drafts_desc, mut drafts) = self.matrix(gpu, &r.draft_tokens, r.draft_cols, 2);
        let length = |values: &[i64]| {
            let (dtype, bytes) = ints(values, self.wide[1]);
            Tensor::new(gpu, dtype, &bytes, offset)
        };
        let count = |values: &[i32]| Tensor::new(gpu, DType::I32, &bytes_of(values), offset);
        let lengths = TensorDesc::new(if self.wide[1] { DType::I64 } else { DType::I32 }, [batch]);
        let counts = TensorDesc::new(DType::I32, [batch]);
        let word = Some(TensorDesc::new(DType::U32, [1]));
        let (ids_len, starts) = (length(&r.input_ids_len), length(&r.prompt_lens));
        let (steps, max_dec) = (length(&r.step_idx), length(&r.max_dec_len));
        let (number, encoder) = (count(&r.draft_token_num), count(&r.encoder));
        let (decoder, mut this_time) = (count(&r.decoder), count(&r.this_time));
        let mut flags = Tensor::new(gpu, DType::U32, &[0; 4], offset);
        if let Some(most) = self.sizes.max_draft_tokens {
            let operator = HybridMtpNgram {
                max_ngram_size: self.sizes.max_ngram,
                min_ngram_size: self.sizes.min_ngram,
                max_draft_tokens: most,
                token_threshold: self.sizes.threshold as i32,
            };
            let tensors = hybrid_mtp_ngram::Tensors {
                input_ids: ids_desc,
                input_ids_len: lengths,
                pre_ids: past_desc,
                step_idx: lengths,
                draft_tokens: drafts_desc,
                seq_lens_this_time: counts,
                seq_lens_decoder: counts,
                max_dec_len: lengths,
                flags: word,
            };
            let buffers = hybrid_mtp_ngram::Buffers {
                input_ids: ids.view(),
                input_ids_len: ids_len.view(),
                pre_ids: past.view(),
                step_idx: steps.view(),
                draft_tokens: drafts.view_mut(),
                seq_lens_this_time: this_time.view_mut(),
                seq_lens_decoder: decoder.view(),
                max_dec_len: max_dec.view(),
                flags: Some(flags.view_mut()),
            };
            calculate(gpu, Descriptor::create(gpu, &operator, &tensors), buffers)?;
        } else {
            let operator = NgramMatch {
                max_ngram_size: self.sizes.max_ngram,
                token_threshold: self.sizes.threshold as i32,
            };
            let tensors = ngram_match::Tensors {
                input_ids: ids_desc,
                input_ids_len: lengths,
                token_ids_all: past_desc,
                prompt_lens: lengths,
                step_idx: lengths,
                draft_token_num: counts,
                draft_tokens: drafts_desc,
                seq_lens_this_time: counts,
                seq_lens_encoder: counts,
                seq_lens_decoder: counts,
                max_dec_len: lengths,
                flags: word,
            };
            let buffers = ngram_match::Buffers {
                input_ids: ids.view(),
                input_ids_len: ids_len.view(),
                token_ids_all: past.view(),
                prompt_lens: starts.view(),
                step_idx: steps.view(),
                draft_token_num: number.view(),
                draft_tokens: drafts.view_mut(),
                seq_lens_this_time: this_time.view_mut(),
                seq_lens_encoder: encoder.view(),
                seq_lens_decoder: decoder.view(),
                max_dec_len: max_dec.view(),
                flags: Some(flags.view_mut()),
            };
            calculate(gpu, Descriptor::create(gpu, &operator, &tensors), buffers)?;
        }
        let mut packed = Vec::new();
        for row in wide_ints(drafts_desc.dtype(), &drafts.bytes())
            .chunks((r.draft_cols + self.gaps[2]).max(1))
        {
            packed.extend_from_slice(&row[..r.draft_cols]);
            assert!(row[r.draft_cols..].iter().all(|&v| v == GAP), "a gap was written");
        }
        Some((packed, this_time.read(), flags.read()[0]))
    }

    fn check(&self, name: &str, gpu: &Wgpu, offset: usize) -> bool {
        let Some(found) = self.run(gpu, offset) else {
            assert!(name.contains("bindings"), "{name} has bindings that are large enough");
            return false;
        };
        let expected = self.expected();
        let sizes = self.sizes;
        let batch = self.requests.this_time.len();
        assert_eq!(found.1, expected.1, "{name}: this_time of {batch} with {sizes:?}");
        assert!(found.0 == expected.0, "{name}: drafts of {batch} with {sizes:?}");
        assert_eq!(found.2, expected.2, "{name}: flags of {batch} with {sizes:?}");
        true
    }
}

fn golden_case(case: &Value, hybrid: bool) -> Case {
    let (params, inputs) = (&case["params"], &case["inputs"]);
    let number = |name: &str| params[name].as_u64().unwrap();
    let ints = |name: &str| {
        let (dtype, shape, bytes) = golden_tensor(&inputs[name]).unwrap();
        (dtype == DType::I64, shape, wide_ints(dtype, &bytes))
    };
    let list = |name: &str| ints(name).2;
    let counts = |name: &str| list(name).iter().map(|&v| v as i32).collect::<Vec<_>>();
    let (wide_tokens, input_shape, input_ids) = ints("input_ids");
    let (_, generated_shape, generated) = ints(if hybrid { "pre_ids" } else { "token_ids_all" });
    let (_, draft_shape, draft_tokens) = ints("draft_tokens");
    let (wide_lengths, _, step_idx) = ints("step_idx");
    let batch = input_shape[0];
    Case {
        requests: Requests {
            input_cols: input_shape[1],
            input_ids: input_ids.into(),
            input_ids_len: list("input_ids_len"),
            generated_cols: generated_shape[1],
            generated: generated.into(),
            prompt_lens: if hybrid { vec![0; batch] } else { list("prompt_lens") },
            step_idx,
            max_dec_len: list("max_dec_len"),
            draft_cols: draft_shape[1],
            draft_tokens,
            draft_token_num: if hybrid { vec![0; batch] } else { counts("draft_token_num") },
            this_time: counts("seq_lens_this_time"),
            encoder: if hybrid { vec![0; batch] } else { counts("seq_lens_encoder") },
            decoder: counts("seq_lens_decoder"),
        },
        sizes: Sizes {
            max_ngram: number("max_ngram_size") as usize,
            min_ngram: if hybrid { number("min_ngram_size") as usize } else { 1 },
            max_draft_tokens: hybrid.then(|| number("max_draft_tokens") as usize),
            threshold: number("token_threshold") as i64,
        },
        wide: [wide_tokens, wide_lengths],
        gaps: [0; 3],
    }
}

#[test]
fn golden_vectors() {
    for (name, gpu) in every_gpu() {
        for (operator, hybrid) in [("ngram_match", false), ("hybrid_mtp_ngram", true)] {
            let mut done = 0;
            for case in golden(operator) {
                let Some(found) = golden_case(&case, hybrid).run(&gpu, 0) else {
                    assert_eq!(name, "tiny bindings");
                    continue;
                };
                done += 1;
                let label = format!("{name}: {operator} {}", case["name"]);
                let expected = |name: &str| {
                    let (dtype, _, bytes) = golden_tensor(&case["outputs"][name]).unwrap();
                    wide_ints(dtype, &bytes)
                };
                assert_eq!(found.0, expected("draft_tokens"), "{label}");
                let this_time: Vec<i64> = found.1.iter().map(|&v| i64::from(v)).collect();
                assert_eq!(this_time, expected("seq_lens_this_time"), "{label}");
                if let Some(flags) = case["outputs"]["flags"].as_u64() {
                    assert_eq!(u64::from(found.2), flags, "{label}");
                }
            }
            assert!(done > 20, "{name}: {done} golden cases");
        }
    }
}

struct Shape {
    batch: usize,
    prompt: usize,
    model: usize,
    draft: usize,
    /// Distinct tokens.
    tokens: u64,
    bad: bool,
}

fn random_case(r: &mut Random, shape: &Shape) -> Case {
    let Shape { batch, prompt, model, draft, tokens, bad } = *shape;
    let wide = [r.below(2) == 0, r.below(2) == 0];
    let hybrid = r.below(2) == 0;
    let pick = |r: &mut Random, choices: &[i64]| choices[r.below(choices.len() as u64) as usize];
    let mut length = |max: usize| -> Vec<i64> {
        let far = if wide[1] {
            [1 << 32, -1 << 33, i64::MAX, i64::MIN]
        } else {
            [i64::from(i32::MAX), i64::from(i32::MIN), -1, max as i64 + 1]
        };
        let length = |_| match bad && r.below(8) == 0 {
            true => pick(r, &[-1, max as i64 + 1, far[0], far[1], far[2], far[3]]),
            false => r.below(max as u64 + 1) as i64,
        };
        (0..batch).map(length).collect()
    };
    let input_ids_len = length(prompt);
    let prompt_lens = if hybrid { vec![0; batch] } else { length(model / 3) };
    let step_idx = length(model.saturating_sub(model / 3 + 1));
    let max_dec_len = length(model * 2);
    // Equal low words, so that only the high word of an i64 tells tokens apart.
    let high = if wide[0] { 1i64 << 40 } else { 1 << 20 };
    let mut token = |n: usize| -> Vec<i64> {
        let token = |_| r.below(tokens) as i64 + if r.below(20) == 0 { high } else { 0 };
        (0..n).map(token).collect()
    };
    let (input_ids, generated) = (token(batch * prompt), token(batch * model));
    let mut count = |choices: &[i64]| -> Vec<i32> {
        let far = [-2, i64::from(i32::MIN), i64::from(i32::MAX), 100];
        let count = |_| match bad && r.below(8) == 0 {
            true => pick(r, &far) as i32,
            false => pick(r, choices) as i32,
        };
        (0..batch).map(count).collect()
    };
    let requests = Requests {
        input_cols: prompt,
        input_ids: input_ids.into(),
        input_ids_len,
        generated_cols: model,
        generated: generated.into(),
        prompt_lens,
        step_idx,
        max_dec_len,
        draft_cols: draft,
        draft_tokens: vec![-7; batch * draft],
        draft_token_num: count(&[0, 1, 3, 5, 10]),
        this_time: count(&[0, 1, 2, 4]),
        encoder: count(&[0, 0, 0, 7]),
        decoder: count(&[0, 1, 1, 9]),
    };
    let (a, b) = (1 + r.below(6) as usize, 1 + r.below(6) as usize);
    let threshold = match r.below(8) {
        0 => i64::from(i32::MAX) - r.below(2) as i64,
        1 => r.below(4) as i64,
        _ => r.below(4 * batch as u64 + 20) as i64,
    };
    let sizes = Sizes {
        max_ngram: a.max(b),
        min_ngram: if hybrid { a.min(b) } else { 1 },
        max_draft_tokens: hybrid.then_some(r.below(10) as usize),
        threshold,
    };
    Case { requests, sizes, wide, gaps: [0; 3].map(|_| r.below(4) as usize) }
}

#[test]
fn equal_the_sequential_loop() {
    let rounds = std::env::var("SPEC_CASES").map_or(40, |n| n.parse().unwrap());
    for (name, gpu) in every_gpu() {
        let mut r = Random(3);
        let mut done = 0;
        for round in 0..rounds {
            for batch in [0, 1, 4, 17] {
                let shape = Shape {
                    batch,
                    prompt: r.below(60) as usize,
                    model: r.below(50) as usize,
                    draft: r.below(12) as usize,
                    tokens: 1 + r.below(6),
                    bad: round % 2 == 1,
                };
                let case = random_case(&mut r, &shape);
                done += u32::from(case.check(name, &gpu, r.below(70) as usize));
            }
        }
        assert!(done >= rounds * 3, "{name}: {done} cases");
        eprintln!("{name}: {done} cases");
    }
}

/// More requests than a workgroup has threads, and haystacks of several blocks
/// and windows.
#[test]
fn large_batches_and_long_prompts() {
    let small = Options { plain: true, max_binding: Some(400_000) };
    let small = gpu(&small).map(|gpu| ("small bindings", gpu));
    for (name, gpu) in every_gpu().into_iter().chain(small) {
        let mut r = Random(5);
        for (batch, prompt, model, tokens) in [
            (700, 20, 40, 3),
            (1300, 12, 20, 2),
            (3, 5000, 3000, 4),
            (2, 40_000, 2000, 30),
            (2, 40_000, 9000, 100_000),
        ] {
            for bad in [false, true] {
                // A bad count would use up the budget of a large batch at once.
                let bad = bad && batch != 1300;
                let shape = Shape { batch, prompt, model, draft: 9, tokens, bad };
                let mut case = random_case(&mut r, &shape);
                case.sizes.min_ngram = 1;
                case.check(name, &gpu, 3);
                // Budgets that end somewhere among the requests.
                for _ in 0..if batch == 1300 { 4 } else { 1 } {
                    case.sizes.threshold = r.below(4 * batch as u64 + 20) as i64;
                    case.check(name, &gpu, 0);
                }
                // A pattern that occurs once, anywhere.
                for request in 0..batch.min(4) {
                    plant(&mut r, &mut case, request);
                }
                case.check(name, &gpu, 3);
            }
        }
    }
}

/// More requests than a dispatch has workgroups in one dimension.
#[test]
fn more_requests_than_a_dimension() {
    let Some(gpu) = gpu(&Options { plain: true, ..Options::default() }) else { return };
    let shape = Shape { batch: 70_000, prompt: 3, model: 8, draft: 5, tokens: 2, bad: false };
    let mut case = random_case(&mut Random(9), &shape);
    case.sizes.min_ngram = 1;
    case.sizes.threshold = 150_000;
    assert!(case.check("plain", &gpu, 0));
}

/// Makes the last three generated tokens occur earlier.
fn plant(r: &mut Random, case: &mut Case, request: usize) {
    let q = &mut case.requests;
    let end = q.prompt_lens[request] + q.step_idx[request];
    if end < 2 || end >= q.generated_cols as i64 || q.input_cols < 10 {
        return;
    }
    let end = request * q.generated_cols + end as usize;
    let pattern: Vec<i64> = q.generated[end - 2..=end].to_vec();
    let at = request * q.input_cols + r.below(q.input_cols as u64 - 6) as usize;
    q.input_ids.to_mut()[at..at + 3].copy_from_slice(&pattern);
}

/// Equally long matches that one thread meets one after the other: the leftmost
/// counts.
#[test]
fn the_leftmost_of_equals() {
    for (name, gpu) in every_gpu() {
        for first in [3, 700, 1500] {
            let (prompt, model) = (6000, 300);
            let mut input_ids: Vec<i64> = (0..prompt).map(|i| 1000 + i).collect();
            let generated: Vec<i64> = (0..model).map(|i| 100_000 + i).collect();
            let step = 200;
            // The last two of a pattern of up to four, 256 apart.
            for at in (first..prompt as usize - 5).step_by(256) {
                input_ids[at..at + 2].copy_from_slice(&generated[step - 1..=step]);
            }
            let case = Case {
                requests: Requests {
                    input_cols: prompt as usize,
                    input_ids: input_ids.into(),
                    input_ids_len: vec![prompt],
                    generated_cols: model as usize,
                    generated: generated.into(),
                    prompt_lens: vec![0],
                    step_idx: vec![step as i64],
                    max_dec_len: vec![1000],
                    draft_cols: 9,
                    draft_tokens: vec![-7; 9],
                    draft_token_num: vec![5],
                    this_time: vec![1],
                    encoder: vec![0],
                    decoder: vec![1],
                },
                sizes: Sizes {
                    max_ngram: 4,
                    min_ngram: 1,
                    max_draft_tokens: None,
                    threshold: 1000,
                },
                wide: [false; 2],
                gaps: [0; 3],
            };
            case.check(name, &gpu, 0);
        }
    }
}
