//! Every operator through the facade, on every backend that is there: one program, a module a
//! theme. `cargo test --test operators conformance` runs the tests of one module.

#[path = "../common/mod.rs"]
mod common;

mod bad_calls;
mod callers;
mod conformance;
mod decoding;
mod distribution;
mod empty_rows;
mod handles;
mod prompt_lookup;
mod rejection_sample;
mod sampling;
mod snapshots;
mod topk_router;
