//! Text, CSV and raw keys.

#![no_main]

#[path = "../src/text.rs"]
mod text;

libfuzzer_sys::fuzz_target!(|data: &[u8]| text::run(data, true));
