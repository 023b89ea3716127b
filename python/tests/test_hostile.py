"""Calls with one wrong value each: every argument and every option of every operator is replaced by
objects that no operator expects. A call may succeed or raise a `SpecError`; it raises nothing else."""

import datetime
import math

import numpy as np
import pytest
from conftest import LIBRARIES, golden
from test_golden import OPERATORS, extents_of, inputs_of, options_of

import spec_ops


class Raises:
    """An array whose methods fail in ways of their own."""

    def __dlpack_device__(self):
        raise OSError("no device")

    def __dlpack__(self, **_):
        raise ZeroDivisionError("no capsule")


class Lies:
    """An array that hands out no capsule, and names a device that no backend has."""

    def __dlpack_device__(self):
        return ("gpu", -1)

    def __dlpack__(self, **_):
        return 7


class Pointer:
    """An array by `data_ptr` whose description has other types."""

    data_ptr, shape, strides, dtype, device = "x", [None], 3, None, None


class NoNumber:
    """What cannot be compared, hashed or counted."""

    __hash__ = None

    def __eq__(self, other):
        raise OverflowError("no equality")

    def __index__(self):
        raise RuntimeError("no index")

    def __bool__(self):
        raise KeyError("no truth")


def arrays():
    """Objects in the place of an array."""
    f32 = np.zeros((2, 8), np.float32)
    read_only = f32.copy()
    read_only.flags.writeable = False
    yield from (3, -1, 2**70, -(2**70), 0.5, math.nan, math.inf, True, "text", b"bytes", 1j, ...)
    yield from ([], [1.0], (1, 2), {}, {1}, object(), object, print, datetime.date.min, range(3))
    yield from (np.float32(1), np.int64(-1), np.bool_(True), np.datetime64("2020"), np.float64("nan"))
    yield from (np.zeros(()), np.zeros(0), np.zeros((0, 8), np.float32), np.zeros((1,) * 6))
    yield from (np.zeros((2, 8)), np.zeros(3, np.complex64), np.zeros(3, "datetime64[s]"))
    yield from (np.array([None]), np.array(["x"]), np.zeros(3, "f4,i4"), np.zeros(3, ">f4"))
    yield from (f32[::-1], f32.T, f32[:, ::2], np.broadcast_to(f32[0], (4, 8)), read_only)
    yield from (np.zeros(3, np.float16), np.zeros(3, np.int8), np.zeros(3, np.uint16))
    yield from (np.ma.zeros(3), memoryview(b"abc"), bytearray(3), Raises(), Lies(), Pointer())
    yield from (Raises, Lies, Pointer, NoNumber())


def tensors():
    """Tensors of torch in the place of an array."""
    torch = LIBRARIES["torch-cpu"]().torch
    x = torch.zeros(2, 8)
    yield from (x.double(), x.to("meta"), x.to_sparse(), x.to(torch.complex64).conj().imag, x.T)
    yield from (torch.quantize_per_tensor(x, 1.0, 0, torch.qint8), x.expand(4, 2, 8), x[:, ::2])
    yield from (x.requires_grad_(), torch.nn.Parameter(x), x.to(torch.float8_e5m2), torch.tensor(1))
    yield from (torch.zeros(0), torch.zeros(2**30, 2**20, device="meta"), torch.Tensor, torch.float32)


def options():
    """Objects in the place of an option."""
    yield from (-1, 0, 2**31, 2**64, -(2**70), 0.5, math.nan, 1e300, True, None, "", "text", b"x", 1j)
    yield from ([], [2], {}, (1,), object(), NoNumber(), np.zeros(2), np.int8(-3), np.float32("inf"))
    yield from (print, int, ...)


def call(name, arguments):
    """The exception of a call, if any."""
    try:
        getattr(spec_ops, name)(**arguments)
    except spec_ops.SpecError as error:
        return error
    return None


@pytest.mark.parametrize("library", ["numpy", "torch-cpu"])
@pytest.mark.parametrize("name", OPERATORS)
def test_only_this_packages_errors(name, library):
    library = LIBRARIES[library]()
    case = next(case for case in golden(name) if "bf16" not in str(case))
    inputs = {key: array for key, array in inputs_of(name, case, library).items() if array is not None}
    right = options_of(name, case["params"]) | extents_of(name, case)
    contract = OPERATORS[name]
    optional = [one.name for one in contract.inputs if one.name not in inputs]
    refused = ran = 0
    others = [*arrays(), *(tensors() if library.__class__.__name__ == "Torch" else ())]
    for place in [*inputs, *optional]:
        for wrong in others:
            refused += call(name, inputs | right | {place: wrong}) is not None
            ran += 1
    for option in contract.options:
        for wrong in options():
            refused += call(name, inputs | right | {option.name: wrong}) is not None
            ran += 1
    for wrong in others:
        refused += call(name, inputs | right | {"out": wrong}) is not None if contract.outputs else 1
        refused += call(name, inputs | right | {"out": [wrong]}) is not None if contract.outputs else 1
        ran += 2
    assert ran > 100 and refused > ran // 2
