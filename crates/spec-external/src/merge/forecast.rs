//! The order in which a merge needs the blocks of runs.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::Key;
use crate::run::Run;

/// A block to read.
pub(crate) struct Task<K> {
    /// The position in the order of all blocks, from 0.
    pub(crate) number: u64,
    pub(crate) run: usize,
    /// The position in the run, from 0.
    pub(crate) block: usize,
    /// The number of keys in the block.
    pub(crate) len: usize,
    /// The smallest key of all later blocks; `None` for the last block.
    pub(crate) bound: Option<K>,
}

/// An iterator over the blocks of runs in the order of their first keys.
pub(crate) struct Forecast<'a, K> {
    runs: &'a [Run<K>],
    /// The next block of every run that has more blocks: its first key, its run, its position.
    next: BinaryHeap<Reverse<(K, usize, usize)>>,
    number: u64,
}

impl<'a, K: Key> Forecast<'a, K> {
    pub(crate) fn new(runs: &'a [Run<K>]) -> Self {
        let firsts = runs.iter().enumerate();
        let next = firsts.filter_map(|(run, r)| Some(Reverse((r.heads.first()?.first, run, 0))));
        Forecast { runs, next: next.collect(), number: 0 }
    }
}

impl<K: Key> Iterator for Forecast<'_, K> {
    type Item = Task<K>;

    fn next(&mut self) -> Option<Task<K>> {
        let Reverse((_, run, block)) = self.next.pop()?;
        let source = &self.runs[run];
        if let Some(head) = source.heads.get(block + 1) {
            self.next.push(Reverse((head.first, run, block + 1)));
        }
        self.number += 1;
        Some(Task {
            number: self.number - 1,
            run,
            block,
            len: source.block_len(block),
            bound: self.next.peek().map(|Reverse((first, ..))| *first),
        })
    }
}
