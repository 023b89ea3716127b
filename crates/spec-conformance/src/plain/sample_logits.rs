//! `sample_logits`: one row after the other, by sorting it.

use std::borrow::Cow;

use spec_core::exact::{self, sampling};
use spec_core::ops::sample_logits::{Buffers, PLACE_CERTAIN, PLACE_FORCED, PLACE_NOTHING, Plan};
use spec_core::philox::{Draw, Purpose};
use spec_core::{DType, Matrix, Result, View, flags, race};

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
        (Some(view), Some(matrix)) => Some((packed(slice::<i32>(view)?, matrix), matrix.cols)),
        _ => None,
    };
    let maxima = buffers.maxima.map(slice::<f32>).transpose()?;
    let forced = buffers.forced.map(slice::<i32>).transpose()?;
    let ids = match (buffers.token_ids, &plan.token_ids) {
        (Some(view), Some(matrix)) => {
            // Rows with a stride of 0 are one row.
            let shared = matrix.row_stride == 0 && matrix.rows > 1;
            let stored = Matrix { rows: if shared { 1 } else { matrix.rows }, ..*matrix };
            Some((ids_of(view, &stored)?, if shared { 0 } else { vocab }))
        }
        _ => None,
    };
    let mut row_flags = Vec::new();
    let mut sampled = Vec::new();
    let mut columns = Vec::new();
    for row in 0..rows {
        let own_ids = ids.as_ref().map(|(ids, stride)| &ids[row * stride..][..vocab]);
        let (stands_for, bad) = tokens_of(own_ids, plan.params.first_token, vocab);
        let request = requests.as_ref().map_or(row as i64, |of| of[row]);
        if request == -1 {
            sampled.push(Sampled::of_padding(vocab));
            row_flags.push(0);
            columns.push(Columns { logits: vec![f32::NEG_INFINITY; vocab], tokens: stands_for });
            continue;
        }
        let mut met = if bad { flags::OUT_OF_RANGE } else { 0 };
        let request = usize::try_from(request).ok().filter(|&r| r < plan.requests);
        let options = request.map(|r| Options {
            temperature: temperature[r],
            seed: seeds[r],
            top_k: top_k.map_or(0, |top_k| top_k[r]),
            top_p: top_p.map_or(1.0, |top_p| top_p[r]),
            min_p: min_p.map_or(0.0, |min_p| min_p[r]),
            min_p_first: plan.params.min_p_first,
        });
        let allowed = |token: u32| match &mask {
            Some((words, stride)) => {
                let word = words[row * stride..][..*stride].get(token as usize / 32);
                word.is_some_and(|word| word >> (token % 32) & 1 == 1)
            }
            None => true,
        };
        let allowed: Vec<bool> =
            stands_for.iter().map(|token| token.is_some_and(allowed)).collect();
        let logits = logits[row * vocab..][..vocab].to_vec();
        let own = Columns { logits, tokens: stands_for };
        let maximum = maxima.map(|maxima| maxima[row]);
        let mut its =
            sample(&own, &allowed, maximum, options, positions[row], plan.draws(), &mut met);
        if let Some(forced) = forced.map(|forced| forced[row]).filter(|&forced| forced != -1) {
            let column =
                own.tokens.iter().position(|token| token.map(i64::from) == Some(forced.into()));
            its.forced = column.map(|column| vec![column]);
            if forced < -1 || (column.is_none() && maxima.is_none()) {
                met |= flags::OUT_OF_RANGE;
            }
        }
        sampled.push(its);
        row_flags.push(if plan.largest { 0 } else { met });
        columns.push(own);
    }
    write(plan, buffers, &sampled, &columns, &row_flags)
}

/// Ids as packed i64.
fn ids_of<'a>(view: View<'a>, matrix: &Matrix) -> Result<Cow<'a, [i64]>> {
    crate::host::tokens(view, matrix)
}

/// The token that each column stands for, and whether an id is neither a token nor -1.
fn tokens_of(ids: Option<&[i64]>, first: i32, vocab: usize) -> (Vec<Option<u32>>, bool) {
    let Some(ids) = ids else {
        return ((0..vocab as u32).map(|column| Some(first as u32 + column)).collect(), false);
    };
    let token = |&id: &i64| u32::try_from(id).ok().filter(|&token| token < 1 << 24);
    let bad = ids.iter().any(|id| *id != -1 && token(id).is_none());
    (ids.iter().map(token).collect(), bad)
}

/// Writes all outputs.
fn write(
    plan: &Plan,
    buffers: Buffers<'_>,
    sampled: &[Sampled],
    columns: &[Columns],
    row_flags: &[u32],
) -> Result<()> {
    if let (Some(view), Some(matrix)) = (buffers.probs, &plan.probs) {
        let probs: Vec<f32> = sampled.iter().flat_map(|s| s.probs.iter().copied()).collect();
        unpack(slice_mut(view)?, matrix, &probs);
    }
    // One value for each of the `draws` tokens of a row: `of` for a token that the row has,
    // `lacking` for a -1.
    let of_tokens = |of: &dyn Fn(usize, usize) -> f32, lacking: f32| -> Vec<f32> {
        let rows = sampled.iter().enumerate();
        rows.flat_map(|(row, sampled)| {
            let there = sampled.chosen().iter().map(move |&column| of(row, column));
            there.chain(std::iter::repeat(lacking)).take(plan.draws())
        })
        .collect()
    };
    if let (Some(view), Some(matrix)) = (buffers.logprobs, &plan.logprobs) {
        let of = |row: usize, column: usize| columns[row].logprob(column);
        unpack(slice_mut(view)?, matrix, &of_tokens(&of, f32::NEG_INFINITY));
    }
    if let (Some(view), Some(matrix)) = (buffers.processed_logprobs, &plan.processed_logprobs) {
        let of = |row: usize, column: usize| sampled[row].logprob(column);
        unpack(slice_mut(view)?, matrix, &of_tokens(&of, f32::NEG_INFINITY));
    }
    if let (Some(view), Some(matrix)) = (buffers.ranks, &plan.ranks) {
        // An f32 holds every rank exactly, since a vocabulary is below 2^24.
        let of = |row: usize, column: usize| columns[row].rank(column) as f32;
        let ranks: Vec<i64> = of_tokens(&of, 0.0).into_iter().map(|rank| rank as i64).collect();
        put_tokens(view, matrix, &ranks)?;
    }
    // A list of columns in each row, as tokens, then -1.
    let listed = |lists: &[Vec<usize>], count: usize| -> Vec<i64> {
        let rows = lists.iter().zip(columns);
        rows.flat_map(|(list, columns)| {
            let there = list.iter().map(|&column| i64::from(columns.token(column)));
            there.chain(std::iter::repeat(-1)).take(count)
        })
        .collect()
    };
    let top_of = |(sampled, columns): (&Sampled, &Columns)| match sampled.tokens.is_empty() {
        true => Vec::new(),
        false => columns.likeliest(plan.top()),
    };
    let top: Vec<Vec<usize>> = sampled.iter().zip(columns).map(top_of).collect();
    if let (Some(view), Some(matrix)) = (buffers.top_tokens, &plan.top_tokens) {
        put_tokens(view, matrix, &listed(&top, plan.top()))?;
    }
    if let (Some(view), Some(matrix)) = (buffers.top_logprobs, &plan.top_logprobs) {
        let logprobs = top.iter().zip(columns).flat_map(|(top, columns)| {
            let there = top.iter().map(move |&column| columns.logprob(column));
            there.chain(std::iter::repeat(f32::NEG_INFINITY)).take(plan.top())
        });
        unpack(slice_mut(view)?, matrix, &logprobs.collect::<Vec<_>>());
    }
    let tokens: Vec<Vec<usize>> = sampled.iter().map(|sampled| sampled.chosen().to_vec()).collect();
    put_tokens(buffers.tokens, &plan.tokens, &listed(&tokens, plan.draws()))?;
    if let Some(view) = buffers.winners {
        let winners =
            tokens.iter().zip(sampled).zip(columns).map(|((tokens, sampled), columns)| {
                let token = tokens.first().map_or(u32::MAX, |&column| columns.token(column));
                let place = if sampled.forced.is_some() { PLACE_FORCED } else { sampled.place };
                u64::from(place) << 32 | u64::from(token)
            });
        match view.dtype() {
            DType::U64 => {
                slice_mut::<u64>(view)?.iter_mut().zip(winners).for_each(|(to, w)| *to = w);
            }
            _ => {
                let signed = winners.map(u64::cast_signed);
                slice_mut::<i64>(view)?.iter_mut().zip(signed).for_each(|(to, w)| *to = w);
            }
        }
    }
    if let (Some(view), Some(matrix)) = (buffers.kept_tokens, &plan.kept_tokens) {
        let kept: Vec<Vec<usize>> = sampled.iter().map(|s| s.first_kept(matrix.cols)).collect();
        put_tokens(view, matrix, &listed(&kept, matrix.cols))?;
    }
    if let Some(view) = buffers.kept_counts {
        let counts = sampled.iter().map(|sampled| sampled.kept.len() as i32);
        slice_mut::<i32>(view)?.iter_mut().zip(counts).for_each(|(to, count)| *to = count);
    }
    if let Some(view) = buffers.largest {
        let largest = sampled.iter().map(|sampled| sampled.largest);
        slice_mut::<f32>(view)?.iter_mut().zip(largest).for_each(|(to, x)| *to = x);
    }
    if let Some(view) = buffers.row_flags {
        slice_mut::<u32>(view)?.copy_from_slice(row_flags);
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

/// A row of logits as given, and the token that each column stands for.
struct Columns {
    logits: Vec<f32>,
    tokens: Vec<Option<u32>>,
}

impl Columns {
    /// The token of a column that was chosen; 0 if a row without tokens chose a column that stands
    /// for none.
    fn token(&self, column: usize) -> u32 {
        self.tokens[column].unwrap_or(0)
    }

    /// The columns that stand for tokens.
    fn present(&self) -> impl Iterator<Item = usize> {
        (0..self.logits.len()).filter(|&column| self.tokens[column].is_some())
    }

    /// The first `count` columns in the order of their logits, the lower column first among equals.
    fn likeliest(&self, count: usize) -> Vec<usize> {
        let mut columns: Vec<usize> = self.present().collect();
        // The sort is stable, so the lower column stays first among equals.
        columns.sort_by_key(|&column| std::cmp::Reverse(exact::sort_key(self.logits[column])));
        columns.truncate(count);
        columns
    }

    /// How many logits are at least as large as that of a column.
    fn rank(&self, column: usize) -> usize {
        if self.tokens[column].is_none() {
            return 0;
        }
        let own = exact::sort_key(self.logits[column]);
        self.present().filter(|&other| exact::sort_key(self.logits[other]) >= own).count()
    }

    /// The natural logarithm of the softmax of the logits as given, computed in f64.
    fn logprob(&self, column: usize) -> f32 {
        let x = |column: usize| f64::from(number(self.logits[column]));
        let m = self.present().map(x).fold(f64::NEG_INFINITY, f64::max);
        if self.tokens[column].is_none() || x(column) == f64::NEG_INFINITY {
            return f32::NEG_INFINITY;
        }
        // At the largest logit this is 0, also if that logit is infinite.
        let below = |column: usize| if x(column) == m { 0.0 } else { x(column) - m };
        let sum: f64 = self.present().map(|column| below(column).exp()).sum();
        (below(column) - sum.ln()) as f32
    }
}

struct Sampled {
    /// The columns, in the order in which they finish; none for a row that is padding.
    tokens: Vec<usize>,
    /// The column of the token that is taken instead.
    forced: Option<Vec<usize>>,
    /// The distribution that the tokens were drawn from.
    probs: Vec<f32>,
    /// The natural logarithm of each column's share of that distribution; `None` where no token was
    /// drawn.
    shares: Option<Vec<f64>>,
    /// The columns that race, in the order of their logits.
    kept: Vec<usize>,
    /// The row's place among the ranks.
    place: u32,
    /// The largest logit that is allowed.
    largest: f32,
}

impl Sampled {
    /// Tokens that were not drawn: the first has probability 1.
    fn certain(tokens: Vec<usize>, place: u32, vocab: usize, largest: f32) -> Self {
        let mut probs = vec![0.0; vocab];
        probs[tokens[0]] = 1.0;
        let kept = vec![tokens[0]];
        Sampled { tokens, forced: None, probs, shares: None, kept, place, largest }
    }

    fn of_padding(vocab: usize) -> Self {
        Sampled::nothing(vocab, f32::NEG_INFINITY)
    }

    /// A row that has no token to offer.
    fn nothing(vocab: usize, largest: f32) -> Self {
        Sampled {
            tokens: Vec::new(),
            forced: None,
            probs: vec![0.0; vocab],
            shares: None,
            kept: Vec::new(),
            place: PLACE_NOTHING,
            largest,
        }
    }

    /// The columns of the row's tokens.
    fn chosen(&self) -> &[usize] {
        self.forced.as_ref().unwrap_or(&self.tokens)
    }

    fn logprob(&self, column: usize) -> f32 {
        match &self.shares {
            Some(shares) => shares[column] as f32,
            None if self.tokens.first() == Some(&column) => 0.0,
            None => f32::NEG_INFINITY,
        }
    }

    /// The first `count` columns that race, in the order of columns.
    fn first_kept(&self, count: usize) -> Vec<usize> {
        let mut first: Vec<usize> = self.kept.iter().copied().take(count).collect();
        first.sort_unstable();
        first
    }
}

/// The logit, or negative infinity for NaN.
fn number(logit: f32) -> f32 {
    if logit.is_nan() { f32::NEG_INFINITY } else { logit }
}

fn sample(
    columns: &Columns,
    allowed: &[bool],
    maximum: Option<f32>,
    options: Option<Options>,
    position: i64,
    draws: usize,
    met: &mut u32,
) -> Sampled {
    let vocab = columns.logits.len();
    let logits = &columns.logits;
    if columns.present().any(|column| logits[column].is_nan() || logits[column] == f32::INFINITY) {
        *met |= flags::NON_FINITE;
    }
    let x: Vec<f32> = (0..vocab)
        .map(|column| if allowed[column] { number(logits[column]) } else { f32::NEG_INFINITY })
        .collect();
    let largest = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let m = match maximum {
        Some(maximum) if maximum >= largest => maximum,
        Some(_) => {
            *met |= flags::BAD_LENGTHS;
            largest
        }
        None => largest,
    };
    if m == f32::NEG_INFINITY {
        *met |= flags::NON_FINITE;
        let lowest = allowed.iter().position(|&allowed| allowed);
        let place = if lowest.is_some() { PLACE_CERTAIN } else { PLACE_NOTHING };
        return Sampled::certain(vec![lowest.unwrap_or(0)], place, vocab, largest);
    }
    let options = options.filter(|options| options.temperature >= 0.0);
    if options.is_none() {
        *met |= flags::BAD_LENGTHS;
    }
    let Some(options) = options.filter(|options| options.temperature > 0.0) else {
        let mut order: Vec<usize> = (0..vocab).collect();
        order.sort_by_key(|&column| std::cmp::Reverse(exact::sort_key(x[column])));
        order.retain(|&column| x[column] > f32::NEG_INFINITY);
        order.truncate(draws.max(1));
        return match order.first() {
            Some(&first) if x[first] == m => Sampled::certain(order, PLACE_CERTAIN, vocab, largest),
            _ => Sampled::nothing(vocab, largest),
        };
    };

    let inverse = sampling::inverse(options.temperature);
    let w: Vec<f32> = x.iter().map(|&x| sampling::weight(x, m, inverse)).collect();
    let q: Vec<u64> = w.iter().map(|&w| exact::fixed_probability(w)).collect();
    if options.min_p.is_nan() || options.top_p.is_nan() {
        *met |= flags::BAD_LENGTHS;
    }
    let kept = kept(&options, &x, &q);

    let draw = Draw::at(options.seed, position, Purpose::Sample);
    let time = |column: usize| {
        let noise = race::noise(draw, columns.token(column));
        noise * sampling::slowness(x[column], m, inverse)
    };
    let mut tokens = kept.clone();
    // The sort is stable, and columns are in order before it.
    tokens.sort_unstable();
    tokens.sort_by_cached_key(|&column| race::finish(time(column), columns.token(column)));
    let place = tokens.first().map_or(PLACE_NOTHING, |&first| time(first).to_bits());
    tokens.truncate(draws);
    let total = kept.iter().map(|&column| q[column]).sum();
    let factor = sampling::factor(total);
    let mut probs = vec![0.0; vocab];
    let mut shares = vec![f64::NEG_INFINITY; vocab];
    for &column in &kept {
        probs[column] = exact::softmax::score(w[column], factor);
        shares[column] = f64::from(w[column]).ln() - (total as f64 / (1u64 << 40) as f64).ln();
    }
    Sampled { tokens, forced: None, probs, shares: Some(shares), kept, place, largest }
}

/// The columns that race, in the order of their logits.
fn kept(options: &Options, x: &[f32], q: &[u64]) -> Vec<usize> {
    let mut kept: Vec<usize> = (0..x.len()).collect();
    // The sort is stable, so the lower index stays first among equals.
    kept.sort_by_key(|&v| std::cmp::Reverse(exact::sort_key(x[v])));
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
    kept
}
