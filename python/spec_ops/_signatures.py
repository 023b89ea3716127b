"""Signatures and documentation of the operators' functions, from their contracts.

One rule for all of them: what is required of the arrays comes by position or by name, in the
contract's order; options, optional arrays and ``out`` come by name, and an optional output is
asked for by a bool of its name.
"""

from __future__ import annotations

import textwrap

from ._contract import Argument, Contract, Option, plain
from ._convert import NUMBERS
from ._results import RESULTS

_ANNOTATIONS = {"bool": "bool", "int": "int", "int?": "int | None", "float": "float"}


def annotation(option: Option) -> str:
    """The type of an option's values."""
    if option.kind == "str":
        return f"Literal[{', '.join(repr(name) for name, _ in option.choices)}]"
    return _ANNOTATIONS[option.kind] + (" | None" if option.follows else "")


def _array(argument: Argument, numbers: bool) -> str:
    """The type of an array, in whose place a number may stand."""
    if not numbers or argument.name not in NUMBERS:
        return "Array"
    return "Array | float" if argument.dtypes == ("f32",) else "Array | int"


def options(contract: Contract) -> list[str]:
    """The parameters of an operator's options."""
    return [
        f"{option.name}: {annotation(option)}" + ("" if option.required else f" = {option.default!r}")
        for option in contract.options
    ]


def extents(contract: Contract) -> list[str]:
    """The parameters of the sizes that a call says."""
    return [
        f"{name}: int" if contract.needs(name) else f"{name}: int | None = None"
        for name in contract.extents
    ]


def arrays(contract: Contract, numbers: bool = True) -> tuple[list[str], list[str]]:
    """The parameters of an operator's arrays: by position or name, and by name alone."""
    by_position = [f"{one.name}: {_array(one, numbers)}" for one in contract.required]
    by_name = [
        f"{one.name}: bool = False"
        if one.role == "out"
        else f"{one.name}: {_array(one, numbers)} | None = None"
        for one in contract.optional
    ]
    return by_position, by_name


def out(contract: Contract) -> list[str]:
    """The parameter of the outputs that a call brings, where the operator has outputs."""
    if len(contract.outputs) < 2:
        return ["out: Array | None = None"] * len(contract.outputs)
    return ["out: Sequence[Array | None] | None = None"]


def function(contract: Contract) -> list[str]:
    """The parameters of an operator's function."""
    by_position, by_name = arrays(contract)
    by_name = [*options(contract), *extents(contract), *by_name, *out(contract)]
    return [*by_position, "*", *by_name]


def result(contract: Contract) -> str:
    """The type of what an operator's function returns."""
    if contract.name in RESULTS:
        return f"results.{RESULTS[contract.name].__name__}"
    one = "Array | None" if all(output.optional for output in contract.outputs) else "Array"
    return one if contract.outputs else "None"


def documentation(contract: Contract, example: str) -> str:
    """What ``help`` says of an operator's function."""
    said = {one.name: _of_argument(one) for one in contract.required}
    said |= {one.name: _of_option(one) for one in contract.options}
    said |= {name: _of_extent(contract, name) for name in contract.extents}
    said |= {
        one.name: "Whether this output is made. Default: False."
        if one.role == "out"
        else _of_argument(one)
        for one in contract.optional
    }
    if contract.outputs:
        several = "a tuple in the order of the result, None for what the call makes"
        said["out"] = f"Where results are written: {several if contract.outputs[1:] else 'an array'}."
    made = {one.name: _of_argument(one) for one in contract.outputs}
    parts = [textwrap.fill(contract.summary, 96), "Args:\n" + _listed(said)]
    if made:
        parts.append("Returns:\n" + _listed(made))
    return "\n\n".join([*parts, example.strip("\n")])


def _of_option(option: Option) -> str:
    words = [plain(option.doc)]
    words += [f'"{name}": {plain(doc)}' for name, doc in option.choices]
    if option.required:
        words.append("Required.")
    else:
        default = f"that of `{option.follows}`" if option.follows else repr(option.default)
        words.append(f"Default: {default}.")
    return " ".join(words)


def _of_extent(contract: Contract, extent: str) -> str:
    shapes = {one.name: one.shape for one in contract.outputs if f"{extent}]" in one.shape}
    words = f"Columns of {', '.join(f'`{name}`' for name in shapes)}."
    return f"{words} Required." if contract.needs(extent) else f"{words} Default: None, no columns."


def _of_argument(argument: Argument) -> str:
    words = [plain(argument.doc), f"{argument.shape} of {' or '.join(argument.dtypes)}."]
    if argument.role == "inout":
        words.append("Changed in place.")
    if argument.name in NUMBERS:
        words.append("A number is that of all requests.")
    if argument.optional and argument.role == "out":
        words.append("None where it is not made.")
    return " ".join(words)


def _listed(said: dict[str, str], indent: str = "    ") -> str:
    fill = lambda name, words: textwrap.fill(
        f"{name}: {words}",
        96,
        initial_indent=indent,
        subsequent_indent=indent + "    ",
        break_on_hyphens=False,
    )
    return "\n".join(fill(name, words) for name, words in said.items())
