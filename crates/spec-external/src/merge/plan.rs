//! Cuts blocks that have been read into pieces that threads merge independently.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use super::Loaded;
use super::forecast::Task;
use crate::Key;

/// A range of the keys of a block.
pub(crate) struct Slice<'a, K: Key> {
    pub(crate) run: usize,
    pub(crate) range: Range<usize>,
    pub(crate) loaded: Arc<Loaded<'a, K>>,
}

impl<K: Key> Slice<'_, K> {
    fn keys(&self) -> &[K] {
        &self.loaded.keys()[self.range.clone()]
    }
}

/// All keys of all runs in an interval: slices in the order of the runs, and
/// within a run in ascending order.
pub(crate) struct Piece<'a, K: Key> {
    /// The position among the pieces, from 0.
    pub(crate) number: u64,
    pub(crate) slices: Vec<Slice<'a, K>>,
}

/// The blocks that have been read, and the keys in them that are not in a piece yet.
pub(crate) struct Planner<'a, K: Key> {
    /// For each run, the slices that are not in a piece yet.
    runs: Vec<VecDeque<Slice<'a, K>>>,
    /// Blocks that were read before an earlier block.
    early: BTreeMap<u64, (Task<K>, Arc<Loaded<'a, K>>)>,
    /// The number of the next block.
    next: u64,
    /// The number of blocks taken since pieces were last cut.
    fresh: usize,
    batch: usize,
    piece: usize,
    pieces: u64,
}

impl<'a, K: Key> Planner<'a, K> {
    /// A planner that cuts whenever it has taken `batch` more blocks, into pieces of at most
    /// `piece` keys.
    pub(crate) fn new(runs: usize, batch: usize, piece: usize) -> Self {
        Planner {
            runs: (0..runs).map(|_| VecDeque::new()).collect(),
            early: BTreeMap::new(),
            next: 0,
            fresh: 0,
            batch,
            piece,
            pieces: 0,
        }
    }

    /// Takes a block; returns the pieces that can be merged now. `None` where the keys
    /// of a run do not ascend, so that they cannot be divided.
    pub(crate) fn take(
        &mut self,
        task: Task<K>,
        loaded: Arc<Loaded<'a, K>>,
    ) -> Option<Vec<Piece<'a, K>>> {
        self.early.insert(task.number, (task, loaded));
        let mut pieces = Vec::new();
        while let Some((task, loaded)) = self.early.remove(&self.next) {
            self.next += 1;
            self.fresh += 1;
            let slice = Slice { run: task.run, range: 0..task.len, loaded };
            self.runs[task.run].push_back(slice);
            if self.fresh >= self.batch || task.bound.is_none() {
                self.fresh = 0;
                let slices = self.cut_off(task.bound);
                self.divide(slices, &mut pieces)?;
            }
        }
        Some(pieces)
    }

    /// Removes the keys below `bound` from every run, and returns them.
    fn cut_off(&mut self, bound: Option<K>) -> Vec<Slice<'a, K>> {
        let mut slices = Vec::new();
        for run in &mut self.runs {
            while let Some(first) = run.front_mut() {
                let below = match bound {
                    Some(bound) => first.keys().partition_point(|key| *key < bound),
                    None => first.range.len(),
                };
                if below == first.range.len() {
                    slices.extend(run.pop_front());
                    continue;
                }
                if below > 0 {
                    let middle = first.range.start + below;
                    let range = first.range.start..middle;
                    slices.push(Slice { run: first.run, range, loaded: first.loaded.clone() });
                    first.range.start = middle;
                }
                break;
            }
        }
        slices
    }

    /// Halves slices by key until each part is small enough for a piece. `None` where a half would
    /// be empty, which cannot happen if the keys of each slice ascend.
    fn divide(&mut self, slices: Vec<Slice<'a, K>>, pieces: &mut Vec<Piece<'a, K>>) -> Option<()> {
        // A stack of parts: the last part is the next to be divided.
        let mut left = vec![slices];
        while let Some(slices) = left.pop() {
            let keys: usize = slices.iter().map(|slice| slice.range.len()).sum();
            if keys == 0 {
                continue;
            }
            let longest = slices.iter().map(|slice| slice.range.len()).max().unwrap_or(0);
            if keys <= self.piece || longest < 2 {
                pieces.push(Piece { number: self.pieces, slices });
                self.pieces += 1;
                continue;
            }
            let (below, above) = halves(slices, keys);
            if below.is_empty() || above.is_empty() {
                return None;
            }
            left.extend([above, below]);
        }
        Some(())
    }
}

/// The slices with the keys below the [`pivot`], and those with the other keys.
fn halves<'a, K: Key>(
    slices: Vec<Slice<'a, K>>,
    keys: usize,
) -> (Vec<Slice<'a, K>>, Vec<Slice<'a, K>>) {
    let pivot = pivot(&slices, keys);
    let (mut below, mut above) = (Vec::new(), Vec::new());
    for slice in slices {
        let middle = slice.keys().partition_point(|key| *key < pivot);
        let Slice { run, range, loaded } = slice;
        let middle = range.start + middle;
        if range.start < middle {
            below.push(Slice { run, range: range.start..middle, loaded: loaded.clone() });
        }
        if middle < range.end {
            above.push(Slice { run, range: middle..range.end, loaded });
        }
    }
    (below, above)
}

/// A key with about half of all keys below it, and with at least one key below it: the weighted
/// median of the slices' middle keys.
fn pivot<K: Key>(slices: &[Slice<'_, K>], keys: usize) -> K {
    let mut middles: Vec<(K, usize)> = slices
        .iter()
        .filter(|slice| slice.range.len() > 1)
        .map(|slice| (slice.keys()[slice.range.len() / 2], slice.range.len()))
        .collect();
    middles.sort_unstable();
    let mut before = 0;
    for &(key, len) in &middles {
        before += len;
        if before * 2 >= keys {
            return key;
        }
    }
    middles.last().map_or(K::MAX, |(key, _)| *key)
}
