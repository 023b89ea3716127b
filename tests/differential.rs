//! Every operator on every device against the plain sequential loop, on random
//! cases: odd sizes and strides, NaN and infinities, tokens out of range, bad
//! offsets, ragged and empty batches.

mod common;

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

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use spec::Handle;

// The contents of a case: its sizes are what proptest draws and shrinks.
use common::random::Random;

/// Runs `check` on cases of `strategy`, on every device. `SPEC_CASES` sets how
/// many (default 256); regressions are not kept in files, the seed is printed.
/// Many cases are divided among threads, each with a handle of its own.
fn on_every_device<S>(strategy: &S, check: impl Fn(&Handle, &S::Value) -> spec::Result<()> + Sync)
where
    S: Strategy + Clone + Send,
    S::Value: std::fmt::Debug,
{
    let cases = std::env::var("SPEC_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(256u32);
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as u32;
    let threads = (cases / CASES_A_THREAD).clamp(1, cores);
    for handle in common::handles() {
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let (strategy, check, device) = (strategy.clone(), &check, handle.device());
                let cases = cases / threads + u32::from(thread < cases % threads);
                scope.spawn(move || {
                    let handle = device.to_string().parse().expect("it was opened a moment ago");
                    run(&handle, cases, &strategy, check);
                });
            }
        });
    }
}

/// Fewer are not worth a thread.
const CASES_A_THREAD: u32 = 1000;

fn run<S: Strategy>(
    handle: &Handle,
    cases: u32,
    strategy: &S,
    check: impl Fn(&Handle, &S::Value) -> spec::Result<()>,
) where
    S::Value: std::fmt::Debug,
{
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let outcome = TestRunner::new(config).run(strategy, |case| {
        check(handle, &case).map_err(|error| TestCaseError::fail(error.to_string()))
    });
    if let Err(error) = outcome {
        panic!("on {}: {error}", handle.device());
    }
}
