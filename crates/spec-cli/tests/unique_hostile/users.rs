//! Other users of the machine: what they may read, and what they put in a run's way.

use super::*;

/// The number of a process that does not exist, unless millions of processes were started.
const DEAD: u32 = 4_000_000;

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
