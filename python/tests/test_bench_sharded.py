"""The program bench/sharded.py, without GPUs: what it compares, and that it fails where a token is
wrong."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import need

torch = need("torch", whole_file=True)
if not torch.distributed.is_available():
    pytest.skip("torch lacks torch.distributed", allow_module_level=True)

import spec_ops  # noqa: E402

PROGRAM = Path(__file__).parents[1] / "bench/sharded.py"
#: Python imports the module `sitecustomize` before a program. This one makes the token of one row wrong.
WRONG = """
import spec_ops.torch
right = spec_ops.torch.sample_sharded
def wrong(logits, group, positions, *args, way, **named):
    tokens = right(logits, group, positions, *args, way=way, **named)
    if way == "winners":
        tokens[(positions == 3 * 17).nonzero()] += 1
    return tokens
spec_ops.torch.sample_sharded = wrong
"""


def bench(tmp_path, *options):
    """Runs the program on two ranks without GPUs; its status, what it says, and its results."""
    found = [str(tmp_path), str(Path(spec_ops.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(found)}
    file = tmp_path / "results.json"
    command = [sys.executable, str(PROGRAM), "--device", "cpu", "--json", str(file), *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    return done, json.loads(file.read_text())


def test_every_way_gives_the_tokens_of_whole_rows(tmp_path):
    done, found = bench(tmp_path, "--vocab", "500", "--rows", "1", "8", "--check", "30")
    assert done.returncode == 0, done.stderr
    assert "all tokens are those of one device" in done.stdout
    counted = {(one["dtype"], one["rows"], one["way"]): one for one in found["results"]}
    filtered = {"gather k-p", "exchange k-p", "candidates k-p"}
    for dtype in ("bf16", "f32"):
        ways = {way for of, rows, way in counted if (of, rows) == (dtype, 8)}
        assert ways == {"winners", "finishers", "largest alone", "gather", "exchange"} | filtered
        assert counted[dtype, 8, "winners"]["checked_rows"] == 4 * 8
    assert not any(one["wrong"] for one in found["results"])


def test_a_wrong_token_fails(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(WRONG)
    done, found = bench(tmp_path, "--vocab", "300", "--rows", "8", "--check", "24")
    assert done.returncode != 0 and "WRONG" in done.stdout
    wrong = {(one["dtype"], one["way"]): one["wrong"] for one in found["results"] if one["wrong"]}
    # Row 17 lies in the third batch. Both ranks find it.
    assert wrong == {("bf16", "winners"): 2, ("f32", "winners"): 2}
