//! `topk_router`: scores, then the largest choice again and again.

use spec_core::ops::topk_router::{
    Buffers, GroupScore, Masked, Plan, REPLICA_HASH, Scoring, Select, TopkRouter,
};
use spec_core::options::unknown;
use spec_core::{DType, Matrix, Result, View, exact, flags};

use super::largest;
use crate::host::{floats, raise, slice, slice_mut, unpack};

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

    let columns = params.columns();
    let (mut weights, mut indices) = (vec![0.0; rows * columns], vec![-1_i64; rows * columns]);
    let mut load = vec![0_i32; plan.physical_experts()];
    for token in 0..live {
        let row = &x[token * plan.experts()..][..plan.experts()];
        let (chosen, flags) = choose(params, row, bias.as_deref());
        raised |= flags;
        for (i, (expert, weight)) in chosen.into_iter().enumerate() {
            weights[token * columns + i] = weight;
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
        }
    }

    unpack(slice_mut(buffers.weights)?, &plan.weights, &weights);
    match plan.indices.dtype {
        DType::I64 => unpack(slice_mut(buffers.indices)?, &plan.indices, &indices),
        DType::U32 => {
            let narrow: Vec<u32> = indices.iter().map(|&index| index as u32).collect();
            unpack(slice_mut(buffers.indices)?, &plan.indices, &narrow);
        }
        _ => {
            let narrow: Vec<i32> = indices.iter().map(|&index| index as i32).collect();
            unpack(slice_mut(buffers.indices)?, &plan.indices, &narrow);
        }
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

/// Where experts are.
struct Places<'a> {
    places: &'a [i32],
    matrix: Matrix,
    counts: &'a [i32],
    physical: usize,
}

impl Places<'_> {
    fn of(&self, token: usize, expert: usize, raised: &mut u32) -> Option<usize> {
        let most = self.matrix.cols as i32;
        let count = self.counts[expert].clamp(1, most);
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

/// The experts of a token with their weights, and flags.
fn choose(params: &TopkRouter, row: &[f32], bias: Option<&[f32]>) -> (Vec<(usize, f32)>, u32) {
    let odd = row.iter().chain(bias.into_iter().flatten()).any(|v| !v.is_finite());
    let scores = scores(params.scoring, row);
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
        chosen.push(best);
    }
    let sum: f32 = chosen.iter().map(|&e| scores[e]).sum();
    let weigh = |e: usize| {
        let share = if params.renormalize { scores[e] / (sum + 1e-20) } else { scores[e] };
        (e, params.scale * share)
    };
    (chosen.into_iter().map(weigh).collect(), if odd { flags::NON_FINITE } else { 0 })
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
