//! The folder for what does not fit in memory.

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::live::{Guard, sweep, unique_name};
use crate::{Error, Result, os};

const PREFIX: &str = "spec-unique-";
/// The file in it that its owner keeps locked.
const OWNER: &str = "owner";

/// A folder of one run's own under the caller's, removed with all that is in
/// it when this is dropped. Those of processes that died are removed by the next
/// run that has the same parent, whether it makes one or not.
pub(crate) struct TempFolder {
    /// Closed first: to remove the folder takes a file descriptor.
    _owner: File,
    guard: Guard,
}

impl TempFolder {
    /// Removes the folders of processes that died.
    pub(crate) fn sweep(parent: &Path) {
        sweep(parent, PREFIX, "", |path| path.join(OWNER));
    }

    pub(crate) fn make(parent: &Path) -> Result<Self> {
        let failed = |error| Error::io("make a temporary folder in it", parent, error);
        loop {
            let path = parent.join(format!("{PREFIX}{}", unique_name()));
            let (guard, ()) = Guard::make(&path, os::create_private_folder).map_err(failed)?;
            let owner = os::create_private(&path.join(OWNER)).map_err(failed)?;
            // Before the lock another run could have swept it away.
            if os::lock(&owner).map_err(failed)? && path.join(OWNER).exists() {
                return Ok(TempFolder { _owner: owner, guard });
            }
        }
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.guard.path().join(name)
    }

    /// The error of a file in it: the folder itself may be what is missing.
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
