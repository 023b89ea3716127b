//! `spec unique` as a user runs it.

#![cfg(unix)]

mod interruptions;

use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;

/// A small limit of memory: the program's own memory and room for few keys.
const LITTLE: &str = "32MiB";
/// A number of keys that does not fit in [`LITTLE`].
const MANY: usize = 3_000_000;
/// A run that takes longer counts as hanging.
const PATIENCE: Duration = Duration::from_secs(60);

/// A folder for a test, with a folder for temporary files; removed at the end of the test.
struct Case {
    folder: PathBuf,
}

impl Case {
    fn new(name: &str) -> Case {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("unique-{name}"));
        _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(folder.join("temp")).unwrap();
        Case { folder }
    }

    fn path(&self, name: &str) -> String {
        self.folder.join(name).to_str().unwrap().to_owned()
    }

    fn write(&self, name: &str, bytes: &[u8]) -> String {
        std::fs::write(self.folder.join(name), bytes).unwrap();
        self.path(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_spec"));
        command.args(["unique", "--device", "cpu", "--threads", "2"]);
        command.arg("--temp").arg(self.folder.join("temp")).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn succeed(&self, arguments: &[&str]) -> String {
        let output = output(&mut self.command(arguments));
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && stderr.is_empty(), "{arguments:?}: {stderr}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn summary(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.succeed(&[arguments, &["--json"]].concat())).unwrap()
    }

    fn refused(&self, arguments: &[&str], words: &str) {
        failed(&output(&mut self.command(arguments)), words);
    }

    /// The names of the files in a subfolder.
    fn names(&self, folder: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.folder.join(folder)).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }

    /// Checks that the folders contain only files that the test made.
    fn is_clean(&self, files: &[&str]) {
        assert_eq!(self.names("temp"), [""; 0], "temporary files are left");
        assert_eq!(self.names("."), files, "files are left");
    }
}

impl Drop for Case {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A run of the program, which is killed at the end of the test.
struct Running(Child);

impl Running {
    fn start(command: &mut Command) -> Running {
        let piped = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Running(piped.spawn().unwrap())
    }

    /// Writes to the program's stdin. Returns the stdin, still open, after everything is read.
    fn feed(&mut self, bytes: Vec<u8>) -> JoinHandle<ChildStdin> {
        let mut stdin = self.0.stdin.take().unwrap();
        std::thread::spawn(move || {
            // A run that fails early stops reading; the test checks its failure itself.
            _ = stdin.write_all(&bytes);
            stdin
        })
    }

    /// Waits for the end of the run and returns all its output.
    fn output(mut self) -> Output {
        let (send, receive) = channel();
        let (mut stdout, mut stderr) =
            (self.0.stdout.take().unwrap(), self.0.stderr.take().unwrap());
        let err = std::thread::spawn(move || read_all(&mut stderr));
        std::thread::spawn(move || send.send((read_all(&mut stdout), err.join().unwrap())));
        let Ok((stdout, stderr)) = receive.recv_timeout(PATIENCE) else {
            panic!("it hangs");
        };
        Output { status: self.wait(), stdout, stderr }
    }

    /// Waits for the end of the run.
    fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        wait_for("the end", || {
            status = self.0.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    fn signal(&self, name: &str) {
        let id = self.0.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &id]).status().unwrap().success());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

fn read_all(from: &mut impl Read) -> Vec<u8> {
    let mut all = Vec::new();
    from.read_to_end(&mut all).unwrap();
    all
}

fn output(command: &mut Command) -> Output {
    Running::start(command).output()
}

fn with_stdin(mut command: Command, bytes: Vec<u8>) -> Output {
    let mut run = Running::start(command.stdin(Stdio::piped()));
    let stdin = run.feed(bytes);
    // Closes stdin as soon as everything is written.
    std::thread::spawn(move || drop(stdin.join()));
    run.output()
}

/// Checks that a run failed with one sentence that contains `words`.
fn failed(output: &Output, words: &str) {
    refused_with(output, words);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(stderr.trim_end().lines().count(), 1, "{stderr}");
}

/// Checks that a run failed with a message that contains `words`. For a wrong command
/// line, the message also has the usage.
fn refused_with(output: &Output, words: &str) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "it succeeded; expected {words}");
    assert!(output.status.code().is_some(), "it was killed; expected {words}");
    assert!(stderr.starts_with("error: ") && stderr.contains(words), "{stderr}; expected {words}");
    assert!(output.stdout.is_empty(), "stdout has something");
}

/// `count` pseudo-random keys with `different` possible values.
fn keys(count: usize, different: u64) -> Vec<u64> {
    let mut state = count as u64;
    let next = || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ mixed >> 31) % different).wrapping_mul(0xD6E8_FEB8_6659_FD93)
    };
    std::iter::repeat_with(next).take(count).collect()
}

fn bytes(keys: &[u64]) -> Vec<u8> {
    keys.iter().flat_map(|key| key.to_le_bytes()).collect()
}

fn distinct(keys: &[u64]) -> Vec<u8> {
    let mut keys = keys.to_vec();
    keys.sort_unstable();
    keys.dedup();
    bytes(&keys)
}

fn wait_for(what: &str, mut ready: impl FnMut() -> bool) {
    let start = Instant::now();
    while !ready() {
        assert!(start.elapsed() < PATIENCE, "waited for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn files_become_their_distinct_keys() {
    let case = Case::new("files");
    let all = keys(MANY, 2_000_000);
    let (first, second) = all.split_at(1_000_000);
    let (a, b) = (case.write("a", &bytes(first)), case.write("b", &bytes(second)));
    let empty = case.write("empty", &[]);
    let output = case.path("output");
    for memory in [LITTLE, "1GiB"] {
        let run = case.summary(&[&a, &empty, &b, "-o", &output, "--memory", memory, "--force"]);
        assert!(std::fs::read(&output).unwrap() == distinct(&all), "{memory}");
        assert_eq!(run["keys"], all.len());
        let found = distinct(&all).len() / 8;
        assert_eq!(run["distinct"], found);
        assert_eq!(run["duplicates"], all.len() - found);
        assert_eq!(run["output_bytes"], found * 8);
        assert_eq!(run["runs"].as_u64().unwrap() > 0, memory == LITTLE);
        let number = case.succeed(&[&a, &b, "--count-only", "--memory", memory]);
        assert_eq!(number, format!("{found}\n"));
        case.is_clean(&["a", "b", "empty", "output", "temp"]);
    }
    let words = case.succeed(&[&a, "-o", &output, "--force"]);
    for word in ["keys", "distinct", "duplicates", "GB/s", "read", "unique", "write", "finish"] {
        assert!(words.contains(word), "no {word} in\n{words}");
    }
    case.succeed(&[&empty, "-o", &output, "--force"]);
    assert_eq!(std::fs::read(&output).unwrap().len(), 0);
}

#[test]
fn stdin_is_a_file_too() {
    let case = Case::new("stdin");
    let all = keys(MANY, u64::MAX);
    let (some, rest) = all.split_at(MANY / 3);
    let (a, output) = (case.write("a", &bytes(some)), case.path("output"));
    for memory in [LITTLE, "1GiB"] {
        let arguments = [&a, "-", "-o", &output, "--memory", memory, "--force"];
        let result = with_stdin(case.command(&arguments), bytes(rest));
        assert!(result.status.success(), "{}", String::from_utf8_lossy(&result.stderr));
        assert!(std::fs::read(&output).unwrap() == distinct(&all), "{memory}");
    }
    case.refused(&["-", "-", "--count-only"], "only once");
    let odd = with_stdin(case.command(&["-", "--count-only"]), vec![0; 13]);
    failed(&odd, "stdin: is 13 bytes long");
}

#[test]
fn types_and_counts() {
    let case = Case::new("types");
    let numbers: Vec<i32> = (0..200_000).map(|i| (i * 7919) % 50_000 - 25_000).collect();
    let mut counts = BTreeMap::new();
    for number in &numbers {
        *counts.entry(*number).or_insert(0u64) += 1;
    }
    let output = case.path("output");
    let check = |kind: &str, input: Vec<u8>, ascending: Vec<Vec<u8>>, counts: &[u64]| {
        let input = case.write("input", &input);
        case.succeed(&[&input, "-o", &output, "--type", kind, "--force"]);
        assert_eq!(std::fs::read(&output).unwrap(), ascending.concat(), "{kind}");
        case.succeed(&[&input, "-o", &output, "--type", kind, "--force", "--counts"]);
        let records = ascending.iter().zip(counts);
        let records = records.flat_map(|(key, count)| [key, &count.to_le_bytes()[..]].concat());
        assert_eq!(std::fs::read(&output).unwrap(), records.collect::<Vec<_>>(), "{kind}");
    };
    let signed: Vec<(i32, u64)> = counts.into_iter().collect();
    // In the order of unsigned numbers, negative numbers come last.
    let mut unsigned = signed.clone();
    unsigned.sort_by_key(|(key, _)| *key as u32);
    let numbers_of = |pairs: &[(i32, u64)]| pairs.iter().map(|pair| pair.1).collect::<Vec<_>>();
    let narrow = |key: i32| key.to_le_bytes().to_vec();
    let wide = |key: i32| i64::from(key).to_le_bytes().to_vec();
    for (kind, pairs) in [("i32", &signed), ("u32", &unsigned)] {
        let ascending = pairs.iter().map(|pair| narrow(pair.0)).collect();
        let input = numbers.iter().flat_map(|number| narrow(*number)).collect();
        check(kind, input, ascending, &numbers_of(pairs));
    }
    for (kind, pairs) in [("i64", &signed), ("u64", &unsigned)] {
        let ascending = pairs.iter().map(|pair| wide(pair.0)).collect();
        let input = numbers.iter().flat_map(|number| wide(*number)).collect();
        check(kind, input, ascending, &numbers_of(pairs));
    }
}

#[test]
fn every_device_finds_the_same() {
    let case = Case::new("devices");
    let all = keys(600_000, 400_000);
    let (input, target) = (case.write("input", &bytes(&all)), case.path("output"));
    let devices =
        spec::devices().into_iter().flat_map(|listing| listing.devices.into_iter().flatten());
    for info in devices {
        let name = info.device.to_string();
        for more in [&[][..], &["--device-memory", "4MiB"]] {
            let arguments =
                [&input, "-o", &target, "--force", "--device", &name, "--memory", "1GiB"];
            let mut command = Command::new(env!("CARGO_BIN_EXE_spec"));
            command.arg("unique").arg("--temp").arg(case.folder.join("temp"));
            let result = output(command.args(arguments).args(more));
            assert!(result.status.success(), "{name}: {}", String::from_utf8_lossy(&result.stderr));
            assert!(std::fs::read(&target).unwrap() == distinct(&all), "{name}");
            case.is_clean(&["input", "output", "temp"]);
        }
    }
}

#[test]
fn peak_memory_stays_within_the_limit() {
    let case = Case::new("peak");
    let input = case.path("input");
    // 400 MB, more than ten times the limit. Every key occurs twice, far apart.
    let count = 50_000_000u64;
    let mut file = std::io::BufWriter::new(std::fs::File::create(&input).unwrap());
    let key = |i: u64| (i % (count / 2)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    for i in 0..count {
        file.write_all(&key(i).to_le_bytes()).unwrap();
    }
    file.into_inner().unwrap();
    let limit = 36 << 20;
    let run = case.summary(&[&input, "-o", &case.path("output"), "--memory", "36MiB"]);
    assert_eq!((run["keys"].as_u64(), run["distinct"].as_u64()), (Some(count), Some(count / 2)));
    let peak = run["peak_memory"].as_u64().unwrap();
    assert!(peak <= limit / 10 * 11, "{peak} bytes at a limit of {limit}");
    let written = std::fs::read(case.path("output")).unwrap();
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
    assert!(written.chunks(8).map(number).is_sorted_by(|a, b| a < b), "not ascending");
    let sum = written.chunks(8).map(number).fold(0, u64::wrapping_add);
    assert_eq!(sum, (0..count / 2).map(key).fold(0, u64::wrapping_add));
    case.is_clean(&["input", "output", "temp"]);
}

#[test]
fn a_hundred_times_the_limit_and_hardly_a_key() {
    let case = Case::new("hundred");
    let limit = 34 << 20;
    let size = 100 * limit / 8 * 8;
    // A sparse file with five keys; all other bytes read as zeros.
    let input = case.path("input");
    let mut file = std::fs::File::create(&input).unwrap();
    file.set_len(size).unwrap();
    let others = [5, u64::MAX, 7, 5, 1 << 40];
    for (index, key) in others.into_iter().enumerate() {
        file.seek(SeekFrom::Start(size / 8 / 5 * index as u64 * 8)).unwrap();
        file.write_all(&key.to_le_bytes()).unwrap();
    }
    drop(file);
    let target = case.path("output");
    let run = case.summary(&[&input, "-o", &target, "--memory", "34MiB", "--counts"]);
    assert_eq!(run["keys"], size / 8);
    let peak = run["peak_memory"].as_u64().unwrap();
    assert!(peak <= limit / 10 * 11, "{peak} bytes at a limit of {limit}");
    let expected = [(0, size / 8 - 5), (5, 2), (7, 1), (1 << 40, 1), (u64::MAX, 1)];
    let expected: Vec<u64> = expected.into_iter().flat_map(|(key, count)| [key, count]).collect();
    assert_eq!(std::fs::read(target).unwrap(), bytes(&expected));
    case.is_clean(&["input", "output", "temp"]);
}

#[test]
fn bad_calls_are_refused() {
    let case = Case::new("bad");
    let input = case.write("input", &bytes(&keys(1000, 10)));
    let target = case.path("output");
    case.refused(&[&case.path("nowhere"), "-o", &target], "nowhere: cannot read: there is no such");
    case.refused(&[&case.path("temp"), "-o", &target], "temp: cannot read: it is a directory");
    let odd = case.write("odd", &[0; 1001]);
    case.refused(&[&odd, "-o", &target], "odd: is 1001 bytes long, which is no multiple of the 8");
    case.refused(
        &[&odd, "-o", &target, "--type", "i32"],
        "no multiple of the 4 bytes of a i32 key",
    );
    case.refused(&[&input, "-o", &case.path("no/where")], "cannot write: there is no such");
    case.refused(&[&input, "-o", &case.path("temp")], "is no regular file");
    case.refused(&[&input, "-o", "/dev/null", "--force"], "is no regular file");
    case.refused(&[&input, "-o", &target, "--memory", "1MiB"], "is the least for both");
    refused_with(&output(&mut case.command(&[&input])), "--output");
    let both = ["--count-only", "--counts"];
    refused_with(
        &output(&mut case.command(&[&[&*input], &both[..]].concat())),
        "cannot be used with",
    );
    let large = case.write("large", &bytes(&keys(MANY, u64::MAX)));
    let nowhere = case.path("nowhere");
    let arguments = [&large, "-o", &target, "--memory", LITTLE];
    let mut command = Command::new(env!("CARGO_BIN_EXE_spec"));
    command.args(["unique", "--device", "cpu", "--temp", &nowhere]).args(arguments);
    failed(&output(&mut command), "nowhere: there is no such folder");
    case.is_clean(&["input", "large", "odd", "temp"]);
}

#[test]
fn what_exists_is_kept() {
    let case = Case::new("exists");
    let content = bytes(&keys(1000, 10));
    let input = case.write("input", &content);
    let output = case.write("output", b"precious");
    case.refused(&[&input, "-o", &output], "output: exists already");
    assert_eq!(std::fs::read(&output).unwrap(), b"precious");
    // Other names of the input.
    let (soft, hard) = (case.path("soft"), case.path("hard"));
    std::os::unix::fs::symlink(&input, &soft).unwrap();
    std::fs::hard_link(&input, &hard).unwrap();
    let dotted = format!("{}/temp/../input", case.folder.display());
    for name in [&input, &soft, &hard, &dotted] {
        case.refused(&[&input, "-o", name, "--force"], "is the same file as the input");
        case.refused(&[name, "-o", &input, "--force"], "is the same file as the input");
        assert!(std::fs::read(&input).unwrap() == content);
    }
    // A failed run keeps the file that it should have replaced.
    let odd = case.write("odd", &[0; 9]);
    case.refused(&[&odd, "-o", &output, "--force"], "is 9 bytes long");
    assert_eq!(std::fs::read(&output).unwrap(), b"precious");
    // Through a link, the file behind it is replaced.
    let link = case.path("link");
    std::os::unix::fs::symlink("output", &link).unwrap();
    case.succeed(&[&input, "-o", &link, "--force"]);
    assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
    assert!(std::fs::read(&output).unwrap() == distinct(&keys(1000, 10)));
    case.is_clean(&["hard", "input", "link", "odd", "output", "soft", "temp"]);
}
