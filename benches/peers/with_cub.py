#!/usr/bin/env python3
"""Times CUB on a GPU: DeviceRadixSort, then DeviceSelect::Unique.

    pip install torch numpy                             # and nvcc, with CUB, of CUDA 12 or later
    python3 benches/peers/with_cub.py --json cub.json

nvcc compiles cub_unique.cu for the GPU that is there. Calls are captured into a CUDA graph. Without
nvcc, PyTorch or a GPU it says so and does nothing.
"""

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import inputs
from common import HERE, Skip, device, main, module
from with_torch import Gpu, keys_of


def compiler():
    """The path of nvcc, or None."""
    found = shutil.which("nvcc")
    home = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin" / "nvcc"
    return found or (str(home) if home.exists() else None)


def library(nvcc, architecture, folder):
    """Compiles cub_unique.cu; returns the path of the library."""
    path = Path(folder) / "libcub_unique.so"
    options = ["-O3", "-std=c++17", f"-arch={architecture}", "-shared", "-Xcompiler", "-fPIC"]
    subprocess.run([nvcc, *options, "-o", path, HERE / "cub_unique.cu"], check=True)
    return path


class Cub:
    name = "CUB SortKeys, then Unique"

    def __init__(self, torch, nvcc, options):
        self.torch, self.gpu = torch, Gpu(torch, options.quick)
        major, minor = torch.cuda.get_device_capability(0)
        with tempfile.TemporaryDirectory() as folder:
            found = ctypes.CDLL(str(library(nvcc, f"sm_{major}{minor}", folder)))
        self.function = found.cub_unique
        self.function.argtypes = [*[ctypes.c_void_p] * 6, ctypes.c_int64, ctypes.c_void_p]
        version = subprocess.run([nvcc, "--version"], check=True, capture_output=True, text=True)
        self.device = device(torch.cuda.get_device_name(0), "cuda:0")
        self.versions = {"nvcc": version.stdout.rsplit("release ")[-1].split(",")[0]}

    def release(self):
        self.gpu.last = None
        self.torch.cuda.empty_cache()

    def unique(self, row):
        torch = self.torch
        given = inputs.Keys(row)
        if given.inverse:
            raise Skip("it gives no places")
        keys, check = keys_of(torch, given)
        n = len(keys)
        ordered, distinct = torch.empty_like(keys), torch.empty_like(keys)
        count = torch.empty(1, dtype=torch.int64, device="cuda")
        size = ctypes.c_size_t()

        def enqueue(workspace):
            stream = torch.cuda.current_stream().cuda_stream
            arrays = (array.data_ptr() for array in (keys, ordered, distinct, count))
            error = self.function(workspace, ctypes.addressof(size), *arrays, n, stream)
            assert error == 0, f"cudaError_t {error}"

        enqueue(None)
        workspace = torch.empty(size.value, dtype=torch.uint8, device="cuda")
        time = lambda: self.gpu.time(lambda _: enqueue(workspace.data_ptr()))
        return time, lambda: check(distinct[: count.item()]), given.bytes


def peer(options):
    torch, nvcc = module("torch"), compiler()
    if torch is None or module("numpy") is None:
        return None
    if not torch.cuda.is_available():
        print("skipped: CUB has no GPU", file=sys.stderr)
        return None
    if nvcc is None:
        print("skipped: CUB: there is no nvcc", file=sys.stderr)
        return None
    try:
        return Cub(torch, nvcc, options)
    except subprocess.CalledProcessError as error:
        print(f"skipped: CUB: nvcc does not compile it: {error}", file=sys.stderr)
        return None


if __name__ == "__main__":
    main(__doc__, peer)
