//! What launch shapes depend on, and a way to lower it for tests.

/// Properties of a device that operators choose their launch shapes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Compute capability, such as (9, 0).
    pub compute: (u32, u32),
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// The most shared memory of a block, after opting in, in bytes.
    pub shared: u32,
    /// Whether blocks can form clusters that read each other's shared memory.
    pub clusters: bool,
    /// Whether machine code is used where there is some, rather than PTX.
    pub sass: bool,
}

impl Limits {
    /// The environment variable that lowers limits, so that tests meet the
    /// launch shapes of smaller devices: a list such as
    /// `shared=99,multiprocessors=16,clusters=no,sass=no` (shared memory in
    /// KiB). Results must not change.
    pub(crate) const VARIABLE: &str = "SPEC_CUDA_LIMITS";
    /// What every supported device has.
    const MIN_SHARED: u32 = 99 * 1024;

    /// Lowered as the environment asks.
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
                ("clusters", "no", _) => self.clusters = false,
                ("sass", "no", _) => self.sass = false,
                _ => return Err(bad()),
            }
        }
        Ok(self)
    }
}

const EXAMPLE: &str = "shared=99,multiprocessors=16,clusters=no,sass=no";

#[cfg(test)]
mod tests {
    use super::*;

    const H100: Limits = Limits {
        compute: (9, 0),
        multiprocessors: 132,
        shared: 227 * 1024,
        clusters: true,
        sass: true,
    };

    #[test]
    fn limits_are_only_lowered() {
        assert_eq!(H100.lowered(""), Ok(H100));
        let raised = H100.lowered("shared=1000,multiprocessors=1000");
        assert_eq!(raised, Ok(H100));
        let lowered = Limits {
            multiprocessors: 16,
            shared: Limits::MIN_SHARED,
            clusters: false,
            sass: false,
            ..H100
        };
        assert_eq!(H100.lowered(EXAMPLE), Ok(lowered));
        assert_eq!(H100.lowered("shared=1"), Ok(Limits { shared: Limits::MIN_SHARED, ..H100 }));
    }

    #[test]
    fn what_is_no_limit_is_refused() {
        for list in ["shared", "shared=", "shared=-1", "clusters=yes", "warps=3", "sass=no,x"] {
            assert!(H100.lowered(list).is_err(), "{list}");
        }
    }
}
