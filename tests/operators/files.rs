//! The files that a person edits who adds an operator, as `CONTRIBUTING.md` lists them.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// An operator like most others: every backend has it, and it has kernels of its own.
const NAMES: [&str; 2] = ["append_tokens", "AppendTokens"];

/// The largest number of files.
const MAX: usize = 21;

/// Files that tools write, by the beginnings of their paths.
const WRITTEN: &[&str] = &[
    ".ci/passed",
    "crates/spec-c/abi.txt",
    "crates/spec-c/include/",
    "crates/spec-conformance/golden/",
    "crates/spec-cuda/compiled/",
    "crates/spec-cuda/kernels/params/",
    "crates/spec-wgpu/shaders/params/",
    "docs/performance.md",
    "python/spec_ops/__init__.pyi",
    "python/spec_ops/_functions.pyi",
    "python/spec_ops/_planned.pyi",
    "python/spec_ops/_results.pyi",
    "python/spec_ops/torch.pyi",
    "tests/operators/snapshots/",
];

/// Files that use the operator or mention it, and would not change for another operator, by the
/// beginnings of their paths. Every change to the library edits the changelog.
const PASSING: &[&str] = &[
    "CHANGELOG.md",
    "benches/pages/",
    "benches/src/chain/",
    "tests/common/",
    "docs/suffix.md",
    "docs/trees.md",
    "examples/",
    "python/examples/",
    "python/tests/",
    "tests/operators/decode_tail.rs",
    "tests/operators/files.rs",
];

/// A file counts if its path or its text has the operator's name, and it is on neither list.
#[test]
fn an_operator_needs_the_files_that_contributing_lists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let git = Command::new("git").args(["ls-files"]).current_dir(root).output();
    let tracked = git.expect("git lists the files");
    assert!(tracked.status.success(), "{tracked:?}");
    let tracked = String::from_utf8(tracked.stdout).expect("paths are UTF-8");
    let names_it = |text: &str| NAMES.iter().any(|name| text.contains(name));
    let is_needed = |path: &&str| {
        let apart = WRITTEN.iter().chain(PASSING).any(|start| path.starts_with(start));
        // A file that is tracked may be deleted, and not every file is text.
        let text = || std::fs::read_to_string(root.join(path)).unwrap_or_default();
        !apart && root.join(path).exists() && (names_it(path) || names_it(&text()))
    };
    let needed: BTreeSet<String> =
        tracked.lines().filter(is_needed).map(|path| path.replace(NAMES[0], "NAME")).collect();
    let contributing = std::fs::read_to_string(root.join("CONTRIBUTING.md")).expect("it is there");
    let (_, block) = contributing.split_once("```text files\n").expect("it has the list");
    let (block, _) = block.split_once("```").expect("the list ends");
    let listed: BTreeSet<String> =
        block.lines().filter_map(|line| line.split_whitespace().next()).map(String::from).collect();
    assert_eq!(needed, listed, "the files that name the operator, and those of CONTRIBUTING.md");
    assert!(needed.len() <= MAX, "{} files name an operator: {needed:#?}", needed.len());
    assert!(contributing.contains(&format!("a person edits {} files", needed.len())));
}
