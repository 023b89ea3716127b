//! What differs between operating systems.

use std::fs::{File, Metadata};
use std::io;

#[cfg(not(unix))]
pub(crate) use other::{alive, identity, lock, read_at, write_at};
#[cfg(unix)]
pub(crate) use unix::{alive, identity, lock, read_at, write_at};

#[cfg(unix)]
mod unix {
    use std::os::unix::fs::{FileExt, MetadataExt};

    use rustix::fs::{FlockOperation, flock};
    use rustix::io::Errno;
    use rustix::process::{Pid, test_kill_process};

    use super::{File, Metadata, io};

    pub(crate) fn read_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        file.read_at(bytes, offset)
    }

    pub(crate) fn write_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        file.write_all_at(bytes, offset)
    }

    /// Locks a file for as long as it is open; false where another open file
    /// has the lock. The system drops the lock of a process that dies.
    pub(crate) fn lock(file: &File) -> io::Result<bool> {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(true),
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether there may be a process of that number.
    pub(crate) fn alive(process: u32) -> bool {
        let pid = i32::try_from(process).ok().and_then(Pid::from_raw);
        pid.is_some_and(|pid| test_kill_process(pid) != Err(Errno::SRCH))
    }

    /// What two names of one file have in common.
    pub(crate) fn identity(metadata: &Metadata) -> Option<(u64, u64)> {
        Some((metadata.dev(), metadata.ino()))
    }
}

#[cfg(not(unix))]
mod other {
    use std::os::windows::fs::FileExt;

    use super::{File, Metadata, io};

    pub(crate) fn read_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        file.seek_read(bytes, offset)
    }

    pub(crate) fn write_at(file: &File, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
        while !bytes.is_empty() {
            let written = file.seek_write(bytes, offset)?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            bytes = &bytes[written..];
            offset += written as u64;
        }
        Ok(())
    }

    /// An open file cannot be removed there, which protects it as well.
    pub(crate) fn lock(_file: &File) -> io::Result<bool> {
        Ok(true)
    }

    pub(crate) fn alive(_process: u32) -> bool {
        true
    }

    pub(crate) fn identity(_metadata: &Metadata) -> Option<(u64, u64)> {
        None
    }
}

/// Reads until `bytes` is full or the file ends; returns how many.
pub(crate) fn read_full(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < bytes.len() {
        match read_at(file, &mut bytes[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// Lets the system begin to write a range to the disk now rather than later.
#[cfg(target_os = "linux")]
pub(crate) fn start_writeback(file: &File, offset: u64, len: usize) {
    use std::os::fd::AsRawFd;

    let (Ok(offset), Ok(len)) = (i64::try_from(offset), i64::try_from(len)) else { return };
    // SAFETY: the descriptor is open as long as `file` is borrowed; the call
    // touches no memory. It is a hint: whether it worked does not matter.
    unsafe { libc::sync_file_range(file.as_raw_fd(), offset, len, libc::SYNC_FILE_RANGE_WRITE) };
}

/// Elsewhere the system decides.
#[cfg(not(target_os = "linux"))]
pub(crate) fn start_writeback(_file: &File, _offset: u64, _len: usize) {}
