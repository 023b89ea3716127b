//! Measurements: the cost of an additional row, and the time of whole answers with drafts and
//! without drafts in alternation.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::ensure;
use spec::Handle;

use crate::Result;
use crate::drafting::Drafter;
use crate::engine::{Decoded, Request, decode};
use crate::llama::{Llama, Weights};
use crate::sampling::Sampling;
use crate::text::Text;

/// Tokens in the cache before rows are timed.
const CONTEXT: usize = 256;

/// The prompts that are timed: a name, whether the answer copies from the prompt, and the user's
/// message.
pub const PROMPTS: [(&str, bool, &str); 6] = [
    ("rename", true, include_str!("../prompts/rename.txt")),
    ("spelling", true, include_str!("../prompts/spelling.txt")),
    ("quote", true, include_str!("../prompts/quote.txt")),
    ("story", false, include_str!("../prompts/story.txt")),
    ("advice", false, include_str!("../prompts/advice.txt")),
    ("letter", false, include_str!("../prompts/letter.txt")),
];

/// The median of the samples.
///
/// # Panics
/// If there are no samples.
pub fn median<T: Copy + PartialOrd>(samples: &[T]) -> T {
    let mut sorted = samples.to_vec();
    sorted.sort_by(|a, b| a.partial_cmp(b).expect("samples are numbers"));
    sorted[sorted.len() / 2]
}

/// Times runs with each number of rows in `counts`, in alternation. Returns the median for each
/// number.
///
/// # Errors
/// If the model has no room for the rows.
pub fn time_rows(model: &mut Llama, counts: &[usize], turns: usize) -> Result<Vec<Duration>> {
    let context = CONTEXT.min(model.capacity() / 2);
    model.truncate(0);
    model.read_prompt(&vec![0; context])?;
    let mut times = vec![Vec::with_capacity(turns); counts.len()];
    for _ in 0..turns {
        for (&count, times) in counts.iter().zip(&mut times) {
            let started = Instant::now();
            model.run(&vec![0; count])?;
            times.push(started.elapsed());
            model.truncate(context);
        }
    }
    Ok(times.iter().map(|times| median(times)).collect())
}

/// The cost of an additional row if there are up to `max` of them, as a share of the time of a
/// run with one row.
///
/// # Errors
/// As [`time_rows`].
pub fn cost_of_a_row(model: &mut Llama, max: usize) -> Result<f64> {
    if max == 0 {
        return Ok(0.0);
    }
    let times = time_rows(model, &[1, 1 + max], 7)?;
    let (one, all) = (times[0].as_secs_f64(), times[1].as_secs_f64());
    Ok(((all / one - 1.0) / max as f64).max(0.0))
}

/// The results of one prompt: decoding without drafts and decoding with drafts.
pub struct Pair {
    /// The name of the prompt.
    pub name: &'static str,
    /// Whether the answer copies from the prompt.
    pub copies: bool,
    /// Tokens per second without drafts, the median.
    pub plain: f64,
    /// Tokens per second with drafts, the median.
    pub drafted: f64,
    /// The median over all pairs of runs: how many times as fast the run with drafts was.
    pub faster: f64,
    /// The same ratio by CPU time, which does not depend on other work of the machine.
    pub cheaper: f64,
    /// The last run with drafts.
    pub last: Decoded,
}

/// Answers each prompt `turns` times without drafts and `turns` times with drafts of
/// `prompt_lookup`, in alternation.
///
/// # Errors
/// If two answers to one prompt differ in a token, which must not happen.
pub fn pairs(
    handle: &Handle,
    path: &Path,
    weights: Weights,
    request: &Request,
    turns: usize,
    mut done: impl FnMut(&Pair),
) -> Result<Vec<Pair>> {
    let longest = PROMPTS.iter().map(|prompt| prompt.2.len()).max().unwrap_or(0);
    // A token has at least one byte; the chat template adds a few dozen tokens.
    let (mut model, content) = Llama::open(path, weights, longest + 256 + request.tokens)?;
    let text = Text::new(&content)?;
    let request =
        Request { row: cost_of_a_row(&mut model, request.max_draft)?, stop: text.end, ..*request };
    let mut pairs = Vec::new();
    for (name, copies, said) in PROMPTS {
        let prompt = text.tokens(&text.chat(said)?)?;
        let (mut plain, mut drafted, mut last) = (Vec::new(), Vec::new(), None);
        let mut cheaper = Vec::new();
        for _ in 0..turns {
            let none = &mut Drafter::None;
            let without = decode(handle, &mut model, none, &prompt, &request, |_| Ok(()))?;
            let mut lookup = Drafter::lookup(handle, model.capacity(), request.max_draft)?;
            let with = decode(handle, &mut model, &mut lookup, &prompt, &request, |_| Ok(()))?;
            ensure!(with.tokens == without.tokens, "{name}: drafts changed the text");
            plain.push(without.speed());
            drafted.push(with.speed());
            cheaper.push(without.processors.as_secs_f64() / with.processors.as_secs_f64());
            last = Some(with);
        }
        let ratios: Vec<f64> = drafted.iter().zip(&plain).map(|(d, p)| d / p).collect();
        let (plain, drafted, faster) = (median(&plain), median(&drafted), median(&ratios));
        let last = last.ok_or_else(|| anyhow::anyhow!("no turns"))?;
        let pair = Pair { name, copies, plain, drafted, faster, cheaper: median(&cheaper), last };
        done(&pair);
        pairs.push(pair);
    }
    Ok(pairs)
}

/// The request that is timed, with a temperature of 0.
pub fn request(tokens: usize, max_draft: usize) -> Request {
    Request { tokens, stop: None, max_draft, sampling: Sampling::GREEDY, row: 0.0 }
}
