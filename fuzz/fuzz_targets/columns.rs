//! Parquet and Arrow files.

#![no_main]

#[path = "../src/columns.rs"]
mod columns;

use libfuzzer_sys::{Corpus, fuzz_target};

fuzz_target!(
    init: {
        // A panic that is caught is an error; others end the process as before.
        spec_external::process::hide_caught_panics();
    },
    |data: &[u8]| -> Corpus {
        if !columns::is_file(data) {
            return Corpus::Reject;
        }
        columns::run(data);
        Corpus::Keep
    }
);
