"""The program examples/tree_decoding.py: trees leave the text as it is, and save runs of the model."""

import runpy
import sys
from functools import cache
from pathlib import Path

import pytest
from conftest import need

EXAMPLES = Path(__file__).parents[1] / "examples"
TOKENS = 24
PROMPTS = [[5, 9, 5, 9, 5], [7] * 17, [3]]


@cache
def example():
    need("torch")
    need("transformers")
    sys.path.insert(0, str(EXAMPLES))
    try:
        return runpy.run_path(str(EXAMPLES / "tree_decoding.py"))
    finally:
        sys.path.remove(str(EXAMPLES))


def decoded(settings, **shape):
    """The texts without and with trees, and the runs with trees."""
    own = example()
    model = own["tiny"]()[0]
    settings, shape = own["Settings"](**settings), own["Shape"](**shape)
    longest = max(map(len, PROMPTS)) + TOKENS
    plain = own["Decoder"](model, settings, len(PROMPTS), longest)
    plain.prepare()
    drafter = own["without_last_layers"](model, 3)
    trees = own["TreeDecoder"](model, drafter, settings, shape, len(PROMPTS), longest)
    return plain.decode(PROMPTS, TOKENS)[0], *trees.decode(PROMPTS, TOKENS)


@pytest.mark.parametrize("temperature", [0.0, 0.3])
@pytest.mark.parametrize("shape", [{}, {"beam": 2, "depth": 3, "nodes": 5}])
def test_trees_leave_the_text_as_it_is(temperature, shape):
    settings = {"temperature": temperature, "top_p": 0.9, "seed": 7}
    texts, with_trees, runs = decoded(settings, **shape)
    assert with_trees == texts
    assert sum(runs) < len(PROMPTS) * TOKENS


def test_the_bits_say_which_nodes_see_each_other(monkeypatch):
    """With a mask in which every node sees all nodes before it, the text is another."""
    own = example()
    right = own["TreeDecoder"].mask_of

    def all_before(self, bits, last):
        behind = self.model.columns - last[:, None]
        node = own["torch"].arange(bits.shape[1])[:, None]
        return right(self, bits, last) | ((behind >= 0)[:, None] & (behind[:, None] <= node))

    monkeypatch.setattr(own["TreeDecoder"], "mask_of", all_before)
    texts, with_trees, _ = decoded({})
    assert with_trees != texts
