//! What sampled tokens are distributed like: as a softmax in f64 with the same
//! filters. Pearson's statistic over bins of tokens, with fixed seeds; the bound is
//! the 99.9th percentile of chi-square with as many degrees of freedom.

mod common;

use spec::ops::SampleLogits;
use spec::ops::sample_logits::{Buffers, Tensors};
use spec::{DType, Handle, Result, Stream, TensorDesc};

/// One distribution that is drawn from.
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

/// Rows of one call.
const ROWS: usize = 1 << 11;

/// Logits by a generator that the operator does not use.
fn logits(vocab: usize) -> Vec<f32> {
    let mut state = vocab as u64;
    let mut unit = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32
    };
    (0..vocab).map(|_| 3.0 * (unit() + unit() + unit() + unit() - 2.0)).collect()
}

/// What should come of it, in f64, in transformers' order.
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

/// How often each token is drawn.
fn drawn(handle: &Handle, case: &Case, draws: usize, logits: &[f32]) -> Result<Vec<u64>> {
    let params = SampleLogits::default();
    let one = |dtype| Some(TensorDesc::new(dtype, [1]));
    let tensors = Tensors {
        // Every row is the same one.
        logits: TensorDesc::with_strides(DType::F32, [ROWS, case.vocab], [0, 1]),
        top_k: one(DType::I32),
        top_p: one(DType::F32),
        min_p: one(DType::F32),
        ..params.tensors(ROWS, 1, case.vocab)
    };
    let sample = handle.create(&params, &tensors)?;
    let mut workspace = handle.workspace(sample.workspace_size())?;
    let logits = handle.upload(logits)?;
    let temperature = handle.upload(&[case.temperature])?;
    let seeds = handle.upload(&[0x5EED_u64])?;
    let (top_k, top_p) = (handle.upload(&[case.top_k])?, handle.upload(&[case.top_p])?);
    let min_p = handle.upload(&[case.min_p])?;
    let requests = handle.upload(&vec![0_i32; ROWS])?;
    let mut tokens = handle.allocate::<i32>(ROWS)?;
    let mut counts = vec![0; case.vocab];
    for call in 0..draws / ROWS {
        let positions: Vec<i64> = (0..ROWS).map(|row| (call * ROWS + row) as i64).collect();
        let positions = handle.upload(&positions)?;
        let buffers = Buffers {
            logits: logits.view(),
            positions: positions.view(),
            temperature: temperature.view(),
            seeds: seeds.view(),
            top_k: Some(top_k.view()),
            top_p: Some(top_p.view()),
            min_p: Some(min_p.view()),
            requests: Some(requests.view()),
            mask: None,
            tokens: tokens.view_mut(),
            probs: None,
            logprobs: None,
            flags: None,
        };
        sample.calculate(&mut workspace, buffers, Stream::default())?;
        for token in tokens.to_vec()? {
            counts[token as usize] += 1;
        }
    }
    Ok(counts)
}

/// Pearson's statistic over bins of neighbouring tokens that each expect 20 draws and
/// more, and its 99.9th percentile (Wilson and Hilferty, 1931).
fn chi_square(counts: &[u64], probabilities: &[f64]) -> (f64, f64) {
    let draws = counts.iter().sum::<u64>() as f64;
    let (mut statistic, mut bins) = (0.0, 0.0);
    let (mut count, mut expected) = (0.0, 0.0);
    let mut rest = 1.0;
    for (&its, &p) in counts.iter().zip(probabilities) {
        assert!(p > 0.0 || its == 0, "a token was drawn that the filters drop");
        (count, expected, rest) = (count + its as f64, expected + p * draws, rest - p);
        // The last bin takes what would be too little for one of its own.
        if expected >= 20.0 && rest * draws >= 20.0 {
            statistic += (count - expected) * (count - expected) / expected;
            (count, expected, bins) = (0.0, 0.0, bins + 1.0);
        }
    }
    statistic += (count - expected) * (count - expected) / expected;
    // The bins are one more than that.
    let freedom: f64 = bins;
    let spread = 2.0 / (9.0 * freedom);
    (statistic, freedom * (1.0 - spread + 3.0902 * spread.sqrt()).powi(3))
}

#[test]
fn tokens_are_distributed_as_a_softmax() {
    for handle in common::handles() {
        for case in &CASES {
            // A GPU that a processor plays takes minutes for what others do in
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

/// The statistic can tell: tokens of temperature 0.8 are none of temperature 0.85.
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
