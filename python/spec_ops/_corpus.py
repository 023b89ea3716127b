"""A corpus that lives: finished texts, from which `suffix_lookup` drafts for other requests."""

from __future__ import annotations

import os
import stat
import struct
import sys
import threading
import weakref
import zlib
from array import array
from collections.abc import Iterable
from typing import Any

from ._errors import ArgumentError, DeviceError, DtypeError
from ._replace import replace

_MAGIC = b"SPECCORP"
_VERSION = 1
_HEAD = struct.Struct("<8sIIQ")
_CHECKSUM = struct.Struct("<I")
_MAX_LIMIT = 2**31 - 1
#: The letter of :mod:`array`, and the least number, which lies behind each text.
_TYPES = {"int32": ("i", -(2**31)), "int64": ("q", -(2**63))}


class Corpus:
    """Finished texts in one array, with a negative token behind each.

    >>> import numpy as np, spec_ops
    >>> corpus = spec_ops.Corpus(1 << 16)
    >>> corpus.append([5, 6, 7, 8, 9])
    >>> text, length = np.array([[1, 2, 6, 7]], np.int32), np.array([4], np.int32)
    >>> spec_ops.suffix_lookup(
    ...     text, length, corpus=corpus.tokens, corpus_length=corpus.length, n=4
    ... ).drafts.tolist()
    [[8, 9, -1, -1]]

    `tokens` has room for `limit` tokens, and `length`, one int32, says how many there are. Both
    stay where they are, so that plans and captured CUDA graphs that read them see what is
    appended later. They are arrays of numpy, or, with a `device`, tensors of torch. A token takes
    4 or 8 bytes there and as many in a copy on the host, and a call reads all of them.

    Threads may append at the same time. On CUDA an append is enqueued on torch's current stream,
    and what reads the corpus on another stream must be ordered by its caller. What reads it at
    the same time, on the CPU as well, may draft from half of a change: that costs drafts, and
    verification rejects wrong ones. An exception within a change, of a signal's handler for one,
    leaves the texts as before it or as behind it. A process that was forked meanwhile can append.

    What one user wrote becomes a draft of another. No text changes by it, but the time of an
    answer tells whether its drafts were accepted. Where that matters, keep a corpus for each
    tenant.
    """

    def __init__(self, limit: int, *, dtype: str = "int32", device: Any = None) -> None:
        if dtype not in _TYPES:
            raise DtypeError(f"Corpus: `dtype` is {dtype!r}, expected 'int32' or 'int64'", 10)
        if not 2 <= limit <= _MAX_LIMIT:
            raise ArgumentError(f"Corpus: `limit` is {limit}, expected 2 ..= 2^31 - 1", 3)
        self._letter, self._separator = _TYPES[dtype]
        self._limit, self._lock = limit, threading.Lock()
        #: The texts. A change of this array is one step, which no exception and no fork divides; the
        #: memory that calls read follows it.
        self._known = array(self._letter)
        #: Whether the memory that calls read may differ from the texts.
        self._is_behind = False
        if device is None:
            import numpy

            self._from = numpy.frombuffer
            self._tokens = numpy.full(limit, self._separator, dtype)
            self._length = numpy.zeros(1, "int32")
            self._dtypes = numpy.dtype(dtype), numpy.dtype("int32")
        else:
            import torch

            self._from = torch.frombuffer
            self._dtypes = getattr(torch, dtype), torch.int32
            self._tokens = torch.full(
                (limit,), self._separator, dtype=self._dtypes[0], device=device
            )
            self._length = torch.zeros(1, dtype=torch.int32, device=device)
        _CORPORA.add(self)

    @property
    def tokens(self) -> Any:
        """The tokens: `limit` of them, those behind `length` unused."""
        self._follow()
        return self._tokens

    @property
    def length(self) -> Any:
        """One int32: how many tokens there are, separators included."""
        self._follow()
        return self._length

    @property
    def limit(self) -> int:
        """The largest number of tokens, separators included."""
        return self._limit

    def __len__(self) -> int:
        return len(self._known)

    def __repr__(self) -> str:
        return f"Corpus({len(self)} of {self._limit} tokens)"

    def tolist(self) -> list[int]:
        """The tokens, a separator behind each text."""
        with self._lock:
            return self._known.tolist()

    def append(self, text: Iterable[int]) -> None:
        """Appends a finished text and a separator.

        Where they do not fit, the oldest texts are dropped first: at least half of the tokens,
        and the rest of the text that this cuts. Of a text that is longer than the limit, the last
        tokens are kept.
        """
        values = text.tolist() if hasattr(text, "tolist") else text
        try:
            added = array(self._letter, values)
        except (TypeError, OverflowError) as error:
            raise ArgumentError(f"Corpus: `text` is no row of tokens: {error}", 3) from error
        if not added:
            return
        added = added[max(0, len(added) + 1 - self._limit) :]
        added.append(self._separator)
        with self._lock:
            if self._is_behind:
                self._rewrite()
            start = len(self._known)
            excess = start + len(added) - self._limit
            self._is_behind = True
            if excess > 0:
                added = self._known[self._boundary(max(excess, start // 2)) :] + added
                start, self._known = 0, added
            else:
                self._known.extend(added)
            self._write(start, added)
            self._is_behind = False

    def clear(self) -> None:
        """Forgets all texts, and overwrites the memory that they lie in."""
        with self._lock:
            self._is_behind = True
            self._known = array(self._letter)
            self._rewrite()

    def _follow(self) -> None:
        """Brings the memory that calls read to the texts, where a change was interrupted."""
        # Where the lock is taken, a thread is changing the texts: it may be this one, interrupted
        # by a signal.
        if self._is_behind and not self._lock.locked():
            with self._lock:
                if self._is_behind:
                    self._rewrite()

    def _rewrite(self) -> None:
        """Writes all texts to the memory that calls read, and nothing behind them."""
        self._write(0, self._known)
        self._tokens[len(self._known) :] = self._separator
        self._is_behind = False

    def _write(self, start: int, values: array[int]) -> None:
        """Writes tokens, then the length that ends with them: what reads them at the same time
        finds no token that was never written."""
        end = start + len(values)
        if values:
            self._tokens[start:end] = self._from(values, dtype=self._dtypes[0])
        self._length[:] = end

    def save(self, path: str | os.PathLike[str]) -> None:
        """Saves the texts to a file that replaces `path` when it is complete and safe on disk.

        Its owner alone can read it. Saves to one path may run at the same time, and the last one
        stays; what a save that was killed has left beside `path` is removed by the next one. The
        format is that of Rust's `spec::Corpus::save`.
        """
        with self._lock:
            known = self._known[:]
        head = _HEAD.pack(_MAGIC, _VERSION, known.itemsize, len(known))
        if sys.byteorder == "big":
            known.byteswap()
        tokens = known.tobytes()
        checksum = _CHECKSUM.pack(zlib.crc32(tokens, zlib.crc32(head)))
        try:
            replace(path, (head, tokens, checksum))
        except OSError as error:
            raise DeviceError(f"could not save the corpus {path}: {error}", 1) from error

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        limit: int,
        *,
        dtype: str = "int32",
        device: Any = None,
    ) -> Corpus:
        """A corpus with the texts of a saved file; of too many tokens, the newest texts."""
        corpus = cls(limit, dtype=dtype, device=device)

        def check(is_right: bool, found: str, expected: str) -> None:
            if not is_right:
                raise ArgumentError(f"Corpus: `path` is {path}: {found}, expected {expected}", 3)

        try:
            # A pipe that nobody writes to would be opened for ever, and a device may have no end.
            is_file = stat.S_ISREG(os.stat(path).st_mode)
            check(is_file, "not a regular file", "a corpus, which is a regular file")
            with open(path, "rb") as file:
                content = file.read()
        except OSError as error:
            raise DeviceError(f"could not read the corpus {path}: {error}", 1) from error
        known: array[int] = array(corpus._letter)
        least = _HEAD.size + _CHECKSUM.size
        check(len(content) >= least, f"{len(content)} bytes", f"a corpus of {least} bytes or more")
        magic, version, width, count = _HEAD.unpack_from(content)
        check(magic == _MAGIC, "another kind of file", "a corpus, which begins with SPECCORP")
        check(version == _VERSION, f"version {version}", f"version {_VERSION}")
        check(width == known.itemsize, f"tokens of {width} bytes", f"tokens of {dtype}")
        size = count * width + least
        check(len(content) == size, f"{len(content)} bytes", f"{size} bytes for {count} tokens")
        (expected,) = _CHECKSUM.unpack_from(content, size - _CHECKSUM.size)
        found = zlib.crc32(content[: -_CHECKSUM.size])
        check(found == expected, f"contents of checksum {found:#x}", f"its {expected:#x}")
        known.frombytes(content[_HEAD.size : -_CHECKSUM.size])
        if sys.byteorder == "big":
            known.byteswap()
        if count > limit:
            corpus._known = known
            known = known[corpus._boundary(count - limit) :]
        corpus._known = known
        corpus._rewrite()
        return corpus

    def _boundary(self, least: int) -> int:
        """Where the first text starts that starts at `least`, at least 1, or behind it."""
        known = self._known
        ends = (at + 1 for at in range(least - 1, len(known)) if known[at] < 0)
        return next(ends, len(known))


#: All that there are: a forked process has the locks of threads that it does not have.
_CORPORA: weakref.WeakSet[Corpus] = weakref.WeakSet()


def _forked() -> None:
    for corpus in _CORPORA:
        # A thread that held the lock was in the midst of a change, or of a copy.
        corpus._is_behind = corpus._is_behind or corpus._lock.locked()
        corpus._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
