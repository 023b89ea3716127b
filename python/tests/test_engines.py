"""Tests of the engines, with this library in the place of their kernels.

Their files are not here: `SPEC_FASTDEPLOY_TESTS` is the folder of `test_ngram_gpu_kernel.py`,
`SPEC_SGLANG_TESTS` that of `test_eagle_utils.py`, `SPEC_VLLM_DIR` a checkout of vLLM (or its
source distribution). How many cases ran is asserted, so that none is lost.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import types
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import need

import spec_ops
import spec_ops.vllm

SHIMS = Path(__file__).parent / "shims"
PACKAGE = Path(spec_ops.__file__).parents[1]


def folder(variable):
    """The folder that an environment variable names."""
    if not os.environ.get(variable):
        pytest.skip(f"{variable} is not set")
    return Path(os.environ[variable])


def run(tmp_path, file, shim, passes, *arguments):
    """Runs an engine's file of tests beside stand-ins; so many must pass, and nothing else."""
    shutil.copy(file, tmp_path)
    path = os.pathsep.join([str(SHIMS / shim), str(PACKAGE), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", file.name, *arguments],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    counts = {kind: int(number) for number, kind in re.findall(r"(\d+) (\w+)", done.stdout)}
    assert counts.get("passed") == passes and "skipped" not in counts, done.stdout


def test_fastdeploy_ngram(tmp_path):
    """Both classes of FastDeploy's tests, with a fake paddle; not its latencies, nor its texts
    of 256 x 131072 tokens, whose oracle takes minutes."""
    file = folder("SPEC_FASTDEPLOY_TESTS") / "test_ngram_gpu_kernel.py"
    run(tmp_path, file, "fastdeploy_like", 8, "-k", "not latency and not large_batch")


def test_sglang_tree(tmp_path):
    need("torch")
    file = folder("SPEC_SGLANG_TESTS") / "test_eagle_utils.py"
    run(tmp_path, file, "sglang_like", 1)


def test_vllm_rejection_sampler(tmp_path):
    """vLLM's own class and tests, greedy and by distribution, over this library's function."""
    need("torch")
    file = folder("SPEC_VLLM_DIR") / "tests/v1/sample/test_rejection_sampler.py"
    names = (
        "perfect_match",
        "early_mismatch",
        "multiple_sequences",
        "single_token_sequence",
        "empty_sequence",
        "multiple_mismatches",
        "parametrized_cases",
        "deterministic_when_seeded",
        "approximates_target_distribution",
        "placeholder_draft_token",
        "top_k",
        "top_p",
    )
    words = f"({' or '.join(names)}) and not fly and not synthetic and not recovered"
    run(tmp_path, file, "vllm_like", 35, "-p", "vllm_shim", "-k", words)


def config(min_n, max_n, k, max_model_len=1024):
    return SimpleNamespace(
        speculative_config=SimpleNamespace(
            prompt_lookup_min=min_n, prompt_lookup_max=max_n, num_speculative_tokens=k
        ),
        model_config=SimpleNamespace(max_model_len=max_model_len),
    )


# min_n, max_n, k, the text, the draft: the values of vLLM's test_ngram.py.
DRAFTS = [
    (2, 2, 2, [1, 2, 3, 4, 1, 2, 3, 5, 6], []),
    (2, 2, 3, [1, 2, 3, 4, 1, 2, 3], [4, 1, 2]),
    (2, 2, 2, [1, 2, 3, 4, 1, 2, 3], [4, 1]),
    (1, 1, 3, [1, 2, 3, 4, 1, 2, 3], [4, 1, 2]),
    (1, 1, 2, [1, 2, 3, 4, 1, 2, 3], [4, 1]),
    (2, 2, 3, [1, 3, 6, 2, 3, 4, 1, 2, 3], [4, 1, 2]),
    (1, 1, 2, [1, 3, 6, 2, 3, 4, 1, 2, 3], [6, 2]),
    (2, 2, 2, [1, 2, 3, 4, 5], []),
    (4, 4, 2, [1, 2, 3, 4, 1, 2, 3], []),
    (3, 4, 2, [1, 2, 3, 4, 1, 2, 3], [4, 1]),
    (3, 4, 2, [2, 3, 4, 5, 1, 2, 3, 4, 1, 2, 3, 4], [1, 2]),
    (2, 4, 2, [3, 4, 5, 2, 3, 4, 1, 2, 3, 4], [1, 2]),
    (3, 3, 2, [1, 2, 3, 100, 1, 2, 3, 200, 1, 2, 3, 300, 1, 2, 3], [100, 1]),
]


@pytest.mark.parametrize(("min_n", "max_n", "k", "text", "draft"), DRAFTS)
def test_vllm_drafts(min_n, max_n, k, text, draft):
    proposer = spec_ops.vllm.NgramProposer(config(min_n, max_n, k))
    tokens = np.array([text], np.int32)
    assert proposer.propose([[0]], np.array([len(text)]), tokens) == [draft]
    assert proposer.propose(k, [[0]], np.array([len(text)], np.int32), tokens, None) == [draft]


def test_vllm_proposer_over_a_batch():
    """Requests that sampled nothing, that are full, and slots behind the batch."""
    tokens = np.zeros((4, 20), np.int32)
    tokens[:, :5] = [[1, 2, 3, 1, 2], [4, 5, 4, 5, 4], [7, 8, 9, 7, 8], [6, 6, 6, 6, 6]]
    proposer = spec_ops.vllm.NgramProposer(config(2, 2, 2, max_model_len=6))
    lengths = np.array([5, 5, 5, 5], np.int32)
    assert proposer.propose([[2], [], [8]], lengths, tokens, slot_mappings=None) == [[3], [], [9]]
    lengths[0] = 6
    assert proposer.propose([[2], [], [8]], lengths, tokens)[0] == []
    assert proposer.propose([], lengths, tokens) == []
    proposer.load_model()


def vllm_oracle():
    """The function of vLLM's own proposer, its file loaded with stand-ins for the rest."""
    file = folder("SPEC_VLLM_DIR") / "vllm/v1/spec_decode/ngram_proposer.py"
    absent = {}
    for name in ("torch", "vllm", "vllm.config"):
        absent[name] = types.ModuleType(name)
    absent["torch"].Tensor = absent["vllm.config"].VllmConfig = object
    try:
        import numba  # noqa: F401
    except ImportError:
        absent["numba"] = numba = types.ModuleType("numba")
        numba.jit = numba.njit = lambda *_, **__: lambda function: function
        numba.prange, numba.get_num_threads, numba.set_num_threads = range, int, int
    before = {name: sys.modules.get(name) for name in absent}
    sys.modules.update(absent)
    try:
        spec = importlib.util.spec_from_file_location("vllm_ngram_proposer", file)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        for name, module_before in before.items():
            if module_before is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module_before
    return module._find_longest_matched_ngram_and_propose_tokens


def test_vllm_drafts_are_those_of_its_proposer():
    """100,000 random texts of a small alphabet, so that there is much to find."""
    oracle, random, ran, found = vllm_oracle(), np.random.default_rng(0), 0, 0
    while ran < 100_000:
        most, batch = int(random.integers(1, 40)), 500
        tokens = random.integers(0, random.integers(1, 6) + 1, (batch, most)).astype(np.int32)
        lengths = random.integers(1, most + 1, batch).astype(np.int32)
        min_n = int(random.integers(1, 4))
        max_n, k = min_n + int(random.integers(0, 4)), int(random.integers(1, 8))
        room = most + int(random.integers(0, 5))
        proposer = spec_ops.vllm.NgramProposer(config(min_n, max_n, k, room))
        drafts = proposer.propose([[0]] * batch, lengths, tokens)
        for row, length, draft in zip(tokens, lengths, drafts, strict=True):
            expected = oracle(row[:length], min_n, max_n, room, k)
            assert draft == expected.tolist(), (row[:length], min_n, max_n, k, room)
            found += bool(draft)
        ran += batch
    assert ran == 100_000 and found > 10_000
