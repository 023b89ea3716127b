//! Every operator on every backend of this machine: golden vectors, and random cases
//! against the plain sequential loops.
//!
//! `SPEC_GOLDEN_DIR` names another folder of vectors, `SPEC_CASES` sets the number of
//! random cases per operator, `SPEC_REQUIRE` makes a missing backend a failure.

use std::fmt::Write;

use spec_conformance::{Golden, Report, check_golden, check_random};

/// Random cases per operator: enough to meet every option and each kind of bad data,
/// and still quick.
const CASES: usize = 1000;
/// Random cases per operator on a software renderer, where each call is slow.
const CASES_OF_SOFTWARE: usize = 100;

fn assert_clean(device: spec::Device, reports: &[Report]) {
    let mut problems = String::new();
    for report in reports {
        let ran = report.cases > report.unsupported;
        assert!(ran, "{device}: {}: no case ran", report.operator);
        for failure in &report.failures {
            _ = writeln!(problems, "{device}: {}: {failure}", report.operator);
        }
    }
    assert!(problems.is_empty(), "\n{problems}");
}

#[test]
fn golden_vectors() {
    for handle in crate::common::handles() {
        let reports = check_golden(&handle, &Golden::from_env(), |_| {}).unwrap();
        assert_clean(handle.device(), &reports);
    }
}

/// The cases are divided among threads, each with a handle of its own.
#[test]
fn random_cases() {
    let asked = std::env::var("SPEC_CASES").ok().and_then(|n| n.parse().ok());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    for handle in crate::common::handles() {
        let device = handle.device();
        let usual = if handle.info().software { CASES_OF_SOFTWARE } else { CASES };
        let cases = asked.unwrap_or(usual);
        let threads = (cases / 1000).clamp(1, cores);
        std::thread::scope(|scope| {
            for thread in 0..threads {
                scope.spawn(move || {
                    let handle: spec::Handle = device.to_string().parse().expect("it was opened");
                    let first = 1 + thread * (cases / threads);
                    let reports =
                        check_random(&handle, first as u64, cases.div_ceil(threads), |_| {});
                    assert_clean(device, &reports);
                });
            }
        });
    }
}

/// On the CPU, results do not depend on the number of threads.
#[cfg(feature = "cpu")]
#[test]
fn random_cases_on_few_and_many_threads() {
    let cpu = spec::Handle::cpu().unwrap();
    for threads in [1, 5] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let reports = pool.install(|| check_random(&cpu, 1, CASES, |_| {}));
        assert_clean(cpu.device(), &reports);
    }
}
