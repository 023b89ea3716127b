//! Every operator as a plain sequential loop, written from the contract for
//! reading, not for speed: what the tests compare with, and what the benches
//! call the plain loop.
//!
//! Matrices are packed and already f32 or i64. Only the arithmetic that the
//! contract fixes bit by bit ([`spec_core::exact`], [`spec_core::philox`]) is
//! shared with the backends.

pub mod ngram;

use spec_core::ops::rejection_sample::{Acceptance, Recovery, RejectionSample};
use spec_core::ops::topk_router::{GroupScore, Masked, Scoring, TopkRouter};
use spec_core::{exact, flags, philox};

/// Weights, indices and flags of `x.len() / experts` tokens.
///
/// # Panics
/// If the parameters are none that a descriptor would take.
pub fn topk_router(
    params: &TopkRouter,
    x: &[f32],
    experts: usize,
    bias: Option<&[f32]>,
) -> (Vec<f32>, Vec<i32>, u32) {
    let (mut weights, mut indices, mut flags) = (Vec::new(), Vec::new(), 0);
    for row in x.chunks(experts) {
        let odd = row.iter().chain(bias.into_iter().flatten()).any(|v| !v.is_finite());
        flags |= if odd { flags::NON_FINITE } else { 0 };
        let scores = scores(params.scoring, row);
        let mut choices: Vec<f32> = (0..experts)
            .map(|e| match bias {
                _ if row[e].is_nan() => f32::NEG_INFINITY,
                Some(bias) => number(scores[e] + bias[e]),
                None => scores[e],
            })
            .collect();
        let mut allowed = vec![true; experts];
        if params.groups > 1 {
            let size = experts / params.groups;
            let group_scores: Vec<f32> =
                choices.chunks(size).map(|group| group_score(params.group_score, group)).collect();
            let mut kept = vec![false; params.groups];
            for _ in 0..params.topk_groups {
                let best = largest(&group_scores, |g| !kept[g]);
                kept[best] = true;
            }
            for e in (0..experts).filter(|e| !kept[e / size]) {
                match params.masked {
                    Masked::Zero => choices[e] = 0.0,
                    Masked::Excluded => allowed[e] = false,
                }
            }
        }
        let mut chosen = Vec::new();
        for _ in 0..params.topk {
            let best = largest(&choices, |e| allowed[e]);
            allowed[best] = false;
            chosen.push(best);
        }
        let sum: f32 = chosen.iter().map(|&e| scores[e]).sum();
        for e in chosen {
            let share = if params.renormalize { scores[e] / (sum + 1e-20) } else { scores[e] };
            weights.push(params.scale * share);
            indices.push(e as i32);
        }
    }
    (weights, indices, flags)
}

fn scores(scoring: Scoring, row: &[f32]) -> Vec<f32> {
    match scoring {
        Scoring::Sigmoid => row.iter().map(|&x| exact::sigmoid(x)).collect(),
        Scoring::Softmax => {
            let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let weights: Vec<f32> = row.iter().map(|&x| exact::softmax::weight(x, max)).collect();
            let sum = weights.iter().map(|&w| u64::from(exact::softmax::fixed(w))).sum();
            let factor = exact::softmax::factor(sum);
            weights.iter().map(|&w| exact::softmax::score(w, factor)).collect()
        }
    }
}

fn number(value: f32) -> f32 {
    if value.is_nan() { f32::NEG_INFINITY } else { value }
}

fn group_score(kind: GroupScore, group: &[f32]) -> f32 {
    let first = largest(group, |_| true);
    match kind {
        GroupScore::Top2Sum if group.len() > 1 => {
            number(group[first] + group[largest(group, |e| e != first)])
        }
        _ => group[first],
    }
}

/// The first of the largest values among those allowed.
fn largest(values: &[f32], allowed: impl Fn(usize) -> bool) -> usize {
    let mut best = None;
    for i in (0..values.len()).filter(|&i| allowed(i)) {
        if best.is_none_or(|b: usize| values[i] > values[b]) {
            best = Some(i);
        }
    }
    best.expect("something is allowed")
}

/// Distinct values ascending, then -1, and how many, for one request.
pub fn deduplicate_topk(values: &[i32]) -> (Vec<i32>, i32) {
    let mut distinct: Vec<i32> = values.iter().copied().filter(|&v| v >= 0).collect();
    distinct.sort_unstable();
    distinct.dedup();
    let count = distinct.len() as i32;
    distinct.resize(values.len(), -1);
    (distinct, count)
}

/// What `rejection_sample` reads, packed.
pub struct Verification<'a> {
    /// The parameters.
    pub params: &'a RejectionSample,
    /// Tokens of the vocabulary.
    pub vocab: usize,
    /// Target probabilities `[tokens, vocab]`.
    pub target: &'a [f32],
    /// Draft probabilities, as `target`.
    pub draft: Option<&'a [f32]>,
    /// Draft tokens `[tokens]`.
    pub ids: &'a [i64],
    /// Bonus tokens `[batch]`.
    pub bonus: &'a [i64],
    /// Where each request's tokens start `[batch + 1]`.
    pub offsets: &'a [i64],
    /// Acceptance draws `[tokens]`; absent: drawn from `seed` and `offset`.
    pub uniform: Option<&'a [f32]>,
    /// Of the random numbers.
    pub seed: u64,
    /// Of the random numbers.
    pub offset: u64,
}

/// What `rejection_sample` writes.
#[derive(Debug, Default, PartialEq)]
pub struct Verified {
    /// Emitted tokens `[batch, max_spec_len + 1]`, then -1.
    pub output: Vec<i32>,
    /// How many.
    pub emitted: Vec<i32>,
    /// Draft tokens accepted.
    pub accepted: Vec<i32>,
    /// 1 where a recovered token was emitted.
    pub recovered: Vec<i32>,
    /// 1 where the bonus token was emitted.
    pub bonus: Vec<i32>,
    /// What was met.
    pub flags: u32,
}

/// Verifies the drafts of every request.
pub fn rejection_sample(v: &Verification<'_>) -> Verified {
    let mut out = Verified::default();
    for request in 0..v.bonus.len() {
        let (mut row, recovered) = verify_request(v, request, &mut out.flags);
        out.emitted.push(row.len() as i32);
        out.accepted.push(row.len() as i32 - 1);
        out.recovered.push(i32::from(recovered));
        out.bonus.push(i32::from(!recovered));
        row.resize(v.params.max_spec_len + 1, -1);
        out.output.extend(row);
    }
    out
}

/// The tokens of one request, and whether the last is a recovered one.
fn verify_request(v: &Verification<'_>, request: usize, flags: &mut u32) -> (Vec<i32>, bool) {
    let (start, mut end) = (v.offsets[request], v.offsets[request + 1]);
    let mut row = Vec::new();
    if start < 0 || end < start || end > v.ids.len() as i64 {
        *flags |= flags::BAD_LENGTHS;
        end = start;
    }
    if end - start > v.params.max_spec_len as i64 {
        *flags |= flags::BAD_LENGTHS;
        end = start + v.params.max_spec_len as i64;
    }
    for (position, token) in (start..end).enumerate() {
        let token = token as usize;
        let (id, target) = (v.ids[token], &v.target[token * v.vocab..][..v.vocab]);
        let valid = (0..v.vocab as i64).contains(&id);
        if !valid {
            *flags |= flags::OUT_OF_RANGE;
        }
        if v.params.acceptance == Acceptance::Greedy {
            let argmax = argmax_finite(target, flags);
            if id != argmax as i64 {
                row.push(argmax as i32);
                return (row, true);
            }
        } else if !valid || !accepts(v, request, position, token, flags) {
            row.push(recover(v, request, token, flags) as i32);
            return (row, true);
        }
        row.push(id as i32);
    }
    let bonus = v.bonus[request];
    if (0..v.vocab as i64).contains(&bonus) {
        row.push(bonus as i32);
    } else {
        *flags |= flags::OUT_OF_RANGE;
        row.push(0);
    }
    (row, false)
}

fn accepts(
    v: &Verification<'_>,
    request: usize,
    position: usize,
    token: usize,
    flags: &mut u32,
) -> bool {
    let at = token * v.vocab + v.ids[token] as usize;
    let target = v.target[at];
    let draft = v.draft.map_or(1.0, |d| d[at]);
    let u = match v.uniform {
        Some(uniform) => uniform[token],
        None => philox::uniform(v.seed, v.offset, request as u32, position as u32),
    };
    if !target.is_finite() || !draft.is_finite() || !u.is_finite() {
        *flags |= flags::NON_FINITE;
        return false;
    }
    let floor = draft.max(1e-10);
    target >= floor || u * floor < target
}

fn recover(v: &Verification<'_>, request: usize, token: usize, flags: &mut u32) -> usize {
    let target = &v.target[token * v.vocab..][..v.vocab];
    let draft = v.draft.map(|draft| &draft[token * v.vocab..][..v.vocab]);
    let mut odd = false;
    let mut residual = |i: usize| {
        let r = match draft {
            Some(draft) => target[i] - draft[i],
            None if i as i64 == v.ids[token] => 0.0,
            None => target[i],
        };
        odd |= !r.is_finite();
        if r.is_finite() && r > 0.0 { r } else { 0.0 }
    };
    let found = match v.params.recovery {
        Recovery::Argmax => {
            let (mut best, mut most) = (None, 0.0);
            for i in 0..v.vocab {
                let r = residual(i);
                if r > most {
                    (best, most) = (Some(i), r);
                }
            }
            best
        }
        Recovery::Sample => {
            let mut fixed =
                |i: usize| (f64::from(residual(i).min(1.0)) * (1u64 << 40) as f64) as u64;
            let total: u64 = (0..v.vocab).map(&mut fixed).sum();
            let random = philox::recovery_bits(v.seed, v.offset, request as u32);
            let threshold = ((u128::from(random) * u128::from(total)) >> 64) as u64;
            let mut sum = 0;
            (0..v.vocab).find(|&i| {
                sum += fixed(i);
                sum > threshold
            })
        }
    };
    if odd {
        *flags |= flags::NON_FINITE;
    }
    found.unwrap_or_else(|| argmax_finite(target, flags))
}

/// The first of the largest finite values; 0 if there is none.
fn argmax_finite(values: &[f32], flags: &mut u32) -> usize {
    if values.iter().any(|v| !v.is_finite()) {
        *flags |= flags::NON_FINITE;
    }
    if values.iter().all(|v| !v.is_finite()) {
        0
    } else {
        largest(values, |i| values[i].is_finite())
    }
}

/// Distinct keys ascending and how often each occurs.
pub fn unique<K: Copy + Ord>(keys: &[K]) -> (Vec<K>, Vec<u64>) {
    let mut sorted = keys.to_vec();
    sorted.sort_unstable();
    let runs = sorted.chunk_by(|a, b| a == b);
    runs.map(|run| (run[0], run.len() as u64)).unzip()
}
