//! The errors of a run, which print as sentences.

use std::fmt::{self, Write};
use std::io;
use std::path::{Path, PathBuf};

/// The reason why a run ended early. It prints as one sentence with the path, and with line and
/// column where the error has them.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file or folder cannot be read, written, made or renamed.
    #[error("{}: cannot {doing}: {}", Printable(path.display()), Words(error))]
    Io {
        /// The operation that failed: `read`, `write`, `make the file`.
        doing: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The error of the operating system.
        error: io::Error,
    },
    /// The content of an input is not valid.
    #[error("{}{place}: {}", Printable(path.display()), Printable(message))]
    Data {
        /// The file.
        path: PathBuf,
        /// Where in the file.
        place: Place,
        /// What is wrong.
        message: String,
    },
    /// The output exists, and the caller did not allow to replace it.
    #[error("{}: exists already; to replace it, say so (--force)", Printable(.0.display()))]
    Exists(PathBuf),
    /// The output is the same file as one of the inputs, perhaps under another name.
    #[error("{}: is the same file as the input {}", Printable(output.display()),
        Printable(input.display()))]
    SameFile {
        /// The output, as given.
        output: PathBuf,
        /// The input, as given.
        input: PathBuf,
    },
    /// The output exists and is a folder, a pipe or a device.
    #[error("{}: is no regular file, so it cannot be replaced", Printable(.0.display()))]
    NotAFile(PathBuf),
    /// The limit of host memory is too low.
    #[error("{given} bytes of memory are too few, {least} are the least that will do")]
    Memory {
        /// The limit, in bytes.
        given: u64,
        /// The smallest limit that suffices, in bytes.
        least: u64,
    },
    /// The limit of device memory is too low.
    #[error("{given} bytes of device memory are too few, {least} are the least that will do")]
    DeviceMemory {
        /// The limit, in bytes.
        given: u64,
        /// The smallest limit that suffices, in bytes.
        least: u64,
    },
    /// The system refuses to start another thread.
    #[error("cannot start a thread: {0}; fewer (--threads) may do")]
    Thread(io::Error),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] spec::Error),
    /// A thread panicked and left a part of the run's data unfinished.
    #[error("{0} was lost with a thread that panicked; the output is incomplete and was dropped")]
    Poisoned(&'static str),
    /// [`Progress`](crate::Progress) asked to stop.
    #[error("stopped before the end")]
    Stopped,
}

/// The result of every fallible call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A place in a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// The file as a whole.
    #[default]
    Whole,
    /// A line, and a column in it. Both count from 1; the column counts bytes.
    Line {
        /// The line.
        line: u64,
        /// The column.
        column: u64,
    },
    /// A line of a table, counted from 1.
    Row(u64),
    /// A byte, counted from 0.
    Byte(u64),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Whole => Ok(()),
            Place::Line { line, column } => write!(f, ": line {line}, column {column}"),
            Place::Row(line) => write!(f, ": line {line}"),
            Place::Byte(byte) => write!(f, ": byte {byte}"),
        }
    }
}

impl Error {
    /// The error for a refusal of the operating system.
    pub fn io(doing: &'static str, path: impl AsRef<Path>, error: io::Error) -> Self {
        Error::Io { doing, path: path.as_ref().to_owned(), error }
    }

    /// The error for an input whose content is not valid.
    pub fn data(path: impl AsRef<Path>, place: Place, message: impl Into<String>) -> Self {
        Error::Data { path: path.as_ref().to_owned(), place, message: message.into() }
    }
}

#[cfg(any(feature = "csv", feature = "parquet"))]
/// The number of column names that an error shows.
pub(crate) const SHOWN: usize = 20;

/// The error for a column that a file does not have. `there` are the columns that it has.
#[cfg(any(feature = "csv", feature = "parquet"))]
pub(crate) fn missing<'a>(
    path: &Path,
    column: &str,
    there: impl Iterator<Item = &'a str>,
) -> Error {
    let mut names: Vec<&str> = there.take(SHOWN + 1).collect();
    if names.len() > SHOWN {
        names[SHOWN] = "..";
    }
    let message = format!("has no column {column}; it has {}", names.join(", "));
    Error::data(path, Place::Whole, message)
}

/// The index of the only column called `column` among those that a file has.
#[cfg(feature = "parquet")]
pub(crate) fn only(path: &Path, column: &str, there: &[&str]) -> Result<usize> {
    let mut found = there.iter().enumerate().filter(|(_, name)| **name == column);
    match (found.next(), found.next()) {
        (Some((index, _)), None) => Ok(index),
        (None, _) => Err(missing(path, column, there.iter().copied())),
        _ => Err(twice(path, column)),
    }
}

/// The error for a name that two columns of a file have: nothing says which one is meant.
#[cfg(any(feature = "csv", feature = "parquet"))]
pub(crate) fn twice(path: &Path, column: &str) -> Error {
    Error::data(path, Place::Whole, format!("has two columns {column}"))
}

/// Prints text from a foreign source, such as a path, on one line: control characters, which a
/// terminal would obey, are escaped.
struct Printable<T>(T);

impl<T: fmt::Display> fmt::Display for Printable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escaping(f), "{}", self.0)
    }
}

struct Escaping<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl Write for Escaping<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.chars().try_for_each(|character| {
            if character.is_control() {
                write!(self.0, "{}", character.escape_default())
            } else {
                self.0.write_char(character)
            }
        })
    }
}

/// Prints an error of the operating system in common words.
struct Words<'a>(&'a io::Error);

impl fmt::Display for Words<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = match self.0.kind() {
            io::ErrorKind::NotFound => "there is no such file or folder",
            io::ErrorKind::PermissionDenied => "permission denied",
            io::ErrorKind::StorageFull => "the disk is full",
            io::ErrorKind::QuotaExceeded => "the disk quota is used up",
            io::ErrorKind::ReadOnlyFilesystem => "the file system is read-only",
            io::ErrorKind::IsADirectory => "it is a directory",
            io::ErrorKind::FileTooLarge => "the file is larger than the limit allows (ulimit -f)",
            io::ErrorKind::NotADirectory => "a part of the path is no directory",
            _ if is_out_of_files(self.0) => "too many files are open (ulimit -n)",
            _ => return self.0.fmt(f),
        };
        f.write_str(words)
    }
}

#[cfg(unix)]
fn is_out_of_files(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let code = error.raw_os_error();
    [Errno::MFILE, Errno::NFILE].iter().any(|errno| code == Some(errno.raw_os_error()))
}

#[cfg(not(unix))]
fn is_out_of_files(_error: &io::Error) -> bool {
    false
}
