//! How large a cluster the device can run, asked of the driver for each kernel and shape, and
//! cached.
//!
//! A device with clusters runs clusters of 8 blocks in general, but not for every kernel and not
//! in every configuration: a group of multiprocessors (GPC) may have fewer of them because of the
//! chip's yield, in a slice of the device (MIG), or for a process that shares the device (MPS). A
//! launch fails if the device cannot run its cluster, so every operator asks before choosing.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use cudarc::driver::sys;
use spec_core::Result;

use crate::Cuda;
use crate::gpu::Gpu;
use crate::launch::{Code, Function, NO_ATTRIBUTES, Shape};

/// The largest number of blocks in a cluster on any device.
pub(crate) const MAX_CLUSTER: u32 = 16;

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
    fn known(&self, question: Question) -> Option<u32> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(&question).copied()
    }

    fn learn(&self, question: Question, clusters: u32) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(question, clusters);
    }
}

impl Cuda {
    /// How many clusters of this shape the device runs at a time. 0 means that the device cannot
    /// run a cluster of this size, or that `SPEC_CUDA_LIMITS` forbids this size.
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
        let question = (function.name.as_ptr().addr(), shape.block, shape.shared, shape.cluster);
        let gpu = self.gpu();
        if let Some(clusters) = gpu.active_clusters.known(question) {
            return Ok(clusters);
        }
        let clusters = gpu.ask_active_clusters(function, shape)?;
        gpu.active_clusters.learn(question, clusters);
        Ok(clusters)
    }

    /// The largest cluster, in blocks, that the device runs for a kernel in this shape: `wanted`,
    /// halved until the device runs a cluster of that size; 1 if the device runs no cluster.
    ///
    /// # Errors
    /// Status 1 when the device's context cannot be made current.
    pub fn cluster_at_most(&self, function: &Function, shape: Shape, wanted: u32) -> Result<u32> {
        largest(wanted, |blocks| self.active_clusters(function, shape.cluster(blocks)))
    }

    /// The choice that `choose` makes for the largest cluster that the device runs. `choose` takes
    /// the largest permitted number of blocks in a cluster, and returns the kernel, a shape whose
    /// cluster is not larger than permitted, and any further result.
    ///
    /// # Errors
    /// The errors of `choose` and of [`cluster_at_most`](Self::cluster_at_most).
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
fn first_held<T>(
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

impl Gpu {
    fn ask_active_clusters(&self, function: &Function, shape: Shape) -> Result<u32> {
        let raw = match function.code {
            Code::Loaded { raw, .. } => raw,
            Code::Unloaded(facts) => return Ok(self.limits().active_clusters(facts, shape)),
        };
        let _current = self.enter()?;
        let one = Shape { grid: [shape.cluster, 1], ..shape };
        let mut clusters = 0;
        let mut attributes = NO_ATTRIBUTES;
        let config = one.config(std::ptr::null_mut(), false, &mut attributes);
        // SAFETY: the function is loaded in the current context; all pointers are to locals that
        // outlive the call.
        let code = unsafe { sys::cuOccupancyMaxActiveClusters(&mut clusters, raw, &config) };
        // The device cannot run a cluster of this size.
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
