//! `spec unique` on text and on columns, as a user runs it.

#![cfg(feature = "command")]

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn spec(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spec"));
    command.args(["unique", "--device", "cpu"]).args(arguments).current_dir(folder);
    command
}

#[track_caller]
fn succeeds(folder: &Path, arguments: &[&str]) -> Output {
    let output = spec(folder, arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

/// Runs what must fail with one sentence that contains `words`, and leave `out`
/// unmade.
#[track_caller]
fn refused(folder: &Path, arguments: &[&str], words: &str) {
    let output = spec(folder, arguments).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{arguments:?} succeeded");
    assert!(stderr.starts_with("error: ") && stderr.contains(words), "{stderr}");
    assert!(!folder.join("out").exists());
}

fn keys(count: u64) -> Vec<i64> {
    (0..count as i64).map(|index| index * index * 7919 % 10_007 - 5000).collect()
}

fn lines(keys: &[i64]) -> String {
    keys.iter().map(|key| format!("{key}\n")).collect()
}

fn counted(keys: &[i64]) -> BTreeMap<i64, u64> {
    let mut counts = BTreeMap::new();
    for &key in keys {
        *counts.entry(key).or_default() += 1;
    }
    counts
}

#[test]
fn text_from_files_and_stdin() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let keys = keys(30_000);
    let (first, second) = keys.split_at(10_000);
    fs::write(at.join("first.txt"), lines(first).trim_end()).unwrap();
    fs::write(at.join("second.txt"), lines(second).replace('\n', "\r\n")).unwrap();
    let distinct = lines(&counted(&keys).into_keys().collect::<Vec<_>>());

    let inputs = ["--text", "--type", "i64", "first.txt", "second.txt"];
    let arguments = |more: &[&'static str]| [&inputs[..], more].concat();
    succeeds(at, &arguments(&["-o", "out"]));
    assert_eq!(fs::read_to_string(at.join("out")).unwrap(), distinct);

    succeeds(at, &arguments(&["-o", "out", "--force", "--counts"]));
    let expected: String =
        counted(&keys).iter().map(|(key, count)| format!("{key}\t{count}\n")).collect();
    assert_eq!(fs::read_to_string(at.join("out")).unwrap(), expected);

    let printed = succeeds(at, &arguments(&["--count-only"])).stdout;
    assert_eq!(printed, format!("{}\n", counted(&keys).len()).as_bytes());

    let mut child = spec(at, &["--text", "--type", "i64", "-", "second.txt", "-o", "piped"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(lines(first).as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(fs::read_to_string(at.join("piped")).unwrap(), distinct);

    // From text to raw and back.
    succeeds(at, &arguments(&["-o", "raw", "--output-format", "raw"]));
    let raw: Vec<u8> = counted(&keys).into_keys().flat_map(i64::to_le_bytes).collect();
    assert_eq!(fs::read(at.join("raw")).unwrap(), raw);
    succeeds(at, &["--type", "i64", "raw", "-o", "again", "--output-format", "text"]);
    assert_eq!(fs::read_to_string(at.join("again")).unwrap(), distinct);
}

#[test]
fn text_larger_than_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let mut state = 1u64;
    let keys: Vec<u64> = (0..12_000_000)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state >> 20
        })
        .collect();
    let text: String = keys.iter().map(|key| format!("{key}\n")).collect();
    fs::write(at.join("in.txt"), text).unwrap();
    let sizes = ["--memory", "96MiB", "--temp", ".", "--json"];
    let printed = succeeds(at, &[&["--text", "in.txt", "-o", "out"][..], &sizes].concat()).stdout;
    let summary: serde_json::Value = serde_json::from_slice(&printed).unwrap();
    assert!(summary["runs"].as_u64().unwrap() > 1, "{summary}");
    let mut expected = keys;
    expected.sort_unstable();
    expected.dedup();
    let expected: String = expected.iter().map(|key| format!("{key}\n")).collect();
    assert!(fs::read_to_string(at.join("out")).unwrap() == expected);
}

#[test]
fn a_bad_line_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    fs::write(at.join("good.txt"), "1\n2\n").unwrap();
    fs::write(at.join("bad.txt"), "3\n-4\n").unwrap();
    let both = ["--text", "good.txt", "bad.txt", "-o", "out"];
    refused(at, &both, "bad.txt: line 2, column 1: -4 is out of range");
    fs::write(at.join("bad.txt"), "3\n4 5\n").unwrap();
    refused(at, &both, "bad.txt: line 2, column 2: ' ' is no digit");
    fs::write(at.join("bad.txt"), "3\n\n5\n").unwrap();
    refused(at, &both, "bad.txt: line 2, column 1: a line without a number");
    refused(at, &["--text", "--column", "key", "good.txt", "-o", "out"], "--column");
    refused(at, &["--text", "good.txt", "-o", "good.txt", "--force"], "same file");
}

#[cfg(not(feature = "parquet"))]
#[test]
fn without_parquet_it_says_how_to_get_it() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    fs::write(at.join("in.txt"), "1\n").unwrap();
    refused(at, &["--column", "key", "in.txt", "-o", "out"], "--features parquet");
    refused(
        at,
        &["--text", "in.txt", "-o", "out", "--output-format", "parquet"],
        "--features parquet",
    );
}

#[cfg(feature = "parquet")]
#[test]
fn columns_in_and_out() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let keys = keys(30_000);
    fs::write(at.join("in.txt"), lines(&keys)).unwrap();
    let text = |name: &str| fs::read_to_string(at.join(name)).unwrap();
    let expected: String = counted(&keys).keys().map(|key| format!("{key}\n")).collect();

    // Text to Parquet, the column's type found there again, and back.
    for key in ["i64", "i32"] {
        let to = ["--output-format", "parquet", "--force", "--counts", "-o", "keys.parquet"];
        succeeds(at, &[&["--text", "--type", key, "in.txt"][..], &to].concat());
        let back = ["--output-format", "text", "--force", "-o", "back.txt"];
        succeeds(at, &[&["--column", "key", "keys.parquet"][..], &back].concat());
        assert_eq!(text("back.txt"), expected);
        // Counts are a column like any other.
        let of_counts = ["--column", "count", "keys.parquet", "keys.parquet"];
        succeeds(at, &[&of_counts[..], &back].concat());
        let mut counts: Vec<u64> = counted(&keys).into_values().collect();
        counts.sort_unstable();
        counts.dedup();
        let counts: String = counts.iter().map(|count| format!("{count}\n")).collect();
        assert_eq!(text("back.txt"), counts);
    }

    // Parquet to Parquet keeps the column's name and type.
    succeeds(at, &["--column", "key", "keys.parquet", "-o", "again.parquet"]);
    succeeds(
        at,
        &[
            "--column",
            "key",
            "again.parquet",
            "-o",
            "back.txt",
            "--force",
            "--output-format",
            "text",
        ],
    );
    assert_eq!(text("back.txt"), expected);
    refused(
        at,
        &["--column", "key", "--type", "u64", "again.parquet", "-o", "out"],
        "again.parquet: column key is i32, not u64",
    );
    refused(
        at,
        &["--column", "id", "again.parquet", "-o", "out"],
        "again.parquet: has no column id; it has key",
    );
    refused(at, &["--column", "key", "in.txt", "-o", "out"], "neither a Parquet nor an Arrow file");
    refused(at, &["--column", "key", "-", "-o", "out"], "cannot be read from stdin");
}
