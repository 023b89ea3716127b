//! Every operator on every device against the plain sequential loop, on random
//! cases: odd sizes and strides, NaN and infinities, tokens out of range, bad
//! offsets, ragged and empty batches.

mod common;
mod reference;

#[path = "differential/deduplicate_topk.rs"]
mod deduplicate_topk;
#[path = "differential/ngram.rs"]
mod ngram;
#[path = "differential/rejection_sample.rs"]
mod rejection_sample;
#[path = "differential/topk_router.rs"]
mod topk_router;
#[path = "differential/unique.rs"]
mod unique;

use proptest::test_runner::{Config, TestRunner};
use spec::Handle;

/// Runs `check` on cases of `strategy`, on every device. `SPEC_CASES` sets how
/// many (default 256); regressions are not kept in files, the seed is printed.
fn on_every_device<S>(strategy: S, check: impl Fn(&Handle, &S::Value) -> spec::Result<()>)
where
    S: proptest::strategy::Strategy + Clone,
    S::Value: std::fmt::Debug,
{
    let cases = std::env::var("SPEC_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(256);
    for handle in common::handles() {
        let config = Config { cases, failure_persistence: None, ..Config::default() };
        let outcome = TestRunner::new(config).run(&strategy, |case| {
            check(&handle, &case)
                .map_err(|error| proptest::test_runner::TestCaseError::fail(error.to_string()))
        });
        if let Err(error) = outcome {
            panic!("on {}: {error}", handle.device());
        }
    }
}

/// Pseudo-random numbers for the contents of a case: its sizes are what
/// proptest draws and shrinks.
#[derive(Clone)]
struct Random(u64);

impl Random {
    /// SplitMix64.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Below `n`, or 0 where `n` is 0.
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    /// In [0, 1).
    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 24) as f32
    }

    /// True once in `n` times.
    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// Something that is no ordinary number.
    fn odd_float(&mut self) -> f32 {
        let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e-40, -0.0, f32::MAX, -1.0];
        odd[self.below(odd.len())]
    }

    fn many<T>(&mut self, n: usize, mut f: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..n).map(|_| f(self)).collect()
    }
}
