//! A file that appears under its name only when it is complete.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::live::{Guard, sweep, unique_name};
use crate::{Error, Result, os};

const SUFFIX: &str = ".partial";

/// An output file in the making: written beside its place, and renamed when it
/// is complete and safe on disk. Dropped before that, it leaves nothing; of a
/// process that was killed, the next one that writes to the same place removes
/// what it left.
pub struct Output {
    path: PathBuf,
    replace: bool,
    partial: Guard,
    file: File,
}

impl Output {
    /// Starts a file that will be `path`. Where that exists, `replace` must be
    /// set; through symbolic links it is the file behind them that is replaced.
    /// It must be none of `inputs`, by whatever name.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::SameFile`], [`Error::NotAFile`], and
    /// [`Error::Io`] where nothing can be written.
    pub fn create<P: AsRef<Path>>(path: &Path, replace: bool, inputs: &[P]) -> Result<Self> {
        let place = check(path, replace, inputs)?;
        let name = place.file_name().ok_or_else(|| Error::NotAFile(path.to_owned()))?;
        let folder = match place.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let prefix = format!(".{}.", name.to_string_lossy());
        sweep(folder, &prefix, SUFFIX, Path::to_owned);
        loop {
            let partial = folder.join(format!("{prefix}{}{SUFFIX}", unique_name()));
            let make = |partial: &Path| {
                let mut options = File::options();
                options.read(true).write(true).create_new(true).open(partial)
            };
            let (partial, file) =
                Guard::make(&partial, make).map_err(|error| Error::io("write", path, error))?;
            // Another run could have taken it for a dead one's before the lock.
            let locked = os::lock(&file).map_err(|error| Error::io("lock", path, error))?;
            if locked && partial.path().exists() {
                return Ok(Output { path: place, replace, partial, file });
            }
        }
    }

    /// The file, to be written to.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The name that it will have.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes `bytes` at `offset`; from several threads at once if need be.
    ///
    /// # Errors
    /// [`Error::Io`], such as for a full disk.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        os::write_at(&self.file, bytes, offset).map_err(|error| self.failed(error))?;
        // Or all of it would wait for `commit`.
        os::start_writeback(&self.file, offset, bytes.len());
        Ok(())
    }

    /// The error of a write that failed, with the path.
    pub fn failed(&self, error: io::Error) -> Error {
        Error::io("write", &self.path, error)
    }

    /// Waits until the content is safe on disk and gives the file its name.
    /// Returns its size in bytes.
    ///
    /// # Errors
    /// [`Error::Io`], and [`Error::Exists`] where a file of that name has
    /// appeared since.
    pub fn commit(self) -> Result<u64> {
        let Output { path, replace, partial, file } = self;
        let failed = |error| Error::io("write", &path, error);
        if replace && let Ok(old) = fs::metadata(&path) {
            file.set_permissions(old.permissions()).map_err(failed)?;
        }
        file.sync_all().map_err(failed)?;
        let bytes = file.metadata().map_err(failed)?.len();
        let from = partial.path().to_owned();
        partial.release(|| appear(&from, &path, replace)).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => Error::Exists(path.clone()),
            _ => failed(error),
        })?;
        // The name itself, where a folder can be synced.
        if let Some(Ok(folder)) = path.parent().map(File::open) {
            _ = folder.sync_all();
        }
        Ok(bytes)
    }
}

/// Gives a file its name; `AlreadyExists` where that may not be replaced.
fn appear(from: &Path, to: &Path, replace: bool) -> io::Result<()> {
    if !replace {
        match fs::hard_link(from, to) {
            Ok(()) => return fs::remove_file(from),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Err(error),
            // A file system without hard links.
            Err(_) if fs::symlink_metadata(to).is_ok() => {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            Err(_) => {}
        }
    }
    fs::rename(from, to)
}

/// Refuses what may not be written; returns what is to be.
fn check<P: AsRef<Path>>(path: &Path, replace: bool, inputs: &[P]) -> Result<PathBuf> {
    let Ok(link) = fs::symlink_metadata(path) else { return Ok(path.to_owned()) };
    let there = fs::metadata(path).ok();
    if let Some(there) = &there {
        for input in inputs {
            let input = input.as_ref();
            let Ok(metadata) = fs::metadata(input) else { continue };
            let same = match (os::identity(there), os::identity(&metadata)) {
                (Some(a), Some(b)) => a == b,
                _ => fs::canonicalize(path).ok() == fs::canonicalize(input).ok(),
            };
            if same {
                return Err(Error::SameFile { output: path.to_owned(), input: input.to_owned() });
            }
        }
        if !there.is_file() {
            return Err(Error::NotAFile(path.to_owned()));
        }
    }
    if !replace {
        return Err(Error::Exists(path.to_owned()));
    }
    if link.is_symlink() && there.is_some() {
        return fs::canonicalize(path).map_err(|error| Error::io("write", path, error));
    }
    Ok(path.to_owned())
}
