//! Speculative decoding of a Llama model: candle computes the model, and spec's operators
//! draft, sample and verify.
//!
//! [`Llama`] runs several rows at once, and forgets rejected rows by reducing the length of
//! its cache. [`Drafter`] proposes drafts, [`lengths`] chooses how many of the drafts are
//! worth the cost of their rows, and [`decode`] is the loop that continues a text. [`batch`] has
//! the loop for several texts at once.

pub mod agreement;
#[cfg(target_arch = "x86_64")]
pub mod attention;
pub mod batch;
pub mod bench;
#[cfg(target_arch = "x86_64")]
pub mod blocks;
pub mod draft;
pub mod drafting;
pub mod engine;
pub mod lengths;
pub mod llama;
pub mod replay;
pub mod sampling;
mod slice;
pub mod stopwatch;
pub mod text;

pub use agreement::Agreement;
pub use drafting::Drafter;
pub use engine::{Decoded, Request, decode};
pub use lengths::Lengths;
pub use llama::{Llama, Weights};
pub use sampling::{Sampler, Sampling};
pub use text::Text;

/// The result of a function; an error is a text for people.
pub type Result<T, E = anyhow::Error> = std::result::Result<T, E>;
