//! Speculative decoding must change nothing but the speed.

use std::time::Duration;

use spec::{Handle, Signature, ops};

use super::engine::{Decoded, decode};
use super::model::Model;
use super::settings::{DraftKind, ModelTime, Sampling, Settings};
use super::text::{self, Text};

#[path = "../../../../tests/common/mod.rs"]
mod common;

const SPECULATIVE: [DraftKind; 7] = [
    DraftKind::Ngram,
    DraftKind::Lookup,
    DraftKind::Suffix,
    DraftKind::SuffixTree,
    DraftKind::Model,
    DraftKind::Tree,
    DraftKind::Hybrid,
];

fn settings(draft: DraftKind, temperature: f32, tokens: usize) -> Settings {
    let sampling = Sampling { temperature, top_k: 0, top_p: 1.0, min_p: 0.0 };
    let model_time = ModelTime::default();
    Settings { tokens, draft, draft_tokens: 5, sampling, seed: 3, draft_seed: 3, model_time }
}

fn shipped() -> Text {
    Text::tokenize(&text::read(None).unwrap())
}

/// The likeliest token again and again, without any operator.
fn plain_greedy(model: &Model, prompt: &[u32], tokens: usize) -> Vec<u32> {
    let mut sequence = prompt.to_vec();
    let vocab = model.vocab() as u32;
    let mut row = vec![0.0_f32; model.vocab()];
    for _ in 0..tokens {
        let &[.., a, b] = &sequence[..] else { unreachable!() };
        model.target([a, b], &mut row);
        // The lowest among equals.
        let largest = (0..vocab).zip(&row).rev().max_by(|a, b| a.1.total_cmp(b.1)).unwrap();
        sequence.push(largest.0);
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
    let model = Model::new(&text.tokens, text.vocabulary());
    let plain = plain_greedy(&model, &text.tokens, 300);
    for handle in common::handles() {
        for draft in [DraftKind::None].into_iter().chain(SPECULATIVE) {
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
    let model = Model::new(&prompt, 3);
    for handle in common::handles() {
        for draft in SPECULATIVE {
            for tokens in 1..15 {
                let decoded = run(&handle, &model, &prompt, &settings(draft, 0.0, tokens));
                assert_eq!(decoded.tokens, plain_greedy(&model, &prompt, tokens));
            }
        }
    }
}

/// The text of a seed: without drafts, and with any, on every device.
#[test]
fn a_seed_gives_one_text() {
    let text = shipped();
    let model = Model::new(&text.tokens, text.vocabulary());
    let cpu = Handle::cpu().unwrap();
    let filtered = Sampling { temperature: 0.9, top_k: 40, top_p: 0.95, min_p: 0.01 };
    for sampling in [Sampling { top_k: 0, top_p: 1.0, min_p: 0.0, ..filtered }, filtered] {
        let of = |draft| Settings { sampling, ..settings(draft, 0.0, 200) };
        let plain = run(&cpu, &model, &text.tokens, &of(DraftKind::None));
        for handle in common::handles() {
            for draft in [DraftKind::None].into_iter().chain(SPECULATIVE) {
                let decoded = run(&handle, &model, &text.tokens, &of(draft));
                assert!(decoded.tokens == plain.tokens, "{handle:?}, {draft:?}");
            }
        }
        let other = run(&cpu, &model, &text.tokens, &Settings { seed: 4, ..of(DraftKind::None) });
        assert!(other.tokens != plain.tokens, "the seed does nothing");
    }
}

/// A draft model that draws with the request's random numbers agrees more often than
/// one with its own, and neither changes the text.
#[test]
fn common_random_numbers_agree_more_often() {
    let text = shipped();
    let model = Model::new(&text.tokens, text.vocabulary());
    let cpu = Handle::cpu().unwrap();
    let mut accepted = [0; 2];
    let mut drafted = [0; 2];
    for seed in 0..20 {
        let common = Settings { seed, draft_seed: seed, ..settings(DraftKind::Model, 1.0, 300) };
        let own = Settings { draft_seed: seed + 1_000, ..common.clone() };
        let runs = [common, own].map(|settings| run(&cpu, &model, &text.tokens, &settings));
        assert!(runs[0].tokens == runs[1].tokens, "the draft model's seed changes the text");
        for (which, run) in runs.iter().enumerate() {
            accepted[which] += run.accepted;
            drafted[which] += run.drafted;
        }
    }
    let [common, own] = [0, 1].map(|which| accepted[which] as f64 / drafted[which] as f64);
    println!("accepted: {common:.3} with the request's seed, {own:.3} with another");
    assert!(common > 1.2 * own, "{common} is not well above {own}");
}

#[test]
fn operators_of_each_draft_are_timed() {
    let prompt = [0, 1, 2, 0, 1, 2, 0];
    let model = Model::new(&prompt, 3);
    let cpu = Handle::cpu().unwrap();
    let names = |draft| -> Vec<&str> {
        let decoded = run(&cpu, &model, &prompt, &settings(draft, 1.0, 20));
        decoded.watch.laps.iter().map(|lap| lap.0).collect()
    };
    let (sample, verify) = (ops::SampleLogits::NAME, ops::TreeVerify::NAME);
    assert_eq!(names(DraftKind::None), [sample, verify]);
    assert_eq!(names(DraftKind::Model), [sample, verify]);
    assert_eq!(names(DraftKind::Tree), [sample, verify]);
    assert_eq!(names(DraftKind::Ngram), [ops::NgramMatch::NAME, sample, verify]);
    assert_eq!(names(DraftKind::Lookup), [ops::PromptLookup::NAME, sample, verify]);
    assert_eq!(names(DraftKind::Suffix), [ops::SuffixLookup::NAME, sample, verify]);
    assert_eq!(names(DraftKind::SuffixTree), [ops::SuffixLookup::NAME, sample, verify]);
    assert_eq!(names(DraftKind::Hybrid), [sample, ops::HybridMtpNgram::NAME, verify]);
}

/// A run of a model takes its time, and all runs are counted.
#[test]
fn runs_of_models_take_their_time() {
    let prompt = [0, 1, 2, 0, 1, 2, 0];
    let model = Model::new(&prompt, 3);
    let cpu = Handle::cpu().unwrap();
    let [target, draft] = [3, 2].map(Duration::from_millis);
    for kind in [DraftKind::None].into_iter().chain(SPECULATIVE) {
        let model_time = ModelTime { target, draft };
        let settings = Settings { model_time, ..settings(kind, 1.0, 20) };
        let decoded = run(&cpu, &model, &prompt, &settings);
        let watch = &decoded.watch;
        assert_eq!(watch.target.count, decoded.steps, "{kind:?}");
        assert!(watch.target.time >= target * decoded.steps as u32, "{kind:?}");
        let drafts = matches!(kind, DraftKind::Model | DraftKind::Tree | DraftKind::Hybrid);
        assert_eq!(watch.draft.count > 0, drafts, "{kind:?}");
        assert!(watch.draft.count <= decoded.drafted, "{kind:?}");
        assert!(watch.draft.time >= draft * watch.draft.count as u32, "{kind:?}");
        assert!(decoded.total >= watch.target.time + watch.draft.time, "{kind:?}");
    }
}

/// The chi-square statistic of which token followed each pair of tokens,
/// against the target model's probabilities at a temperature, and its degrees of
/// freedom.
fn chi_square(model: &Model, temperature: f64, prompt: &[u32], tokens: &[u32]) -> (f64, usize) {
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
        model.target([(context / vocab) as u32, (context % vocab) as u32], &mut logits);
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
    let prompt: Vec<u32> = (0..400)
        .map(|i| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            if state >> 30 == 0 { (state >> 16) % 6 } else { i % 6 }
        })
        .collect();
    let model = Model::new(&prompt, 6);
    let cpu = Handle::cpu().unwrap();
    for draft in [DraftKind::None].into_iter().chain(SPECULATIVE) {
        let decoded = run(&cpu, &model, &prompt, &settings(draft, TEMPERATURE, TOKENS));
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
