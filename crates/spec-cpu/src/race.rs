//! The race between the tokens of a row: [`spec_core::race`] has its rules.
//!
//! Every group of 64 tokens has a lower bound of its times, from its largest entry and a quarter of
//! a block of noise. Groups are looked at in the order of their bounds, until no other one can have
//! a token that is still wanted: 10 to 40 of the 2,004 groups of a vocabulary of 128,256. In a group
//! the exact least noise bounds each token once more, so that some 50 tokens of a row get exact times.

use multiversion::multiversion;
use spec_core::exact::{self, sampling};
use spec_core::ops::sample_logits::MAX_DRAWS;
use spec_core::philox::Draw;
use spec_core::race::{self, BOUND_SLACK, Least, TOKEN_BLOCKS};

use crate::simd::GROUP;

const _: () = assert!(GROUP == race::GROUP);

/// Blocks of noise that are drawn at once, and the groups they bound.
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

    /// The finish that another token must be before to be kept.
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

/// Whatever races in a row.
pub(crate) trait Racers {
    /// Writes how slow each token of a group is: infinitely where it does not race.
    fn slowness(&self, group: usize, slowness: &mut [f32; GROUP]);
}

/// Room for a race: a bound and a place for each group.
pub(crate) struct Room<'a> {
    /// The least time of each group; infinite where nothing races.
    pub(crate) bounds: &'a mut [f32],
    pub(crate) groups: &'a mut [u32],
}

impl Room<'_> {
    /// Finds the first finishers, with [`bounds`](Self::bounds) of all groups in place.
    pub(crate) fn race(&mut self, draw: Draw, racers: &impl Racers, finishers: &mut Finishers) {
        let mut done = usize::MAX;
        if finishers.wanted == 1 {
            // Its best time keeps nearly all others from being sorted.
            let least = least(self.bounds);
            done = self.bounds.iter().position(|&bound| bound == least).unwrap_or(0);
            look(draw, racers, done, finishers);
        }
        let most = time_of(finishers.bar());
        let mut count = 0;
        for (group, &bound) in self.bounds.iter().enumerate() {
            self.groups[count] = group as u32;
            count += usize::from(bound <= most && bound < f32::INFINITY && group != done);
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
                look(draw, racers, group as usize, finishers);
            }
            (rest, step) = (others, 2 * step);
        }
    }
}

/// The time of a finish; infinite where there is none.
fn time_of(finish: u64) -> f32 {
    if finish == u64::MAX { f32::INFINITY } else { f32::from_bits((finish >> 32) as u32) }
}

/// Lets the tokens of a group finish.
fn look(draw: Draw, racers: &impl Racers, group: usize, finishers: &mut Finishers) {
    let least = Least::at(draw, group as u32);
    let mut slowness = [f32::INFINITY; GROUP];
    racers.slowness(group, &mut slowness);
    for (lane, &slowness) in slowness.iter().enumerate() {
        let token = (group * GROUP + lane) as u32;
        // A token has the least noise at least, and products round monotonically.
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

/// Bounds of groups from the largest key of each group: the `slowness` of a key is a lower bound
/// for all smaller keys; it is infinite for a key that does not race.
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
            // 0 times infinity is no number.
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
        // Cut by the errors of `exp`, which is not monotone.
        let slowness = sampling::slowness(exact::from_sort_key(key), max, inverse) * BOUND_SLACK;
        if key >= least { slowness } else { f32::INFINITY }
    });
}

/// [`bound`] for residuals, positive numbers whose bits are their keys: those below `least` do not race.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2"))]
pub(crate) fn bound_residuals(draw: Draw, keys: &[u32], least: f32, bounds: &mut [f32]) {
    bound(draw, keys, bounds, |key| {
        let largest = f32::from_bits(key);
        // A division is rounded once; `sampling::inverse` is off by a little more.
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
