//! A decode loop that drafts from its own text, and from earlier answers:
//! `cargo run --example decode_loop -- [DEVICE] [--draft none|lookup|suffix|suffix-tree] [--corpus FILE]`.
//!
//! The loop is in [`decoding`]; the program `spec decode` runs the same loop. Here the model has a
//! fixed answer, and chooses greedily.

mod decoding;

use std::path::PathBuf;
use std::time::Duration;

use spec::{Corpus, Handle, Result};

use decoding::{Decoded, DraftKind, Drafter, Model, Request, Sampling, decode};

/// Stands for a language model with one token per byte of ASCII, which knows the next token of any
/// text that begins like prompt and answer.
struct Answer {
    prompt: &'static str,
    answer: &'static str,
}

impl Model for Answer {
    fn vocab(&self) -> usize {
        128
    }

    fn logits(&self, text: &[i32], row: &mut [f32]) {
        let mut known = self.prompt.bytes().chain(self.answer.bytes()).map(i32::from);
        let is_known = text.iter().all(|&token| known.next() == Some(token));
        let token = known.next().filter(|_| is_known).unwrap_or(END);
        row[token as usize] = 1.0;
    }
}

/// The token that ends a text.
const END: i32 = 0;
/// The longest text, and the most drafts of a step.
const MAX: usize = 512;
const MAX_DRAFT: usize = 8;

/// The answer repeats the prompt with a small change: a task for which drafting works well.
const MODEL: Answer = Answer {
    prompt: "fn area(width: f32, height: f32) -> f32 { width * height }\nThe same in f64:\n",
    answer: "fn area(width: f64, height: f64) -> f64 { width * height }\n",
};

/// Decodes the answer until its end, or until the text has `max` tokens.
fn answer(handle: &Handle, draft: DraftKind, corpus: &Corpus<i32>, max: usize) -> Result<Decoded> {
    let prompt: Vec<i32> = MODEL.prompt.bytes().map(i32::from).collect();
    let sampling = Sampling { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0 };
    let tokens = max - prompt.len();
    let request = Request { tokens, end: Some(END), sampling, run_time: Duration::ZERO };
    let mut drafter = Drafter::new(handle, draft, MAX_DRAFT, max, Some(corpus))?;
    decode(handle, &MODEL, &mut drafter, &prompt, &request, |_| {})
}

fn shown(answer: &[i32]) -> String {
    let letters = answer.iter().filter(|&&token| token != END);
    letters.map(|&token| token as u8 as char).collect()
}

fn main() -> Result<()> {
    let (mut device, mut draft, mut file) = ("auto".to_owned(), "lookup".to_owned(), None);
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--draft" => draft = words.next().unwrap_or_default(),
            "--corpus" => file = words.next().map(PathBuf::from),
            _ => device = word,
        }
    }
    let Some(draft) = DraftKind::ALL.into_iter().find(|kind| kind.name() == draft) else {
        eprintln!("--draft is none, lookup, suffix or suffix-tree");
        std::process::exit(2);
    };
    let handle: Handle = device.parse()?;
    let corpus = match &file {
        Some(file) if file.exists() => Corpus::load(&handle, file, 1 << 20)?,
        _ => Corpus::new(&handle, 1 << 20)?,
    };
    let decoded = answer(&handle, draft, &corpus, MAX)?;
    print!("{}", shown(&decoded.tokens));
    let Decoded { tokens, runs, drafted, accepted, total, model, watch } = decoded;
    println!("{} tokens in {runs} runs of the model, on {}", tokens.len(), handle.device());
    println!("{accepted} of {drafted} drafts accepted, {model:.1?} of {total:.1?} in the model");
    for (operator, time, calls) in watch.laps {
        println!("{operator}: {time:.1?} in {calls} calls");
    }
    if let Some(file) = &file {
        // Requests that come later draft from this answer.
        corpus.append(&tokens)?;
        corpus.save(file)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(draft: DraftKind, corpus: &Corpus<i32>, max: usize) -> (String, usize) {
        let decoded = answer(&Handle::cpu().unwrap(), draft, corpus, max).unwrap();
        (shown(&decoded.tokens), decoded.runs)
    }

    /// Drafts change only the number of runs of the model.
    #[test]
    fn drafts_save_runs_and_leave_the_text() {
        let corpus = Corpus::new(&Handle::cpu().unwrap(), 1024).unwrap();
        let (plain, runs) = run(DraftKind::None, &corpus, MAX);
        assert_eq!((&*plain, runs), (MODEL.answer, MODEL.answer.len() + 1));
        for draft in &DraftKind::ALL[1..] {
            let (text, fewer) = run(*draft, &corpus, MAX);
            assert_eq!(text, plain, "{draft:?}");
            assert!(fewer * 3 < runs, "{draft:?}: {fewer} runs instead of {runs}");
        }
        // An earlier answer is the same text.
        let earlier: Vec<i32> = MODEL.answer.bytes().map(i32::from).collect();
        corpus.append(&earlier).unwrap();
        for draft in [DraftKind::Suffix, DraftKind::SuffixTree] {
            let (text, fewer) = run(draft, &corpus, MAX);
            assert_eq!(text, plain, "{draft:?}");
            assert!(fewer * 5 < runs, "{draft:?}: {fewer} runs instead of {runs}");
        }
    }

    /// Decoding ends when the text has the largest number of tokens.
    #[test]
    fn a_row_is_not_overrun() {
        let corpus = Corpus::new(&Handle::cpu().unwrap(), 1024).unwrap();
        for draft in [DraftKind::Lookup, DraftKind::SuffixTree] {
            let (text, _) = run(draft, &corpus, MODEL.prompt.len() + 20);
            assert_eq!(text, MODEL.answer[..20], "{draft:?}");
        }
    }
}
