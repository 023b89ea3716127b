//! How large a cluster may be: what the device runs, asked for each kernel and shape and
//! remembered.
//!
//! CUDA promises clusters of 8 blocks where there are any, but not for every kernel on every part of
//! a device: fewer multiprocessors may be left in a group of them, by the chip's yield, in a slice
//! of it (MIG) or to a process that shares it (MPS). A launch of a cluster that the device cannot
//! run fails, so every operator asks before it chooses.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use cudarc::driver::sys;
use spec_core::Result;

use crate::Cuda;
use crate::gpu::Gpu;
use crate::launch::{Function, NO_ATTRIBUTES, Shape};

/// The most blocks of a cluster on any device.
pub(crate) const MAX_CLUSTER: u32 = 16;

/// What shared memory is rounded up to before the driver is asked, in bytes, so that few questions
/// are different.
const SHARED_STEP: u32 = 8 * 1024;

/// What is asked of the driver once: a kernel, threads of a block, its dynamic shared memory in
/// bytes, blocks of a cluster.
type Question = (usize, u32, u32, u32);

/// How many clusters of a kernel and shape run at a time.
#[derive(Default)]
pub(crate) struct ActiveClusters(RwLock<HashMap<Question, u32>>);

impl ActiveClusters {
    fn known(&self, question: Question) -> Option<u32> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(&question).copied()
    }

    fn learn(&self, question: Question, clusters: u32) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(question, clusters);
    }
}

impl Cuda {
    /// How many clusters of this shape the device runs at a time. 0: it has none of the size, or
    /// `SPEC_CUDA_LIMITS` forbids it.
    ///
    /// # Errors
    /// Status 1 when the device's context cannot be made current.
    pub(crate) fn active_clusters(&self, function: &Function, shape: Shape) -> Result<u32> {
        let limits = self.limits();
        if shape.cluster > limits.cluster {
            return Ok(0);
        }
        let shared = shape.shared.next_multiple_of(SHARED_STEP).min(function.dynamic);
        let shape = Shape { shared: shared.max(shape.shared), ..shape };
        let question = (function.raw.addr(), shape.block, shape.shared, shape.cluster);
        let gpu = self.gpu();
        if let Some(clusters) = gpu.active_clusters.known(question) {
            return Ok(clusters);
        }
        let clusters = gpu.ask_active_clusters(function, shape)?;
        gpu.active_clusters.learn(question, clusters);
        Ok(clusters)
    }

    /// How many blocks of a cluster the device runs of a kernel in this shape: `wanted` or the
    /// largest half of it, of that and so on; 1 where it runs no cluster.
    ///
    /// # Errors
    /// Status 1 when the device's context cannot be made current.
    pub fn cluster_at_most(&self, function: &Function, shape: Shape, wanted: u32) -> Result<u32> {
        largest(wanted, |blocks| self.active_clusters(function, shape.cluster(blocks)))
    }

    /// What `choose` makes for the largest cluster that the device runs. `choose` is told the most
    /// blocks of a cluster and names the kernel, the shape, whose cluster is no larger, and what
    /// else it chose.
    ///
    /// # Errors
    /// Those of `choose`; as [`cluster_at_most`](Self::cluster_at_most).
    pub(crate) fn within_clusters<T>(
        &self,
        choose: impl Fn(u32) -> Result<(Function, Shape, T)>,
    ) -> Result<(Function, Shape, T)> {
        let held = |(function, shape, _): &(Function, Shape, T)| {
            Ok((shape.cluster, self.cluster_at_most(function, *shape, shape.cluster)?))
        };
        first_held(self.limits().cluster, choose, held)
    }
}

/// `wanted` halved until `clusters`, of so many blocks, run; 1 is no cluster.
fn largest(wanted: u32, clusters: impl Fn(u32) -> Result<u32>) -> Result<u32> {
    let mut blocks = wanted;
    while blocks > 1 && clusters(blocks)? == 0 {
        blocks /= 2;
    }
    Ok(blocks.max(1))
}

/// The first choice whose cluster is held whole; `held` says how many blocks it has, and how many of
/// them the device runs.
fn first_held<T>(
    mut most: u32,
    choose: impl Fn(u32) -> Result<T>,
    held: impl Fn(&T) -> Result<(u32, u32)>,
) -> Result<T> {
    loop {
        let choice = choose(most)?;
        let (blocks, runs) = held(&choice)?;
        if runs >= blocks {
            return Ok(choice);
        }
        // Fewer than `most`, so this ends, at the latest where there are no clusters.
        most = runs;
    }
}

impl Gpu {
    fn ask_active_clusters(&self, function: &Function, shape: Shape) -> Result<u32> {
        let _current = self.enter()?;
        let one = Shape { grid: [shape.cluster, 1], ..shape };
        let mut clusters = 0;
        let mut attributes = NO_ATTRIBUTES;
        let config = one.config(std::ptr::null_mut(), false, &mut attributes);
        // SAFETY: the function is loaded in the current context; all pointers are to locals that
        // outlive the call.
        let code =
            unsafe { sys::cuOccupancyMaxActiveClusters(&mut clusters, function.raw, &config) };
        // Of a size that the device does not have.
        if code != sys::CUresult::CUDA_SUCCESS {
            return Ok(0);
        }
        Ok(u32::try_from(clusters).unwrap_or(0))
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
        // Asked for at most `most`, it takes all of them but never 16.
        let choose = |most: u32| Ok(most.min(8));
        for (held, expected) in [(16, 8), (4, 4), (2, 2), (1, 1)] {
            let chosen = first_held(16, choose, |&blocks| {
                Ok((blocks, largest(blocks, |n| Ok(u32::from(n <= held)))?))
            });
            assert_eq!(chosen, Ok(expected), "held {held}");
        }
    }
}
