"""A corpus that lives."""

import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import spec_ops
from conftest import need
from spec_ops import ArgumentError, Corpus, DeviceError

NONE = -(2**31)
#: What Rust's `Corpus::save` writes for [1, 2, separator] of i32: its test has the same bytes.
FILE = bytes.fromhex(
    "53504543434f525001000000040000000300000000000000010000000200000000000080cbb34522"
)


def drafts(corpus, text):
    tokens = np.array([text], corpus.tokens.dtype)
    length = np.array([len(text)], np.int32)
    found = spec_ops.suffix_lookup(
        tokens, length, corpus=corpus.tokens, corpus_length=corpus.length, n=4, min_match=2
    )
    return found.drafts[0][: found.counts[0]].tolist()


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_calls_see_what_is_appended(dtype):
    corpus = Corpus(16, dtype=dtype)
    assert drafts(corpus, [9, 1, 2]) == []
    corpus.append([1, 2, 3, 4, 5])
    assert drafts(corpus, [9, 1, 2]) == [3, 4, 5]
    corpus.append(np.array([6, 7, 1, 2], dtype))
    assert drafts(corpus, [5, 6]) == []
    corpus.append(range(1, 4))
    assert (len(corpus), corpus.limit, corpus.length.tolist()) == (15, 16, [15])
    corpus.append([7, 7])
    assert (len(corpus), drafts(corpus, [9, 6, 7])) == (7, [])
    assert drafts(corpus, [9, 1, 2]) == [3]
    corpus.clear()
    assert drafts(corpus, [9, 1, 2]) == [] and not corpus.tolist()


def test_a_corpus_is_the_end_of_all_texts():
    random, corpus, every = np.random.default_rng(0), Corpus(200), []
    for _ in range(150):
        text = random.integers(0, 1000, random.integers(1, 26)).tolist()
        corpus.append(text)
        every += [*text, NONE]
        known = corpus.tolist()
        assert every[-len(known) :] == known and len(known) <= 200
        assert len(known) == len(every) or every[-len(known) - 1] == NONE
        assert corpus.tokens[: len(known)].tolist() == known
    corpus.append(range(500))
    assert corpus.tolist() == [*range(301, 500), NONE]


def test_torch_tensors():
    torch = need("torch")
    corpus = Corpus(16, dtype="int64", device="cpu")
    place = corpus.tokens.data_ptr()
    corpus.append(torch.tensor([1, 2, 3]))
    corpus.append(range(20))
    assert corpus.tokens.tolist()[:15] == list(range(5, 20)) and corpus.length.tolist() == [16]
    assert corpus.tokens.data_ptr() == place


def test_threads_append():
    corpus = Corpus(1 << 12)

    def work(first):
        for start in range(first, first + 50):
            corpus.append([start] * 7)

    threads = [threading.Thread(target=work, args=(1000 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    known = corpus.tolist()
    texts = [known[at : at + 8] for at in range(0, len(known), 8)]
    assert len(texts) == 200 and all(len(set(text[:7])) == 1 for text in texts)
    assert corpus.tokens[: len(known)].tolist() == known


def test_a_file_has_the_texts(tmp_path):
    path = tmp_path / "corpus.bin"
    corpus = Corpus(100)
    corpus.append([1, 2])
    corpus.save(path)
    assert path.read_bytes() == FILE
    assert path.stat().st_mode & 0o777 == 0o600 or os.name == "nt"
    assert os.listdir(tmp_path) == ["corpus.bin"]
    corpus.append([3, 4, 5])
    corpus.save(path)
    assert Corpus.load(path, 100).tolist() == [1, 2, NONE, 3, 4, 5, NONE]
    less = Corpus.load(path, 5)
    assert less.tolist() == [3, 4, 5, NONE] and less.length.tolist() == [4]
    assert drafts(less, [3, 4]) == [5]


def test_a_damaged_file_is_refused(tmp_path):
    path = tmp_path / "corpus.bin"
    for at in range(len(FILE)):
        for damaged in (FILE[:at], FILE[:at] + bytes([FILE[at] ^ 4]) + FILE[at + 1 :]):
            path.write_bytes(damaged)
            with pytest.raises(ArgumentError, match=r"corpus\.bin"):
                Corpus.load(path, 100)
    path.write_bytes(FILE)
    with pytest.raises(ArgumentError, match="tokens of 4 bytes"):
        Corpus.load(path, 100, dtype="int64")
    with pytest.raises(DeviceError):
        Corpus.load(tmp_path / "none", 100)
    with pytest.raises(DeviceError):
        Corpus(10).save(tmp_path / "none" / "corpus.bin")


def test_a_save_removes_what_killed_ones_left_and_nothing_else(tmp_path):
    """Names that begin as those of other saves to the same path, of Rust's too."""
    fcntl = need("fcntl")
    corpus = Corpus(10)
    corpus.append([1, 2])
    left, running = (tmp_path / f".corpus.bin.{n:016x}.partial" for n in (1, 2))
    others = [tmp_path / f".corpus.bin.{os.getpid()}-{n}.partial" for n in range(9)]
    others += [tmp_path / f".other.{3:016x}.partial", tmp_path / f".corpus.bin.{4:015x}.partial"]
    for path in (left, running, *others):
        path.write_bytes(b"half")
    with open(running, "rb") as locked:
        fcntl.flock(locked, fcntl.LOCK_EX)
        corpus.save(tmp_path / "corpus.bin")
        assert running.exists() and not left.exists()
    corpus.save(tmp_path / ("n" * 250))
    corpus.save(os.fsencode(tmp_path / "corpus.bin"))
    assert not running.exists() and all(path.exists() for path in others)
    assert len(os.listdir(tmp_path)) == len(others) + 2
    assert Corpus.load(tmp_path / "corpus.bin", 10).tolist() == [1, 2, NONE]


def test_saves_that_are_killed_leave_nothing_for_long(tmp_path):
    """Processes that save one path at the same time succeed, also while others are killed."""
    program = """if True:
        import sys, spec_ops
        corpus = spec_ops.Corpus(1 << 20)
        corpus.append([int(sys.argv[2])] * (1 << 18))
        print(flush=True)
        for _ in range(int(sys.argv[3])):
            corpus.save(sys.argv[1])
    """
    path = tmp_path / "corpus.bin"

    def start(number, times):
        words = [sys.executable, "-c", program, str(path), str(number), str(times)]
        return subprocess.Popen(words, stdout=subprocess.PIPE)

    killed, others = [start(n, 10**6) for n in (1, 2)], [start(n, 20) for n in (3, 4)]
    for process in killed + others:
        process.stdout.read(1)
    for process in killed:
        time.sleep(0.1)
        process.kill()
        process.wait()
        process.stdout.close()
    for process in others:
        process.stdout.close()
        assert process.wait() == 0
    corpus = Corpus.load(path, 1 << 20)
    corpus.save(path)
    assert len(corpus) == (1 << 18) + 1 and os.listdir(tmp_path) == ["corpus.bin"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names")
def test_other_files_are_neither_replaced_nor_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("socket")
    os.symlink("pipe", "to pipe")
    os.mkdir("folder")
    kinds = ["pipe", "socket", "to pipe", "folder"]
    try:
        os.mknod("device", stat.S_IFCHR | 0o600, os.makedev(1, 5))
        kinds.append("device")
    except PermissionError:
        pass  # not root
    corpus = Corpus(10)
    for path in kinds:
        kind = stat.S_IFMT(os.lstat(path).st_mode)
        with pytest.raises(DeviceError, match="not a regular file"):
            corpus.save(path)
        with pytest.raises(ArgumentError, match="not a regular file"):
            Corpus.load(path, 10)
        assert stat.S_IFMT(os.lstat(path).st_mode) == kind
    assert sorted(os.listdir()) == sorted(kinds)
    listener.close()
    # A link to a file stays one, and a link to nothing is replaced.
    corpus.save("file")
    os.symlink("file", "to file")
    os.symlink("nothing", "to nothing")
    corpus.append([1])
    corpus.save("to file")
    corpus.save("to nothing")
    assert os.path.islink("to file") and not os.path.islink("to nothing")
    assert len(Corpus.load("file", 10)) == 2 and not os.path.exists("nothing")


def agrees(corpus):
    """What calls read is what the corpus says that it has."""
    known = corpus.tolist()
    assert corpus.length.tolist() == [len(known)] == [len(corpus)]
    assert corpus.tokens[: len(known)].tolist() == known
    return known


class Stop(Exception):
    pass


@pytest.mark.parametrize("at", range(8))
@pytest.mark.parametrize("act", ["append", "drop", "clear"])
def test_an_exception_within_a_change_divides_nothing(at, act):
    """Before and behind each write to the memory that calls read."""
    corpus = Corpus(16)
    corpus.append([1, 2, 3])
    corpus.append([4, 5, 6])
    before, reached = corpus.tolist(), 0

    class Torn(np.ndarray):
        def __setitem__(self, place, value):
            nonlocal reached
            for half in (False, True):
                reached += 1
                if reached == at + 1:
                    raise Stop
                if not half:
                    super().__setitem__(place, value)

    corpus._tokens, corpus._length = corpus._tokens.view(Torn), corpus._length.view(Torn)
    added = {"append": [7, 8], "drop": list(range(7, 16)), "clear": None}[act]
    try:
        corpus.clear() if added is None else corpus.append(added)
    except Stop:
        pass
    else:
        assert at >= 4, "nothing was interrupted"
    reached = 100
    # Where there is no more room, the older of the two texts is dropped.
    kept = before[4:] if act == "drop" else before
    assert agrees(corpus) in (before, [*kept, *added, NONE] if added else [])
    if act == "clear":
        assert not (corpus.tokens >= 0).any()
    corpus.append([9, 9])
    assert agrees(corpus)[-3:] == [9, 9, NONE]


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers")
def test_signals_divide_no_append():
    """An exception of a signal's handler, anywhere in an append."""
    corpus, raised, random = Corpus(300), 0, np.random.default_rng(0)

    def stop(*_):
        raise Stop

    old = signal.signal(signal.SIGALRM, stop)
    end = time.monotonic() + 2
    try:
        while time.monotonic() < end:
            text = random.integers(0, 100, random.integers(1, 60))
            try:
                try:
                    signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, 4e-5))
                    corpus.append(text)
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except Stop:
                raised += 1
            assert not corpus._lock.locked()
            known = agrees(corpus)
            assert not known or known[-1] == NONE
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    assert raised > 100


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.parametrize("at", range(4))
@pytest.mark.parametrize("text", [[7, 8], list(range(7, 16))])
def test_a_child_forked_within_an_append_appends(at, text):
    """The thread that appends is not there in the child, and its lock would never be given back."""
    corpus = Corpus(16)
    corpus.append([1, 2, 3])
    corpus.append([4, 5, 6])
    before, reached, wait, go = corpus.tolist(), 0, threading.Event(), threading.Event()

    class Slow(np.ndarray):
        def __setitem__(self, place, value):
            nonlocal reached
            for half in (False, True):
                reached += 1
                if reached == at + 1:
                    wait.set()
                    go.wait(60)
                if not half:
                    super().__setitem__(place, value)

    corpus._tokens, corpus._length = corpus._tokens.view(Slow), corpus._length.view(Slow)
    thread = threading.Thread(target=corpus.append, args=(text,))
    thread.start()
    assert wait.wait(60)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(30)  # ends a child that hangs
            reached = 100
            known = agrees(corpus)
            kept = before if len(text) == 2 else before[4:]
            assert known in (before, [*kept, *text, NONE])
            corpus.append([9, 9])
            assert agrees(corpus)[-3:] == [9, 9, NONE]
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    go.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 0
    assert agrees(corpus)[-3:] == [*text[-2:], NONE]


def test_refusals():
    for limit in (0, 1, 2**31):
        with pytest.raises(ArgumentError, match="limit"):
            Corpus(limit)
    with pytest.raises(ArgumentError, match="dtype"):
        Corpus(10, dtype="float32")
    for text in ([1.5], ["a"], [2**40], [[1, 2]]):
        with pytest.raises(ArgumentError, match="text"):
            Corpus(10).append(text)
