//! The folder for temporary files.

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::live::{Guard, sweep, unique_name};
use crate::{Error, Result, os};

const PREFIX: &str = "spec-unique-";
/// The name of the file in the folder that the owning process keeps locked.
const OWNER: &str = "owner";

/// The folder of one run in the folder that the caller chose. It is removed with its content
/// when this is dropped. The folders of processes that died are removed by the next
/// run with the same parent folder, whether that run makes a folder or not.
///
/// The crate `tempfile` removes a folder when its owner is dropped, and does neither of the other
/// two: remove the folder when a signal ends the process, and those of processes that were killed.
pub(crate) struct TempFolder {
    /// Dropped before the guard, because removing the folder takes a file descriptor.
    _owner: File,
    guard: Guard,
}

impl TempFolder {
    /// Removes the folders that processes which died have left in `parent`.
    pub(crate) fn sweep(parent: &Path) {
        sweep(parent, PREFIX, "", |path| path.join(OWNER));
    }

    pub(crate) fn make(parent: &Path) -> Result<Self> {
        let failed = |error| Error::io("make a temporary folder in it", parent, error);
        loop {
            let path = parent.join(format!("{PREFIX}{}", unique_name()));
            let (guard, ()) = Guard::make(&path, os::create_private_folder).map_err(failed)?;
            let owner = os::create_private(&path.join(OWNER)).map_err(failed)?;
            // Another run may have removed the folder before its file was locked.
            if os::lock(&owner).map_err(failed)? && path.join(OWNER).exists() {
                return Ok(TempFolder { _owner: owner, guard });
            }
        }
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.guard.path().join(name)
    }

    /// The error for a file in the folder. If the folder itself has vanished, the error says so.
    pub(crate) fn failed(&self, doing: &'static str, path: &Path, error: std::io::Error) -> Error {
        let folder = self.guard.path();
        if folder.is_dir() {
            Error::io(doing, path, error)
        } else {
            let gone = std::io::Error::other("the temporary folder has vanished during the run");
            Error::io(doing, folder, gone)
        }
    }
}
