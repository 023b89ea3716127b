//! Runs the inputs that fuzzing found, under `fuzz/corpus/`, without a fuzzer: none may panic
//! again.

#[cfg(feature = "parquet")]
#[path = "../../../fuzz/src/columns.rs"]
mod columns;
#[path = "../../../fuzz/src/operators.rs"]
mod operators;
#[path = "../../../fuzz/src/text.rs"]
mod text;

use std::path::Path;

/// Runs a target on each file of its corpus, which must have at least one file.
fn replay(target: &str, run: fn(&[u8])) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut files: Vec<_> =
        std::fs::read_dir(corpus).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty());
    for file in files {
        println!("{}", file.display());
        run(&std::fs::read(file).unwrap());
    }
}

#[cfg(feature = "parquet")]
#[test]
fn columns() {
    spec_external::process::hide_caught_panics();
    replay("columns", |data| {
        assert!(columns::is_file(data), "no file of this kind: the fuzzer would not keep it");
        columns::run(data);
    });
}

#[test]
fn operators() {
    replay("operators", operators::run);
}

#[test]
fn text() {
    replay("text", |data| text::run(data, cfg!(feature = "zstd")));
}
