"""Writes the types of what is made when the package is imported: `spec_ops/_planned.pyi`, what
the classes of operators take, and `spec_ops/torch.pyi`, the operators as torch's.

    python tools/stubs.py

A test holds the files against what this would write.
"""

import inspect
from pathlib import Path

PLANNED = '''"""The operators as objects whose plans are called. Made by `tools/stubs.py`."""

from collections.abc import Sequence
from typing import Any, Literal

from ._native import Plan
from ._results import Array

class Planned:
    """An operator with its options."""

    options: dict[str, Any]
    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the arrays that are read or changed in place, in order."""

    def plan(
        self,
        *arrays: Array | None,
        like: Array | None = None,
        out: Sequence[Any] | None = None,
        **named: Array | None,
    ) -> Plan:
        """A plan for calls with arrays like these, whose contents are not looked at."""
'''

TORCH = '''"""The operators as operators of torch. Made by `tools/stubs.py`."""

from typing import Literal

from . import _results as results
from ._results import Array

'''


def parameters(of, annotation=str):
    """Lines of a signature in a stub."""
    text, keywords = "", False
    for parameter in of:
        if parameter.kind is parameter.KEYWORD_ONLY and not keywords:
            text += "    *,\n"
            keywords = True
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        text += f"    {parameter.name}: {annotation(parameter.annotation)}{default},\n"
    return text


def planned():
    """The text of `_planned.pyi`."""
    from spec_ops import _planned

    text = PLANNED
    for cls in _planned.Planned.__subclasses__():
        text += f'\nclass {cls.__name__}(Planned):\n    """{cls.__doc__}"""\n\n'
        options = list(inspect.signature(cls).parameters.values())
        if not options:
            text += "    def __init__(self) -> None: ...\n"
            continue
        listed = "".join(f"    {line}\n" for line in parameters(options).splitlines())
        text += f"    def __init__(\n        self,\n{listed}    ) -> None: ...\n"
    return text


def torch():
    """The text of `torch.pyi`: the functions without `out`, on tensors alone."""
    from spec_ops import _functions
    from spec_ops._native import OPERATORS

    text = TORCH + "__all__ = [\n" + "".join(f'    "{name}",\n' for name in sorted(OPERATORS))
    text += "]\n"
    tensors = lambda words: words.replace("Array | float", "Array").replace("Array | int", "Array")
    for name in OPERATORS:
        signature = inspect.signature(getattr(_functions, name))
        taken = [p for p in signature.parameters.values() if p.name != "out"]
        text += f"\ndef {name}(\n{parameters(taken, tensors)}) -> {signature.return_annotation}:\n"
        text += f'    """As :func:`spec_ops.{name}`, under `torch.compile` too."""\n'
    return text


FILES = {"_planned.pyi": planned, "torch.pyi": torch}

if __name__ == "__main__":
    for name, text in FILES.items():
        (Path(__file__).parents[1] / "spec_ops" / name).write_text(text())
