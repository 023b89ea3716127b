//! Calls of operators on the CPU.

#![no_main]

#[path = "../src/operators.rs"]
mod operators;

libfuzzer_sys::fuzz_target!(|data: &[u8]| operators::run(data));
