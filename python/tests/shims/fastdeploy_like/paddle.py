"""As much of paddle as FastDeploy's tests of n-gram drafts need, over numpy."""

import numpy as np


class Tensor(np.ndarray):
    """An array that says `numpy()` and `cpu()` as paddle's do."""

    def numpy(self):
        return np.asarray(self)

    def cpu(self):
        return self

    cuda = cpu


def to_tensor(array, place=None):
    return np.array(array).view(Tensor)


def is_compiled_with_cuda():
    return True


def set_device(_name):
    pass


class CPUPlace:
    pass


class CUDAPlace:
    def __init__(self, _index):
        pass


class device:
    @staticmethod
    def synchronize():
        pass
