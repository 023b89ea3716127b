//! Speculative decoding of a Llama model: candle computes the model, spec's operators
//! draft, sample and verify.
//!
//! [`Llama`] runs several rows at once and forgets those that were rejected by moving a
//! length back. [`Drafter`] proposes, [`Lengths`] says how many of the proposals are worth
//! their rows, and [`decode`] goes on from what the model chose.

#[cfg(target_arch = "x86_64")]
pub mod attention;
pub mod bench;
#[cfg(target_arch = "x86_64")]
pub mod blocks;
pub mod drafting;
pub mod engine;
pub mod lengths;
pub mod llama;
pub mod sampling;
pub mod text;

pub use drafting::Drafter;
pub use engine::{Decoded, Request, decode};
pub use lengths::Lengths;
pub use llama::{Llama, Weights};
pub use sampling::{Sampler, Sampling};
pub use text::Text;

/// Errors are for people to read.
pub type Result<T, E = anyhow::Error> = std::result::Result<T, E>;
