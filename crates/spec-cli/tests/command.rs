//! Tests of the program `spec` as a user runs it.

#[path = "../../../tests/common/mod.rs"]
mod common;

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use spec::Handle;

fn spec(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spec"));
    command.args(arguments).env_remove("SPEC_GOLDEN_DIR");
    command
}

fn run(arguments: &[&str]) -> Output {
    spec(arguments).output().unwrap()
}

/// Options for a model that takes no time, for tests of other things.
const FREE: [&str; 2] = ["--model-ms", "0"];

/// Runs a command that must succeed, and returns its stdout.
fn stdout(arguments: &[&str]) -> String {
    let output = run(arguments);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {stderr}");
    let mut said = stderr.lines().filter(|line| !line.contains("is a software renderer"));
    assert_eq!(said.next(), None, "{arguments:?}: no terminal, yet stderr has {stderr}");
    String::from_utf8(output.stdout).unwrap()
}

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&stdout(&[arguments, &["--json"]].concat())).unwrap()
}

/// Runs a command that must fail with one sentence that contains `words`.
fn refused(arguments: &[&str], words: &str) {
    let output = run(arguments);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{arguments:?} succeeded");
    assert!(output.status.code().is_some(), "{arguments:?} was killed");
    assert!(output.stdout.is_empty(), "{arguments:?} wrote to stdout");
    assert!(stderr.starts_with("error: ") && stderr.contains(words), "{arguments:?}: {stderr}");
    assert_eq!(stderr.trim_end().lines().count(), 1, "{arguments:?}: {stderr}");
    assert!(!stderr.contains("panicked"), "{arguments:?}: {stderr}");
}

/// A file that is removed at the end of the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, content: &[u8]) -> Scratch {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::write(&path, content).unwrap();
        Scratch(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn bad_prompts_are_refused() {
    let folder = env!("CARGO_TARGET_TMPDIR");
    refused(&["decode", "--prompt", "no-such-file.txt"], "no-such-file.txt: there is no such file");
    refused(&["decode", "--prompt", folder], "is a directory");
    let empty = Scratch::new("empty.txt", b"");
    refused(&["decode", "--prompt", empty.path()], "is empty");
    let newline = Scratch::new("newline.txt", b"\n");
    refused(&["decode", "--prompt", newline.path()], "has 0 tokens, expected at least 2");
    let word = Scratch::new("word.txt", b"word");
    refused(&["decode", "--prompt", word.path()], "has 1 token, expected at least 2");
    let latin = Scratch::new("latin-1.txt", b"caf\xE9 au lait");
    refused(&["decode", "--prompt", latin.path()], "is not UTF-8 text: byte 3");
    let none = spec(&["decode", "--prompt", "-"]).stdin(Stdio::null()).output().unwrap();
    let stderr = String::from_utf8_lossy(&none.stderr);
    assert!(!none.status.success() && stderr.contains("prompt from stdin: is empty"), "{stderr}");
}

#[test]
fn a_huge_prompt_is_refused_at_once() {
    // A sparse file of 100 MB, which takes no room on disk.
    let huge = Scratch::new("huge.txt", b"");
    std::fs::File::options().write(true).open(&huge.0).unwrap().set_len(100_000_000).unwrap();
    refused(&["decode", "--prompt", huge.path()], "at most 16777216 (16 MiB)");
    if cfg!(unix) {
        // An endless file whose size is reported as 0.
        refused(&["decode", "--prompt", "/dev/zero"], "at most 16777216 (16 MiB)");
    }
}

#[test]
fn bad_options_are_refused() {
    refused(&["decode", "--tokens", "0"], "from 1 to 100000");
    refused(&["decode", "--tokens", "-5"], "from 1 to 100000");
    refused(&["decode", "--tokens", "many"], "from 1 to 100000");
    refused(&["decode", "--tokens", "99999999999999999999999"], "from 1 to 100000");
    refused(&["decode", "--draft-tokens", "0"], "from 1 to 32");
    refused(
        &["decode", "--draft", "magic"],
        "[possible values: none, lookup, suffix, suffix-tree]",
    );
    refused(&["decode", "--seed", "-1"], "a whole number from 0 to 18446744073709551615");
    refused(&["verify", "--seed", "x"], "a whole number from 0 to 18446744073709551615");
    for temperature in ["-1", "-0.5", "NaN", "inf", "-inf", "warm", "1e999"] {
        refused(&["decode", "--temperature", temperature], "a number that is 0 or larger");
    }
    refused(&["decode", "--top-k", "-1"], "a whole number from 0 to 2147483647");
    for share in ["-0.1", "1.5", "NaN", "half"] {
        refused(&["decode", "--top-p", share], "a number from 0 to 1");
        refused(&["decode", "--min-p", share], "a number from 0 to 1");
    }
    for ms in ["-1", "NaN", "inf", "10001", "soon"] {
        refused(&["decode", "--model-ms", ms], "a number from 0 to 10000");
    }
    for cases in ["-1", "x", "1000000001", "99999999999999999999"] {
        let words = "expected a whole number from 0 to 1000000000";
        refused(&["verify", "--cases", cases], words);
    }
}

#[test]
fn bad_devices_are_refused() {
    for command in ["decode", "verify"] {
        for device in ["nonsense", "", "CUDA", "cuda:", "cuda:x", "gpu:0"] {
            refused(&[command, "--device", device], "is no device, expected `auto`, `cpu`");
        }
        for device in ["cpu:1", "cuda:99999999999999999999", "wgpu:99999999999999999999"] {
            refused(&[command, "--device", device], "is no device, expected a smaller number, as");
        }
        refused(&[command, "--device", "cuda:4000"], "status 6");
        refused(&[command, "--device", "wgpu:4000"], "status 6");
    }
    if let Some(count) = wgpu() {
        let words = format!("there is no such device; wgpu shows {count}, from wgpu:0");
        refused(&["verify", "--device", "wgpu:4000"], &words);
    }
    // If there is no CUDA device, naming one gives the reason.
    let listings = spec::devices();
    let cuda = listings.iter().find(|listing| listing.backend == "cuda").unwrap();
    if let Err(reason) = &cuda.devices {
        let code = format!("(status {})", reason.status().code());
        refused(&["decode", "--device", "cuda:0"], &code);
    }
}

/// The number of wgpu devices; `None` if there are none.
fn wgpu() -> Option<usize> {
    let listing = spec::devices().into_iter().find(|listing| listing.backend == "wgpu");
    listing?.devices.ok().map(|devices| devices.len()).filter(|count| *count > 0)
}

/// Runs as a user that may not start threads. The limit does not apply to the superuser.
#[cfg(target_os = "linux")]
#[test]
fn a_limit_of_threads_is_an_error() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;

    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::copy(env!("CARGO_BIN_EXE_spec"), folder.path().join("spec")).unwrap();
    // No other user has this number.
    let as_user = |limit: u32, arguments: &str| {
        let run = format!("ulimit -u {limit}; exec ./spec {arguments}");
        let mut command = Command::new("bash");
        command.arg("-c").arg(run).current_dir(folder.path()).uid(54_322).gid(54_322).output()
    };
    let few = "decode --device cpu --tokens 3";
    let Ok(probe) = as_user(1000, few) else {
        _ = writeln!(std::io::stderr(), "skipped: this user cannot become another one");
        return;
    };
    assert!(probe.status.success(), "{}", String::from_utf8_lossy(&probe.stderr));
    for arguments in [few, "verify --device cpu --cases 1"] {
        let output = as_user(1, arguments).unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments}: {}: {stderr}", output.status);
        assert!(stderr.starts_with("error: cpu: cannot start a thread: "), "{stderr}");
        assert!(stderr.trim_end().ends_with("(status 1)"), "{stderr}");
    }
}

#[test]
fn a_reader_that_leaves_ends_it_quietly() {
    // The output is larger than a pipe's buffer, so the write must fail.
    let decode = ["decode", "--tokens", "15000", "--draft", "none", "--json"];
    let mut child = spec(&[&decode[..], &FREE].concat())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 1];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(141), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn decode_prints_text_and_table() {
    let text = stdout(&["decode", "--tokens", "40", "--device", "cpu"]);
    let saved = ["model", "without drafts", "drafting saved", "times as fast"];
    let words = ["drafted", "accepted", "acceptance rate", "emitted", "tokens per step"];
    for word in words.into_iter().chain(saved) {
        assert!(text.contains(word), "no {word} in\n{text}");
    }
    for operator in ["suffix_lookup", "sample_logits", "tree_verify"] {
        assert!(text.contains(operator), "no {operator} in\n{text}");
    }
    assert!(text.contains("a stand-in for an LLM"), "{text}");
    assert!(text.contains("takes time: 5.00 ms or more"), "the model's time is not said: {text}");
}

/// If a run of the model takes time, as with an LLM, drafts save time.
#[test]
fn decode_says_what_drafting_saves() {
    let arguments = ["decode", "--tokens", "60", "--model-ms", "20", "--device", "cpu"];
    let run = json(&[&arguments[..], &["--draft", "suffix"]].concat());
    let [seconds, plain, saved] = ["seconds_total", "plain_seconds_total", "saved_seconds"]
        .map(|name| run[name].as_f64().unwrap());
    let [steps, plain_steps, saved_steps] =
        ["steps", "plain_steps", "saved_steps"].map(|name| run[name].as_u64().unwrap());
    assert_eq!(plain_steps, 60, "without drafts every token is a run");
    assert!(steps < 50 && saved_steps == plain_steps - steps, "{run}");
    assert!(plain >= 60.0 * 0.02 && seconds >= steps as f64 * 0.02, "{run}");
    assert!((saved - (plain - seconds)).abs() < 1e-9 && saved > 0.0, "{run}");
    assert!(run["seconds_model"].as_f64().unwrap() >= steps as f64 * 0.02, "{run}");
    assert_eq!(run["model_ms"].as_f64(), Some(20.0));
    let run = json(&[&arguments[..], &["--draft", "none"]].concat());
    for name in ["plain_steps", "plain_seconds_total", "saved_steps", "saved_seconds"] {
        assert!(run[name].is_null(), "there is nothing to compare with: {run}");
    }
}

#[test]
fn decode_prints_one_json_object() {
    for (draft, operator) in [
        ("none", None),
        ("lookup", Some("prompt_lookup")),
        ("suffix", Some("suffix_lookup")),
        ("suffix-tree", Some("suffix_lookup")),
    ] {
        let options = ["decode", "--tokens", "50", "--draft", draft, "--device", "cpu"];
        let run = json(&[&options[..], &FREE].concat());
        let number = |key: &str| run[key].as_u64().unwrap();
        assert_eq!(number("emitted"), 50);
        assert_eq!(run["tokens"].as_array().unwrap().len(), 50);
        assert_eq!(number("accepted") + number("steps"), 50);
        assert!(number("accepted") <= number("drafted"));
        assert!(!run["text"].as_str().unwrap().is_empty());
        let mut operators = vec!["sample_logits", "tree_verify"];
        operators.extend(operator);
        operators.sort_unstable();
        let seconds = run["seconds"].as_object().unwrap();
        assert_eq!(seconds.keys().collect::<Vec<_>>(), operators);
        assert!(seconds.values().all(|seconds| seconds.as_f64().unwrap() > 0.0));
    }
}

/// The text of a seed does not depend on drafts or on the device, for any filters.
#[test]
fn a_seed_is_a_text() {
    let tokens = |options: &[&str]| {
        json(&[&["decode", "--tokens", "60"][..], &FREE, options].concat())["tokens"].take()
    };
    let filtered = ["--top-k", "40", "--top-p", "0.9", "--min-p", "0.02", "--seed", "7"];
    for options in [&["--temperature", "0"][..], &["--seed", "7"], &filtered] {
        let plain = tokens(&[options, &["--draft", "none", "--device", "cpu"]].concat());
        for handle in common::handles() {
            for draft in ["none", "lookup", "suffix", "suffix-tree"] {
                let device = handle.device().to_string();
                let run = [options, &["--draft", draft, "--device", &device]].concat();
                assert_eq!(tokens(&run), plain, "{run:?}");
            }
        }
        if options.len() > 2 {
            assert_ne!(tokens(&["--seed", "7", "--device", "cpu"]), plain, "filters do nothing");
        }
    }
    assert_ne!(
        tokens(&["--seed", "7", "--device", "cpu"]),
        tokens(&["--seed", "8", "--device", "cpu"])
    );
}

#[test]
fn a_prompt_of_ones_own() {
    // A text that is not English, with a character that tokens split, and Windows newlines.
    let text = "ひらがな と カタカナ 🦀\r\n".repeat(40);
    let file = Scratch::new("own.txt", text.as_bytes());
    let run = json(&[
        "decode",
        "--prompt",
        file.path(),
        "--tokens",
        "60",
        "--temperature",
        "0",
        "--device",
        "cpu",
    ]);
    assert!(text.repeat(2).contains(run["text"].as_str().unwrap().trim()), "{}", run["text"]);
}

#[test]
fn a_prompt_may_come_through_a_pipe() {
    let text = "one two three, one two three, one two four.\n".repeat(9);
    let file = Scratch::new("piped.txt", text.as_bytes());
    let options = ["--tokens", "9", "--device", "cpu"];
    let named = json(&[&["decode", "--prompt", file.path()][..], &options].concat());
    let piped = spec(&[&["decode", "--prompt", "-", "--json"][..], &options].concat())
        .stdin(std::fs::File::open(&file.0).unwrap())
        .output()
        .unwrap();
    assert!(piped.status.success(), "{}", String::from_utf8_lossy(&piped.stderr));
    let piped: Value = serde_json::from_slice(&piped.stdout).unwrap();
    assert_eq!((&piped["tokens"], &piped["text"]), (&named["tokens"], &named["text"]));
}

#[test]
fn devices_are_listed_with_reasons() {
    let text = stdout(&["devices"]);
    assert!(text.starts_with("cpu "), "{text}");
    let listings = json(&["devices"]);
    let all = listings.as_array().unwrap().iter().flat_map(|found| found["devices"].as_array());
    let all: Vec<&Value> = all.flatten().collect();
    // `auto` opens one of the devices, and no software renderer.
    let auto = Handle::auto().unwrap().device().to_string();
    let taken: Vec<_> = all.iter().filter(|device| device["auto"] == true).collect();
    assert!(taken.len() == 1 && taken[0]["device"] == *auto, "{listings}");
    assert_eq!(taken[0]["software"], false, "{listings}");
    assert_eq!(text.matches("`--device auto` takes this one").count(), 1, "{text}");
    for device in all.iter().filter(|device| device["software"] == true) {
        let name = device["device"].as_str().unwrap();
        let words = format!("a software renderer: only `--device {name}` takes it");
        assert!(text.contains(&words), "{text}");
    }
    for (listing, found) in spec::devices().iter().zip(listings.as_array().unwrap()) {
        assert_eq!(found["backend"], listing.backend);
        match &listing.devices {
            Ok(devices) => assert_eq!(found["devices"].as_array().unwrap().len(), devices.len()),
            Err(reason) => {
                assert_eq!(found["error"]["status"], reason.status().code());
                assert!(text.contains(&format!("{:<8} none: {reason}", listing.backend)), "{text}");
            }
        }
    }
}

/// The name of the CPU is the model that the system reports, not only the architecture.
#[cfg(target_os = "linux")]
#[test]
fn the_cpu_is_named() {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap();
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    // On some architectures the kernel does not report the model there.
    let Some((_, model)) = model else { return };
    assert_eq!(json(&["devices"])[0]["devices"][0]["name"], model.trim());
    let verified = stdout(&["verify", "unique", "--device", "cpu", "--cases", "0"]);
    assert!(verified.starts_with(&format!("Checking cpu ({})", model.trim())), "{verified}");
}

/// Opening a software renderer by name gives a warning; `auto` gives none.
#[test]
fn a_software_renderer_is_a_warning() {
    let listings = spec::devices();
    let all = listings.iter().filter_map(|listing| listing.devices.as_ref().ok()).flatten();
    let decode = |device: &str| {
        let decode = ["decode", "--tokens", "2", "--device", device];
        let output = run(&[&decode[..], &FREE].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stderr).unwrap()
    };
    for info in all.filter(|info| info.software) {
        let stderr = decode(&info.device.to_string());
        let start = format!("warning: {} ({}) is a software renderer", info.device, info.name);
        assert!(stderr.starts_with(&start) && stderr.lines().count() == 1, "{stderr}");
    }
    assert_eq!(decode("auto"), "");
}

#[test]
fn verify_passes_on_the_cpu() {
    let text = stdout(&["verify", "--device", "cpu", "--cases", "3"]);
    assert_eq!(
        text.lines().filter(|line| line.ends_with(" ok")).count(),
        spec::ops::ALL.len(),
        "{text}"
    );
    assert!(text.contains("compared with plain sequential loops"), "{text}");
    let report = json(&["verify", "--device", "cpu", "--cases", "2", "--seed", "9"]);
    for operator in report["operators"].as_array().unwrap() {
        assert_eq!(operator["random"]["cases"], 2);
        assert_eq!(operator["golden"]["failed"], 0);
    }
}

#[test]
fn verify_checks_the_operators_that_are_named() {
    let report = json(&["verify", "unique", "tree_verify", "--device", "cpu", "--cases", "2"]);
    let operators = report["operators"].as_array().unwrap();
    let names: Vec<_> = operators.iter().map(|operator| &operator["operator"]).collect();
    assert_eq!(names, ["tree_verify", "unique"]);
    refused(&["verify", "uniqe"], "[possible values: topk_router, ");
}

/// `verify` notices wrong golden vectors and says where they are wrong.
#[test]
fn verify_fails_on_a_wrong_vector() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("wrong-golden");
    std::fs::create_dir_all(&folder).unwrap();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../spec-conformance/golden");
    for entry in std::fs::read_dir(golden).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, folder.join(path.file_name().unwrap())).unwrap();
    }
    let wrong = r#"{"op": "unique", "cases": [{"name": "miscounted", "params": {},
        "inputs": {"keys": {"dtype": "u32", "shape": [3], "data": [7, 5, 7]}},
        "outputs": {"unique": {"dtype": "u32", "shape": [2], "data": [5, 7]},
                    "counts": {"dtype": "u64", "shape": [2], "data": [2, 1]}}}]}"#;
    std::fs::write(folder.join("unique.json"), wrong).unwrap();
    let verify = |golden: &Path| {
        spec(&["verify", "--device", "cpu", "--cases", "0"])
            .env("SPEC_GOLDEN_DIR", golden)
            .output()
            .unwrap()
    };
    let output = verify(&folder);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("unique: miscounted, packed: counts[0]: got 1, expected 2"), "{text}");
    let output = verify(Path::new("no-such-folder"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && stderr.contains("no-such-folder"), "{stderr}");
    std::fs::remove_dir_all(folder).unwrap();
}

/// A library that only has the driver's name is not taken for a driver, and causes no crash.
#[cfg(target_os = "linux")]
#[test]
fn a_broken_driver_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("empty.c");
    std::fs::write(&source, "int nothing;\n").unwrap();
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .args([folder.path().join("libcuda.so").as_os_str(), source.as_os_str()])
        .status()
        .unwrap();
    assert!(built.success());
    let output = spec(&["decode", "--tokens", "1", "--device", "cuda:0"])
        .env("LD_LIBRARY_PATH", folder.path())
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        stderr.contains("the library libcuda on this machine has no cuDriverGetVersion"),
        "{stderr}"
    );
    assert_eq!(output.status.code(), Some(1), "{stderr}");
}
