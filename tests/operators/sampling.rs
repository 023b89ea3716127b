//! The distribution of sampled tokens, verified drafts included, must be that of a softmax in
//! f64 with the same filters. The test is Pearson's over bins of tokens, with fixed seeds; the
//! bound is the 99.9th percentile of the chi-square distribution with the same degrees of
//! freedom.

use spec::ops::sample_logits::Buffers;
use spec::ops::{RejectionSample, SampleLogits, rejection_sample};
use spec::{Buffer, DType, Handle, Result, TensorDesc};

/// A distribution to draw from.
#[derive(Clone, Copy, Debug)]
struct Case {
    vocab: usize,
    draws: usize,
    temperature: f32,
    top_k: i32,
    top_p: f32,
    min_p: f32,
}

const PLAIN: Case =
    Case { vocab: 16, draws: 1 << 20, temperature: 0.8, top_k: 0, top_p: 1.0, min_p: 0.0 };

const CASES: [Case; 8] = [
    PLAIN,
    Case { draws: 1 << 17, top_k: 9, ..PLAIN },
    Case { draws: 1 << 17, temperature: 1.7, top_p: 0.8, ..PLAIN },
    Case { draws: 1 << 17, min_p: 0.05, ..PLAIN },
    Case { vocab: 4096, draws: 1 << 15, ..PLAIN },
    Case { vocab: 4096, draws: 1 << 14, temperature: 1.3, top_k: 700, top_p: 0.9, ..PLAIN },
    Case { vocab: 128_256, draws: 1 << 11, ..PLAIN },
    Case { vocab: 128_256, draws: 1 << 11, top_k: 50, top_p: 0.95, ..PLAIN },
];

/// Pairs of a target distribution and the distribution of its drafts.
const VERIFIED: [[Case; 2]; 2] = [
    [
        Case { draws: 1 << 18, top_p: 0.95, ..PLAIN },
        Case { draws: 1 << 18, temperature: 1.5, top_k: 13, ..PLAIN },
    ],
    [
        Case { vocab: 4096, draws: 1 << 18, temperature: 1.3, top_p: 0.9, ..PLAIN },
        Case { vocab: 4096, draws: 1 << 18, temperature: 1.0, top_k: 700, ..PLAIN },
    ],
];

/// Rows of one call.
const ROWS: usize = 1 << 11;
/// The seed of every row.
const SEED: u64 = 0x5EED;

/// Logits by a generator that the operator does not use.
fn logits(vocab: usize) -> Vec<f32> {
    logits_from(vocab as u64, vocab)
}

fn logits_from(mut state: u64, vocab: usize) -> Vec<f32> {
    let mut unit = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32
    };
    (0..vocab).map(|_| 3.0 * (unit() + unit() + unit() + unit() - 2.0)).collect()
}

/// The expected probabilities in f64, with the filters in the order of transformers.
fn probabilities(case: &Case, logits: &[f32]) -> Vec<f64> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let temperature = f64::from(case.temperature);
    let weight = |x: f32| ((f64::from(x) - f64::from(max)) / temperature).exp();
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    if case.top_k > 0 {
        order.truncate(case.top_k as usize);
    }
    let sum: f64 = order.iter().map(|&v| weight(logits[v])).sum();
    let mut before = 0.0;
    order.retain(|&v| {
        let stays = before < f64::from(case.top_p) * sum;
        before += weight(logits[v]);
        stays
    });
    order.retain(|&v| weight(logits[v]) >= f64::from(case.min_p));
    let sum: f64 = order.iter().map(|&v| weight(logits[v])).sum();
    let mut probabilities = vec![0.0; logits.len()];
    for v in order {
        probabilities[v] = weight(logits[v]) / sum;
    }
    probabilities
}

/// Draws from many equal rows, [`ROWS`] per call, and passes the positions and tokens of
/// each call to `each`.
fn sample(
    handle: &Handle,
    case: &Case,
    logits: &[f32],
    [rows, calls]: [usize; 2],
    mut probs: Option<&mut Buffer<f32>>,
    mut each: impl FnMut(&Buffer<i64>, &Buffer<i32>) -> Result<()>,
) -> Result<()> {
    let params = SampleLogits::default();
    let one = |dtype| Some(TensorDesc::new(dtype, [1]));
    let mut tensors = params.tensors_of(rows, 1, case.vocab);
    tensors.logits = TensorDesc::with_strides(DType::F32, [rows, case.vocab], [0, 1]);
    tensors.top_k = one(DType::I32);
    tensors.top_p = one(DType::F32);
    tensors.min_p = one(DType::F32);
    tensors.probs = probs.as_ref().map(|_| TensorDesc::new(DType::F32, [rows, case.vocab]));
    let sample = handle.create(&params, &tensors)?;
    let mut workspace = sample.workspace(handle)?;
    let logits = handle.upload(logits)?;
    let temperature = handle.upload(&[case.temperature])?;
    let seeds = handle.upload(&[SEED])?;
    let (top_k, top_p) = (handle.upload(&[case.top_k])?, handle.upload(&[case.top_p])?);
    let min_p = handle.upload(&[case.min_p])?;
    let requests = handle.upload(&vec![0_i32; rows])?;
    let mut tokens = handle.allocate::<i32>(rows)?;
    for call in 0..calls {
        let positions: Vec<i64> = (0..rows).map(|row| (call * rows + row) as i64).collect();
        let positions = handle.upload(&positions)?;
        let mut buffers = Buffers::new(
            logits.view(),
            positions.view(),
            temperature.view(),
            seeds.view(),
            tokens.view_mut(),
        )
        .top_k(top_k.view())
        .top_p(top_p.view())
        .min_p(min_p.view())
        .requests(requests.view());
        buffers.probs = probs.as_deref_mut().map(Buffer::view_mut);
        sample.call(&mut workspace, buffers)?;
        each(&positions, &tokens)?;
    }
    Ok(())
}

/// How often each token is drawn.
fn drawn(handle: &Handle, case: &Case, draws: usize, logits: &[f32]) -> Result<Vec<u64>> {
    let mut counts = vec![0; case.vocab];
    sample(handle, case, logits, [ROWS, draws / ROWS], None, |_, tokens| {
        count(&mut counts, &tokens.to_vec()?, 1);
        Ok(())
    })?;
    Ok(counts)
}

/// Counts the first token of each row.
fn count(counts: &mut [u64], tokens: &[i32], cols: usize) {
    for row in tokens.chunks(cols) {
        counts[row[0] as usize] += 1;
    }
}

/// The probabilities that the operator draws from, for a row of logits.
fn probs(handle: &Handle, case: &Case, logits: &[f32]) -> Result<Buffer<f32>> {
    let mut probs = handle.allocate(case.vocab)?;
    sample(handle, case, logits, [1, 1], Some(&mut probs), |_, _| Ok(()))?;
    Ok(probs)
}

/// How often each token is the next token if a draft for the position is verified. Drafting
/// and verification use the same seed and the same positions.
fn verified(
    handle: &Handle,
    [target, draft]: &[Case; 2],
    draws: usize,
    [target_logits, draft_logits]: [&[f32]; 2],
) -> Result<Vec<u64>> {
    let params = RejectionSample::lossless(1);
    let same = TensorDesc::with_strides(DType::F32, [ROWS, target.vocab], [0, 1]);
    let mut tensors = params.tensors(ROWS, ROWS, target.vocab);
    tensors.target_probs = same;
    tensors.draft_probs = Some(same);
    let verify = handle.create(&params, &tensors)?;
    let mut workspace = verify.workspace(handle)?;
    let target_probs = probs(handle, target, target_logits)?;
    let draft_probs = probs(handle, draft, draft_logits)?;
    let bonus = handle.upload(&[0_i32; ROWS])?;
    let offsets: Vec<i32> = (0..=ROWS as i32).collect();
    let offsets = handle.upload(&offsets)?;
    let seeds = handle.upload(&[SEED; ROWS])?;
    let mut output = handle.allocate::<i32>(ROWS * 2)?;
    let [mut emitted, mut accepted, mut recovered, mut bonuses] =
        [(); 4].map(|()| handle.allocate::<i32>(ROWS).expect("memory"));
    let mut counts = vec![0; target.vocab];
    sample(handle, draft, draft_logits, [ROWS, draws / ROWS], None, |positions, drafts| {
        let buffers = rejection_sample::Buffers::new(rejection_sample::Required {
            target_probs: target_probs.view(),
            draft_token_ids: drafts.view(),
            bonus_token_ids: bonus.view(),
            cu_num_draft: offsets.view(),
            output_token_ids: output.view_mut(),
            num_accepted: emitted.view_mut(),
            accepted_counts: accepted.view_mut(),
            recovered_counts: recovered.view_mut(),
            bonus_counts: bonuses.view_mut(),
        })
        .draft_probs(draft_probs.view())
        .seeds(seeds.view())
        .positions(positions.view());
        verify.call(&mut workspace, buffers)?;
        count(&mut counts, &output.to_vec()?, 2);
        Ok(())
    })?;
    Ok(counts)
}

/// Pearson's statistic over bins of neighbouring tokens, each with at least 20 expected draws,
/// and the 99.9th percentile of the statistic (Wilson and Hilferty, 1931).
fn chi_square(counts: &[u64], probabilities: &[f64]) -> (f64, f64) {
    let draws = counts.iter().sum::<u64>() as f64;
    let (mut statistic, mut bins) = (0.0, 0.0);
    let (mut count, mut expected) = (0.0, 0.0);
    let mut rest = 1.0;
    for (&its, &p) in counts.iter().zip(probabilities) {
        assert!(p > 0.0 || its == 0, "a token was drawn that the filters drop");
        (count, expected, rest) = (count + its as f64, expected + p * draws, rest - p);
        // Tokens that are too few for a bin of their own go to the last bin.
        if expected >= 20.0 && rest * draws >= 20.0 {
            statistic += (count - expected) * (count - expected) / expected;
            (count, expected, bins) = (0.0, 0.0, bins + 1.0);
        }
    }
    statistic += (count - expected) * (count - expected) / expected;
    // There is one bin more than `bins`, so `bins` are the degrees of freedom.
    let freedom: f64 = bins;
    let spread = 2.0 / (9.0 * freedom);
    (statistic, freedom * (1.0 - spread + 3.0902 * spread.sqrt()).powi(3))
}

#[test]
fn tokens_are_distributed_as_a_softmax() {
    for handle in crate::common::handles() {
        for case in &CASES {
            // A software renderer takes minutes for draws that take other devices
            // seconds.
            let draws = if handle.info().software { case.draws / 64 } else { case.draws };
            if draws < ROWS {
                continue;
            }
            let logits = logits(case.vocab);
            let counts = drawn(&handle, case, draws, &logits)
                .unwrap_or_else(|error| panic!("on {}: {error}", handle.device()));
            let (statistic, bound) = chi_square(&counts, &probabilities(case, &logits));
            println!("{}: {case:?}: {statistic:.1}, bound {bound:.1}", handle.device());
            assert!(statistic < bound, "{case:?}: {statistic:.1} is not below {bound:.1}");
        }
    }
}

/// For any distribution of drafts, accepted and recovered tokens together have the target's
/// distribution.
#[test]
fn verified_drafts_are_distributed_as_the_target() {
    for handle in crate::common::handles() {
        for cases in &VERIFIED {
            let [target, draft] = cases;
            let draws = if handle.info().software { target.draws / 64 } else { target.draws };
            let logits = [logits_from(1, target.vocab), logits_from(2, draft.vocab)];
            let counts = verified(&handle, cases, draws, [&logits[0], &logits[1]])
                .unwrap_or_else(|error| panic!("on {}: {error}", handle.device()));
            assert_eq!(counts.iter().sum::<u64>(), draws as u64);
            let (statistic, bound) = chi_square(&counts, &probabilities(target, &logits[0]));
            println!(
                "{}: {draws} of {target:?} by drafts of {draft:?}: {statistic:.1}, bound {bound:.1}",
                handle.device()
            );
            assert!(statistic < bound, "{target:?}: {statistic:.1} is not below {bound:.1}");
        }
    }
}

/// The statistic is sensitive enough to tell temperature 0.8 from temperature 0.85.
#[cfg(feature = "cpu")]
#[test]
fn another_distribution_is_found() -> Result<()> {
    let logits = logits(PLAIN.vocab);
    let counts = drawn(&Handle::cpu()?, &PLAIN, 1 << 17, &logits)?;
    let other = Case { temperature: 0.85, ..PLAIN };
    let (statistic, bound) = chi_square(&counts, &probabilities(&other, &logits));
    assert!(statistic > bound, "{statistic:.1} is below {bound:.1}");
    Ok(())
}

/// The tokens that a model draws at positions 0, 1, .. of a text with [`SEED`], `n` per position.
fn choices(handle: &Handle, logits: &[f32], rows: usize, n: usize) -> Result<Vec<i32>> {
    let sample = SampleLogits::default();
    let mut tensors = sample.tensors_of(rows, 1, logits.len() / rows);
    tensors.tokens = TensorDesc::new(DType::I32, [rows, n]);
    let op = handle.create(&sample, &tensors)?;
    let mut workspace = op.workspace(handle)?;
    let positions: Vec<i64> = (0..rows as i64).collect();
    let (logits, positions) = (handle.upload(logits)?, handle.upload(&positions)?);
    let (temperature, seeds) = (handle.upload(&[1.0f32])?, handle.upload(&[SEED])?);
    let requests = handle.upload(&vec![0i32; rows])?;
    let mut tokens = handle.allocate::<i32>(rows * n)?;
    let buffers = Buffers::new(
        logits.view(),
        positions.view(),
        temperature.view(),
        seeds.view(),
        tokens.view_mut(),
    );
    op.call(&mut workspace, buffers.requests(requests.view()))?;
    tokens.to_vec()
}

/// Rows of normal logits, and the same rows with normal errors added.
fn drafter_and_target(rows: usize, vocab: usize, spread: f32, error: f32) -> [Vec<f32>; 2] {
    // Dividing by the square root of 3 gives variance 1: a sum of four uniform numbers has 3.
    let normal = |seed| logits_from(seed, rows * vocab).into_iter().map(|x| x / 3f32.sqrt());
    let target: Vec<f32> = normal(1).map(|x| spread * x).collect();
    let drafter = target.iter().zip(normal(2)).map(|(x, e)| x + error * e).collect();
    [drafter, target]
}

/// The overlap of two distributions: the share of drafts that rejection sampling accepts on
/// average.
fn overlap(a: &[f32], b: &[f32]) -> f64 {
    let softmax = |x: &[f32]| {
        let weights: Vec<f64> = x.iter().map(|&x| f64::from(x).exp()).collect();
        let sum: f64 = weights.iter().sum();
        weights.into_iter().map(move |w| w / sum)
    };
    softmax(a).zip(softmax(b)).map(|(a, b)| a.min(b)).sum()
}

/// Two models that draw with the same seed and position use the same noise. So they agree nearly
/// as often as rejection sampling would accept drafts.
#[test]
fn a_drafter_with_the_seed_of_its_target_agrees_with_it() -> Result<()> {
    const ROWS: usize = 600;
    const VOCAB: usize = 500;
    let [drafter, target] = drafter_and_target(ROWS, VOCAB, 3.0, 0.3);
    let rows = drafter.chunks(VOCAB).zip(target.chunks(VOCAB));
    let accepted = rows.map(|(d, t)| overlap(d, t)).sum::<f64>() / ROWS as f64;
    for handle in crate::common::handles() {
        let [drafts, tokens] =
            [choices(&handle, &drafter, ROWS, 1)?, choices(&handle, &target, ROWS, 1)?];
        let agree = drafts.iter().zip(&tokens).filter(|(d, t)| d == t).count() as f64 / ROWS as f64;
        println!("{}: agree {agree:.3}, rejection sampling {accepted:.3}", handle.device());
        assert!(agree > accepted - 0.08 && agree > 0.7, "agree {agree}, accepted {accepted}");
    }
    Ok(())
}

/// Several draws of a row are distinct, and the first equals a single draw.
#[test]
fn several_draws_are_distinct() -> Result<()> {
    const ROWS: usize = 40;
    let [logits, _] = drafter_and_target(ROWS, 300, 2.0, 0.0);
    for handle in crate::common::handles() {
        let one = choices(&handle, &logits, ROWS, 1)?;
        let many = choices(&handle, &logits, ROWS, 8)?;
        for (first, row) in one.iter().zip(many.chunks(8)) {
            assert_eq!(*first, row[0]);
            let mut sorted = row.to_vec();
            sorted.sort_unstable();
            sorted.dedup();
            assert!(sorted.len() == 8 && sorted[0] >= 0, "{row:?}");
        }
    }
    Ok(())
}

/// Log-probabilities of two rows: all logits are the least number, so that no logit is smaller; and
/// one token is nearly sure, so that its log-probability is that of all others together.
#[test]
fn log_probabilities_of_extreme_rows() -> Result<()> {
    const VOCAB: usize = 257;
    let others = VOCAB as f64 - 1.0;
    let mut logits = [[f32::MIN; VOCAB], [43.0; VOCAB]];
    logits[1][VOCAB / 2] = 60.0;
    let expected = [-(others + 1.0).ln(), -(others * (-17.0f64).exp()).ln_1p()];
    let sample = SampleLogits::new().min_p_first(true);
    let mut tensors = sample.tensors(2, VOCAB).min_p(TensorDesc::new(DType::F32, [2]));
    tensors = tensors.logprobs(TensorDesc::new(DType::F32, [2]));
    tensors = tensors.processed_logprobs(TensorDesc::new(DType::F32, [2]));
    for handle in crate::common::handles() {
        let op = handle.create(&sample, &tensors)?;
        let mut workspace = op.workspace(&handle)?;
        let (logits, positions) =
            (handle.upload(logits.as_flattened())?, handle.upload(&[0i64, 1])?);
        let (temperature, seeds) = (handle.upload(&[1.0f32; 2])?, handle.upload(&[SEED; 2])?);
        let min_p = handle.upload(&[1e-9f32; 2])?;
        let mut tokens = handle.allocate::<i32>(2)?;
        let [mut logprobs, mut processed] =
            [handle.allocate::<f32>(2)?, handle.allocate::<f32>(2)?];
        let buffers = Buffers::new(
            logits.view(),
            positions.view(),
            temperature.view(),
            seeds.view(),
            tokens.view_mut(),
        );
        let buffers = buffers.min_p(min_p.view()).logprobs(logprobs.view_mut());
        op.call(&mut workspace, buffers.processed_logprobs(processed.view_mut()))?;
        assert_eq!(tokens.to_vec()?[1], VOCAB as i32 / 2);
        for (found, name) in [(logprobs.to_vec()?, "raw"), (processed.to_vec()?, "processed")] {
            for (found, expected) in found.iter().zip(expected) {
                let bound = 1e-6 + 2e-5 * expected.abs();
                let near = (f64::from(*found) - expected).abs() <= bound;
                assert!(near, "{} on {}: {found}, expected {expected}", name, handle.device());
            }
        }
    }
    Ok(())
}
