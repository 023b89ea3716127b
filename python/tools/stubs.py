"""Writes the types of what is made when the package is imported: the operators' functions, their
classes, their results, and the functions of `spec_ops.torch`.

    python tools/stubs.py

A test holds the files against what this would write.
"""

import ast
import importlib
import textwrap
from pathlib import Path

HEAD = '''"""{}. Made by `tools/stubs.py`."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

from . import _results as results
from ._native import Plan
from ._results import Array
'''

RESULTS = '''"""What operators return. Made by `tools/stubs.py`."""

from typing import Any, NamedTuple

Array = Any
RESULTS: dict[str, Any]
'''

FUNCTIONS = """
FUNCTIONS: dict[str, Callable[..., Any]]
"""

PLANNED = '''
class Planned:
    """An operator with its options."""

    options: dict[str, Any]

CLASSES: dict[str, type[Planned]]
'''


def listed(names):
    """What a module exports."""
    return "\n__all__ = [\n" + "".join(f'    "{name}",\n' for name in names) + "]\n"


def define(name, parameters, returns, about="", indent=""):
    """A function of these parameters in a stub."""
    edge = f"{indent}    "
    # A line ends behind a parameter: their own spaces are words' insides meanwhile.
    words = ", ".join(parameter.replace(" ", "\0") for parameter in parameters)
    lines = textwrap.wrap(words, 96, initial_indent=edge, subsequent_indent=edge)
    taken = "\n".join(lines).replace("\0", " ")
    body = f'\n{edge}"""{about}"""\n' if about else " ...\n"
    return f"{indent}def {name}(\n{taken}\n{indent}) -> {returns}:{body}"


def functions():
    """The text of `_functions.pyi`."""
    from spec_ops import _signatures
    from spec_ops._contract import OPERATORS

    text = HEAD.format("The operators as functions") + listed(OPERATORS) + FUNCTIONS
    for name, contract in OPERATORS.items():
        returns, parameters = _signatures.result(contract), _signatures.function(contract)
        text += "\n" + define(name, parameters, returns, contract.summary)
    return text


def planned():
    """The text of `_planned.pyi`."""
    from spec_ops import _signatures
    from spec_ops._contract import OPERATORS

    names = [contract.class_name for contract in OPERATORS.values()]
    text = HEAD.format("The operators as objects whose plans are called") + listed(names) + PLANNED
    for contract in OPERATORS.values():
        options = _signatures.options(contract) + _signatures.extents(contract)
        text += f"\nclass {contract.class_name}(Planned):\n"
        text += define("__init__", ["self", *["*"] * bool(options), *options], "None", indent="    ")
        by_position, by_name = _signatures.arrays(contract)
        taken = ["self", *by_position, "*", *by_name, *_signatures.out(contract)]
        text += define("plan", taken, "Plan", indent="    ")
    return text


def results():
    """The text of `_results.pyi`."""
    from spec_ops._contract import OPERATORS
    from spec_ops._results import RESULTS as known

    text = RESULTS + listed(made.__name__ for made in known.values())
    docs = {"initial_indent": "    ", "subsequent_indent": "    "}
    for name, made in known.items():
        about = textwrap.fill(f'"""{made.__doc__}"""', 96, **docs)
        text += f"\nclass {made.__name__}(NamedTuple):\n{about}\n\n"
        for output in OPERATORS[name].outputs:
            text += f"    {output.name}: Array{' | None' * output.optional}\n"
    return text


def torch():
    """The text of `torch.pyi`: the functions without `out`, on tensors alone."""
    from spec_ops import _signatures
    from spec_ops._contract import OPERATORS

    text = HEAD.format("The operators as operators of torch")
    text += "from ._torch_finishers import sample_once as sample_once\n"
    text += "from ._torch_shards import sample_sharded as sample_sharded\n"
    text += listed([*OPERATORS, "sample_once", "sample_sharded"])
    for name, contract in OPERATORS.items():
        by_position, by_name = _signatures.arrays(contract, numbers=False)
        options = _signatures.options(contract) + _signatures.extents(contract)
        taken = [*by_position, "*", *options, *by_name]
        about = f"As :func:`spec_ops.{name}`, under `torch.compile` too."
        text += "\n" + define(name, taken, _signatures.result(contract), about)
    return text


def package():
    """The text of `__init__.pyi`: what the package exports, which type checkers do not follow from
    module to module."""
    import spec_ops

    text = '"""What the package exports. Made by `tools/stubs.py`."""\n\n'
    for node in ast.parse(Path(spec_ops.__file__).read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [alias.name for alias in node.names]
            if names == ["*"]:
                names = importlib.import_module(f"spec_ops.{node.module}").__all__
            names = [name for name in names if name in spec_ops.__all__]
            lines = "".join(f"    {name},\n" for name in names)
            text += f"from .{node.module} import (\n{lines})\n" if names else ""
    return text + listed(sorted(spec_ops.__all__))


FILES = {
    "__init__.pyi": package,
    "_functions.pyi": functions,
    "_planned.pyi": planned,
    "_results.pyi": results,
    "torch.pyi": torch,
}

if __name__ == "__main__":
    for name, text in FILES.items():
        (Path(__file__).parents[1] / "spec_ops" / name).write_text(text())
