//! The shapes of `rejection_sample`.

use spec_core::ops::RejectionSample;
use spec_core::ops::rejection_sample::{Buffers, Recovery};
use spec_core::{Backend, DType, Descriptor, exact, philox};
use spec_wgpu::Wgpu;

use super::common::{Random, bytes_of};
use super::{copies, download, time, upload};

const SEED: [u64; 2] = [5, 6];

pub fn bench(gpu: &Wgpu) {
    for recovery in [Recovery::Argmax, Recovery::Sample] {
        for vocab in [32_000, 50_257, 128_256, 151_936] {
            for batch in [1, 8, 32] {
                if batch != 8 || vocab == 128_256 {
                    shape(gpu, recovery, batch, 8, vocab);
                }
            }
        }
        shape(gpu, recovery, 256, 4, 151_936);
    }
}

/// Rows of a random distribution, each the same one turned by another amount.
fn distributions(r: &mut Random, rows: usize, vocab: usize) -> Vec<f32> {
    let mut base: Vec<f32> =
        (0..vocab).map(|_| (r.below(1 << 20) as f32 / (1 << 20) as f32).powi(4)).collect();
    let sum: f32 = base.iter().sum();
    base.iter_mut().for_each(|p| *p /= sum);
    let mut all = Vec::with_capacity(rows * vocab);
    for _ in 0..rows {
        let (left, right) = base.split_at(r.below(vocab as u64) as usize);
        all.extend_from_slice(right);
        all.extend_from_slice(left);
    }
    all
}

fn shape(gpu: &Wgpu, recovery: Recovery, batch: usize, drafts: usize, vocab: usize) {
    let operator = RejectionSample { recovery, ..RejectionSample::argmax(drafts) };
    let tokens = batch * drafts;
    let n = tokens * vocab;
    if gpu.info().software && n > 20_000_000 || n * 4 > super::largest_buffer(gpu) {
        return;
    }
    let mut r = Random(3);
    let (target, draft) =
        (distributions(&mut r, tokens, vocab), distributions(&mut r, tokens, vocab));
    let ids: Vec<i32> = (0..tokens).map(|_| r.below(vocab as u64) as i32).collect();
    let starts: Vec<i32> = (0..=batch).map(|b| (b * drafts) as i32).collect();
    let inputs: Vec<_> = (0..copies(gpu, n * 8))
        .map(|_| (upload(gpu, bytes(&target)), upload(gpu, bytes(&draft))))
        .collect();
    let ids = upload(gpu, &bytes_of(&ids));
    let bonus = upload(gpu, &bytes_of(&vec![7i32; batch]));
    let starts = upload(gpu, &bytes_of(&starts));
    let seed = upload(gpu, &bytes_of(&SEED));
    let width = drafts + 1;
    let mut output = upload(gpu, &vec![0; batch * width * 4]);
    let mut counts: [_; 4] = std::array::from_fn(|_| upload(gpu, &vec![0; batch * 4]));
    let descriptor =
        Descriptor::create(gpu, &operator, &operator.tensors(batch, tokens, vocab)).unwrap();
    let size = descriptor.workspace_size();
    let mut workspace = upload(gpu, &vec![0; size]);
    let mut call = 0;
    let name = format!("rejection_sample {batch} x {drafts}, {vocab} {recovery:?}");
    time(gpu, &name, |stream| {
        let [all, accepted, recovered, bonuses] = &mut counts;
        let (target, draft) = &inputs[call % inputs.len()];
        call += 1;
        let buffers = Buffers {
            target_probs: target.view(DType::F32, n),
            draft_probs: Some(draft.view(DType::F32, n)),
            draft_token_ids: ids.view(DType::I32, tokens),
            bonus_token_ids: bonus.view(DType::I32, batch),
            cu_num_draft: starts.view(DType::I32, batch + 1),
            uniform_samples: None,
            seed_offset: Some(seed.view(DType::U64, 2)),
            output_token_ids: output.view_mut(DType::I32, batch * width),
            num_accepted: all.view_mut(DType::I32, batch),
            accepted_counts: accepted.view_mut(DType::I32, batch),
            recovered_counts: recovered.view_mut(DType::I32, batch),
            bonus_counts: bonuses.view_mut(DType::I32, batch),
            flags: None,
        };
        descriptor.calculate(workspace.view_mut(DType::U8, size), buffers, stream).unwrap();
    });
    let emitted: Vec<i32> = download(&*counts[0], batch);
    let output: Vec<i32> = download(&*output, batch * width);
    for (request, row) in output.chunks(width).enumerate() {
        let accepted = emitted[request] as usize - 1;
        let expected = match accepted == drafts {
            true => 7,
            false => {
                let at = (request * drafts + accepted) * vocab;
                recovered(recovery, request, &target[at..at + vocab], &draft[at..at + vocab])
            }
        };
        assert_eq!(row[accepted] as usize, expected, "{name}: wrong result");
    }
}

/// The recovered token, plainly.
fn recovered(recovery: Recovery, request: usize, target: &[f32], draft: &[f32]) -> usize {
    let residual: Vec<f32> = target.iter().zip(draft).map(|(t, d)| (t - d).max(0.0)).collect();
    let found = match recovery {
        Recovery::Argmax => {
            (0..residual.len()).rev().max_by(|&a, &b| residual[a].total_cmp(&residual[b]))
        }
        Recovery::Sample => {
            let total = residual.iter().map(|&r| exact::fixed_probability(r)).sum();
            let bits = philox::recovery_bits(SEED[0], SEED[1], request as u32);
            let threshold = exact::sample_threshold(bits, total);
            let mut sum = 0;
            residual.iter().position(|&r| {
                sum += exact::fixed_probability(r);
                sum > threshold
            })
        }
    };
    found.unwrap_or(0)
}

fn bytes(values: &[f32]) -> &[u8] {
    spec_core::dtype::as_bytes(values)
}
