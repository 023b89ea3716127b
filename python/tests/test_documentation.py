"""Examples: of docstrings, of docs/python.md, and the program under examples/."""

import ast
import doctest
import importlib
import inspect
import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from conftest import golden, need

import spec_ops
from spec_ops._contract import OPERATORS
from spec_ops._functions import EXAMPLES

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["", "._planned", ".torch"])
def test_docstrings(name):
    need("numpy")
    if name == ".torch":
        need("torch")
    module = importlib.import_module(f"spec_ops{name}")
    done = doctest.testmod(module)
    assert done.attempted > 0 and done.failed == 0


def test_every_function_has_an_example():
    """And says what each of its parameters and results is."""
    found = {test.name: test for test in doctest.DocTestFinder().find(spec_ops)}
    for name, contract in OPERATORS.items():
        assert len(found[f"spec_ops.{name}"].examples) > 1, name
        function = getattr(spec_ops, name)
        parts = function.__doc__.split("\n\n")
        assert parts[0] and function.__module__ == "spec_ops" and function.__qualname__ == name
        said = re.findall(r"^    (\w+): \S", parts[1], re.MULTILINE)
        assert said == list(inspect.signature(function).parameters), name
        for argument in contract.arguments:
            assert f"    {argument.name}: " in function.__doc__
    assert {file.stem for file in EXAMPLES.iterdir()} == set(OPERATORS)


def test_stubs():
    """Types of what is made at import are those of the functions."""
    for name, text in runpy.run_path(str(ROOT / "python/tools/stubs.py"))["FILES"].items():
        assert (ROOT / "python/spec_ops" / name).read_text() == text()


ENGINES = ["engines", "fastdeploy", "flashinfer", "sglang", "sglang_plugin", "vllm", "vllm_indexer", "vllm_logits"]
ENGINES += ["vllm_penalties", "vllm_plugin", "vllm_sharded", "vllm_v2"]


@pytest.mark.parametrize("name", ["__init__", "torch", *ENGINES])
def test_public_names_are_written_out(name):
    """`__all__` has every public name, in a form that type checkers read."""
    if name in ("__init__", "torch"):
        need("torch" if name == "torch" else "numpy")
        module = importlib.import_module(f"spec_ops.{name}".removesuffix(".__init__"))
        found, known = set(module.__all__), {word for word in vars(module) if not word.startswith("_")}
        assert len(found) == len(module.__all__) and set(OPERATORS) <= found
        if name == "__init__":
            modules = {word for word in known if isinstance(getattr(module, word), ModuleType)}
            assert found == known - modules | {"__version__"}
        else:
            assert found == {*OPERATORS, "sample_once", "sample_sharded"}
        return
    tree = ast.parse((ROOT / f"python/spec_ops/{name}.py").read_text())
    found = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and node.targets[0].id == "__all__"
    ]
    assert len(found) == 1 and found[0] == sorted(set(found[0]))
    defined = {getattr(node, "name", "_") for node in tree.body} - {"main", "resolved"}
    assigned = [node.targets[0].id for node in tree.body if isinstance(node, ast.Assign)]
    imported = [
        alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module == "flashinfer"
        for alias in node.names
    ]
    defined |= set(assigned) - {"ORIGINALS"} | set(imported)
    assert set(found[0]) == {known for known in defined if not known.startswith("_")}


USER = """
from typing import assert_type
import spec_ops, spec_ops.fastdeploy, spec_ops.sglang, spec_ops.torch, spec_ops.vllm
import spec_ops.engines, spec_ops.flashinfer, spec_ops.vllm_v2
from spec_ops import *

logits = object()
assert_type(spec_ops.topk_router(logits, topk=2), TopkRouterResult)
assert_type(TopkRouter(topk=2).plan(logits, bias=logits), Plan)
assert_type(spec_ops.torch.unique(logits, counts=True), spec_ops.UniqueResult)
assert_type(sample_logits(logits, logits, 0.7, 3, top_k=5, min_p=logits), SampleLogitsResult)
assert_type(spec_ops.__version__, str)
assert_type(spec_ops.engines.install("vllm", ["routers"])[0].by, str)
try:
    spec_ops.devices()
except SpecError as error:
    assert_type(error.status, int)
"""


def test_type_checkers_know_the_names(tmp_path):
    """`mypy --strict` finds what is public, and what is wrong."""
    need("mypy")
    (tmp_path / "user.py").write_text(USER)
    wrong = USER + "topk_router(logits, topk='two')\nspec_ops.nothing\n"
    (tmp_path / "wrong.py").write_text(wrong)
    said = {}
    for name in ("user", "wrong"):
        command = [sys.executable, "-m", "mypy", "--strict", f"{name}.py"]
        said[name] = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stdout
    assert "no issues found" in said["user"], said["user"]
    assert "Found 2 errors" in said["wrong"], said["wrong"]


def test_flags_are_explained():
    """The help of `flags` says what each bit means, at least each bit that a golden vector sets."""
    for name, contract in OPERATORS.items():
        for argument in contract.arguments:
            if argument.name == "flags":
                explained = sum({int(bit) for bit in re.findall(r"\b([124]):\s", argument.doc)})
                assert explained, name
                for case in golden(name):
                    value = case["outputs"].get("flags", 0)
                    value = value["data"][0] if isinstance(value, dict) else value
                    assert not value & ~explained, name


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


def test_kv_offload():
    """Attention over slots is attention over the whole cache, also after a copy that failed."""
    need("torch")
    example = runpy.run_path(str(ROOT / "python/examples/kv_offload.py"))
    wrong, wanted, fetched = example["run"]("cpu", 300)
    assert wrong == 0 and 300 < fetched["hot_slots"] < wanted / 5
    assert abs(fetched["hot_slots"] / fetched["list-order LRU"] - 1) < 0.02
    assert example["run"]("cpu", 60, fails_at=40)[0] == 0
    assert example["run"]("cpu", 60, fails_at=40, recovers=False)[0] > 0


def test_offload_page():
    """The code of docs/offload.md in the place of engines' functions, on a step of two requests."""
    torch = need("torch")
    page = (ROOT / "docs/offload.md").read_text()
    names = {"torch": torch, "spec_ops": spec_ops}
    for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(code, names)

    def ints(*rows):
        return torch.tensor(rows, dtype=torch.int32)

    # Buffers of four slots and one for the newest token; the second row is padding.
    tokens, used = ints([7, -1, 9, 3], [0, 1, 2, 3]), torch.zeros(2, 4, dtype=torch.int32)
    locs, lengths = ints([50, 51, 52, 53, 54], [60, 61, 62, 63, 64]), torch.tensor([11, 4])
    done = names["load_cache_to_device_buffer_mla"](
        ints([3, 5, 10], [0, 1, 2]), tokens, used, locs, torch.tensor([0, 1]), lengths, 1
    )
    assert done.slots.tolist() == [[53, 51, 54], [-1, -1, -1]]
    assert done.fetch_positions.tolist() == [[5, -1, -1], [-1, -1, -1]]
    assert done.fetch_slots[0, 0] == 51 and done.fetches.tolist() == [1, 0]
    assert tokens.tolist() == [[7, 5, 9, 3], [0, 1, 2, 3]]

    # Blocks of two positions: the first block of the text was never spilled.
    resident, used = ints([3, -1]), torch.zeros(1, 2, dtype=torch.int32)
    done = names["hisparse_swap_in"](
        ints([1, 3, 4]), resident, used, torch.tensor([6]), ints([0])[0], ints([8, 0, 0]), ints([5]), 2
    )
    assert done.slots.tolist() == [[17, 10, 11]] and done.fetch_positions[0, 0] == 4
    assert done.fetch_slots[0, 0] == 11 and resident.tolist() == [[3, 4]]
