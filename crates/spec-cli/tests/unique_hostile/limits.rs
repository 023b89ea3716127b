//! Limits of memory, file sizes, open files and threads.

use super::*;

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
