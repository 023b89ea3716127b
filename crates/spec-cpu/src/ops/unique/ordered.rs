//! Keys that ascend or descend as they come: repeats are dropped, and nothing is sorted.

use rayon::prelude::*;

use super::key::Key;
use super::pieces::{Output, write};

/// Keys of a chunk.
pub(super) const CHUNK: usize = 64 * 1024;

/// Writes the distinct keys if the keys ascend or descend; returns whether they do. `distinct` has
/// a word for each chunk. Keys in no order are mostly recognised after a few of them.
pub(super) fn settle<K: Key>(keys: &[K], distinct: &mut [u64], output: &mut Output<'_, K>) -> bool {
    let (Some(first), Some(last)) = (keys.first(), keys.last()) else { return true };
    if first <= last {
        settle_as::<K, false>(keys, distinct, output)
    } else {
        settle_as::<K, true>(keys, distinct, output)
    }
}

fn settle_as<K: Key, const DESCENDING: bool>(
    keys: &[K],
    distinct: &mut [u64],
    output: &mut Output<'_, K>,
) -> bool {
    let in_order = keys.par_chunks(CHUNK).zip(distinct.par_iter_mut()).enumerate().all(
        |(index, (chunk, distinct))| {
            // The chunk and the key before it, so that borders between chunks are compared too.
            let start = (index * CHUNK).saturating_sub(1);
            let wide = &keys[start..index * CHUNK + chunk.len()];
            *distinct = u64::from(index == 0);
            let mut at = 0;
            while at + 1 < wide.len() {
                let block = &wide[at..wide.len().min(at + BLOCK + 1)];
                let mut wrong = false;
                let mut changes = 0;
                for two in block.windows(2) {
                    wrong |= if DESCENDING { two[0] < two[1] } else { two[0] > two[1] };
                    changes += u64::from(two[0] != two[1]);
                }
                if wrong {
                    return false;
                }
                *distinct += changes;
                at += BLOCK;
            }
            true
        },
    );
    if !in_order {
        return false;
    }
    let total = distinct.iter().sum::<u64>() as usize;
    let counts = output.counts.as_deref_mut().map(|counts| &mut counts[..total]);
    write_chunks::<K, DESCENDING>(keys, 0, distinct, &mut output.keys[..total], counts);
    output.count = total;
    true
}

/// Writes the runs of equal keys that start in the chunks from `first` on. `distinct` is the number
/// of such runs for each of the chunks. Splits the chunks in halves, which two threads take, down
/// to single chunks.
fn write_chunks<K: Key, const DESCENDING: bool>(
    keys: &[K],
    first: usize,
    distinct: &[u64],
    unique: &mut [K],
    mut counts: Option<&mut [u64]>,
) {
    if unique.is_empty() {
        return;
    }
    if distinct.len() > 1 {
        let (left, right) = distinct.split_at(distinct.len() / 2);
        let lower = if DESCENDING { right } else { left };
        let middle = lower.iter().sum::<u64>() as usize;
        let (unique, upper) = unique.split_at_mut(middle);
        let (counts, upper_counts) = match counts {
            Some(counts) => {
                let (counts, upper) = counts.split_at_mut(middle);
                (Some(counts), Some(upper))
            }
            None => (None, None),
        };
        let middle = first + left.len();
        let (a, b) = if DESCENDING { (middle, first) } else { (first, middle) };
        let (a_distinct, b_distinct) = if DESCENDING { (right, left) } else { (left, right) };
        rayon::join(
            || write_chunks::<K, DESCENDING>(keys, a, a_distinct, unique, counts),
            || write_chunks::<K, DESCENDING>(keys, b, b_distinct, upper, upper_counts),
        );
        return;
    }
    let end = keys.len().min((first + 1) * CHUNK);
    let start = first * CHUNK;
    // How many keys belong to a run that an earlier chunk has begun.
    let begun = match start.checked_sub(1) {
        Some(before) => keys[start..end].iter().take_while(|key| **key == keys[before]).count(),
        None => 0,
    };
    let chunk = &keys[start + begun..end];
    // No run starts here if another thread has changed the keys since they were counted.
    let Some(&last) = chunk.last() else { return };
    if DESCENDING {
        write(chunk.iter().rev().copied(), unique, counts.as_deref_mut());
    } else {
        write(chunk.iter().copied(), unique, counts.as_deref_mut());
    }
    if let Some(counts) = counts {
        let slot = if DESCENDING { 0 } else { counts.len() - 1 };
        let beyond = keys[end..].partition_point(|key| *key == last);
        counts[slot] = counts[slot].wrapping_add(beyond as u64);
    }
}

/// Keys that are compared before the loop asks whether any pair was out of order.
const BLOCK: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_change_after_they_were_counted_stay_in_their_slots() {
        let n = 2 * CHUNK + 10;
        let sets = [1, 2, 3, CHUNK + 1, n].map(|run| (0..n).map(move |i| (i / run) as u64));
        let sets = sets.map(Iterator::collect::<Vec<u64>>);
        for (counted, written) in sets.iter().flat_map(|a| sets.iter().map(move |b| (a, b))) {
            let starts = |chunk: usize| {
                let at = chunk * CHUNK..n.min((chunk + 1) * CHUNK);
                at.filter(|&i| i == 0 || counted[i] != counted[i - 1]).count() as u64
            };
            let distinct = [0, 1, 2].map(starts);
            let total = distinct.iter().sum::<u64>() as usize;
            let (mut unique, mut counts) = (vec![0; total], vec![0; total]);
            write_chunks::<_, false>(written, 0, &distinct, &mut unique, Some(&mut counts));
            write_chunks::<_, true>(written, 0, &distinct, &mut unique, None);
            if counted == written {
                let all = (0..total as u64).rev();
                assert!(unique.iter().copied().eq(all) && counts.iter().sum::<u64>() == n as u64);
            }
        }
    }
}
