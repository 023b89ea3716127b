"""The operators as operators of torch: `torch.ops.spec_ops`, for `torch.compile`.

Each is defined with a schema, what runs it on CPU and CUDA, and what says the shapes of its
results while tracing. The functions here have the signatures of those in :mod:`spec_ops`,
without ``out``: the compiler places results.

    >>> import torch, spec_ops.torch
    >>> logits = torch.tensor([[0.1, 2.0, 0.3, 1.5]])
    >>> spec_ops.torch.topk_router(logits, topk=2, scoring="softmax").indices
    tensor([[1, 3]], dtype=torch.int32)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch

from . import _functions as functions
from ._native import OPERATORS
from ._shapes import inputs, of_outputs, outputs

__all__ = [
    "deduplicate_topk",
    "hybrid_mtp_ngram",
    "indexer_topk",
    "moe_align",
    "ngram_match",
    "prompt_lookup",
    "rejection_sample",
    "sample_logits",
    "topk_router",
    "tree_verify",
    "unique",
]

LIBRARY = torch.library.Library("spec_ops", "DEF")

_DTYPES = {
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int8: "i8",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "u8",
    torch.bool: "bool",
}
_DTYPES |= {
    getattr(torch, full): name
    for full, name in {"uint32": "u32", "uint64": "u64"}.items()
    if hasattr(torch, full)
}
# As in `_arrays`: what counts is signed.
_OF_NAME = {name: dtype for dtype, name in _DTYPES.items()} | {"count": torch.int64}

#: Kinds of options by their annotations; the other ones are words.
_KINDS = {"int": "int", "int | None": "int?", "float": "float", "bool": "bool"}


def _parameters(name: str) -> dict[str, inspect.Parameter]:
    parameters = dict(inspect.signature(getattr(functions, name)).parameters)
    parameters.pop("out", None)
    return parameters


def _arrays(name: str) -> dict[str, Any]:
    """The contract's arguments by the names that the function has for them."""
    parameters = _parameters(name)
    first = next(iter(parameters))
    return {
        argument.name if argument.name in parameters else first: argument
        for argument in inputs(name)
    }


def _default(parameter: inspect.Parameter) -> str:
    if parameter.default is parameter.empty:
        return ""
    value = parameter.default
    return f'="{value}"' if isinstance(value, str) else f"={value}"


def schema(name: str) -> str:
    """The operator's schema, from its function's signature and the roles in its contract."""
    arrays, words, written, keywords = _arrays(name), [], 0, False
    for parameter in _parameters(name).values():
        if parameter.kind is parameter.KEYWORD_ONLY and not keywords:
            words.append("*")
            keywords = True
        argument = arrays.get(parameter.name)
        if argument is None:
            kind = _KINDS.get(parameter.annotation, "str")
        else:
            kind = "Tensor"
            if argument.role == "inout":
                kind += f"({'abcdefgh'[written]}!)"
                written += 1
            kind += "?" if argument.optional else ""
        words.append(f"{kind} {parameter.name}{_default(parameter)}")
    made = ["Tensor"] * len(outputs(name))
    returns = made[0] if len(made) == 1 else f"({', '.join(made)})"
    return f"{name}({', '.join(words)}) -> {returns}"


def _results(made: Any) -> Any:
    """What an operator of torch may return: tensors, an empty one for what was not asked."""
    if not isinstance(made, tuple):
        return made
    first = made[0]
    return tuple(first.new_empty(0) if one is None else one for one in made)


def _run(name: str) -> Callable[..., Any]:
    function = getattr(functions, name)

    def run(*args: Any, **kwargs: Any) -> Any:
        return _results(function(*args, **kwargs))

    return run


def _fake(name: str) -> Callable[..., Any]:
    signature, arrays = inspect.Signature(list(_parameters(name).values())), _arrays(name)

    def fake(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        options = [_option(given, option) for option in OPERATORS[name]["options"]]
        shapes = {
            argument.name: (given[known].shape, _DTYPES[given[known].dtype])
            for known, argument in arrays.items()
            if given[known] is not None
        }
        first = given[next(iter(arrays))]
        made: list[torch.Tensor] = []
        for output in outputs(name):
            shape, dtype = of_outputs(name, options, shapes)[output.name]
            # Asked for by a word of the function's, where it has one.
            if output.optional and not given.get(output.name, True):
                made.append(first.new_empty(0, dtype=made[0].dtype))
            else:
                made.append(first.new_empty(shape, dtype=_OF_NAME[dtype]))
        return None if not made else made[0] if len(made) == 1 else tuple(made)

    return fake


def _option(given: Mapping[str, Any], name: str) -> Any:
    """An option, or what it follows from where it is left out."""
    value = given[name]
    if value is None and name == "max_spec_len":
        return given["draft_token_ids"].shape[0]
    if value is None and name == "local_experts":
        return given["experts"]
    return value


def _function(name: str) -> Callable[..., Any]:
    call = getattr(torch.ops.spec_ops, name).default
    result = functions._RESULTS.get(name)
    optional = [(i, o.name) for i, o in enumerate(outputs(name)) if o.optional]
    asked = [(i, word) for i, word in optional if word in _parameters(name)]

    def operator(*args: Any, **kwargs: Any) -> Any:
        made = call(*args, **kwargs)
        if result is None:
            return made
        made = list(made)
        for i, word in asked:
            if not kwargs.get(word, False):
                made[i] = None
        return result(*made)

    described: Any = operator
    described.__name__ = described.__qualname__ = name
    described.__signature__ = inspect.Signature(list(_parameters(name).values()))
    described.__doc__ = f"As :func:`spec_ops.{name}`, under `torch.compile` too."
    return operator


def _register(name: str) -> Callable[..., Any]:
    tags = [torch.Tag.pt2_compliant_tag]
    tags.append(getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order))
    LIBRARY.define(schema(name), tags=tuple(tags))
    run = _run(name)
    for key in ("CPU", "CUDA"):
        LIBRARY.impl(name, run, key)
    torch.library.register_fake(f"spec_ops::{name}", _fake(name), lib=LIBRARY)
    return _function(name)


globals().update({name: _register(name) for name in OPERATORS})
