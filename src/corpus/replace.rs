//! A file that replaces another one when it is complete.

use std::collections::hash_map::RandomState;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::hash::{BuildHasher, Hasher};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

const SUFFIX: &str = ".partial";

/// Writes `parts` to a file beside `path`, and gives it that name when it is complete and safe on
/// disk. Through a symbolic link, the file behind it is replaced.
///
/// # Errors
/// If the file cannot be written; if `path` is that of a folder, a device, a pipe or a socket.
pub(super) fn replace(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    let place = place(path)?;
    let folder = match place.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let name = place.file_name().ok_or(io::ErrorKind::IsADirectory)?;
    let prefix = format!(".{}.", shortened(&name.to_string_lossy()));
    sweep(folder, &prefix);
    let mut partial = Partial::create(folder, &prefix)?;
    parts.iter().try_for_each(|part| partial.file.write_all(part))?;
    partial.file.sync_all()?;
    fs::rename(&partial.path, &place)?;
    partial.is_renamed = true;
    // The name itself, where a folder can be synced.
    if let Ok(folder) = File::open(folder) {
        _ = folder.sync_all();
    }
    Ok(())
}

/// The path to write, which is that of the file behind a link.
fn place(path: &Path) -> io::Result<PathBuf> {
    match fs::metadata(path) {
        Ok(there) if there.is_file() => fs::canonicalize(path),
        Ok(_) => Err(io::Error::other("it is not a regular file")),
        Err(_) => Ok(path.to_owned()),
    }
}

/// The start of a file's name, short enough for what [`Partial::create`] puts around it: a name has
/// at most 255 bytes, on some encrypted file systems 143.
fn shortened(name: &str) -> &str {
    const MAX: usize = 96;
    let end = (0..=MAX.min(name.len())).rev().find(|at| name.is_char_boundary(*at));
    &name[..end.unwrap_or(0)]
}

/// A file under a name of its own, which no other user can read. It is locked as long as it is
/// written, and removed when it is dropped, unless it was renamed.
struct Partial {
    file: File,
    path: PathBuf,
    is_renamed: bool,
}

impl Partial {
    fn create(folder: &Path, prefix: &str) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        loop {
            // Numbers of processes are no names: containers that share a folder have equal ones.
            let random = RandomState::new().build_hasher().finish();
            let path = folder.join(format!("{prefix}{random:016x}{SUFFIX}"));
            let file = match options.open(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                opened => opened?,
            };
            // File systems without locks are not swept.
            let is_taken = matches!(file.try_lock(), Err(TryLockError::WouldBlock));
            let partial = Partial { file, path, is_renamed: false };
            // Another save may have taken the file for one that was left, before it was locked.
            if !is_taken && partial.path.exists() {
                return Ok(partial);
            }
        }
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.is_renamed {
            // The error that is reported is the one that ended the save.
            _ = fs::remove_file(&self.path);
        }
    }
}

/// Removes from `folder` what saves have left that were killed: files of such names that nobody
/// keeps locked.
fn sweep(folder: &Path, prefix: &str) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let middle = name.to_str().and_then(|name| name.strip_prefix(prefix)?.strip_suffix(SUFFIX));
        let is_random = |middle: &str| {
            middle.len() == 16 && middle.bytes().all(|byte| byte.is_ascii_hexdigit())
        };
        // Neither links are followed nor pipes opened, which others may have put there.
        let is_file = || entry.file_type().is_ok_and(|kind| kind.is_file());
        if middle.is_some_and(is_random)
            && is_file()
            && let Ok(file) = File::open(entry.path())
            && file.try_lock().is_ok()
        {
            _ = fs::remove_file(entry.path());
        }
    }
}
