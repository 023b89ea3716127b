//! Tests of every operator through the facade, on every backend of this machine: one program with
//! one module per theme. `cargo test --test operators conformance` runs the tests of one module.

#[path = "../common/mod.rs"]
mod common;

mod adjust_logits;
mod bad_calls;
mod callers;
mod conformance;
mod corpus;
mod decode_tail;
mod decoding;
mod distribution;
mod empty_rows;
mod files;
mod handles;
mod hot_slots;
mod prompt_lookup;
mod rejection_sample;
mod sampling;
mod shards;
mod snapshots;
mod topk_router;
