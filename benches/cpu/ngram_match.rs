//! Patterns of up to 3 tokens of 8 bytes; the match lies at position 10 ("low"),
//! 30 before the end ("high"), or nowhere.

use spec::Stream;
use spec::ops::NgramMatch;
use spec::ops::ngram_match::Buffers;

use crate::{Bench, Random};
use spec_baselines::plain::ngram::{Requests, Sizes, draft};

/// Where the pattern occurs.
#[derive(Clone, Copy, PartialEq)]
enum Hit {
    Low,
    HighPrompt,
    HighGenerated,
    None,
}

pub fn run(bench: &Bench) -> spec::Result<()> {
    use Hit::{HighGenerated, HighPrompt, Low};
    let k = 1024;
    let mut cases = vec![(32, 512, Low)];
    cases.extend([1, 4, 16, 64, 128].map(|prompt| (16, prompt * k, Low)));
    cases.extend([1, 8, 32, 128, 512].map(|batch| (batch, 16 * k, Low)));
    cases.extend([HighPrompt, HighGenerated, Hit::None].map(|hit| (16, 32 * k, hit)));
    cases.extend([Low, HighPrompt, Hit::None].map(|hit| (256, 128 * k, hit)));
    cases.extend([128, 512, 1024].map(|batch| (batch, 512, Low)));
    for (batch, prompt, hit) in cases {
        one(bench, batch, prompt, hit)?;
    }
    Ok(())
}

fn requests(batch: usize, prompt: usize, hit: Hit) -> Requests<'static> {
    let mut random = Random(batch as u64 * 31 + prompt as u64);
    let (steps, cols) = (512, 1024);
    let pattern = [200_001, 200_002, 200_003];
    let mut tokens =
        |n: usize| -> Vec<i64> { (0..n).map(|_| (random.next() % 100_000) as i64).collect() };
    let (mut input_ids, mut generated) = (tokens(batch * prompt), tokens(batch * cols));
    for b in 0..batch {
        let past = &mut generated[b * cols..];
        past[steps - 2..=steps].copy_from_slice(&pattern);
        match hit {
            Hit::Low => input_ids[b * prompt + 10..][..3].copy_from_slice(&pattern),
            Hit::HighPrompt => input_ids[(b + 1) * prompt - 30..][..3].copy_from_slice(&pattern),
            Hit::HighGenerated => past[steps - 30..][..3].copy_from_slice(&pattern),
            Hit::None => {}
        }
    }
    Requests {
        input_cols: prompt,
        input_ids: input_ids.into(),
        input_ids_len: vec![prompt as i64; batch],
        generated_cols: cols,
        generated: generated.into(),
        prompt_lens: vec![0; batch],
        step_idx: vec![steps as i64; batch],
        max_dec_len: vec![4096; batch],
        draft_cols: 16,
        draft_tokens: vec![-1; batch * 16],
        draft_token_num: vec![10; batch],
        this_time: vec![1; batch],
        encoder: vec![0; batch],
        decoder: vec![1; batch],
    }
}

fn one(bench: &Bench, batch: usize, prompt: usize, hit: Hit) -> spec::Result<()> {
    let name = match hit {
        Hit::Low => "low",
        Hit::HighPrompt => "high prompt",
        Hit::HighGenerated => "high generated",
        Hit::None => "none",
    };
    let shape = format!("{batch} x {prompt}, {name}");
    if !bench.wants("ngram_match", &shape) {
        return Ok(());
    }
    let mut plain = requests(batch, prompt, hit);
    let threshold = i64::from(i32::MAX);
    let sizes = Sizes { max_ngram: 3, min_ngram: 1, max_draft_tokens: None, threshold };
    let params = NgramMatch { max_ngram_size: 3, token_threshold: i32::MAX };
    let op = bench.handle.create(&params, &params.tensors(batch, prompt, 1024, 16))?;
    let mut workspace = bench.handle.workspace(op.workspace_size())?;
    let r = plain.clone();
    let (mut drafts, mut this_time) = (r.draft_tokens.clone(), r.this_time.clone());
    let mut call = || {
        let buffers = Buffers {
            input_ids: (&*r.input_ids).into(),
            input_ids_len: (&r.input_ids_len).into(),
            token_ids_all: (&*r.generated).into(),
            prompt_lens: (&r.prompt_lens).into(),
            step_idx: (&r.step_idx).into(),
            draft_token_num: (&r.draft_token_num).into(),
            draft_tokens: (&mut drafts).into(),
            seq_lens_this_time: (&mut this_time).into(),
            seq_lens_encoder: (&r.encoder).into(),
            seq_lens_decoder: (&r.decoder).into(),
            max_dec_len: (&r.max_dec_len).into(),
            flags: None,
        };
        op.calculate(&mut workspace, buffers, Stream::default())
    };
    call()?;
    let read = match hit {
        Hit::Low => 13,
        _ => prompt,
    };
    bench.row(
        "ngram_match",
        &shape,
        batch * read * 8,
        || {
            draft(&mut plain, sizes);
        },
        call,
    );
    assert_eq!(this_time, plain.this_time);
    assert_eq!(drafts, plain.draft_tokens);
    Ok(())
}
