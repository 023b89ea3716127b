"""The contracts of the operators, as the library declares them: everything here that has something
for each operator, option or argument is made from this."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

from . import _native
from ._errors import SignatureError


#: A size in a shape: a number, a name, or an operation with two sizes.
Size = int | str | tuple[str, Any, Any]


def names(size: Size) -> Iterator[str]:
    """The names in a size."""
    if isinstance(size, str):
        yield size
    elif isinstance(size, tuple):
        for side in size[1:]:
            yield from names(side)


class Option(NamedTuple):
    """An option of an operator."""

    name: str
    #: "bool", "int", "int?" (which may be None), "float" or "str".
    kind: str
    #: The values of a "str", each with its meaning.
    choices: tuple[tuple[str, str], ...]
    required: bool
    default: Any
    #: The option whose value this one has where it is None.
    follows: str | None
    doc: str


class Argument(NamedTuple):
    """An argument of an operator."""

    name: str
    role: str
    optional: bool
    dtypes: tuple[str, ...]
    #: The argument whose element type this one has.
    like: str | None
    #: The shape in words.
    shape: str
    #: The shapes that it may have.
    shapes: tuple[tuple[Size, ...], ...]
    doc: str


class Contract:
    """An operator's options and arguments."""

    def __init__(self, name: str, about: dict[str, Any]) -> None:
        self.name, self.class_name = name, about["type"]
        self.summary = plain(about["doc"].strip().partition("\n\n")[0])
        self.options = tuple(Option(*fields) for fields in about["options"])
        self.arguments = tuple(Argument(*fields) for fields in about["arguments"])
        #: What sizes are that no argument says, and the argument without which this holds, or None.
        self.sizes: dict[str, tuple[Size, str | None]] = about["sizes"]
        #: Sizes that no option and no input has, such as the number of draws of a row: a call says
        #: them.
        self.extents: tuple[str, ...] = about["extents"]

    @cached_property
    def inputs(self) -> tuple[Argument, ...]:
        """What is read or changed in place."""
        return tuple(argument for argument in self.arguments if argument.role != "out")

    @cached_property
    def outputs(self) -> tuple[Argument, ...]:
        """What is written, whatever it held."""
        return tuple(argument for argument in self.arguments if argument.role == "out")

    @cached_property
    def required(self) -> tuple[Argument, ...]:
        """Inputs that no call may leave out."""
        return tuple(argument for argument in self.inputs if not argument.optional)

    @cached_property
    def optional(self) -> tuple[Argument, ...]:
        """Arguments that a call may leave out: inputs, and outputs that are made if asked for."""
        return tuple(argument for argument in self.arguments if argument.optional)

    def needs(self, extent: str) -> bool:
        """Whether no call can do without that extent: a required output has no other shape."""
        required = (output.shapes for output in self.outputs if not output.optional)
        has = lambda shape: any(extent in names(size) for size in shape)
        return any(all(map(has, shapes)) for shapes in required)

    def completed(self, values: Iterable[Any]) -> dict[str, Any]:
        """Options by name, those that follow another one with its value."""
        options = dict(zip((option.name for option in self.options), values))
        for option in self.options:
            if option.follows in options and options.get(option.name) is None:
                options[option.name] = options[option.follows]
        return options

    def unknown(self, names: Iterable[str], known: Iterable[str]) -> SignatureError:
        """The exception for a call with keywords that are none of its own."""
        name = next(iter(names))
        return SignatureError(f"{self.name}: `{name}` is unknown, expected one of {', '.join(known)}", 3)


def plain(doc: str) -> str:
    """A paragraph of the library's documentation without its links."""
    return re.sub(r"\[(`[^`]*`)\](\([^)]*\))?", r"\1", " ".join(doc.split()))


#: By name.
OPERATORS = {name: Contract(name, about) for name, about in _native.OPERATORS.items()}
