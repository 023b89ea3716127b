//! Cuts a row to its largest entries without sorting the row: the common step of top-k and top-p.
//!
//! Order the entries of a row by key ([`spec_core::exact::sort_key`]), descending, the lower
//! index first among equal keys. An entry stays if the weights of all entries before it add up
//! to less than a limit. With weights of 1 the `limit` largest stay (top-k). With probabilities
//! as weights, in whole units, the likeliest stay until their sum reaches the limit (top-p).
//! A weight is an integer that depends on the key alone, so a histogram finds the cut, one digit
//! of the keys at a time:
//!
//! ```text
//! weight by the first digit     | . . : : | # # : . .     the digit in which the
//!                                   cut ----^             sum passes the limit
//! then by the next digit, among the keys with that first digit, and so on
//! ```
//!
//! The first digit is made of the highest bits in which the keys of the row differ.
//!
//! A key of 0 is below the key of every number. It marks an entry that was dropped.
//!
//! In a long row few entries stay. One pass finds the largest key of each group of entries. At
//! least k entries reach the k-th largest of these keys ([`reached_by`]), so the k largest entries
//! reach it too. The entries that reach it are gathered ([`gather`]), groups without such
//! entries are skipped, and the cut is made among the gathered entries.

use crate::simd::BLOCK;

/// Where a row is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    /// Entries with larger keys stay; entries with smaller keys do not.
    pub(crate) key: u32,
    /// How many entries with exactly this key stay, the lowest indices first; at least one.
    pub(crate) ties: usize,
    /// How many entries have exactly this key.
    pub(crate) tied: usize,
}

/// Up to this many entries, sorting is faster than counting.
const FEW: usize = 256;

/// Bits of a digit.
const DIGIT: u32 = 12;
const DIGITS: usize = 1 << DIGIT;

/// The cut of `keys` at `limit`, which is at least 1. `None` if the sum of all weights is below
/// the limit: then all entries stay. `weigh` writes the weights of at most [`BLOCK`] keys; equal
/// keys have equal weights. Keys of 0 never stay.
pub(crate) fn cut(keys: &[u32], limit: u64, weigh: impl Fn(&[u32], &mut [u64])) -> Option<Cut> {
    if keys.len() <= FEW {
        return cut_of_few(keys, limit, weigh);
    }
    // The smallest key that stays is from `from` to `to`. The key 0 of a dropped entry is below
    // both.
    let above_0 = |key: u32| if key > 0 { key } else { u32::MAX };
    let mut from = keys.iter().fold(u32::MAX, |least, &key| least.min(above_0(key)));
    let mut to = keys.iter().fold(from, |largest, &key| largest.max(key));
    let (mut above, mut tied) = (0, 0);
    let (mut some, mut weights) = ([0; BLOCK], [0; BLOCK]);
    while tied == 0 || from < to {
        let width = u32::BITS - (to - from).leading_zeros();
        let shift = width.saturating_sub(DIGIT);
        let mut sums = [0u64; DIGITS];
        for block in keys.chunks(BLOCK) {
            let inside = |key: u32| from <= key && key <= to;
            let chosen = match block.iter().map(|&key| u32::from(inside(key))).sum() {
                0 => continue,
                all if all as usize == block.len() => block,
                _ => {
                    let mut count = 0;
                    for &key in block {
                        some[count] = key;
                        count += usize::from(inside(key));
                    }
                    &some[..count]
                }
            };
            let weights = &mut weights[..chosen.len()];
            weigh(chosen, weights);
            for (&key, &weight) in chosen.iter().zip(&*weights) {
                sums[((key - from) >> shift) as usize % DIGITS] += weight;
            }
        }
        let digit = (0..DIGITS).rev().find(|&digit| {
            let through = above + sums[digit];
            let reached = through >= limit;
            if !reached {
                above = through;
            }
            reached
        })?;
        tied = sums[digit];
        from += (digit as u32) << shift;
        to = to.min(from + ((1 << shift) - 1));
    }
    let mut weight = [0];
    weigh(&[from], &mut weight);
    // The last digit's sum made the total reach the limit, so its weight is not 0.
    let weight = weight[0].max(1);
    let ties = (limit - above).div_ceil(weight);
    Some(Cut { key: from, ties: ties as usize, tied: (tied / weight) as usize })
}

/// [`cut`] of at most [`FEW`] keys.
fn cut_of_few(keys: &[u32], limit: u64, weigh: impl Fn(&[u32], &mut [u64])) -> Option<Cut> {
    let (mut order, mut weights) = ([0; FEW], [0; FEW]);
    let (order, weights) = (&mut order[..keys.len()], &mut weights[..keys.len()]);
    order.copy_from_slice(keys);
    order.sort_unstable_by(|a, b| b.cmp(a));
    weigh(order, weights);
    let mut sum = 0;
    let last = weights.iter().position(|&weight| {
        sum += weight;
        sum >= limit
    })?;
    let key = order[last];
    let first = order.partition_point(|&other| other > key);
    let tied = order[first..].partition_point(|&other| other == key);
    Some(Cut { key, ties: last + 1 - first, tied })
}

impl Cut {
    /// Sets the keys of all entries that do not stay to 0.
    pub(crate) fn drop_rest(&self, keys: &mut [u32]) {
        for key in keys.iter_mut() {
            *key = if *key >= self.key { *key } else { 0 };
        }
        if self.ties == self.tied {
            return;
        }
        let ties = keys.iter_mut().filter(|key| **key == self.key);
        ties.skip(self.ties).for_each(|key| *key = 0);
    }
}

/// A key that at least `k` entries reach: the k-th largest of `maxima`, the largest keys of groups
/// of entries. Reorders `maxima`. With fewer than `k` groups the key is 1, which every entry
/// reaches that was not dropped.
pub(crate) fn reached_by(k: usize, maxima: &mut [u32]) -> u32 {
    match k.checked_sub(1) {
        Some(last) if k <= maxima.len() => {
            let (_, key, _) = maxima.select_nth_unstable_by(last, |a, b| b.cmp(a));
            (*key).max(1)
        }
        _ => 1,
    }
}

/// Which entries of a row are gathered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reach {
    /// Entries with a larger key are gathered.
    pub(crate) key: u32,
    /// How many entries with exactly this key are gathered, the lowest indices first.
    pub(crate) ties: usize,
}

/// Copies the entries that `reach` names to `keys` and their positions to `indices`, in order.
/// Returns how many entries were copied.
///
/// `maxima` are the largest keys of groups of `N` entries. `group_keys` writes the keys of a
/// group, and returns how many the group has. `keys` and `indices` have room for all entries of
/// the row, or for `N` entries more than are copied.
pub(crate) fn gather<const N: usize>(
    reach: Reach,
    maxima: &[u32],
    mut group_keys: impl FnMut(usize, &mut [u32; N]) -> usize,
    keys: &mut [u32],
    indices: &mut [u32],
) -> usize {
    let (mut taken, mut ties) = (0, reach.ties);
    let mut group = [0; N];
    for (at, &largest) in maxima.iter().enumerate() {
        if largest < reach.key || (largest == reach.key && ties == 0) {
            continue;
        }
        // There is room for every entry of the group, unless another thread has changed the
        // entries since the maxima were found.
        let len = group_keys(at, &mut group).min(keys.len().min(indices.len()) - taken);
        let group = &group[..len];
        let tied = group.iter().map(|&key| usize::from(key == reach.key)).sum::<usize>();
        // If the group has more ties than are still wanted, only its first `some` are taken.
        let (least, mut some) = if tied <= ties { (reach.key, 0) } else { (reach.key + 1, ties) };
        ties -= tied.min(ties);
        for (i, &key) in group.iter().enumerate() {
            // Each entry is written, and counted if it is taken: a branch would be mispredicted
            // in rows where every second entry is taken.
            keys[taken] = key;
            indices[taken] = (at * N + i) as u32;
            taken += usize::from(key >= least);
            if some > 0 && key == reach.key {
                taken += 1;
                some -= 1;
            }
        }
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The keys that stay, found by sorting the row.
    fn sorted(keys: &[u32], limit: u64, weight: impl Fn(u32) -> u64) -> Vec<u32> {
        let mut order: Vec<usize> = (0..keys.len()).collect();
        order.sort_by_key(|&i| std::cmp::Reverse(keys[i]));
        let mut kept = vec![0; keys.len()];
        let mut before = 0;
        for i in order {
            if before < limit {
                kept[i] = keys[i];
            }
            before += weight(keys[i]);
        }
        kept
    }

    #[test]
    fn cuts_are_those_of_a_sorted_row() {
        let mut state = 7u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state >> 33
        };
        for case in 0..400 {
            let n = 1 + next() as usize % 3000;
            // Keys of all bits, few distinct keys, or keys that share their first digits.
            let (mask, base) = [(u32::MAX, 1), (7, 5), (0x3FF, 0x8000_0000), (0, 9)][case % 4];
            let keys: Vec<u32> =
                (0..n).map(|_| ((next() as u32).wrapping_mul(3) & mask) | base).collect();
            let one = |key: u32| u64::from(key > 0);
            let by_key = |key: u32| u64::from(key >> 7) + u64::from(key > 0);
            let weights: [&dyn Fn(u32) -> u64; 2] = [&one, &by_key];
            for weight in weights {
                let total: u64 = keys.iter().map(|&key| weight(key)).sum();
                let limit = 1 + next() % (total + total / 8 + 1);
                let mut kept = keys.clone();
                let found = cut(&keys, limit, |keys, weights| {
                    for (to, &key) in weights.iter_mut().zip(keys) {
                        *to = weight(key);
                    }
                });
                assert_eq!(found.is_none(), total < limit);
                if let Some(cut) = found {
                    cut.drop_rest(&mut kept);
                }
                assert_eq!(kept, sorted(&keys, limit, weight), "case {case}, limit {limit}");
            }
        }
    }

    #[test]
    fn keys_that_change_after_their_maxima_were_found_stay_in_their_slots() {
        const N: usize = 16;
        for k in [1, 5, 40] {
            // One entry of each group reaches the bound at first, and then all of them.
            let maxima = [7; 100];
            let room = k * (N + 1) + 1;
            let (mut keys, mut indices) = (vec![0; room], vec![0; room]);
            for (key, tied) in [(7, 1), (7, N), (9, N)] {
                let group_keys = |_, group: &mut [u32; N]| {
                    *group = std::array::from_fn(|i| if i < tied { key } else { 1 });
                    N
                };
                let reach = Reach { key: 7, ties: k };
                let taken = gather(reach, &maxima, group_keys, &mut keys, &mut indices);
                assert_eq!(taken, if key == 7 { k } else { room });
                assert!(keys[..taken].iter().all(|&taken| taken == key));
            }
        }
    }

    #[test]
    fn enough_entries_reach_the_bound() {
        let mut maxima = [5, 9, 7, 9, 1];
        assert_eq!(reached_by(2, &mut maxima), 9);
        assert_eq!(reached_by(4, &mut maxima), 5);
        assert_eq!(reached_by(6, &mut maxima), 1);
    }
}
