//! A row of logits: passes over it, in parallel chunks where there are fewer rows than threads.

use rayon::prelude::*;
use spec_core::exact::{self, sampling};

use super::NO_UNIT;
use crate::select::{self, Reach};
use crate::simd::{self, BLOCK, Float, GROUP, GROUPS};
use crate::weights::{self, Scale, Steps};

/// An entry of a row as a number whose order is that of the row: the bitwise complement of its key,
/// then its token.
#[derive(Clone, Copy)]
pub(super) struct Entry(u64);

impl Entry {
    pub(super) fn key(&self) -> u32 {
        !(self.0 >> 32) as u32
    }

    pub(super) fn token(&self) -> usize {
        self.0 as u32 as usize
    }
}

/// The scratch of a worker, or of several workers that follow one another.
pub(super) struct Scratch<'a> {
    /// The keys of the gathered entries; 0 for an entry that was dropped since.
    pub(super) keys: &'a mut [u32],
    /// The tokens of the gathered entries.
    pub(super) indices: &'a mut [u32],
    /// The largest key of each group.
    pub(super) maxima: &'a mut [u32],
    /// Gathered entries, to be sorted.
    pub(super) order: &'a mut [u64],
    /// A lower bound of the times of each group in the race.
    pub(super) bounds: &'a mut [f32],
    /// A copy of `maxima`, to reorder; later the groups that race.
    pub(super) ranked: &'a mut [u32],
    /// The sum of weights of each block.
    pub(super) sums: &'a mut [u64],
    /// The copy of a row, for rows by columns.
    pub(super) columns: ColumnScratch<'a>,
}

impl Scratch<'_> {
    /// The scratch of the first `workers` workers, and that of those behind. A row of each worker
    /// has `vocab` logits in `blocks` blocks and `groups` groups, and a copy of `columns` columns.
    pub(super) fn split(
        self,
        workers: usize,
        [vocab, blocks, groups, columns]: [usize; 4],
    ) -> (Self, Self) {
        let (keys, keys_behind) = self.keys.split_at_mut(workers * vocab);
        let (indices, indices_behind) = self.indices.split_at_mut(workers * vocab);
        let (maxima, maxima_behind) = self.maxima.split_at_mut(workers * groups);
        let (order, order_behind) = self.order.split_at_mut(workers * vocab);
        let (bounds, bounds_behind) = self.bounds.split_at_mut(workers * groups);
        let (ranked, ranked_behind) = self.ranked.split_at_mut(workers * groups);
        let (sums, sums_behind) = self.sums.split_at_mut(workers * blocks);
        let (columns, columns_behind) = self.columns.split(workers, columns);
        (
            Scratch { keys, indices, maxima, order, bounds, ranked, sums, columns },
            Scratch {
                keys: keys_behind,
                indices: indices_behind,
                maxima: maxima_behind,
                order: order_behind,
                bounds: bounds_behind,
                ranked: ranked_behind,
                sums: sums_behind,
                columns: columns_behind,
            },
        )
    }
}

/// A copy of a row for each worker, `columns` long; empty for calls without such rows.
#[derive(Default)]
pub(super) struct ColumnScratch<'a> {
    /// The logits as given; negative infinity for a column that stands for no token.
    pub(super) raw: &'a mut [f32],
    /// The same with negative infinity for the columns that are not allowed.
    pub(super) values: &'a mut [f32],
    /// The token that each column stands for.
    pub(super) tokens: &'a mut [u32],
}

impl ColumnScratch<'_> {
    /// The scratch of the first `workers` workers, and that of those behind.
    pub(super) fn split(self, workers: usize, columns: usize) -> (Self, Self) {
        let at = workers * columns;
        let (raw, raw_behind) = self.raw.split_at_mut(at);
        let (values, values_behind) = self.values.split_at_mut(at);
        let (tokens, tokens_behind) = self.tokens.split_at_mut(at);
        (
            ColumnScratch { raw, values, tokens },
            ColumnScratch { raw: raw_behind, values: values_behind, tokens: tokens_behind },
        )
    }
}

/// A row of logits.
pub(super) struct Logits<'a, T> {
    pub(super) logits: &'a [T],
    pub(super) mask: Option<&'a [i32]>,
    /// The number of blocks of the row that one thread takes at a time.
    pub(super) chunk: usize,
}

/// Memory for the values of a block, converted to f32, before and after the mask.
pub(super) struct Room {
    wide: [f32; BLOCK],
    allowed: [f32; BLOCK],
}

impl Room {
    pub(super) fn new() -> Self {
        Room { wide: [0.0; BLOCK], allowed: [0.0; BLOCK] }
    }
}

impl<T: Float> Logits<'_, T> {
    /// The values of a piece of the row: first as given, then with negative infinity for the
    /// tokens that the mask forbids. `start` must be a multiple of 32, the tokens of a word of the
    /// mask, and the piece is at most a block.
    pub(super) fn piece<'v>(
        &'v self,
        start: usize,
        len: usize,
        room: &'v mut Room,
    ) -> [&'v [f32]; 2] {
        let end = self.logits.len().min(start + len);
        let raw = T::widen(&self.logits[start..end], &mut room.wide);
        let Some(mask) = self.mask else { return [raw; 2] };
        let allowed = &mut room.allowed[..raw.len()];
        simd::allow(raw, &mask[start / 32..], allowed);
        [raw, allowed]
    }

    /// Finds the largest key of each group. Returns whether any logit is NaN or positive infinity.
    pub(super) fn survey(&self, maxima: &mut [u32]) -> bool {
        let chunks = maxima.par_chunks_mut(self.chunk * GROUPS).enumerate();
        let chunks = chunks.map_init(Room::new, |room, (chunk, maxima)| {
            let mut bad = false;
            for (block, maxima) in maxima.chunks_mut(GROUPS).enumerate() {
                let start = (chunk * self.chunk + block) * BLOCK;
                let [raw, values] = self.piece(start, BLOCK, room);
                bad |= simd::any_without_order(raw);
                simd::group_maxima(values, maxima);
            }
            bad
        });
        chunks.reduce(|| false, |a, b| a | b)
    }

    /// The first token with the largest key.
    pub(super) fn first(&self, largest: u32, maxima: &[u32]) -> usize {
        let start = GROUP * maxima.iter().position(|&key| key == largest).unwrap_or(0);
        let mut room = Room::new();
        let [_, values] = self.piece(start, GROUP, &mut room);
        let first = values.iter().position(|&x| exact::sort_key(x) == largest);
        start + first.unwrap_or(0)
    }

    /// The sum of weights of each block.
    pub(super) fn sums<'s>(&self, scale: Scale, scratch: &'s mut Scratch<'_>) -> &'s [u64] {
        let from = scale.reaches(NO_UNIT);
        let maxima = scratch.maxima.par_chunks(self.chunk * GROUPS);
        (scratch.sums.par_chunks_mut(self.chunk), maxima)
            .into_par_iter()
            .enumerate()
            .for_each_init(
                || (Room::new(), Steps::new()),
                |(room, steps), (chunk, (sums, maxima))| {
                    for (block, (sum, maxima)) in
                        sums.iter_mut().zip(maxima.chunks(GROUPS)).enumerate()
                    {
                        let start = (chunk * self.chunk + block) * BLOCK;
                        let [_, values] = self.piece(start, BLOCK, room);
                        *sum = weights::sum(values, maxima, from, scale, steps);
                    }
                },
            );
        scratch.sums
    }

    /// The number of entries whose key is `key` or larger.
    pub(super) fn rank(&self, key: u32, maxima: &[u32]) -> i32 {
        let chunks = maxima.par_chunks(self.chunk * GROUPS).enumerate();
        let chunks = chunks.map_init(Room::new, |room, (chunk, maxima)| {
            let groups = maxima.iter().enumerate().filter(|&(_, &largest)| largest >= key);
            groups.fold(0, |count, (group, _)| {
                let start = (chunk * self.chunk * GROUPS + group) * GROUP;
                let [_, values] = self.piece(start, GROUP, room);
                count + values.iter().map(|&x| i32::from(exact::sort_key(x) >= key)).sum::<i32>()
            })
        });
        chunks.sum()
    }

    /// Writes the share of each token in a sum of weights.
    pub(super) fn shares(&self, scale: Scale, total: u64, probs: &mut [f32]) {
        let factor = sampling::factor(total);
        let chunks = probs.par_chunks_mut(self.chunk * BLOCK).enumerate();
        chunks.for_each(|(chunk, probs)| {
            let mut room = Room::new();
            for (block, shares) in probs.chunks_mut(BLOCK).enumerate() {
                let start = (chunk * self.chunk + block) * BLOCK;
                let [_, values] = self.piece(start, BLOCK, &mut room);
                weights::shares(values, scale, factor, shares);
            }
        });
    }

    /// The `count` entries with the largest keys, in descending order; of equal keys, the lower
    /// token comes first. All entries if the row has fewer than `count`.
    pub(super) fn likeliest<'s>(
        &self,
        count: usize,
        scratch: &'s mut Scratch<'_>,
    ) -> impl Iterator<Item = Entry> + use<'s, T> {
        scratch.ranked.copy_from_slice(scratch.maxima);
        let reach = Reach { key: select::reached_by(count, scratch.ranked), ties: count };
        let taken = self.gather(reach, scratch);
        let order = &mut scratch.order[..taken];
        for ((entry, &key), &token) in order.iter_mut().zip(&*scratch.keys).zip(&*scratch.indices) {
            *entry = u64::from(!key) << 32 | u64::from(token);
        }
        if count < order.len() {
            order.select_nth_unstable(count);
        }
        let first = &mut order[..count.min(taken)];
        first.sort_unstable();
        first.iter().map(|&entry| Entry(entry))
    }

    /// Gathers the entries that `reach` names into the scratch. Returns how many there are.
    pub(super) fn gather(&self, reach: Reach, scratch: &mut Scratch<'_>) -> usize {
        let mut room = Room::new();
        let group_keys = |group: usize, keys: &mut [u32; GROUP]| {
            let [_, values] = self.piece(group * GROUP, GROUP, &mut room);
            simd::sort_keys(values, keys);
            values.len()
        };
        select::gather(reach, scratch.maxima, group_keys, scratch.keys, scratch.indices)
    }
}
