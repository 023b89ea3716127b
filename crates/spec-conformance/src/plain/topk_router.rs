//! `topk_router`: computes scores, then takes the largest choice `topk` times.

use spec_core::ops::topk_router::{
    Buffers, GroupScore, Masked, Plan, REPLICA_HASH, Scoring, Select, TopkRouter,
};
use spec_core::options::unknown;
use spec_core::{Matrix, Result, View, exact, flags};

use super::largest;
use crate::host::{floats, put_floats, put_tokens, raise, slice, slice_mut, tokens};

/// Routes every token.
pub(crate) fn run(plan: &Plan, buffers: Buffers<'_>) -> Result<()> {
    let (params, rows) = (&plan.params, plan.tokens());
    let x = floats(buffers.x, &plan.x)?;
    let bias = bias(buffers.bias, plan.experts())?;
    let wanted = buffers.num_tokens.map(slice::<i32>).transpose()?.map(|word| word[0]);
    let live = wanted.map_or(rows, |wanted| usize::try_from(wanted).unwrap_or(0).min(rows));
    let cut = wanted.is_some_and(|wanted| usize::try_from(wanted) != Ok(live));
    let mut raised = if cut { flags::BAD_LENGTHS } else { 0 };
    let counts = buffers.replica_counts.map(slice::<i32>).transpose()?;
    let places = match (buffers.replicas, counts, plan.replicas) {
        (Some(places), Some(counts), Some(matrix)) => {
            let physical = plan.physical_experts();
            Some(Places { places: slice(places)?, matrix, counts, physical })
        }
        _ => None,
    };

    let given = match (buffers.chosen, &plan.chosen) {
        (Some(view), Some(matrix)) => Some(tokens(view, matrix)?),
        _ => None,
    };

    let columns = params.columns();
    let (mut weights, mut indices) = (vec![0.0; rows * columns], vec![-1_i64; rows * columns]);
    let mut logical = indices.clone();
    let mut load = vec![0_i32; plan.physical_experts()];
    for token in 0..live {
        let row = &x[token * plan.experts()..][..plan.experts()];
        let scores = scores(params.scoring, row);
        let picks = match &given {
            Some(given) => take(&given[token * params.topk..][..params.topk], row, &mut raised),
            None => choose(params, row, &scores, bias.as_deref(), &mut raised),
        };
        let sum: f32 = picks.iter().flatten().map(|&e| scores[e]).sum();
        for (i, expert) in picks.into_iter().enumerate() {
            let Some(expert) = expert else { continue };
            let share = scores[expert] / if params.renormalize { sum + 1e-20 } else { 1.0 };
            weights[token * columns + i] = params.scale * share;
            logical[token * columns + i] = expert as i64;
            let place = match &places {
                Some(places) => places.of(token, expert, &mut raised),
                None => Some(expert),
            };
            if let Some(place) = place {
                indices[token * columns + i] = place as i64;
                load[place] += 1;
            }
        }
        for i in 0..params.shared_experts {
            weights[token * columns + params.topk + i] = params.shared_weight;
            indices[token * columns + params.topk + i] = (plan.physical_experts() + i) as i64;
            logical[token * columns + params.topk + i] = (plan.experts() + i) as i64;
        }
    }

    put_floats(buffers.weights, &plan.weights, &weights)?;
    put_tokens(buffers.indices, &plan.indices, &indices)?;
    if let (Some(view), Some(matrix)) = (buffers.logical, &plan.logical) {
        put_tokens(view, matrix, &logical)?;
    }
    if let Some(total) = buffers.load {
        for (total, picks) in slice_mut::<i32>(total)?.iter_mut().zip(load) {
            *total = total.wrapping_add(picks);
        }
    }
    raise(buffers.flags, raised)
}

fn bias(view: Option<View<'_>>, experts: usize) -> Result<Option<Vec<f32>>> {
    let Some(view) = view else { return Ok(None) };
    let matrix = Matrix { dtype: view.dtype(), rows: 1, cols: experts, row_stride: 0 };
    Ok(Some(floats(view, &matrix)?.into_owned()))
}

/// The places of experts on devices.
struct Places<'a> {
    places: &'a [i32],
    matrix: Matrix,
    counts: &'a [i32],
    physical: usize,
}

impl Places<'_> {
    fn of(&self, token: usize, expert: usize, raised: &mut u32) -> Option<usize> {
        let max = self.matrix.cols as i32;
        let count = self.counts[expert].clamp(1, max);
        if count != self.counts[expert] {
            *raised |= flags::BAD_LENGTHS;
        }
        let turn = (token as u32).wrapping_mul(REPLICA_HASH) % count.cast_unsigned();
        let place = self.places[expert * self.matrix.row_stride + turn as usize];
        let place = usize::try_from(place).ok().filter(|&place| place < self.physical);
        if place.is_none() {
            *raised |= flags::OUT_OF_RANGE;
        }
        place
    }
}

/// The experts that `chosen` gives to a token; `None` for no pick.
fn take(given: &[i64], row: &[f32], raised: &mut u32) -> Vec<Option<usize>> {
    if row.iter().any(|x| !x.is_finite()) {
        *raised |= flags::NON_FINITE;
    }
    let mut expert = |given: i64| {
        let expert = usize::try_from(given).ok().filter(|&expert| expert < row.len());
        if expert.is_none() && given != -1 {
            *raised |= flags::OUT_OF_RANGE;
        }
        expert
    };
    given.iter().map(|&given| expert(given)).collect()
}

/// The experts that a token's logits pick.
fn choose(
    params: &TopkRouter,
    row: &[f32],
    scores: &[f32],
    bias: Option<&[f32]>,
    raised: &mut u32,
) -> Vec<Option<usize>> {
    if row.iter().chain(bias.into_iter().flatten()).any(|v| !v.is_finite()) {
        *raised |= flags::NON_FINITE;
    }
    let mut choices: Vec<f32> = (0..row.len())
        .map(|e| {
            let by = match params.select {
                Select::Score => scores[e],
                Select::Logit => row[e],
                other => unknown(other),
            };
            match bias {
                _ if row[e].is_nan() => f32::NEG_INFINITY,
                Some(bias) => number(by + bias[e]),
                None => by,
            }
        })
        .collect();
    let mut allowed = vec![true; row.len()];
    if params.groups > 1 {
        let size = row.len() / params.groups;
        let group_scores: Vec<f32> =
            choices.chunks(size).map(|group| group_score(params.group_score, group)).collect();
        let mut kept = vec![false; params.groups];
        for _ in 0..params.topk_groups {
            let best = largest(&group_scores, |g| !kept[g]);
            kept[best] = true;
        }
        for e in (0..row.len()).filter(|e| !kept[e / size]) {
            match params.masked {
                Masked::Zero => choices[e] = 0.0,
                Masked::Excluded => allowed[e] = false,
                other => unknown(other),
            }
        }
    }
    let mut chosen = Vec::new();
    for _ in 0..params.topk {
        let best = largest(&choices, |e| allowed[e]);
        allowed[best] = false;
        chosen.push(Some(best));
    }
    chosen
}

fn scores(scoring: Scoring, row: &[f32]) -> Vec<f32> {
    match scoring {
        Scoring::Sigmoid => row.iter().map(|&x| exact::sigmoid(x)).collect(),
        Scoring::SqrtSoftplus => row.iter().map(|&x| exact::sqrt_softplus(x)).collect(),
        Scoring::Softmax => {
            let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let weights: Vec<f32> = row.iter().map(|&x| exact::softmax::weight(x, max)).collect();
            let sum = weights.iter().map(|&w| u64::from(exact::softmax::fixed(w))).sum();
            let factor = exact::softmax::factor(sum);
            weights.iter().map(|&w| exact::softmax::score(w, factor)).collect()
        }
        other => unknown(other),
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
