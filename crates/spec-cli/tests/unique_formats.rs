//! `spec unique` with text and columns, as a user runs it.

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

/// Runs a command that must fail with one sentence that contains `words`, and must not
/// make `out`.
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

/// Pseudo-random keys without their lowest `cut` bits.
fn random_keys(count: usize, cut: u32) -> Vec<u64> {
    let mut state = 1u64;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        state >> cut
    };
    std::iter::repeat_with(next).take(count).collect()
}

#[test]
fn text_larger_than_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let keys = random_keys(12_000_000, 20);
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

#[test]
fn blanks_around_a_number_are_no_part_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    fs::write(at.join("in.txt"), "5 \n\t7\r\n 5\t\r\n6\n").unwrap();
    assert_eq!(succeeds(at, &["--text", "in.txt", "-o", "-"]).stdout, b"5\n6\n7\n");
    let csv = fs::File::create(at.join("in.csv")).unwrap();
    (&csv).write_all(b"a,id\nx, 5\ny,5 \nz,\"6 \"\n").unwrap();
    let output = succeeds(at, &["--csv", "--column", "id", "in.csv", "-o", "-"]);
    assert_eq!(output.stdout, b"id\n5\n6\n");
}

#[test]
fn csv_out_is_csv_in() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let keys = keys(30_000);
    let counts = counted(&keys);
    let text = |name: &str| fs::read_to_string(at.join(name)).unwrap();
    // A name that a header has to quote, between commas and between other bytes.
    for (name, quoted) in
        [("id", "id"), ("the \"id\", 1;2", "\"the \"\"id\"\", 1;2\""), ("", "\"\"")]
    {
        for delimiter in [',', ';', '\t'] {
            let rows = keys.iter().map(|key| format!("x{delimiter}\"{key}\"\r\n"));
            let header = format!("other{delimiter}{quoted}\r\n");
            fs::write(at.join("in.csv"), header + &rows.collect::<String>()).unwrap();
            let between = delimiter.to_string();
            let read = ["--csv", "--column", name, "--delimiter", &between, "--type", "i64"];
            let run = |more: &[&str]| succeeds(at, &[&read[..], more, &["--force"]].concat());
            run(&["in.csv", "-o", "out.csv"]);
            let expected: String = counts.keys().map(|key| format!("{key}\n")).collect();
            let quoted = if name.contains(delimiter) || name.contains('"') || name.is_empty() {
                quoted
            } else {
                name
            };
            assert_eq!(text("out.csv"), format!("{quoted}\n{expected}"));
            run(&["in.csv", "-o", "counts.csv", "--counts"]);
            let records = counts.iter().map(|(key, count)| format!("{key}{delimiter}{count}\n"));
            let header = format!("{quoted}{delimiter}count\n");
            assert_eq!(text("counts.csv"), header + &records.collect::<String>());
            // Reading both files again gives the same keys.
            for name in ["out.csv", "counts.csv"] {
                run(&[name, "-o", "again.csv"]);
                assert_eq!(text("again.csv"), text("out.csv"));
            }
        }
    }
    // Between CSV and other formats.
    fs::write(at.join("in.txt"), lines(&keys)).unwrap();
    let to = ["--text", "--type", "i64", "in.txt", "--force"];
    succeeds(at, &[&to[..], &["-o", "key.csv", "--output-format", "csv"]].concat());
    let from = ["--csv", "--column", "key", "--type", "i64", "key.csv", "--force"];
    succeeds(at, &[&from[..], &["-o", "key.txt", "--output-format", "text"]].concat());
    assert_eq!(text("key.txt"), lines(&counts.into_keys().collect::<Vec<_>>()));
    let semicolons = ["-o", "key.csv", "--output-format", "csv", "--counts", "--delimiter", ";"];
    succeeds(at, &[&to[..], &semicolons].concat());
    assert!(text("key.csv").starts_with("key;count\n"));
    refused(at, &[&to[..], &["-o", "out", "--delimiter", ";"]].concat(), "--delimiter is for CSV");
    fs::write(at.join("count.csv"), "count\n5\n").unwrap();
    let twice = ["--csv", "--column", "count", "count.csv", "--counts", "-o", "out"];
    refused(at, &twice, "both be a column called count");
}

#[test]
fn quotes_that_may_not_be_there_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let column = ["--csv", "--column", "id", "in.csv", "-o", "out"];
    // An earlier version silently lost the rows after an unclosed quote, with exit code 0.
    let rows = "4,x\n".repeat(100_000);
    fs::write(at.join("in.csv"), format!("id,b\n1,x\n2,\"y\n{rows}")).unwrap();
    refused(at, &column, "in.csv: line 3, column 3: a quote that is never closed");
    fs::write(at.join("in.csv"), format!("id,b\n1,x\n\"5\"6,y\n{rows}")).unwrap();
    let words = "in.csv: line 3, column 4: '6' stands behind the closing quote of a field";
    refused(at, &column, words);
    let output = succeeds(at, &[&column[..], &["--lenient", "--quiet", "--force"]].concat());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("1, the first: in.csv: line 3, column 4"), "{stderr}");
    assert_eq!(fs::read_to_string(at.join("out")).unwrap(), "id\n1\n4\n");
}

#[test]
fn json_is_printed_where_words_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    fs::write(at.join("in.txt"), "1\nx\n2\n").unwrap();
    let output = succeeds(at, &["--text", "--lenient", "in.txt", "-o", "out", "-q", "--json"]);
    assert!(output.stderr.is_empty());
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&summary["distinct"], &summary["skipped_lines"]), (&2.into(), &1.into()));
}

#[test]
fn help_says_what_this_build_has() {
    let output = Command::new(env!("CARGO_BIN_EXE_spec")).args(["unique", "--help"]).output();
    let help = String::from_utf8(output.unwrap().stdout).unwrap();
    let (has, lacks) =
        ("raw, text, csv, parquet]", "This build reads and writes no Parquet or Arrow files");
    let [has, lacks] = [has, lacks].map(|words| help.contains(words));
    assert_eq!((has, lacks), (cfg!(feature = "parquet"), cfg!(not(feature = "parquet"))), "{help}");
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

    // Text to Parquet and back; the type of the keys comes from the Parquet column.
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
    let back = ["-o", "back.txt", "--force", "--output-format", "text"];
    succeeds(at, &[&["--column", "key", "again.parquet"][..], &back].concat());
    assert_eq!(text("back.txt"), expected);
    let twice = ["--column", "count", "--counts", "keys.parquet", "-o", "out"];
    refused(at, &twice, "both be a column called count");
    let same = ["--column", "key", "keys.parquet", "-o", "keys.parquet", "--force"];
    refused(at, &same, "same file");
}

/// Files that polars wrote, of the same columns.
#[cfg(feature = "parquet")]
const WRITTEN: [&str; 2] = ["polars.parquet", "polars.arrow"];

/// Copies the files of [`WRITTEN`] to `folder`.
#[cfg(feature = "parquet")]
fn written(folder: &Path) {
    for name in WRITTEN {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/columns").join(name);
        fs::copy(from, folder.join(name)).unwrap();
    }
}

#[cfg(feature = "parquet")]
#[test]
fn columns_that_another_library_wrote() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    written(at);
    // The keys that `tests/columns/make.py` wrote.
    let expected = [
        ("key", "0\t40\n3\t40\n7\t80\n18446744073709551615\t40\n"),
        ("signed", "-9223372036854775808\t40\n-3\t40\n0\t40\n7\t80\n"),
        ("narrow", "0\t40\n3\t40\n7\t80\n255\t40\n"),
    ];
    let text = ["-o", "counts.txt", "--force", "--counts", "--output-format", "text"];
    for (column, counts) in expected {
        for name in WRITTEN {
            succeeds(at, &[&["--column", column, name][..], &text].concat());
            assert_eq!(fs::read_to_string(at.join("counts.txt")).unwrap(), counts, "{name}");
        }
        // A Parquet and an Arrow file can be inputs of one run.
        let both = ["--column", column, WRITTEN[0], WRITTEN[1], "--count-only"];
        assert_eq!(succeeds(at, &both).stdout, b"4\n");
    }
}

#[cfg(feature = "parquet")]
#[test]
fn columns_larger_than_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let keys = random_keys(16_000_000, 24);
    let raw: Vec<u8> = keys.iter().flat_map(|key| key.to_le_bytes()).collect();
    fs::write(at.join("raw"), raw).unwrap();
    succeeds(at, &["raw", "-o", "keys.parquet", "--output-format", "parquet"]);
    let sizes = ["--memory", "96MiB", "--temp", ".", "--json", "--counts"];
    // The same file twice: every key an even number of times.
    let inputs = ["--column", "key", "keys.parquet", "keys.parquet", "-o", "out.parquet"];
    let printed = succeeds(at, &[&inputs[..], &sizes].concat()).stdout;
    let summary: serde_json::Value = serde_json::from_slice(&printed).unwrap();
    let mut expected = keys;
    expected.sort_unstable();
    expected.dedup();
    assert!(summary["runs"].as_u64().unwrap() > 1, "{summary}");
    assert_eq!(summary["distinct"], expected.len());
    assert_eq!(summary["keys"], 2 * expected.len());
    let count = succeeds(at, &["--column", "count", "out.parquet", "--count-only"]);
    assert_eq!(count.stdout, b"1\n");
    succeeds(at, &["--column", "key", "out.parquet", "-o", "back", "--output-format", "raw"]);
    let expected: Vec<u8> = expected.iter().flat_map(|key| key.to_le_bytes()).collect();
    assert!(fs::read(at.join("back")).unwrap() == expected);
}

#[cfg(feature = "parquet")]
#[test]
fn a_bad_column_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    written(at);
    let column = |column, more: &[&str], words: &str| {
        refused(at, &[&["--column", column, "-o", "out"], more].concat(), words);
    };
    for name in WRITTEN {
        let has = format!("{name}: has no column id; it has key, signed, narrow, gaps, word, real");
        column("id", &[name], &has);
        column("key", &[name, "--type", "i64"], &format!("{name}: column key is u64, not i64"));
        let gaps = format!("{name}: column gaps has nulls (40 seen), and a null is no key");
        column("gaps", &[name], &gaps);
        column("word", &[name], &format!("{name}: column word is "));
        column("real", &[name], &format!("{name}: column real is "));
    }
    // The message names the bad file among several, for a wrong name or a wrong type.
    fs::write(at.join("in.txt"), "1\n2\n").unwrap();
    for (key, words) in
        [("i32", "other.parquet: column key is i32, not u64"), ("u64", "other.parquet: has no")]
    {
        let to = ["--output-format", "parquet", "--force", "-o", "other.parquet"];
        succeeds(at, &[&["--text", "--type", key, "in.txt"][..], &to].concat());
        let first = if key == "i32" { "key" } else { "narrow" };
        column(first, &["polars.arrow", "other.parquet"], words);
    }
    column("key", &["polars.parquet", "in.txt"], "in.txt: is neither a Parquet nor an Arrow file");
    column("key", &["in.txt"], "in.txt: is neither a Parquet nor an Arrow file");
    column("key", &["nowhere"], "nowhere: cannot read: there is no such file or folder");
    column("key", &["-"], "cannot be read from stdin");
    column("key", &["polars.parquet", "-"], "cannot be read from stdin");

    let whole = fs::read(at.join("polars.parquet")).unwrap();
    fs::write(at.join("short.parquet"), &whole[..whole.len() - 100]).unwrap();
    column("key", &["short.parquet"], "short.parquet: is no Parquet file that can be read");
    let whole = fs::read(at.join("polars.arrow")).unwrap();
    fs::write(at.join("short.arrow"), &whole[..whole.len() - 100]).unwrap();
    column("key", &["short.arrow"], "short.arrow: is no Arrow file that can be read");
}
