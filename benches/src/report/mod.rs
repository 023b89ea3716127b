//! Measurements, and the tables, comparisons and pages made of them.
//!
//! A [`Report`] is one run of a program that times operators: `spec-bench`, or a
//! script under `benches/peers/` that times other libraries. A report is stored as JSON
//! with every sample, so that later readers can compute other statistics. The fields of
//! the JSON are the fields of [`Report`] and of its parts, and are documented there.
//!
//! ```text
//! Report ── stats     median and spread of a row
//!        ├─ table     text for a terminal
//!        ├─ compare   two runs: what moved beyond the noise
//!        ├─ markdown  docs/performance.md and docs/plots/
//!        └─ html      the same of every row, as one page with the plots in it
//! ```
//!
//! The code here knows no operator and no device: both are only names in a row.

pub mod compare;
pub mod html;
pub mod markdown;
mod plot;
mod schema;
pub mod stats;
pub mod table;
mod view;

pub use schema::{DeviceRecord, Error, Fact, Format, Host, Load, Measurement, Report, Role};
