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
//! other, are the distinct set: nothing is merged. [`Exchange::Hash`] is the
//! same plan for engines that shuffle by hash only; this plan needs a merge on top.
//!
//! The operator is an ordinary [`ExecutionPlan`]: [`UniqueCodec`] writes the operator
//! into a serialised plan and reads the operator back, as a scheduler needs to send
//! plans to other machines.
//!
//! [Apache DataFusion]: https://datafusion.apache.org
//! [`ExecutionPlan`]: datafusion::physical_plan::ExecutionPlan

mod codec;
mod distinct;
mod exec;
mod plan;

pub use codec::UniqueCodec;
pub use exec::UniqueExec;
pub use plan::{Exchange, distinct, split_points};
