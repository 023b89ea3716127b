"""What operators return: a named tuple of its outputs, under the contract's names, where an
operator has several."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

from ._contract import OPERATORS

#: An array of torch, numpy, cupy, jax or of another library that knows DLPack.
Array = Any

def _result(operator: str) -> Any:
    outputs = OPERATORS[operator].outputs
    made: Any = namedtuple(f"{OPERATORS[operator].class_name}Result", [output.name for output in outputs])
    shapes = ", ".join(
        f"``{output.name}`` {output.shape}" + " or None" * output.optional for output in outputs
    )
    made.__doc__, made.__module__ = f"Of :func:`{operator}`: {shapes}.", "spec_ops"
    return made


#: By operator; those with one output return it, or nothing.
RESULTS = {name: _result(name) for name, contract in OPERATORS.items() if contract.outputs[1:]}
globals().update({made.__name__: made for made in RESULTS.values()})
__all__ = [made.__name__ for made in RESULTS.values()]
