"""The contracts of the operators, as the library declares them: everything here that has something
for each operator, option or argument is made from this."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property
from typing import Any, NamedTuple

from . import _native
from ._errors import SignatureError


#: A name in the words for a shape.
_NAME = re.compile(r"[a-z_]\w*")


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
    shape: str
    doc: str


class Contract:
    """An operator's options and arguments."""

    def __init__(self, name: str, about: dict[str, Any]) -> None:
        self.name, self.class_name = name, about["type"]
        self.summary = plain(about["doc"].strip().partition("\n\n")[0])
        self.options = tuple(Option(*fields) for fields in about["options"])
        self.arguments = tuple(Argument(*fields) for fields in about["arguments"])

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

    @cached_property
    def extents(self) -> tuple[str, ...]:
        """Sizes that no option and no input has, such as the number of draws of a row: a call
        says them."""
        known = {option.name for option in self.options} | {"capacity", "or"}
        for argument in self.inputs:
            known.update(_NAME.findall(argument.shape))
        names = (name for output in self.outputs for name in _NAME.findall(output.shape))
        return tuple(dict.fromkeys(name for name in names if name not in known))

    def needs(self, extent: str) -> bool:
        """Whether no call can do without that extent: a required output has no other shape."""
        shapes = (output.shape for output in self.outputs if not output.optional)
        return any(all(extent in _NAME.findall(one) for one in shape.split(" or ")) for shape in shapes)

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
