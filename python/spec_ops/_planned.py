"""The operators as objects whose plans are called.

A plan is made once for arrays of some shapes and types on some device. It owns the operator's
descriptor and, for each stream that it is called on, a workspace. Calls check that arrays are
like that, enqueue, and do nothing else: what CUDA graphs want, and the least overhead.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from . import _functions as functions
from ._errors import SignatureError
from ._native import OPERATORS, Plan
from ._results import Array
from ._shapes import inputs


class Planned:
    """An operator with its options, all of them keywords of the function of that name."""

    _function: ClassVar[Callable[..., Any]]
    _operator: ClassVar[str]
    #: `out` where nothing is said: what the function makes then.
    _out: ClassVar[Sequence[Any] | None] = None

    def __init_subclass__(cls, of: Callable[..., Any], out: Sequence[Any] | None = None) -> None:
        cls._function, cls._operator, cls._out = staticmethod(of), of.__name__, out
        known = inspect.signature(of).parameters
        options = [known[name] for name in OPERATORS[cls._operator]["options"]]
        keywords = [option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in options]
        cls.__signature__ = inspect.Signature(keywords)
        cls.__doc__ = f"{cls._operator} with its options: see :func:`spec_ops.{cls._operator}`."

    def __init__(self, **options: Any) -> None:
        bound = self.__signature__.bind(**options)
        bound.apply_defaults()
        self.options: dict[str, Any] = self._complete(dict(bound.arguments))
        self._native = functions.operator(self._operator, *self.options.values())

    def _complete(self, options: dict[str, Any]) -> dict[str, Any]:
        """Options that follow from others."""
        return options

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
        return f"{type(self).__name__}({options})"

    def plan(
        self,
        *arrays: Array,
        like: Array | None = None,
        out: Sequence[Any] | None = None,
        **named: Array,
    ) -> Plan:
        """A plan for calls with arrays like these, whose contents are not looked at.

        Arrays come in the order in which the contract has them, or by name; ``like`` is
        the first. Calls take them in the same order, None for what is absent. ``out`` is as for
        the function; an output that is planned to be made may be given to a call, packed.

        >>> import numpy as np
        >>> from spec_ops import TopkRouter
        >>> logits = np.array([[0.1, 2.0, 0.3, 1.5]], np.float32)
        >>> plan = TopkRouter(topk=2, scoring="softmax").plan(like=logits)
        >>> weights, indices = np.empty((1, 2), np.float32), np.empty((1, 2), np.int32)
        >>> _ = plan(logits, out=(weights, indices))
        >>> indices
        array([[1, 3]], dtype=int32)
        """
        if like is not None:
            arrays = (like, *arrays)
        names = self.inputs
        if len(arrays) > len(names):
            raise SignatureError(f"{self._operator} takes at most {len(names)} arrays", 3)
        given = dict(zip(names, arrays))
        for name, array in named.items():
            if name not in names or name in given:
                words = f"{self._operator} has no array `{name}` here: {', '.join(names)}"
                raise SignatureError(words, 3)
            given[name] = array
        out = self._out if out is None else out
        return self._native.plan(*(given.get(name) for name in names), out=out)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the arrays that are read or changed in place, in order."""
        known = inspect.signature(self._function).parameters
        first = next(iter(known))
        # The contract's first argument goes by the function's own name for it.
        return tuple(
            argument.name if argument.name in known else first
            for argument in inputs(self._operator)
        )


class TopkRouter(Planned, of=functions.topk_router):
    pass


class DeduplicateTopk(Planned, of=functions.deduplicate_topk, out=(None, True)):
    pass


class RejectionSample(Planned, of=functions.rejection_sample):
    pass


class NgramMatch(Planned, of=functions.ngram_match):
    pass


class HybridMtpNgram(Planned, of=functions.hybrid_mtp_ngram):
    pass


class PromptLookup(Planned, of=functions.prompt_lookup):
    pass


class SampleLogits(Planned, of=functions.sample_logits):
    pass


class TreeVerify(Planned, of=functions.tree_verify):
    pass


class MoeAlign(Planned, of=functions.moe_align):
    def _complete(self, options: dict[str, Any]) -> dict[str, Any]:
        if options["local_experts"] is None:
            options["local_experts"] = options["experts"]
        return options


class IndexerTopk(Planned, of=functions.indexer_topk):
    pass


class Unique(Planned, of=functions.unique):
    pass
