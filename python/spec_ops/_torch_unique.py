"""`torch.unique` in its own signature, for arrays of any library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ._arrays import library
from ._errors import foreign
from ._functions import unique
from ._results import Array

__all__ = ["torch_unique"]


def torch_unique(
    input: Array, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> Any:
    """The distinct elements of an array, as `torch.unique` returns them.

    ``input`` has any shape and elements of i32, i64, u32 or u64. The result is the distinct
    elements, ascending whatever ``sorted`` says; with ``return_inverse`` or ``return_counts`` a
    tuple of them, of the place of each element among them, in the shape of ``input``, and of how
    often each occurs. Places are of 64 bits. Other than :func:`unique`, the call waits for the
    number of distinct elements, since that is the length of its results.

    >>> import numpy as np
    >>> torch_unique(np.array([[7, 3], [9, 7]]), return_inverse=True, return_counts=True)
    (array([3, 7, 9]), array([[1, 0],
           [2, 1]]), array([1, 2, 1], dtype=uint64))
    """
    # Flat, and packed where the elements of the array are not.
    flat = input
    if library(type(input)) is not None and hasattr(input, "ravel"):
        flat = _tried("`keys` cannot be read as an array", 10, input.ravel)
    made = unique(flat, counts=return_counts, inverse=return_inverse)

    def cut() -> list[Any]:
        count = int(made.count[0])
        results = [made.unique[:count]]
        if return_inverse:
            results.append(made.inverse.reshape(tuple(input.shape)))
        if return_counts:
            results.append(made.counts[:count])
        return results

    results = _tried("the results were not cut to their length", 1, cut)
    return results[0] if len(results) == 1 else tuple(results)


def _tried(doing: str, status: int, act: Callable[[], Any]) -> Any:
    """What code of an array's library returns; an exception of it becomes one of this package."""
    try:
        return act()
    except Exception as raised:
        raise foreign(f"unique: {doing}", status, raised) from raised
