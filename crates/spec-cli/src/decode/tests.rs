//! Speculative decoding must change nothing but the speed.

use std::time::Duration;

use spec::Handle;

use super::decoding::{self, Decoded, DraftKind, Drafter, Model as _, Request, Sampling};
use super::model::Model;
use super::text::{self, Text};

#[path = "../../../../tests/common/mod.rs"]
mod common;

/// The likeliest token again and again, without any operator.
fn plain_greedy(model: &Model, prompt: &[i32], tokens: usize) -> Vec<i32> {
    let mut text = prompt.to_vec();
    let mut row = vec![0.0; model.vocab()];
    for _ in 0..tokens {
        model.logits(&text, &mut row);
        // The lowest among equals.
        let largest =
            (0..row.len() as i32).zip(&row).rev().max_by(|a, b| a.1.total_cmp(b.1)).unwrap();
        text.push(largest.0);
    }
    text.split_off(prompt.len())
}

fn run(
    handle: &Handle,
    model: &Model,
    prompt: &[i32],
    draft: DraftKind,
    temperature: f32,
    tokens: usize,
) -> Decoded {
    let sampling = Sampling { temperature, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 3 };
    let request = Request { tokens, end: None, sampling, run_time: Duration::ZERO };
    let mut drafter = Drafter::new(handle, draft, 5, prompt.len() + tokens, None).unwrap();
    let mut last = 0;
    let emitted = |n| {
        assert!(n > last, "every step emits a token");
        last = n;
    };
    let decoded = decoding::decode(handle, model, &mut drafter, prompt, &request, emitted).unwrap();
    assert_eq!((decoded.tokens.len(), last), (tokens, tokens));
    assert!(decoded.accepted <= decoded.drafted);
    // Each step emits the drafts that it accepted, and one token more.
    assert_eq!(decoded.accepted + decoded.runs, tokens);
    decoded
}

#[test]
fn greedy_equals_plain_decoding() {
    let text = Text::tokenize(&text::read(None).unwrap());
    let model = Model::new(&text.tokens, text.vocabulary());
    let plain = plain_greedy(&model, &text.tokens, 300);
    for handle in common::handles() {
        for draft in DraftKind::ALL {
            let decoded = run(&handle, &model, &text.tokens, draft, 0.0, 300);
            assert!(decoded.tokens == plain, "{handle:?}, {draft:?}");
            assert_eq!(decoded.accepted > 0, draft != DraftKind::None);
        }
    }
}

/// Runs of repeated tokens end at every length, so that the last step is cut.
#[test]
fn any_number_of_tokens() {
    let prompt: Vec<i32> = (0..60).map(|i| i % 3).collect();
    let model = Model::new(&prompt, 3);
    for handle in common::handles() {
        for draft in DraftKind::ALL {
            for tokens in 1..15 {
                let decoded = run(&handle, &model, &prompt, draft, 0.0, tokens);
                assert_eq!(decoded.tokens, plain_greedy(&model, &prompt, tokens));
            }
        }
    }
}

/// The chi-square statistic of which token followed each pair of tokens,
/// against the target model's probabilities at a temperature, and its degrees of
/// freedom.
fn chi_square(model: &Model, temperature: f64, prompt: &[i32], tokens: &[i32]) -> (f64, usize) {
    let vocab = model.vocab();
    let mut sequence = prompt[prompt.len() - 2..].to_vec();
    sequence.extend(tokens);
    let mut counts = vec![0_u32; vocab * vocab * vocab];
    for w in sequence.windows(3) {
        counts[(w[0] as usize * vocab + w[1] as usize) * vocab + w[2] as usize] += 1;
    }
    let (mut statistic, mut freedom) = (0.0, 0);
    let mut logits = vec![0.0; vocab];
    for (context, counts) in counts.chunks(vocab).enumerate() {
        let total: u32 = counts.iter().sum();
        model.logits(&[(context / vocab) as i32, (context % vocab) as i32], &mut logits);
        let mut row: Vec<f64> =
            logits.iter().map(|&logit| (f64::from(logit) / temperature).exp()).collect();
        let sum: f64 = row.iter().sum();
        row.iter_mut().for_each(|p| *p /= sum);
        // The approximation wants five expected in each cell; contexts that are
        // too rare say nothing.
        if row.iter().any(|p| p * f64::from(total) < 5.0) {
            continue;
        }
        for (count, p) in counts.iter().zip(&row) {
            let expected = f64::from(total) * p;
            statistic += (f64::from(*count) - expected).powi(2) / expected;
        }
        freedom += vocab - 1;
    }
    (statistic, freedom)
}

/// What the statistic exceeds once in a million (Wilson and Hilferty, 1931).
fn bound(freedom: usize) -> f64 {
    let k = freedom as f64;
    k * (1.0 - 2.0 / (9.0 * k) + 4.753 * (2.0 / (9.0 * k)).sqrt()).powi(3)
}

#[test]
fn sampling_keeps_the_target_distribution() {
    const TOKENS: usize = 60_000;
    const TEMPERATURE: f32 = 0.8;
    // A text over six tokens in which some contexts are much likelier than
    // others, so that drafts are right often, and wrong often.
    let mut state = 1_u32;
    let prompt: Vec<i32> = (0..400)
        .map(|i| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            if state >> 30 == 0 { (state >> 16) as i32 % 6 } else { i % 6 }
        })
        .collect();
    let model = Model::new(&prompt, 6);
    let cpu = Handle::cpu().unwrap();
    for draft in DraftKind::ALL {
        let decoded = run(&cpu, &model, &prompt, draft, TEMPERATURE, TOKENS);
        let at = f64::from(TEMPERATURE);
        let (statistic, freedom) = chi_square(&model, at, &prompt, &decoded.tokens);
        let (different, _) = chi_square(&model, at * 1.05, &prompt, &decoded.tokens);
        let bound = bound(freedom);
        println!(
            "{draft:?}: chi-square {statistic:.1}, bound {bound:.1} ({freedom} degrees of \
             freedom, {} of {} drafts accepted); against a temperature 5 % higher {different:.1}",
            decoded.accepted, decoded.drafted
        );
        assert!(freedom >= 100, "too few contexts to say anything");
        assert!(statistic < bound, "{draft:?}: {statistic} is not below {bound}");
        assert!(different > bound, "{draft:?}: the test cannot tell temperatures apart");
    }
}
