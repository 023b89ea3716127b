//! `rejection_sample`: one request after the other, one token after the other.

use spec_core::ops::rejection_sample::{
    Acceptance, Buffers, MIN_RESIDUAL, Plan, Recovery, RejectionSample,
};
use spec_core::options::unknown;
use spec_core::philox::{Draw, Purpose};
use spec_core::{Result, exact, flags, race};

use super::largest;
use crate::host::{floats, ints, put_tokens, raise, slice, slice_mut, truths};

/// Walks every request.
pub(crate) fn run(plan: &Plan, buffers: Buffers<'_>) -> Result<()> {
    let target = floats(buffers.target_probs, &plan.target)?;
    let draft = match (buffers.draft_probs, &plan.draft) {
        (Some(view), Some(matrix)) => Some(floats(view, matrix)?),
        _ => None,
    };
    let (ids, bonus) = (ints(buffers.draft_token_ids)?, ints(buffers.bonus_token_ids)?);
    let mut offsets = ints(buffers.cu_num_draft)?.into_owned();
    if !plan.has_leading_zero() {
        offsets.insert(0, 0);
    }
    let verified = rejection_sample(&Verification {
        params: &plan.params,
        vocab: plan.vocab(),
        target: &target,
        draft: draft.as_deref(),
        ids: &ids,
        bonus: &bonus,
        offsets: &offsets,
        uniform: buffers.uniform_samples.map(slice::<f32>).transpose()?,
        seeds: buffers.seeds.map_or(Ok(&[][..]), slice::<u64>)?,
        positions: &buffers.positions.map_or(Ok(Default::default()), ints)?,
        greedy: &buffers.greedy.map_or(Ok(vec![false; plan.batch]), truths)?,
    });
    put_tokens(buffers.output_token_ids, &plan.output, &verified.output)?;
    slice_mut(buffers.num_accepted)?.copy_from_slice(&verified.emitted);
    slice_mut(buffers.accepted_counts)?.copy_from_slice(&verified.accepted);
    slice_mut(buffers.recovered_counts)?.copy_from_slice(&verified.recovered);
    slice_mut(buffers.bonus_counts)?.copy_from_slice(&verified.bonus);
    raise(buffers.flags, verified.flags)
}

/// The inputs of `rejection_sample`, packed.
struct Verification<'a> {
    /// The parameters.
    params: &'a RejectionSample,
    /// The size of the vocabulary.
    vocab: usize,
    /// Target probabilities `[tokens, vocab]`.
    target: &'a [f32],
    /// Draft probabilities `[tokens, vocab]`, where given.
    draft: Option<&'a [f32]>,
    /// Draft tokens `[tokens]`.
    ids: &'a [i64],
    /// Bonus tokens `[batch]`.
    bonus: &'a [i64],
    /// Where each request's tokens start `[batch + 1]`.
    offsets: &'a [i64],
    /// Random numbers for acceptance `[tokens]`; absent: drawn from seeds and positions.
    uniform: Option<&'a [f32]>,
    /// The seed of each request `[batch]`; empty where no random number is drawn.
    seeds: &'a [u64],
    /// The position of each request's first draft `[batch]`; empty as `seeds`.
    positions: &'a [i64],
    /// Whether each request follows the target's argmax `[batch]`.
    greedy: &'a [bool],
}

/// The outputs of `rejection_sample`.
#[derive(Debug, Default, PartialEq)]
struct Verified {
    /// Emitted tokens `[batch, max_spec_len + 1]`, then -1.
    output: Vec<i64>,
    /// The number of emitted tokens.
    emitted: Vec<i32>,
    /// The number of accepted draft tokens.
    accepted: Vec<i32>,
    /// 1 where a recovered token was emitted, else 0.
    recovered: Vec<i32>,
    /// 1 where the bonus token was emitted, else 0.
    bonus: Vec<i32>,
    /// The flags that were raised.
    flags: u32,
}

/// Verifies the drafts of every request.
fn rejection_sample(v: &Verification<'_>) -> Verified {
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

/// The emitted tokens of one request, and whether the last of them is a recovered token.
fn verify_request(v: &Verification<'_>, request: usize, flags: &mut u32) -> (Vec<i64>, bool) {
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
    let greedy = v.params.acceptance == Acceptance::Greedy || v.greedy[request];
    for (draft, token) in (start..end).enumerate() {
        let token = token as usize;
        let (id, target) = (v.ids[token], &v.target[token * v.vocab..][..v.vocab]);
        let valid = (0..v.vocab as i64).contains(&id);
        if !valid {
            *flags |= flags::OUT_OF_RANGE;
        }
        if greedy {
            let argmax = argmax_finite(target, flags);
            if id != argmax as i64 {
                row.push(argmax as i64);
                return (row, true);
            }
        } else if !valid || !accepts(v, request, draft, token, flags) {
            row.push(recover(v, request, draft, token, flags) as i64);
            return (row, true);
        }
        row.push(id);
    }
    let bonus = v.bonus[request];
    if (0..v.vocab as i64).contains(&bonus) {
        row.push(bonus);
    } else {
        *flags |= flags::OUT_OF_RANGE;
        row.push(0);
    }
    (row, false)
}

/// The random numbers for a request's draft.
fn draw(v: &Verification<'_>, request: usize, draft: usize, purpose: Purpose) -> Draw {
    Draw::at(v.seeds[request], v.positions[request].wrapping_add(draft as i64), purpose)
}

fn accepts(
    v: &Verification<'_>,
    request: usize,
    draft: usize,
    token: usize,
    flags: &mut u32,
) -> bool {
    let at = token * v.vocab + v.ids[token] as usize;
    let target = v.target[at];
    let drafted = v.draft.map_or(1.0, |d| d[at]);
    let u = match v.uniform {
        Some(uniform) => uniform[token],
        None => draw(v, request, draft, Purpose::Accept).uniform(),
    };
    if !target.is_finite() || !drafted.is_finite() || !u.is_finite() {
        *flags |= flags::NON_FINITE;
        return false;
    }
    let floor = drafted.max(1e-10);
    target >= floor || u * floor < target
}

fn recover(
    v: &Verification<'_>,
    request: usize,
    draft: usize,
    token: usize,
    flags: &mut u32,
) -> usize {
    let target = &v.target[token * v.vocab..][..v.vocab];
    let drafted = v.draft.map(|rows| &rows[token * v.vocab..][..v.vocab]);
    let mut has_non_finite = false;
    let mut residual = |i: usize| {
        let r = match drafted {
            Some(drafted) => target[i] - drafted[i],
            None if i as i64 == v.ids[token] => 0.0,
            None => target[i],
        };
        has_non_finite |= !r.is_finite();
        if r.is_finite() && r > 0.0 { r } else { 0.0 }
    };
    let found = match v.params.recovery {
        Recovery::Argmax => {
            let (mut best, mut largest_residual) = (None, 0.0);
            for i in 0..v.vocab {
                let r = residual(i);
                if r > largest_residual {
                    (best, largest_residual) = (Some(i), r);
                }
            }
            best
        }
        Recovery::Sample => {
            let noise = draw(v, request, draft, Purpose::Recover);
            let all = (0..v.vocab).filter_map(|i| {
                let r = residual(i);
                let time = || race::noise(noise, i as u32) * exact::sampling::inverse(r);
                (r >= MIN_RESIDUAL).then(|| race::finish(time(), i as u32))
            });
            all.min().map(|first| first as u32 as usize)
        }
        other => unknown(other),
    };
    if has_non_finite {
        *flags |= flags::NON_FINITE;
    }
    found.unwrap_or_else(|| argmax_finite(target, flags))
}

/// The index of the largest finite value, the lowest index among equals; 0 if no value is finite.
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
