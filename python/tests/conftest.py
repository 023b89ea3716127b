"""What tests share: the libraries of arrays that are there, and the golden vectors.

`SPEC_PYTHON_REQUIRE=numpy,torch,cuda` turns what is not there from a skip into a failure.
"""

import importlib
import json
import os
import socket
from pathlib import Path

import numpy as np
import pytest

GOLDEN = Path(
    os.environ.get("SPEC_GOLDEN_DIR")
    or Path(__file__).parents[2] / "crates/spec-conformance/golden"
)
REQUIRED = set(filter(None, os.environ.get("SPEC_PYTHON_REQUIRE", "").split(",")))


def need(name, whole_file=False):
    """A module that a test, or a whole file of tests, needs; they are skipped without it."""
    try:
        return importlib.import_module(name)
    except ImportError as missing:
        if name in REQUIRED:
            raise
        pytest.skip(f"{name} is not installed: {missing}", allow_module_level=whole_file)


def need_cuda(torch):
    """A GPU for torch; without one the test is skipped, with a word."""
    if not torch.cuda.is_available():
        if "cuda" in REQUIRED:
            raise RuntimeError("no GPU for torch")
        pytest.skip("no GPU for torch")


def free_port():
    """A port of this machine at which nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def on_ranks(run, ranks, *arguments):
    """Calls `run(rank, *arguments, port, failures)` in a process for each rank. Ranks meet at the
    port. What a rank puts into `failures` fails the test."""
    processes = need("torch").multiprocessing
    failures = processes.get_context("spawn").SimpleQueue()
    processes.spawn(run, (*arguments, free_port(), failures), nprocs=ranks)
    assert failures.empty(), failures.get()


def full_name(dtype):
    """`int32` for `i32`."""
    kinds = {"f": "float", "b": "bfloat", "i": "int", "u": "uint"}
    return "bool" if dtype == "bool" else kinds[dtype[0]] + dtype.lstrip("fbiu")


class Numpy:
    """numpy's arrays. bf16 is ml_dtypes', where that is installed."""

    def __init__(self):
        self.types = {}
        try:
            import ml_dtypes

            self.types["bf16"] = ml_dtypes.bfloat16
        except ImportError:
            pass

    def has(self, dtype):
        return dtype != "bf16" or dtype in self.types

    def array(self, bits, dtype):
        return bits.view(self.types.get(dtype) or full_name(dtype))

    def bits(self, array):
        return np.asarray(array)

    def synchronize(self):
        pass


class Torch:
    """torch's tensors on a device."""

    def __init__(self, device):
        self.torch = need("torch")
        if device == "cuda":
            need_cuda(self.torch)
        self.device = device

    def has(self, dtype):
        return True

    def array(self, bits, dtype):
        same_size = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}[bits.dtype.itemsize]
        tensor = self.torch.from_numpy(bits.view(same_size).copy())
        return tensor.view(getattr(self.torch, full_name(dtype))).to(self.device)

    def bits(self, tensor):
        # numpy has no bf16.
        if tensor.dtype == self.torch.bfloat16:
            tensor = tensor.view(self.torch.int16)
        return tensor.cpu().numpy()

    def synchronize(self):
        if self.device == "cuda":
            self.torch.cuda.synchronize()


class Cupy:
    """cupy's arrays."""

    def __init__(self):
        self.cupy = need("cupy")

    def has(self, dtype):
        return dtype != "bf16"

    def array(self, bits, dtype):
        return self.cupy.asarray(bits.view(full_name(dtype)))

    def bits(self, array):
        return array.get()

    def synchronize(self):
        self.cupy.cuda.runtime.deviceSynchronize()


LIBRARIES = {
    "numpy": Numpy,
    "torch-cpu": lambda: Torch("cpu"),
    "torch-cuda": lambda: Torch("cuda"),
    "cupy": Cupy,
}


@pytest.fixture(params=LIBRARIES)
def library(request):
    """Each library of arrays that is there."""
    return LIBRARIES[request.param]()


_NUMPY = {
    "f32": np.float32,
    "f16": np.uint16,
    "bf16": np.uint16,
    "i8": np.int8,
    "i32": np.int32,
    "i64": np.int64,
    "u8": np.uint8,
    "u32": np.uint32,
    "u64": np.uint64,
    "bool": np.uint8,
}


def golden(operator):
    """The golden cases of an operator, as they are in its file."""
    return json.loads((GOLDEN / f"{operator}.json").read_text())["cases"]


def bits(tensor):
    """A tensor of a golden file as numpy's: f16 and bf16 as their bits."""
    data = [float(v) if isinstance(v, str) else v for v in tensor["data"]]
    return np.array(data, dtype=_NUMPY[tensor["dtype"]]).reshape(tensor["shape"])


def numbers(bits, dtype):
    """The numbers that bits of f16 or bf16 stand for; other numbers as they are."""
    if dtype == "f16":
        return bits.view(np.float16).astype(np.float32)
    if dtype == "bf16":
        return (bits.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return bits
