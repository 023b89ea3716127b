//! `spec unique` in a pipeline, with typical inputs of newcomers, and with logs.

#![cfg(unix)]

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn spec(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spec"));
    command.args(["unique", "--device", "cpu"]);
    if !arguments.iter().any(|argument| argument.starts_with("--threads")) {
        command.args(["--threads", "2"]);
    }
    command.args(arguments).current_dir(folder).stdin(Stdio::null());
    command
}

fn run(folder: &Path, arguments: &[&str]) -> Output {
    spec(folder, arguments).output().unwrap()
}

#[track_caller]
fn succeeds(folder: &Path, arguments: &[&str]) -> Output {
    let output = run(folder, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", words(&output.stderr));
    output
}

/// Runs a command that must fail with one sentence that contains `expected`, and must
/// leave no output.
#[track_caller]
fn refused(folder: &Path, arguments: &[&str], expected: &str) {
    let output = run(folder, arguments);
    let stderr = words(&output.stderr);
    assert!(!output.status.success(), "{arguments:?} succeeded");
    assert!(stderr.starts_with("error: ") && stderr.contains(expected), "{stderr}");
    assert_eq!(stderr.trim_end().lines().count(), 1, "{stderr}");
    assert!(!folder.join("out").exists() && output.stdout.is_empty(), "{arguments:?}");
}

fn words(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn raw(keys: &[u64]) -> Vec<u8> {
    keys.iter().flat_map(|key| key.to_le_bytes()).collect()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    // Stored blocks, as by `gzip -0`, in a member without a name.
    let mut packed = vec![0x1F, 0x8B, 8, 0, 0, 0, 0, 0, 0, 255];
    let mut chunks = bytes.chunks(0xFFFF).peekable();
    while let Some(chunk) = chunks.next() {
        let len = chunk.len() as u16;
        packed.push(chunks.peek().is_none().into());
        packed.extend_from_slice(&[len.to_le_bytes(), (!len).to_le_bytes()].concat());
        packed.extend_from_slice(chunk);
    }
    let mut crc = !0u32;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = crc >> 1 ^ (0xEDB8_8320 & (crc & 1).wrapping_neg());
        }
    }
    packed.extend_from_slice(&[(!crc).to_le_bytes(), (bytes.len() as u32).to_le_bytes()].concat());
    packed
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    // RFC 8878: raw blocks in a frame with a window of 8 MiB.
    let mut packed = vec![0x28, 0xB5, 0x2F, 0xFD, 0, 13 << 3];
    let mut chunks = bytes.chunks(100_000).peekable();
    while let Some(chunk) = chunks.next() {
        let header = (chunk.len() as u32) << 3 | u32::from(chunks.peek().is_none());
        packed.extend_from_slice(&header.to_le_bytes()[..3]);
        packed.extend_from_slice(chunk);
    }
    packed
}

/// The hint for reading a Parquet or Arrow file, in a build with or without Parquet.
const COLUMNS: &str = if cfg!(feature = "parquet") {
    "--column NAME reads a column of it"
} else {
    "this build has no Parquet and no Arrow; one that has is made by `cargo build --release \
     --features parquet`"
};

#[test]
fn what_is_plainly_no_raw_key_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let pad = |head: &[u8]| [head, &[7; 4096][head.len()..]].concat();
    let cases: [(&str, Vec<u8>, &str); 9] = [
        ("p", pad(b"PAR1\x15\x04"), &format!("p: is a Parquet file, not raw keys; {COLUMNS}")),
        ("a", pad(b"ARROW1\0\0"), &format!("a: is an Arrow file, not raw keys; {COLUMNS}")),
        (
            "n",
            b"12345\n678\n999999\n".repeat(8),
            "n: is text, one number per line, not raw keys; --text",
        ),
        ("d", b"20240101".to_vec(), "d: is text, one number per line"),
        ("c", b"id,word\n1,abcdefg\n".repeat(4), "c: is text, not raw keys; --text reads one"),
        ("x", pad(b"\xFD7zXZ\0"), "x: is an xz file, not raw keys; decompress it first"),
        ("z", pad(b"PK\x03\x04"), "z: is a zip file"),
        ("y", pad(b"\x93NUMPY\x01\0"), "y: is a NumPy file, not raw keys; write its array"),
        ("g", gzip(b"1\n22\n333\n4444\n"), "g: is text, one number per line, not raw keys"),
    ];
    for (name, content, expected) in &cases {
        fs::write(at.join(name), content).unwrap();
        refused(at, &[name, "-o", "out"], expected);
        refused(at, &[name, "--count-only"], "; --raw takes its bytes as they are");
        // From a pipe too.
        let stdin = File::open(at.join(name)).unwrap();
        let output = spec(at, &["-", "--count-only"]).stdin(stdin).output().unwrap();
        assert!(words(&output.stderr).contains("stdin: is "), "{}", words(&output.stderr));
        if content.len() % 8 == 0 {
            succeeds(at, &["--raw", name, "--count-only"]);
        }
    }
    refused(
        at,
        &["--text", "p", "-o", "out"],
        &format!("p: is a Parquet file, not text; {COLUMNS}"),
    );
    refused(at, &["--text", "x", "-o", "out"], "x: is an xz file, not text; decompress it first");
    // Bytes that could be keys are taken as keys.
    fs::write(at.join("keys"), raw(&[0x31_5241_5041, 5, 0x0A31_0A32_0A33_0A34])).unwrap();
    assert_eq!(succeeds(at, &["keys", "--count-only"]).stdout, b"3\n");
}

#[test]
fn a_name_that_says_something_else_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    fs::write(at.join("keys"), raw(&[3, 1, 3])).unwrap();
    fs::write(at.join("text"), "3\n1\n3\n").unwrap();
    for (name, says) in
        [("x.parquet", "Parquet"), ("x.PQ", "Parquet"), ("x.csv", "CSV"), ("x.gz", "packed")]
    {
        let expected = format!("{name}: its name says {says}, but it would be raw keys");
        refused(at, &["keys", "-o", name], &expected);
        succeeds(at, &["keys", "-o", name, "--output-format", "raw"]);
        assert_eq!(fs::read(at.join(name)).unwrap(), raw(&[1, 3]));
        succeeds(at, &["--raw", "keys", "-o", name, "--force"]);
    }
    // The hint for making the output Parquet; without Parquet, the hint is another build.
    let how = if cfg!(feature = "parquet") { "--output-format parquet makes it" } else { COLUMNS };
    for words in ["its name says Parquet", how] {
        refused(at, &["--text", "text", "-o", "y.parquet"], words);
    }
    let csv = "its name says CSV, but it would be text, --output-format csv makes it";
    refused(at, &["--text", "text", "-o", "y.csv"], csv);
    for name in ["y.txt", "y", "y.bin"] {
        succeeds(at, &["--text", "text", "-o", name]);
    }
}

#[test]
fn keys_go_to_stdout_and_the_summary_to_stderr() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let keys: Vec<u64> = (0..3_000_000).map(|key| key * 7919 % 2_000_003).collect();
    let mut distinct = keys.clone();
    distinct.sort_unstable();
    distinct.dedup();
    fs::write(at.join("keys"), raw(&keys)).unwrap();
    // In memory, and spilled.
    for memory in ["1GiB", "32MiB"] {
        for stdout in ["-", "/dev/stdout"] {
            let output = succeeds(at, &["keys", "-o", stdout, "--memory", memory]);
            assert!(output.stdout == raw(&distinct), "{memory}");
            assert!(words(&output.stderr).contains("duplicates"), "{}", words(&output.stderr));
        }
        let text = ["--output-format", "text", "--counts", "--json", "--memory", memory];
        let output = succeeds(at, &[&["keys", "keys", "-o", "-"][..], &text].concat());
        let lines = words(&output.stdout);
        assert!(lines.starts_with("0\t") && lines.lines().count() == distinct.len());
        let summary: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
        assert_eq!(summary["output_bytes"], lines.len());
        let counted = succeeds(at, &["keys", "-o", "-", "--counts", "--quiet", "--memory", memory]);
        assert_eq!(counted.stdout.len(), distinct.len() * 16);
        assert_eq!(words(&counted.stderr), "");
    }
    let quiet = succeeds(at, &["keys", "-o", "quiet", "--quiet"]);
    assert_eq!((words(&quiet.stdout), words(&quiet.stderr)), Default::default());
    // Appending to the input would never end.
    let append = File::options().append(true).open(at.join("keys")).unwrap();
    let output = spec(at, &["keys", "-o", "-"]).stdout(append).output().unwrap();
    assert!(words(&output.stderr).contains("same file as the input"));
    assert_eq!(fs::metadata(at.join("keys")).unwrap().len(), 24_000_000);
    // If the reader leaves, no message is printed.
    let mut child = spec(at, &["keys", "-o", "-"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut some = [0; 100];
    child.stdout.take().unwrap().read_exact(&mut some).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), words(&output.stderr)), (Some(141), String::new()));
}

#[test]
fn compressed_inputs_are_decompressed() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let keys: Vec<u64> = (0..200_000).map(|key| key % 150_000).collect();
    let text: String = keys.iter().map(|key| format!("{key}\n")).collect();
    for (program, packed) in [("gzip", gzip as fn(&[u8]) -> Vec<u8>), ("zstd", zstd)] {
        // Two members, one after the other, are one file.
        let all = raw(&keys);
        let (head, tail) = all.split_at(800_000);
        fs::write(at.join("keys"), [packed(head), packed(tail)].concat()).unwrap();
        fs::write(at.join("text"), packed(text.as_bytes())).unwrap();
        if program == "zstd" && cfg!(not(feature = "zstd")) {
            let left_out = "keys: is a zstd file, which this build does not decompress; one that \
                            does is made with `--features zstd`";
            refused(at, &["keys", "-o", "out"], left_out);
            continue;
        }
        for arguments in [&["keys"][..], &["keys", "keys"], &["--text", "text"]] {
            let output = succeeds(at, &[arguments, &["--count-only"]].concat());
            assert_eq!(output.stdout, b"150000\n", "{program} {arguments:?}");
        }
        let stdin = File::open(at.join("keys")).unwrap();
        let output = spec(at, &["-", "--count-only"]).stdin(stdin).output().unwrap();
        assert_eq!(output.stdout, b"150000\n", "{program}");
        // Damaged, and cut short.
        let mut bytes = fs::read(at.join("keys")).unwrap();
        bytes.truncate(bytes.len() - 5);
        fs::write(at.join("short"), &bytes).unwrap();
        let damaged = format!("short: cannot read: it is a {program} file and damaged");
        refused(at, &["short", "-o", "out"], &damaged);
    }
}

#[test]
fn a_column_of_csv_and_text_with_a_header() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    fs::write(at.join("a.csv"), "user,\"the id\"\n\"x, y\",7\nz,3\nw,7\n").unwrap();
    fs::write(at.join("b.csv.gz"), gzip(b"the id;user\n9;x\n;y\n")).unwrap();
    let output = succeeds(at, &["--csv", "--column", "the id", "a.csv", "-o", "-"]);
    assert_eq!(words(&output.stdout), "the id\n3\n7\n");
    let semicolon = ["--csv", "--column", "the id", "--delimiter", ";", "b.csv.gz", "-o"];
    let empty = "b.csv.gz: line 3, column 1: the field `the id` is empty";
    refused(at, &[&semicolon[..], &["out"]].concat(), empty);
    let output = succeeds(at, &[&semicolon[..], &["-", "--skip-nulls"]].concat());
    assert_eq!(words(&output.stdout), "the id\n9\n");
    assert!(words(&output.stderr).contains("nulls                      1"));
    let counted = ["--csv", "--column", "the id", "--delimiter", ";", "b.csv.gz", "--skip-nulls"];
    let output = succeeds(at, &[&counted[..], &["--count-only"]].concat());
    assert!(words(&output.stderr).starts_with("nulls   "), "{}", words(&output.stderr));
    // With --skip-nulls and --quiet, skipped nulls are not reported.
    for more in [&["-o", "-", "-q"][..], &["--count-only", "-q"]] {
        let output = succeeds(at, &[&counted[..], more].concat());
        assert_eq!(words(&output.stderr), "", "{more:?}");
    }
    refused(at, &["--csv", "--column", "id", "a.csv", "-o", "out"], "it has user, the id");

    fs::write(at.join("ids.txt"), "id\n5\n5\nfive\n\n6\n").unwrap();
    refused(at, &["--text", "ids.txt", "-o", "out"], "ids.txt: line 1, column 1: 'i' is no digit");
    let skip = ["--text", "--skip-lines", "1", "ids.txt", "-o"];
    refused(at, &[&skip[..], &["out"]].concat(), "ids.txt: line 4, column 1: 'f' is no digit");
    let output = succeeds(at, &[&skip[..], &["-", "--lenient"]].concat());
    assert_eq!(words(&output.stdout), "5\n6\n");
    let first =
        "bad lines                  2, the first: ids.txt: line 4, column 1: 'f' is no digit";
    assert!(words(&output.stderr).contains(first), "{}", words(&output.stderr));
    // Bad lines are reported even with --quiet.
    let quiet = succeeds(at, &[&skip[..], &["-", "--lenient", "--quiet"]].concat());
    assert!(words(&quiet.stderr).starts_with("bad lines"), "{}", words(&quiet.stderr));
    let json = ["--text", "--lenient", "ids.txt", "--count-only", "--json"];
    let summary: serde_json::Value = serde_json::from_slice(&succeeds(at, &json).stdout).unwrap();
    assert_eq!((&summary["skipped_lines"], &summary["nulls"]), (&3.into(), &0.into()));
    assert!(summary["first_skipped"].as_str().unwrap().starts_with("ids.txt: line 1, column 1"));
}

#[test]
fn progress_in_a_log() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let keys: Vec<u64> = (0..3_000_000u64).map(|key| key.wrapping_mul(0x9E37_79B9)).collect();
    fs::write(at.join("keys"), raw(&keys)).unwrap();
    let run = ["keys", "-o", "out", "--memory", "32MiB", "--force"];
    assert_eq!(words(&succeeds(at, &run).stderr), "");
    let stderr = words(&succeeds(at, &[&run[..], &["--progress"]].concat()).stderr);
    for line in stderr.lines() {
        let (phase, far) = line.split_once(": ").unwrap();
        assert!(["sort", "merge", "finish"].contains(&phase), "{line}");
        assert!(phase == "finish" || far.contains(" of 24.0 MB"), "{line}");
    }
    assert!(stderr.contains("sort: "), "{stderr}");
}

#[test]
fn bad_values_are_refused_in_words() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    fs::write(at.join("keys"), raw(&[1])).unwrap();
    let size = "expected a number of bytes with a unit, such as 512MiB or 4GB";
    let threads = "expected a number from 1 to 4096";
    for (option, value, expected) in [
        ("--memory", "abc", size),
        ("--memory", "", size),
        ("--device-memory", "-1", size),
        ("--device-memory", "5 apples", size),
        ("--threads", "0", threads),
        ("--threads", "x", threads),
        ("--threads", "99999999999999999999", threads),
        ("--temp", "/nosuch", "--temp /nosuch: there is no such folder"),
        ("--temp", "keys", "--temp keys: is no folder"),
    ] {
        let option = format!("{option}={value}");
        refused(at, &["keys", "-o", "out", &option], expected);
    }
}

/// The number of threads of a process that waits for input.
#[cfg(target_os = "linux")]
#[test]
fn one_thread_is_one_thread() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_spec"));
    command.args(["unique", "--device", "cpu", "--threads", "1", "-", "--count-only"]);
    let mut child = command
        .current_dir(folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(&raw(&[1; 10_000])).unwrap();
    let names = || {
        let tasks = format!("/proc/{}/task", child.id());
        let names = fs::read_dir(tasks)
            .unwrap()
            .filter_map(|task| fs::read_to_string(task.unwrap().path().join("comm")).ok());
        names.collect::<Vec<_>>()
    };
    std::thread::sleep(std::time::Duration::from_millis(500));
    // The main thread, the thread that waits for signals, and the operator's thread.
    let names = names();
    assert!(names.len() <= 3, "{names:?}");
    drop(stdin);
    assert_eq!(child.wait_with_output().unwrap().stdout, b"1\n");
}

#[test]
#[cfg(feature = "pages")]
fn completions_and_manual_pages() {
    let spec = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_spec")).args(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", words(&output.stderr));
        words(&output.stdout)
    };
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = spec(&["completions", shell]);
        assert!(script.contains("skip-nulls") && script.contains("unique"), "{shell}");
    }
    let page = spec(&["man"]);
    assert!(page.starts_with(".ie") || page.starts_with(".TH"), "{page}");
    assert!(page.contains("unique"), "{page}");
    let page = spec(&["man", "unique"]);
    assert!(page.contains(".TH spec-unique") && page.contains("skip\\-nulls"), "{page}");
    let none = Command::new(env!("CARGO_BIN_EXE_spec")).args(["man", "nothing"]).output().unwrap();
    assert!(!none.status.success() && words(&none.stderr).contains("there is no command nothing"));
}
