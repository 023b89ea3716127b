"""The operators as functions.

Each takes arrays of any library that knows DLPack, where they lie, and enqueues on the
library's current stream; nothing is copied, and on a GPU nothing waits. Results are new
arrays of the same library, or those of ``out``: a tuple in the order of the result, with
None for what is to be made.

``flags``, where it is taken, is an array ``[1]`` of u32 (or i32), into which bits are OR-ed:
1 a number that is not finite, 2 a token or index out of range, 4 offsets or lengths out of
order. It is never cleared.

The functions are made from the contracts, as text: Python then binds a call's arguments as it
does for any function, which costs less than any other way.
"""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Callable, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal  # noqa: F401, in annotations

from . import _results as results
from . import _signatures as signatures
from ._contract import OPERATORS, Contract
from ._native import Operator, call, operator  # noqa: F401, `call` in the functions' text
from ._results import Array  # noqa: F401, in annotations


#: What the functions' documentation says beyond the contracts, a file per operator.
EXAMPLES = Path(__file__).with_name("examples")


def make(name: str, *values: Any) -> Operator:
    """A new operator with options, then extents, in the contract's order. `operator` remembers
    what it made."""
    # As the named tuple's own constructor, which is Python's code, does in the end.
    result = partial(tuple.__new__, results.RESULTS.get(name, tuple))
    return Operator(name, values, result)


def asked(out: Any, wanted: Sequence[bool | None]) -> Any:
    """`out` with True for each output that is wanted and that `out` does not bring."""
    if not isinstance(out, (tuple, list)):
        return out
    pairs = zip_longest(out, wanted)
    return tuple(make if array is None else array for array, make in pairs)


def unknown(name: str, keywords: Sequence[str]) -> Exception:
    """The exception for keywords that a function does not have."""
    return OPERATORS[name].unknown(keywords, inspect.signature(globals()[name]).parameters)


def source(contract: Contract) -> str:
    """The text of an operator's function."""
    name, words = contract.name, [output.optional and output.name for output in contract.outputs]
    taken = "".join(f"    {one},\n" for one in [*signatures.function(contract), "**_unknown: Any"])
    values = [*(option.name for option in contract.options), *contract.extents]
    of = ", ".join([repr(name), *values])
    inputs = ", ".join([("out" if words else "None"), *(one.name for one in contract.inputs)])
    text = f"""\
def {name}(
{taken}) -> {signatures.result(contract)}:
    if _unknown:
        raise unknown({name!r}, _unknown)
"""
    if any(words):
        made = ", ".join(f"True if {word} else None" if word else "None" for word in words)
        text += f"""\
    if {" or ".join(filter(None, words))}:
        wanted = ({made},)
        out = wanted if out is None else asked(out, wanted)
"""
    return text + f"    return call(({of},), {inputs})\n"


def _function(contract: Contract) -> Callable[..., Any]:
    text, file = source(contract), f"<spec_ops.{contract.name}>"
    linecache.cache[file] = len(text), None, text.splitlines(True), file  # for tracebacks
    exec(compile(text, file, "exec"), globals())
    function = globals()[contract.name]
    taken = list(inspect.signature(function).parameters.values())[:-1]
    function.__signature__ = inspect.signature(function).replace(parameters=taken)
    function.__module__ = "spec_ops"
    example = EXAMPLES.joinpath(f"{contract.name}.txt").read_text("utf-8")
    function.__doc__ = signatures.documentation(contract, example)
    return function


FUNCTIONS = {name: _function(contract) for name, contract in OPERATORS.items()}
__all__ = list(FUNCTIONS)
