//! Tests that need a real model. `SPEC_LLM_MODEL` is the path of a SmolLM2 file; without this
//! variable the tests do nothing and print so.

use std::path::PathBuf;

use spec::Handle;
use spec_llm::{Drafter, Llama, Request, Sampling, Text, Weights, bench, decode};

/// The model and the tokenizer of the file, if `SPEC_LLM_MODEL` is set.
fn real(capacity: usize) -> Option<(Llama, Text)> {
    let Some(path) = std::env::var_os("SPEC_LLM_MODEL").map(PathBuf::from) else {
        eprintln!("NOT RUN: SPEC_LLM_MODEL is not set");
        return None;
    };
    let (model, content) = Llama::open(&path, Weights::Auto, capacity).unwrap();
    Some((model, Text::new(&content).unwrap()))
}

/// The expected ids come from an independent byte-pair encoder, written in Python, that uses the
/// file's merges.
#[test]
fn text_has_known_ids() {
    rayon::scope(|_| {
        let Some((_, text)) = real(16) else { return };
        let known: [(&str, &[u32]); 3] = [
            (
                "The quick brown fox jumps over the lazy dog.",
                &[504, 2365, 6354, 16438, 27003, 690, 260, 23790, 2767, 30],
            ),
            (
                "let x = 1024;\n\treturn x + 3.5;",
                &[
                    2016, 1792, 446, 216, 33, 32, 34, 36, 43, 198, 197, 5406, 1792, 1232, 216, 35,
                    30, 37, 43,
                ],
            ),
            (
                "  naïve café, 'twas 2026 — déjà vu!",
                &[
                    216, 15486, 46494, 37366, 28, 637, 10372, 292, 216, 34, 32, 34, 38, 1841,
                    32564, 90, 16739, 386, 101, 17,
                ],
            ),
        ];
        for (words, ids) in known {
            assert_eq!(text.tokens(words).unwrap(), ids);
            assert_eq!(text.text(ids).unwrap(), words);
        }
    });
}

/// The model answers questions of its training, so the forward pass is right.
#[test]
fn the_model_answers() {
    rayon::scope(|_| {
        let Some((mut model, text)) = real(256) else { return };
        let prompt = text.tokens(&text.chat("What is the capital of France?").unwrap()).unwrap();
        let sampling = Sampling::GREEDY;
        let request = Request { tokens: 24, stop: text.end, max_draft: 0, sampling, row: 0.0 };
        let handle = Handle::cpu().unwrap();
        let mut none = Drafter::None;
        let answer = decode(&handle, &mut model, &mut none, &prompt, &request, |_| Ok(())).unwrap();
        let answer = text.text(&answer.tokens).unwrap();
        assert!(answer.contains("Paris"), "{answer}");
    });
}

/// Drafts do not change any of 512 tokens, greedy or sampled.
#[test]
fn drafts_leave_the_text() {
    rayon::scope(|_| {
        let Some((mut model, text)) = real(1536) else { return };
        let handle = Handle::cpu().unwrap();
        let prompt = text.tokens(&text.chat(bench::PROMPTS[0].2).unwrap()).unwrap();
        let warm = Sampling { temperature: 0.7, top_k: 0, top_p: 0.95, seed: 3 };
        for sampling in [Sampling::GREEDY, warm] {
            let request = Request { tokens: 512, stop: None, max_draft: 15, sampling, row: 0.1 };
            let mut run = |drafter: &mut Drafter| {
                decode(&handle, &mut model, drafter, &prompt, &request, |_| Ok(())).unwrap()
            };
            let plain = run(&mut Drafter::None);
            let mut lookup = Drafter::lookup(&handle, 1536, 15).unwrap();
            let mut ngram = Drafter::ngram(&handle, &prompt, 1536, 15).unwrap();
            let mut tree = Drafter::suffix(&handle, 1536, 15, 2, None).unwrap();
            for drafter in [&mut lookup, &mut ngram, &mut tree] {
                let drafted = run(drafter);
                assert_eq!(drafted.tokens, plain.tokens);
                assert!(drafted.accepted > 0 && drafted.steps < 512);
            }
        }
    });
}
