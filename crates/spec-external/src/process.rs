//! Functions for the program that makes a run: how to end its process, and how much memory the
//! process may take.

use std::path::{Path, PathBuf};

pub use crate::live::abandon;

/// Keeps panics that become errors off stderr for the rest of the process. The crates that read
/// Parquet and Arrow panic so on damaged files. All other panics are
/// reported as before.
#[cfg(feature = "parquet")]
pub fn hide_caught_panics() {
    crate::caught::hide_panics();
}

/// [Abandons](abandon) unfinished files and ends the process at once with the exit code
/// `code`. For a program that a signal asks to end.
///
/// Exit handlers do not run, because those of a GPU's driver free data that the driver's own
/// threads still use.
pub fn end(code: i32) -> ! {
    abandon();
    end_now(code)
}

#[cfg(unix)]
fn end_now(code: i32) -> ! {
    // SAFETY: `_exit` takes a number, accesses no memory, and does not return.
    unsafe { libc::_exit(code) }
}

#[cfg(not(unix))]
fn end_now(code: i32) -> ! {
    std::process::exit(code)
}

/// Makes a write beyond the limit of file sizes (`ulimit -f`) an error. By default, the system
/// ends the process with a signal, and files are left behind.
pub fn report_large_files() {
    #[cfg(unix)]
    // SAFETY: `SIG_IGN` is a valid action for SIGXFSZ and installs no handler, so no code runs in
    // a signal context.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}

/// Raises the number of files that the process may open to the hard limit. The default limit is
/// lower, and an input can be a folder of thousands of files.
pub fn open_many_files() {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, getrlimit, setrlimit};
        let mut limit = getrlimit(Resource::Nofile);
        limit.current = limit.maximum;
        // A refusal is ignored: the limit then stays as it was.
        _ = setrlimit(Resource::Nofile, limit);
    }
}

/// Bytes of memory that this process may still take by its control groups
/// (versions 1 and 2) and its resource limits (`ulimit -v`, `ulimit -d`). The machine may have
/// less. `None` where there is no such limit.
pub fn memory_left() -> Option<u64> {
    let process = Path::new("/proc/self");
    groups_left(process).into_iter().chain(limits_left(process)).min()
}

#[cfg(unix)]
fn limits_left(process: &Path) -> Option<u64> {
    use rustix::process::{Resource, getrlimit};
    let of = |resource, held: &str| {
        let limit = getrlimit(resource).current?;
        Some(limit.saturating_sub(status(process, held).unwrap_or(0)))
    };
    [of(Resource::As, "VmSize:"), of(Resource::Data, "VmData:")].into_iter().flatten().min()
}

#[cfg(not(unix))]
fn limits_left(_process: &Path) -> Option<u64> {
    None
}

/// Bytes of memory that this process holds; `None` where the system does not say.
pub fn resident() -> Option<u64> {
    status(Path::new("/proc/self"), "VmRSS:")
}

/// The largest number of bytes of memory that this process has held so far; `None` where the
/// system does not say.
pub fn peak() -> Option<u64> {
    status(Path::new("/proc/self"), "VmHWM:")
}

/// A value of `/proc/<process>/status` on Linux, in bytes.
fn status(process: &Path, name: &str) -> Option<u64> {
    let status = std::fs::read_to_string(process.join("status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kib << 10)
}

/// The smallest number of bytes that any control group of a process leaves, from its own group up
/// to the topmost visible group.
fn groups_left(process: &Path) -> Option<u64> {
    let text = |name: &str| std::fs::read_to_string(process.join(name)).unwrap_or_default();
    let (groups, mounts) = (text("cgroup"), text("mountinfo"));
    let mut least: Option<u64> = None;
    for group in groups.lines() {
        // `0::/path` is version 2, `4:memory:/path` is version 1.
        let mut fields = group.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let is_second = controllers.is_empty();
        if !is_second && !controllers.split(',').any(|name| name == "memory") {
            continue;
        }
        let Some((mount, root)) = mounts.lines().find_map(|line| mounted(line, is_second)) else {
            continue;
        };
        // The mount may show only a part of the tree, such as that of a container.
        let path = Path::new(path);
        let inside = path.strip_prefix(&root).or_else(|_| path.strip_prefix("/"));
        let inside = inside.unwrap_or(Path::new(""));
        let inside = if inside.starts_with("..") { Path::new("") } else { inside };
        for group in inside.ancestors() {
            let left = group_left(&mount.join(group), is_second);
            least = least.into_iter().chain(left).min();
        }
    }
    least
}

/// For a line of `mountinfo` that mounts the memory control groups: the mount point, and the
/// part of their tree that it shows.
fn mounted(line: &str, is_second: bool) -> Option<(PathBuf, PathBuf)> {
    let (before, after) = line.split_once(" - ")?;
    let mut kind = after.split(' ');
    let matches = if is_second {
        kind.next() == Some("cgroup2")
    } else {
        kind.next() == Some("cgroup")
            && kind.nth(1).is_some_and(|options| options.split(',').any(|name| name == "memory"))
    };
    let mut fields = before.split(' ').skip(3);
    let (root, mount) = (fields.next()?, fields.next()?);
    matches.then(|| (PathBuf::from(mount), PathBuf::from(root)))
}

/// The number of bytes that one control group leaves: its limit minus its memory, where cached
/// files that the system can drop do not count as memory. `None` where the group has no limit.
fn group_left(group: &Path, is_second: bool) -> Option<u64> {
    let number = |name: &str| -> Option<u64> {
        std::fs::read_to_string(group.join(name)).ok()?.trim().parse().ok()
    };
    let (limits, held, cache): (&[_], _, _) = if is_second {
        (&["memory.max", "memory.high"], "memory.current", "inactive_file ")
    } else {
        (&["memory.limit_in_bytes"], "memory.usage_in_bytes", "total_inactive_file ")
    };
    let limit = limits.iter().filter_map(|name| number(name)).min()?;
    let stat = std::fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let cached = stat.lines().find_map(|line| line.strip_prefix(cache)?.parse().ok());
    let held = number(held).unwrap_or(0).saturating_sub(cached.unwrap_or(0));
    // In version 1, a group without a limit has a very large number.
    (limit < 1 << 60).then(|| limit.saturating_sub(held))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes the `/proc` folder and the control groups of a process as files, and reads them.
    fn process(groups: &str, root: &str, kind: &str, files: &[(&str, &str)]) -> Option<u64> {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        let mount = at.join("tree");
        let mounts = format!(
            "22 1 0:20 / /proc rw - proc proc rw\n30 22 0:26 {root} {} rw,nosuid shared:4 - {kind}\n",
            mount.display()
        );
        std::fs::write(at.join("cgroup"), groups).unwrap();
        std::fs::write(at.join("mountinfo"), mounts).unwrap();
        for (name, content) in files {
            let path = mount.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, format!("{content}\n")).unwrap();
        }
        groups_left(at)
    }

    #[test]
    fn the_second_version_of_control_groups() {
        let kind = "cgroup2 cgroup2 rw,nsdelegate";
        let files = [
            ("memory.max", "max"),
            ("a/memory.max", "1000"),
            ("a/memory.current", "300"),
            ("a/memory.stat", "anon 7\ninactive_file 100\nactive_file 9"),
            ("a/b/memory.max", "max"),
            ("a/b/memory.high", "950"),
            ("a/b/memory.current", "10"),
        ];
        assert_eq!(process("0::/a/b\n", "/", kind, &files), Some(800));
        assert_eq!(process("0::/a/b/c\n", "/", kind, &files), Some(800));
        assert_eq!(process("0::/a\n", "/", kind, &files[..2]), Some(1000));
        assert_eq!(process("0::/\n", "/", kind, &files), None);
        assert_eq!(process("0::/../other\n", "/", kind, &files), None);
        // In a container that sees only its own part of the tree.
        let own = [("memory.max", "500"), ("memory.current", "600")];
        assert_eq!(process("0::/docker/1\n", "/docker/1", kind, &own), Some(0));
        assert_eq!(process("0::/\n", "/", kind, &own), Some(0));
    }

    #[test]
    fn the_first_version_of_control_groups() {
        let kind = "cgroup cgroup rw,memory";
        let files = [
            ("memory.limit_in_bytes", "9223372036854771712"),
            ("a/memory.limit_in_bytes", "1000"),
            ("a/memory.usage_in_bytes", "700"),
            ("a/memory.stat", "inactive_file 5\ntotal_inactive_file 400"),
        ];
        let groups = "5:cpu:/x\n4:memory:/a\n0::/\n";
        assert_eq!(process(groups, "/", kind, &files), Some(700));
        assert_eq!(process("4:cpu,memory:/\n", "/", kind, &files), None);
        assert_eq!(process("5:cpu:/a\n", "/", kind, &files), None);
        assert_eq!(process(groups, "/", "cgroup cgroup rw,cpu", &files), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_holds_some_memory() {
        let (held, highest) = (resident().unwrap(), peak().unwrap());
        assert!(held > 100 << 10 && held <= highest, "{held} of {highest}");
    }
}
