//! The properties of a device that launch shapes depend on, and a way to lower these limits
//! for tests.

use crate::cubin::Facts;
use crate::shape::{MAX_CLUSTER, Shape};

/// Properties of a device that operators choose their launch shapes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Compute capability, such as (9, 0).
    pub compute: (u32, u32),
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// The largest shared memory of a block, after opting in, in bytes.
    pub shared: u32,
    /// The largest number of blocks in a cluster: a power of two, 1 on a device without clusters.
    /// The blocks of a cluster can read each other's shared memory. For some kernels the device may
    /// only run smaller clusters ([`Cuda::cluster_at_most`](crate::Cuda::cluster_at_most)).
    pub cluster: u32,
    /// The size of the device's second-level cache, in bytes.
    pub l2: u32,
    /// Whether machine code is preferred to PTX.
    pub sass: bool,
}

impl Limits {
    /// An H100 with the SXM5 socket.
    pub const H100: Limits = Limits {
        compute: (9, 0),
        multiprocessors: 132,
        shared: 227 * 1024,
        cluster: MAX_CLUSTER,
        l2: 50 << 20,
        sass: true,
    };
    /// An A100.
    pub const A100: Limits = Limits {
        compute: (8, 0),
        multiprocessors: 108,
        shared: 163 * 1024,
        cluster: 1,
        l2: 40 << 20,
        sass: true,
    };
    /// A GeForce RTX 4090.
    pub const RTX_4090: Limits = Limits {
        compute: (8, 9),
        multiprocessors: 128,
        shared: 99 * 1024,
        cluster: 1,
        l2: 72 << 20,
        sass: true,
    };

    /// The environment variable that lowers the limits, so that tests meet the
    /// launch shapes of smaller devices. The value is a list such as
    /// `shared=99,multiprocessors=16,cluster=2,l2=0,sass=no` (shared memory of a block in
    /// KiB, the number of multiprocessors, the largest number of blocks in a cluster, the size of
    /// the second-level cache in KiB, and whether kernels compiled for the device are used instead
    /// of PTX). Results of operators must not change with it.
    pub(crate) const VARIABLE: &str = "SPEC_CUDA_LIMITS";
    /// Shared memory of a block, in bytes, that every supported device has.
    pub(crate) const MIN_SHARED: u32 = 99 * 1024;

    /// Whether a kernel may be launched while the previous kernel of the stream still runs.
    pub(crate) fn has_dependent_launches(&self) -> bool {
        self.compute >= (9, 0)
    }

    /// The limits in words.
    pub(crate) fn facts(&self) -> Vec<(&'static str, String)> {
        vec![
            ("compute capability", format!("{}.{}", self.compute.0, self.compute.1)),
            ("multiprocessors", self.multiprocessors.to_string()),
            ("shared memory of a block", format!("{} KiB", self.shared / 1024)),
        ]
    }

    /// How many blocks of a kernel a multiprocessor holds.
    fn resident_blocks(&self, facts: Facts, shape: Shape) -> u32 {
        let threads = match self.compute {
            (8, 6 | 9) | (12, _) => 1536,
            _ => 2048,
        };
        // A multiprocessor keeps 1 KiB of shared memory for each block, and has 1 KiB more than a
        // block can have. It has 2^16 registers, of which a warp takes a multiple of 256.
        let shared = (self.shared + 1024) / (facts.shared + shape.shared + 1024);
        let warps = shape.block.div_ceil(32);
        let registers = (1 << 16) / ((facts.registers * 32).next_multiple_of(256).max(256) * warps);
        shared.min(registers).min(threads / shape.block.max(1)).min(32)
    }

    /// How many clusters of a kernel run at a time, in proportion to those of an H100 with 132
    /// multiprocessors. There, a cluster of more blocks leaves some multiprocessors idle, since a
    /// part of the device (GPC) has no multiple of its blocks.
    pub(crate) fn active_clusters(&self, facts: Facts, shape: Shape) -> u32 {
        const MEASURED: [&[(u32, u32)]; 2] = [
            &[(2, 66), (4, 30), (8, 15), (16, 7)],
            &[(2, 132), (3, 79), (4, 62), (5, 47), (6, 39), (7, 32), (8, 30), (16, 14)],
        ];
        let resident = self.resident_blocks(facts, shape);
        if resident == 0 || shape.cluster > self.cluster {
            return 0;
        }
        let blocks = resident * self.multiprocessors;
        if shape.cluster == 1 {
            return blocks;
        }
        // With more blocks a multiprocessor, as many of the idle ones are used as with two.
        let row = MEASURED[resident.min(2) as usize - 1];
        let measured = row.iter().find(|&&(size, _)| size >= shape.cluster);
        let &(size, clusters) = measured.unwrap_or(&row[row.len() - 1]);
        let used = size * clusters * resident / resident.min(2);
        used * self.multiprocessors / 132 / shape.cluster
    }

    /// The limits, lowered as the environment variable asks.
    pub(crate) fn lowered_by_env(self) -> Result<Self, String> {
        match std::env::var(Self::VARIABLE) {
            Ok(list) => self.lowered(&list),
            Err(_) => Ok(self),
        }
    }

    /// The limits, lowered by a list such as `shared=99,multiprocessors=16,cluster=2,l2=0,sass=no`.
    ///
    /// # Errors
    /// A sentence for what is no such list.
    pub fn lowered(mut self, list: &str) -> Result<Self, String> {
        for item in list.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let bad = || format!("`{item}` is no limit, expected `{EXAMPLE}` or parts of it");
            let (name, value) = item.split_once('=').ok_or_else(bad)?;
            match (name, value, value.parse::<u32>()) {
                ("shared", _, Ok(kib)) => {
                    let bytes = kib.saturating_mul(1024).max(Self::MIN_SHARED);
                    self.shared = self.shared.min(bytes);
                }
                ("multiprocessors", _, Ok(count)) => {
                    self.multiprocessors = self.multiprocessors.min(count.max(1));
                }
                ("cluster", _, Ok(blocks)) => {
                    // The size of a cluster is a power of two.
                    self.cluster = self.cluster.min(1 << blocks.max(1).ilog2());
                }
                ("l2", _, Ok(kib)) => self.l2 = self.l2.min(kib.saturating_mul(1024)),
                ("sass", "no", _) => self.sass = false,
                _ => return Err(bad()),
            }
        }
        Ok(self)
    }
}

const EXAMPLE: &str = "shared=99,multiprocessors=16,cluster=2,l2=0,sass=no";

#[cfg(test)]
mod tests {
    use super::*;

    const H100: Limits = Limits::H100;

    /// The clusters that run on an H100 at a time, for a kernel with two blocks a multiprocessor and
    /// one with a single block.
    #[test]
    fn clusters_are_those_that_were_measured() {
        let facts = |registers| Facts { registers, shared: 40 << 10 };
        let block = Shape::new(1, 512);
        for (registers, cluster, expected) in [
            (64, 16, 14),
            (64, 8, 30),
            (64, 4, 62),
            (64, 1, 264),
            (128, 16, 7),
            (128, 8, 15),
            (128, 2, 66),
            (128, 1, 132),
        ] {
            let clusters = H100.active_clusters(facts(registers), block.cluster(cluster));
            assert_eq!(clusters, expected, "{registers} registers, clusters of {cluster}");
        }
        let shared = block.shared(180 << 10).cluster(2);
        assert_eq!(H100.active_clusters(facts(64), shared), 66, "one block by its shared memory");
        assert_eq!(H100.active_clusters(facts(64), block.shared(227 << 10)), 0, "too much memory");
        assert_eq!(Limits::A100.active_clusters(facts(64), block.cluster(2)), 0, "no clusters");
    }

    #[test]
    fn limits_are_only_lowered() {
        assert_eq!(H100.lowered(""), Ok(H100));
        let raised = H100.lowered("shared=1000,multiprocessors=1000,cluster=32,l2=1000000");
        assert_eq!(raised, Ok(H100));
        let lowered = Limits {
            multiprocessors: 16,
            shared: Limits::MIN_SHARED,
            cluster: 2,
            l2: 0,
            sass: false,
            ..H100
        };
        assert_eq!(H100.lowered(EXAMPLE), Ok(lowered));
        assert_eq!(H100.lowered("shared=1"), Ok(Limits { shared: Limits::MIN_SHARED, ..H100 }));
        for (list, cluster) in [("cluster=0", 1), ("cluster=1", 1), ("cluster=7", 4)] {
            assert_eq!(H100.lowered(list), Ok(Limits { cluster, ..H100 }), "{list}");
        }
    }

    #[test]
    fn what_is_no_limit_is_refused() {
        for list in ["shared", "shared=", "shared=-1", "cluster=no", "warps=3", "sass=no,x"] {
            assert!(H100.lowered(list).is_err(), "{list}");
        }
    }
}
