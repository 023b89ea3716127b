//! How large a cluster the device can run, asked of the driver for each kernel and shape, and
//! cached.
//!
//! A device with clusters runs clusters of 8 blocks in general, but not for every kernel and not
//! in every configuration: a group of multiprocessors (GPC) may have fewer of them because of the
//! chip's yield, in a slice of the device (MIG), or for a process that shares the device (MPS). A
//! launch fails if the device cannot run its cluster, so every operator asks before choosing.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use spec_core::Result;

use crate::function::Function;
use crate::shape::Shape;

/// Shared memory is rounded up to a multiple of this many bytes before the driver is asked, so that
/// similar shapes share one cached answer.
const SHARED_STEP: u32 = 8 * 1024;

/// The key of a cached answer: the address of the kernel's name, the threads of a block, the dynamic shared
/// memory of a block in bytes, the blocks of a cluster.
type Question = (usize, u32, u32, u32);

/// How many clusters run at a time, for each kernel and shape that was asked for.
#[derive(Default)]
pub(crate) struct ActiveClusters(RwLock<HashMap<Question, u32>>);

impl ActiveClusters {
    /// The shape that the driver is asked about, for a shape that is to be launched.
    pub(crate) fn rounded(function: &Function, shape: Shape) -> Shape {
        let shared = shape.shared.next_multiple_of(SHARED_STEP).min(function.dynamic);
        Shape { shared: shared.max(shape.shared), ..shape }
    }

    /// The cached answer, or that of `ask`, which is given the rounded shape.
    pub(crate) fn get(
        &self,
        function: &Function,
        shape: Shape,
        ask: impl FnOnce(Shape) -> Result<u32>,
    ) -> Result<u32> {
        let shape = Self::rounded(function, shape);
        let question = (function.name.as_ptr().addr(), shape.block, shape.shared, shape.cluster);
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner).get(&question).copied();
        if let Some(clusters) = known {
            return Ok(clusters);
        }
        let clusters = ask(shape)?;
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(question, clusters);
        Ok(clusters)
    }
}

/// `wanted`, halved until `clusters` of the result is not 0, or until the result is 1, which is
/// no cluster.
pub(crate) fn largest(wanted: u32, clusters: impl Fn(u32) -> Result<u32>) -> Result<u32> {
    let mut blocks = wanted;
    while blocks > 1 && clusters(blocks)? == 0 {
        blocks /= 2;
    }
    Ok(blocks.max(1))
}

/// The first choice whose cluster the device runs. For a choice, `held` returns the number of
/// blocks in the choice's cluster, and the number of blocks in the largest cluster that the device
/// runs for the choice.
pub(crate) fn first_held<T>(
    mut max: u32,
    choose: impl Fn(u32) -> Result<T>,
    held: impl Fn(&T) -> Result<(u32, u32)>,
) -> Result<T> {
    loop {
        let choice = choose(max)?;
        let (blocks, runs) = held(&choice)?;
        if runs >= blocks {
            return Ok(choice);
        }
        // `runs` is less than `max`, so the loop ends: at the latest with 1, no cluster.
        max = runs;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_is_halved_until_the_device_runs_it() {
        let on = |held: u32| move |blocks: u32| Ok(u32::from(blocks <= held));
        for (wanted, held, expected) in
            [(16, 16, 16), (16, 8, 8), (16, 3, 2), (8, 16, 8), (8, 1, 1), (4, 0, 1), (1, 0, 1)]
        {
            assert_eq!(largest(wanted, on(held)), Ok(expected), "{wanted} on {held}");
        }
    }

    #[test]
    fn choices_are_made_again_for_smaller_clusters() {
        // Takes as many blocks as it may, but never more than 8.
        let choose = |max: u32| Ok(max.min(8));
        for (held, expected) in [(16, 8), (4, 4), (2, 2), (1, 1)] {
            let chosen = first_held(16, choose, |&blocks| {
                Ok((blocks, largest(blocks, |n| Ok(u32::from(n <= held)))?))
            });
            assert_eq!(chosen, Ok(expected), "held {held}");
        }
    }
}
