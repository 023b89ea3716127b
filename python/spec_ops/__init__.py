"""The operators that decide an LLM server's next tokens and experts.

Speculative decoding (n-gram drafts, rejection sampling, trees of drafts), sampling, and
mixture-of-experts routing, on arrays of torch, cupy, numpy, jax or whatever knows DLPack:
where they lie, on the stream that their library works on, without a copy.

>>> import numpy as np, spec_ops
>>> logits = np.random.default_rng(0).standard_normal((4, 256), np.float32)
>>> weights, indices, _ = spec_ops.topk_router(
...     logits, topk=8, scoring="sigmoid", groups=8, topk_groups=4, scale=2.5
... )
>>> weights.shape, indices.dtype
((4, 8), dtype('int32'))

Each operator is a function, and a class (:class:`TopkRouter`) whose plans are called: the
least overhead, for CUDA graphs. :mod:`spec_ops.torch` has them as operators of torch, for
``torch.compile``. :mod:`spec_ops.vllm`, :mod:`spec_ops.sglang`, :mod:`spec_ops.flashinfer` and
:mod:`spec_ops.fastdeploy` have them in these engines' own signatures, and :mod:`spec_ops.engines`
says which functions of an engine's version they replace.
"""

import os as _os

from ._corpus import Corpus
from ._errors import (
    ArgumentError,
    DeviceError,
    DeviceLostError,
    DtypeError,
    OutOfMemoryError,
    ShapeError,
    SignatureError,
    SpecError,
    StridesError,
)
from . import _functions, _planned, _results
from ._functions import *  # noqa: F403
from ._native import Pipeline, Plan, __version__, devices
from ._native import forked as _forked
from ._planned import *  # noqa: F403
from ._results import *  # noqa: F403
from ._torch_unique import torch_unique

__all__ = [
    "ArgumentError",
    "Corpus",
    "DeviceError",
    "DeviceLostError",
    "DtypeError",
    "OutOfMemoryError",
    "Pipeline",
    "Plan",
    "ShapeError",
    "SignatureError",
    "SpecError",
    "StridesError",
    "__version__",
    "devices",
    "torch_unique",
]
# The operators: functions, classes, and what these return.
__all__ += _functions.__all__
__all__ += _planned.__all__
__all__ += _results.__all__

# Threads do not survive a fork; the operators on the CPU are told to start new ones.
if hasattr(_os, "register_at_fork"):
    _os.register_at_fork(after_in_child=_forked)
