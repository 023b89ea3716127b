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

// The contents of a case: its sizes are what proptest draws and shrinks.
use common::random::Random;

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
