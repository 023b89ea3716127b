//! Files and folders that must not outlive the process, and those that ended
//! processes have left.

use std::collections::hash_map::RandomState;
use std::fs;
use std::hash::{BuildHasher, Hasher};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::os;

/// What exists at the moment and is to vanish, unless it is kept.
struct Live {
    paths: Vec<PathBuf>,
    closed: bool,
}

static LIVE: Mutex<Live> = Mutex::new(Live { paths: Vec::new(), closed: false });

fn live() -> MutexGuard<'static, Live> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes every temporary file and unfinished output of this process, and
/// keeps runs from making more: for a program that is about to end because a
/// signal asked it to, called from an ordinary thread of it. Runs that are under
/// way fail after it; none finishes.
pub fn abandon() {
    let mut live = live();
    live.closed = true;
    for path in live.paths.drain(..) {
        remove(&path);
    }
}

fn remove(path: &Path) {
    // A thread that is still at work may add a file in between.
    for _ in 0..16 {
        let removed = match fs::symlink_metadata(path) {
            // Without opening it, if it is empty: there may be no file descriptor.
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

/// A path that is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Guard {
    path: PathBuf,
}

impl Guard {
    /// Makes something at `path` and guards it, as one step for [`abandon`].
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

    /// Does what gives the path away, as one step for [`abandon`]; on success
    /// nothing is removed any more.
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

/// A name that no other run has: it says whose it is.
pub(crate) fn unique_name() -> String {
    let random = RandomState::new().build_hasher().finish();
    format!("{}-{random:016x}", std::process::id())
}

/// The process in a name that ends as [`unique_name`] made it.
fn owner(name: &str) -> Option<u32> {
    let (process, random) = name.split_once('-')?;
    let hexadecimal = random.len() == 16 && random.bytes().all(|byte| byte.is_ascii_hexdigit());
    process.parse().ok().filter(|_| hexadecimal)
}

/// Removes from `folder` what is named `prefix`, a [`unique_name`] and `suffix`,
/// is this user's, and whose owner has ended. `lock` is the file, from such a path,
/// that an owner keeps locked as long as it lives.
pub(crate) fn sweep(folder: &Path, prefix: &str, suffix: &str, lock: fn(&Path) -> PathBuf) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let middle = name.to_str().and_then(|name| name.strip_prefix(prefix)?.strip_suffix(suffix));
        let Some(process) = middle.and_then(owner) else { continue };
        let path = entry.path();
        // Others may put there what they like, under any name.
        let ours = fs::symlink_metadata(&path).is_ok_and(|metadata| {
            os::is_ours(&metadata) && (metadata.is_file() || metadata.is_dir())
        });
        let dead = || match os::open_ours(&lock(&path)) {
            Ok(file) => os::lock(&file).unwrap_or(false),
            // Perhaps it is being made at this moment.
            Err(_) => !os::alive(process),
        };
        if ours && dead() {
            remove(&path);
        }
    }
}
