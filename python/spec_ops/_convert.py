"""What is made of arguments that are not quite the contract's: numbers in the place of vectors of
one number for each request, and whole numbers of another width.

The compiled half asks here before it refuses an argument, so that nothing is asked in a call whose
arguments are the contract's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from ._arrays import Library, library
from ._contract import OPERATORS
from ._errors import ArgumentError
from ._shapes import length

#: Vectors in whose place one number may stand, for all requests.
NUMBERS = (
    *("temperature", "seeds", "top_k", "top_p", "min_p"),
    *("repetition", "frequency", "presence", "min_tokens", "no_repeat_ngram"),
    *("dry_multiplier", "dry_base", "dry_allowed_length", "dry_range", "think_budget"),
)

#: Vectors of whole numbers that may have another width, by the one that they have: the default of
#: torch for `top_k`, and for `seeds` what jax has where its 64-bit numbers are switched off.
_WIDTHS = {("top_k", "i64"): "i32", ("seeds", "i32"): "i64", ("seeds", "u32"): "i64"}

# A seed is 64 bits, signed or not; a library may have no unsigned numbers.
_RANGES = {"i32": range(-(2**31), 2**31), "u64": range(-(2**63), 2**64)}


def _library(array: Any) -> Library:
    """The library of something that was read as an array."""
    known = library(type(array))
    assert known is not None
    return known


def vector(
    operator: str, name: str, number: Any, shapes: Mapping[str, Sequence[int]]
) -> tuple[int, str, Any] | None:
    """The vector that is full of a number, as what it has: how many elements, of which type, and
    the number of that type; None where no number may stand for the argument. `shapes` are those of
    the arrays that were given.
    """
    if name not in NUMBERS or isinstance(number, bool) or not isinstance(number, Real):
        return None
    inputs = OPERATORS[operator].inputs
    (dtype,) = next(known.dtypes for known in inputs if known.name == name)
    numbers = _RANGES.get(dtype)
    # Of another kind of whole number Python would look through the whole range.
    if numbers is not None and not (isinstance(number, Integral) and int(number) in numbers):
        words = f"expected a whole number of {numbers.stop.bit_length() - 1} bits, or an array"
        raise ArgumentError(f"{operator}: `{name}` is {number!r}, {words}", 3)
    if dtype == "u64":
        dtype, number = "i64", (int(number) + 2**63) % 2**64 - 2**63
    count = length(operator, name, shapes)
    if count is None:
        words = "expected an array: how many requests there are follows from no other array"
        raise ArgumentError(f"{operator}: `{name}` is {number!r}, {words}", 3)
    return count, dtype, number


def filled(like: Any, vector: tuple[int, str, Any]) -> Any:
    """The array of a vector, by the library of another array of the call and beside it."""
    count, dtype, number = vector
    made = _library(like).empty(like, (count,), dtype)
    made[...] = number
    return made


def converted(name: str, array: Any, dtype: str) -> Any:
    """An array of another width as the contract's, by its library; None where it is refused."""
    wanted, cast = _WIDTHS.get((name, dtype)), _library(array).cast
    return None if wanted is None or cast is None else cast(array, wanted)
