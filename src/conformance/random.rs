//! Random cases: a device against the CPU, the CPU against itself.

use rayon::{ThreadPool, ThreadPoolBuilder};

use super::Rng;
use super::case::{Argument, Case, Recomposed, Role, Rows, Subject, compare, find};
use super::report::{Failure, Report};
use super::tensor::Layout;
use crate::{Device, Handle};

/// Tolerance of float outputs between two backends, relative.
const TOLERANCE: f64 = 2e-5;

/// What a device is compared with.
pub(super) struct Reference {
    cpu: Handle,
    /// One thread, for the results that count as right.
    single: ThreadPool,
    /// More threads than small cases have work for.
    several: ThreadPool,
}

impl Reference {
    pub(super) fn new(handle: &Handle) -> Result<Reference, String> {
        let cpu = if handle.device() == Device::CPU { Ok(handle.clone()) } else { Handle::cpu() };
        let pool = |threads| {
            ThreadPoolBuilder::new().num_threads(threads).build().map_err(|e| e.to_string())
        };
        Ok(Reference { cpu: cpu.map_err(|e| e.to_string())?, single: pool(1)?, several: pool(5)? })
    }

    fn check<O: Subject>(&self, handle: &Handle, case: &Case<O>, rng: &mut Rng) -> Option<Failure> {
        let layouts = [Layout::PACKED, Layout::gaps(rng.between(1, 70))];
        let [ours, theirs] = if rng.chance(2) { [0, 1] } else { [1, 0] }.map(|i| layouts[i]);
        let expected = match self.single.install(|| case.run(&self.cpu, ours)) {
            Ok(expected) => expected,
            Err(failure) => return Some(failure.in_case("on one CPU thread")),
        };
        if handle.device() != Device::CPU {
            return match case.run(handle, theirs) {
                Ok(results) => compare(&results, &expected, |_| Some(TOLERANCE)),
                Err(failure) => Some(failure),
            };
        }
        let results = self.several.install(|| case.run(handle, theirs));
        let difference = match results {
            Ok(results) => compare(&results, &expected, |_| None),
            Err(failure) => Some(failure),
        };
        if let Some(failure) = difference {
            return Some(failure.in_case("on five CPU threads, with other row strides"));
        }
        let Recomposed { case, rows } = O::recomposed(case, rng);
        let results = self.several.install(|| case.run(handle, ours));
        let difference = match results {
            Ok(results) => compare_rows(&results, &expected, &rows),
            Err(failure) => Some(failure),
        };
        difference.map(|failure| failure.in_case("in another batch"))
    }
}

/// Each listed row of a result must equal the original's row of that number.
fn compare_rows(
    results: &[Argument],
    expected: &[Argument],
    rows: &[(&'static str, Rows)],
) -> Option<Failure> {
    rows.iter().find_map(|(name, rows)| {
        let (Some(result), Some(expected)) = (find(results, name), find(expected, name)) else {
            return None;
        };
        let pair = match rows {
            Rows::All => [result.clone(), expected.clone()],
            Rows::Of(rows) => [result.head(rows.len()), expected.pick(rows)],
        };
        let [result, expected] = pair.map(|tensor| [Argument { name, role: Role::Output, tensor }]);
        compare(&result, &expected, |_| None)
    })
}

/// Runs random cases of one operator.
pub(super) fn check<O: Subject>(
    handle: &Handle,
    reference: &Reference,
    seed: u64,
    cases: usize,
    progress: &mut dyn FnMut(&'static str),
) -> Report {
    let mut failures = Vec::new();
    for i in 0..cases {
        let seed = seed.wrapping_add(i as u64);
        let mut rng = Rng::new(seed, O::NAME);
        let case = O::random(&mut rng);
        if let Some(failure) = reference.check(handle, &case, &mut rng) {
            let name = format!("seed {seed}, {}", case.describe());
            failures.push(failure.in_case(name));
        }
        progress(O::NAME);
    }
    Report { operator: O::NAME, cases, failures }
}
