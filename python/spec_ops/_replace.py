"""A file that replaces another one when it is complete."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator
from typing import IO

try:
    import fcntl
except ImportError:  # Windows: what a save that was killed has left stays there
    fcntl = None  # type: ignore[assignment]

__all__: list[str] = []


def replace(path: str | os.PathLike[str], parts: Iterable[bytes]) -> None:
    """Writes a file beside `path`, and gives it that name when it is complete and safe on disk.

    Its owner alone can read it. Through a symbolic link, the file behind it is replaced. What is
    no regular file is not.
    """
    place = _place(path)
    folder, name = os.path.split(place)
    prefix = f".{_shortened(name)}."
    _sweep(folder, prefix)
    with _partial(folder, prefix) as file:
        file.writelines(parts)
        file.flush()
        os.fsync(file.fileno())
        if fcntl is None:
            file.close()  # Windows renames no open file
        os.replace(file.name, place)
    # The name itself, where a folder can be synced.
    with contextlib.suppress(OSError):
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def _place(path: str | os.PathLike[str]) -> str:
    """The path to write, which is that of the file behind a link."""
    name = os.path.abspath(os.fsdecode(path))
    try:
        there = os.stat(name)
    except OSError:
        return name
    if not stat.S_ISREG(there.st_mode):
        raise OSError("it is not a regular file")
    return os.path.realpath(name)


def _shortened(name: str) -> str:
    """The start of a file's name, short enough for what is put around it: a name has at most 255
    bytes, on some encrypted file systems 143."""
    return os.fsencode(name)[:96].decode(errors="ignore")


@contextlib.contextmanager
def _partial(folder: str, prefix: str) -> Iterator[IO[bytes]]:
    """A file under a name of its own, open and locked; removed in the end, unless it was renamed."""

    def private(path: str, flags: int) -> int:
        return os.open(path, flags, 0o600)

    while True:
        # Numbers of processes are no names: containers that share a folder have equal ones.
        temporary = os.path.join(folder, f"{prefix}{secrets.token_hex(8)}.partial")
        try:
            file = open(temporary, "xb", opener=private)
        except FileExistsError:
            continue
        try:
            # Another save may have taken the file for one that was left, before it was locked.
            if _lock(file.fileno()) is not False and os.path.exists(temporary):
                yield file
                return
        finally:
            file.close()
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def _lock(descriptor: int) -> bool | None:
    """Locks a file for as long as it is open; False where another open file has the lock, None
    where the file system has no locks."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _sweep(folder: str, prefix: str) -> None:
    """Removes what saves have left that were killed: files of such names that nobody keeps
    locked."""
    if fcntl is None:
        return
    known = re.compile(re.escape(prefix) + r"[0-9a-fA-F]{16}\.partial")
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            # Neither links are followed nor pipes opened, which others may have put there.
            if not known.fullmatch(entry.name) or not entry.is_file(follow_symlinks=False):
                continue
            with contextlib.suppress(OSError):
                opened = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
                try:
                    if _lock(opened):
                        os.unlink(entry.path)
                finally:
                    os.close(opened)
