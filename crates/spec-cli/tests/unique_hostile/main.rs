//! `spec unique` in hostile conditions. The modules test limits of every kind and other users; the
//! tests below are about damaged files, files whose content contradicts their name or size, terminals,
//! closed streams and GPUs.

#![cfg(unix)]

mod limits;
mod users;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A run that takes longer counts as hanging.
const PATIENCE: Duration = Duration::from_secs(60);

const SPEC: &str = env!("CARGO_BIN_EXE_spec");

fn spec(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(SPEC);
    command.args(["unique", "--device", "cpu", "--threads", "2", "--temp", "temp"]);
    command.args(arguments).current_dir(folder);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A command for the program, started by a shell that first runs `before`.
fn spec_after(folder: &Path, before: &str, arguments: &str) -> Command {
    let mut command = Command::new("sh");
    let run =
        format!("{before}; exec '{SPEC}' unique --device cpu --threads 2 --temp temp {arguments}");
    command.arg("-c").arg(run).current_dir(folder);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs a command to its end, which must come soon.
#[track_caller]
fn run(command: &mut Command) -> Output {
    let mut child = command.spawn().unwrap();
    ends(&mut child);
    child.wait_with_output().unwrap()
}

#[track_caller]
fn ends(child: &mut Child) {
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > PATIENCE {
            _ = child.kill();
            panic!("it hangs");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn words(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[track_caller]
fn succeeds(command: &mut Command) -> Output {
    let output = run(command);
    assert!(output.status.success(), "{}: {}", output.status, words(&output.stderr));
    output
}

/// Runs a command that must exit with status 1 after one sentence that contains `expected`. A
/// command that a signal kills has no status.
#[track_caller]
fn refused(command: &mut Command, expected: &str) {
    let output = run(command);
    let stderr = words(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{}: {stderr}", output.status);
    // Naming a software renderer gives a warning, which is no error.
    let is_warning = |line: &&str| line.starts_with("warning: wgpu:");
    let lines: Vec<&str> = stderr.trim_end().lines().filter(|line| !is_warning(line)).collect();
    assert!(lines[0].starts_with("error: ") && lines[0].contains(expected), "{stderr}");
    assert_eq!(lines.len(), 1, "{stderr}");
}

/// A folder for a test, with a folder for temporary files.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("temp")).unwrap();
    folder
}

fn names(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> =
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn make_pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

fn keys(count: u64) -> Vec<u8> {
    (0..count).flat_map(|key| key.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes()).collect()
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

/// A run that has spilled keys and waits for more input, and its spilled files.
fn spilled(at: &Path, arguments: &str) -> (Child, std::process::ChildStdin, Vec<PathBuf>) {
    let mut command = spec_after(at, "true", arguments);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(&keys(3_000_000)).unwrap();
    let files = || -> Vec<(PathBuf, u64)> {
        let folders = names(&at.join("temp")).into_iter().map(|name| at.join("temp").join(name));
        let files = folders.flat_map(|folder| {
            names(&folder).into_iter().map(move |name| folder.join(name)).collect::<Vec<_>>()
        });
        let runs = files.filter(|path| path.extension().is_some());
        runs.map(|path| (path.clone(), fs::metadata(path).unwrap().len())).collect()
    };
    let start = Instant::now();
    let (mut before, mut same) = (files(), 0);
    // Waits until nothing has been written for a while.
    while same < 10 {
        assert!(start.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(50));
        let now = files();
        same = if now == before && !now.is_empty() { same + 1 } else { 0 };
        before = now;
    }
    (child, stdin, before.into_iter().map(|(path, _)| path).collect())
}

#[test]
fn damage_to_what_is_spilled_is_an_error_that_leaves_nothing() {
    let folder = folder();
    let at = folder.path();
    let flip = |path: &Path| {
        let mut bytes = fs::read(path).unwrap();
        let middle = bytes.len() / 3;
        bytes[middle] ^= 4;
        fs::write(path, bytes).unwrap();
    };
    let zero = |path: &Path| {
        let len = fs::metadata(path).unwrap().len();
        fs::write(path, vec![0; len as usize]).unwrap();
    };
    let garble = |path: &Path| {
        let len = fs::metadata(path).unwrap().len();
        fs::write(path, &keys(len / 8 + 1)[..len as usize]).unwrap();
    };
    let cut = |path: &Path| {
        let file = File::options().write(true).open(path).unwrap();
        file.set_len(fs::metadata(path).unwrap().len() - 1).unwrap();
    };
    let changed = "is not what was written there: the disk or the memory is faulty";
    let short = "cannot read: it is shorter than it was written";
    type Damage = fn(&Path);
    let damages: [(Damage, &str); 4] =
        [(flip, changed), (zero, changed), (garble, changed), (cut, short)];
    for (damage, expected) in damages {
        for more in ["", " --counts"] {
            let arguments = format!("- --memory 32MiB -o out{more}");
            let (mut child, stdin, files) = spilled(at, &arguments);
            let path = if more.is_empty() {
                files.first()
            } else {
                files.iter().find(|path| path.extension().is_some_and(|kind| kind == "counts"))
            };
            let path = path.unwrap();
            damage(path);
            drop(stdin);
            ends(&mut child);
            let output = child.wait_with_output().unwrap();
            let stderr = words(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{}: {stderr}", output.status);
            let name = format!("{}", path.file_name().unwrap().display());
            assert!(stderr.contains(&name) && stderr.contains(expected), "{name}: {stderr}");
            assert_eq!(stderr.trim_end().lines().count(), 1, "{stderr}");
            assert_eq!((names(at), names(&at.join("temp"))), (vec!["temp".to_owned()], vec![]));
        }
    }
}

/// The lines on a terminal of `columns` columns after the bytes `sent`; and the length of the
/// longest line at any time.
#[cfg(target_os = "linux")]
fn on_screen(sent: &str, columns: usize) -> (Vec<String>, usize) {
    let (mut lines, mut row, mut column, mut longest) = (vec![Vec::new()], 0, 0, 0);
    let mut letters = sent.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\r' => column = 0,
            '\n' => row += 1,
            '\u{1b}' => {
                assert_eq!(letters.next(), Some('['));
                let order: String = letters.by_ref().take_while(|l| !l.is_alphabetic()).collect();
                // All of a line is erased, or the cursor goes up; which of them, the
                // letter said that was just taken.
                match &*order {
                    "2" => lines[row].clear(),
                    order => panic!("what is {order:?}"),
                }
            }
            letter => {
                if column == columns {
                    (row, column) = (row + 1, 0);
                }
                lines.resize(lines.len().max(row + 1), Vec::new());
                let line = &mut lines[row];
                line.resize(line.len().max(column + 1), ' ');
                line[column] = letter;
                column += 1;
                longest = longest.max(column);
            }
        }
        lines.resize(lines.len().max(row + 1), Vec::new());
    }
    (lines.into_iter().map(|line| line.into_iter().collect()).collect(), longest)
}

#[cfg(target_os = "linux")]
#[test]
fn progress_fits_the_terminal_and_leaves_nothing_after_ctrl_c() {
    for columns in [100, 40, 20] {
        let folder = folder();
        let at = folder.path();
        make_pipe(&at.join("in"));
        let run = format!(
            "stty rows 24 cols {columns}; exec {SPEC} unique --device cpu --temp temp in -o out"
        );
        let mut command = Command::new("script");
        command.args(["-qec", &run, "/dev/null"]).current_dir(at);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let Ok(mut child) = command.spawn() else {
            _ = writeln!(std::io::stderr(), "skipped: there is no `script` to make a terminal");
            return;
        };
        let mut pipe = File::options().write(true).open(at.join("in")).unwrap();
        pipe.write_all(&keys(3_000_000)).unwrap();
        // Waits until there is a bar.
        std::thread::sleep(Duration::from_millis(2500));
        let mut keyboard = child.stdin.take().unwrap();
        keyboard.write_all(b"\x03").unwrap();
        ends(&mut child);
        let output = child.wait_with_output().unwrap();
        drop(pipe);
        let sent = words(&output.stdout);
        assert!(sent.contains("read "), "no progress: {sent:?}");
        let (lines, longest) = on_screen(&sent, columns);
        assert!(longest <= columns, "{sent:?}");
        assert!(lines.iter().all(|line| line.trim().is_empty()), "{lines:?} of {sent:?}");
        assert_eq!(names(at), ["in", "temp"]);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_file_that_says_it_is_empty_is_read() {
    let folder = folder();
    let at = folder.path();
    let output = succeeds(&mut spec(at, &["--text", "/proc/sys/kernel/pid_max", "-o", "-"]));
    assert_eq!(output.stdout, fs::read("/proc/sys/kernel/pid_max").unwrap());
    fs::write(at.join("empty"), b"").unwrap();
    let output = succeeds(&mut spec(at, &["--text", "empty", "--count-only"]));
    assert_eq!(words(&output.stdout), "0\n");
}

#[test]
fn what_files_say_is_no_order_to_a_terminal() {
    let folder = folder();
    let at = folder.path();
    let csv = "id,\u{1b}[31mred\n1\u{1b}]0;title\u{7},2\n";
    fs::write(at.join("a.csv"), csv).unwrap();
    fs::write(at.join("\u{1b}[2J\n.bin"), "1\n2\n").unwrap();
    let runs: [&[&str]; 5] = [
        &["--csv", "--column", "id", "a.csv", "-o", "out"],
        &["--csv", "--column", "none", "a.csv", "-o", "out"],
        &["--csv", "--column", "id", "a.csv", "-o", "out", "--lenient"],
        &["\u{1b}[2J\n.bin", "-o", "out"],
        &["\u{1b}[2J\n.txt", "-o", "out"],
    ];
    for arguments in runs {
        let output = run(&mut spec(at, arguments));
        let said = words(&[output.stdout, output.stderr].concat());
        let odd = said.chars().find(|letter| letter.is_control() && *letter != '\n');
        assert_eq!(odd, None, "{said:?}");
        assert!(said.contains("\\u{1b}"), "{said:?}");
    }
}

#[test]
fn a_header_longer_than_the_file() {
    let folder = folder();
    let at = folder.path();
    fs::write(at.join("ids"), "1\n2\n3").unwrap();
    for (lines, keys) in [(1, "2\n"), (3, "0\n"), (u64::MAX, "0\n")] {
        let lines = lines.to_string();
        let arguments = ["--text", "--skip-lines", &lines, "ids", "--count-only"];
        assert_eq!(words(&succeeds(&mut spec(at, &arguments)).stdout), keys);
    }
}

#[test]
fn names_as_long_as_they_may_be() {
    let folder = folder();
    let at = folder.path();
    fs::write(at.join("keys"), keys(10)).unwrap();
    for len in [200, 215, 216, 230, 255] {
        for letter in ["x", "\u{fc}"] {
            let name = letter.repeat(len / letter.len());
            succeeds(&mut spec(at, &["keys", "-o", &name]));
            fs::remove_file(at.join(&name)).unwrap();
        }
    }
    assert_eq!(names(at), ["keys", "temp"]);
}

#[test]
fn standard_streams_that_are_not_there() {
    let folder = folder();
    let at = folder.path();
    fs::write(at.join("keys"), keys(10)).unwrap();
    fs::write(at.join("other"), b"").unwrap();
    let with = |redirection: &str, arguments: &str| {
        spec_after(at, "true", &format!("{arguments} {redirection}"))
    };
    refused(&mut with("<&-", "- -o out"), "stdin: cannot read: it is closed");
    refused(&mut with("0>other", "- -o out"), "stdin: cannot read: it is not open for reading");
    refused(&mut with("1<other", "keys -o -"), "stdout: cannot write: it is not open for writing");
    // An empty stdin is no error.
    let output = succeeds(&mut with("</dev/null", "- --count-only"));
    assert_eq!(words(&output.stdout), "0\n");
    succeeds(&mut with(">/dev/null", "keys -o -"));
}

/// The name of a wgpu device, if there is one.
fn wgpu() -> Option<String> {
    let devices = spec::devices().into_iter().filter(|listing| listing.backend == "wgpu");
    let first = devices.flat_map(|listing| listing.devices.into_iter().flatten()).next();
    first.map(|info| info.device.to_string())
}

#[test]
fn too_little_memory_of_the_device_is_said_to_be_that() {
    let folder = folder();
    let at = folder.path();
    fs::write(at.join("keys"), keys(1_000_000)).unwrap();
    let Some(device) = wgpu() else { return };
    for memory in ["0", "1KiB", "20KiB"] {
        let arguments = ["keys", "-o", "out", "--device", &device, "--device-memory", memory];
        let mut command = Command::new(SPEC);
        command.arg("unique").args(arguments).current_dir(at);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        refused(&mut command, "error: --device-memory ");
    }
}

/// The driver's own threads are running when the signal comes.
#[test]
fn a_signal_during_a_run_on_a_gpu_is_no_crash() {
    let folder = folder();
    let at = folder.path();
    fs::write(at.join("keys"), keys(300_000)).unwrap();
    let Some(device) = wgpu() else { return };
    for round in 0..24u64 {
        let mut command = Command::new(SPEC);
        command.args(["unique", "keys", "-o", "out", "--force", "--device", &device]);
        command.env("MESA_SHADER_CACHE_DISABLE", "1").current_dir(at);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        std::thread::sleep(Duration::from_millis(30 + round * 25));
        let id = child.id().to_string();
        assert!(Command::new("kill").args(["-s", "INT", &id]).status().unwrap().success());
        ends(&mut child);
        let status = child.wait().unwrap();
        // Before the program handles signals, a signal ends it like any program.
        let ended = status.code().is_some()
            || std::os::unix::process::ExitStatusExt::signal(&status) == Some(2);
        assert!(ended, "round {round}: {status}");
    }
}
