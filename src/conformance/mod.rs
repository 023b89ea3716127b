//! Does a device compute what the contract says?
//!
//! Two kinds of check, both through the public API and with buffers that the
//! handle allocates:
//!
//! * [`golden`] runs the golden vectors: calls with known results, written by an
//!   independent implementation.
//! * [`random`] makes calls up, with bad data among them, and compares the
//!   device with the CPU. The CPU itself is compared with itself: one thread
//!   against several, packed rows against rows with gaps, and the same requests
//!   in another batch, which must all give the same bits.
//!
//! Every case runs twice on the same data and workspace, which must give the
//! same result; and memory between and behind the rows must stay untouched, as
//! must inputs.

pub(crate) mod case;
mod golden;
mod ops;
mod random;
pub(crate) mod report;
mod rng;
pub(crate) mod tensor;
#[cfg(test)]
mod tests;

pub use golden::Golden;
pub use report::{Failure, Report};

pub(crate) use rng::Rng;

use crate::Handle;
use crate::ops::{
    DeduplicateTopk, HybridMtpNgram, NgramMatch, RejectionSample, TopkRouter, Unique,
};

/// Every operator, in the order of reports.
macro_rules! each_operator {
    ($module:ident) => {
        [
            $module::check::<TopkRouter>,
            $module::check::<DeduplicateTopk>,
            $module::check::<RejectionSample>,
            $module::check::<NgramMatch>,
            $module::check::<HybridMtpNgram>,
            $module::check::<Unique>,
        ]
    };
}

/// Runs every golden case on a device: one report an operator. `progress` is
/// called with the operator's name after each case.
///
/// # Errors
/// A sentence that says which file cannot be read, or which case in it makes
/// no sense.
pub fn golden(
    handle: &Handle,
    golden: &Golden,
    mut progress: impl FnMut(&'static str),
) -> Result<Vec<Report>, String> {
    each_operator!(golden).into_iter().map(|check| check(handle, golden, &mut progress)).collect()
}

/// Runs `cases` random cases of every operator on a device: one report an
/// operator. Case `i` is made from `seed + i`, so that one case can be run
/// again alone. `progress` is called with the operator's name after each case.
///
/// # Errors
/// Where this build has no CPU backend to compare with, or no threads can be
/// started.
pub fn random(
    handle: &Handle,
    seed: u64,
    cases: usize,
    mut progress: impl FnMut(&'static str),
) -> Result<Vec<Report>, String> {
    let reference = random::Reference::new(handle)?;
    let reports = each_operator!(random)
        .into_iter()
        .map(|check| check(handle, &reference, seed, cases, &mut progress))
        .collect();
    Ok(reports)
}
