"""Exceptions, each with the library's own sentence."""

from __future__ import annotations


class SpecError(Exception):
    """Whatever the library refuses or fails at.

    ``status`` is InfiniOp's number for it; the text says which argument, what it is and
    what was expected.
    """

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.status = status

    def __reduce__(self):
        return type(self), (str(self), self.status)


class ArgumentError(SpecError, ValueError):
    """An option or an array is not what the operator takes."""


class SignatureError(ArgumentError, TypeError):
    """A call has too many arrays, an array of an unknown name, or `out` of no use."""


class DtypeError(ArgumentError, TypeError):
    """An array has elements of another type, or is no array."""


class ShapeError(ArgumentError):
    """An array has another shape."""


class StridesError(ArgumentError):
    """An array has strides that would need a copy."""


class DeviceError(SpecError, RuntimeError):
    """A device is absent, too old, or failed."""


class DeviceLostError(DeviceError):
    """A device is gone, and with it all that it held."""


class OutOfMemoryError(DeviceError, MemoryError):
    """There is not enough memory: free some, or ask for less."""


_OF_KIND = {
    "unavailable": DeviceError,
    "out of memory": OutOfMemoryError,
    "device lost": DeviceLostError,
    "failed": DeviceError,
}
_OF_STATUS = {10: DtypeError, 11: ShapeError, 12: StridesError}


def foreign(doing: str, status: int, raised: BaseException) -> BaseException:
    """The exception for another one that other code raised: an array's library, for one.

    What ends programs, as `KeyboardInterrupt` does, stays what it is, and so does an exception
    of this package.
    """
    if isinstance(raised, SpecError) or not isinstance(raised, Exception):
        return raised
    # Some libraries append the frames of their own code.
    said = str(raised).partition("\n")[0]
    kind = "failed" if status == 1 else "usage"
    if isinstance(raised, MemoryError) or type(raised).__name__ == "OutOfMemoryError":
        kind, status = "out of memory", 1
    made = error(f"{doing}: {type(raised).__name__}: {said}", status, kind)
    made.__cause__ = raised
    return made


def error(message: str, status: int, kind: str) -> SpecError:
    """The exception for a sentence with a status and a kind of the library's."""
    return (_OF_KIND.get(kind) or _OF_STATUS.get(status, ArgumentError))(message, status)
