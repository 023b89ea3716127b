"""Arrays that say that they lie on a CUDA device, for the stand-in of its driver beside this
file. Their memory is host memory, which nobody reads."""

import ctypes
import threading

import numpy as np

from spec_ops import _arrays

_current = threading.local()


class Entry(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("thread", "stream", "address")]


class Array:
    """A packed array on `cuda:0`."""

    device = "cuda:0"

    def __init__(self, shape, dtype):
        wanted = np.empty(shape, dtype)
        # Allocations on a device begin at a multiple of 256.
        room = np.zeros(wanted.nbytes + 256, np.uint8)
        start = -room.ctypes.data % 256
        self.memory = room[start : start + wanted.nbytes].view(wanted.dtype).reshape(shape)
        self.shape, self.dtype = wanted.shape, wanted.dtype
        self.strides = [step // wanted.itemsize for step in wanted.strides]

    def data_ptr(self):
        return self.memory.ctypes.data

    def __dlpack_device__(self):
        return (2, 0)

    def __dlpack__(self, **_):
        raise BufferError("read by its pointer")


def use_stream(stream):
    """Makes a stream this thread's current one."""
    _current.stream = stream


def entries():
    """What was enqueued so far, in order: thread, stream, and the address that was cleared or 0."""
    found = ctypes.POINTER(Entry)()
    driver = ctypes.CDLL("libcuda.so.1")
    driver.mock_entries.restype = ctypes.c_size_t
    count = driver.mock_entries(ctypes.byref(found))
    return [(found[i].thread, found[i].stream, found[i].address) for i in range(count)]


def _library():
    return _arrays.Library(
        "mock_gpu",
        None,
        _arrays._by_pointer,
        lambda device: getattr(_current, "stream", 16),
        lambda like, shape, dtype: Array(shape, _arrays._NUMPY_NAMES[dtype]),
    )


_arrays._KNOWN["mock_gpu"] = _library
