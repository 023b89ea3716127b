"""Shapes of outputs, read from the words of the contract: ``[tokens, topk + shared_experts]``.

The same words serve calls, where sizes are numbers, and tracing, where they are symbols.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from ._contract import OPERATORS

#: Outputs whose element type is that of an input.
_SAME_DTYPE = {
    ("append_tokens", "last_tokens"): "tokens",
    ("prompt_lookup", "drafts"): "tokens",
    ("suffix_lookup", "drafts"): "tokens",
    ("unique", "unique"): "keys",
}


@cache
def _dimensions(words: str) -> tuple[str, ...]:
    """The dimensions of the first shape in words: of ``[batch] or [batch, 1]``, ``batch``."""
    inner = words.partition(" or ")[0].strip("[]")
    return tuple(part.strip() for part in inner.split(","))


@cache
def _alternative(words: str, extents: frozenset[str]) -> str:
    """Of ``[rows] or [rows, n]`` the shape that has a known extent, or else the first."""
    alternatives = words.split(" or ")
    names = (set(re.findall(r"[a-z_]\w*", shape)) for shape in alternatives)
    return next((shape for shape, has in zip(alternatives, names) if has & extents), alternatives[0])


@cache
def _expression(words: str) -> Any:
    return compile(words.replace("/", "//"), words, "eval")


def _moe_capacity(sizes: Mapping[str, Any]) -> Any:
    """As the contract has it for `moe_align`."""
    block = sizes["block_size"]
    picks = sizes["tokens"] * sizes["k"] + sizes["local_experts"] * (block - 1)
    return (picks + block - 1) // block * block


def _sizes(operator: str, options: Sequence[Any], shapes: Mapping[str, Sequence[Any]]) -> dict:
    """What the names in shapes stand for: options, and dimensions of what was given."""
    sizes = OPERATORS[operator].completed(options)
    for argument in OPERATORS[operator].inputs:
        shape = shapes.get(argument.name)
        dimensions = _dimensions(argument.shape)
        if shape is None or len(shape) != len(dimensions):
            continue
        for words, extent in zip(dimensions, shape):
            if words.isidentifier():
                sizes.setdefault(words, extent)
                continue
            # `batch * mtp_step` of known steps, and `batch + 1`.
            name, times, factor = words.partition(" * ")
            if times and sizes.get(factor):
                sizes.setdefault(name, extent // sizes[factor])
            name, plus, more = words.partition(" + ")
            if plus and name.isidentifier() and more.isdecimal():
                sizes.setdefault(name, extent - int(more))
    # Without `requests`, each slot of the texts is a request.
    if "slots" in sizes:
        sizes.setdefault("batch", sizes["slots"])
    if operator == "moe_align" and sizes.get("block_size") and "tokens" in sizes:
        sizes["capacity"] = _moe_capacity(sizes)
    return sizes


def length(operator: str, name: str, shapes: Mapping[str, Sequence[Any]]) -> Any:
    """The extent of a vector that the shapes of other inputs imply; None where they do not.

    A row is a request of its own where no `requests` say whose it is.
    """
    sizes = _sizes(operator, (), shapes)
    inputs = OPERATORS[operator].inputs
    (extent,) = next(_dimensions(known.shape) for known in inputs if known.name == name)
    if extent == "requests" and "requests" not in shapes:
        sizes.setdefault(extent, sizes.get("rows"))
    return sizes.get(extent)


def of_outputs(
    operator: str, values: Sequence[Any], given: Mapping[str, tuple[Sequence[Any], str]]
) -> dict[str, tuple[tuple[Any, ...], str]]:
    """Shape and element type of each output, for inputs of given ones. `values` are the options, then
    the extents that the call says, in the contract's order, None for one that it does not say.

    An output whose shape depends on an absent input or extent is left out. What counts in 64 bits has
    the type "count": u64, or i64 in libraries that do little with unsigned numbers.
    """
    contract = OPERATORS[operator]
    sizes = _sizes(operator, values, {name: shape for name, (shape, _) in given.items()})
    said = dict(zip(contract.extents, values[len(contract.options) :]))
    said = {name: extent for name, extent in said.items() if extent is not None}
    sizes |= said
    found = {}
    for argument in contract.outputs:
        words = _alternative(argument.shape, frozenset(said))
        try:
            shape = tuple(
                eval(_expression(words), {"__builtins__": {}}, sizes)
                for words in _dimensions(words)
            )
        except NameError:
            continue
        like = _SAME_DTYPE.get((operator, argument.name))
        if like is not None and like in given:
            dtype = given[like][1]
        else:
            dtype = "count" if argument.dtypes == ("u64",) else argument.dtypes[0]
        found[argument.name] = (shape, dtype)
    return found
