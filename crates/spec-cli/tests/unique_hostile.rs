//! `spec unique` in hostile conditions: limits of every kind, other users, planted files,
//! files whose content is not what their name says.

#![cfg(unix)]

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A run that takes longer counts as hanging.
const PATIENCE: Duration = Duration::from_secs(60);
/// The number of a process that does not exist, unless millions of processes were started.
const DEAD: u32 = 4_000_000;

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

fn keys(count: u64) -> Vec<u8> {
    (0..count).flat_map(|key| key.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes()).collect()
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

/// A control group with a limit of memory, removed at the end of the test.
#[cfg(target_os = "linux")]
struct Group(PathBuf);

#[cfg(target_os = "linux")]
impl Group {
    /// `None`, with a message, if this user may not make control groups.
    fn make(limit: u64, test: &str) -> Option<Group> {
        let name = format!("spec-test-{}-{test}", std::process::id());
        let of_memory = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let own = |prefix: &str| {
            let line = of_memory.lines().find_map(|line| {
                let (_, rest) = line.split_once(':')?;
                rest.strip_prefix(prefix)
            });
            line.unwrap_or("/").trim_start_matches('/').to_owned()
        };
        let versions = [
            (Path::new("/sys/fs/cgroup/memory").join(own("memory:")), "memory.limit_in_bytes"),
            (Path::new("/sys/fs/cgroup").join(own(":")), "memory.max"),
        ];
        for (parent, file) in versions {
            let group = Group(parent.join(&name));
            if fs::create_dir(&group.0).is_ok()
                && fs::write(group.0.join(file), limit.to_string()).is_ok()
            {
                return Some(group);
            }
        }
        _ = writeln!(std::io::stderr(), "skipped: no control group can be made here");
        None
    }
}

#[cfg(target_os = "linux")]
impl Drop for Group {
    fn drop(&mut self) {
        _ = fs::remove_dir(&self.0);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn the_default_of_memory_is_what_the_container_has() {
    let folder = folder();
    let at = folder.path();
    // A sparse file with a few keys, so that only the program itself takes memory.
    let mut file = File::create(at.join("keys")).unwrap();
    file.write_all(&keys(1000)).unwrap();
    file.set_len(400 << 20).unwrap();
    let limit = 200 << 20;
    let Some(group) = Group::make(limit, "default") else { return };
    let join = format!("echo $$ >{}", group.0.join("cgroup.procs").display());
    let output = succeeds(&mut spec_after(at, &join, "keys -o out --json"));
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(summary["distinct"], 1000);
    assert!(summary["runs"].as_u64().unwrap() > 0, "{summary}");
    assert!(summary["peak_memory"].as_u64().unwrap() < limit, "{summary}");
}

/// Beyond the limit, the system would end the program with SIGKILL.
#[cfg(target_os = "linux")]
#[test]
fn no_more_memory_is_taken_than_the_container_has() {
    let folder = folder();
    let at = folder.path();
    let mut file = File::create(at.join("keys")).unwrap();
    file.write_all(&keys(1000)).unwrap();
    file.set_len(400 << 20).unwrap();
    let limit = 200 << 20;
    let Some(group) = Group::make(limit, "asked") else { return };
    // A group within the group that has the limit.
    let inner = Group(group.0.join("inner"));
    fs::create_dir(&inner.0).unwrap();
    let join = format!("echo $$ >{}", inner.0.join("cgroup.procs").display());
    for memory in ["8GiB", "64MiB"] {
        let arguments = format!("keys -o out --json --force --memory {memory}");
        let output = succeeds(&mut spec_after(at, &join, &arguments));
        let summary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(summary["distinct"], 1000);
        assert!(summary["peak_memory"].as_u64().unwrap() < limit, "{summary}");
        let stderr = words(&output.stderr);
        let is_said = stderr.starts_with("note: the limits of this process")
            && stderr.contains(memory.trim_end_matches("GiB"));
        assert_eq!(is_said, memory == "8GiB", "{stderr}");
    }
}

#[test]
fn the_default_of_memory_is_what_limits_leave() {
    let folder = folder();
    let at = folder.path();
    let file = File::create(at.join("keys")).unwrap();
    file.set_len(900 << 20).unwrap();
    let output = succeeds(&mut spec_after(at, "ulimit -v 1000000", "keys --count-only"));
    assert_eq!(words(&output.stdout), "1\n");
}

#[test]
fn nobody_else_may_read_what_is_unfinished() {
    let folder = folder();
    let at = folder.path();
    fs::write(at.join("old"), b"secret").unwrap();
    fs::set_permissions(at.join("old"), PermissionsExt::from_mode(0o600)).unwrap();
    for (output, last) in [("new", 0o644), ("old", 0o600)] {
        let mut command =
            spec_after(at, "umask 022", &format!("- --memory 32MiB --force -o {output}"));
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(&keys(3_000_000)).unwrap();
        let start = Instant::now();
        let temp = loop {
            let spilled = names(&at.join("temp")).first().map(|name| at.join("temp").join(name));
            if let Some(temp) = spilled.filter(|temp| temp.join("0.keys").exists()) {
                break temp;
            }
            assert!(start.elapsed() < PATIENCE);
            std::thread::sleep(Duration::from_millis(5));
        };
        assert_eq!(mode(&temp), 0o700);
        for name in names(&temp) {
            assert_eq!(mode(&temp.join(&name)), 0o600, "{name}");
        }
        let partial = names(at).into_iter().find(|name| name.ends_with(".partial")).unwrap();
        assert_eq!(mode(&at.join(partial)), 0o600);
        drop(stdin);
        ends(&mut child);
        assert_eq!(mode(&at.join(output)), last, "{output}");
    }
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

fn make_pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn planted_files_neither_hang_a_run_nor_are_touched() {
    let folder = folder();
    let at = folder.path();
    fs::write(at.join("keys"), keys(100)).unwrap();
    let name = |random: u64| format!("{DEAD}-{random:016x}");
    // Pipes in place of an unfinished output and of a lock.
    make_pipe(&at.join(format!(".out.{}.partial", name(1))));
    let locked = at.join("temp").join(format!("spec-unique-{}", name(2)));
    fs::create_dir(&locked).unwrap();
    make_pipe(&locked.join("owner"));
    // Links to files that must not be changed.
    fs::create_dir(at.join("mine")).unwrap();
    fs::write(at.join("mine/owner"), b"precious").unwrap();
    symlink(at.join("mine"), at.join("temp").join(format!("spec-unique-{}", name(3)))).unwrap();
    symlink(at.join("mine/owner"), at.join(format!(".out.{}.partial", name(4)))).unwrap();
    let own = at.join("temp").join(format!("spec-unique-{}", name(5)));
    fs::create_dir(&own).unwrap();
    symlink(at.join("mine/owner"), own.join("owner")).unwrap();
    succeeds(&mut spec(at, &["keys", "-o", "out"]));
    assert_eq!(fs::read(at.join("mine/owner")).unwrap(), b"precious");
    assert!(at.join(format!(".out.{}.partial", name(1))).exists());
    assert!(at.join("temp").join(format!("spec-unique-{}", name(3))).exists());
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
fn a_limit_of_file_sizes_is_an_error() {
    let folder = folder();
    let at = folder.path();
    fs::write(at.join("keys"), keys(3_000_000)).unwrap();
    for memory in ["1GiB", "32MiB"] {
        let arguments = format!("keys -o out --memory {memory}");
        let words = "cannot write: the file is larger than the limit allows (ulimit -f)";
        refused(&mut spec_after(at, "ulimit -f 1000", &arguments), words);
        assert_eq!(names(at), ["keys", "temp"]);
        assert_eq!(names(&at.join("temp")), [""; 0]);
    }
}

#[test]
fn a_limit_of_open_files_is_an_error_that_leaves_nothing() {
    let folder = folder();
    let at = folder.path();
    fs::write(at.join("keys"), keys(3_000_000)).unwrap();
    for files in 3..24 {
        let limit = format!("ulimit -n {files}");
        let output = run(&mut spec_after(at, &limit, "keys -o out --memory 32MiB"));
        assert!(matches!(output.status.code(), Some(0 | 1 | 127)), "{files}: {}", output.status);
        let stderr = words(&output.stderr);
        assert!(!stderr.contains("panicked"), "{files}: {stderr}");
        assert_eq!(names(&at.join("temp")), [""; 0], "{files}: {stderr}");
        _ = fs::remove_file(at.join("out"));
        assert_eq!(names(at), ["keys", "temp"], "{files}: {stderr}");
    }
}

/// Runs as a user that may start only a few threads. The limit does not apply to the superuser.
#[cfg(target_os = "linux")]
#[test]
fn a_limit_of_threads_is_an_error() {
    use std::os::unix::process::CommandExt;

    let folder = folder();
    let at = folder.path();
    fs::write(at.join("keys"), keys(3_000_000)).unwrap();
    for path in [at.to_owned(), at.join("temp")] {
        fs::set_permissions(path, PermissionsExt::from_mode(0o777)).unwrap();
    }
    fs::copy(SPEC, at.join("spec")).unwrap();
    // No other user has this number.
    let as_user = |limit: u32| {
        let mut command = Command::new("bash");
        let run = format!(
            "ulimit -u {limit}; exec ./spec unique --device cpu --temp temp keys -o out --memory 48MiB"
        );
        command.arg("-c").arg(run).current_dir(at).uid(54_321).gid(54_321);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let Ok(probe) = as_user(1000).output() else {
        _ = writeln!(std::io::stderr(), "skipped: this user cannot become another one");
        return;
    };
    assert!(probe.status.success(), "{}", words(&probe.stderr));
    fs::remove_file(at.join("out")).unwrap();
    let mut failed = 0;
    for limit in 1..12 {
        let output = run(&mut as_user(limit));
        let stderr = words(&output.stderr);
        assert!(matches!(output.status.code(), Some(0 | 1)), "{limit}: {}", output.status);
        assert!(!stderr.contains("panicked"), "{limit}: {stderr}");
        if !output.status.success() {
            failed += 1;
            assert!(stderr.contains("start"), "{limit}: {stderr}");
            assert!(!at.join("out").exists());
        }
        _ = fs::remove_file(at.join("out"));
        assert_eq!(names(&at.join("temp")), [""; 0], "{limit}: {stderr}");
    }
    assert!(failed > 0, "no limit was too low");
}

/// The number of a user that does not exist.
const STRANGER: Option<u32> = Some(54_321);

/// Gives a file (or a link itself) to another user or group. If this user may not, prints a
/// message and returns false.
fn give(path: &Path, user: Option<u32>, group: Option<u32>) -> bool {
    let given = std::os::unix::fs::lchown(path, user, group).is_ok();
    if !given {
        _ = writeln!(std::io::stderr(), "skipped: this user can give nothing away");
    }
    given
}

#[test]
fn the_mode_that_is_taken_over_gives_nobody_rights() {
    let folder = folder();
    let at = folder.path();
    fs::write(at.join("keys"), keys(10)).unwrap();
    let out = at.join("out");
    let replaced = |before: u32, user: Option<u32>, group: Option<u32>| {
        _ = fs::remove_file(&out);
        fs::write(&out, "old").unwrap();
        let given = (user, group) == (None, None) || give(&out, user, group);
        fs::set_permissions(&out, PermissionsExt::from_mode(before)).unwrap();
        let mut command = spec_after(at, "umask 022", "keys -o out --force");
        given.then(|| {
            succeeds(&mut command);
            assert_eq!(fs::read(&out).unwrap().len(), 80);
            mode(&out)
        })
    };
    assert_eq!(replaced(0o640, None, None), Some(0o640));
    // The set-user-ID bit and similar bits are not kept.
    assert_eq!(replaced(0o7777, None, None), Some(0o777));
    if let Some(mode) = replaced(0o666, STRANGER, None) {
        assert_eq!(mode, 0o644, "as its old owner would have it");
    }
    if let Some(mode) = replaced(0o600, STRANGER, None) {
        assert_eq!(mode, 0o600, "a secret of its old owner");
    }
    if let Some(mode) = replaced(0o660, None, STRANGER) {
        let group = std::os::unix::fs::MetadataExt::gid(&fs::metadata(&out).unwrap());
        assert_eq!((mode, Some(group)), (0o660, STRANGER), "the group stays the same one");
    }
    if let Some(mode) = replaced(0o660, STRANGER, STRANGER) {
        assert_eq!(mode, 0o600, "a group of its old owner's");
    }
}

#[test]
fn a_link_that_another_user_planted_is_not_what_is_replaced() {
    let folder = folder();
    let at = folder.path();
    fs::write(at.join("keys"), keys(10)).unwrap();
    fs::write(at.join("other"), "mine").unwrap();
    let shared = at.join("shared");
    fs::create_dir(&shared).unwrap();
    fs::set_permissions(&shared, PermissionsExt::from_mode(0o1777)).unwrap();
    symlink("../other", shared.join("out")).unwrap();
    symlink("shared/out", at.join("around")).unwrap();
    // The user's own link is followed, as outside of shared folders.
    succeeds(&mut spec(at, &["keys", "-o", "around", "--force"]));
    assert_eq!(fs::read(at.join("other")).unwrap().len(), 80);
    if !give(&shared.join("out"), STRANGER, None) {
        return;
    }
    fs::write(at.join("other"), "mine").unwrap();
    let words = "a link that another user has put into a folder of all users";
    for output in ["shared/out", "around"] {
        refused(&mut spec(at, &["keys", "-o", output, "--force"]), words);
        assert_eq!(fs::read(at.join("other")).unwrap(), b"mine");
    }
    assert_eq!(names(&shared), ["out"]);
    // In a folder that only its owner can write, links are followed.
    fs::set_permissions(&shared, PermissionsExt::from_mode(0o755)).unwrap();
    succeeds(&mut spec(at, &["keys", "-o", "shared/out", "--force"]));
    assert_eq!(fs::read(at.join("other")).unwrap().len(), 80);
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
