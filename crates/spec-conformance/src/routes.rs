//! Random cases by the kernels that they run, for tests that call every kernel in another way than
//! [`random`](crate::random) does: on several streams, in graphs.

use std::collections::BTreeMap;
use std::ops::Range;

use spec_core::{Role, Supports};

use crate::Rng;
use crate::argument::Argument;
use crate::case::{Case, Subject, compare};
use crate::plain::Plain;
use crate::report::Failure;
use crate::tensor::Layout;

/// The seeds of the random cases that [`seeds`] chooses from: enough for each kernel.
pub const SEEDS: Range<u64> = 0..3000;

/// How many cases with the same kernels are tried, from the largest on, until the results of one
/// follow its inputs.
const TRIED: usize = 12;

/// The relative difference from which on two float results count as different. 16-bit floats, and
/// floats that two backends round differently, differ by less.
const CLEAR: f64 = 1.0 / 32.0;

/// Chooses one random case for each list of kernels that random cases run on a backend, and returns
/// the seeds of these cases. The case is the largest whose results are different for each of the
/// seeds 1 to 4 of [`Case::varied`] and the seed before. Kernels have no case if none of their
/// largest cases has such results. Allocates no memory of the backend.
///
/// # Errors
/// An error of the backend.
pub fn seeds<O: Subject, B: Supports<O> + ?Sized>(backend: &B) -> Result<Vec<u64>, Failure> {
    let mut by_kernels: BTreeMap<Vec<String>, Vec<(usize, u64)>> = BTreeMap::new();
    for seed in SEEDS {
        let case = Case::<O>::of_seed(seed);
        let route = case.route(backend, Layout::PACKED)?;
        let kernels: Vec<String> = route.kernels().map(str::to_owned).collect();
        if !kernels.is_empty() {
            by_kernels.entry(kernels).or_default().push((case.bytes(), seed));
        }
    }
    let chosen = by_kernels.into_values().filter_map(|mut cases| {
        cases.sort_unstable();
        let mut largest = cases.iter().rev().take(TRIED).map(|(_, seed)| *seed);
        largest.find(|seed| Case::<O>::of_seed(*seed).follows_its_inputs())
    });
    Ok(chosen.collect())
}

impl<O: Subject> Case<O> {
    /// The random case of a seed, as [`check`](crate::random::check) makes it.
    pub fn of_seed(seed: u64) -> Self {
        Case::random(&mut Rng::new(seed, O::NAME))
    }

    /// The same call with other inputs: in some arguments that the call reads, some elements
    /// repeat the element before. So offsets that ascend still do.
    pub fn varied(&self, seed: u64) -> Self {
        let mut rng = Rng::new(seed, "varied");
        let mut case = self.clone();
        let is_read = |argument: &&mut Argument| argument.role != Role::Output;
        let count = self.arguments.iter().filter(|argument| argument.role != Role::Output).count();
        let always = rng.below(count.max(1));
        for (at, argument) in case.arguments.iter_mut().filter(is_read).enumerate() {
            if at != always && rng.chance(2) {
                continue;
            }
            let data = &mut argument.tensor.data;
            let before = data.clone();
            for _ in 0..before.len().div_ceil(8) {
                let to = rng.below(before.len());
                data.splice(to, &before, to.saturating_sub(1)..to.max(1));
            }
        }
        case
    }

    /// The bytes of all arguments.
    fn bytes(&self) -> usize {
        self.arguments.iter().map(|argument| argument.tensor.data.bytes().len()).sum()
    }

    /// Whether the plain loop gives clearly other results for each of the first variations than for
    /// the one before.
    fn follows_its_inputs(&self) -> bool {
        let results = |seed| {
            let results = self.varied(seed).run_once(&Plain::default(), Layout::PACKED);
            let mut results = results.unwrap_or_else(|failure| panic!("{failure}"));
            results.retain(|argument| argument.role != Role::Input);
            results
        };
        let results: Vec<_> = (1..=4).map(results).collect();
        results.windows(2).all(|pair| compare(&pair[0], &pair[1], |_| Some(CLEAR)).is_some())
    }
}
