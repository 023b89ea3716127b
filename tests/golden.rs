//! Every golden vector on every backend that is there.
//!
//! `SPEC_GOLDEN_DIR` reads the vectors from another folder, `SPEC_REQUIRE`
//! makes a missing backend a failure.

#![cfg(feature = "command")]

mod common;

use std::fmt::Write;

use spec::conformance::{self, Golden, Report};

/// Random cases of each operator: enough to meet every option and each kind of
/// bad data, and quick.
const RANDOM_CASES: usize = 60;

fn assert_clean(device: spec::Device, reports: &[Report]) {
    let mut problems = String::new();
    for report in reports {
        for failure in &report.failures {
            _ = writeln!(problems, "{device}: {}: {failure}", report.operator);
        }
    }
    assert!(problems.is_empty(), "\n{problems}");
}

#[test]
fn golden_vectors() {
    for handle in common::handles() {
        let reports = conformance::golden(&handle, &Golden::from_env(), |_| {}).unwrap();
        assert!(reports.iter().all(|report| report.cases > 0));
        assert_clean(handle.device(), &reports);
    }
}

#[test]
fn random_cases() {
    for handle in common::handles() {
        let reports = conformance::random(&handle, 1, RANDOM_CASES, |_| {}).unwrap();
        assert_clean(handle.device(), &reports);
    }
}
