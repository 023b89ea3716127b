"""The operators as objects whose plans are called.

A plan is made once for arrays of some shapes and types on some device. It owns the operator's
descriptor and, for each stream that it is called on, a workspace. Calls check that arrays are
like that, enqueue, and do nothing else: what CUDA graphs want, and the least overhead.
"""

from __future__ import annotations

import inspect
from typing import Any, ClassVar

from . import _functions as functions
from ._contract import OPERATORS, Contract
from ._native import Plan
from ._results import Array


class Planned:
    """An operator with its options, all of them keywords of the function of that name."""

    contract: ClassVar[Contract]

    def __init__(self, **options: Any) -> None:
        known = self.__signature__.parameters
        if not options.keys() <= known.keys():
            raise self.contract.unknown((name for name in options if name not in known), known)
        bound = self.__signature__.bind(**options)
        bound.apply_defaults()
        self.options = self.contract.completed(bound.arguments.values())
        extents = [bound.arguments[name] for name in self.contract.extents]
        self._native = functions.operator(self.contract.name, *self.options.values(), *extents)
        self.options |= zip(self.contract.extents, extents)

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
        return f"{type(self).__name__}({options})"

    def plan(self, *arrays: Array, out: Any = None, **named: Any) -> Plan:
        """A plan for calls with arrays like these, whose contents are not looked at.

        Arrays, ``out`` and what is asked for are as for the function. Calls take the same arrays
        in the same way; an output that is planned to be made may be given to a call, packed.

        >>> import numpy as np
        >>> from spec_ops import TopkRouter
        >>> logits = np.array([[0.1, 2.0, 0.3, 1.5]], np.float32)
        >>> plan = TopkRouter(topk=2).plan(logits)
        >>> weights, indices = np.empty((1, 2), np.float32), np.empty((1, 2), np.int32)
        >>> _ = plan(logits, out=(weights, indices))
        >>> indices
        array([[1, 3]], dtype=int32)
        """
        outputs = self.contract.outputs
        wanted = [True if one.optional and named.pop(one.name, False) else None for one in outputs]
        out = functions.asked(() if out is None else out, wanted)
        return Plan(self._native, *arrays, out=out, **named)


def _planned(contract: Contract) -> type[Planned]:
    known = inspect.signature(functions.FUNCTIONS[contract.name]).parameters
    about = {
        "contract": contract,
        "__doc__": f"{contract.name} with its options: see :func:`spec_ops.{contract.name}`.",
        "__module__": "spec_ops",
        "__signature__": inspect.Signature(
            [known[name] for name in (*(one.name for one in contract.options), *contract.extents)]
        ),
    }
    return type(contract.class_name, (Planned,), about)


CLASSES = {name: _planned(contract) for name, contract in OPERATORS.items()}
globals().update({made.__name__: made for made in CLASSES.values()})
__all__ = [made.__name__ for made in CLASSES.values()]
