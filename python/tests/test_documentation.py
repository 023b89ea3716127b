"""Examples: of docstrings, of docs/python.md, and the program under examples/."""

import doctest
import importlib
import runpy
from pathlib import Path

import pytest
from conftest import need

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["", "._functions", "._planned", ".torch"])
def test_docstrings(name):
    need("numpy")
    if name == ".torch":
        need("torch")
    module = importlib.import_module(f"spec_ops{name}")
    done = doctest.testmod(module)
    assert done.attempted > 0 and done.failed == 0


def test_stubs():
    """Types of the classes are those of the functions' options."""
    stubs = runpy.run_path(str(ROOT / "python/tools/stubs.py"))["stubs"]
    assert (ROOT / "python/spec_ops/_planned.pyi").read_text() == stubs()


def test_page():
    """What docs/python.md shows as a session is one."""
    need("torch")
    done = doctest.testfile(str(ROOT / "docs/python.md"), module_relative=False)
    assert done.attempted > 10 and done.failed == 0


def test_decode():
    """Drafts save runs of the model and leave the text, greedy and sampled."""
    need("torch")
    example = runpy.run_path(str(ROOT / "python/examples/decode.py"))
    model, loss = example["train"]("cpu")
    assert loss < 0.1
    prompt = example["TEXT"][:20]
    for temperature in (0.0, 0.7):
        plain, runs = example["decode"](model, prompt, 120, 0, temperature)
        text, fewer = example["decode"](model, prompt, 120, 8, temperature)
        assert (text, runs) == (plain, 120)
        assert fewer * 2 < runs
