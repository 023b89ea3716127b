"""A corpus that lives."""

import os
import threading

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


def test_refusals():
    for limit in (0, 1, 2**31):
        with pytest.raises(ArgumentError, match="limit"):
            Corpus(limit)
    with pytest.raises(ArgumentError, match="dtype"):
        Corpus(10, dtype="float32")
    for text in ([1.5], ["a"], [2**40], [[1, 2]]):
        with pytest.raises(ArgumentError, match="text"):
            Corpus(10).append(text)
