//! Random cases: compares a backend with the plain loop, and with itself on the same
//! requests in another batch.

use spec_core::{DType, Device, Role, Supports};

use crate::Rng;
use crate::argument::{Argument, find};
use crate::case::{Case, Recomposed, Rows, Subject, compare};
use crate::plain::Plain;
use crate::report::{Failure, Report};
use crate::tensor::Layout;

/// The relative tolerance of float outputs between two backends.
const TOLERANCE: f64 = 2e-5;

/// Runs `cases` random cases of one operator. Case `i` is made from the seed `seed + i`,
/// so each case can be repeated alone. `progress` is called with the
/// operator's name after each case.
pub fn check<O: Subject, B: Supports<O> + ?Sized>(
    backend: &B,
    seed: u64,
    cases: usize,
    progress: &mut dyn FnMut(&'static str),
) -> Report {
    let mut report = Report::of(O::NAME);
    for i in 0..cases {
        let seed = seed.wrapping_add(i as u64);
        let mut rng = Rng::new(seed, O::NAME);
        let case = Case::<O>::random(&mut rng);
        let failure = check_case(backend, &case, &mut rng);
        report.add(failure.map(|f| f.in_case(format!("seed {seed}, {}", case.describe()))));
        progress(O::NAME);
    }
    report
}

fn check_case<O: Subject, B: Supports<O> + ?Sized>(
    backend: &B,
    case: &Case<O>,
    rng: &mut Rng,
) -> Option<Failure> {
    let expected = match case.run_once(&Plain::default(), Layout::PACKED) {
        Ok(expected) => expected,
        Err(failure) => return Some(failure.in_case("the plain loop")),
    };
    let layouts = [Layout::PACKED, Layout::gaps(rng.between(1, 70))];
    let [first, second] = if rng.chance(2) { [0, 1] } else { [1, 0] }.map(|i| layouts[i]);
    let results = match case.run(backend, first) {
        Ok(results) => results,
        Err(failure) => return Some(failure),
    };
    let tolerance = |name: &str| Some(tolerance::<O>(name, find(&expected, name)?.data.dtype()));
    if let Some(failure) = compare(&results, &expected, tolerance) {
        return Some(failure);
    }
    // On the CPU, float results too are the same bits, whatever else is in the batch
    // and however far apart the rows are. GPUs take other code paths for other shapes, which may
    // round floats differently.
    let exact = backend.info().device == Device::CPU;
    let Recomposed { case, rows } = O::recomposed(case, rng);
    let failure = match case.run(backend, second) {
        Ok(others) if exact => compare_rows(&others, &results, &rows, |_| None),
        Ok(others) => compare_rows(&others, &results, &rows, tolerance),
        Err(failure) => Some(failure),
    };
    failure.map(|failure| failure.in_case("in another batch, with other row strides"))
}

/// The tolerance of an output of type `dtype`. The relative difference of two neighbouring numbers
/// of 16 bits is at most 2^-10 (f16) or 2^-7 (bf16).
fn tolerance<O: Subject>(name: &str, dtype: DType) -> f64 {
    match dtype {
        DType::F16 if O::ROUNDED.contains(&name) => TOLERANCE + 1.0 / 1024.0,
        DType::BF16 if O::ROUNDED.contains(&name) => TOLERANCE + 1.0 / 128.0,
        _ => TOLERANCE,
    }
}

/// The first difference between the rows of a result and the rows of the original that they must
/// equal.
fn compare_rows(
    results: &[Argument],
    expected: &[Argument],
    rows: &[(&'static str, Rows)],
    tolerance: impl Fn(&str) -> Option<f64>,
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
        compare(&result, &expected, &tolerance)
    })
}
