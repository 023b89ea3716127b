//! Measurements and what is made of them.
//!
//! A [`Report`] is one run of a program that times operators: `spec bench`, or a
//! script under `benches/peers/` that times what others offer. It is JSON with
//! every sample in it, so that whoever reads it later can ask again.
//!
//! ```text
//! Report ── stats     median and spread of a row
//!        ├─ table     text for a terminal
//!        ├─ compare   two runs: what moved beyond the noise
//!        ├─ html      one self-contained page with plots
//!        └─ markdown  docs/performance.md and docs/plots/
//! ```
//!
//! Nothing here knows an operator or a device: they are names in a row.
//!
//! ```
//! use spec_report::{Measurement, Report, Role, table};
//!
//! let mut report = Report::new("spec bench --json run.json");
//! report.date = "2026-01-31".into();
//! report.measurements.push(Measurement {
//!     operator: "topk_router".into(),
//!     shape: "1024 tokens, f32".into(),
//!     series: "f32".into(),
//!     size: 1024.0,
//!     size_unit: "tokens".into(),
//!     device: "cpu".into(),
//!     implementation: "spec".into(),
//!     role: Role::Spec,
//!     method: "the clock".into(),
//!     samples_us: vec![412.0, 415.5, 411.0, 440.0, 413.0],
//!     bytes: 1024 * 256 * 4,
//!     goal_us: None,
//!     check: "the plain loop, every element".into(),
//! });
//! assert!(table::text(&report).contains("413"));
//! let again = Report::parse(&report.to_json())?;
//! assert_eq!(again, report);
//! # Ok::<(), spec_report::Error>(())
//! ```

pub mod compare;
mod figures;
pub mod html;
pub mod markdown;
mod plot;
mod schema;
pub mod stats;
pub mod table;
mod view;

pub use schema::{DeviceRecord, Error, FORMAT, Host, Measurement, Report, Role};
