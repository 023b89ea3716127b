//! Removes files and folders that must not outlive the process, and those that earlier
//! processes have left.

use std::collections::hash_map::RandomState;
use std::fs;
use std::hash::{BuildHasher, Hasher};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::os;

/// The files and folders that exist at the moment and will be removed unless they are released.
struct Live {
    paths: Vec<PathBuf>,
    closed: bool,
}

static LIVE: Mutex<Live> = Mutex::new(Live { paths: Vec::new(), closed: false });

fn live() -> MutexGuard<'static, Live> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes every temporary file and unfinished output of this process, and
/// prevents runs from making more. For a program that is about to end because of a
/// signal; call it from an ordinary thread. All runs that have not finished fail
/// afterwards.
pub fn abandon() {
    let mut live = live();
    live.closed = true;
    for path in live.paths.drain(..) {
        remove(&path);
    }
}

fn remove(path: &Path) {
    // Several attempts, because a thread that is still running may add a file meanwhile.
    for _ in 0..16 {
        let removed = match fs::symlink_metadata(path) {
            // An empty folder is removed without opening it: there may be no free file
            // descriptor.
            Ok(metadata) if metadata.is_dir() => {
                fs::remove_dir(path).or_else(|_| fs::remove_dir_all(path))
            }
            Ok(_) => fs::remove_file(path),
            Err(_) => return,
        };
        if removed.is_ok() {
            return;
        }
    }
}

/// A path whose file or folder is removed when the guard is dropped.
#[derive(Debug)]
pub(crate) struct Guard {
    path: PathBuf,
}

impl Guard {
    /// Makes a file or folder at `path` and guards it. [`abandon`] cannot run between the two.
    pub(crate) fn make<T>(
        path: &Path,
        make: impl FnOnce(&Path) -> std::io::Result<T>,
    ) -> std::io::Result<(Self, T)> {
        let mut live = live();
        if live.closed {
            return Err(std::io::Error::other("the program is ending"));
        }
        let made = make(path)?;
        live.paths.push(path.to_owned());
        Ok((Guard { path: path.to_owned() }, made))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Runs `act`, such as a rename, and releases the path: after success, nothing will be
    /// removed. [`abandon`] cannot run between the two.
    pub(crate) fn release(self, act: impl FnOnce() -> std::io::Result<()>) -> std::io::Result<()> {
        {
            let mut live = live();
            if live.closed {
                return Err(std::io::Error::other("the program is ending"));
            }
            act()?;
            live.paths.retain(|path| *path != self.path);
        }
        Ok(())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let mut live = live();
        let before = live.paths.len();
        live.paths.retain(|path| *path != self.path);
        if live.paths.len() < before {
            remove(&self.path);
        }
    }
}

/// A name that no other run has. It contains the number of the process.
pub(crate) fn unique_name() -> String {
    let random = RandomState::new().build_hasher().finish();
    format!("{}-{random:016x}", std::process::id())
}

/// The number of the process in a name that [`unique_name`] made.
fn owner(name: &str) -> Option<u32> {
    let (process, random) = name.split_once('-')?;
    let hexadecimal = random.len() == 16 && random.bytes().all(|byte| byte.is_ascii_hexdigit());
    process.parse().ok().filter(|_| hexadecimal)
}

/// Removes files and folders from `folder` whose names are `prefix`, a [`unique_name`] and
/// `suffix`, which belong to this user, and whose process has ended. `lock` gives, for such a
/// path, the file that the process keeps locked as long as it lives.
pub(crate) fn sweep(folder: &Path, prefix: &str, suffix: &str, lock: fn(&Path) -> PathBuf) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let middle = name.to_str().and_then(|name| name.strip_prefix(prefix)?.strip_suffix(suffix));
        let Some(process) = middle.and_then(owner) else { continue };
        let path = entry.path();
        // Other users may put anything there under such a name.
        let ours = fs::symlink_metadata(&path).is_ok_and(|metadata| {
            os::is_ours(&metadata) && (metadata.is_file() || metadata.is_dir())
        });
        let dead = || match os::open_ours(&lock(&path)) {
            Ok(file) => os::lock(&file).unwrap_or(false),
            // The lock file may be missing because another process is just making it.
            Err(_) => !os::alive(process),
        };
        if ours && dead() {
            remove(&path);
        }
    }
}
