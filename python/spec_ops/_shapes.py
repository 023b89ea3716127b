"""Shapes of outputs where sizes are symbols, as in calls that are traced, and the lengths of vectors
that a number stands for."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

from ._contract import OPERATORS, Contract, Size, names

_OPERATIONS = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "ceil": lambda a, b: (a + b - 1) // b,
}


class _Sizes:
    """What the names in an operator's shapes stand for: options, and sizes of what is given."""

    def __init__(
        self, contract: Contract, options: Sequence[Any], shapes: Mapping[str, Sequence[Any]]
    ) -> None:
        self._contract, self._given = contract, shapes
        options = contract.completed(options)
        self.known = {name: value for name, value in options.items() if value is not None}
        for argument in contract.inputs:
            extents = shapes.get(argument.name, ())
            shape = next((one for one in argument.shapes if len(one) == len(extents)), ())
            for size, extent in zip(shape, extents):
                self._solve(size, extent)

    def of(self, size: Size) -> Any:
        """The size; None for one with a name that nothing says."""
        if isinstance(size, int):
            return size
        if isinstance(size, str):
            meant, without = self._contract.sizes.get(size, (size, None))
            if size in self.known or meant == size or without in self._given:
                return self.known.get(size)
            return self.of(meant)
        operation, *sides = size
        a, b = map(self.of, sides)
        return None if a is None or b is None else _OPERATIONS[operation](a, b)

    def _solve(self, size: Size, extent: Any) -> None:
        """Notes the unknown name in a size that is `extent`: `batch` of `batch * mtp_step`."""
        if isinstance(size, str):
            if self.of(size) is None:
                self.known[size] = extent
        elif isinstance(size, tuple):
            operation, a, b = size
            if (known := self.of(b)) is not None and operation == "+":
                self._solve(a, extent - known)
            elif known and operation == "*":
                self._solve(a, extent // known)


def length(name: str, vector: str, shapes: Mapping[str, Sequence[Any]]) -> Any:
    """How many elements the shapes of other inputs imply for an operator's vector; None where they
    do not."""
    contract = OPERATORS[name]
    (extent,) = next(one.shapes[0] for one in contract.inputs if one.name == vector)
    return _Sizes(contract, (), shapes).of(extent)


def of_outputs(
    name: str, values: Sequence[Any], given: Mapping[str, tuple[Sequence[Any], str]]
) -> dict[str, tuple[tuple[Any, ...], str]]:
    """Shape and element type of each output, for inputs of given ones. `values` are the options, then
    the extents that the call says, in the contract's order, None for one that it does not say.

    An output whose shape depends on an absent input or extent is left out. What counts in 64 bits has
    the type "count": u64, or i64 in libraries that do little with unsigned numbers.
    """
    contract = OPERATORS[name]
    sizes = _Sizes(contract, values, {input: shape for input, (shape, _) in given.items()})
    said = dict(zip(contract.extents, values[len(contract.options) :]))
    sizes.known |= {extent: value for extent, value in said.items() if value is not None}
    found = {}
    for output in contract.outputs:
        has = lambda shape: any(said.get(word) is not None for size in shape for word in names(size))
        chosen = next(filter(has, output.shapes), output.shapes[0])
        shape = tuple(map(sizes.of, chosen))
        if any(extent is None for extent in shape):
            continue
        if output.like in given:
            dtype = given[output.like][1]
        else:
            dtype = "count" if output.dtypes == ("u64",) else output.dtypes[0]
        found[output.name] = (shape, dtype)
    return found
