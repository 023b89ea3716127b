//! # Does a backend compute what the contract says?
//!
//! Two kinds of check, generic over any backend, through the public API and with
//! memory that the backend allocates:
//!
//! * [`golden`] runs the golden vectors: calls with known results, written by an
//!   independent implementation.
//! * [`random`] makes calls up, with bad data among them, and compares the
//!   backend with the plain sequential loops of [`plain`], and with itself on the
//!   same requests in another batch and other row strides, which must give the
//!   same integers, bit for bit, and the same floats to the contract's 2e-5.
//!
//! Every case runs twice on the same data and workspace, which must give the
//! same result; and memory between and behind the rows must stay untouched, as
//! must inputs. A backend that does not have an operator (status 2) has its cases
//! counted as unsupported.
//!
//! Beside these, [`decode_tail`] chains four operators, each of which reads what the one before it
//! wrote on the device.
//!
//! ```
//! use spec_conformance::{Golden, golden, plain::Plain, random};
//! use spec_core::ops::Unique;
//!
//! // A backend of one's own goes here.
//! let backend = Plain::default();
//! let report = golden::check::<Unique, _>(&backend, &Golden::Embedded, &mut |_| {})?;
//! assert!(report.failures.is_empty() && report.cases > 0);
//! let report = random::check::<Unique, _>(&backend, 1, 10, &mut |_| {});
//! assert!(report.failures.is_empty());
//! # Ok::<(), String>(())
//! ```

mod case;
pub mod decode_tail;
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
mod tensor;
#[cfg(test)]
mod tests;

pub use case::{Argument, Case, Ready, Recomposed, Rows, Subject, compare, find};
pub use golden::Golden;
pub use pool::Pooled;
pub use report::{Failure, Report};
pub use rng::Rng;
pub use tensor::{Data, Held, Layout, Tensor};

use spec_core::ops::*;
use spec_core::{Signature, Supports};

/// What has every operator, and how to go through them.
macro_rules! operators {
    ($($module:ident: $operator:ident,)+) => {
        /// A backend with every operator, if only to say of some that it does
        /// not implement them.
        pub trait Complete: $( Supports<$operator> + )+ {}

        impl<B: $( Supports<$operator> + )+ ?Sized> Complete for B {}

        /// Runs every golden case: one report an operator. `progress` is called
        /// with the operator's name after each case.
        ///
        /// # Errors
        /// A sentence that says which file cannot be read, or which case in it
        /// makes no sense.
        pub fn check_golden<B: Complete>(
            backend: &B,
            golden: &Golden,
            mut progress: impl FnMut(&'static str),
        ) -> Result<Vec<Report>, String> {
            Ok(vec![$( golden::check::<$operator, B>(backend, golden, &mut progress)? ),+])
        }

        /// Runs every golden case of the operator of that name; `None` where no operator
        /// has it.
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

        /// Runs `cases` random cases of the operator of that name, as
        /// [`random::check`] makes them; `None` where no operator has it.
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

        /// Runs `cases` random cases of every operator: one report an operator,
        /// as [`random::check`] makes them.
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
