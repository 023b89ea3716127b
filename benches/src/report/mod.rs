//! Measurements and what is made of them.
//!
//! A [`Report`] is one run of a program that times operators: `spec-bench`, or a
//! script under `benches/peers/` that times what others offer. It is JSON with
//! every sample in it, so that whoever reads it later can ask again; its fields
//! and those of its parts are the fields of that JSON, and documented there.
//!
//! ```text
//! Report ── stats     median and spread of a row
//!        ├─ table     text for a terminal
//!        ├─ compare   two runs: what moved beyond the noise
//!        ├─ markdown  docs/performance.md and docs/plots/
//!        └─ html      the same of every row, as one page with the plots in it
//! ```
//!
//! Nothing here knows an operator or a device: they are names in a row.

pub mod compare;
pub mod html;
pub mod markdown;
mod plot;
mod schema;
pub mod stats;
pub mod table;
mod view;

pub use schema::{DeviceRecord, Error, Fact, Format, Host, Load, Measurement, Report, Role};
