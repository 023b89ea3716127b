//! The files that a person edits who adds an operator, as `CONTRIBUTING.md` lists them.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// Operators that every backend has, with kernels of their own.
const OPERATORS: [[&str; 2]; 3] =
    [["append_tokens", "AppendTokens"], ["draft_tree", "DraftTree"], ["hot_slots", "HotSlots"]];

/// The largest number of files that an operator needs.
const MAX: usize = 13;

/// Files that tools write, by the beginnings of their paths.
const WRITTEN: &[&str] = &[
    ".ci/passed",
    "benches/peers/rows.json",
    "benches/results/",
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

/// Files that name an operator as an instance, and would not change for another one.
const INSTANCES: [&str; 2] = ["CONTRIBUTING.md", "tests/operators/files.rs"];

/// A path as `CONTRIBUTING.md` has it. The operator's code may be a folder.
fn listed_as(path: &str, name: &str) -> String {
    path.replace(name, "NAME").replace("/NAME/mod.rs", "/NAME.rs")
}

/// The first words of the lines of a block of code in a page.
fn block<'a>(page: &'a str, start: &str) -> BTreeSet<&'a str> {
    let (_, block) = page.split_once(start).unwrap_or_else(|| panic!("no {start}"));
    let (block, _) = block.split_once("```").expect("the block ends");
    block.lines().filter_map(|line| line.split_whitespace().next()).collect()
}

/// Every file whose path or text has the operator's name is written by a tool, or is one of those
/// that the operator needs, or one of the extras, which are given by the beginnings of their paths.
#[test]
fn an_operator_needs_the_files_that_contributing_lists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let git = Command::new("git").args(["ls-files"]).current_dir(root).output();
    let tracked = git.expect("git lists the files");
    assert!(tracked.status.success(), "{tracked:?}");
    let tracked = String::from_utf8(tracked.stdout).expect("paths are UTF-8");
    let contributing = std::fs::read_to_string(root.join("CONTRIBUTING.md")).expect("it is there");
    let needed = block(&contributing, "```text files\n");
    let extras = block(&contributing, "```text extras\n");
    assert!(needed.len() <= MAX, "{} files: {needed:#?}", needed.len());
    assert!(contributing.contains(&format!("a person edits {} files", needed.len())));
    for names in OPERATORS {
        let names_it = |text: &str| names.iter().any(|name| text.contains(name));
        let is_found = |path: &&str| {
            let is_written = WRITTEN.iter().any(|start| path.starts_with(start));
            // A file that is tracked may be deleted, and not every file is text.
            let text = || std::fs::read_to_string(root.join(path)).unwrap_or_default();
            let may_count = !is_written && !INSTANCES.contains(path) && root.join(path).exists();
            may_count && (names_it(path) || names_it(&text()))
        };
        let found = tracked.lines().filter(is_found).map(|path| listed_as(path, names[0]));
        let is_extra = |path: &String| {
            !needed.contains(&**path) && extras.iter().any(|start| path.starts_with(start))
        };
        let (_, found): (BTreeSet<_>, BTreeSet<_>) = found.partition(is_extra);
        let found: BTreeSet<&str> = found.iter().map(String::as_str).collect();
        assert_eq!(found, needed, "files that name {}, and those of CONTRIBUTING.md", names[0]);
    }
}
