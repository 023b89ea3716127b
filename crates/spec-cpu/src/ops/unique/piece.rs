//! A piece that fits in cache, sorted by one thread.

use spec_core::dtype;

use super::key::Key;

/// Maximal bits of a digit.
const DIGIT_BITS: u32 = 11;
const DIGITS: usize = 1 << DIGIT_BITS;
/// Maximal passes over a piece. Keys whose digits are equal after that are sorted by themselves.
const PASSES: usize = 2;
/// Keys below which a comparison sort is faster than any radix.
const FEW: usize = 64;
/// Bits beyond log2 of a piece's length after which few keys collide.
const SPARE_BITS: u32 = 4;
/// Maximal distance over which a single key is moved to its place.
const NEAR: usize = 16;
/// At most one key in this many may be out of order for a piece to be merged instead of sorted.
const STRAYS: usize = 16;
/// log2 of the bits per key up to which a bitmap is faster than sorting.
const SPARSE_BITS: u32 = 7;

/// Sorts a piece; the scratch is at least as long. Repeats are dropped, unless `counted`. Returns
/// how many keys are left at the piece's front, and how many of them are distinct.
pub(super) fn sort<K: Key>(keys: &mut [K], scratch: &mut [K], counted: bool) -> (usize, usize) {
    let mask = spread(keys);
    if mask != 0 && merge_strays(keys, scratch) {
        let distinct = 1 + changes(keys);
        return (keys.len(), distinct);
    }
    if counted {
        return (keys.len(), sort_all::<K, false>(keys, scratch, mask));
    }
    let top = u64::BITS - mask.leading_zeros();
    let distinct = match bitmap(keys.len(), top, scratch) {
        Some(words) => by_bitmap(keys, words),
        None => sort_all::<K, true>(keys, scratch, mask),
    };
    (distinct, distinct)
}

/// The bits in which keys differ, as a mask.
fn spread<K: Key>(keys: &[K]) -> u64 {
    let Some(first) = keys.first() else { return 0 };
    keys.iter().fold(0, |mask, key| mask | (key.bits() ^ first.bits()))
}

/// Sorts keys that ascend except for a few strays. Returns whether there were few enough; if not,
/// the keys are unchanged.
///
/// If the input was nearly in order, a bucket's keys lie in one ascending run, with strays from
/// elsewhere in the input before and behind it.
fn merge_strays<K: Key>(keys: &mut [K], scratch: &mut [K]) -> bool {
    let middle = keys.len() / 2;
    let ascend = |two: &&[K]| two[0] <= two[1];
    let end = middle + 1 + keys[middle..].windows(2).take_while(ascend).count();
    if end - middle <= FEW {
        return false;
    }
    let start = middle - keys[..=middle].windows(2).rev().take_while(ascend).count();
    let run = end - start;
    let Some(strays) = scratch.get_mut(..keys.len() - run) else { return false };
    if strays.len() > keys.len() / STRAYS {
        return false;
    }
    strays[..start].copy_from_slice(&keys[..start]);
    strays[start..].copy_from_slice(&keys[end..]);
    strays.sort_unstable();
    keys.copy_within(start..end, strays.len());
    // The distance from `to` to `from` is the number of strays that are left.
    let (mut from, mut to) = (strays.len(), 0);
    for &stray in &*strays {
        let below = keys[from..].partition_point(|key| *key < stray);
        keys.copy_within(from..from + below, to);
        from += below;
        to += below;
        keys[to] = stray;
        to += 1;
    }
    true
}

/// Words of a bitmap with a bit for each value of the lowest `top` bits. `None` if sorting `keys`
/// keys is faster, or the scratch is too short.
fn bitmap<K: Key>(keys: usize, top: u32, scratch: &mut [K]) -> Option<&mut [u64]> {
    if top > keys.ilog2() + SPARSE_BITS {
        return None;
    }
    let words = dtype::from_bytes_mut::<u64>(dtype::as_bytes_mut(scratch))?;
    words.get_mut(..(1usize << top).div_ceil(u64::BITS as usize))
}

/// Writes the distinct keys to the front of `keys`, and returns how many there are. The keys
/// differ only in their lowest bits, for each value of which `words` has a bit.
fn by_bitmap<K: Key>(keys: &mut [K], words: &mut [u64]) -> usize {
    words.fill(0);
    let inside = words.len() * 64 - 1;
    for key in keys.iter() {
        let at = key.bits() as usize & inside;
        words[at / 64] |= 1 << (at % 64);
    }
    let above = keys[0].bits() & !(inside as u64);
    let mut count = 0;
    for (index, &word) in words.iter().enumerate() {
        let first = above | (index as u64 * 64);
        let mut word = word;
        // Most bitmap words hold only a few keys. Writing a fixed number of keys per word and
        // advancing the output by the true count avoids a branch that would be mispredicted.
        if let Some(slots) = keys[count..].first_chunk_mut::<EXPECTED>() {
            for slot in slots {
                *slot = K::of(first | u64::from((word | 1 << 63).trailing_zeros()));
                count += usize::from(word != 0);
                word &= word.wrapping_sub(1);
            }
        }
        while word != 0 {
            keys[count] = K::of(first | u64::from(word.trailing_zeros()));
            word &= word - 1;
            count += 1;
        }
    }
    count
}

/// How many keys of a bitmap's word are written without a branch.
const EXPECTED: usize = 3;

/// Sorts keys that differ only in the bits of `mask`. Returns how many of them are distinct. With
/// `DROP`, the distinct keys are moved to the front; without, all keys stay.
///
/// The digits are the highest bits in which the keys differ, just enough of them that few keys
/// have equal digits. Those few are sorted by themselves.
fn sort_all<K: Key, const DROP: bool>(keys: &mut [K], scratch: &mut [K], mask: u64) -> usize {
    if mask == 0 {
        return 1;
    }
    if keys.len() <= FEW {
        keys.sort_unstable();
        return settle::<K, DROP>(keys, scratch, 0);
    }
    let top = u64::BITS - mask.leading_zeros();
    let enough = (keys.len().ilog2() + SPARE_BITS).min(PASSES as u32 * DIGIT_BITS).min(top);
    let low = enough / 2;
    let high = enough - low;
    let shift = top - enough;
    let scratch = &mut scratch[..keys.len()];
    let mut slots = [[0u32; DIGITS]; PASSES];
    let [lows, highs] = &mut slots;
    for &key in keys.iter() {
        lows[digit(key, shift, low)] += 1;
        highs[digit(key, shift + low, high)] += 1;
    }
    scatter(keys, scratch, lows, shift, low);
    scatter(scratch, keys, highs, shift + low, high);
    settle::<K, DROP>(keys, scratch, shift)
}

#[inline(always)]
fn digit<K: Key>(key: K, shift: u32, bits: u32) -> usize {
    (key.bits() >> shift) as usize & ((1 << bits) - 1) & (DIGITS - 1)
}

/// One stable pass of a counting sort. `slots` holds the count of each digit.
fn scatter<K: Key>(from: &[K], to: &mut [K], slots: &mut [u32; DIGITS], shift: u32, bits: u32) {
    let mut sum = 0;
    for slot in &mut slots[..1 << bits] {
        sum += std::mem::replace(slot, sum);
    }
    for &key in from {
        let slot = &mut slots[digit(key, shift, bits)];
        to[*slot as usize] = key;
        *slot += 1;
    }
}

/// Finishes the sort of keys that are sorted by their bits from `shift` on: sorts the runs of keys
/// that agree in those bits. Returns how many keys are distinct, and drops repeats if `DROP`.
fn settle<K: Key, const DROP: bool>(keys: &mut [K], scratch: &mut [K], shift: u32) -> usize {
    let (mut last, mut distinct) = (keys[0], 1);
    // Keys before `end` are in their final order. Dropped keys leave room between `end` and `at`.
    let (mut at, mut end) = (1, 1);
    while at < keys.len() {
        let key = keys[at];
        if key >= last {
            let new = usize::from(key != last);
            keys[end] = key;
            distinct += new;
            end += if DROP { new } else { 1 };
            last = key;
            at += 1;
            continue;
        }
        // The key belongs before some of the settled keys, mostly before the last one.
        let near = &keys[end.saturating_sub(NEAR)..end];
        match near.iter().rposition(|before| *before <= key) {
            Some(before) => {
                let to = end - near.len() + before + 1;
                let new = keys[to - 1] != key;
                distinct += usize::from(new);
                if new || !DROP {
                    keys.copy_within(to..end, to + 1);
                    keys[to] = key;
                    end += 1;
                }
                at += 1;
            }
            None => {
                let prefix = key.bits() >> shift;
                let same = |key: &K| key.bits() >> shift == prefix;
                let start = keys[..end].iter().rposition(|key| !same(key)).map_or(0, |i| i + 1);
                let run = keys[at..].iter().take_while(|key| same(key)).count();
                keys.copy_within(at..at + run, end);
                at += run;
                let settled = &keys[start..end];
                distinct -= 1 + changes(settled);
                let run = &mut keys[start..end + run];
                let mask = spread(run);
                let new = sort_all::<K, DROP>(run, scratch, mask);
                distinct += new;
                end = start + if DROP { new } else { run.len() };
                last = keys[end - 1];
            }
        }
    }
    distinct
}

/// How many keys differ from the one before.
fn changes<K: Key>(keys: &[K]) -> usize {
    keys.windows(2).filter(|two| two[0] != two[1]).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_sorted_whatever_their_bits() {
        let hash = |i: u64| i.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
        type Set = fn(u64) -> u64;
        let sets: [(&str, Set); 7] = [
            ("anywhere", |x| x),
            ("a few bits", |x| x >> 50),
            ("few that differ at the top", |x| x >> 63 << 63 | x & 0xFFFF),
            ("crowds and strays", |x| if x % 97 == 0 { x } else { x >> 40 & !1 }),
            ("of all lengths", |x| x >> (x % 64)),
            ("some often", |x| if x % 3 == 0 { 7 } else { x }),
            ("a bit for each", |x| x >> 45),
        ];
        for (name, set) in sets {
            for len in [1, 2, 64, 65, 1000, 20_000] {
                let keys: Vec<u64> = (0..len).map(|i| set(hash(i))).collect();
                let mut sorted = keys.clone();
                sorted.sort_unstable();
                let mut distinct = sorted.clone();
                distinct.dedup();
                let mut scratch = vec![0; keys.len()];
                let mut piece = keys.clone();
                let left = sort(&mut piece, &mut scratch, true);
                assert!(piece == sorted && left == (keys.len(), distinct.len()), "{name}, {len}");
                let mut piece = keys.clone();
                let left = sort(&mut piece, &mut scratch, false);
                piece.truncate(left.0);
                piece.dedup();
                assert!(piece == distinct && left.1 == distinct.len(), "{name}, {len}");
            }
        }
    }

    #[test]
    fn few_strays_are_merged_wherever_they_are() {
        let hash = |i: u64| i.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29) % 50_000;
        for len in [200, 1000, 20_000] {
            for (front, back) in [(0, 0), (1, 0), (0, 1), (5, 7), (12, 0), (0, 12), (20, 21)] {
                let run = len - front - back;
                let keys = (0..front).chain((0..run).map(|i| i * 3 / 2)).chain(0..back);
                let is_run = front..front + run;
                let keys: Vec<u64> = keys
                    .enumerate()
                    .map(
                        |(at, key)| if is_run.contains(&at) { key as u64 } else { hash(at as u64) },
                    )
                    .collect();
                let mut piece = keys.clone();
                let mut sorted = keys;
                sorted.sort_unstable();
                let few = front + back <= len / STRAYS;
                assert_eq!(merge_strays(&mut piece, &mut vec![0; len]), few, "{len}, {front}");
                assert!(!few || piece == sorted, "{len} keys, {front} and {back} strays");
            }
        }
    }
}
