//! A file that appears under its name only when it is complete.

use std::fs::{self, File, Metadata};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::live::{Guard, sweep, unique_name};
use crate::{Error, Result, os};

const SUFFIX: &str = ".partial";

/// An output that is being written.
///
/// A file is written under a temporary name in the folder of its path, readable by this user
/// only, and renamed when it is complete and safe on disk. An output that is dropped before leaves
/// no file. If the process is killed, the next process that writes to the same path removes the
/// temporary file. Standard output is written as blocks arrive.
#[derive(Debug)]
pub struct Output {
    path: PathBuf,
    file: File,
    /// The offset of the next block that is appended.
    end: AtomicU64,
    /// The temporary file and how to rename it; `None` for a stream.
    place: Option<Place>,
}

#[derive(Debug)]
struct Place {
    replace: bool,
    partial: Guard,
}

impl Output {
    /// Starts a file that will have the path `path`. If a file of that path exists, `replace` must
    /// be set; if it is a symbolic link, the file that it points to is replaced.
    /// The output must not be one of `inputs` under any name.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::SameFile`], [`Error::NotAFile`], and
    /// [`Error::Io`] where the file cannot be written.
    pub fn create<P: AsRef<Path>>(path: &Path, replace: bool, inputs: &[P]) -> Result<Self> {
        let place = check(path, replace, inputs)?;
        let name = place.file_name().ok_or_else(|| Error::NotAFile(path.to_owned()))?;
        let folder = folder_of(&place);
        let prefix = format!(".{}.", shortened(&name.to_string_lossy()));
        sweep(folder, &prefix, SUFFIX, Path::to_owned);
        loop {
            let partial = folder.join(format!("{prefix}{}{SUFFIX}", unique_name()));
            let (partial, file) = Guard::make(&partial, os::create_private)
                .map_err(|error| Error::io("write", path, error))?;
            // Another run may have removed the file before it was locked.
            let locked = os::lock(&file).map_err(|error| Error::io("lock", path, error))?;
            if locked && partial.path().exists() {
                let place_of = Some(Place { replace, partial });
                return Ok(Output { path: place, file, end: AtomicU64::new(0), place: place_of });
            }
        }
    }

    /// Standard output, which must not be one of `inputs`.
    ///
    /// # Errors
    /// [`Error::Io`] where it is closed, [`Error::SameFile`].
    pub fn stdout<P: AsRef<Path>>(inputs: &[P]) -> Result<Self> {
        let path = PathBuf::from("stdout");
        let failed = |error| Error::io("write", &path, error);
        let file = os::standard(os::Standard::Output).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if metadata.is_file() {
            refuse_inputs(&path, &metadata, inputs)?;
        }
        Ok(Output { path, file, end: AtomicU64::new(0), place: None })
    }

    /// The path that the output will have.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the output is a stream, which can only be appended to.
    pub fn is_stream(&self) -> bool {
        self.place.is_none()
    }

    /// Writes `bytes` at `offset` of a file. Several threads may write at the same time.
    ///
    /// # Errors
    /// [`Error::Io`], for a full disk for instance, and for a stream.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        if self.is_stream() {
            return Err(self.failed(io::ErrorKind::NotSeekable.into()));
        }
        os::write_at(&self.file, bytes, offset).map_err(|error| self.failed(error))?;
        // Otherwise the system might write all data only when `commit` waits for it.
        os::start_writeback(&self.file, offset, bytes.len());
        Ok(())
    }

    /// Writes `bytes` behind all bytes that were appended before. Call it from one thread at a
    /// time.
    ///
    /// # Errors
    /// [`Error::Io`], for a full disk for instance.
    pub fn append(&self, bytes: &[u8]) -> Result<()> {
        let end = self.end.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        if self.is_stream() {
            return (&self.file).write_all(bytes).map_err(|error| self.failed(error));
        }
        self.write_at(bytes, end)
    }

    /// The error of a write that failed, with the path.
    pub fn failed(&self, error: io::Error) -> Error {
        Error::io("write", &self.path, error)
    }

    /// Waits until the content is safe on disk, and gives the file its name and its mode. The mode
    /// is that of a new file, or that of the replaced file, restricted so that nobody gets rights
    /// which the replaced file did not give. Returns the size in bytes.
    ///
    /// # Errors
    /// [`Error::Io`], and [`Error::Exists`] where a file of that name has
    /// appeared meanwhile.
    pub fn commit(self) -> Result<u64> {
        let Output { path, file, end, place } = self;
        let Some(Place { replace, partial }) = place else { return Ok(end.into_inner()) };
        let failed = |error| Error::io("write", &path, error);
        file.sync_all().map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        let old = fs::symlink_metadata(&path).ok().filter(|old| replace && old.is_file());
        let mode = match old {
            Some(old) => os::mode_after(&file, &metadata, &old),
            None => os::usual_mode(&metadata),
        };
        // An error is ignored: some file systems have no modes.
        _ = file.set_permissions(mode);
        let from = partial.path().to_owned();
        partial.release(|| appear(&from, &path, replace)).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => Error::Exists(path.clone()),
            _ => failed(error),
        })?;
        // Syncing the folder makes the name safe too. Some systems cannot sync a folder.
        if let Ok(folder) = File::open(folder_of(&path)) {
            _ = folder.sync_all();
        }
        Ok(metadata.len())
    }
}

/// The folder of a file; `.` for a name without a folder, such as `distinct.bin`.
fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// The start of a file's name, short enough for the prefix and suffix that [`Output::create`]
/// adds: a name has at most 255 bytes, on some encrypted file systems 143.
fn shortened(name: &str) -> &str {
    const MAX: usize = 96;
    let end = (0..=MAX.min(name.len())).rev().find(|at| name.is_char_boundary(*at));
    &name[..end.unwrap_or(0)]
}

/// Gives a file its name. The error is `AlreadyExists` where a file of that name exists and may
/// not be replaced.
fn appear(from: &Path, to: &Path, replace: bool) -> io::Result<()> {
    if !replace {
        match fs::hard_link(from, to) {
            Ok(()) => return fs::remove_file(from),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Err(error),
            // The file system has no hard links.
            Err(_) if fs::symlink_metadata(to).is_ok() => {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            Err(_) => {}
        }
    }
    fs::rename(from, to)
}

/// Refuses a path that may not be written. Returns the path to write, which is that of the file
/// behind a link.
fn check<P: AsRef<Path>>(path: &Path, replace: bool, inputs: &[P]) -> Result<PathBuf> {
    let Ok(link) = fs::symlink_metadata(path) else { return Ok(path.to_owned()) };
    refuse_planted(path)?;
    let there = fs::metadata(path).ok();
    if let Some(there) = &there {
        refuse_inputs(path, there, inputs)?;
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

/// Refuses a path that is a link, or leads to one, by which another user could choose the file
/// that is replaced.
fn refuse_planted(path: &Path) -> Result<()> {
    /// More links than operating systems follow.
    const MAX: usize = 64;
    let mut at = path.to_owned();
    for _ in 0..MAX {
        let Ok(link) = fs::symlink_metadata(&at) else { return Ok(()) };
        if !link.is_symlink() {
            return Ok(());
        }
        let folder = folder_of(&at);
        if fs::metadata(folder).is_ok_and(|folder| os::is_planted(&link, &folder)) {
            let words = "it is a link that another user has put into a folder of all users";
            return Err(Error::io("write", path, io::Error::other(words)));
        }
        let Ok(target) = fs::read_link(&at) else { return Ok(()) };
        at = folder.join(target);
    }
    Ok(())
}

/// Refuses an output that is one of the inputs.
fn refuse_inputs<P: AsRef<Path>>(path: &Path, there: &Metadata, inputs: &[P]) -> Result<()> {
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
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_alone_is_in_the_folder_of_the_process() {
        assert_eq!(folder_of(Path::new("distinct.bin")), Path::new("."));
        assert_eq!(folder_of(Path::new("a/distinct.bin")), Path::new("a"));
        assert_eq!(folder_of(Path::new("/distinct.bin")), Path::new("/"));
        assert!(File::open(folder_of(Path::new("distinct.bin"))).is_ok());
    }
}
