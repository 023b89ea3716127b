"""Tests of the engines, with this library in the place of their kernels.

Their files are not here: `SPEC_FASTDEPLOY_TESTS` is the folder of `test_ngram_gpu_kernel.py`,
`SPEC_SGLANG_TESTS` one with those of `sgl-kernel/tests` and of its `speculative`, `SPEC_VLLM_DIR` a checkout of vLLM (or its
source distribution). How many cases ran is asserted, so that none is lost. Where there is no GPU,
what the files ask to be on one is on the CPU.
"""

import importlib.util
import os
import re
import subprocess
import sys
import textwrap
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


def environment(shim):
    """The variables of a program beside stand-ins."""
    found = [str(SHIMS), str(SHIMS / shim), str(PACKAGE), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(found)}


def run(tmp_path, file, shim, passes, *arguments):
    """Runs an engine's file of tests beside stand-ins; so many must pass, and nothing else."""
    text = file.read_text()
    if shim != "fastdeploy_like" and not importlib.import_module("torch").cuda.is_available():
        text = re.sub(r'"cuda(:0)?"', '"cpu"', text)
        text = text.replace("torch.cuda.is_available()", "True")
    (tmp_path / file.name).write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", file.name, *arguments],
        cwd=tmp_path,
        env=environment(shim),
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


#: SGLang's files, how many cases run, and which. Left out: thresholds below 1, which have no equal,
#: another kernel of the same file, sizes that take minutes on a CPU, and alignment of several tokens:
#: the picks there have a stride, which SGLang's kernels do not look at.
SGLANG = {
    "test_apply_token_bitmask_inplace.py": (1, ""),
    "test_eagle_utils.py": (1, ""),
    "test_moe_align.py": (6, "32-1-1-64 or 64-1-8-64 or 128-1-64-64"),
    "test_moe_fused_gate.py": (342, "not 65536 and not 32768 and not 16384"),
    "test_moe_topk_sigmoid.py": (774, ""),
    "test_moe_topk_softmax.py": (738, ""),
    "test_sampling.py": (32, "111 and not 989 and not 500"),
    "test_speculative_sampling.py": (1, "not 0-0"),
    "test_topk.py": (42, "not 256 and not 4096"),
}


@pytest.mark.parametrize("name", SGLANG)
def test_sglang(tmp_path, name, monkeypatch):
    """SGLang's own tests of its kernels, with this library's functions in their place. What it
    compares alignment with is a kernel in Triton, which runs on the CPU too, slowly."""
    need("torch")
    if name == "test_moe_align.py":
        need("triton")
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    passes, words = SGLANG[name]
    files = folder("SPEC_SGLANG_TESTS")
    file = files / name if (files / name).exists() else files / "speculative" / name
    plugin = ["-p", "stable_topk"]
    run(tmp_path, file, "sglang_like", passes, *plugin, *(["-k", words] if words else []))


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


#: vLLM's files, how many cases run, and which. Left out: what this library does not have (FLy,
#: synthetic acceptance, block verification, watermarks, batched alignment), what compares two of
#: vLLM's own kernels, and sizes that take minutes on a CPU.
VLLM = {
    "kernels/moe/test_moe_align_block_size.py": (223, "not batched and not 2256 and not 4096"),
    "kernels/moe/test_fused_topk.py": (864, ""),
    "kernels/moe/test_grouped_topk.py": (67, "single_group and not nonfinite"),
    "v1/sample/test_sampler.py": (36, ""),
    "v1/spec_decode/test_rejection_sampler_utils.py": (
        9,
        "(unbiased or greedy or all_nan or placeholder) and not block and not adaptive"
        " and not watermark and not repeated and not True",
    ),
    "v1/worker/test_gpu_gumbel_sample.py": (7, "greedy or zero_count or single_nonzero or multiple"),
}


@pytest.mark.parametrize("name", VLLM)
def test_vllm(tmp_path, name):
    """vLLM's own tests of routers, alignment, penalties, bad words, drafts and samplers, with its
    own Python code around this library's functions."""
    need("torch")
    passes, words = VLLM[name]
    chosen = ["-k", words] if words else []
    run(tmp_path, folder("SPEC_VLLM_DIR") / "tests" / name, "vllm_like", passes, "-p", "vllm_shim", *chosen)


def beside(code):
    """Runs a program beside vLLM's stand-ins; what it says."""
    folder("SPEC_VLLM_DIR")
    need("torch")
    program = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(program, env=environment("vllm_like"), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_vllm_drafts_of_its_gpu_kernel():
    """`NgramGPUKernel` against vLLM's own, which is written in torch, over random texts."""
    said = beside(
        """
        import torch, vllm_shim, spec_ops.vllm
        from types import SimpleNamespace
        from vllm.v1.spec_decode.ngram_proposer_gpu import NgramGPUKernel
        torch.manual_seed(0)
        found = 0
        for _ in range(200):
            longest, shortest = int(torch.randint(8, 40, ())), int(torch.randint(1, 4, ()))
            spec = SimpleNamespace(
                prompt_lookup_min=shortest, prompt_lookup_max=shortest + int(torch.randint(0, 4, ())),
                num_speculative_tokens=int(torch.randint(1, 6, ())),
            )
            config = SimpleNamespace(
                speculative_config=spec, model_config=SimpleNamespace(max_model_len=longest),
                scheduler_config=SimpleNamespace(max_num_seqs=64),
            )
            lengths = torch.randint(spec.prompt_lookup_max, longest + 1, (64,))
            tokens = torch.randint(0, 3, (64, longest), dtype=torch.int32)
            drafting = torch.rand(64) < 0.8
            theirs = NgramGPUKernel(config, device="cpu").forward(lengths, tokens, drafting)
            ours = spec_ops.vllm.NgramGPUKernel(config, device="cpu")(lengths, tokens, drafting)
            assert all(torch.equal(one, other) for one, other in zip(theirs, ours))
            found += int((ours[1] > 0).sum())
        print(found > 5000)
        """
    )
    assert said == "True\n"


def test_vllm_filters():
    """`apply_top_k_top_p` against vLLM's own in torch, on logits without ties."""
    said = beside(
        """
        import torch, importlib.util, os, sys, stand_ins
        import vllm_shim
        from vllm.v1.sample.ops import topk_topp_sampler as theirs
        import spec_ops.vllm
        torch.manual_seed(0)
        kept = 0
        for _ in range(20):
            logits = torch.randn(32, 500) * 3
            k = torch.randint(1, 501, (32,))
            p = torch.where(torch.rand(32) < 0.3, 1.0, torch.rand(32))
            for how in ((k, None), (None, p), (k, p)):
                right = vllm_shim.apply_top_k_top_p_pytorch(logits.clone(), *how)
                ours = spec_ops.vllm.apply_top_k_top_p(logits.clone(), *how)
                differ = (right != ours).sum().item()
                # Sums of probabilities are rounded there: a token at the edge may differ.
                assert differ <= 2, differ
                kept += int((ours > float("-inf")).sum())
        print(kept > 1000)
        """
    )
    assert said == "True\n"


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
        longest, batch = int(random.integers(1, 40)), 500
        tokens = random.integers(0, random.integers(1, 6) + 1, (batch, longest)).astype(np.int32)
        lengths = random.integers(1, longest + 1, batch).astype(np.int32)
        min_n = int(random.integers(1, 4))
        max_n, k = min_n + int(random.integers(0, 4)), int(random.integers(1, 8))
        room = longest + int(random.integers(0, 5))
        proposer = spec_ops.vllm.NgramProposer(config(min_n, max_n, k, room))
        drafts = proposer.propose([[0]] * batch, lengths, tokens)
        for row, length, draft in zip(tokens, lengths, drafts, strict=True):
            expected = oracle(row[:length], min_n, max_n, room, k)
            assert draft == expected.tolist(), (row[:length], min_n, max_n, k, room)
            found += bool(draft)
        ran += batch
    assert ran == 100_000 and found > 10_000
