//! The distribution of the emitted tokens.
//!
//! One draft token is drawn from a draft distribution and verified against a
//! target. With `sample` recovery, the first emitted token must have the target's
//! distribution for any draft distribution. With `argmax` recovery it has another
//! distribution, of which the documentation warns. The test is Pearson's with fixed
//! seeds; the bound is the 99.9th percentile of the chi-square distribution with the
//! same degrees of freedom.

use spec::ops::RejectionSample;
use spec::ops::rejection_sample::{Buffers, Recovery, Required, Tensors};
use spec::{Handle, Result};

const VOCAB: usize = 16;
const REQUESTS: usize = 4096;
const CALLS: i64 = 16;
/// 99.9th percentile of chi-square with 15 degrees of freedom.
const BOUND: f64 = 37.70;

const TARGET: [f32; VOCAB] = [
    0.16, 0.02, 0.10, 0.04, 0.08, 0.06, 0.01, 0.13, 0.05, 0.03, 0.07, 0.02, 0.09, 0.04, 0.06, 0.04,
];
const DRAFT: [f32; VOCAB] = [
    0.02, 0.16, 0.04, 0.10, 0.06, 0.08, 0.13, 0.01, 0.03, 0.05, 0.02, 0.07, 0.04, 0.09, 0.04, 0.06,
];

/// Draws from `DRAFT` by a generator that the operator does not use.
fn drafted(state: &mut u64) -> i32 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    let mut u = (*state >> 40) as f32 / (1 << 24) as f32;
    for (token, p) in DRAFT.iter().enumerate() {
        u -= p;
        if u < 0.0 {
            return token as i32;
        }
    }
    VOCAB as i32 - 1
}

/// How often each token is the first to be emitted.
fn first_tokens(handle: &Handle, recovery: Recovery, with_probs: bool) -> Result<[u64; VOCAB]> {
    let params = RejectionSample::lossless(1).recovery(recovery);
    let mut tensors: Tensors = params.tensors(REQUESTS, REQUESTS, VOCAB);
    tensors.draft_probs = with_probs.then_some(tensors.target_probs);
    let verify = handle.create(&params, &tensors)?;
    let mut workspace = verify.workspace(handle)?;
    let target = handle.upload(&TARGET.repeat(REQUESTS))?;
    let draft = handle.upload(&DRAFT.repeat(REQUESTS))?;
    let bonus = handle.upload(&vec![0i32; REQUESTS])?;
    let offsets: Vec<i32> = (0..=REQUESTS as i32).collect();
    let offsets = handle.upload(&offsets)?;
    // Every request has its own seed, and each call decides the next token of each
    // request.
    let seeds: Vec<u64> = (0..REQUESTS as u64).map(|b| b << 32 | 17).collect();
    let seeds = handle.upload(&seeds)?;
    let mut output = handle.allocate::<i32>(REQUESTS * 2)?;
    let mut counts = Vec::new();
    for _ in 0..4 {
        counts.push(handle.allocate::<i32>(REQUESTS)?);
    }
    let [emitted, accepted, recovered, bonus_counts] = &mut counts[..] else { unreachable!() };
    let (mut state, mut seen) = (2024, [0; VOCAB]);
    for call in 0..CALLS {
        // A deterministic draft proposes the same token every time.
        let ids: Vec<i32> =
            (0..REQUESTS).map(|_| if with_probs { drafted(&mut state) } else { 3 }).collect();
        let (ids, positions) = (handle.upload(&ids)?, handle.upload(&[call; REQUESTS])?);
        let mut buffers = Buffers::new(Required {
            target_probs: target.view(),
            draft_token_ids: ids.view(),
            bonus_token_ids: bonus.view(),
            cu_num_draft: offsets.view(),
            output_token_ids: output.view_mut(),
            num_accepted: emitted.view_mut(),
            accepted_counts: accepted.view_mut(),
            recovered_counts: recovered.view_mut(),
            bonus_counts: bonus_counts.view_mut(),
        })
        .seeds(seeds.view())
        .positions(positions.view());
        buffers.draft_probs = with_probs.then(|| draft.view());
        verify.call(&mut workspace, buffers)?;
        for row in output.to_vec()?.chunks(2) {
            seen[row[0] as usize] += 1;
        }
    }
    Ok(seen)
}

fn chi_square(seen: &[u64; VOCAB]) -> f64 {
    let (total, mass): (u64, f32) = (seen.iter().sum(), TARGET.iter().sum());
    let expected = TARGET.map(|p| f64::from(p) / f64::from(mass) * total as f64);
    seen.iter().zip(expected).map(|(&seen, e)| (seen as f64 - e).powi(2) / e).sum()
}

#[test]
fn sample_keeps_the_target_distribution() -> Result<()> {
    for handle in crate::common::handles() {
        for with_probs in [true, false] {
            let statistic = chi_square(&first_tokens(&handle, Recovery::Sample, with_probs)?);
            println!("{}: sample: chi-square {statistic:.1}, bound {BOUND}", handle.device());
            assert!(statistic < BOUND);
        }
    }
    Ok(())
}

#[test]
fn argmax_does_not() -> Result<()> {
    for handle in crate::common::handles() {
        let statistic = chi_square(&first_tokens(&handle, Recovery::Argmax, true)?);
        println!("{}: argmax: chi-square {statistic:.1}, bound {BOUND}", handle.device());
        assert!(statistic > 100.0 * BOUND);
    }
    Ok(())
}
