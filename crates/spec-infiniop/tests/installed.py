"""Calls `topksoftmax` of an installed libinfiniop.so: `python3 installed.py LIBRARY`."""

import ctypes
import sys
from ctypes import POINTER, byref, c_float, c_int32, c_size_t, c_ssize_t, c_void_p

CPU, F32 = 0, 13
library = ctypes.CDLL(sys.argv[1])
library.infiniopTopksoftmax.argtypes = [
    *(c_void_p, c_void_p, c_size_t, POINTER(c_float), POINTER(c_int32), POINTER(c_float)),
    *(c_size_t, c_int32, c_void_p),
]


def ok(code):
    assert code == 0, f"status {code}"


ok(library.infinirtSetDevice(CPU, 0))
handle, x, softmax, size = c_void_p(), c_void_p(), c_void_p(), c_size_t()
ok(library.infiniopCreateHandle(byref(handle)))
shape, strides = (c_size_t * 2)(2, 4), (c_ssize_t * 2)(4, 1)
ok(library.infiniopCreateTensorDescriptor(byref(x), c_size_t(2), shape, strides, F32))
ok(library.infiniopCreateTopksoftmaxDescriptor(handle, byref(softmax), x))
ok(library.infiniopGetTopksoftmaxWorkspaceSize(softmax, byref(size)))
logits = (c_float * 8)(0.1, 2.0, 0.3, 1.5, 3.0, 0.0, 0.0, 3.5)
values, indices = (c_float * 4)(), (c_int32 * 4)()
workspace = ctypes.create_string_buffer(max(size.value, 1))
ok(library.infiniopTopksoftmax(softmax, workspace, size, values, indices, logits, 2, 1, None))
assert list(indices) == [1, 3, 3, 0], list(indices)
ok(library.infiniopDestroyTopksoftmaxDescriptor(softmax))
ok(library.infiniopDestroyTensorDescriptor(x))
ok(library.infiniopDestroyHandle(handle))
print("libinfiniop.so: topksoftmax picks the experts")
