"""SGLang's kernels, those that are replaced. Without a GPU, what asks for a stream gets none."""

import torch

from spec_ops import flashinfer as sampling  # noqa: F401, which tests call by this name too
from spec_ops.sglang import *  # noqa: F403


def moe_sum(*_):
    """No operator of this library."""
    raise NotImplementedError


if not torch.cuda.is_available():
    torch.cuda.Stream = torch.cuda.set_stream = torch.cuda.synchronize = lambda *_: None
