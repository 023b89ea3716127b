//! The program's output on a terminal, and its behaviour without a terminal.

#![cfg(unix)]

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const SPEC: &str = env!("CARGO_BIN_EXE_spec");

fn run(arguments: &[&str]) -> Output {
    Command::new(SPEC).args(arguments).output().unwrap()
}

/// Checks that the output has no control characters except line ends and tabs.
fn is_harmless(output: &Output, what: &str) -> String {
    let text = [&output.stdout[..], &output.stderr].concat();
    let text = String::from_utf8(text).unwrap();
    let bad = text.chars().find(|c| c.is_control() && !"\n\t".contains(*c));
    assert_eq!(bad, None, "{what}: {text:?}");
    text
}

/// A text whose control characters clear a screen, set the title of a window and ring the bell,
/// as escape sequences and as single C1 characters.
const HOSTILE: &str = "\u{1b}[2J\u{1b}]0;owned\u{7}\u{9b}31m\rover";

#[test]
fn names_from_a_user_do_not_steer_a_terminal() {
    let refused: &[&[&str]] = &[
        &["decode", "--prompt", HOSTILE],
        &["decode", "--device", HOSTILE],
        &["verify", "--device", HOSTILE],
        &["unique", HOSTILE, "--count-only"],
        &["unique", "no-such-file", "-o", "-", "--device", HOSTILE],
        &["unique", "no-such-file", "--count-only", "--temp", HOSTILE],
        &["verify", HOSTILE],
        &["verify", "--seed", HOSTILE],
        #[cfg(feature = "pages")]
        &["man", HOSTILE],
    ];
    for &arguments in refused {
        let output = run(arguments);
        assert!(!output.status.success(), "{arguments:?}");
        let text = is_harmless(&output, &format!("{arguments:?}"));
        // clap removes escape sequences except their last character.
        let named = text.contains("\\rover") || text.contains("no-such-file");
        assert!(named, "{arguments:?}: the name is not told: {text:?}");
    }
    // Arguments that clap refuses, with the tip that it adds.
    let unknown = format!("--{HOSTILE}");
    for arguments in [&[HOSTILE][..], &["decode", &unknown]] {
        is_harmless(&run(arguments), &format!("{arguments:?}"));
    }
    let two_lines = run(&["decode", "--device", "one\nerror: two"]);
    let stderr = String::from_utf8(two_lines.stderr).unwrap();
    assert!(stderr.starts_with("error: `one\\nerror: two` is no device"), "{stderr}");
}

#[test]
fn a_text_does_not_steer_a_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hostile.txt");
    std::fs::write(&path, format!("one two {HOSTILE} three\n").repeat(30)).unwrap();
    let free = ["--model-ms", "0"];
    let decode =
        ["decode", "--tokens", "90", "--device", "cpu", "--prompt", path.to_str().unwrap()];
    let text = is_harmless(&run(&[&decode[..], &free].concat()), "decode");
    assert!(text.contains("\\u001b[2J"), "the prompt's own characters do not come: {text:?}");
    let json = run(&[&decode[..], &free, &["--json"]].concat());
    is_harmless(&json, "decode --json");
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert!(json["text"].as_str().unwrap().contains("\u{1b}[2J"), "JSON has the text as it is");
}

#[test]
fn too_many_threads_in_the_environment_are_refused() {
    for (threads, works) in [("99999", false), ("4097", false), ("2", true), ("many", true)] {
        let mut command = Command::new(SPEC);
        command.arg("devices").env("RAYON_NUM_THREADS", threads);
        let output = command.output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.success(), works, "{threads}: {stderr}");
        let words =
            format!("error: RAYON_NUM_THREADS is {threads}, expected a number from 0 to 4096\n");
        assert_eq!(stderr, if works { String::new() } else { words });
    }
}

/// If stdout is closed when the program starts, writing keys is an error: keys must not be lost
/// without a message.
#[test]
fn a_closed_stdout_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("keys.txt"), "3\n1\n3\n").unwrap();
    let shell = |line: &str| {
        let line = line.replace("spec", SPEC);
        Command::new("sh").args(["-c", &line]).current_dir(folder.path()).output().unwrap()
    };
    let unique = "spec unique --device cpu --text -o - keys.txt";
    let closed = shell(&format!("{unique} >&-"));
    let stderr = String::from_utf8(closed.stderr).unwrap();
    assert_eq!(closed.status.code(), Some(1), "{stderr}");
    assert!(stderr.starts_with("error: stdout: ") && stderr.contains("it is closed"), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    // To discard the output, a user redirects it to /dev/null.
    let nowhere = shell(&format!("{unique} -q >/dev/null"));
    assert!(nowhere.status.success(), "{}", String::from_utf8_lossy(&nowhere.stderr));
    let open = shell(&format!("{unique} -q"));
    assert_eq!(open.stdout, b"1\n3\n", "{}", String::from_utf8_lossy(&open.stderr));
}

/// Random cases per operator: so many that they take more than a minute.
#[cfg(target_os = "linux")]
const CASES: usize = 100_000;

/// A part of the bar's text: the number of random cases of all operators.
#[cfg(target_os = "linux")]
fn total() -> String {
    format!("/{} ", CASES * spec::ops::ALL.len())
}

/// The output of a command on a terminal of 40 columns until the command is interrupted.
#[cfg(target_os = "linux")]
fn interrupted_on_a_terminal(command: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let typescript = folder.path().join("terminal");
    // `exec` replaces the shell by the program, so the shell's process number is the program's.
    // A process in the background of a script, or under nohup, inherits ignored signals, so
    // `env` restores the default.
    let line = format!(
        "stty cols 40 rows 20; echo $$ >number; exec env --default-signal {SPEC} {command}"
    );
    let mut terminal = Command::new("script")
        .args(["--quiet", "--flush", "--command", &line])
        .arg(&typescript)
        .current_dir(folder.path())
        // Without the name of a terminal no bar is drawn.
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let shown = || std::fs::read(&typescript).unwrap_or_default();
    let started = Instant::now();
    while !String::from_utf8_lossy(&shown()).contains(&total()) {
        assert!(started.elapsed() < Duration::from_secs(60), "there is no bar");
        assert!(terminal.try_wait().unwrap().is_none(), "it has ended");
        std::thread::sleep(Duration::from_millis(50));
    }
    let number = std::fs::read_to_string(folder.path().join("number")).unwrap();
    assert!(Command::new("kill").args(["-s", "INT", number.trim()]).status().unwrap().success());
    terminal.wait().unwrap();
    String::from_utf8(shown()).unwrap()
}

/// A bar is not longer than a line, and is cleared when the program is interrupted.
#[cfg(target_os = "linux")]
#[test]
fn a_bar_fits_the_terminal_and_is_gone_after_an_interrupt() {
    let (total, command) = (total(), format!("verify --device cpu --cases {CASES}"));
    let text = interrupted_on_a_terminal(&command);
    let drawn = text.lines().find(|line| line.contains(&total)).unwrap();
    // The drawn text, without the sequences that move the cursor or clear.
    let pieces: Vec<&str> = drawn.split(['\r', '\u{1b}']).collect();
    let bars: Vec<&&str> = pieces.iter().filter(|piece| piece.contains(&total)).collect();
    assert!(!bars.is_empty(), "{text:?}");
    for bar in bars {
        let columns = bar.trim_start_matches("[2K").trim_start_matches("[1B").chars().count();
        assert!(columns <= 40, "{columns} columns: {bar:?}");
    }
    // After the last bar, its line is cleared and nothing more is drawn.
    let after = &text[text.rfind(&total).unwrap()..];
    let (_, after) = after.split_once("\u{1b}[2K").unwrap_or_else(|| panic!("stays: {text:?}"));
    let rest = after.lines().next().unwrap_or_default();
    assert!(rest.trim_matches('\r').is_empty(), "left behind: {rest:?}");
}
