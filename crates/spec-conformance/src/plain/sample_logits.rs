//! `sample_logits`: one row after the other, by sorting it.

use spec_core::exact::{self, sampling};
use spec_core::ops::sample_logits::{Buffers, Plan};
use spec_core::philox::{Draw, Purpose};
use spec_core::{Matrix, Result, flags};

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
    let mut met = 0;
    let mut sampled = Vec::new();
    for row in 0..rows {
        let request = requests.as_ref().map_or(row as i64, |of| of[row]);
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
        sampled.push(sample(logits, allowed, options, positions[row], &mut met));
    }
    let tokens: Vec<i64> = sampled.iter().map(|sampled| sampled.token as i64).collect();
    let one_row = Matrix { dtype: plan.tokens.dtype, rows: 1, cols: rows, row_stride: 0 };
    put_tokens(buffers.tokens, &one_row, &tokens)?;
    if let (Some(view), Some(matrix)) = (buffers.probs, &plan.probs) {
        let probs: Vec<f32> = sampled.iter().flat_map(|s| s.probs.iter().copied()).collect();
        unpack(slice_mut(view)?, matrix, &probs);
    }
    if let Some(view) = buffers.logprobs {
        let logprobs = slice_mut::<f32>(view)?;
        for (row, Sampled { token, .. }) in sampled.iter().enumerate() {
            logprobs[row] = logprob(&logits[row * vocab..][..vocab], *token);
        }
    }
    raise(buffers.flags, met)
}

/// What a request asks for.
struct Options {
    temperature: f32,
    seed: u64,
    top_k: i32,
    top_p: f32,
    min_p: f32,
    min_p_first: bool,
}

struct Sampled {
    token: usize,
    probs: Vec<f32>,
}

impl Sampled {
    /// A token that was not drawn.
    fn certain(token: usize, vocab: usize) -> Self {
        let mut probs = vec![0.0; vocab];
        probs[token] = 1.0;
        Sampled { token, probs }
    }
}

/// NaN counts as negative infinity.
fn number(logit: f32) -> f32 {
    if logit.is_nan() { f32::NEG_INFINITY } else { logit }
}

fn sample(
    logits: &[f32],
    allowed: impl Fn(usize) -> bool,
    options: Option<Options>,
    position: i64,
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
        return Sampled::certain((0..vocab).find(|&v| allowed(v)).unwrap_or(0), vocab);
    }
    let options = options.filter(|options| options.temperature >= 0.0);
    if options.is_none() {
        *met |= flags::BAD_LENGTHS;
    }
    let Some(options) = options.filter(|options| options.temperature > 0.0) else {
        return Sampled::certain((0..vocab).find(|&v| x[v] == m).unwrap_or(0), vocab);
    };

    let inverse = sampling::inverse(options.temperature);
    let w: Vec<f32> = x.iter().map(|&x| sampling::weight(x, m, inverse)).collect();
    let q: Vec<u64> = w.iter().map(|&w| exact::fixed_probability(w)).collect();
    let mut kept: Vec<usize> = (0..vocab).collect();
    // Stable: the lower index stays first among equals.
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
    kept.retain(|&v| q[v] >= floor);
    kept.sort_unstable();

    let total = kept.iter().map(|&v| q[v]).sum();
    let random = Draw::at(options.seed, position, Purpose::Sample).bits();
    let threshold = exact::sample_threshold(random, total);
    let mut sum = 0;
    let drawn = kept.iter().copied().find(|&v| {
        sum += q[v];
        sum > threshold
    });
    let factor = sampling::factor(total);
    let mut probs = vec![0.0; vocab];
    for &v in kept.iter().filter(|&&v| q[v] > 0) {
        probs[v] = exact::softmax::score(w[v], factor);
    }
    Sampled { token: drawn.expect("the largest logit is kept"), probs }
}

/// ln softmax of the logits as given, in f64.
fn logprob(logits: &[f32], token: usize) -> f32 {
    let x = |v: usize| f64::from(number(logits[v]));
    let m = (0..logits.len()).map(x).fold(f64::NEG_INFINITY, f64::max);
    // 0 at the largest, infinite or not.
    let below = |v: usize| if x(v) == m { 0.0 } else { x(v) - m };
    if x(token) == f64::NEG_INFINITY {
        return f32::NEG_INFINITY;
    }
    let sum: f64 = (0..logits.len()).map(|v| below(v).exp()).sum();
    (below(token) - sum.ln()) as f32
}
