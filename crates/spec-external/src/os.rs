//! The functions that differ between operating systems.

use std::fs::{File, Metadata};
use std::io;

#[cfg(not(unix))]
pub(crate) use other::*;
#[cfg(unix)]
pub(crate) use unix::*;

/// A standard stream of the process.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standard {
    Input,
    Output,
}

#[cfg(unix)]
mod unix {
    use std::fs::{DirBuilder, Permissions};
    use std::os::fd::{AsFd, BorrowedFd};
    use std::os::unix::fs::{
        DirBuilderExt, FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt,
    };
    use std::path::Path;

    use rustix::fs::{FlockOperation, Gid, OFlags, fchown, fcntl_getfl, flock};
    use rustix::io::Errno;
    use rustix::process::{Pid, geteuid, test_kill_process};

    use super::{File, Metadata, Standard, io};

    /// Makes a file that no other user may read.
    pub(crate) fn create_private(path: &Path) -> io::Result<File> {
        File::options().read(true).write(true).create_new(true).mode(0o600).open(path)
    }

    /// Makes a folder that no other user may list.
    pub(crate) fn create_private_folder(path: &Path) -> io::Result<()> {
        DirBuilder::new().mode(0o700).create(path)
    }

    /// The mode that a new file has by the process's umask.
    pub(crate) fn usual_mode(_new: &Metadata) -> Permissions {
        Permissions::from_mode(0o666 & !file_mode_mask())
    }

    /// The umask. It is read from `/proc` where that exists, because the system call also sets the
    /// umask, which another thread may use meanwhile.
    fn file_mode_mask() -> u32 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let umask = status.lines().find_map(|line| line.strip_prefix("Umask:"));
        umask.and_then(|umask| u32::from_str_radix(umask.trim(), 8).ok()).unwrap_or_else(|| {
            let strict = rustix::fs::Mode::from_raw_mode(0o077);
            let umask = rustix::process::umask(strict);
            rustix::process::umask(umask);
            umask.as_raw_mode()
        })
    }

    /// The mode of a new file that replaces an old one: the mode of the old file, restricted so
    /// that nobody gets rights which the old file did not give. The set-user and set-group bits are
    /// never taken over. From the file of another user, no more bits are taken over than a new file
    /// has. If the new file has another group, the group gets only the rights of everybody.
    pub(crate) fn mode_after(file: &File, new: &Metadata, old: &Metadata) -> Permissions {
        let mut mode = old.mode() & 0o777;
        if !is_ours(old) {
            mode &= usual_mode(new).mode();
        }
        let same_group = old.gid() == new.gid()
            || is_ours(old) && fchown(file, None, Some(Gid::from_raw(old.gid()))).is_ok();
        if !same_group {
            mode &= !0o070 | (mode & 0o007) << 3;
        }
        Permissions::from_mode(mode)
    }

    /// Whether another user may have put a link into a folder that all users may write to, such
    /// as `/tmp`: the link belongs neither to this user nor to the owner of the folder.
    pub(crate) fn is_planted(link: &Metadata, folder: &Metadata) -> bool {
        const SHARED: u32 = 0o1002;
        let is_shared = folder.mode() & SHARED == SHARED;
        is_shared && !is_ours(link) && link.uid() != folder.uid()
    }

    /// Whether a file or folder belongs to this user.
    pub(crate) fn is_ours(metadata: &Metadata) -> bool {
        metadata.uid() == geteuid().as_raw()
    }

    /// Opens a regular file that belongs to this user. Links are not followed, and the call does
    /// not wait, as it would for a writer at the other end of a pipe.
    pub(crate) fn open_ours(path: &Path) -> io::Result<File> {
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
        let file = File::options().read(true).custom_flags(flags as i32).open(path)?;
        let metadata = file.metadata()?;
        if metadata.is_file() && is_ours(&metadata) {
            return Ok(file);
        }
        Err(io::ErrorKind::PermissionDenied.into())
    }

    /// Standard input or output.
    ///
    /// Rust's own `stdin` and `stdout` treat a closed stream as empty, or as written. If a process
    /// is started without a standard stream, Rust's runtime opens `/dev/null` in its place for
    /// reading and writing: keys would be read from there or be lost there without an error. Some
    /// programs start others with such a `/dev/null` on purpose (Python's `subprocess.DEVNULL`);
    /// the two cases cannot be told apart, so both are errors.
    pub(crate) fn standard(which: Standard) -> io::Result<File> {
        let (stdin, stdout) = (io::stdin(), io::stdout());
        let fd: BorrowedFd<'_> = match which {
            Standard::Input => stdin.as_fd(),
            Standard::Output => stdout.as_fd(),
        };
        let mode = fcntl_getfl(fd)? & OFlags::RWMODE;
        let file = File::from(fd.try_clone_to_owned()?);
        let is_null = || -> io::Result<bool> {
            let metadata = file.metadata()?;
            let null = std::fs::metadata("/dev/null")?;
            Ok(metadata.file_type().is_char_device() && metadata.rdev() == null.rdev())
        };
        let wanted = match which {
            Standard::Input => OFlags::RDONLY,
            Standard::Output => OFlags::WRONLY,
        };
        if mode == OFlags::RDWR && is_null()? {
            let words = match which {
                Standard::Input => "it is closed",
                Standard::Output => {
                    "it is closed, or /dev/null open for reading too; --count-only writes no keys"
                }
            };
            return Err(io::Error::other(words));
        }
        if mode != wanted && mode != OFlags::RDWR {
            let words = match which {
                Standard::Input => "it is not open for reading",
                Standard::Output => "it is not open for writing",
            };
            return Err(io::Error::other(words));
        }
        Ok(file)
    }

    pub(crate) fn read_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        file.read_at(bytes, offset)
    }

    pub(crate) fn write_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        file.write_all_at(bytes, offset)
    }

    /// Locks a file for as long as it is open; returns false where another open file
    /// has the lock. The system releases the lock of a process that dies.
    pub(crate) fn lock(file: &File) -> io::Result<bool> {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(true),
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether a process with this number may exist.
    pub(crate) fn alive(process: u32) -> bool {
        let pid = i32::try_from(process).ok().and_then(Pid::from_raw);
        pid.is_some_and(|pid| test_kill_process(pid) != Err(Errno::SRCH))
    }

    /// A value that is the same for all names of one file.
    pub(crate) fn identity(metadata: &Metadata) -> Option<(u64, u64)> {
        Some((metadata.dev(), metadata.ino()))
    }
}

#[cfg(not(unix))]
mod other {
    use std::fs::Permissions;
    use std::os::windows::fs::FileExt;
    use std::os::windows::io::AsHandle;
    use std::path::Path;

    use super::{File, Metadata, Standard, io};

    /// Makes a file. On this system, files in a user's folders are private by default.
    pub(crate) fn create_private(path: &Path) -> io::Result<File> {
        File::options().read(true).write(true).create_new(true).open(path)
    }

    pub(crate) fn create_private_folder(path: &Path) -> io::Result<()> {
        std::fs::create_dir(path)
    }

    pub(crate) fn usual_mode(new: &Metadata) -> Permissions {
        new.permissions()
    }

    pub(crate) fn mode_after(_file: &File, _new: &Metadata, old: &Metadata) -> Permissions {
        old.permissions()
    }

    pub(crate) fn is_planted(_link: &Metadata, _folder: &Metadata) -> bool {
        false
    }

    pub(crate) fn is_ours(_metadata: &Metadata) -> bool {
        true
    }

    pub(crate) fn open_ours(path: &Path) -> io::Result<File> {
        File::open(path)
    }

    pub(crate) fn standard(which: Standard) -> io::Result<File> {
        let handle = match which {
            Standard::Input => io::stdin().as_handle().try_clone_to_owned(),
            Standard::Output => io::stdout().as_handle().try_clone_to_owned(),
        };
        handle.map(File::from)
    }

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

    /// Needs no lock: on this system an open file cannot be removed.
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

/// Reads until `bytes` is full or the file ends; returns the number of bytes read.
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

/// Tells the system to begin writing a range to the disk now rather than later.
#[cfg(target_os = "linux")]
pub(crate) fn start_writeback(file: &File, offset: u64, len: usize) {
    use std::os::fd::AsRawFd;

    let (Ok(offset), Ok(len)) = (i64::try_from(offset), i64::try_from(len)) else { return };
    // SAFETY: the descriptor is open, because `file` is borrowed, and the call accesses no memory
    // of the process. The result is ignored, since the call is only a hint.
    unsafe { libc::sync_file_range(file.as_raw_fd(), offset, len, libc::SYNC_FILE_RANGE_WRITE) };
}

/// Does nothing: other systems have no such call.
#[cfg(not(target_os = "linux"))]
pub(crate) fn start_writeback(_file: &File, _offset: u64, _len: usize) {}
