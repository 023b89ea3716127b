//! `rejection_sample` against the golden vectors and the plain loop: windows,
//! offsets into buffers, row gaps, shared buffers, and bad data of all kinds.

mod common;
#[path = "rejection_sample/random.rs"]
mod random;

use common::{Random, Tensor, bytes_of, every_gpu, golden, golden_tensor, gpu, workspace};
use half::{bf16, f16};
use random::{KINDS, Kind, random_case};
use serde_json::Value;
use spec_baselines::plain::{self, Verification, Verified};
use spec_core::ops::RejectionSample;
use spec_core::ops::rejection_sample::{Acceptance, Buffers, Recovery, Tensors};
use spec_core::{Backend, DType, Descriptor, Status, Stream, TensorDesc};
use spec_wgpu::{Options, Wgpu, encoder};

/// The inputs of a call, packed; probabilities are numbers that `dtype` has.
struct Case {
    params: RejectionSample,
    dtype: DType,
    /// Whether draft ids, bonus ids and offsets are i64.
    wide: [bool; 3],
    vocab: usize,
    /// Elements between rows: of target, draft and output.
    gaps: [usize; 3],
    target: Vec<f32>,
    draft: Option<Vec<f32>>,
    ids: Vec<i64>,
    bonus: Vec<i64>,
    offsets: Vec<i64>,
    uniform: Option<Vec<f32>>,
    random: [u64; 2],
}

impl Case {
    fn tokens(&self) -> usize {
        self.ids.len()
    }

    fn expected(&self) -> Verified {
        plain::rejection_sample(&Verification {
            params: &self.params,
            vocab: self.vocab,
            target: &self.target,
            draft: self.draft.as_deref(),
            ids: &self.ids,
            bonus: &self.bonus,
            offsets: &self.offsets,
            uniform: self.uniform.as_deref(),
            seed: self.random[0],
            offset: self.random[1],
        })
    }

    /// Rows of probabilities with a gap of NaN after each.
    fn matrix(&self, packed: &[f32], gap: usize) -> (TensorDesc, Vec<u8>) {
        let mut bytes = Vec::new();
        let mut push = |value: f32| match self.dtype {
            DType::F16 => bytes.extend(f16::from_f32(value).to_le_bytes()),
            DType::BF16 => bytes.extend(bf16::from_f32(value).to_le_bytes()),
            _ => bytes.extend(value.to_le_bytes()),
        };
        for row in packed.chunks(self.vocab) {
            row.iter().for_each(|&value| push(value));
            (0..gap).for_each(|_| push(f32::NAN));
        }
        let stride = (self.vocab + gap) as isize;
        let shape = [self.tokens(), self.vocab];
        (TensorDesc::with_strides(self.dtype, shape, [stride, 1]), bytes)
    }

    /// Runs on `gpu`, every tensor `offset` and some elements into its buffer;
    /// `None` where a binding is too small for intermediate results.
    fn run(&self, gpu: &Wgpu, offset: usize) -> Option<Verified> {
        let ids = |values: &[i64], wide: bool| match wide {
            true => (DType::I64, bytes_of(values)),
            false => {
                let narrow: Vec<i32> = values.iter().map(|&v| v as i32).collect();
                (DType::I32, bytes_of(&narrow))
            }
        };
        let vector = |(dtype, bytes): (DType, Vec<u8>), offset: usize| {
            let tensor = Tensor::new(gpu, dtype, &bytes, offset);
            (TensorDesc::new(dtype, [tensor.len]), tensor)
        };
        let matrix = |packed: &[f32], gap: usize, offset: usize| {
            let (desc, bytes) = self.matrix(packed, gap);
            (desc, Tensor::new(gpu, self.dtype, &bytes, offset))
        };
        let batch = self.bonus.len();
        let (target_desc, target) = matrix(&self.target, self.gaps[0], offset);
        let draft = self.draft.as_ref().map(|d| matrix(d, self.gaps[1], 3 * offset));
        let (ids_desc, draft_ids) = vector(ids(&self.ids, self.wide[0]), 2 * offset);
        let (bonus_desc, bonus) = vector(ids(&self.bonus, self.wide[1]), offset + 1);
        let (cu_desc, cu) = vector(ids(&self.offsets, self.wide[2]), offset);
        let uniform = self.uniform.as_ref().map(|u| vector((DType::F32, bytes_of(u)), offset));
        let seed = vector((DType::U64, bytes_of(&self.random.map(|v| v as i64))), offset);
        let width = self.params.max_spec_len + 1;
        let stride = width + self.gaps[2];
        let counts = TensorDesc::new(DType::I32, [batch]);
        let tensors = Tensors {
            target_probs: target_desc,
            draft_probs: draft.as_ref().map(|(desc, _)| *desc),
            draft_token_ids: ids_desc,
            bonus_token_ids: bonus_desc,
            cu_num_draft: cu_desc,
            uniform_samples: uniform.as_ref().map(|(desc, _)| *desc),
            seed_offset: Some(seed.0),
            output_token_ids: TensorDesc::with_strides(
                DType::I32,
                [batch, width],
                [stride as isize, 1],
            ),
            num_accepted: counts,
            accepted_counts: counts,
            recovered_counts: counts,
            bonus_counts: counts,
            flags: Some(TensorDesc::new(DType::U32, [1])),
        };
        let descriptor = match Descriptor::create(gpu, &self.params, &tensors) {
            Err(error) if error.status() == Status::NotImplemented => return None,
            other => other.unwrap(),
        };
        let size = descriptor.workspace_size();
        let mut memory = workspace(gpu, size);
        let mut output = Tensor::poison(gpu, DType::I32, batch * stride, offset);
        let mut out = [0, 1, 2, 3].map(|i| Tensor::poison(gpu, DType::I32, batch, i * offset));
        let mut flags = Tensor::new(gpu, DType::U32, &[0; 4], offset);
        let [emitted, accepted, recovered, bonus_counts] = &mut out;
        let buffers = Buffers {
            target_probs: target.view(),
            draft_probs: draft.as_ref().map(|(_, draft)| draft.view()),
            draft_token_ids: draft_ids.view(),
            bonus_token_ids: bonus.view(),
            cu_num_draft: cu.view(),
            uniform_samples: uniform.as_ref().map(|(_, uniform)| uniform.view()),
            seed_offset: Some(seed.1.view()),
            output_token_ids: output.view_mut(),
            num_accepted: emitted.view_mut(),
            accepted_counts: accepted.view_mut(),
            recovered_counts: recovered.view_mut(),
            bonus_counts: bonus_counts.view_mut(),
            flags: Some(flags.view_mut()),
        };
        match descriptor.calculate(memory.view_mut(DType::U8, size), buffers, Stream::default()) {
            // A vector that the tiny binding does not hold.
            Err(error) if error.status() == Status::NotImplemented => return None,
            other => other.unwrap(),
        }
        gpu.synchronize().unwrap();
        let mut rows = Vec::new();
        for row in output.read::<i32>().chunks(stride) {
            rows.extend_from_slice(&row[..width]);
            assert!(row[width..].iter().all(|&v| v as u32 == 0xA5A5_A5A5), "a gap was written");
        }
        let [emitted, accepted, recovered, bonus] = out.map(|counts| counts.read());
        let flags = flags.read()[0];
        Some(Verified { output: rows, emitted, accepted, recovered, bonus, flags })
    }

    fn check(&self, name: &str, gpu: &Wgpu, offset: usize) -> bool {
        let Some(found) = self.run(gpu, offset) else {
            assert!(name.contains("bindings"), "{name} has bindings that are large enough");
            return false;
        };
        let words = format!(
            "{name}: {:?} {:?} vocab {} offsets {:?} ids {:?}",
            self.params, self.dtype, self.vocab, self.offsets, self.ids
        );
        assert_eq!(found, self.expected(), "{words}");
        true
    }
}

/// A case of the golden file.
fn golden_case(case: &Value) -> Case {
    let (params, inputs) = (&case["params"], &case["inputs"]);
    let floats = |name: &str| {
        let (dtype, _, bytes) = golden_tensor(&inputs[name])?;
        Some((dtype, floats_of(dtype, &bytes)))
    };
    let ids = |name: &str| {
        let (dtype, _, bytes) = golden_tensor(&inputs[name]).unwrap();
        let wide = dtype == DType::I64;
        let ids: Vec<i64> = match wide {
            true => bytes.chunks(8).map(common::Pod::from_bytes).collect(),
            false => {
                bytes.chunks(4).map(|b| i64::from(<i32 as common::Pod>::from_bytes(b))).collect()
            }
        };
        (wide, ids)
    };
    let number = |name: &str| params[name].as_u64().unwrap();
    let (dtype, target) = floats("target_probs").unwrap();
    let (draft_ids, bonus, offsets) =
        (ids("draft_token_ids"), ids("bonus_token_ids"), ids("cu_num_draft"));
    Case {
        params: RejectionSample {
            max_spec_len: number("max_spec_len") as usize,
            acceptance: match params["acceptance"].as_str().unwrap() {
                "greedy" => Acceptance::Greedy,
                _ => Acceptance::Probabilistic,
            },
            recovery: match params["recovery"].as_str().unwrap() {
                "sample" => Recovery::Sample,
                _ => Recovery::Argmax,
            },
        },
        dtype,
        wide: [draft_ids.0, bonus.0, offsets.0],
        vocab: number("vocab") as usize,
        gaps: [0; 3],
        target,
        draft: floats("draft_probs").map(|(_, draft)| draft),
        ids: draft_ids.1,
        bonus: bonus.1,
        offsets: offsets.1,
        uniform: floats("uniform_samples").map(|(_, uniform)| uniform),
        random: [number("seed"), number("offset")],
    }
}

fn floats_of(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    let half = |b: &[u8]| u16::from_le_bytes([b[0], b[1]]);
    match dtype {
        DType::F16 => bytes.chunks(2).map(|b| f16::from_bits(half(b)).to_f32()).collect(),
        DType::BF16 => bytes.chunks(2).map(|b| bf16::from_bits(half(b)).to_f32()).collect(),
        _ => bytes.chunks(4).map(common::Pod::from_bytes).collect(),
    }
}

#[test]
fn golden_vectors() {
    for (name, gpu) in every_gpu() {
        let mut done = 0;
        for case in golden("rejection_sample") {
            let label = format!("{name}: {}", case["name"]);
            let Some(found) = golden_case(&case).run(&gpu, 0) else {
                assert_eq!(name, "tiny bindings");
                continue;
            };
            done += 1;
            let outputs = &case["outputs"];
            let expected = |name: &str| {
                let (_, _, bytes) = golden_tensor(&outputs[name]).unwrap();
                bytes.chunks(4).map(common::Pod::from_bytes).collect::<Vec<i32>>()
            };
            assert_eq!(found.output, expected("output_token_ids"), "{label}");
            assert_eq!(found.emitted, expected("num_accepted"), "{label}");
            assert_eq!(found.accepted, expected("accepted_counts"), "{label}");
            assert_eq!(found.recovered, expected("recovered_counts"), "{label}");
            assert_eq!(found.bonus, expected("bonus_counts"), "{label}");
            if let Some(flags) = outputs["flags"].as_u64() {
                assert_eq!(u64::from(found.flags), flags, "{label}");
            }
        }
        assert!(done > 20, "{name}: {done} golden cases");
    }
}

#[test]
fn equals_the_plain_loop() {
    let rounds = std::env::var("SPEC_CASES").map_or(60, |n| n.parse().unwrap());
    for (name, gpu) in every_gpu() {
        let mut r = Random(7);
        let mut done = 0;
        for round in 0..rounds {
            for (batch, vocab) in [(1, 1), (3, 7), (5, 97), (2, 400), (0, 4), (40, 10)] {
                let kind = KINDS[r.below(6) as usize];
                let case = random_case(&mut r, batch, vocab, kind, round % 2 == 1);
                done += u32::from(case.check(name, &gpu, r.below(70) as usize));
            }
        }
        assert!(done >= rounds * 3, "{name}: {done} cases");
        eprintln!("{name}: {done} cases");
    }
}

/// Vocabularies of several chunks and, where bindings are small, of several
/// windows.
#[test]
fn large_vocabularies() {
    let small = Options { plain: true, max_binding: Some(40_000) };
    let small = gpu(&small).map(|gpu| ("small bindings", gpu));
    for (name, gpu) in every_gpu().into_iter().chain(small) {
        let mut r = Random(11);
        for (batch, vocab) in [(2, 1023), (3, 5000), (1, 32_001), (2, 50_257), (1, 151_936)] {
            for kind in [Kind::Close, Kind::Few, Kind::Negative] {
                let bad = r.below(2) == 0;
                let case = random_case(&mut r, batch, vocab, kind, bad);
                case.check(name, &gpu, r.below(70) as usize);
            }
        }
    }
}

/// A request with more drafts than a workgroup walks at once.
#[test]
fn long_requests() {
    for (name, gpu) in every_gpu() {
        for last in [0, 63, 64, 200] {
            let (vocab, tokens) = (2, 200);
            let mut ids = vec![1i64; tokens];
            ids.iter_mut().skip(last).for_each(|id| *id = 0);
            Case {
                params: RejectionSample::argmax(250),
                dtype: DType::F32,
                wide: [false; 3],
                vocab,
                gaps: [0; 3],
                target: [0.0, 1.0].repeat(tokens),
                draft: None,
                ids,
                bonus: vec![1],
                offsets: vec![0, tokens as i64],
                uniform: None,
                random: [3, 4],
            }
            .check(name, &gpu, 1);
        }
    }
}

/// Every argument in one buffer, recorded twice into the caller's encoder.
#[test]
fn one_buffer_and_a_foreign_encoder() {
    for (name, gpu) in every_gpu() {
        let mut r = Random(21);
        for _ in 0..20 {
            let mut case = random_case(&mut r, 3, 50, Kind::Plain, true);
            case.dtype = DType::F32;
            if name != "tiny bindings" {
                assert_eq!(in_one_buffer(&gpu, &case), case.expected(), "{name}");
            }
        }
    }
}

fn in_one_buffer(gpu: &Wgpu, case: &Case) -> Verified {
    let (batch, tokens, vocab) = (case.bonus.len(), case.tokens(), case.vocab);
    let width = case.params.max_spec_len + 1;
    // Each part, with whatever offset comes of those before it.
    let mut bytes: Vec<u8> = Vec::new();
    let mut put = |part: &[u8], size: usize| {
        bytes.resize(bytes.len().next_multiple_of(size), 0xA5);
        bytes.extend_from_slice(part);
        (bytes.len() - part.len()) as u64..bytes.len() as u64
    };
    let target = put(&bytes_of(&case.target), 4);
    let draft = case.draft.as_ref().map(|draft| put(&bytes_of(draft), 4));
    let uniform = case.uniform.as_ref().map(|uniform| put(&bytes_of(uniform), 4));
    let bonus_counts = put(&vec![9; 4 * batch], 4);
    let ids = put(&bytes_of(&case.ids), 8);
    let flags = put(&[0; 4], 4);
    let bonus = put(&bytes_of(&case.bonus), 8);
    let cu = put(&bytes_of(&case.offsets), 8);
    let output = put(&vec![9; 4 * batch * width], 4);
    let seed = put(&bytes_of(&case.random.map(|v| v as i64)), 8);
    let counts = [0; 3].map(|_| put(&vec![9; 4 * batch], 4));
    let ids_desc = |len| TensorDesc::new(DType::I64, [len]);
    let probs = TensorDesc::new(DType::F32, [tokens, vocab]);
    let per_request = TensorDesc::new(DType::I32, [batch]);
    let tensors = Tensors {
        target_probs: probs,
        draft_probs: draft.as_ref().map(|_| probs),
        draft_token_ids: ids_desc(tokens),
        bonus_token_ids: ids_desc(batch),
        cu_num_draft: ids_desc(batch + 1),
        uniform_samples: uniform.as_ref().map(|_| TensorDesc::new(DType::F32, [tokens])),
        seed_offset: Some(TensorDesc::new(DType::U64, [2])),
        output_token_ids: TensorDesc::new(DType::I32, [batch, width]),
        num_accepted: per_request,
        accepted_counts: per_request,
        recovered_counts: per_request,
        bonus_counts: per_request,
        flags: Some(TensorDesc::new(DType::U32, [1])),
    };
    let descriptor = Descriptor::create(gpu, &case.params, &tensors).unwrap();
    let size = descriptor.workspace_size();
    bytes.resize(bytes.len().next_multiple_of(4), 0xA5);
    let space = bytes.len() as u64..(bytes.len() + size) as u64;
    bytes.resize(bytes.len() + size, 0xC3);
    let buffer = gpu.device().create_buffer(&wgpu::BufferDescriptor {
        label: None,
        size: bytes.len() as u64,
        usage: wgpu::BufferUsages::STORAGE
            | wgpu::BufferUsages::COPY_SRC
            | wgpu::BufferUsages::COPY_DST,
        mapped_at_creation: false,
    });
    gpu.queue().write_buffer(&buffer, 0, &bytes);
    let view = |dtype, range: &std::ops::Range<u64>| gpu.view(&buffer, dtype, range.clone());
    let view_mut =
        |dtype, range: &std::ops::Range<u64>| gpu.view_mut(&buffer, dtype, range.clone()).unwrap();
    let mut commands = gpu.device().create_command_encoder(&Default::default());
    for _ in 0..2 {
        let buffers = Buffers {
            target_probs: view(DType::F32, &target).unwrap(),
            draft_probs: draft.as_ref().map(|draft| view(DType::F32, draft).unwrap()),
            draft_token_ids: view(DType::I64, &ids).unwrap(),
            bonus_token_ids: view(DType::I64, &bonus).unwrap(),
            cu_num_draft: view(DType::I64, &cu).unwrap(),
            uniform_samples: uniform.as_ref().map(|uniform| view(DType::F32, uniform).unwrap()),
            seed_offset: Some(view(DType::U64, &seed).unwrap()),
            output_token_ids: view_mut(DType::I32, &output),
            num_accepted: view_mut(DType::I32, &counts[0]),
            accepted_counts: view_mut(DType::I32, &counts[1]),
            recovered_counts: view_mut(DType::I32, &counts[2]),
            bonus_counts: view_mut(DType::I32, &bonus_counts),
            flags: Some(view_mut(DType::U32, &flags)),
        };
        let workspace = view_mut(DType::U8, &space);
        descriptor.calculate(workspace, buffers, encoder(&mut commands)).unwrap();
    }
    gpu.queue().submit([commands.finish()]);
    gpu.synchronize().unwrap();
    let after = common::read_buffer(gpu, &buffer);
    let read = |range: &std::ops::Range<u64>| -> Vec<i32> {
        let part = &after[range.start as usize..range.end as usize];
        part.chunks(4).map(common::Pod::from_bytes).collect()
    };
    assert_eq!(&after[..target.end as usize], &bytes[..target.end as usize], "inputs");
    Verified {
        output: read(&output),
        emitted: read(&counts[0]),
        accepted: read(&counts[1]),
        recovered: read(&counts[2]),
        bonus: read(&bonus_counts),
        flags: read(&flags)[0] as u32,
    }
}

/// A matrix of 200 MiB where a binding holds 128: rows in two windows.
#[test]
fn more_than_a_binding_of_rows() {
    let Some(gpu) = gpu(&Options { plain: true, ..Options::default() }) else { return };
    let (tokens, vocab) = (345, 151_936);
    let mut target = vec![0.0; tokens * vocab];
    // Requests of one token, spread over all rows; the others have no drafts.
    let rows = [0, 1, 219, 220, 221, 300, 344];
    let mut offsets = vec![0i64];
    for row in rows {
        target[row * vocab + 77] = 0.25;
        target[row * vocab + vocab - 1 - row] = 0.5;
        offsets.extend([row as i64, row as i64 + 1]);
    }
    let batch = offsets.len() - 1;
    for recovery in [Recovery::Argmax, Recovery::Sample] {
        Case {
            params: RejectionSample { recovery, ..RejectionSample::argmax(1000) },
            dtype: DType::F32,
            wide: [false; 3],
            vocab,
            gaps: [0, 0, 0],
            target: target.clone(),
            draft: None,
            ids: vec![77; tokens],
            bonus: vec![5; batch],
            offsets: offsets.clone(),
            uniform: Some(vec![0.5; tokens]),
            random: [1, 2],
        }
        .check("plain", &gpu, 1);
    }
}

/// More requests than a dispatch has workgroups in one dimension.
#[test]
fn more_requests_than_a_dimension() {
    let Some(gpu) = gpu(&Options { plain: true, ..Options::default() }) else { return };
    let (batch, vocab) = (70_000, 2);
    for params in [RejectionSample::lossless(1), RejectionSample::greedy(1)] {
        let case = Case {
            params,
            dtype: DType::F32,
            wide: [false; 3],
            vocab,
            gaps: [0; 3],
            target: (0..batch * vocab).map(|i| (i % 7) as f32 / 8.0).collect(),
            draft: None,
            ids: (0..batch as i64).map(|i| i % 2).collect(),
            bonus: (0..batch as i64).map(|i| i / 2 % 2).collect(),
            offsets: (0..=batch as i64).collect(),
            uniform: Some((0..batch).map(|i| (i % 5) as f32 / 5.0).collect()),
            random: [8, 9],
        };
        assert!(case.check("plain", &gpu, 0));
    }
}
