//! The properties of a device that launch shapes depend on, and a way to lower these limits
//! for tests.

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
    /// The environment variable that lowers the limits, so that tests meet the
    /// launch shapes of smaller devices. The value is a list such as
    /// `shared=99,multiprocessors=16,cluster=2,l2=0,sass=no` (shared memory of a block in
    /// KiB, the number of multiprocessors, the largest number of blocks in a cluster, the size of
    /// the second-level cache in KiB, and whether kernels compiled for the device are used instead
    /// of PTX). Results of operators must not change with it.
    pub(crate) const VARIABLE: &str = "SPEC_CUDA_LIMITS";
    /// Shared memory of a block, in bytes, that every supported device has.
    const MIN_SHARED: u32 = 99 * 1024;

    /// Whether a kernel may be launched while the previous kernel of the stream still runs.
    pub(crate) fn has_dependent_launches(&self) -> bool {
        self.compute >= (9, 0)
    }

    /// The limits, lowered as the environment variable asks.
    pub(crate) fn lowered_by_env(self) -> Result<Self, String> {
        match std::env::var(Self::VARIABLE) {
            Ok(list) => self.lowered(&list),
            Err(_) => Ok(self),
        }
    }

    fn lowered(mut self, list: &str) -> Result<Self, String> {
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

    const H100: Limits = Limits {
        compute: (9, 0),
        multiprocessors: 132,
        shared: 227 * 1024,
        cluster: 16,
        l2: 50 << 20,
        sass: true,
    };

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
