//! # Does a backend compute what the contract says?
//!
//! There are two kinds of check. Both are generic over the backend, use the public API, and use
//! memory that the backend allocates:
//!
//! * [`golden`] runs the golden vectors: calls with known results, which an
//!   independent implementation computed.
//! * [`random`] makes random calls, many with bad data. It compares the
//!   backend with the plain sequential loops of [`plain`], and with itself on the
//!   same requests in another batch and with other row strides. Integers must be the
//!   same bits, and floats the same to the contract's 2e-5.
//!
//! Every case runs twice on the same data and workspace, and must give the
//! same result both times. Memory between and behind the rows must stay untouched, and so
//! must inputs. The cases of an operator that the backend lacks (status 2) are
//! counted as unsupported.
//!
//! ```
//! use spec_conformance::{Golden, golden, plain::Plain, random};
//! use spec_core::ops::Unique;
//!
//! // The backend to check goes here.
//! let backend = Plain::default();
//! let report = golden::check::<Unique, _>(&backend, &Golden::Embedded, &mut |_| {})?;
//! assert!(report.failures.is_empty() && report.cases > 0);
//! let report = random::check::<Unique, _>(&backend, 1, 10, &mut |_| {});
//! assert!(report.failures.is_empty());
//! # Ok::<(), String>(())
//! ```

mod argument;
mod case;
pub mod golden;
pub mod host;
#[doc(hidden)]
pub mod launch_params;
mod memory;
mod ops;
pub mod plain;
mod pool;
pub mod random;
mod report;
mod rng;
pub mod routes;
mod tensor;
#[cfg(test)]
mod tests;

pub use argument::{Argument, find};
pub use case::{Case, Ready, Recomposed, Rows, Subject, compare};
pub use golden::Golden;
pub use pool::Pooled;
pub use report::{Failure, Report};
pub use rng::Rng;
pub use tensor::{Data, Held, Layout, Tensor};

use spec_core::ops::*;
use spec_core::{Signature, Supports};

/// Defines the trait for backends with every operator, and the checks that go through all
/// operators.
macro_rules! operators {
    ($($module:ident: $operator:ident,)+) => {
        /// A backend that supports every operator. For an operator that it does not implement,
        /// creating a descriptor may return status 2.
        pub trait Complete: $( Supports<$operator> + )+ {}

        impl<B: $( Supports<$operator> + )+ ?Sized> Complete for B {}

        /// Runs every golden case, and returns one report for each operator. `progress` is called
        /// with the operator's name after each case.
        ///
        /// # Errors
        /// A sentence that says which file cannot be read, or which of its cases is not valid.
        pub fn check_golden<B: Complete>(
            backend: &B,
            golden: &Golden,
            mut progress: impl FnMut(&'static str),
        ) -> Result<Vec<Report>, String> {
            Ok(vec![$( golden::check::<$operator, B>(backend, golden, &mut progress)? ),+])
        }

        /// Runs every golden case of the operator called `operator`; `None` where no operator has
        /// this name.
        ///
        /// # Errors
        /// As [`check_golden`].
        pub fn check_golden_of<B: Complete>(
            backend: &B,
            operator: &str,
            golden: &Golden,
            mut progress: impl FnMut(&'static str),
        ) -> Result<Option<Report>, String> {
            match operator {
                $( $operator::NAME => {
                    golden::check::<$operator, B>(backend, golden, &mut progress).map(Some)
                } )+
                _ => Ok(None),
            }
        }

        /// Runs `cases` random cases of the operator called `operator`, by [`random::check`];
        /// `None` where no operator has this name.
        pub fn check_random_of<B: Complete>(
            backend: &B,
            operator: &str,
            seed: u64,
            cases: usize,
            mut progress: impl FnMut(&'static str),
        ) -> Option<Report> {
            match operator {
                $( $operator::NAME => {
                    Some(random::check::<$operator, B>(backend, seed, cases, &mut progress))
                } )+
                _ => None,
            }
        }

        /// Runs `cases` random cases of every operator, by [`random::check`], and returns one
        /// report for each operator.
        pub fn check_random<B: Complete>(
            backend: &B,
            seed: u64,
            cases: usize,
            mut progress: impl FnMut(&'static str),
        ) -> Vec<Report> {
            vec![$( random::check::<$operator, B>(backend, seed, cases, &mut progress) ),+]
        }
    };
}

spec_core::for_each_operator!(operators);
