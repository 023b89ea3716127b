//! Rows whose columns may stand for other tokens, may be a part of a row, may have a forced token,
//! or list the tokens that race.
//!
//! Such a row is first copied to scratch memory as f32, with negative infinity for the columns that
//! are not allowed. All passes over logits then work on the copy. Only the race differs: its noise
//! is that of the columns' tokens, whose groups of 64 need not be groups of columns.

use spec_core::exact;
use spec_core::ops::sample_logits::{PLACE_CERTAIN, PLACE_FORCED, PLACE_NOTHING};
use spec_core::philox::{Draw, Purpose};
use spec_core::{Matrix, flags, race};

use super::cut::{Kept, cut, total};
use super::outputs::{ColumnOutputs, OutputRow};
use super::report::{Reported, report};
use super::row::{ColumnScratch, Logits, Scratch};
use super::{Drawn, LOWEST, MAX_DRAWS, Sampler, Tokens, UNIT, lightest};
use crate::simd::{self, Float, GROUP};
use crate::slices::{Int, Ints, once};
use crate::weights::{self, Scale};

/// A column that stands for no token.
const NO_TOKEN: u32 = u32::MAX;
/// The number of tokens that ids may name.
const TOKENS: i64 = 1 << 24;

/// The arguments about columns.
pub(super) struct Columns<'a> {
    pub(super) ids: Option<(Ints<'a>, Matrix)>,
    pub(super) first: u32,
    pub(super) maxima: Option<&'a [f32]>,
    pub(super) forced: Option<&'a [i32]>,
}

impl ColumnOutputs<'_> {
    /// The outputs of a row that is padding.
    pub(super) fn pad(self) {
        if let Some([winner]) = self.winner {
            *winner = winner_of(PLACE_NOTHING, NO_TOKEN);
        }
        if let Some(kept) = self.kept_tokens {
            kept.fill(-1);
        }
        if let Some([count]) = self.kept_count {
            *count = 0;
        }
        if let Some([largest]) = self.largest {
            *largest = f32::NEG_INFINITY;
        }
    }
}

fn winner_of(place: u32, token: u32) -> u64 {
    u64::from(place) << 32 | u64::from(token)
}

/// The copy of a row.
struct Row<'a> {
    logits: Logits<'a, f32>,
    tokens: &'a [u32],
}

/// How a row's columns were chosen.
struct Chosen {
    columns: Tokens,
    place: u32,
    /// The columns that race; `None` if no token was drawn.
    racers: Option<Racing>,
}

impl Chosen {
    fn certain(columns: Tokens, place: u32) -> Self {
        Chosen { columns, place, racers: None }
    }
}

/// The columns of a row that race.
#[derive(Clone, Copy)]
struct Racing {
    scale: Scale,
    /// The entries that `top_k` and `top_p` keep, if they drop any.
    kept: Option<Kept>,
    /// Columns with smaller keys do not race.
    least: u32,
}

impl Racing {
    /// Calls `visit` with each column that races and its slowness, in the order of columns.
    fn each(&self, row: &Row<'_>, maxima: &[u32], mut visit: impl FnMut(usize, f32)) {
        let mut slowness = [f32::INFINITY; GROUP];
        for (group, &largest) in maxima.iter().enumerate() {
            if largest < self.least {
                continue;
            }
            let start = group * GROUP;
            let values = &row.logits.logits[start..row.logits.logits.len().min(start + GROUP)];
            weights::slowness(values, self.scale, &mut slowness);
            for (lane, (&x, &slowness)) in values.iter().zip(&slowness).enumerate() {
                let column = start + lane;
                let keeps = |kept: Kept| kept.keeps(exact::sort_key(x), column);
                if slowness < f32::INFINITY && self.kept.is_none_or(keeps) {
                    visit(column, slowness);
                }
            }
        }
    }

    /// The first `wanted` columns to finish, and the time of the first.
    fn first(&self, draw: Draw, row: &Row<'_>, maxima: &[u32], wanted: usize) -> Finishers {
        let mut finishers = Finishers::new(wanted);
        let (mut block, mut words) = (u32::MAX, [0; 4]);
        self.each(row, maxima, |column, slowness| {
            let token = row.tokens[column];
            if token / 256 != block {
                block = token / 256;
                words = draw.block(block);
            }
            // Rounding products is monotone, so no time is below this product.
            let bound = race::noise_bound(words[(token / 64 % 4) as usize]) * slowness;
            if race::finish(bound, 0) <= finishers.bar() {
                let time = race::noise(draw, token) * slowness;
                finishers.add((race::finish(time, token), column as u32));
            }
        });
        finishers
    }
}

/// The first columns to finish, ascending: the key of a token, then the column.
struct Finishers {
    wanted: usize,
    list: [(u64, u32); MAX_DRAWS],
    count: usize,
}

impl Finishers {
    fn new(wanted: usize) -> Self {
        Finishers { wanted, list: [(u64::MAX, u32::MAX); MAX_DRAWS], count: 0 }
    }

    /// No column is kept whose token's key is above this one.
    fn bar(&self) -> u64 {
        if self.count == self.wanted { self.list[self.count - 1].0 } else { u64::MAX }
    }

    fn add(&mut self, finish: (u64, u32)) {
        let kept = &self.list[..self.count];
        let place = kept.partition_point(|&other| other < finish);
        if place >= self.wanted {
            return;
        }
        self.count = self.wanted.min(self.count + 1);
        self.list.copy_within(place..self.count - 1, place + 1);
        self.list[place] = finish;
    }

    fn columns(&self) -> Tokens {
        self.list[..self.count].iter().map(|&(_, column)| column as usize).collect()
    }

    /// The place of the row among those of the ranks.
    fn place(&self) -> u32 {
        if self.count == 0 { PLACE_NOTHING } else { (self.list[0].0 >> 32) as u32 }
    }
}

impl<T: Float> Sampler<'_, T> {
    /// Writes the outputs of a row by columns. Returns the row's flags.
    pub(super) fn write_by_column<I: Int>(
        &self,
        row: usize,
        request: i64,
        of: &Columns<'_>,
        scratch: &mut Scratch<'_>,
        outputs: OutputRow<'_, I>,
    ) -> u32 {
        let mut copy = std::mem::take(&mut scratch.columns);
        let flags = self.write_copied(row, request, of, (&mut copy, scratch), outputs);
        scratch.columns = copy;
        flags
    }

    fn write_copied<I: Int>(
        &self,
        row: usize,
        request: i64,
        of: &Columns<'_>,
        (copy, scratch): (&mut ColumnScratch<'_>, &mut Scratch<'_>),
        outputs: OutputRow<'_, I>,
    ) -> u32 {
        let mut met = self.copy(row, of, copy);
        let logits = |logits| Logits { logits, mask: None, chunk: self.chunk };
        let own = Row { logits: logits(&*copy.values), tokens: copy.tokens };
        if let Some([largest]) = outputs.columns.largest {
            own.logits.survey(scratch.maxima);
            *largest = exact::from_sort_key(simd::max_key(scratch.maxima));
            return 0;
        }
        let forced = self.forced(row, of, &own, &mut met);
        let mut drawn = outputs.drawn;
        let processed = drawn.logprobs.take();
        let wants_total = drawn.probs.is_some() || processed.is_some();
        let chosen = self.choose(row, request, of, &own, scratch, drawn, wants_total, &mut met);
        let (chosen, total) = chosen;
        let columns = match forced {
            Some(column) => Tokens::from_iter([column]),
            None => Tokens::from_iter(chosen.columns.iter().copied()),
        };
        if let Some(logprobs) = processed {
            own.write_shares(&chosen, &columns, total, scratch.maxima, logprobs);
        }
        if let Some(tokens) = outputs.tokens {
            let there = columns.iter().map(|&column| own.token(column));
            let all = there.chain(std::iter::repeat(-1));
            tokens.iter_mut().zip(all).for_each(|(to, token)| *to = I::of(token));
        }
        if let Some([winner]) = outputs.columns.winner {
            let token = columns.first().map_or(-1, |&column| own.token(column));
            let place = if forced.is_some() { PLACE_FORCED } else { chosen.place };
            *winner = winner_of(place, token.cast_unsigned());
        }
        own.write_kept(&chosen, scratch, outputs.columns.kept_tokens, outputs.columns.kept_count);
        if self.plan.reports() {
            let raw = Row { logits: logits(&*copy.raw), tokens: copy.tokens };
            let (mut ranks, mut top_tokens) = (outputs.reported.ranks, outputs.reported.top_tokens);
            let reported = Reported {
                ranks: ranks.as_deref_mut(),
                top_tokens: top_tokens.as_deref_mut(),
                ..outputs.reported
            };
            report(&raw.logits, &columns, scratch, reported);
            raw.correct_ranks(&columns, ranks);
            raw.name_top(top_tokens);
        }
        met
    }

    /// Copies a row, each element of which is read once. Returns the row's flags so far.
    fn copy(&self, row: usize, of: &Columns<'_>, copy: &mut ColumnScratch<'_>) -> u32 {
        let logits = self.logits.row(row);
        let mask = self.mask.map(|mask| mask.row(row));
        let mut met = 0;
        for (column, logit) in logits.iter().enumerate() {
            let token = match &of.ids {
                None => of.first + column as u32,
                Some((ids, matrix)) => match ids.get(row * matrix.row_stride + column) {
                    id @ 0..TOKENS => id as u32,
                    -1 => NO_TOKEN,
                    _ => {
                        met |= flags::OUT_OF_RANGE;
                        NO_TOKEN
                    }
                },
            };
            let allowed = match mask {
                _ if token == NO_TOKEN => false,
                Some(words) => {
                    let word = words.get(token as usize / 32);
                    word.is_some_and(|word| word >> (token % 32) & 1 == 1)
                }
                None => true,
            };
            let x = if token == NO_TOKEN { f32::NEG_INFINITY } else { logit.get() };
            if x.is_nan() || x == f32::INFINITY {
                met |= flags::NON_FINITE;
            }
            copy.raw[column] = x;
            copy.values[column] = if allowed { x } else { f32::NEG_INFINITY };
            copy.tokens[column] = if allowed || token == NO_TOKEN { token } else { token | BARRED };
        }
        met
    }

    /// The column of the token that is taken instead of the drawn one.
    fn forced(&self, row: usize, of: &Columns<'_>, own: &Row<'_>, met: &mut u32) -> Option<usize> {
        let forced = of.forced.map(|forced| once(&forced[row]))?;
        if forced == -1 {
            return None;
        }
        let column = (0..own.tokens.len())
            .find(|&column| own.tokens[column] != NO_TOKEN && own.token(column) == forced);
        if forced < -1 || (column.is_none() && of.maxima.is_none()) {
            *met |= flags::OUT_OF_RANGE;
        }
        column
    }

    /// Chooses the columns of a row, and writes `probs`. Returns the sum of the weights of the
    /// columns that race too, if `wants_total`.
    #[expect(clippy::too_many_arguments, reason = "the inputs and outputs of a row")]
    fn choose(
        &self,
        row: usize,
        request: i64,
        of: &Columns<'_>,
        own: &Row<'_>,
        scratch: &mut Scratch<'_>,
        drawn: Drawn<'_>,
        wants_total: bool,
        met: &mut u32,
    ) -> (Chosen, u64) {
        let logits = &own.logits;
        logits.survey(scratch.maxima);
        let largest = simd::max_key(scratch.maxima);
        let mut max = exact::from_sort_key(largest);
        if let Some(maxima) = of.maxima {
            match once(&maxima[row]) {
                given if given >= max => max = given,
                _ => *met |= flags::BAD_LENGTHS,
            }
        }
        if max == f32::NEG_INFINITY {
            *met |= flags::NON_FINITE;
            let lowest = own.tokens.iter().position(|&token| token & BARRED == 0);
            drawn.certain(lowest.unwrap_or(0));
            let place = if lowest.is_some() { PLACE_CERTAIN } else { PLACE_NOTHING };
            return (Chosen::certain([lowest.unwrap_or(0)].into_iter().collect(), place), 0);
        }
        let Some(options) = self.options(request, met) else {
            // With `maxima`, another rank may have the largest logit.
            if exact::from_sort_key(largest) < max {
                return (Chosen::certain([].into_iter().collect(), PLACE_NOTHING), 0);
            }
            let columns: Tokens = if self.plan.draws() == 1 {
                [logits.first(largest, scratch.maxima)].into_iter().collect()
            } else {
                let first = logits.likeliest(self.plan.draws(), scratch);
                first.filter(|first| first.key() > LOWEST).map(|first| first.token()).collect()
            };
            drawn.certain(columns.first().copied().unwrap_or(0));
            return (Chosen::certain(columns, PLACE_CERTAIN), 0);
        };
        let scale = Scale::new(max, options.inverse);
        let light_first = self.plan.params.min_p_first && options.floor > 0;
        let kept = options
            .cuts(self.plan.vocab())
            .then(|| cut(logits, &options, light_first, scale, scratch));
        // A column whose weight is below one unit does not race.
        let scale = scale.at_least(options.floor.max(1));
        let sum = match kept {
            Some(kept) => kept.total,
            None if !wants_total => 0,
            None => total(logits.sums(scale, scratch).iter().copied()),
        };
        if let Some(probs) = drawn.probs {
            match kept {
                Some(kept) => kept.shares(scale, scratch, probs),
                None => logits.shares(scale, sum, probs),
            }
        }
        let least = lightest(scale, options.floor).max(kept.map_or(0, |kept| kept.key));
        let racers = Racing { scale, kept, least };
        let draw = Draw::at(options.seed, self.positions.get(row), Purpose::Sample);
        let finishers = racers.first(draw, own, scratch.maxima, self.plan.draws());
        let (columns, place) = (finishers.columns(), finishers.place());
        (Chosen { columns, place, racers: Some(racers) }, sum)
    }
}

/// The bit of a token that the mask does not allow. Tokens are below 2^24.
const BARRED: u32 = 1 << 31;

impl Row<'_> {
    /// The token of a column that was chosen; 0 if a row without tokens chose a column that stands
    /// for none.
    fn token(&self, column: usize) -> i32 {
        match self.tokens[column] {
            NO_TOKEN => 0,
            token => (token & !BARRED).cast_signed(),
        }
    }

    /// Writes the logarithm of each column's share of what was drawn from.
    fn write_shares(
        &self,
        chosen: &Chosen,
        columns: &[usize],
        total: u64,
        maxima: &[u32],
        logprobs: &mut [f32],
    ) {
        logprobs.fill(f32::NEG_INFINITY);
        let Some(racers) = chosen.racers else {
            let first = chosen.columns.first();
            if let (Some(logprob), Some(column)) = (logprobs.first_mut(), columns.first())
                && first == Some(column)
            {
                *logprob = 0.0;
            }
            return;
        };
        let whole = (total as f64 * UNIT).ln();
        for (logprob, &column) in logprobs.iter_mut().zip(columns) {
            let x = self.logits.logits[column];
            let group = column / GROUP;
            let mut races = false;
            let of_group = &maxima[group..=group];
            let start = group * GROUP;
            let row = self.part(start);
            let kept = racers.kept;
            let all = Racing { kept: None, ..racers };
            all.each(&row, of_group, |lane, _| races |= start + lane == column);
            let keeps = |kept: Kept| kept.keeps(exact::sort_key(x), column);
            if races && kept.is_none_or(keeps) {
                *logprob = (f64::from(racers.scale.weight(x)).ln() - whole) as f32;
            }
        }
    }

    /// The columns of one group.
    fn part(&self, start: usize) -> Row<'_> {
        let end = self.tokens.len().min(start + GROUP);
        let logits = &self.logits.logits[start..end];
        Row {
            logits: Logits { logits, mask: None, chunk: self.logits.chunk },
            tokens: &self.tokens[start..end],
        }
    }

    /// Lists the columns that race.
    fn write_kept(
        &self,
        chosen: &Chosen,
        scratch: &mut Scratch<'_>,
        mut tokens: Option<&mut [i32]>,
        count: Option<&mut [i32; 1]>,
    ) {
        if tokens.is_none() && count.is_none() {
            return;
        }
        if let Some(tokens) = &mut tokens {
            tokens.fill(-1);
        }
        let Some(racers) = chosen.racers else {
            let column = chosen.columns.first();
            if let Some(count) = count {
                *count = [i32::from(column.is_some())];
            }
            if let (Some([to, ..]), Some(&column)) = (tokens, column) {
                *to = self.token(column);
            }
            return;
        };
        let Scratch { order, maxima, .. } = scratch;
        let mut listed = 0;
        racers.each(self, maxima, |column, _| {
            let key = exact::sort_key(self.logits.logits[column]);
            order[listed] = u64::from(!key) << 32 | column as u64;
            listed += 1;
        });
        if let Some(count) = count {
            *count = [listed as i32];
        }
        let Some(tokens) = tokens else { return };
        if listed > tokens.len() {
            order[..listed].select_nth_unstable(tokens.len());
            order[..tokens.len()].sort_unstable_by_key(|&entry| entry as u32);
        }
        for (to, &entry) in tokens.iter_mut().zip(&order[..listed]) {
            *to = self.token(entry as u32 as usize);
        }
    }

    /// Leaves out of ranks the columns that stand for no token, which count as negative infinity.
    fn correct_ranks(&self, columns: &[usize], ranks: Option<&mut [i32]>) {
        let Some(ranks) = ranks else { return };
        for (rank, &column) in ranks.iter_mut().zip(columns) {
            if self.tokens[column] == NO_TOKEN {
                *rank = 0;
            } else if exact::sort_key(self.logits.logits[column]) == LOWEST {
                *rank -= self.tokens.iter().filter(|&&token| token == NO_TOKEN).count() as i32;
            }
        }
    }

    /// Turns a list of the likeliest columns into tokens, without the columns that stand for none.
    fn name_top(&self, top: Option<&mut [i32]>) {
        let Some(top) = top else { return };
        // The list is the caller's memory: if it changes during the call, a column may be any number.
        let is_lowest = |column: usize| {
            self.logits.logits.get(column).is_none_or(|&logit| exact::sort_key(logit) == LOWEST)
        };
        let mut last = 0;
        while let Some(to) = top.get_mut(last)
            && let Ok(column) = usize::try_from(*to)
            && !is_lowest(column)
        {
            *to = self.token(column);
            last += 1;
        }
        let lowest = (0..self.tokens.len())
            .filter(|&column| is_lowest(column) && self.tokens[column] != NO_TOKEN);
        let rest = lowest.map(|column| self.token(column)).chain(std::iter::repeat(-1));
        top[last..].iter_mut().zip(rest).for_each(|(to, token)| *to = token);
    }
}
