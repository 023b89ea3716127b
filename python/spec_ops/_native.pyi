"""The compiled half."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

__version__: str
OPERATORS: Mapping[str, Mapping[str, Any]]

def devices() -> dict[str, list[dict[str, str]] | str]:
    """The devices of each backend, or the sentence that says why there are none."""

def forked() -> None:
    """Says that this process was forked just now."""

@final
class Operator:
    """An operator with its options."""

    def __new__(
        cls,
        name: str,
        options: tuple[Any, ...],
        outputs: Callable[..., Mapping[str, tuple[tuple[int, ...], str]]],
        result: Callable[[tuple[Any, ...]], Any],
    ) -> Operator: ...
    @property
    def name(self) -> str: ...

def operator(name: str, *options: Any) -> Operator:
    """The operator with options in the contract's order, which remembers shapes it met."""

def call(of: tuple[Any, ...], out: Any, *inputs: Any) -> Any:
    """Enqueues the operator of `operator(*of)` on arrays in the contract's order."""

@final
class Plan:
    """An operator made for arrays of certain shapes and types on a device."""

    def __new__(
        cls, operator: Operator, /, *inputs: Any, out: Any = None, **named: Any
    ) -> Plan: ...
    def __call__(self, *inputs: Any, out: Any = None, **named: Any) -> Any:
        """Enqueues the operator on arrays as planned; the results, or those of `out`."""

    @property
    def device(self) -> str: ...
    @property
    def workspace_size(self) -> int: ...
    @property
    def route(self) -> str: ...

@final
class Pipeline:
    """Operators that one call enqueues, one after the other."""

    def __new__(
        cls,
        arrays: Sequence[str],
        stages: Sequence[Any],
        results: Mapping[str, str | None] | None = None,
        first: Mapping[str, str] | None = None,
    ) -> Pipeline: ...
    def __call__(self, *arrays: Any, **named: Any) -> Any:
        """Enqueues the operators; the results in order: None, an array, or a tuple."""
