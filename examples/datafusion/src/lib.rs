//! Distinct keys of Parquet files by an [Apache DataFusion] plan whose
//! per-partition step is spec's `unique`.
//!
//! ```text
//! UniqueExec            each range: its distinct keys, ascending    (this crate)
//!   RepartitionExec     Range([key ASC], split points)              (DataFusion)
//!     DataSourceExec    the column, file groups side by side        (DataFusion)
//! ```
//!
//! The ranges ascend and share no key, so the output partitions, one after the
//! other, are the distinct set: nothing is merged. [`Exchange::RangeByHash`] makes the same ranges
//! for engines that shuffle by hash only. [`WriteExec`] on top writes one Parquet file a range.
//!
//! The operators are ordinary [`ExecutionPlan`]s: [`Codec`] writes them
//! into a serialised plan and reads them back, as a scheduler needs to send
//! plans to other machines. The package `spec-ballista` beside this one does so.
//!
//! [Apache DataFusion]: https://datafusion.apache.org
//! [`ExecutionPlan`]: datafusion::physical_plan::ExecutionPlan

mod codec;
mod distinct;
mod exec;
mod made;
mod plan;
mod range;
mod write;

pub use codec::Codec;
pub use exec::UniqueExec;
pub use made::{Shape, make};
pub use plan::{Exchange, distinct, split_points};
pub use range::range_place;
pub use write::{UNFINISHED, WriteExec, Written};
