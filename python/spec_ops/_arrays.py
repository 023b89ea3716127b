"""What is particular of each library of arrays.

The compiled half asks :func:`library` once for each type of array. Where the type has
DLPack's table of functions (``__dlpack_c_exchange_api__``) arrays and streams are read
through that, and what is said here of them is not used.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from ._errors import SignatureError

# DLPack's numbers.
_CPU, _CUDA = 1, 2
# CUDA's legacy default stream, as DLPack names it.
_DEFAULT_STREAM = 1


@dataclass(frozen=True)
class Changes:
    """How a library learns that arrays were written by others."""

    #: The attribute of an array that says whether `refused` is to be asked.
    asked: str
    #: Why an array must not be written: what it is, and what to pass instead. None: it may be.
    refused: Callable[[Any], tuple[str, str] | None]
    #: Marks a tuple of arrays as changed.
    mark: Callable[[tuple[Any, ...]], Any]


@dataclass(frozen=True)
class Library:
    """A library's ways with its arrays."""

    name: str
    #: An array as a DLPack capsule, unordered: ready on the library's current stream.
    capsule: Callable[[Any], Any] | None
    #: An array, ready on a CUDA stream (None for host memory): a capsule, a capsule and the
    #: name of the element type, or address, shape, strides, type, and DLPack's device.
    ordered: Callable[[Any, int | None], Any]
    #: The current stream of a CUDA device.
    stream: Callable[[int], int]
    #: A new array beside another: like, shape, element type.
    empty: Callable[[Any, tuple[int, ...], str], Any]
    #: For arrays beside `like` of one shape and element type, a function and its arguments that
    #: make them on the library's current device with less overhead than `empty`; None where
    #: that is another device than the one of `like`. Used if the library has DLPack's table of
    #: functions.
    ready: Callable[[Any, tuple[int, ...], str], tuple[Callable[..., Any], tuple] | None] | None = None
    #: The types beside whose arrays `ready` makes arrays; `empty` of another type may make other
    #: results.
    plain: tuple[type, ...] = ()
    #: What makes a result of such an array, where `empty` makes another library's.
    finish: Callable[[Any], Any] | None = None
    #: An array with whole numbers of another width; what does not fit becomes the nearest that
    #: does. None for a library without such a way.
    cast: Callable[[Any, str], Any] | None = None
    #: Whether arrays are never to be written.
    immutable: bool = False
    #: Why arrays of this type are not taken: what they are, in words.
    refused: str | None = None
    #: Methods that say whether memory holds something else than the array's values, each with
    #: what the array is then, and what to pass instead.
    deferred: tuple[tuple[str, str, str], ...] = ()
    #: How the library learns that its arrays were written; None where it does not want to know.
    changes: Changes | None = None


@cache
def library(kind: type) -> Library | None:
    """The library of a type of arrays; None for what is no array."""
    for base in kind.__mro__:
        maker = _KNOWN.get(base.__module__.partition(".")[0])
        if maker is not None and hasattr(base, "__dlpack__"):
            made = replace(maker(), refused=_refused(kind))
            return made if kind in made.plain else replace(made, ready=None)
    if hasattr(kind, "__dlpack__"):
        return Library(kind.__module__, None, _dlpack, _default_stream, _empty_like_any)
    if hasattr(kind, "data_ptr"):
        return Library(kind.__module__, None, _by_pointer, _default_stream, _no_empty)
    return None


def _refused(kind: type) -> str | None:
    """Why arrays of a type are not taken, though their memory could be read."""
    masked = getattr(sys.modules.get("numpy.ma"), "MaskedArray", None)
    if masked is not None and issubclass(kind, masked):
        return "a masked array, whose memory has values where it is masked (pass `.filled(value)`)"
    return None


def _default_stream(device: int) -> int:
    """That of torch, which makes results for libraries that cannot, where it is loaded."""
    torch = sys.modules.get("torch")
    return _DEFAULT_STREAM if torch is None else torch.cuda.current_stream(device).cuda_stream


def _dlpack(array: Any, stream: int | None) -> Any:
    if stream is not None:
        # DLPack has no 0; the legacy default stream is 1.
        return array.__dlpack__(stream=stream or _DEFAULT_STREAM)
    try:
        return array.__dlpack__()
    except (BufferError, TypeError):
        # The older capsule cannot say that an array is read-only.
        return array.__dlpack__(max_version=(1, 0))


# numpy


def _numpy() -> Library:
    import numpy

    def ordered(array, stream):
        if array.dtype.name == "bfloat16":  # of ml_dtypes, which DLPack's numpy knows not
            return _dlpack(array.view(numpy.uint16), stream), "bf16"
        return _dlpack(array, stream)

    def empty(like, shape, dtype):
        return numpy.empty(shape, dtypes[dtype])

    dtypes = {name: getattr(numpy, full) for name, full in _NUMPY_NAMES.items()}
    def cast(array, dtype):
        least, greatest = _RANGES[dtype]
        return (array if least is None else array.clip(least, greatest)).astype(dtypes[dtype])

    return Library("numpy", numpy.ndarray.__dlpack__, ordered, _default_stream, empty, cast=cast)


_NUMPY_NAMES = {
    "f32": "float32",
    "f16": "float16",
    "i8": "int8",
    "i32": "int32",
    "i64": "int64",
    "u8": "uint8",
    "u32": "uint32",
    "u64": "uint64",
    "bool": "bool_",
    "count": "uint64",
}

#: The least and the greatest of the numbers that arrays are cast to.
_RANGES = {"i32": (-(2**31), 2**31 - 1), "i64": (None, None)}


# torch


def _torch() -> Library:
    import torch
    from torch.utils.dlpack import to_dlpack

    def stream(device):
        return torch.cuda.current_stream(device).cuda_stream

    def empty(like, shape, dtype):
        return like.new_empty(shape, dtype=dtypes[dtype])

    def cast(array, dtype):
        least, greatest = _RANGES[dtype]
        return (array if least is None else array.clamp(least, greatest)).to(dtypes[dtype])

    def ready(like, shape, dtype):
        # What torch's own compiled code allocates by.
        if like.is_cuda and like.device.index != torch.cuda.current_device():
            return None
        guards = getattr(torch._C, "_dynamo", None) and torch._C._dynamo.guards
        make = getattr(guards, f"_empty_strided_{like.device.type}", None)
        if make is None:
            return None
        strides = tuple(math.prod(max(extent, 1) for extent in shape[i + 1 :]) for i in range(len(shape)))
        return make, (tuple(shape), strides, dtypes[dtype])

    dtypes = {
        name: getattr(torch, full.rstrip("_"))
        for name, full in _NUMPY_NAMES.items()
        if hasattr(torch, full.rstrip("_"))
    }
    dtypes["bf16"] = torch.bfloat16
    # As torch's own operators have it: little else works on unsigned numbers.
    dtypes["count"] = torch.int64
    return Library(
        "torch",
        to_dlpack,
        _dlpack,
        getattr(torch._C, "_cuda_getCurrentRawStream", stream),
        empty,
        ready,
        (torch.Tensor, torch.nn.Parameter),
        cast=cast,
        # Only complex numbers are conjugated, and they are refused by their type.
        deferred=(("is_neg", "negated lazily, with other signs in memory", "its `resolve_neg()`"),),
        changes=_torch_changes(),
    )


def _torch_changes() -> Changes:
    """By versions of tensors torch finds that a tensor which a gradient needs was changed."""
    import torch

    def refused(tensor):
        # As torch's own functions in place.
        leaf = tensor._base if tensor._is_view() else tensor
        if torch.is_grad_enabled() and leaf.is_leaf and leaf.requires_grad:
            return (
                "a leaf that requires grad, or a view of one",
                "a tensor that may be written, or a call under `torch.no_grad()`",
            )
        return None

    def one_by_one(tensors):
        for tensor in tensors:
            torch.autograd.graph.increment_version(tensor)

    # What that function calls, without its overhead; in older versions it takes one tensor.
    mark = getattr(torch._C, "_increment_version", one_by_one)
    try:
        mark(())
    except TypeError:
        mark = one_by_one
    return Changes("requires_grad", refused, mark)


# cupy


def _cupy() -> Library:
    import cupy

    def capsule(array):
        return array.__dlpack__(stream=-1)  # without ordering anything

    def stream(device):
        with cupy.cuda.Device(device):
            return cupy.cuda.get_current_stream().ptr or _DEFAULT_STREAM

    def empty(like, shape, dtype):
        with like.device:
            return cupy.empty(shape, dtypes[dtype])

    def cast(array, dtype):
        least, greatest = _RANGES[dtype]
        return (array if least is None else array.clip(least, greatest)).astype(dtypes[dtype])

    dtypes = {name: getattr(cupy, full) for name, full in _NUMPY_NAMES.items()}
    return Library("cupy", capsule, _dlpack, stream, empty, cast=cast)


# jax, whose arrays are values: they are read, and results become such arrays


def _jax() -> Library:
    import jax

    finish = jax.dlpack.from_dlpack

    # jax itself has no numbers of 64 bits where they are switched off, as they are by default.
    def cast(array, dtype):
        if array.__dlpack_device__()[0] == _CPU:
            import numpy

            return _numpy().cast(numpy.asarray(array), dtype)
        torch = sys.modules.get("torch")
        return None if torch is None else _torch().cast(torch.from_dlpack(array), dtype)

    return Library(
        "jax",
        None,
        _dlpack,
        _default_stream,
        _empty_like_any,
        finish=finish,
        cast=cast,
        immutable=True,
    )


# paddle


def _paddle() -> Library:
    import paddle

    def stream(device):
        return paddle.device.cuda.current_stream(device).cuda_stream

    def empty(like, shape, dtype):
        return paddle.empty(list(shape), dtype=dtypes[dtype], device=like.place)

    def cast(array, dtype):
        least, greatest = _RANGES[dtype]
        return (array if least is None else array.clip(least, greatest)).astype(dtypes[dtype])

    dtypes = {name: full.rstrip("_") for name, full in _NUMPY_NAMES.items()}
    # As torch's: little works on unsigned numbers.
    dtypes |= {"bf16": "bfloat16", "count": "int64"}
    return Library("paddle", paddle.utils.dlpack.to_dlpack, _dlpack, stream, empty, cast=cast)


_KNOWN: dict[str, Callable[[], Library]] = {
    "numpy": _numpy,
    "torch": _torch,
    "cupy": _cupy,
    "jax": _jax,
    "jaxlib": _jax,
    "paddle": _paddle,
}


# others


def _empty_like_any(like: Any, shape: tuple[int, ...], dtype: str) -> Any:
    kind, index = like.__dlpack_device__()
    if kind == _CPU:
        return _numpy().empty(None, shape, dtype)
    # Of a library for whose device there is memory: results of others' stay its arrays.
    torch = sys.modules.get("torch")
    if torch is not None:
        device = torch.empty((), device=f"cuda:{index}")
        return _torch().empty(device, shape, dtype)
    raise _makes_none(like)


def _no_empty(like: Any, shape: tuple[int, ...], dtype: str) -> Any:
    raise _makes_none(like)


def _makes_none(like: Any) -> SignatureError:
    """For a library that no new arrays can be had from."""
    return SignatureError(f"spec_ops makes no {type(like).__module__} arrays: pass `out`", 3)


def _by_pointer(array: Any, _stream: int | None) -> Any:
    """An array by its `data_ptr`, where it has no DLPack."""
    dtype = str(array.dtype).rpartition(".")[2]
    names = {full.rstrip("_"): name for name, full in _NUMPY_NAMES.items() if name != "count"}
    names["bfloat16"] = "bf16"
    shape = [int(extent) for extent in array.shape]
    strides = array.strides
    strides = [int(step) for step in (strides() if callable(strides) else strides)]
    place = str(getattr(array, "place", None) or array.device).lower()
    on_gpu = "cuda" in place or "gpu" in place
    index = "".join(letter for letter in place if letter.isdigit()) or "0"
    return (
        int(array.data_ptr()),
        shape,
        strides,
        names.get(dtype, dtype),
        _CUDA if on_gpu else _CPU,
        int(index) if on_gpu else 0,
    )
