//! A piece that fits in cache, sorted by one thread.

use spec_core::dtype;

use super::key::Key;

/// Most bits of a digit.
const DIGIT_BITS: u32 = 11;
const DIGITS: usize = 1 << DIGIT_BITS;
/// Most passes over a piece: what then still collides is sorted by itself.
const PASSES: usize = 2;
/// Keys below which a comparison sort is faster than any radix.
const FEW: usize = 64;
/// Bits beyond log2 of a piece's length after which hardly any keys collide.
const SPARE_BITS: u32 = 6;
/// A bitmap of so many bits a key is faster than sorting.
const SPARSE_BITS: u32 = 5;

/// Sorts a piece, with scratch as long at least. Returns how many keys are left at
/// its front, and how many of them are distinct: repeats are dropped where that
/// comes for free, unless they are counted.
pub(super) fn sort<K: Key>(keys: &mut [K], scratch: &mut [K], counted: bool) -> (usize, usize) {
    let mask = spread(keys);
    if mask == 0 {
        return (if counted { keys.len() } else { 1 }, 1);
    }
    let top = u64::BITS - mask.leading_zeros();
    if !counted && top <= keys.len().ilog2() + SPARSE_BITS {
        let words = dtype::from_bytes_mut::<u64>(dtype::as_bytes_mut(scratch));
        let needed = (1usize << top).div_ceil(u64::BITS as usize);
        if let Some(words) = words.and_then(|words| words.get_mut(..needed)) {
            let distinct = by_bitmap(keys, words);
            return (distinct, distinct);
        }
    }
    (keys.len(), sort_all(keys, scratch, mask))
}

/// The bits in which keys differ, as a mask.
fn spread<K: Key>(keys: &[K]) -> u64 {
    let Some(first) = keys.first() else { return 0 };
    keys.iter().fold(0, |mask, key| mask | (key.bits() ^ first.bits()))
}

/// Writes the distinct ones of keys that differ only in what `words` have bits for
/// to their front, and returns how many there are.
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
        let mut word = word;
        while word != 0 {
            keys[count] = K::of(above | (index as u64 * 64 + u64::from(word.trailing_zeros())));
            word &= word - 1;
            count += 1;
        }
    }
    count
}

/// Sorts keys that differ only in the bits of `mask`; returns how many of them are
/// distinct.
///
/// Digits are taken from the top bits that tell the keys apart, just enough of
/// them; what then still collides is sorted by itself.
fn sort_all<K: Key>(keys: &mut [K], scratch: &mut [K], mask: u64) -> usize {
    if mask == 0 {
        return 1;
    }
    if keys.len() <= FEW {
        keys.sort_unstable();
        return 1 + changes(keys);
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
    finish(keys, scratch, shift)
}

#[inline(always)]
fn digit<K: Key>(key: K, shift: u32, bits: u32) -> usize {
    (key.bits() >> shift) as usize & ((1 << bits) - 1) & (DIGITS - 1)
}

/// One stable pass of a counting sort, from the counts of its digits.
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

/// Sorts runs of keys that agree above `shift`, in keys that are sorted by what is
/// above; returns how many of all are distinct.
fn finish<K: Key>(keys: &mut [K], scratch: &mut [K], shift: u32) -> usize {
    let mut distinct = 1;
    let mut at = 1;
    while at < keys.len() {
        if keys[at] < keys[at - 1] {
            let prefix = keys[at].bits() >> shift;
            let same = |key: &K| key.bits() >> shift == prefix;
            let start =
                keys[..at].iter().rposition(|key| !same(key)).map_or(0, |before| before + 1);
            let end =
                keys[at..].iter().position(|key| !same(key)).map_or(keys.len(), |len| at + len);
            distinct -= changes(&keys[start..at]);
            let run = &mut keys[start..end];
            let mask = spread(run);
            distinct += sort_all(run, scratch, mask) - 1;
            at = end;
            distinct += usize::from(at < keys.len());
            at += 1;
        } else {
            distinct += usize::from(keys[at] != keys[at - 1]);
            at += 1;
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
        let sets: [(&str, Set); 6] = [
            ("anywhere", |x| x),
            ("a few bits", |x| x >> 50),
            ("few that differ at the top", |x| x >> 63 << 63 | x & 0xFFFF),
            ("crowds and strays", |x| if x % 97 == 0 { x } else { x >> 40 & !1 }),
            ("of all lengths", |x| x >> (x % 64)),
            ("some often", |x| if x % 3 == 0 { 7 } else { x }),
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
}
