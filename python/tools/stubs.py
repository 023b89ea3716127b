"""Writes `spec_ops/_planned.pyi`, types of what the classes of operators take:
`python tools/stubs.py`. A test holds the two against each other."""

import inspect
from pathlib import Path

HEAD = '''"""The operators as objects whose plans are called. Made by `tools/stubs.py`."""

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


def stubs():
    """The file's text."""
    from spec_ops import _planned

    text = HEAD
    for cls in _planned.Planned.__subclasses__():
        text += f'\nclass {cls.__name__}(Planned):\n    """{cls.__doc__}"""\n\n'
        options = list(inspect.signature(cls).parameters.values())
        if not options:
            text += "    def __init__(self) -> None: ...\n"
            continue
        text += "    def __init__(\n        self,\n        *,\n"
        for option in options:
            default = "" if option.default is option.empty else f" = {option.default!r}"
            text += f"        {option.name}: {option.annotation}{default},\n"
        text += "    ) -> None: ...\n"
    return text


if __name__ == "__main__":
    path = Path(__file__).parents[1] / "spec_ops/_planned.pyi"
    path.write_text(stubs())
