//! Compares `prompt_lookup` with its definition in a few lines, on random sequences. Each
//! sequence is a row of its own, with few distinct tokens, so that patterns recur.
//!
//! `SPEC_SEQUENCES` is the number of sequences; without it, 100,000, or 2,000 on a software
//! renderer.

use spec::ops::PromptLookup;
use spec::ops::prompt_lookup::{Buffers, Occurrence};
use spec::{DType, Handle, Result};
use spec_conformance::Rng;

const ROWS: usize = 2000;
const MAX_LEN: usize = 48;

/// The expected drafts of a sequence.
fn by_definition(tokens: &[i32], p: &PromptLookup) -> Vec<i32> {
    // The longest pattern that occurred before, followed by at least one token.
    for n in (p.min_ngram..=p.max_ngram.min(tokens.len().saturating_sub(1))).rev() {
        let pattern = &tokens[tokens.len() - n..];
        let mut places = (0..tokens.len() - n).filter(|&at| &tokens[at..at + n] == pattern);
        let found = match p.occurrence {
            Occurrence::First => places.next(),
            _ => places.next_back(),
        };
        if let Some(at) = found {
            return tokens[at + n..].iter().take(p.max_draft).copied().collect();
        }
    }
    Vec::new()
}

fn check(handle: &Handle, sequences: usize) -> Result<()> {
    let mut rng = Rng::new(11, "prompt_lookup");
    let mut found = 0;
    for call in 0..sequences.div_ceil(ROWS) {
        let min_ngram = 1 + rng.below(3);
        let params = PromptLookup::new()
            .min_ngram(min_ngram)
            .max_ngram(min_ngram + rng.below(4))
            .max_draft(1 + rng.below(6))
            .occurrence(if call % 2 == 0 { Occurrence::First } else { Occurrence::Last });
        let kinds = 1 + rng.below(6);
        let tokens: Vec<i32> = (0..ROWS * MAX_LEN).map(|_| rng.below(kinds) as i32).collect();
        let lengths: Vec<i32> = (0..ROWS).map(|_| rng.below(MAX_LEN + 1) as i32).collect();
        let operator = handle.create(&params, &params.tensors(DType::I32, ROWS, MAX_LEN))?;
        let mut workspace = operator.workspace(handle)?;
        let mut drafts = handle.allocate::<i32>(ROWS * params.max_draft)?;
        let mut counts = handle.allocate::<i32>(ROWS)?;
        let tokens_there = handle.upload(&tokens)?;
        let lengths_there = handle.upload(&lengths)?;
        let buffers = Buffers::new(&tokens_there, &lengths_there, &mut drafts, &mut counts);
        operator.call(&mut workspace, buffers)?;
        let (drafts, counts) = (drafts.to_vec()?, counts.to_vec()?);
        for row in 0..ROWS {
            let sequence = &tokens[row * MAX_LEN..][..lengths[row] as usize];
            let expected = by_definition(sequence, &params);
            let got = &drafts[row * params.max_draft..][..counts[row] as usize];
            assert_eq!(got, expected, "{params:?} of {sequence:?} on {}", handle.device());
            found += usize::from(!expected.is_empty());
        }
    }
    println!("{}: {sequences} sequences, {found} with drafts", handle.device());
    assert!(found * 2 > sequences, "most sequences should have drafts: {found}");
    Ok(())
}

#[test]
fn drafts_are_what_the_definition_says() -> Result<()> {
    let asked = std::env::var("SPEC_SEQUENCES").ok().map(|n| n.parse().expect("a number"));
    for handle in crate::common::handles() {
        check(&handle, asked.unwrap_or(if handle.info().software { 2_000 } else { 100_000 }))?;
    }
    Ok(())
}
