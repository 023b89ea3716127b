//! Speculative decoding must change nothing but the speed.

use spec::{Handle, Signature, ops};

use super::engine::{Decoded, DraftKind, Settings, decode};
use super::model::{Model, argmax};
use super::text::{self, Text};

#[path = "../../../../tests/common/mod.rs"]
mod common;

const SPECULATIVE: [DraftKind; 3] = [DraftKind::Ngram, DraftKind::Model, DraftKind::Hybrid];

fn settings(draft: DraftKind, temperature: f64, tokens: usize) -> Settings {
    Settings { tokens, draft, draft_tokens: 5, temperature, seed: 3 }
}

fn shipped() -> Text {
    Text::tokenize(&text::read(None).unwrap()).unwrap()
}

/// The likeliest token again and again, without any operator.
fn plain_greedy(model: &Model, prompt: &[u32], tokens: usize) -> Vec<u32> {
    let mut sequence = prompt.to_vec();
    let mut row = vec![0.0; model.vocab()];
    for _ in 0..tokens {
        let &[.., a, b] = &sequence[..] else { unreachable!() };
        model.target([a, b], &mut row);
        sequence.push(argmax(&row));
    }
    sequence.split_off(prompt.len())
}

fn run(handle: &Handle, model: &Model, prompt: &[u32], settings: &Settings) -> Decoded {
    let mut last = 0;
    let decoded = decode(handle, model, prompt, settings, |n| {
        assert!(n > last, "every step emits a token");
        last = n;
    })
    .unwrap();
    assert_eq!((decoded.tokens.len(), last), (settings.tokens, settings.tokens));
    assert!(decoded.accepted <= decoded.drafted);
    // Each step emits what it accepted and one token more.
    assert_eq!(decoded.accepted + decoded.steps, settings.tokens);
    decoded
}

#[test]
fn greedy_equals_plain_decoding() {
    let text = shipped();
    let model = Model::new(&text.tokens, text.vocabulary(), 0.0);
    let plain = plain_greedy(&model, &text.tokens, 300);
    for handle in common::handles() {
        for draft in [DraftKind::None, DraftKind::Ngram, DraftKind::Model, DraftKind::Hybrid] {
            let decoded = run(&handle, &model, &text.tokens, &settings(draft, 0.0, 300));
            assert!(decoded.tokens == plain, "{handle:?}, {draft:?}");
            assert_eq!(decoded.accepted > 0, draft != DraftKind::None);
        }
    }
}

/// Runs of repeated tokens end at every length, so that the last step is cut.
#[test]
fn any_number_of_tokens() {
    let prompt: Vec<u32> = (0..60).map(|i| i % 3).collect();
    let model = Model::new(&prompt, 3, 0.0);
    for handle in common::handles() {
        for draft in SPECULATIVE {
            for tokens in 1..15 {
                let decoded = run(&handle, &model, &prompt, &settings(draft, 0.0, tokens));
                assert_eq!(decoded.tokens, plain_greedy(&model, &prompt, tokens));
            }
        }
    }
}

#[test]
fn a_seed_gives_the_same_tokens_everywhere() {
    let text = shipped();
    let model = Model::new(&text.tokens, text.vocabulary(), 0.9);
    let cpu = Handle::cpu().unwrap();
    for draft in SPECULATIVE {
        let settings = settings(draft, 0.9, 200);
        let expected = run(&cpu, &model, &text.tokens, &settings);
        for handle in common::handles() {
            let again = run(&handle, &model, &text.tokens, &settings);
            assert!(again.tokens == expected.tokens, "{handle:?}, {draft:?}");
            assert_eq!((again.steps, again.drafted), (expected.steps, expected.drafted));
        }
        let other = run(&cpu, &model, &text.tokens, &Settings { seed: 4, ..settings });
        assert!(other.tokens != expected.tokens, "{draft:?}: the seed does nothing");
    }
}

#[test]
fn operators_of_each_draft_are_timed() {
    let prompt = [0, 1, 2, 0, 1, 2, 0];
    let model = Model::new(&prompt, 3, 1.0);
    let cpu = Handle::cpu().unwrap();
    let names = |draft| -> Vec<&str> {
        let decoded = run(&cpu, &model, &prompt, &settings(draft, 1.0, 5));
        decoded.watch.laps.iter().map(|lap| lap.0).collect()
    };
    let verify = ops::RejectionSample::NAME;
    assert_eq!(names(DraftKind::None), [verify]);
    assert_eq!(names(DraftKind::Model), [verify]);
    assert_eq!(names(DraftKind::Ngram), [ops::NgramMatch::NAME, verify]);
    assert_eq!(names(DraftKind::Hybrid), [ops::HybridMtpNgram::NAME, verify]);
}

/// The chi-square statistic of which token followed each pair of tokens,
/// against the target model's probabilities, and its degrees of freedom.
fn chi_square(model: &Model, prompt: &[u32], tokens: &[u32]) -> (f64, usize) {
    let vocab = model.vocab();
    let mut sequence = prompt[prompt.len() - 2..].to_vec();
    sequence.extend(tokens);
    let mut counts = vec![0_u32; vocab * vocab * vocab];
    for w in sequence.windows(3) {
        counts[(w[0] as usize * vocab + w[1] as usize) * vocab + w[2] as usize] += 1;
    }
    let (mut statistic, mut freedom) = (0.0, 0);
    let mut row = vec![0.0; vocab];
    for (context, counts) in counts.chunks(vocab).enumerate() {
        let total: u32 = counts.iter().sum();
        model.target([(context / vocab) as u32, (context % vocab) as u32], &mut row);
        // The approximation wants five expected in each cell; contexts that are
        // too rare say nothing.
        if row.iter().any(|p| f64::from(*p) * f64::from(total) < 5.0) {
            continue;
        }
        for (count, p) in counts.iter().zip(&row) {
            let expected = f64::from(total) * f64::from(*p);
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
    const TEMPERATURE: f64 = 0.8;
    // A text over six tokens in which some contexts are much likelier than
    // others, so that drafts are right often, and wrong often.
    let mut state = 1_u32;
    let prompt: Vec<u32> = (0..400)
        .map(|i| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            if state >> 30 == 0 { (state >> 16) % 6 } else { i % 6 }
        })
        .collect();
    let model = Model::new(&prompt, 6, TEMPERATURE);
    let other = Model::new(&prompt, 6, TEMPERATURE * 1.05);
    let cpu = Handle::cpu().unwrap();
    for draft in [DraftKind::None, DraftKind::Ngram, DraftKind::Model, DraftKind::Hybrid] {
        let decoded = run(&cpu, &model, &prompt, &settings(draft, TEMPERATURE, TOKENS));
        let (statistic, freedom) = chi_square(&model, &prompt, &decoded.tokens);
        let (different, _) = chi_square(&other, &prompt, &decoded.tokens);
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
