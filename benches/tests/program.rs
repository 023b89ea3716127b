//! `spec-bench` as a user runs it.

#[path = "../../tests/common/mod.rs"]
mod common;
#[path = "../../crates/spec-cli/tests/documented/mod.rs"]
mod documented;

use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use spec_bench::report::{Report, Role};
use tempfile::TempDir;

fn bench(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spec-bench"));
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Runs what must succeed.
fn run(arguments: &[&str]) -> (String, String) {
    let output = bench(arguments).output().unwrap();
    let (stdout, stderr) = texts(&output);
    assert!(output.status.success(), "{arguments:?}: {stderr}");
    (stdout, stderr)
}

fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (text(&output.stdout), text(&output.stderr))
}

/// What is said of a device that is no GPU, where a machine has one.
fn is_about_software(line: &str) -> bool {
    line.contains("is a software renderer")
}

/// Runs what must fail with one sentence that contains `words`.
fn refused(arguments: &[&str], words: &str) {
    let output = bench(arguments).output().unwrap();
    let (stdout, stderr) = texts(&output);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {stderr}");
    assert!(stdout.is_empty(), "{arguments:?} wrote to stdout: {stdout}");
    let is_said = |line: &&str| !line.starts_with("note: ") && !is_about_software(line);
    let said: Vec<&str> = stderr.lines().filter(is_said).collect();
    assert_eq!(said.len(), 1, "{arguments:?}: {stderr}");
    assert!(said[0].starts_with("error: ") && said[0].contains(words), "{arguments:?}: {stderr}");
}

/// The CPU, and what wgpu finds first where it finds something.
fn devices() -> Vec<String> {
    let handles = common::handles();
    let names = handles.iter().map(|handle| handle.device().to_string());
    names.filter(|name| !name.starts_with("cuda")).collect()
}

struct Folder(TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn at(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }
}

/// A run that ends with the test, whatever becomes of that.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// What JSON a run of one small shape on the CPU writes.
fn small(folder: &Folder) -> Report {
    let path = folder.at("small.json");
    let shape = "batch=3,steps=2,k=100,below=500";
    run(&["deduplicate_topk", "--shape", shape, "--quick", "--device", "cpu", "--save", &path]);
    Report::read(path).unwrap()
}

#[test]
fn every_operator_is_timed_and_checked_on_every_device() {
    let folder = Folder::new();
    for (operator, shape) in spec_bench::small_shapes() {
        let words = spec_bench::row(operator, shape).unwrap().shape;
        let devices = devices();
        let path = folder.at(&format!("{operator}.json"));
        let mut arguments = vec![operator, "--shape", shape, "--quick", "--save", &path];
        arguments.extend(devices.iter().flat_map(|device| ["--device", device]));
        let (stdout, _) = run(&arguments);
        let report = Report::read(&path).unwrap();
        let asked = arguments[..3].join(" ");
        assert!(report.command.starts_with(&format!("spec-bench {asked}")), "{}", report.command);
        let name = format!("--save {operator}.json");
        assert!(report.command.contains(&name), "a path is of no use to others: {report:?}");
        assert!(report.host.cores > 0 && report.host.memory_bytes > 0 && report.date.len() == 10);
        for device in &devices {
            let known = report.device(device).unwrap();
            assert!(known.copy_bytes_per_second.unwrap() > 1e6, "{known:?}");
            let ours: Vec<_> = report
                .measurements
                .iter()
                .filter(|row| row.device == *device && row.role == Role::Spec)
                .collect();
            assert_eq!(ours.len(), 1, "{operator} on {device}");
            assert!(report.floor_us(ours[0]).unwrap() > 0.0);
            assert!(stdout.contains(&format!("{operator} on {device}: ")), "{stdout}");
        }
        // Beside this library, on the CPU, at least the plain loop.
        assert!(report.measurements.len() > devices.len());
        for row in &report.measurements {
            assert_eq!((&*row.operator, &row.shape), (operator, &words));
            // Five, or three where a call took a second: a software GPU on a busy machine.
            assert!(row.samples_us.len() >= 3, "{row:?}");
            assert!(!row.method.is_empty() && !row.check.is_empty() && row.bytes > 0, "{row:?}");
            assert!(stdout.contains(&row.implementation), "{stdout}");
        }
    }
}

#[test]
fn rows_of_the_table_keep_their_goals() {
    let folder = Folder::new();
    let path = folder.at("goal.json");
    run(&["deduplicate_topk", "--quick", "--device", "cpu", "--save", &path]);
    let report = Report::read(&path).unwrap();
    let ours = || report.measurements.iter().filter(|row| row.role == Role::Spec);
    assert!(ours().count() > 1 && ours().all(|row| row.goal_us.is_some()), "{report:?}");
    // Long enough that the machine's load is known.
    let load = report.load.unwrap();
    assert!(load.wall_s > 0.4 && load.own_cpu_s > 0.1 && load.all_cpu_s > 0.1, "{load:?}");
}

#[test]
fn json_is_all_that_stdout_has() {
    let folder = Folder::new();
    small(&folder);
    let saved = folder.at("small.json");
    let shape = ["deduplicate_topk", "--shape", "batch=3,steps=2,k=100,below=500"];
    let options = ["--quick", "--device", "cpu", "--json", "--compare", &saved];
    let (stdout, stderr) = run(&[&shape[..], &options].concat());
    assert_eq!(Report::parse(&stdout).unwrap().measurements.len(), 2);
    assert!(stderr.contains(" as before, ") && !stderr.contains("error"), "{stderr}");
}

#[test]
fn what_moved_is_said() {
    let folder = Folder::new();
    let report = small(&folder);
    let rows = report.measurements.len();
    let compared = |name: &str, samples: fn(f64) -> [f64; 9]| {
        let mut old = report.clone();
        for row in &mut old.measurements {
            row.samples_us = samples(row.median_us()).to_vec();
        }
        old.write(folder.path(name)).unwrap();
        let shape = "batch=3,steps=2,k=100,below=500";
        let mut arguments =
            vec!["deduplicate_topk", "--shape", shape, "--quick", "--device", "cpu"];
        let path = folder.at(name);
        arguments.extend(["--compare", &path]);
        run(&arguments).0
    };
    // So noisy that no median could lie outside.
    let noisy = compared("noisy.json", |us| {
        [1e-3, 1e-3, 1e-3, 0.9, 1.0, 1.1, 1e3, 1e3, 1e3].map(|x| x * us)
    });
    assert!(noisy.contains(&format!("0 slower, 0 faster, {rows} as before")), "{noisy}");
    let slow = compared("slow.json", |us| {
        [1.0, 1.01, 0.99, 1.0, 1.02, 0.98, 1.0, 1.01, 0.99].map(|x| 1e3 * x * us)
    });
    // A machine that is busy with something else while this runs is said to be.
    let moved = |text: &str, word: &str| {
        let of = |word: &str| format!(" %  {word}  deduplicate_topk, 3 x 2 x 100, below 500, ");
        let count = |word: &str| text.lines().filter(|line| line.contains(&of(word))).count();
        count(word) + count("perhaps (the machine was busy)")
    };
    assert_eq!(moved(&slow, "faster"), rows, "{slow}");
    let fast = compared("fast.json", |us| {
        [1.0, 1.01, 0.99, 1.0, 1.02, 0.98, 1.0, 1.01, 0.99].map(|x| 1e-3 * x * us)
    });
    assert_eq!(moved(&fast, "slower"), rows, "{fast}");
}

#[test]
fn what_was_measured_is_kept_when_a_run_is_stopped() {
    let folder = Folder::new();
    let path = folder.path("stopped.json");
    let arguments = ["unique", "--device", "cpu", "--save", path.to_str().unwrap(), "--verbose"];
    let child = bench(&arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut child = Running(child);
    let started = Instant::now();
    let rows = || Report::read(&path).map_or(0, |report| report.measurements.len());
    while rows() == 0 {
        assert!(started.elapsed() < Duration::from_secs(120), "nothing was written");
        assert!(child.0.try_wait().unwrap().is_none(), "it has ended");
        std::thread::sleep(Duration::from_millis(20));
    }
    child.0.kill().unwrap();
    child.0.wait().unwrap();
    assert!(rows() > 0, "what was there is gone");
    let mut stderr = String::new();
    child.0.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert!(stderr.contains(" s: unique, 2^20 keys, 64 bits on cpu, spec"), "{stderr}");
}

#[test]
fn a_page_needs_nothing_else() {
    let folder = Folder::new();
    let path = folder.path("page.html");
    let shapes = ["tokens=8", "tokens=16", "tokens=32"];
    let mut arguments = vec!["topk_router", "--quick", "--device", "cpu"];
    arguments.extend(shapes.iter().flat_map(|shape| ["--shape", shape]));
    arguments.extend(["--html", path.to_str().unwrap()]);
    run(&arguments);
    let page = std::fs::read_to_string(path).unwrap();
    let loads =
        ["<script", "<link", "<img", "<iframe", "<object", "@import", "src=", "url(", "href=\"h"];
    for loading in loads {
        assert!(!page.contains(loading), "the page has {loading}");
    }
    // Time over size, ratios, a roofline; each shape in a table.
    assert!(page.matches("<svg").count() >= 3, "{} plots", page.matches("<svg").count());
    for words in ["8 tokens, f32", "32 tokens, f32", "plain loop", "roofline", "</html>"] {
        assert!(page.to_lowercase().contains(words), "the page has no {words}");
    }
}

#[test]
fn bad_options_are_one_sentence() {
    let folder = Folder::new();
    refused(&["sort"], "there is no operator `sort`, expected topk_router, deduplicate_topk");
    refused(&["--shape", "tokens=4"], "--shape is the shape of one operator: name it");
    let shape = |operator, shape, words| refused(&[operator, "--shape", shape], words);
    shape("topk_router", "tokens=many", "`tokens` is `many`, expected a whole number from 1 to");
    shape("topk_router", "tokens=0", "`tokens` is `0`, expected a whole number from 1 to");
    shape("topk_router", "tokens", "`tokens` is no part of a shape, expected key=value");
    shape("topk_router", "tokens=1,tokens=2", "`tokens` is there twice");
    shape("unique", "tokens=1", "unique has no `tokens`, expected dtype=u64|u32, keys=1 to");
    shape("unique", "set=odd", "`set` is `odd`, expected one of uniform, zipf, heavy");
    for device in ["tpu", "", "cuda:x"] {
        refused(&["unique", "--device", device], "is no device, expected `auto`, `cpu`");
    }
    refused(&["unique", "--device", "wgpu:4000"], "status 6");
    let nowhere = folder.at("no/such/folder/file");
    for option in ["--save", "--html", "--compare", "--peers"] {
        refused(&["unique", option, &nowhere], &nowhere);
    }
    let garbage = folder.at("garbage.json");
    std::fs::write(&garbage, "{\"format\": 1}").unwrap();
    refused(&["unique", "--compare", &garbage], &garbage);
}

#[test]
fn the_keys_of_a_shape_are_help_not_an_error() {
    for help in ["help", "help="] {
        let (keys, stderr) = run(&["unique", "--shape", help]);
        assert!(keys.starts_with("unique\n") && stderr.is_empty(), "{keys}{stderr}");
        for key in ["\n  dtype=u64|u32\n", "\n  keys=1 to 2^34\n", "\n  set=uniform|zipf|"] {
            assert!(keys.contains(key), "{keys}");
        }
    }
    let (all, _) = run(&["--shape", "help"]);
    for (operator, _) in spec_bench::small_shapes() {
        assert!(all.contains(&format!("{operator}\n  ")), "{operator} is not in\n{all}");
    }
    refused(&["sort", "--shape", "help"], "there is no operator `sort`");
}

#[test]
fn a_report_that_is_not_there_names_those_that_are() {
    let folder = Folder::new();
    let nosuch = folder.at("nosuch.json");
    let none = format!("{nosuch}: there is no such file; no report lies in ");
    refused(&["unique", "--device", "cpu", "--compare", &nosuch], &none);
    let report = Report::default();
    for name in ["b.json", "a.json"] {
        report.write(folder.path(name)).unwrap();
    }
    std::fs::write(folder.path("other.json"), "{}").unwrap();
    for option in ["--compare", "--peers"] {
        refused(&["unique", "--device", "cpu", option, &nosuch], " are a.json, b.json");
    }
}

#[test]
fn what_an_operator_refuses_fails_the_run() {
    let arguments = ["topk_router", "--shape", "tokens=4,experts=100", "--device", "cpu"];
    refused_by_operator(&arguments, "experts");
}

/// The run ends, prints what there is, and fails for the reason that the operator gives.
fn refused_by_operator(arguments: &[&str], words: &str) {
    let output = bench(arguments).output().unwrap();
    let (_, stderr) = texts(&output);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    let errors: Vec<&str> = stderr.lines().filter(|line| line.starts_with("error: ")).collect();
    assert!(!errors.is_empty() && errors.iter().all(|line| line.contains(words)), "{stderr}");
}

#[test]
fn peers_of_another_machine_are_refused_before_anything_is_timed() {
    let folder = Folder::new();
    let mut other = small(&folder);
    other.host.cores += 1;
    let path = folder.at("other.json");
    other.write(&path).unwrap();
    let started = Instant::now();
    refused(&["unique", "--device", "cpu", "--peers", &path], "but this machine has");
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
}

#[test]
fn help_says_what_it_does() {
    let (help, _) = run(&["--help"]);
    for words in ["every result checked", "--shape", "--compare", "--peers", "Examples:"] {
        assert!(help.contains(words), "{help}");
    }
}

#[test]
fn every_field_of_the_json_is_documented() {
    let shape = ["deduplicate_topk", "--shape", "batch=1,k=16", "--quick", "--device", "cpu"];
    documented::holds("spec-bench", &mut bench(&shape), &[]);
}
