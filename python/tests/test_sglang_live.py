"""A real SGLang on the CPU with this library inside: each part on and off, and its plugin's drafts.

Each engine is a process of its own, `sglang_live/engine.py`, which serves several batches. Texts
without chance must be SGLang's own to the token, with drafts and without. SGLang's kernels for the CPU
are in no package index: `sglang_live/sgl_kernel` has those that are called, written with torch. On the
CPU SGLang verifies drafts without chance, and so are these batches.

Needs SGLang in this environment, and this package installed, so that SGLang finds the plugin:
`sglang_live/setup.sh`; with `SPEC_PYTHON_REQUIRE=sglang` nothing is skipped.
"""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from conftest import need

need("sglang", whole_file=True)

HERE = Path(__file__).parent / "sglang_live"
SAMPLED = {"temperature": 1.0, "top_k": 40, "top_p": 0.9}

EXACT = [
    {"name": "greedy", "requests": [{}] * 4},
    {"name": "long", "requests": [{"max_new_tokens": 48}, {}, {"max_new_tokens": 31}]},
    {"name": "penalties", "requests": [{"frequency_penalty": 0.8}, {}, {"presence_penalty": 1.5}]},
]
DRAWN = [
    {"name": "sampled", "requests": [SAMPLED, SAMPLED | {"min_p": 0.02}, {}, {"temperature": 1.1, "top_p": 0.7}]},
    {"name": "one of one", "requests": [SAMPLED | {"top_k": 1}, {}]},
]
ALL = "sampling,tree,align,gates"
NGRAM = {"speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": 6}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The lines of an engine, once for each."""
    folder = tmp_path_factory.mktemp("sglang")
    plugin = folder / "sglang_live-1.dist-info"
    plugin.mkdir()
    (plugin / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang-live\nVersion: 1\n")
    points = "[sglang.srt.plugins]\nsglang_live = sgl_kernel:prepare\n"
    (plugin / "entry_points.txt").write_text(points)

    @cache
    def lines(text):
        paths = [str(HERE), str(folder), os.environ.get("PYTHONPATH", "")]
        # SGLang compiles its corpus of n-grams with the `ninja` of this environment.
        programs = [str(Path(sys.executable).parent), os.environ["PATH"]]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "PATH": os.pathsep.join(programs),
            "OMP_NUM_THREADS": "2",
            "HF_HUB_OFFLINE": "1",
        }
        command = [sys.executable, str(HERE / "engine.py"), text]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
        log = done.stdout + done.stderr
        assert done.returncode == 0, log[-6000:]
        found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"batch"')]
        return {"log": log} | {one["batch"]: one for one in found}

    def serve(parts="", batches=EXACT, process=0, **engine):
        wanted = {"parts": parts, "batches": batches, "engine": engine, "process": process}
        return lines(json.dumps(wanted | {"model": str(folder / "model")}))

    return serve


def same(ours, theirs, batches=EXACT):
    """Whether two engines made the same texts without chance."""
    for batch in batches:
        assert ours[batch["name"]]["tokens"] == theirs[batch["name"]]["tokens"], batch


def test_texts_without_chance_are_those_of_sglang(served):
    """All parts; each that SGLang has on this platform was put in place, and no other."""
    ours = served(ALL, EXACT + DRAWN)
    same(ours, served())
    for target in (
        "sglang.srt.layers.sampler.top_k_top_p_min_p_sampling_from_probs_torch",
        "sglang.kernels.ops.speculative.spec_tree.verify_tree_greedy_func",
    ):
        assert f"Applied 1 hook(s) to {target} (from: plugin=spec_ops" in ours["log"]
    for target in (
        "sglang.srt.layers.sampler.top_k_top_p_sampling_from_probs",
        "sglang.kernels.ops.speculative.verify_sampling.tree_speculative_sampling_target_only",
    ):
        assert f"SGLang has no {target} here" in ours["log"]
    assert "Failed to" not in ours["log"]


def test_sampled_texts_repeat(served):
    """Two processes with the engine's seed draw the same; the most likely of one token is no draw."""
    ours = served(ALL, EXACT + DRAWN)
    again = served(ALL, EXACT + DRAWN, process=1)
    assert ours["sampled"]["tokens"] == again["sampled"]["tokens"]
    exact = served()["greedy"]["tokens"]
    drawn = ours["sampled"]["tokens"]
    assert [one == other for one, other in zip(drawn, exact)] == [False, False, True, False]
    assert ours["one of one"]["tokens"] == exact[:2]


@pytest.mark.parametrize(
    ("algorithm", "parts"), [("NGRAM", ""), ("NGRAM", "tree"), ("SPEC_SUFFIX", "tree")]
)
def test_drafts_leave_the_texts(served, algorithm, parts):
    """SGLang's trees of drafts and ours: the texts without drafts, and some drafts accepted. SGLang
    leaves penalties of the drafts themselves out, so that these texts are its own with drafts."""
    ours = served(parts, **NGRAM | {"speculative_algorithm": algorithm})
    same(ours, served(), EXACT[:2])
    made, accepted = ours["long"]["drafts"]
    assert 0 < accepted < made
    if parts and algorithm == "NGRAM":
        same(ours, served("", **NGRAM))
        assert ours["long"]["drafts"] == served("", **NGRAM)["long"]["drafts"]
