//! The race between the tokens of a row, by the rules of [`spec_core::race`].
//!
//! The times of each group of 64 tokens have a lower bound, which follows from the group's largest
//! entry and one word of noise. Groups are evaluated in the order of their bounds, until no
//! other group can have a token that finishes early enough: 10 to 40 of the 2,004 groups of a
//! vocabulary of 128,256. Within a group, the exact least noise gives a lower bound for each token,
//! so only some 50 tokens of a row need exact times.

use multiversion::multiversion;
use spec_core::exact::{self, sampling};
use spec_core::ops::sample_logits::MAX_DRAWS;
use spec_core::philox::Draw;
use spec_core::race::{self, BOUND_SLACK, Least, TOKEN_BLOCKS};

use crate::simd::GROUP;

const _: () = assert!(GROUP == race::GROUP);

/// The number of blocks of noise that are drawn at once, and of groups whose bounds follow from
/// them.
const AT_ONCE: usize = 16;
const BOUNDED: usize = 4 * AT_ONCE;

/// The first tokens to finish so far.
#[derive(Clone, Copy)]
pub(crate) struct Finishers {
    wanted: usize,
    /// Ascending.
    finishes: [u64; MAX_DRAWS],
    count: usize,
}

impl Finishers {
    /// Keeps the first `wanted` finishes, at most [`MAX_DRAWS`].
    pub(crate) fn new(wanted: usize) -> Self {
        Finishers { wanted, finishes: [u64::MAX; MAX_DRAWS], count: 0 }
    }

    /// The key that another token's key must be below to be kept.
    fn bar(&self) -> u64 {
        if self.count == self.wanted { self.finishes[self.count - 1] } else { u64::MAX }
    }

    fn add(&mut self, finish: u64) {
        if finish >= self.bar() {
            return;
        }
        let kept = &self.finishes[..self.count];
        let place = kept.partition_point(|&other| other < finish);
        let count = self.wanted.min(self.count + 1);
        self.finishes.copy_within(place..count - 1, place + 1);
        self.finishes[place] = finish;
        self.count = count;
    }

    /// The tokens in the order in which they finish.
    pub(crate) fn tokens(&self) -> impl Iterator<Item = usize> + use<> {
        let Finishers { finishes, count, .. } = *self;
        finishes.into_iter().take(count).map(|finish| finish as u32 as usize)
    }
}

/// The tokens of a row that race.
pub(crate) trait Racers {
    /// Writes the slowness of each token of a group; infinite for a token that does not race.
    fn slowness(&self, group: usize, slowness: &mut [f32; GROUP]);
}

/// Memory for a race: a bound and an index for each group.
pub(crate) struct Room<'a> {
    /// A lower bound of the times of each group; infinite for a group in which no token races.
    pub(crate) bounds: &'a mut [f32],
    pub(crate) groups: &'a mut [u32],
}

impl Room<'_> {
    /// Finds the first finishers. The [`bounds`](Self::bounds) of all groups must be computed
    /// before.
    pub(crate) fn race(&mut self, draw: Draw, racers: &impl Racers, finishers: &mut Finishers) {
        let mut done = usize::MAX;
        if finishers.wanted == 1 {
            // The group with the least bound runs first: after it, nearly all other groups have
            // bounds above the best time and need not be sorted.
            let least = least(self.bounds);
            done = self.bounds.iter().position(|&bound| bound == least).unwrap_or(0);
            finish_group(draw, racers, done, finishers);
        }
        let latest = time_of(finishers.bar());
        let mut count = 0;
        for (group, &bound) in self.bounds.iter().enumerate() {
            self.groups[count] = group as u32;
            count += usize::from(bound <= latest && bound < f32::INFINITY && group != done);
        }
        let bounds = &*self.bounds;
        let bound_of = |&group: &u32| bounds[group as usize].to_bits();
        let (mut rest, mut step) = (&mut self.groups[..count], (4 * finishers.wanted).max(32));
        while !rest.is_empty() {
            if step < rest.len() {
                rest.select_nth_unstable_by_key(step, bound_of);
            }
            let (next, others) = rest.split_at_mut(step.min(rest.len()));
            next.sort_unstable_by_key(bound_of);
            for &group in &*next {
                if bounds[group as usize] > time_of(finishers.bar()) {
                    return;
                }
                finish_group(draw, racers, group as usize, finishers);
            }
            (rest, step) = (others, 2 * step);
        }
    }
}

/// The time in a key of [`race::finish`]; infinite for `u64::MAX`, which stands for no token.
fn time_of(finish: u64) -> f32 {
    if finish == u64::MAX { f32::INFINITY } else { f32::from_bits((finish >> 32) as u32) }
}

/// Computes the times of the tokens of a group that can still be kept, and adds them.
fn finish_group(draw: Draw, racers: &impl Racers, group: usize, finishers: &mut Finishers) {
    let least = Least::at(draw, group as u32);
    let mut slowness = [f32::INFINITY; GROUP];
    racers.slowness(group, &mut slowness);
    for (lane, &slowness) in slowness.iter().enumerate() {
        let token = (group * GROUP + lane) as u32;
        // The noise of a token is at least the group's least noise, and rounding products is
        // monotone, so no time is below this product.
        let earliest = least.noise * slowness;
        if earliest == f32::INFINITY || race::finish(earliest, token) >= finishers.bar() {
            continue;
        }
        let word = draw.block(TOKEN_BLOCKS + token / 4)[(token % 4) as usize];
        let time = least.noise_of(lane as u32, word) * slowness;
        finishers.add(race::finish(time, token));
    }
}

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2"))]
fn least(bounds: &[f32]) -> f32 {
    bounds.iter().fold(f32::INFINITY, |least, &bound| if bound < least { bound } else { least })
}

/// Computes the bounds of groups from the largest key of each group. The `slowness` of a key is a
/// lower bound of the slowness of all smaller keys; it is infinite for a key that does not race.
#[inline(always)]
fn bound(draw: Draw, keys: &[u32], bounds: &mut [f32], slowness: impl Fn(u32) -> f32) {
    let chunks = keys.chunks(BOUNDED).zip(bounds.chunks_mut(BOUNDED));
    for (chunk, (keys, bounds)) in chunks.enumerate() {
        let words = draw.blocks::<AT_ONCE>((chunk * AT_ONCE) as u32);
        let mut noise = [0.0; BOUNDED];
        for (word, words) in words.iter().enumerate() {
            for (block, &high) in words.iter().enumerate() {
                noise[4 * block + word] = race::noise_bound(high);
            }
        }
        for ((bound, noise), &key) in bounds.iter_mut().zip(noise).zip(keys) {
            let slowness = slowness(key);
            // A product of noise 0 and an infinite slowness would be NaN.
            *bound = if slowness < f32::INFINITY { noise * slowness } else { f32::INFINITY };
        }
    }
}

/// [`bound`] for logits: keys below `least` do not race.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2"))]
pub(crate) fn bound_logits(
    draw: Draw,
    keys: &[u32],
    least: u32,
    max: f32,
    inverse: f32,
    bounds: &mut [f32],
) {
    bound(draw, keys, bounds, |key| {
        // The factor makes up for the rounding errors of `exp`, which is not monotone.
        let slowness = sampling::slowness(exact::from_sort_key(key), max, inverse) * BOUND_SLACK;
        if key >= least { slowness } else { f32::INFINITY }
    });
}

/// [`bound`] for residuals, positive numbers whose keys are their bits: residuals below `least` do
/// not race.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2"))]
pub(crate) fn bound_residuals(draw: Draw, keys: &[u32], least: f32, bounds: &mut [f32]) {
    bound(draw, keys, bounds, |key| {
        let largest = f32::from_bits(key);
        // The factor makes up for the difference between this division, which is rounded once, and
        // `sampling::inverse`, whose error is larger.
        if largest >= least { (1.0 / largest) * BOUND_SLACK } else { f32::INFINITY }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use spec_core::philox::Purpose;

    /// The slowness of each token of some groups.
    struct Field(Vec<f32>);

    impl Racers for Field {
        fn slowness(&self, group: usize, slowness: &mut [f32; GROUP]) {
            let own = self.0.chunks(GROUP).nth(group).unwrap();
            slowness[..own.len()].copy_from_slice(own);
        }
    }

    #[test]
    fn finishers_are_those_of_a_race_of_all() {
        let kinds: [fn(usize) -> f32; 5] = [
            |_| 1.0,
            |token| if token == 70 { 1.0 } else { 1e9 },
            |token| 1.0 + (token % 13) as f32 * 50.0,
            |token| if token % 64 == 5 { 2.0 } else { f32::INFINITY },
            |_| f32::INFINITY,
        ];
        for (seed, tokens) in [1, 63, 64, 65, 300, 5000].into_iter().enumerate() {
            for kind in kinds {
                let field = Field((0..tokens).map(kind).collect());
                let draw = Draw::at(seed as u64, -7, Purpose::Sample);
                let time = |token: usize| race::noise(draw, token as u32) * field.0[token];
                let mut all: Vec<usize> =
                    (0..tokens).filter(|&t| time(t) < f32::INFINITY).collect();
                all.sort_by_key(|&token| race::finish(time(token), token as u32));
                // The least slowness of each group as the key of a residual.
                let keys = field.0.chunks(GROUP).map(|own| {
                    let least = own.iter().copied().fold(f32::INFINITY, f32::min);
                    (1.0 / least).to_bits()
                });
                let keys: Vec<u32> = keys.collect();
                for wanted in [1, 2, 64] {
                    let (mut bounds, mut groups) = (vec![0.0; keys.len()], vec![0; keys.len()]);
                    bound_residuals(draw, &keys, 1e-12, &mut bounds);
                    let mut finishers = Finishers::new(wanted);
                    let mut room = Room { bounds: &mut bounds, groups: &mut groups };
                    room.race(draw, &field, &mut finishers);
                    let first: Vec<usize> = finishers.tokens().collect();
                    assert_eq!(first, all[..wanted.min(all.len())], "{tokens} tokens, {wanted}");
                }
            }
        }
    }
}
