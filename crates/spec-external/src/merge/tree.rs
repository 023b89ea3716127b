//! Merges ascending sequences in cache, equal keys into one.

use crate::buffer::Buffer;
use crate::{Key, Result};

/// Keys and their counts; `counts` is empty where counts are not wanted.
pub(crate) struct Columns<K> {
    pub(crate) keys: Buffer<K>,
    pub(crate) counts: Buffer<u64>,
}

impl<K: Key> Columns<K> {
    pub(crate) fn new(len: usize, has_counts: bool) -> Result<Self> {
        let counts = Buffer::new(if has_counts { len } else { 0 })?;
        Ok(Columns { keys: Buffer::new(len)?, counts })
    }
}

/// Merges the sequences in `a`, which end at `ends`, into one sequence, with `b` as
/// scratch. Returns whether the result is in `b`, and its length. A key must occur
/// at most once in a sequence. `ends` is empty afterwards.
pub(crate) fn merge_all<K: Key>(
    a: &mut Columns<K>,
    b: &mut Columns<K>,
    ends: &mut Vec<usize>,
) -> (bool, usize) {
    let (mut from, mut to) = (a, b);
    let mut in_b = false;
    while ends.len() > 1 {
        let mut start = 0;
        let mut written = 0;
        let mut pairs = 0;
        for index in (0..ends.len()).step_by(2) {
            let middle = ends[index];
            let end = ends.get(index + 1).copied().unwrap_or(middle);
            written += if from.counts.is_empty() {
                let out = &mut to.keys[written..];
                merge(&from.keys[start..middle], &from.keys[middle..end], out)
            } else {
                let keys = &mut to.keys[written..];
                let counts = &mut to.counts[written..];
                let a = (&from.keys[start..middle], &from.counts[start..middle]);
                let b = (&from.keys[middle..end], &from.counts[middle..end]);
                merge_counted(a, b, (keys, counts))
            };
            ends[pairs] = written;
            pairs += 1;
            start = end;
        }
        ends.truncate(pairs);
        std::mem::swap(&mut from, &mut to);
        in_b = !in_b;
    }
    (in_b, ends.pop().unwrap_or(0))
}

/// Merges two sequences to the start of `out`, which has room for both. Returns the number of
/// keys. The loop has no branch that depends on keys.
fn merge<K: Key>(a: &[K], b: &[K], out: &mut [K]) -> usize {
    let out = &mut out[..a.len() + b.len()];
    let (mut i, mut j, mut at) = (0, 0, 0);
    while i < a.len() && j < b.len() {
        let (x, y) = (a[i], b[j]);
        out[at] = if x <= y { x } else { y };
        i += usize::from(x <= y);
        j += usize::from(y <= x);
        at += 1;
    }
    let rest = if i < a.len() { &a[i..] } else { &b[j..] };
    out[at..at + rest.len()].copy_from_slice(rest);
    at + rest.len()
}

/// As [`merge`], and adds up the counts of equal keys.
fn merge_counted<K: Key>(
    (a, a_counts): (&[K], &[u64]),
    (b, b_counts): (&[K], &[u64]),
    (out, counts): (&mut [K], &mut [u64]),
) -> usize {
    let len = a.len() + b.len();
    let (out, counts) = (&mut out[..len], &mut counts[..len]);
    let (a_counts, b_counts) = (&a_counts[..a.len()], &b_counts[..b.len()]);
    let (mut i, mut j, mut at) = (0, 0, 0);
    while i < a.len() && j < b.len() {
        let (x, y) = (a[i], b[j]);
        let (from_a, from_b) = (x <= y, y <= x);
        out[at] = if from_a { x } else { y };
        counts[at] = u64::from(from_a) * a_counts[i] + u64::from(from_b) * b_counts[j];
        i += usize::from(from_a);
        j += usize::from(from_b);
        at += 1;
    }
    let (rest, rest_counts) =
        if i < a.len() { (&a[i..], &a_counts[i..]) } else { (&b[j..], &b_counts[j..]) };
    out[at..at + rest.len()].copy_from_slice(rest);
    counts[at..at + rest.len()].copy_from_slice(rest_counts);
    at + rest.len()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn check<K: Key>(sequences: &[Vec<K>]) {
        let all: Vec<K> = sequences.concat();
        let mut expected = BTreeMap::new();
        for (index, key) in all.iter().enumerate() {
            *expected.entry(*key).or_insert(0) += index as u64;
        }
        for has_counts in [false, true] {
            let mut a = Columns::new(all.len(), has_counts).unwrap();
            let mut b = Columns::new(all.len(), has_counts).unwrap();
            a.keys.copy_from_slice(&all);
            for (index, count) in a.counts.iter_mut().enumerate() {
                *count = index as u64;
            }
            let mut ends = Vec::new();
            for sequence in sequences {
                ends.push(ends.last().unwrap_or(&0) + sequence.len());
            }
            let (in_b, len) = merge_all(&mut a, &mut b, &mut ends);
            let result = if in_b { b } else { a };
            assert_eq!(result.keys[..len], expected.keys().copied().collect::<Vec<_>>());
            if has_counts {
                let counts = expected.values().copied().collect::<Vec<_>>();
                assert_eq!(result.counts[..len], counts);
            }
        }
    }

    #[test]
    fn sequences_become_one() {
        check::<u64>(&[]);
        check::<u64>(&[vec![]]);
        check(&[vec![3u32, 5, 9]]);
        check(&[vec![1u64, 3, 5], vec![], vec![0, 3, u64::MAX], vec![3], vec![7, 8]]);
        check(&[vec![-5i64, -1, 4], vec![i64::MIN, -1, i64::MAX], vec![-1]]);
        let spread = |step: i32| (-50..50).map(|i| i * step).collect::<Vec<_>>();
        check(&[spread(1), spread(2), spread(3), spread(5), spread(7), spread(11), spread(13)]);
    }
}
