//! `sample_logits`: one row after the other, by sorting it.

use spec_core::exact::{self, sampling};
use spec_core::ops::sample_logits::{Buffers, Plan};
use spec_core::philox::{Draw, Purpose};
use spec_core::{Result, flags, race};

use crate::host::{floats, ints, packed, put_tokens, raise, slice, slice_mut, unpack};

/// Samples every row.
pub(crate) fn run(plan: &Plan, buffers: Buffers<'_>) -> Result<()> {
    let (rows, vocab) = (plan.rows(), plan.vocab());
    let logits = floats(buffers.logits, &plan.logits)?;
    let positions = ints(buffers.positions)?;
    let temperature = slice::<f32>(buffers.temperature)?;
    let seeds = slice::<u64>(buffers.seeds)?;
    let top_k = buffers.top_k.map(slice::<i32>).transpose()?;
    let top_p = buffers.top_p.map(slice::<f32>).transpose()?;
    let min_p = buffers.min_p.map(slice::<f32>).transpose()?;
    let requests = buffers.requests.map(ints).transpose()?;
    let mask = match (buffers.mask, &plan.mask) {
        (Some(view), Some(matrix)) => Some(packed(slice::<i32>(view)?, matrix)),
        _ => None,
    };
    let mut row_flags = Vec::new();
    let mut sampled = Vec::new();
    for row in 0..rows {
        let request = requests.as_ref().map_or(row as i64, |of| of[row]);
        if request == -1 {
            sampled.push(Sampled::of_padding(vocab));
            row_flags.push(0);
            continue;
        }
        let request = usize::try_from(request).ok().filter(|&r| r < plan.requests);
        let words = mask.as_ref().map(|mask| &mask[row * vocab.div_ceil(32)..]);
        let options = request.map(|r| Options {
            temperature: temperature[r],
            seed: seeds[r],
            top_k: top_k.map_or(0, |top_k| top_k[r]),
            top_p: top_p.map_or(1.0, |top_p| top_p[r]),
            min_p: min_p.map_or(0.0, |min_p| min_p[r]),
            min_p_first: plan.params.min_p_first,
        });
        let allowed = |v: usize| words.is_none_or(|words| words[v / 32] >> (v % 32) & 1 == 1);
        let logits = &logits[row * vocab..][..vocab];
        let mut met = 0;
        sampled.push(sample(logits, allowed, options, positions[row], plan.draws(), &mut met));
        row_flags.push(met);
    }
    if let (Some(view), Some(matrix)) = (buffers.probs, &plan.probs) {
        let probs: Vec<f32> = sampled.iter().flat_map(|s| s.probs.iter().copied()).collect();
        unpack(slice_mut(view)?, matrix, &probs);
    }
    let row_of = |row: usize| &logits[row * vocab..][..vocab];
    // One value for each of the `draws` tokens of a row: `of` for a token that the row has,
    // `lacking` for a -1.
    let of_tokens = |of: &dyn Fn(usize, usize) -> f32, lacking: f32| -> Vec<f32> {
        let rows = sampled.iter().enumerate();
        rows.flat_map(|(row, sampled)| {
            let there = sampled.tokens.iter().map(move |&token| of(row, token));
            there.chain(std::iter::repeat(lacking)).take(plan.draws())
        })
        .collect()
    };
    if let (Some(view), Some(matrix)) = (buffers.logprobs, &plan.logprobs) {
        let of = |row: usize, token: usize| logprob(row_of(row), token);
        unpack(slice_mut(view)?, matrix, &of_tokens(&of, f32::NEG_INFINITY));
    }
    if let (Some(view), Some(matrix)) = (buffers.processed_logprobs, &plan.processed_logprobs) {
        let of = |row: usize, token: usize| sampled[row].logprob(token);
        unpack(slice_mut(view)?, matrix, &of_tokens(&of, f32::NEG_INFINITY));
    }
    if let (Some(view), Some(matrix)) = (buffers.ranks, &plan.ranks) {
        // An f32 holds every rank exactly, since a vocabulary is below 2^24.
        let of = |row: usize, token: usize| rank(row_of(row), token) as f32;
        let ranks: Vec<i64> = of_tokens(&of, 0.0).into_iter().map(|rank| rank as i64).collect();
        put_tokens(view, matrix, &ranks)?;
    }
    let top_of = |row: usize| match sampled[row].tokens.is_empty() {
        true => Vec::new(),
        false => likeliest(row_of(row), plan.top()),
    };
    let top: Vec<Vec<usize>> = (0..rows).map(top_of).collect();
    if let (Some(view), Some(matrix)) = (buffers.top_tokens, &plan.top_tokens) {
        let tokens = top.iter().flat_map(|top| {
            let there = top.iter().map(|&token| token as i64);
            there.chain(std::iter::repeat(-1)).take(plan.top())
        });
        put_tokens(view, matrix, &tokens.collect::<Vec<_>>())?;
    }
    if let (Some(view), Some(matrix)) = (buffers.top_logprobs, &plan.top_logprobs) {
        let logprobs = top.iter().enumerate().flat_map(|(row, top)| {
            let there = top.iter().map(move |&token| logprob(row_of(row), token));
            there.chain(std::iter::repeat(f32::NEG_INFINITY)).take(plan.top())
        });
        unpack(slice_mut(view)?, matrix, &logprobs.collect::<Vec<_>>());
    }
    let tokens = sampled.iter().flat_map(|sampled| {
        let there = sampled.tokens.iter().map(|&token| token as i64);
        there.chain(std::iter::repeat(-1)).take(plan.draws())
    });
    put_tokens(buffers.tokens, &plan.tokens, &tokens.collect::<Vec<_>>())?;
    if let Some(view) = buffers.row_flags {
        slice_mut::<u32>(view)?.copy_from_slice(&row_flags);
    }
    raise(buffers.flags, row_flags.iter().fold(0, |all, met| all | met))
}

/// The sampling parameters of a request.
struct Options {
    temperature: f32,
    seed: u64,
    top_k: i32,
    top_p: f32,
    min_p: f32,
    min_p_first: bool,
}

struct Sampled {
    /// The tokens, in the order in which they finish; none for a row that is padding.
    tokens: Vec<usize>,
    /// The distribution that the tokens were drawn from.
    probs: Vec<f32>,
    /// The natural logarithm of each vocabulary entry's share of that distribution; `None` where
    /// no token was drawn.
    shares: Option<Vec<f64>>,
}

impl Sampled {
    /// Tokens that were not drawn: the first has probability 1.
    fn certain(tokens: Vec<usize>, vocab: usize) -> Self {
        let mut probs = vec![0.0; vocab];
        probs[tokens[0]] = 1.0;
        Sampled { tokens, probs, shares: None }
    }

    fn of_padding(vocab: usize) -> Self {
        Sampled { tokens: Vec::new(), probs: vec![0.0; vocab], shares: None }
    }

    fn logprob(&self, token: usize) -> f32 {
        match &self.shares {
            Some(shares) => shares[token] as f32,
            None if token == self.tokens[0] => 0.0,
            None => f32::NEG_INFINITY,
        }
    }
}

/// The logit, or negative infinity for NaN.
fn number(logit: f32) -> f32 {
    if logit.is_nan() { f32::NEG_INFINITY } else { logit }
}

fn sample(
    logits: &[f32],
    allowed: impl Fn(usize) -> bool,
    options: Option<Options>,
    position: i64,
    draws: usize,
    met: &mut u32,
) -> Sampled {
    let vocab = logits.len();
    if logits.iter().any(|x| x.is_nan() || *x == f32::INFINITY) {
        *met |= flags::NON_FINITE;
    }
    let x: Vec<f32> = (0..vocab)
        .map(|v| if allowed(v) { number(logits[v]) } else { f32::NEG_INFINITY })
        .collect();
    let m = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if m == f32::NEG_INFINITY {
        *met |= flags::NON_FINITE;
        let token = (0..vocab).find(|&v| allowed(v)).unwrap_or(0);
        return Sampled::certain(vec![token], vocab);
    }
    let options = options.filter(|options| options.temperature >= 0.0);
    if options.is_none() {
        *met |= flags::BAD_LENGTHS;
    }
    let Some(options) = options.filter(|options| options.temperature > 0.0) else {
        let mut tokens = likeliest(&x, draws);
        tokens.retain(|&v| x[v] > f32::NEG_INFINITY);
        return Sampled::certain(tokens, vocab);
    };

    let inverse = sampling::inverse(options.temperature);
    let w: Vec<f32> = x.iter().map(|&x| sampling::weight(x, m, inverse)).collect();
    let q: Vec<u64> = w.iter().map(|&w| exact::fixed_probability(w)).collect();
    let mut kept: Vec<usize> = (0..vocab).collect();
    // The sort is stable, so the lower index stays first among equals.
    kept.sort_by_key(|&v| std::cmp::Reverse(exact::sort_key(x[v])));
    if options.min_p.is_nan() || options.top_p.is_nan() {
        *met |= flags::BAD_LENGTHS;
    }
    let floor = match options.min_p {
        p if p.is_nan() => 1 << 40,
        p => exact::fixed_probability(p),
    };
    if options.min_p_first {
        kept.retain(|&v| q[v] >= floor);
    }
    if let Ok(k @ 1..) = usize::try_from(options.top_k) {
        kept.truncate(k);
    }
    if options.top_p.is_nan() || options.top_p < 1.0 {
        let all: u64 = kept.iter().map(|&v| q[v]).sum();
        let share = (f64::from(options.top_p.max(0.0)) * 4_294_967_296.0) as u128;
        let limit = ((share * u128::from(all)) >> 32) as u64;
        let mut before = 0;
        let end = kept.iter().position(|&v| {
            let beyond = before >= limit;
            before += q[v];
            beyond
        });
        kept.truncate(end.map_or(kept.len(), |end| end.max(1)));
    }
    kept.retain(|&v| q[v] >= floor && q[v] > 0);

    let draw = Draw::at(options.seed, position, Purpose::Sample);
    let finish = |v: usize| {
        let time = race::noise(draw, v as u32) * sampling::slowness(x[v], m, inverse);
        race::finish(time, v as u32)
    };
    let mut tokens = kept.clone();
    tokens.sort_by_cached_key(|&v| finish(v));
    tokens.truncate(draws);
    let total = kept.iter().map(|&v| q[v]).sum();
    let factor = sampling::factor(total);
    let mut probs = vec![0.0; vocab];
    let mut shares = vec![f64::NEG_INFINITY; vocab];
    for &v in &kept {
        probs[v] = exact::softmax::score(w[v], factor);
        shares[v] = f64::from(w[v]).ln() - (total as f64 / (1u64 << 40) as f64).ln();
    }
    Sampled { tokens, probs, shares: Some(shares) }
}

/// The first `count` tokens in the order of their logits, the lower index first among equals.
fn likeliest(logits: &[f32], count: usize) -> Vec<usize> {
    let mut tokens: Vec<usize> = (0..logits.len()).collect();
    // The sort is stable, so the lower index stays first among equals.
    tokens.sort_by_key(|&v| std::cmp::Reverse(exact::sort_key(logits[v])));
    tokens.truncate(count);
    tokens
}

/// How many logits are at least as large as a token's.
fn rank(logits: &[f32], token: usize) -> usize {
    let own = exact::sort_key(logits[token]);
    logits.iter().filter(|&&x| exact::sort_key(x) >= own).count()
}

/// The natural logarithm of the softmax of the logits as given, computed in f64.
fn logprob(logits: &[f32], token: usize) -> f32 {
    let x = |v: usize| f64::from(number(logits[v]));
    let m = (0..logits.len()).map(x).fold(f64::NEG_INFINITY, f64::max);
    // At the largest logit this is 0, also if that logit is infinite.
    let below = |v: usize| if x(v) == m { 0.0 } else { x(v) - m };
    if x(token) == f64::NEG_INFINITY {
        return f32::NEG_INFINITY;
    }
    let sum: f64 = (0..logits.len()).map(|v| below(v).exp()).sum();
    (below(token) - sum.ln()) as f32
}
