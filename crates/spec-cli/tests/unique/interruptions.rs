//! Runs that are interrupted: by a full disk, a vanishing folder, signals and kills.

use super::*;

/// A run that has spilled and waits for more input.
fn waiting_run(case: &Case, arguments: &[&str]) -> (Running, JoinHandle<ChildStdin>) {
    let mut command = case.command(&[&["-", "--memory", LITTLE], arguments].concat());
    let before = case.names("temp");
    let mut run = Running::start(command.stdin(Stdio::piped()));
    let stdin = run.feed(bytes(&keys(MANY, u64::MAX)));
    wait_for("a spilled run", || {
        let spilled = |name: &String| case.folder.join("temp").join(name).join("0.keys").exists();
        case.names("temp").iter().any(|name| !before.contains(name) && spilled(name))
    });
    (run, stdin)
}

/// A small file system for a test.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// `None`, with a message, if this user may not mount file systems.
    fn mount(path: PathBuf, size: &str) -> Option<SmallDisk> {
        std::fs::create_dir_all(&path).unwrap();
        let size = format!("size={size}");
        let mut mount = Command::new("mount");
        let result = mount.args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(&path).output();
        match result {
            Ok(result) if result.status.success() => Some(SmallDisk(path)),
            Ok(result) => {
                let why = String::from_utf8_lossy(&result.stderr).trim().to_owned();
                eprintln!("skipped: no small disk can be mounted here: {why}");
                None
            }
            Err(error) => {
                eprintln!("skipped: no small disk can be mounted here: {error}");
                None
            }
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_is_said_and_left_as_it_was() {
    let case = Case::new("full");
    let input = case.write("input", &bytes(&keys(MANY, u64::MAX)));
    let Some(disk) = SmallDisk::mount(case.folder.join("disk"), "4m") else { return };
    let on_disk = disk.0.join("output");
    for memory in [LITTLE, "1GiB"] {
        let arguments = [&input, "-o", on_disk.to_str().unwrap(), "--memory", memory];
        case.refused(&arguments, "output: cannot write: the disk is full");
        assert_eq!(case.names("disk"), [""; 0]);
        case.is_clean(&["disk", "input", "temp"]);
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_spec"));
    command.args(["unique", "--device", "cpu", &input, "-o", &case.path("output")]);
    command.args(["--memory", LITTLE, "--temp"]).arg(&disk.0);
    failed(&output(&mut command), "cannot write: the disk is full");
    assert_eq!(case.names("disk"), [""; 0]);
    case.is_clean(&["disk", "input", "temp"]);
}

#[test]
fn a_temporary_folder_that_vanishes_is_said() {
    let case = Case::new("vanish");
    let (run, stdin) = waiting_run(&case, &["-o", &case.path("output")]);
    for name in case.names("temp") {
        std::fs::remove_dir_all(case.folder.join("temp").join(name)).unwrap();
    }
    drop(stdin.join());
    failed(&run.output(), "the temporary folder has vanished during the run");
    case.is_clean(&["temp"]);
}

#[test]
fn signals_end_it_without_a_trace() {
    let case = Case::new("signals");
    for signal in ["INT", "TERM"] {
        let (mut run, stdin) = waiting_run(&case, &["-o", &case.path("output")]);
        assert_eq!(case.names(".").len(), 2, "no unfinished output beside temp");
        run.signal(signal);
        assert_eq!(run.wait().code(), Some(130));
        drop(stdin);
        case.is_clean(&["temp"]);
    }
    // A signal in any phase of a run: the program must not complain about files that
    // the signal handler itself removed.
    let all = keys(MANY, u64::MAX);
    let (input, expected) = (case.write("input", &bytes(&all)), distinct(&all));
    let arguments = [&input, "-o", &case.path("output"), "--memory", LITTLE];
    let start = Instant::now();
    case.succeed(&arguments);
    let whole = start.elapsed();
    std::fs::remove_file(case.path("output")).unwrap();
    let mut ended = 0;
    for round in 0..30 {
        let run = Running::start(&mut case.command(&arguments));
        wait_for("its first file", || case.names(".").len() > 2);
        std::thread::sleep(whole * round / 30);
        run.signal("TERM");
        let result = run.output();
        assert!(result.stderr.is_empty(), "{}", String::from_utf8_lossy(&result.stderr));
        assert!(matches!(result.status.code(), Some(0 | 130)), "{}", result.status);
        match std::fs::read(case.path("output")) {
            // If the signal came late, the output must be complete.
            Ok(found) => {
                assert!(found == expected, "half of an output");
                std::fs::remove_file(case.path("output")).unwrap();
            }
            Err(_) => {
                assert!(!result.status.success(), "succeeded without output");
                ended += 1;
            }
        }
        case.is_clean(&["input", "temp"]);
    }
    assert!(ended > 5, "{ended} runs were ended");
}

#[test]
fn what_dead_runs_left_is_removed_and_what_live_ones_need_is_not() {
    let case = Case::new("owners");
    let output = case.path("output");
    let (mut dead, _open) = waiting_run(&case, &["-o", &output]);
    dead.signal("KILL");
    assert!(!dead.wait().success());
    let left = case.names("temp");
    assert_eq!(left.len(), 1);
    assert!(left[0].contains(&dead.0.id().to_string()), "{left:?} does not name {}", dead.0.id());
    // The next run removes the folder of the dead run, even if it needs no folder itself.
    let little = case.write("little", &bytes(&keys(10, 10)));
    case.succeed(&[&little, "--count-only"]);
    assert_eq!(case.names("temp"), [""; 0]);
    // A run that spills removes it too, and a later run leaves the folder of a live run alone.
    let (mut dead, _open) = waiting_run(&case, &["-o", &output]);
    dead.signal("KILL");
    assert!(!dead.wait().success());
    let left = case.names("temp");
    let (live, stdin) = waiting_run(&case, &["-o", &output]);
    let theirs = case.names("temp");
    assert!(theirs.len() == 1 && theirs != left, "{theirs:?}");
    // Files whose names do not belong to a run are left alone.
    std::fs::write(case.folder.join("temp/spec-unique-notes"), b"mine").unwrap();
    let input = case.write("input", &bytes(&keys(MANY, 1000)));
    case.succeed(&[&input, "-o", &case.path("other"), "--memory", LITTLE]);
    assert_eq!(case.names("temp"), [&theirs[..], &["spec-unique-notes".to_owned()]].concat());
    std::fs::remove_file(case.folder.join("temp/spec-unique-notes")).unwrap();
    drop(stdin.join());
    assert!(live.output().status.success());
    assert!(std::fs::read(&output).unwrap() == distinct(&keys(MANY, u64::MAX)));
    case.is_clean(&["input", "little", "other", "output", "temp"]);
}

#[test]
fn a_kill_at_any_moment_leaves_all_or_nothing() {
    const KILLS: u32 = 60;
    let case = Case::new("kill");
    let all = keys(MANY, u64::MAX);
    let content = bytes(&all);
    let expected = distinct(&all);
    let (input, output) = (case.write("input", &content), case.path("output"));
    let arguments = [&input, "-o", &output, "--memory", LITTLE, "--force"];
    // The shortest of three runs: a run that other programs have slowed down would put most of the
    // kills behind the end.
    let run = || {
        let start = Instant::now();
        case.succeed(&arguments);
        start.elapsed()
    };
    let mut whole = run().min(run()).min(run());
    std::fs::remove_file(&output).unwrap();
    let (mut killed, mut finished) = (0, 0);
    for round in 0..KILLS {
        let mut run = Running::start(&mut case.command(&arguments));
        // Kills at moments from the start to a little after the end, in mixed order.
        let pause = whole * (round * 37 % KILLS) / KILLS * 11 / 10;
        std::thread::sleep(pause);
        _ = run.0.kill();
        let status = run.wait();
        if status.success() {
            finished += 1;
            // Other programs have slowed down the runs that were timed.
            whole = whole.min(pause);
        } else {
            killed += 1;
        }
        match std::fs::read(&output) {
            Ok(found) => assert!(found == expected, "round {round}: half of an output"),
            Err(_) => assert!(!status.success(), "round {round}: succeeded without output"),
        }
        // Half of the time the next run meets an output, half of the time none.
        if round % 2 == 0 {
            _ = std::fs::remove_file(&output);
        }
    }
    assert!(killed > KILLS / 2, "{killed} killed, {finished} finished");
    assert!(std::fs::read(&input).unwrap() == content, "the input has changed");
    case.succeed(&arguments);
    assert!(std::fs::read(&output).unwrap() == expected);
    case.is_clean(&["input", "output", "temp"]);
}
