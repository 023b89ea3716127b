"""The operators as operators of torch: `torch.ops.spec_ops`, for `torch.compile`.

Each is defined with a schema, what runs it on CPU and CUDA, and what says the shapes of its
results while tracing. The functions here have the signatures of those in :mod:`spec_ops`,
without ``out``: the compiler places results.

    >>> import torch, spec_ops.torch
    >>> logits = torch.tensor([[0.1, 2.0, 0.3, 1.5]])
    >>> spec_ops.torch.topk_router(logits, topk=2).indices
    tensor([[1, 3]], dtype=torch.int32)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from ._contract import OPERATORS, Contract
from ._functions import FUNCTIONS
from ._results import RESULTS
from ._shapes import of_outputs
from ._torch_finishers import sample_once
from ._torch_shards import sample_sharded

__all__ = [*OPERATORS, "sample_once", "sample_sharded"]

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


def _signature(contract: Contract) -> inspect.Signature:
    """That of the operator's function, without ``out``."""
    parameters = inspect.signature(FUNCTIONS[contract.name]).parameters.values()
    return inspect.Signature([known for known in parameters if known.name != "out"])


def schema(contract: Contract) -> str:
    """The operator's schema, from its contract."""
    written = iter("abcdefgh")

    def tensor(argument: Any) -> str:
        return f"Tensor({next(written)}!)" if argument.role == "inout" else "Tensor"

    words = [f"{tensor(argument)} {argument.name}" for argument in contract.required] + ["*"]
    for option in contract.options:
        default = f'"{option.default}"' if option.kind == "str" else option.default
        kind = option.kind + "?" * bool(option.follows)
        words.append(f"{kind} {option.name}" + f"={default}" * (not option.required))
    for name in contract.extents:
        words.append(f"SymInt {name}" if contract.needs(name) else f"SymInt? {name}=None")
    for argument in contract.optional:
        made = argument.role == "out"
        words.append(
            f"bool {argument.name}=False" if made else f"{tensor(argument)}? {argument.name}=None"
        )
    made = ["Tensor"] * len(contract.outputs)
    returns = made[0] if len(made) == 1 else f"({', '.join(made)})"
    return f"{contract.name}({', '.join(words)}) -> {returns}"


def _results(contract: Contract, first: torch.Tensor, made: Any) -> Any:
    """What an operator of torch may return: tensors, an empty one for what was not asked."""
    if made is None and contract.outputs:
        return first.new_empty(0, dtype=_OF_NAME[contract.outputs[0].dtypes[0]])
    if not isinstance(made, tuple):
        return made
    first = made[0]
    return tuple(first.new_empty(0) if one is None else one for one in made)


def _run(contract: Contract) -> Callable[..., Any]:
    function = FUNCTIONS[contract.name]

    def run(*args: Any, **kwargs: Any) -> Any:
        return _results(contract, args[0], function(*args, **kwargs))

    return run


def _fake(contract: Contract) -> Callable[..., Any]:
    signature = _signature(contract)

    def fake(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        values = [given[option.name] for option in contract.options]
        values += [given[name] for name in contract.extents]
        shapes = {
            argument.name: (given[argument.name].shape, _DTYPES[given[argument.name].dtype])
            for argument in contract.inputs
            if given[argument.name] is not None
        }
        first = given[contract.inputs[0].name]
        made: list[torch.Tensor] = []
        for output in contract.outputs:
            if output.optional and not given[output.name]:
                dtype = made[0].dtype if made else _OF_NAME[output.dtypes[0]]
                made.append(first.new_empty(0, dtype=dtype))
            else:
                shape, dtype = of_outputs(contract.name, values, shapes)[output.name]
                made.append(first.new_empty(shape, dtype=_OF_NAME[dtype]))
        return None if not made else made[0] if len(made) == 1 else tuple(made)

    return fake


def _function(contract: Contract) -> Callable[..., Any]:
    name, result = contract.name, RESULTS.get(contract.name)
    call = getattr(torch.ops.spec_ops, name).default
    asked = [(i, output.name) for i, output in enumerate(contract.outputs) if output.optional]

    def operator(*args: Any, **kwargs: Any) -> Any:
        made = call(*args, **kwargs)
        if result is None:
            return made if all(kwargs.get(word, False) for _, word in asked) else None
        made = list(made)
        for i, word in asked:
            if not kwargs.get(word, False):
                made[i] = None
        return result(*made)

    described: Any = operator
    described.__name__ = described.__qualname__ = name
    described.__signature__ = _signature(contract)
    described.__doc__ = f"As :func:`spec_ops.{name}`, under `torch.compile` too."
    return operator


def _register(contract: Contract) -> Callable[..., Any]:
    tags = [torch.Tag.pt2_compliant_tag]
    tags.append(getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order))
    LIBRARY.define(schema(contract), tags=tuple(tags))
    run = _run(contract)
    for key in ("CPU", "CUDA"):
        LIBRARY.impl(contract.name, run, key)
    torch.library.register_fake(f"spec_ops::{contract.name}", _fake(contract), lib=LIBRARY)
    return _function(contract)


globals().update({name: _register(contract) for name, contract in OPERATORS.items()})
